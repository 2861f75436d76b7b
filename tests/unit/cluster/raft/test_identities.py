"""Voters are names with identities: in the log, in snapshots, on disk, and in the changes of voters."""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.config import ProposalRefusedError, RaftConfig, RestoredState, founding_state
from cluster.raft.core import RaftCore
from cluster.raft.log import RaftLog
from cluster.raft.messages import (
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    PreVoteResponse,
    Snapshot,
    Voter,
    VoteResponse,
)
from cluster.raft.storage import RaftStorage
from node.ids import NodeName
from node.store.disk.simulated import SimulatedDisk

N1, N2, N3 = (NodeName(f"n{number}") for number in range(1, 4))
TRIO = (Voter(N1, "a1"), Voter(N2, "a2"), Voter(N3, "a3"))
DIRECTORY = "/data/raft"


def new_core(state: RestoredState | None = None) -> RaftCore:
    return RaftCore(RaftConfig(N1), state or founding_state([]), Random(1), now_ms=0)


def drain(core: RaftCore) -> None:
    while core.has_work:
        core.appended(core.take_ready())
        core.check_invariants()


def elect(core: RaftCore) -> RaftCore:
    core.tick(5000)
    drain(core)
    for answer in (PreVoteResponse, VoteResponse):
        core.step(5000, answer(N2, N1, core.term + (answer is PreVoteResponse), True))
        drain(core)
    acknowledge(core)
    return core


def acknowledge(core: RaftCore) -> None:
    core.step(5000, AppendResponse(N2, N1, core.term, True, core.log.last_index))
    drain(core)


def test_a_node_of_no_group_never_stands_for_election() -> None:
    core = new_core()
    core.tick(1_000_000)
    drain(core)
    assert (core.term, core.voted_for) == (0, None)


def test_a_founder_writes_who_votes_and_under_which_identity() -> None:
    core = new_core()
    core.found(0, TRIO)
    drain(core)
    assert core.log.configuration == TRIO
    assert core.log.commit == len(TRIO)
    assert elect(core).is_leader


def test_a_group_of_before_gets_its_identities_one_by_one_and_each_once() -> None:
    core = elect(new_core(founding_state([N1, N2, N3])))
    assert core.log.identity_of(N3) == ""
    core.propose_add_voter(5000, N3, "a3")
    with pytest.raises(ProposalRefusedError, match="not committed"):
        core.propose_add_voter(5000, N2, "a2")
    drain(core)
    acknowledge(core)
    core.propose_add_voter(5000, N2, "a2")
    drain(core)
    acknowledge(core)
    index = core.log.last_index
    core.propose_add_voter(5000, N3, "a3")
    assert core.log.last_index == index, "what is known is no change"
    with pytest.raises(ProposalRefusedError, match="another identity"):
        core.propose_add_voter(5000, N3, "b3")
    assert sorted(core.log.configuration) == [(N1, ""), (N2, "a2"), (N3, "a3")]
    assert len(core.voters) == 3


def test_who_was_removed_may_vote_again_under_another_identity() -> None:
    core = new_core()
    core.found(0, TRIO)
    elect(core)
    core.propose_remove_voter(5000, N3)
    drain(core)
    acknowledge(core)
    core.propose_add_voter(5000, N3, "b3")
    assert core.log.identity_of(N3) == "b3"


def test_an_identity_goes_with_the_entry_that_brought_it() -> None:
    first = [Entry(1, 1, EntryKind.ADD_VOTER, Voter(N1, "a1").pack())]
    log = RaftLog(Snapshot(0, 0, ()), first)
    log.append([Entry(2, 1, EntryKind.ADD_VOTER, Voter(N2, "a2").pack())])
    assert list(log.voters) == [N1, N2]
    log.merge([Entry(2, 2, EntryKind.NOOP)], next_ready=1)
    assert list(log.voters) == [N1]
    assert log.identity_of(N2) is None
    log.check_invariants()


@pytest.mark.parametrize("voters", [TRIO, tuple(Voter(voter.name) for voter in TRIO), (Voter(N1, "a1"), Voter(N2))])
def test_a_snapshot_keeps_the_identities(voters: tuple[Voter, ...]) -> None:
    disk = SimulatedDisk()
    core = new_core()
    core.found(0, voters)
    drain(core)
    snapshot = core.snapshot_of(len(voters), b"state")
    RaftStorage.open(disk, DIRECTORY)[0].save_snapshot(snapshot)
    _, restored = RaftStorage.open(disk, DIRECTORY)
    assert restored.snapshot == snapshot
    assert RaftLog(restored.snapshot).configuration == tuple(sorted(voters))


def test_a_name_alone_is_written_as_releases_without_identities_wrote_it() -> None:
    assert Voter(N1).pack() == b"n1"
    assert Voter.unpack(b"n1") == Voter(N1, "")
    assert Voter.unpack(Voter(N1, "a1").pack()) == Voter(N1, "a1")


def test_a_learner_is_sent_everything_and_counts_for_nothing_until_it_votes() -> None:
    core = new_core()
    core.found(0, TRIO[:2])
    elect(core)
    with pytest.raises(ProposalRefusedError, match="not the leader"):
        new_core().set_learners(0, [TRIO[2]])
    core.set_learners(5000, [TRIO[2]])
    assert not core.has_learned(N3)
    commit = core.log.commit
    core.propose(5000, [b"command"])
    sent = core.take_ready()
    assert N3 in {message.receiver for message in sent.messages_now}
    core.appended(sent)
    core.step(5000, AppendResponse(N3, N1, core.term, True, core.log.last_index))
    drain(core)
    assert core.log.commit == commit, "the leader and a learner are no majority of two"
    acknowledge(core)
    assert core.has_learned(N3)
    core.propose_add_voter(5000, N3, "a3")
    core.set_learners(5000, [])
    drain(core)
    acknowledge(core)
    assert sorted(core.log.configuration) == sorted(TRIO)


def test_what_a_learner_has_learned_counts_for_its_directory_only() -> None:
    core = new_core()
    core.found(0, TRIO[:2])
    elect(core)
    core.set_learners(5000, [TRIO[2]])
    core.step(5000, AppendResponse(N3, N1, core.term, True, core.log.last_index))
    drain(core)
    assert core.has_learned(N3)
    core.set_learners(5000, [TRIO[2]])
    assert core.has_learned(N3), "it is the same"
    core.set_learners(5000, [Voter(N3, "another")])
    assert not core.has_learned(N3), "the other has nothing"
    drain(core)
    core.step(5000, AppendResponse(N3, N1, core.term, False, core.log.last_index - 1, 1, 0))
    sent = [message for message in core.take_ready().messages_now if message.receiver == N3]
    assert [message.previous_index for message in sent if isinstance(message, AppendRequest)] == [0]


def test_a_learner_that_lacks_what_was_compacted_gets_a_snapshot() -> None:
    core = new_core()
    core.found(0, TRIO[:2])
    elect(core)
    core.compact(core.snapshot_of(core.log.applied, b"state"), retained_entries=0)
    core.set_learners(5000, [TRIO[2]])
    sent = [message for message in core.take_ready().messages_now if message.receiver == N3]
    assert [type(message) for message in sent] == [InstallSnapshot]
