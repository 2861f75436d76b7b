"""What a Raft node finds on its disk after a restart, a crash, and damage."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from psutil import Process

from cluster.raft.core import RaftConfig, RaftCore, RestoredState, founding_state
from cluster.raft.messages import Entry, EntryKind, HardState, Ready, Snapshot
from cluster.raft.storage import RaftStorage, _pack_batch, passes_for_batch
from node.errors import OpenFilesError, ShortageError, StorageError
from node.ids import NodeName
from node.store.disk.disk import DiskFile, RealDisk
from node.store.disk.simulated import CrashStyle, SimulatedCrashError, SimulatedDisk

N1, N2 = NodeName("n1"), NodeName("n2")
DIRECTORY = "/data/raft"


def command(index: int, term: int, size: int = 10) -> Entry:
    return Entry(index, term, EntryKind.COMMAND, bytes([index % 256]) * size)


def ready(
    *entries: Entry, hard_state: HardState | None = None, snapshot: Snapshot | None = None, number: int = 1
) -> Ready:
    return Ready(number, (), snapshot, entries, hard_state, True, (), ())


def reopen(disk: SimulatedDisk) -> tuple[RaftStorage, RestoredState]:
    return RaftStorage.open(disk, DIRECTORY, [N1, N2])


def test_the_first_start_gives_the_founding_state_and_so_does_the_second() -> None:
    disk = SimulatedDisk()
    assert reopen(disk)[1] == founding_state([N1, N2])
    disk.crash(CrashStyle.DROP, Random(1))
    assert RaftStorage.open(disk, DIRECTORY, [])[1] == founding_state([N1, N2])


def test_entries_and_the_vote_survive_a_crash_once_synced() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), command(4, 2), hard_state=HardState(2, N2, 2)))
    storage.sync()
    storage.append(ready(command(5, 2), hard_state=HardState(9, N1, 2)))
    disk.crash(CrashStyle.DROP, Random(1))
    state = reopen(disk)[1]
    assert [entry.index for entry in state.entries] == [1, 2, 3, 4]
    assert state.hard_state == HardState(2, N2, 2)


def test_what_a_killed_process_had_not_synced_is_durable_before_its_successor_counts_on_it() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), hard_state=HardState(2, N2, 2)))
    disk.lose_handles()
    found = reopen(disk)[1]
    assert [entry.index for entry in found.entries] == [1, 2, 3]
    disk.crash(CrashStyle.DROP, Random(1))
    assert reopen(disk)[1] == found


def test_a_log_is_byte_for_byte_what_earlier_releases_wrote() -> None:
    """If it differs, the format has changed: see tests/unit/node/store/formats/test_written_down.py."""
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), command(4, 2), hard_state=HardState(2, N2, 2)))
    begun = disk.snapshot()[f"{DIRECTORY}/log"]
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    assert f"{crc32(begun):08x}" == "8b028c0e"
    assert f"{crc32(disk.snapshot()[f'{DIRECTORY}/log']):08x}" == "28d92289"


def test_each_batch_says_how_much_was_synced_before_it() -> None:
    """Nothing, in a log that was not synced since it was begun behind a snapshot."""
    disk = SimulatedDisk()
    storage, _ = reopen(disk)

    def claim_of(index: int) -> int:
        begin = storage.log_bytes
        storage.append(ready(command(index, 2)))
        batch = disk.snapshot()[f"{DIRECTORY}/log"][begin:]
        return int.from_bytes(batch[12:20], "big")

    first = storage.log_bytes
    assert [claim_of(3), claim_of(4)] == [first, first]
    storage.sync()
    synced = storage.log_bytes
    assert [claim_of(5), claim_of(6)] == [synced, synced]
    storage.save_snapshot(Snapshot(4, 2, (N1, N2), b"state"))
    assert claim_of(7) == 0
    storage.sync()
    synced = storage.log_bytes
    assert claim_of(8) == synced


def test_who_has_nothing_to_write_writes_nothing() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    before = disk.snapshot()
    storage.append(ready())
    assert disk.snapshot() == before


def test_a_later_entry_at_the_same_index_replaces_the_tail() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), command(4, 2), command(5, 2)))
    storage.append(ready(command(4, 3)))
    state = reopen(disk)[1]
    assert [(entry.index, entry.term) for entry in state.entries[2:]] == [(3, 2), (4, 3)]


def test_a_torn_tail_is_cut() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2)))
    good = storage.log_bytes
    storage.append(ready(command(4, 2, size=100)))
    whole = storage.log_bytes
    for size in range(good + 1, whole):
        file = disk.open(f"{DIRECTORY}/log")
        content = file.pread(whole, 0)
        file.truncate(size)
        reopened, state = reopen(disk)
        assert [entry.index for entry in state.entries] == [1, 2, 3]
        assert reopened.log_bytes == good
        file.pwrite(content, 0)


def test_a_torn_tail_is_cut_whatever_a_client_has_written_into_it() -> None:
    """Arguments of a binding may be any bytes, also those of a batch that says that everything before it was safe."""
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    forged = _pack_batch([b"\x02" + bytes(18)], 2**62)
    storage.append(ready(Entry(3, 2, EntryKind.COMMAND, b"binding " + forged + b" and more")))
    file = disk.open(f"{DIRECTORY}/log")
    file.truncate(file.size - 4)
    assert [entry.index for entry in reopen(disk)[1].entries] == [1, 2]


def test_what_could_pass_for_a_batch_that_was_synced_is_known_before_it_is_written() -> None:
    """Batches without items in the arguments of one binding, which say of many places that what is before was safe."""
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    begin = storage.log_bytes
    payload = b"binding " + b"".join(_pack_batch([], begin + 8 * number) for number in range(100))
    storage.append(ready(Entry(3, 2, EntryKind.COMMAND, payload)))
    disk.open(f"{DIRECTORY}/log").truncate(storage.log_bytes - 4)
    with pytest.raises(StorageError, match="what is behind shows that it was once safe"):
        reopen(disk)
    assert passes_for_batch(payload)


@pytest.mark.parametrize(
    ("payload", "passes"),
    [
        (b"the end is WRb1", False),
        (b"the length goes on behind it: WRb1" + bytes(3), True),
        (b"WRb1" + bytes(4), True),
        (b"WRb1WRb1" + bytes(4), True),
        (b"a text about WRb1, and about WRb1", False),
        (b"WRb1\x04\0\0\0", True),
        (b"WRb1\x04\0\0\1", False),
        (_pack_batch([b"\x02" + bytes(18)], 2**62), True),
    ],
)
def test_what_begins_like_a_batch_passes_for_one_if_it_says_a_length_that_there_is(
    payload: bytes, passes: bool
) -> None:
    assert passes_for_batch(payload) is passes


@pytest.mark.parametrize(
    "damaged", [0, 7, 10, 15, 30], ids=["magic", "length", "checksum", "length that was synced", "item"]
)
def test_damage_below_what_was_synced_is_refused_with_file_and_offset(damaged: int) -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    offset = storage.log_bytes
    storage.append(ready(command(3, 2)))
    storage.sync()
    storage.append(ready(command(4, 2)))
    storage.sync()
    disk.flip_bit(f"{DIRECTORY}/log", offset + damaged)
    with pytest.raises(StorageError, match=rf"/data/raft/log is damaged at offset {offset}:"):
        reopen(disk)


@pytest.mark.parametrize("is_written_to", [False, True])
def test_damage_of_the_first_batch_is_refused_whatever_was_synced_behind_it(is_written_to: bool) -> None:
    """The log was put in place with it, complete."""
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    if is_written_to:
        storage.append(ready(command(3, 2)))
    disk.flip_bit(f"{DIRECTORY}/log", 30)
    with pytest.raises(StorageError, match="/data/raft/log is damaged at offset 0:"):
        reopen(disk)


def test_a_hole_among_writes_that_were_never_synced_is_a_torn_tail() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    offset = storage.log_bytes
    storage.append(ready(command(3, 2)))
    storage.append(ready(command(4, 2)))
    disk.flip_bit(f"{DIRECTORY}/log", offset + 30)
    assert [entry.index for entry in reopen(disk)[1].entries] == [1, 2]


def test_a_damaged_snapshot_is_refused() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2)))
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    disk.flip_bit(f"{DIRECTORY}/snapshot", 20)
    with pytest.raises(StorageError, match=r"/data/raft/snapshot is damaged"):
        reopen(disk)


def test_a_snapshot_that_was_cut_off_anywhere_is_refused() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2)))
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    file = disk.open(f"{DIRECTORY}/snapshot")
    for size in reversed(range(file.size)):
        file.truncate(size)
        with pytest.raises(StorageError, match="/data/raft/snapshot is"):
            reopen(disk)


def test_a_snapshot_replaces_the_entries_it_covers() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(*(command(index, 2, 100) for index in range(3, 50)), hard_state=HardState(2, N1, 40)))
    before = storage.log_bytes
    snapshot = Snapshot(40, 2, (N1, N2), b"state")
    storage.save_snapshot(snapshot)
    assert storage.log_bytes < before
    disk.crash(CrashStyle.DROP, Random(1))
    state = reopen(disk)[1]
    assert state.snapshot == snapshot
    assert [entry.index for entry in state.entries] == list(range(41, 50))
    assert state.hard_state == HardState(2, N1, 40)


def test_a_prepared_snapshot_counts_from_its_adoption_on() -> None:
    """And takes nothing with it that was written since it was begun."""
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), command(4, 2)))
    storage.sync()
    snapshot = Snapshot(3, 2, (N1, N2), b"state")
    storage.prepare_snapshot(snapshot)
    assert reopen(disk)[1].snapshot.index == 0
    assert not disk.exists(f"{DIRECTORY}/snapshot.prepared"), "the next start removes what is in nobody's force"
    storage, _ = reopen(disk)
    storage.prepare_snapshot(snapshot)
    storage.append(ready(command(5, 2)))
    storage.adopt_snapshot(snapshot)
    state = reopen(disk)[1]
    assert state.snapshot == snapshot
    assert [entry.index for entry in state.entries] == [4, 5]


def test_a_snapshot_is_durable_under_its_name_before_the_log_loses_what_it_covers() -> None:
    """Not every file system keeps the order of two renames."""
    durable_when_the_log_is_replaced = []

    class WatchedDisk(SimulatedDisk):
        def rename(self, old_path: str, new_path: str) -> None:
            if new_path == f"{DIRECTORY}/log":
                durable_when_the_log_is_replaced.append(f"{DIRECTORY}/snapshot" in self.durable_snapshot())
            super().rename(old_path, new_path)

    for save in (
        lambda storage, snapshot: storage.save_snapshot(snapshot),
        lambda storage, snapshot: (storage.prepare_snapshot(snapshot), storage.adopt_snapshot(snapshot)),
    ):
        storage, _ = reopen(WatchedDisk())
        storage.append(ready(command(3, 2)))
        save(storage, Snapshot(3, 2, (N1, N2), b"state"))
    assert durable_when_the_log_is_replaced == [False, True, False, True], "the first log follows upon no snapshot"


@pytest.mark.parametrize("style", list(CrashStyle))
def test_a_crash_anywhere_in_preparing_and_adopting_leaves_the_one_or_the_other(style: CrashStyle) -> None:
    snapshot = Snapshot(4, 2, (N1, N2), b"new" * 30)
    seen = set()
    for operations in range(1, 40):
        disk = SimulatedDisk()
        storage, _ = reopen(disk)
        storage.append(ready(command(3, 2), command(4, 2), command(5, 2), hard_state=HardState(2, N1, 4)))
        storage.sync()
        disk.crash_after = operations
        try:
            storage.prepare_snapshot(snapshot)
            storage.adopt_snapshot(snapshot)
            is_done = True
        except SimulatedCrashError:
            is_done = False
        disk.crash(style, Random(operations))
        state = reopen(disk)[1]
        assert state.snapshot in ((Snapshot(0, 0, ()), snapshot) if not is_done else (snapshot,))
        assert len(state.entries) + state.snapshot.index == 5
        assert state.hard_state == HardState(2, N1, 4)
        seen.add((is_done, state.snapshot.index))
    assert seen >= {(False, 0), (True, 4)}


class ScarceDisk(SimulatedDisk):
    """Finds no descriptor for the operation that is the ``scarce_in``-th of those which need one."""

    def __init__(self) -> None:
        super().__init__()
        self.scarce_in = 0

    def _take_descriptor(self) -> None:
        self.scarce_in -= 1
        if self.scarce_in == 0:
            raise OpenFilesError("too many open files")

    def open(self, path: str) -> DiskFile:
        self._take_descriptor()
        return super().open(path)

    def create(self, path: str) -> DiskFile:
        self._take_descriptor()
        return super().create(path)

    def sync_directory(self, path: str) -> None:
        self._take_descriptor()
        super().sync_directory(path)


def test_who_is_told_of_a_shortage_writes_into_a_log_that_the_next_start_reads() -> None:
    """Not into one whose name has been taken away by then."""
    told = []
    for scarce_in in range(1, 6):
        disk = ScarceDisk()
        storage, _ = reopen(disk)
        storage.append(ready(command(3, 2), hard_state=HardState(2, N1, 3)))
        snapshot = Snapshot(3, 2, (N1, N2), b"state")
        storage.prepare_snapshot(snapshot)
        disk.scarce_in = scarce_in
        try:
            storage.adopt_snapshot(snapshot)
        except ShortageError:
            told.append("shortage")
        except StorageError:
            told.append("failure")
            continue
        else:
            told.append("done")
        disk.scarce_in = 0
        storage.append(ready(command(4, 3), hard_state=HardState(3, N2, 3)))
        storage.sync()
        disk.crash(CrashStyle.DROP, Random(1))
        state = reopen(disk)[1]
        assert (state.entries[-1:], state.hard_state.voted_for) == ((command(4, 3),), N2), f"descriptor {scarce_in}"
    assert told == ["shortage", "shortage", "failure", "failure", "done"]


def test_a_snapshot_from_the_leader_replaces_a_log_that_does_not_lead_to_it() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), command(4, 2)))
    snapshot = Snapshot(4, 5, (N1, N2), b"state")
    storage.append(ready(command(5, 5), hard_state=HardState(5, None, 4), snapshot=snapshot))
    state = reopen(disk)[1]
    assert state == RestoredState(snapshot, (command(5, 5),), HardState(5, None, 4))


@pytest.mark.parametrize("style", list(CrashStyle))
def test_a_crash_anywhere_in_taking_the_leaders_snapshot_leaves_a_term_that_is_not_below_it(style: CrashStyle) -> None:
    """Nor a vote in that term, for none was sent."""
    snapshot = Snapshot(4, 5, (N1, N2), b"state")
    seen = set()
    for operations in range(1, 40):
        disk = SimulatedDisk()
        storage, _ = reopen(disk)
        storage.append(ready(command(3, 2), hard_state=HardState(2, N2, 2)))
        storage.sync()
        disk.crash_after = operations
        with suppress(SimulatedCrashError):
            storage.append(ready(command(5, 6), hard_state=HardState(6, N1, 4), snapshot=snapshot))
            storage.sync()
        disk.crash(style, Random(operations))
        found = RaftStorage.read(disk, DIRECTORY)
        state = reopen(disk)[1]
        assert found == state
        RaftCore(RaftConfig(N1), state, Random(1), now_ms=0).check_invariants()
        assert state.hard_state in (HardState(2, N2, 2), HardState(5, None, 2), HardState(6, N1, 4))
        seen.add((state.snapshot.index, state.hard_state.term))
    assert seen == {(0, 2), (4, 5), (4, 6)}


def test_a_term_above_that_of_a_snapshot_stays_with_its_vote() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), hard_state=HardState(2, N2, 3)))
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    assert reopen(disk)[1].hard_state == HardState(2, N2, 3)


@pytest.mark.parametrize(("term_of_snapshot", "kept"), [(2, [4]), (5, [])])
def test_a_crash_between_snapshot_and_log_keeps_only_what_continues_the_snapshot(
    term_of_snapshot: int, kept: list[int]
) -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2), command(4, 2)))
    storage.sync()
    old_log = disk.open(f"{DIRECTORY}/log")
    content = old_log.pread(old_log.size, 0)
    storage.save_snapshot(Snapshot(3, term_of_snapshot, (N1, N2), b"state"))
    log = disk.create(f"{DIRECTORY}/log")
    log.append(content)
    assert [entry.index for entry in reopen(disk)[1].entries] == kept


def test_a_missing_log_beside_a_snapshot_is_no_first_start() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2)))
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    disk.unlink(f"{DIRECTORY}/log")
    with pytest.raises(StorageError, match="log is missing"):
        reopen(disk)


def test_a_missing_snapshot_is_told_and_not_taken_for_an_empty_one() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    storage.append(ready(command(3, 2)))
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    disk.unlink(f"{DIRECTORY}/snapshot")
    with pytest.raises(StorageError, match="snapshot is missing"):
        reopen(disk)
    with pytest.raises(StorageError, match="snapshot is missing"):
        RaftStorage.read(disk, DIRECTORY)


def test_whoever_only_reads_finds_what_a_start_would_and_changes_nothing() -> None:
    disk = SimulatedDisk()
    assert RaftStorage.read(disk, DIRECTORY) is None
    storage, state = reopen(disk)
    assert RaftStorage.read(disk, DIRECTORY) == state
    storage.append(ready(command(3, 2), command(4, 2), hard_state=HardState(2, N2, 3)))
    storage.append(ready(command(5, 2)))
    old_log = disk.snapshot()[f"{DIRECTORY}/log"]
    storage.save_snapshot(Snapshot(3, 2, (N1, N2), b"state"))
    assert RaftStorage.read(disk, DIRECTORY) == reopen(disk)[1]
    # A crash between the two renames, and the last write torn.
    disk.create(f"{DIRECTORY}/log").append(old_log[:-1])
    before = disk.snapshot()
    found = RaftStorage.read(disk, DIRECTORY)
    assert disk.snapshot() == before
    assert found == reopen(disk)[1]
    assert [entry.index for entry in found.entries] == [4]


def test_a_storage_that_is_closed_has_no_file_open() -> None:
    disk = SimulatedDisk()
    storage, _ = reopen(disk)
    assert disk.open_handles == 1
    storage.close()
    assert disk.open_handles == 0


def test_the_log_before_a_snapshot_is_given_back(tmp_path: Path) -> None:
    """A node that takes snapshots for years has one log open."""
    storage, _ = RaftStorage.open(RealDisk(), str(tmp_path / "raft"), [N1, N2])
    before = Process().num_fds()
    for index in range(3, 9):
        storage.append(ready(command(index, 2)))
        storage.save_snapshot(Snapshot(index, 2, (N1, N2), b"state"))
    assert Process().num_fds() == before
    storage.close()


@pytest.mark.parametrize("style", list(CrashStyle))
@pytest.mark.parametrize("seed", range(20))
def test_no_crash_takes_what_was_synced(style: CrashStyle, seed: int) -> None:
    """Random writes, syncs, snapshots (at once, and prepared before) and crashes: the state after a crash is one that
    was written since the sync."""
    rng = Random(seed)
    disk = SimulatedDisk()
    storage, state = reopen(disk)
    for _ in range(8):
        last, term, last_snapshot = len(state.entries) + state.snapshot.index, state.hard_state.term, state.snapshot
        prepared: Snapshot | None = None
        possible = [(last, term)]
        for _ in range(rng.randrange(12)):
            term += rng.randrange(2)
            last += 1
            storage.append(ready(command(last, term, rng.randrange(300)), hard_state=HardState(term, N1, 0)))
            possible.append((last, term))
            if rng.random() < 0.3:
                storage.sync()
                possible = possible[-1:]
            if rng.random() < 0.1:
                last_snapshot = Snapshot(last, term, (N1,), b"s" * rng.randrange(50))
                storage.save_snapshot(last_snapshot)
                possible = possible[-1:]
                prepared = None
            if last > last_snapshot.index and rng.random() < 0.1:
                prepared = Snapshot(last, term, (N1,), b"p" * rng.randrange(50))
                storage.prepare_snapshot(prepared)
            elif prepared is not None and rng.random() < 0.5:
                storage.adopt_snapshot(prepared)
                last_snapshot, prepared = prepared, None
                possible = possible[-1:]
        disk.crash(style, rng)
        storage, state = reopen(disk)
        assert state.snapshot == last_snapshot
        assert (len(state.entries) + state.snapshot.index, state.hard_state.term) in possible
