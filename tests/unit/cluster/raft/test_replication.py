"""What a leader sends to a follower that lacks something, and what a follower answers."""

from __future__ import annotations

from cluster.raft.messages import AppendRequest, AppendResponse, HeartbeatResponse
from tests.support.raft_core import N1, N2, N3, command, drain, log_of, make_core, make_leader, of_type


def test_what_was_on_its_way_to_a_process_that_is_gone_is_sent_to_its_successor_first_thing() -> None:
    leader = make_leader(make_core())
    leader.propose(5000, [b"x"])
    drain(leader)
    leader.peer_down(5010, N2)
    drain(leader)
    leader.step(5050, HeartbeatResponse(N2, N1, leader.term))
    [again] = of_type(drain(leader), AppendRequest)
    assert (again.receiver, [entry.payload for entry in again.entries]) == (N2, [b"x"])


def test_after_a_refusal_the_leader_passes_over_what_it_knows_to_differ_and_no_more() -> None:
    """The follower has terms 2 2 2 2 where the leader has 2 2 4 4: they may agree where the leader's run of 2 ends."""
    leader = make_leader(make_core(state=log_of(2, 2, 4, 4)), followers=(N3,))
    leader.step(5010, AppendResponse(N2, N1, leader.term, False, 7, conflict_index=4, conflict_term=2))
    [probe] = of_type(drain(leader), AppendRequest)
    assert (probe.receiver, probe.previous_index, probe.previous_term) == (N2, 5, 2)


def test_a_repeated_request_that_begins_in_what_is_compacted_is_taken_from_there_on() -> None:
    follower = make_core(state=log_of(1, 1, 1, 1, commit=7))
    follower.compact(follower.snapshot_of(6, b"state"), retained_entries=0)
    entries = tuple(command(index, 1) for index in range(5, 9))
    follower.step(10, AppendRequest(N2, N1, 1, 4, 1, entries, 8))
    assert drain(follower) == [AppendResponse(N1, N2, 1, True, 8)]
    assert (follower.log.last_index, follower.log.commit) == (8, 8)


def test_to_a_repeated_request_that_ends_in_what_is_compacted_all_of_that_is_accepted() -> None:
    follower = make_core(state=log_of(1, 1, 1, 1, commit=7))
    follower.compact(follower.snapshot_of(6, b"state"), retained_entries=0)
    follower.step(10, AppendRequest(N2, N1, 1, 3, 1, (command(4, 1),), 7))
    assert drain(follower) == [AppendResponse(N1, N2, 1, True, 6)]
    assert follower.log.last_index == 7, "nothing is cut off"
