"""When a node stands, whom it lets stand, and what it knows of the leader."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from cluster.raft.core import ProposalRefusedError, RaftConfig, RaftCore, Role, founding_state
from cluster.raft.messages import (
    AppendRequest,
    AppendResponse,
    ForwardedProposal,
    Heartbeat,
    HeartbeatResponse,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    Voter,
    VoteRequest,
    VoteResponse,
)
from node.ids import NodeName
from tests.support.raft_core import N1, N2, N3, N4, TRIO, drain, log_of, make_core, make_leader, of_type


def follow(core: RaftCore, now_ms: int) -> None:
    """``core`` hears n2, the leader of its term."""
    core.step(now_ms, Heartbeat(N2, core.node, core.term, 0, 0, 0, 0))
    drain(core)


def lead_on(core: RaftCore, until_ms: int) -> None:
    """A leader whose followers answer every heartbeat."""
    while core.next_deadline_ms <= until_ms:
        now_ms = core.next_deadline_ms
        core.tick(now_ms)
        for heartbeat in of_type(drain(core), Heartbeat):
            core.step(now_ms, HeartbeatResponse(heartbeat.receiver, core.node, core.term, 0, 0))


# --- the leader's process is gone


def test_who_is_told_that_its_leader_is_gone_has_none_from_that_moment() -> None:
    core = make_core()
    follow(core, 10)
    assert core.has_quorum(20)
    core.peer_down(20, N2)
    assert not core.has_quorum(20)
    with pytest.raises(ProposalRefusedError, match="knows no leader"):
        core.propose(20, [b"x"])


def test_who_is_told_that_its_leader_is_gone_lets_others_stand_at_once() -> None:
    core = make_core()
    follow(core, 10)
    core.peer_down(20, N2)
    core.step(30, PreVoteRequest(N3, N1, 2, 3, 1))
    assert PreVoteResponse(N1, N3, 2, True) in drain(core)
    core.step(30, VoteRequest(N3, N1, 2, 3, 1))
    assert VoteResponse(N1, N3, 2, True) in drain(core)


def test_where_no_delay_is_permitted_it_stands_in_the_same_moment() -> None:
    core = RaftCore(RaftConfig(N1, peer_down_delay_max_ms=0), founding_state(TRIO), Random(1), now_ms=0)
    follow(core, 10)
    core.peer_down(20, N2)
    assert core.next_deadline_ms == 20


def test_the_word_of_a_leader_is_trusted_for_an_election_timeout() -> None:
    core = make_core()
    follow(core, 10)
    until_ms = 10 + core.config.election_timeout_min_ms
    assert core.has_quorum(until_ms)
    assert not core.has_quorum(until_ms + 1)


def test_when_its_leader_is_gone_everybody_who_has_lost_tries_again_within_three_heartbeats() -> None:
    waits_ms = []
    for seed in range(40):
        core = RaftCore(RaftConfig(N1), founding_state(TRIO), Random(seed), now_ms=0)
        follow(core, 10)
        core.peer_down(20, N2)
        core.tick(100)
        assert core.role is Role.PRE_CANDIDATE
        waits_ms.append(core.next_deadline_ms - 100)
    interval_ms = core.config.heartbeat_interval_ms
    assert interval_ms <= min(waits_ms) < 1.5 * interval_ms
    assert 2.5 * interval_ms < max(waits_ms) <= 3 * interval_ms


def test_who_refuses_a_vote_while_its_leader_is_gone_waits_no_longer_for_that() -> None:
    """Whoever asked cannot become the leader; nobody is there to be disturbed."""
    core = make_core()
    follow(core, 10)
    core.peer_down(20, N2)
    core.step(30, VoteRequest(N3, N1, 2, 0, 0))
    assert VoteResponse(N1, N3, 2, False) in drain(core)
    assert core.next_deadline_ms <= 30 + 3 * core.config.heartbeat_interval_ms


# --- how long everybody waits


def assert_waits(core: RaftCore, since_ms: int) -> None:
    """For an election timeout."""
    shortest, longest = core.config.election_timeout_min_ms, core.config.election_timeout_max_ms
    assert shortest <= core.next_deadline_ms - since_ms <= longest


def test_who_starts_waits_for_a_leader_before_it_stands() -> None:
    assert_waits(RaftCore(RaftConfig(N1), founding_state(TRIO), Random(1), now_ms=7000), since_ms=7000)


def test_a_leader_that_lost_its_majority_gives_the_others_time_to_find_a_better_one() -> None:
    core = make_leader(make_core())
    lost_ms = 5000 + core.config.election_timeout_min_ms + 1
    core.tick(lost_ms)
    assert core.role is Role.FOLLOWER
    assert_waits(core, since_ms=lost_ms)


def test_who_founds_a_group_stands_at_once() -> None:
    """All others are there, and none of them has anything to stand with."""
    core = make_core(state=founding_state([]))
    core.found(7000, [Voter(name) for name in TRIO])
    assert (core.term, core.next_deadline_ms) == (1, 7000)
    core.tick(7000)
    assert core.role is Role.PRE_CANDIDATE
    assert_waits(core, since_ms=7000)


@pytest.mark.parametrize(
    "say",
    [
        lambda core, now_ms: core.tick(now_ms),
        lambda core, now_ms: core.step(now_ms, VoteResponse(N2, N1, core.term, False)),
        lambda core, now_ms: core.propose(now_ms, [b"x"]),
        lambda core, now_ms: core.propose_add_voter(now_ms, N4),
        lambda core, now_ms: core.propose_remove_voter(now_ms, N3),
        lambda core, now_ms: core.set_learners(now_ms, []),
        lambda core, now_ms: core.transfer_leadership(now_ms, N2),
        lambda core, now_ms: core.peer_down(now_ms, N3),
    ],
)
def test_time_never_goes_back_whoever_said_it_last(say: Callable[[RaftCore, int], None]) -> None:
    """Callers read their clocks in different threads."""
    core = make_leader(make_core())
    due_ms = core.next_deadline_ms
    say(core, due_ms)
    core.tick(due_ms - 1)
    assert core.next_deadline_ms == due_ms + core.config.heartbeat_interval_ms, "the heartbeat was due"
    assert of_type(drain(core), Heartbeat)


# --- who may stand


def test_a_leader_that_is_followed_yields_to_nobody_however_long_it_has_led() -> None:
    core = make_leader(make_core())
    term = core.term
    lead_on(core, until_ms=20_000)
    core.step(20_000, PreVoteRequest(N3, N1, term + 1, 99, term))
    assert drain(core) == [PreVoteResponse(N1, N3, term, False)]
    core.step(20_000, VoteRequest(N3, N1, term + 1, 99, term))
    assert drain(core) == []
    assert (core.is_leader, core.term) == (True, term)


def test_who_does_not_vote_does_not_take_over_either() -> None:
    """A leader asked it before it was removed, and it hears that late."""
    core = make_core(N4)
    core.step(10, TimeoutNow(N1, N4, 1))
    assert core.role is Role.FOLLOWER
    assert drain(core) == []


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE])
def test_who_stands_and_hears_that_another_leads_its_term_follows_that_one(role: Role) -> None:
    core = make_core()
    core.tick(5000)
    if role is Role.CANDIDATE:
        core.step(5000, PreVoteResponse(N3, N1, core.term + 1, True))
    assert core.role is role
    drain(core)
    core.step(5010, Heartbeat(N2, N1, core.term, 0, 0, 0, 0))
    drain(core)
    assert (core.role, core.leader, core.has_quorum(5010)) == (Role.FOLLOWER, N2, True)
    assert_waits(core, since_ms=5010)
    core.propose(5010, [b"x"])
    assert [message.receiver for message in of_type(drain(core), ForwardedProposal)] == [N2]


def test_a_voter_that_is_asked_to_take_over_asks_for_votes_without_a_pre_vote() -> None:
    core = make_core()
    follow(core, 10)
    core.step(4000, TimeoutNow(N2, N1, 1))
    assert [(m.receiver, m.is_transfer) for m in of_type(drain(core), VoteRequest)] == [(N2, True), (N3, True)]
    assert_waits(core, since_ms=4000)
    assert (core.leader, core.has_quorum(4000)) == (None, False)


def test_who_stands_knows_of_no_leader_any_more() -> None:
    core = make_core()
    follow(core, 10)
    now_ms = core.next_deadline_ms
    core.tick(now_ms)
    assert (core.role, core.leader) == (Role.PRE_CANDIDATE, None)
    with pytest.raises(ProposalRefusedError, match="knows no leader"):
        core.propose(now_ms, [b"x"])


def test_a_target_that_has_everything_is_asked_to_take_over_once() -> None:
    core = make_leader(make_core())
    core.transfer_leadership(5000, N2)
    assert len(of_type(drain(core), TimeoutNow)) == 1
    core.step(5010, AppendResponse(N2, N1, core.term, True, core.log.last_index))
    assert of_type(drain(core), TimeoutNow) == [], "it has said nothing new"


def test_who_asks_in_a_term_that_is_past_is_refused_and_hears_of_the_present_one() -> None:
    core = make_core(state=log_of(5))
    core.step(10, PreVoteRequest(N2, N1, 4, 99, 4))
    assert drain(core) == [PreVoteResponse(N1, N2, 5, False)]


def test_nobody_else_may_stand_for_an_election_timeout_after_a_leader_was_heard() -> None:
    core = make_core()
    follow(core, 10)
    until_ms = 10 + core.config.election_timeout_min_ms
    core.step(until_ms - 1, PreVoteRequest(N3, N1, 2, 3, 1))
    core.step(until_ms, PreVoteRequest(N3, N1, 2, 3, 1))
    assert drain(core) == [PreVoteResponse(N1, N3, 1, False), PreVoteResponse(N1, N3, 2, True)]


def test_nobody_is_encouraged_to_stand_in_a_term_that_has_begun() -> None:
    core = make_core()
    core.step(10, PreVoteRequest(N3, N1, core.term, 99, core.term))
    assert drain(core) == [PreVoteResponse(N1, N3, core.term, False)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "is_granted"), [(9, 0, False), (2, 1, False), (3, 1, True), (1, 2, True)]
)
def test_nobody_is_encouraged_whose_log_could_not_win(last_index: int, last_term: int, is_granted: bool) -> None:
    core = make_core()
    core.step(10, PreVoteRequest(N3, N1, 2, last_index, last_term))
    assert drain(core) == [PreVoteResponse(N1, N3, 2 if is_granted else 1, is_granted)]


def test_a_pre_vote_for_a_term_that_has_begun_counts_no_more() -> None:
    core = make_core()
    core.tick(5000)
    roles = []
    for term in (core.term, core.term + 1):
        core.step(5000, PreVoteResponse(N2, N1, term, True))
        roles.append(core.role)
    assert roles == [Role.PRE_CANDIDATE, Role.CANDIDATE], "only the second was for the next one"


@pytest.mark.parametrize("is_granted", [True, False])
def test_a_candidate_counts_votes_and_no_pre_votes(is_granted: bool) -> None:
    core = make_core()
    core.tick(5000)
    core.step(5000, PreVoteResponse(N2, N1, core.term + 1, True))
    drain(core)
    for voter in (N2, N3):
        core.step(5010, PreVoteResponse(voter, N1, core.term + is_granted, is_granted))
    assert core.role is Role.CANDIDATE


def test_a_vote_that_was_refused_is_there_for_the_next_who_asks_and_gives_that_one_time() -> None:
    core = make_core()
    core.step(30, VoteRequest(N3, N1, 2, 2, 1))
    core.step(900, VoteRequest(N2, N1, 2, 3, 1))
    assert drain(core) == [VoteResponse(N1, N3, 2, False), VoteResponse(N1, N2, 2, True)]
    assert_waits(core, since_ms=900)


def test_a_vote_that_comes_when_another_leads_makes_nobody_a_leader() -> None:
    core = make_core()
    core.tick(5000)
    core.step(5000, PreVoteResponse(N3, N1, core.term + 1, True))
    drain(core)
    follow(core, 5010)
    core.step(5020, VoteResponse(N3, N1, core.term, True))
    assert (core.role, core.leader) == (Role.FOLLOWER, N2)


@pytest.mark.parametrize(
    "say",
    [AppendRequest(N2, N1, 1, 3, 1, (), 3), AppendRequest(N2, N1, 1, 9, 1, (), 3), Heartbeat(N2, N1, 1, 0, 0, 0, 0)],
)
def test_whatever_a_leader_says_shows_that_it_is_there(say: AppendRequest | Heartbeat) -> None:
    core = make_core()
    core.step(700, say)
    assert (core.leader, core.has_quorum(700)) == (N2, True)
    assert_waits(core, since_ms=700)


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE])
def test_who_is_refused_by_a_majority_has_lost(role: Role) -> None:
    """What comes later changes nothing."""
    core = make_core()
    core.tick(5000)
    if role is Role.CANDIDATE:
        core.step(5000, PreVoteResponse(N3, N1, core.term + 1, True))
    drain(core)
    answer = VoteResponse if role is Role.CANDIDATE else PreVoteResponse
    roles = []
    for voter, is_granted in ((N2, False), (N3, False), (N4, True)):
        core.step(5010, answer(voter, N1, core.term, is_granted))
        roles.append(core.role)
    assert roles == [role, Role.FOLLOWER, Role.FOLLOWER]
    assert_waits(core, since_ms=5010)


# --- handing over


@pytest.mark.parametrize("target", [N1, N4])
def test_only_another_voter_can_take_over(target: NodeName) -> None:
    """Neither the leader itself nor a learner."""
    core = make_leader(make_core())
    core.set_learners(5000, [Voter(N4)])
    with pytest.raises(ProposalRefusedError, match="no other voter"):
        core.transfer_leadership(5000, target)


def test_a_transfer_that_takes_longer_than_an_election_is_given_up() -> None:
    core = make_leader(make_core())
    core.propose(5000, [b"x"])
    core.transfer_leadership(5000, N2)
    given_up_ms = 5000 + core.config.election_timeout_min_ms
    lead_on(core, given_up_ms - 1)
    with pytest.raises(ProposalRefusedError, match="on its way to n2"):
        core.propose(given_up_ms - 1, [b"y"])
    lead_on(core, given_up_ms)
    core.propose(given_up_ms, [b"y"])


def test_a_leader_may_hear_of_and_from_somebody_it_does_not_know() -> None:
    """Whom it removed, for example."""
    core = make_leader(make_core())
    core.peer_down(5000, N4)
    core.step(5000, AppendResponse(N4, N1, core.term, True, 4))
    core.step(5000, HeartbeatResponse(N4, N1, core.term, 1, 5001))
    assert drain(core) == []
    assert core.is_leader


def test_who_answers_a_request_was_heard_as_much_as_who_answers_a_heartbeat() -> None:
    core = make_leader(make_core())
    until_ms = 5900 + core.config.election_timeout_min_ms
    core.step(5900, AppendResponse(N2, N1, core.term, True, core.log.last_index))
    assert core.has_quorum(until_ms)
    assert not core.has_quorum(until_ms + 1)
