"""Which entry made the present configuration, as every node says that has it, however it came by it."""

from __future__ import annotations

import pytest

from cluster.raft.core import founding_state
from cluster.raft.log import RaftLog
from cluster.raft.messages import Entry, EntryKind, InstallSnapshot, Snapshot, Voter
from cluster.raft.storage import RaftStorage
from cluster.wire import consensus_pb2 as pb
from cluster.wire.convert_consensus import consensus_from_wire, consensus_to_wire
from node.errors import StorageError
from node.ids import NodeName
from node.store.disk.disk import write_durably
from node.store.disk.simulated import SimulatedDisk

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
DIRECTORY = "/data/raft"
#: As the release wrote it whose snapshots did not say which entry made their configuration.
OF_EARLIER_RELEASE = bytes.fromhex("57527331 31f9d648 0000000000000006 0000000000000003 0002 0002 6e31 0005 6e32006232")
SAID = bytes.fromhex(
    "57527332 f7233f76 0000000000000006 0000000000000003 0000000000000004 0000000000000002"
    "0002 0002 6e31 0005 6e32006232"
)
SNAPSHOT = Snapshot(6, 3, (N1, N2), b"state", ("", "b2"))
SAYING_SNAPSHOT = Snapshot(6, 3, (N1, N2), b"state", ("", "b2"), configuration_index=4, configuration_term=2)


def teacher() -> RaftLog:
    """Three voters, the last by the entry (3, 2); what follows is applied up to 8."""
    founding = founding_state([N1, N2]).entries
    raft_log = RaftLog(Snapshot(0, 0, ()), founding, commit=len(founding))
    raft_log.append([Entry(3, 2, EntryKind.ADD_VOTER, Voter(N3, "c3").pack())])
    raft_log.append([Entry(index, 3, EntryKind.COMMAND) for index in range(4, 9)])
    raft_log.commit = 8
    raft_log.take_unwritten()
    raft_log.note_stable(8, 1)
    raft_log.take_committed()
    return raft_log


def made_by(raft_log: RaftLog) -> tuple[int, int]:
    return raft_log.configuration_index, raft_log.configuration_term


@pytest.mark.parametrize("retained", [0, 4, 100])
def test_who_forgets_the_entry_that_made_its_configuration_still_knows_which_it_was(retained: int) -> None:
    raft_log = teacher()
    raft_log.compact(raft_log.snapshot_of(7, b"state"), retained)
    assert made_by(raft_log) == (3, 2)
    raft_log.compact(raft_log.snapshot_of(8, b"state"), retained)
    assert made_by(raft_log) == (3, 2)
    assert list(raft_log.voters) == [N1, N2, N3]
    raft_log.check_invariants()


def test_who_was_caught_up_by_a_snapshot_is_no_newer_than_its_teacher() -> None:
    raft_log, pupil = teacher(), RaftLog(Snapshot(0, 0, ()))
    pupil.reset_to(raft_log.snapshot_of(8, b"state"), next_ready=1)
    assert made_by(pupil) == made_by(raft_log) == (3, 2)
    pupil.append([Entry(9, 4, EntryKind.REMOVE_VOTER, b"n3")])
    assert made_by(pupil) == (9, 4)
    pupil.merge([Entry(9, 5, EntryKind.NOOP)], next_ready=2)
    assert made_by(pupil) == (3, 2), "what was cut off made nothing"
    pupil.check_invariants()


def test_who_starts_from_a_snapshot_knows_it_still() -> None:
    disk = SimulatedDisk()
    snapshot = teacher().snapshot_of(8, b"state")
    RaftStorage.open(disk, DIRECTORY)[0].save_snapshot(snapshot)
    restored = RaftStorage.open(disk, DIRECTORY)[1]
    assert restored.snapshot == snapshot
    assert made_by(RaftLog(restored.snapshot)) == (3, 2)


def test_the_end_of_a_snapshot_that_does_not_say_stands_for_the_entry() -> None:
    raft_log = RaftLog(Snapshot(6, 3, (N1, N2)))
    assert made_by(raft_log) == (6, 3)
    pupil = RaftLog(Snapshot(0, 0, ()))
    pupil.reset_to(Snapshot(6, 3, (N1, N2)), next_ready=1)
    assert made_by(pupil) == (6, 3)


def test_a_snapshot_for_releases_that_do_not_read_it_does_not_say() -> None:
    snapshot = teacher().snapshot_of(8, b"state", says_configuration=False)
    assert (snapshot.configuration_index, snapshot.configuration_term) == (0, 0)


@pytest.mark.parametrize(("snapshot", "written"), [(SNAPSHOT, OF_EARLIER_RELEASE), (SAYING_SNAPSHOT, SAID)])
def test_both_formats_are_what_was_written_down(snapshot: Snapshot, written: bytes) -> None:
    disk = SimulatedDisk()
    storage, _ = RaftStorage.open(disk, DIRECTORY)
    storage.save_snapshot(snapshot)
    assert disk.snapshot()[f"{DIRECTORY}/snapshot"] == written + b"state"
    write_durably(disk, f"{DIRECTORY}/snapshot", written + b"state")
    assert RaftStorage.open(disk, DIRECTORY)[1].snapshot == snapshot


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (b"WRs3" + SAID[4:], "of a newer release of Warren .*: upgrade this node"),
        (b"WRx1" + SAID[4:], "damaged at offset 0"),
        (b"WRs1" + SAID[4:], "damaged at offset 0"),
        (SAID[:36], "damaged at offset 0"),
    ],
)
def test_a_snapshot_of_neither_format_is_refused(damaged: bytes, said: str) -> None:
    disk = SimulatedDisk()
    storage, _ = RaftStorage.open(disk, DIRECTORY)
    storage.save_snapshot(SAYING_SNAPSHOT)
    write_durably(disk, f"{DIRECTORY}/snapshot", damaged)
    with pytest.raises(StorageError, match=f"snapshot is {said}"):
        RaftStorage.open(disk, DIRECTORY)


def test_a_snapshot_crosses_the_wire_with_the_entry_and_one_of_an_earlier_release_without() -> None:
    for snapshot in (SNAPSHOT, SAYING_SNAPSHOT):
        message = InstallSnapshot(N1, N2, 7, snapshot)
        wire = pb.ConsensusMessage.FromString(consensus_to_wire(message).SerializeToString())
        assert consensus_from_wire(wire, N1, N2) == message
    earlier = pb.Snapshot(index=6, term=3, voters=["n1", "n2"], data=b"state", identities=["", "b2"])
    assert consensus_to_wire(InstallSnapshot(N1, N2, 7, SNAPSHOT)).install_snapshot.snapshot == earlier
