"""What a leader sends to a follower that lacks something, and what a follower answers."""

from __future__ import annotations

import pytest

from cluster.raft.leadership import MAX_APPEND_BYTES
from cluster.raft.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse, InstallSnapshot, Snapshot
from cluster.raft.progress import MAX_IN_FLIGHT_REQUESTS
from tests.support.raft_core import N1, N2, N3, command, drain, log_of, make_core, make_leader, of_type


def test_what_was_on_its_way_to_a_process_that_is_gone_is_sent_to_its_successor_first_thing() -> None:
    leader = make_leader(make_core())
    leader.propose(5000, [b"x"])
    drain(leader)
    leader.peer_down(5010, N2)
    drain(leader)
    leader.step(5050, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    [again] = of_type(drain(leader), AppendRequest)
    assert (again.receiver, [entry.payload for entry in again.entries]) == (N2, [b"x"])


def test_after_a_refusal_the_leader_passes_over_what_it_knows_to_differ_and_no_more() -> None:
    """The follower has terms 2 2 2 2 where the leader has 2 2 4 4: they may agree where the leader's run of 2 ends."""
    leader = make_leader(make_core(state=log_of(2, 2, 4, 4)), followers=(N3,))
    leader.step(5010, AppendResponse(N2, N1, leader.term, False, 7, conflict_index=4, conflict_term=2))
    [probe] = of_type(drain(leader), AppendRequest)
    assert (probe.receiver, probe.previous_index, probe.previous_term) == (N2, 5, 2)


def test_what_is_not_sent_yet_is_not_asked_for_either() -> None:
    leader = make_leader(make_core())
    leader.propose(5010, [b"x"])
    leader.step(5010, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    assert [(m.receiver, len(m.entries)) for m in of_type(drain(leader), AppendRequest)] == [(N2, 1), (N3, 1)]


def test_what_is_sent_and_not_acknowledged_is_asked_for_without_its_entries() -> None:
    """Perhaps it was lost; a refusal would show from where on."""
    leader = make_leader(make_core())
    leader.propose(5010, [b"x"])
    drain(leader)
    index = leader.log.last_index
    leader.step(5050, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    [question] = of_type(drain(leader), AppendRequest)
    assert (question.receiver, question.previous_index, question.entries) == (N2, index, ())
    leader.step(5060, AppendResponse(N2, N1, leader.term, False, index, conflict_index=index, conflict_term=0))
    [again] = of_type(drain(leader), AppendRequest)
    assert [entry.payload for entry in again.entries] == [b"x"]


def test_who_has_everything_is_asked_for_nothing() -> None:
    leader = make_leader(make_core())
    leader.step(5050, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    assert drain(leader) == []


def test_a_question_for_what_is_missing_names_the_term_of_the_last_entry_that_was_sent() -> None:
    leader = make_leader(make_core(state=log_of(1)))
    leader.propose(5010, [b"x"])
    drain(leader)
    leader.step(5020, AppendResponse(N2, N1, leader.term, True, leader.log.last_index - 1))
    leader.propose(5030, [b"y"])
    drain(leader)
    leader.step(5050, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    [question] = of_type(drain(leader), AppendRequest)
    assert (question.previous_index, question.previous_term) == (leader.log.last_index, leader.term)


def test_what_is_on_its_way_is_not_sent_again_because_something_before_it_has_arrived() -> None:
    leader = make_leader(make_core())
    first = leader.log.last_index + 1
    for payload in (b"x", b"y"):
        leader.propose(5010, [payload])
        drain(leader)
    leader.step(5020, AppendResponse(N2, N1, leader.term, True, first))
    [news] = of_type(drain(leader), AppendRequest)
    assert (news.receiver, news.entries, news.commit) == (N2, (), first), "only that what it has is committed"


def test_what_is_much_is_sent_in_requests_of_bounded_size() -> None:
    leader = make_leader(make_core())
    leader.propose(5010, [bytes(MAX_APPEND_BYTES // 2)] * 3)
    requests = [message for message in of_type(drain(leader), AppendRequest) if message.receiver == N2]
    assert [len(request.entries) for request in requests] == [2, 1]


@pytest.mark.parametrize("has", [0, 3])
def test_a_snapshot_on_its_way_is_all_that_is_sent_and_is_sent_again_after_an_election_timeout(has: int) -> None:
    leader = make_leader(make_core(), followers=(N3,))
    leader.compact(leader.snapshot_of(leader.log.applied, b"state"), retained_entries=0)
    leader.step(5000, AppendResponse(N2, N1, leader.term, has > 0, 3, conflict_index=1, conflict_term=0))
    assert len(of_type(drain(leader), InstallSnapshot)) == 1
    leader.propose(5010, [b"x"])
    again_ms = 5000 + leader.config.election_timeout_min_ms
    for now_ms, sent in ((again_ms - 1, 0), (again_ms, 1)):
        leader.step(now_ms, HeartbeatResponse(N2, N1, leader.term, 0, 0))
        messages = [message for message in drain(leader) if message.receiver == N2]
        assert [type(message) for message in messages] == [InstallSnapshot] * sent
    leader.step(again_ms, AppendResponse(N2, N1, leader.term, True, leader.log.snapshot.index))
    [rest] = [message for message in of_type(drain(leader), AppendRequest) if message.receiver == N2]
    assert [entry.payload for entry in rest.entries] == [b"x"]


def test_a_snapshot_that_a_slow_link_brings_is_not_sent_again_before_its_answer_is_due() -> None:
    """It was: what is answered first, when it has arrived, are the heartbeats that had to wait behind it."""
    leader = make_leader(make_core(), followers=(N3,))
    leader.compact(leader.snapshot_of(leader.log.applied, b"state"), retained_entries=0)
    leader.step(5000, AppendResponse(N2, N1, leader.term, False, 3, conflict_index=1, conflict_term=0))
    drain(leader)
    before, behind = 5001, 5101
    arrived_ms, timeout_ms = 60_000, leader.config.election_timeout_min_ms
    for now_ms, echo_ms, sent in (
        (arrived_ms - 1, before, 0),
        (arrived_ms, behind, 0),
        (arrived_ms + timeout_ms - 1, behind, 0),
        (arrived_ms + timeout_ms, behind, 1),
    ):
        leader.step(now_ms, HeartbeatResponse(N2, N1, leader.term, 77, echo_ms))
        assert len(of_type(drain(leader), InstallSnapshot)) == sent, f"at {now_ms}"


def test_a_follower_that_answers_after_the_log_it_was_sent_is_compacted_gets_the_snapshot() -> None:
    """More was decided meanwhile than is sent without an answer."""
    leader = make_leader(make_core())
    for number in range(MAX_IN_FLIGHT_REQUESTS + 2):
        leader.propose(5010, [b"%d" % number])
        drain(leader)
        leader.step(5010, AppendResponse(N3, N1, leader.term, True, leader.log.last_index))
        drain(leader)
    leader.compact(leader.snapshot_of(leader.log.applied, b"state"), retained_entries=0)
    assert [message.receiver for message in drain(leader)] == []
    leader.step(5050, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    [answer] = drain(leader)
    assert isinstance(answer, InstallSnapshot)
    assert (answer.receiver, answer.snapshot) == (N2, leader.log.snapshot)


def test_a_refusal_that_is_repeated_is_answered_once() -> None:
    """By a probe, or by the snapshot."""
    for compacted in (False, True):
        leader = make_leader(make_core(state=log_of(2, 2, 4, 4)), followers=(N3,))
        if compacted:
            leader.compact(leader.snapshot_of(leader.log.applied, b"state"), retained_entries=0)
        refusal = AppendResponse(N2, N1, leader.term, False, 7, conflict_index=4, conflict_term=2)
        leader.step(5010, refusal)
        assert [type(message) for message in drain(leader)] == [InstallSnapshot if compacted else AppendRequest]
        leader.step(5020, refusal)
        assert drain(leader) == []


def test_a_refusal_of_what_was_accepted_since_stops_no_stream() -> None:
    leader = make_leader(make_core())
    accepted = leader.log.last_index
    for index in (accepted - 1, accepted):
        leader.step(5010, AppendResponse(N2, N1, leader.term, False, index, conflict_index=1, conflict_term=0))
        assert drain(leader) == []
    for payload in (b"x", b"y"):
        leader.propose(5020, [payload])
        [request] = [message for message in of_type(drain(leader), AppendRequest) if message.receiver == N2]
        assert [entry.payload for entry in request.entries] == [payload]


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


@pytest.mark.parametrize(("said", "committed"), [(2, 3), (4, 4), (9, 5)])
def test_a_heartbeat_says_what_is_committed_of_what_the_follower_has_and_is_answered(said: int, committed: int) -> None:
    follower = make_core(state=log_of(1, 1, commit=3))
    follower.step(70, Heartbeat(N2, N1, 1, said, 0, 500, 0))
    assert drain(follower) == [HeartbeatResponse(N1, N2, 1, 71, 500)]
    assert follower.log.commit == committed


def test_a_snapshot_that_comes_late_takes_nothing_back_and_proves_nothing_new() -> None:
    follower = make_core(state=log_of(1, 1, commit=4))
    follower.step(10, InstallSnapshot(N2, N1, 1, Snapshot(3, 1, (N1, N2, N3), b"state")))
    assert follower.take_ready().snapshot is None
    assert (follower.log.commit, follower.log.last_index) == (4, 5)
    follower.step(20, InstallSnapshot(N2, N1, 1, Snapshot(3, 1, (N1, N2, N3), b"state")))
    assert drain(follower) == [AppendResponse(N1, N2, 1, True, 4)], "the last entry may be another at the leader"
    follower.check_invariants()
