"""One Raft node driven by hand: what it says, and what it says only after the disk."""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.core import ProposalRefusedError, RaftConfig, RaftCore, RestoredState, Role, founding_state
from cluster.raft.messages import (
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    PreVoteRequest,
    PreVoteResponse,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.support.raft_core import (
    N1,
    N2,
    N3,
    N4,
    TRIO,
    command,
    drain,
    log_of,
    make_core,
    make_leader,
    of_type,
    win_election,
)

# --- what waits for the disk


def test_a_granted_vote_waits_for_the_disk() -> None:
    core = make_core()
    core.step(10, VoteRequest(N2, N1, 2, 3, 1))
    ready = core.take_ready()
    assert ready.needs_sync
    assert ready.hard_state == HardState(2, N2, 3)
    assert not of_type(list(ready.messages_now), VoteResponse)
    assert ready.messages_after_append == (VoteResponse(N1, N2, 2, True),)


def test_a_candidate_asks_for_votes_only_when_its_own_vote_is_durable() -> None:
    core = make_core()
    core.tick(5000)
    drain(core)
    core.step(5000, PreVoteResponse(N2, N1, 2, True))
    ready = core.take_ready()
    assert not of_type(list(ready.messages_now), VoteRequest)
    requests = of_type(list(ready.messages_after_append), VoteRequest)
    assert [message.receiver for message in requests] == [N2, N3]
    assert not any(message.is_transfer for message in requests), "a leader that is heard stays"


def test_a_candidate_counts_its_own_vote_only_when_it_is_durable() -> None:
    core = make_core()
    core.tick(5000)
    drain(core)
    core.step(5000, PreVoteResponse(N2, N1, 2, True))
    ready = core.take_ready()
    core.step(5000, VoteResponse(N2, N1, 2, True))
    assert core.role is Role.CANDIDATE
    core.appended(ready)
    assert core.is_leader


def test_what_was_on_its_way_to_the_disk_before_says_nothing_of_a_candidates_own_vote() -> None:
    core = make_core()
    core.step(10, AppendRequest(N2, N1, 1, 3, 1, (command(4, 1),), 3))
    before = core.take_ready()
    core.tick(5000)
    core.step(5000, PreVoteResponse(N2, N1, 2, True))
    with_vote = core.take_ready()
    core.step(5000, VoteResponse(N2, N1, 2, True))
    core.appended(before)
    assert core.role is Role.CANDIDATE
    core.appended(with_vote)
    assert core.is_leader


def test_an_append_response_waits_for_the_disk() -> None:
    core = make_core()
    core.step(10, AppendRequest(N2, N1, 1, 3, 1, (command(4, 1),), 3))
    ready = core.take_ready()
    assert not ready.messages_now
    assert ready.messages_after_append == (AppendResponse(N1, N2, 1, True, 4),)


def test_a_leader_counts_itself_only_when_its_entry_is_durable() -> None:
    core = make_leader(make_core())
    core.propose(5000, [b"x"])
    ready = core.take_ready()
    index = core.log.last_index
    core.step(5000, AppendResponse(N2, N1, core.term, True, index))
    assert core.log.commit == index - 1, "one durable copy of three"
    core.appended(ready)
    assert core.log.commit == index


def test_entries_are_applied_only_when_durable_here() -> None:
    core = make_core()
    core.step(10, AppendRequest(N2, N1, 1, 3, 1, (command(4, 1),), 4))
    ready = core.take_ready()
    assert not [entry for entry in ready.committed if entry.index == 4]
    core.appended(ready)
    assert [entry.index for entry in core.take_ready().committed] == [4]


def test_an_old_write_does_not_make_a_replaced_entry_durable() -> None:
    core = make_core()
    core.step(10, AppendRequest(N2, N1, 2, 3, 1, (command(4, 2), command(5, 2)), 3))
    old = core.take_ready()
    core.step(20, AppendRequest(N3, N1, 3, 3, 1, (command(4, 3),), 3))
    core.step(30, AppendRequest(N2, N1, 4, 3, 1, (command(4, 2), command(5, 2)), 5))
    new = core.take_ready()
    core.appended(old)
    assert core.log.stable == 3
    core.appended(new)
    assert core.log.stable == 5


def test_a_commit_index_is_stored_only_for_durable_entries() -> None:
    core = make_core()
    core.step(10, AppendRequest(N2, N1, 2, 3, 1, (command(4, 2),), 4))
    ready = core.take_ready()
    assert ready.hard_state is not None
    assert ready.hard_state.commit == 3


# --- elections


def test_two_candidates_of_one_term_get_one_vote() -> None:
    core = make_core()
    core.step(10, VoteRequest(N2, N1, 2, 3, 1))
    core.step(10, VoteRequest(N3, N1, 2, 9, 1))
    granted = [(m.receiver, m.granted) for m in drain(core) if isinstance(m, VoteResponse)]
    assert granted == [(N2, True), (N3, False)]


def test_a_vote_is_remembered_over_a_restart() -> None:
    restored = RestoredState(founding_state(TRIO).snapshot, founding_state(TRIO).entries, HardState(2, N2, 3))
    core = make_core(state=restored)
    core.step(10, VoteRequest(N3, N1, 2, 9, 1))
    assert [m.granted for m in drain(core) if isinstance(m, VoteResponse)] == [False]


@pytest.mark.parametrize(
    ("last_index", "last_term", "is_granted"),
    [(5, 2, True), (6, 2, True), (4, 2, False), (9, 1, False), (4, 3, True)],
)
def test_votes_go_only_to_logs_that_are_up_to_date(last_index: int, last_term: int, is_granted: bool) -> None:
    core = make_core(state=log_of(1, 2))
    core.step(10, VoteRequest(N2, N1, 5, last_index, last_term))
    assert [m.granted for m in drain(core) if isinstance(m, VoteResponse)] == [is_granted]


def test_a_pre_vote_changes_no_state() -> None:
    core = make_core()
    before = (core.term, core.voted_for, core.role)
    core.step(10, PreVoteRequest(N2, N1, 2, 3, 1))
    assert drain(core) == [PreVoteResponse(N1, N2, 2, True)]
    assert (core.term, core.voted_for, core.role) == before


def test_who_hears_from_a_leader_refuses_pre_votes_and_ignores_votes() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    drain(core)
    core.step(500, PreVoteRequest(N3, N1, 2, 9, 1))
    assert drain(core) == [PreVoteResponse(N1, N3, 1, False)]
    core.step(500, VoteRequest(N3, N1, 2, 9, 1))
    assert drain(core) == []
    assert core.term == 1


def test_a_transfer_overrides_the_lease() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    core.step(500, VoteRequest(N3, N1, 2, 9, 1, is_transfer=True))
    assert VoteResponse(N1, N3, 2, True) in drain(core)


def test_the_death_of_the_leader_is_answered_without_waiting_for_the_timeout() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    core.peer_down(20, N2)
    assert core.next_deadline_ms <= 20 + core.config.peer_down_delay_max_ms
    core.tick(core.next_deadline_ms)
    assert core.role is Role.PRE_CANDIDATE


def test_followers_that_learn_of_a_death_at_once_stand_at_different_moments() -> None:
    """Or they would split the votes. None stands in the past, where all of them would meet."""
    deadlines = set()
    for seed in range(40):
        core = RaftCore(RaftConfig(N1), founding_state(TRIO), Random(seed), now_ms=0)
        core.step(100, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
        core.peer_down(100, N2)
        deadlines.add(core.next_deadline_ms)
    assert 100 <= min(deadlines) < 110
    assert 140 < max(deadlines) <= 100 + core.config.peer_down_delay_max_ms
    assert len(deadlines) > 15


def test_when_the_leader_is_gone_a_lost_election_is_repeated_soon() -> None:
    """There is nobody to be disturbed by it."""
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    core.peer_down(20, N2)
    begin_ms = core.next_deadline_ms
    core.tick(begin_ms)
    assert core.role is Role.PRE_CANDIDATE
    interval_ms = core.config.heartbeat_interval_ms
    assert interval_ms <= core.next_deadline_ms - begin_ms <= 3 * interval_ms
    core.step(begin_ms, Heartbeat(N3, N1, 2, 0, 0, 0, 0))
    assert core.next_deadline_ms - begin_ms >= core.config.election_timeout_min_ms, "there is one again"


def test_who_was_elected_after_a_death_is_in_no_haste_when_it_is_not_the_leader_any_more() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    core.peer_down(20, N2)
    win_election(core, 100, (N3,))
    core.step(200, VoteRequest(N3, N1, 9, 9, 1, is_transfer=True))
    assert core.role is Role.FOLLOWER
    assert core.next_deadline_ms >= 200 + core.config.election_timeout_min_ms


def test_the_death_of_another_follower_starts_no_election() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    core.peer_down(20, N3)
    core.tick(900)
    assert core.role is Role.FOLLOWER


def test_a_stale_leader_hears_of_the_newer_term() -> None:
    core = make_core(state=log_of(5))
    core.step(10, Heartbeat(N2, N1, 1, 0, 0, 0, 0))
    assert drain(core) == [AppendResponse(N1, N2, 5, False, 0)]


def test_a_leader_without_a_majority_steps_down() -> None:
    core = make_leader(make_core())
    heard_until_ms = 5000 + core.config.election_timeout_min_ms
    assert core.has_quorum(heard_until_ms)
    assert not core.has_quorum(heard_until_ms + 1)
    core.tick(heard_until_ms + 1)
    assert core.role is Role.FOLLOWER


def test_one_answering_follower_of_two_keeps_a_leader() -> None:
    core = make_leader(make_core())
    for now_ms in range(5100, 9000, 100):
        core.tick(now_ms)
        for message in of_type(drain(core), Heartbeat):
            assert isinstance(message, Heartbeat)
            if message.receiver == N2:
                core.step(now_ms, HeartbeatResponse(N2, N1, core.term, 0, 0))
    assert core.is_leader


def test_a_leader_told_that_both_followers_died_has_no_quorum_at_once() -> None:
    core = make_leader(make_core())
    core.peer_down(5010, N2)
    assert core.has_quorum(5010)
    core.peer_down(5010, N3)
    assert not core.has_quorum(5010)


def test_a_group_of_one_elects_itself() -> None:
    core = make_core(state=founding_state([N1]))
    core.tick(5000)
    drain(core)
    assert core.is_leader
    core.propose(5000, [b"x"])
    drain(core)
    assert core.log.applied == core.log.last_index == 3


def test_a_node_that_is_no_voter_never_stands() -> None:
    core = make_core(state=founding_state([]))
    core.tick(100_000)
    assert core.role is Role.FOLLOWER


# --- commit


def test_entries_of_an_earlier_term_are_not_committed_by_counting() -> None:
    """Figure 8 of the paper: a majority holds an old entry, and still a rival may overwrite it."""
    core = make_core(state=log_of(2, term=3))
    core.tick(5000)
    drain(core)
    core.step(5000, PreVoteResponse(N2, N1, 4, True))
    drain(core)
    core.step(5000, VoteResponse(N2, N1, 4, True))
    drain(core)
    assert core.is_leader
    core.step(5000, AppendResponse(N2, N1, 4, True, 4))
    assert core.log.commit == 3
    core.step(5000, AppendResponse(N2, N1, 4, True, 5))
    assert core.log.commit == 5


# --- replication


def test_a_proposal_reaches_every_follower_as_one_request() -> None:
    core = make_leader(make_core())
    core.propose(5000, [b"a", b"b"])
    core.propose(5000, [b"c"])
    requests = [m for m in drain(core) if isinstance(m, AppendRequest)]
    assert [(m.receiver, [entry.payload for entry in m.entries]) for m in requests] == [
        (N2, [b"a", b"b", b"c"]),
        (N3, [b"a", b"b", b"c"]),
    ]


def test_a_follower_replaces_what_conflicts_and_keeps_the_rest() -> None:
    core = make_core(state=log_of(1, 1, 2))
    core.step(10, AppendRequest(N2, N1, 3, 4, 1, (command(5, 1), command(6, 3)), 3))
    drain(core)
    assert [core.log.term_at(index) for index in range(4, 7)] == [1, 1, 3]
    core.step(20, AppendRequest(N2, N1, 3, 3, 1, (command(4, 1),), 3))
    drain(core)
    assert core.log.last_index == 6, "a delayed, shorter request cuts nothing off"


def test_a_leader_finds_where_a_divergent_log_agrees_in_two_round_trips() -> None:
    leader = make_core(state=log_of(1, 1, 4, 4, 4))
    follower = make_core(N2, log_of(1, 1, 2, 2, 3, 3, 3))
    make_leader(leader, followers=(N3,))
    rounds = 0
    for now_ms in range(5100, 8000, 100):
        leader.tick(now_ms)
        leader.step(now_ms, HeartbeatResponse(N3, N1, leader.term, 0, 0))
        for _ in range(6):
            for message in drain(leader):
                if message.receiver == N2:
                    rounds += isinstance(message, AppendRequest)
                    follower.step(now_ms, message)
            for message in drain(follower):
                leader.step(now_ms, message)
    assert follower.log.last_index == leader.log.last_index
    assert follower.log.last_term == leader.term
    assert rounds <= 7


def test_a_probe_that_was_lost_is_repeated_as_it_was() -> None:
    """A follower that answers heartbeats and nothing else has not refused the guess where its log agrees."""
    leader = make_leader(make_core(state=log_of(1, 1, 1)), followers=(N3,))
    leader.tick(5100)
    assert not of_type(drain(leader), AppendRequest), "one probe at a time; the first to n2 is lost"
    leader.step(5150, HeartbeatResponse(N2, N1, leader.term, 0, 0))
    [again] = [m for m in drain(leader) if isinstance(m, AppendRequest)]
    assert (again.receiver, again.previous_index) == (N2, 6), "the entry before the leader's first"


def test_a_follower_behind_the_compacted_log_gets_the_snapshot() -> None:
    leader = make_leader(make_core(), followers=(N3,))
    leader.propose(5000, [b"%d" % number for number in range(10)])
    drain(leader)
    leader.step(5000, AppendResponse(N3, N1, leader.term, True, leader.log.last_index))
    drain(leader)
    snapshot = leader.snapshot_of(leader.log.applied, b"state")
    leader.compact(snapshot, retained_entries=2)
    assert snapshot.voters == (N1, N2, N3)
    leader.step(5000, AppendResponse(N2, N1, leader.term, False, 3, 4, 0))
    installs = [m for m in drain(leader) if isinstance(m, InstallSnapshot)]
    assert [(m.receiver, m.snapshot.data) for m in installs] == [(N2, b"state")]
    follower = make_core(N2)
    follower.step(5000, installs[0])
    ready = follower.take_ready()
    assert ready.snapshot == snapshot
    assert ready.messages_after_append == (AppendResponse(N2, N1, leader.term, True, snapshot.index),)


def test_a_snapshot_of_what_the_log_already_has_is_not_restored() -> None:
    core = make_core(state=log_of(1, 1))
    core.step(10, InstallSnapshot(N2, N1, 1, Snapshot(5, 1, (N1, N2, N3), b"state")))
    ready = core.take_ready()
    assert ready.snapshot is None
    assert core.log.commit == 5
    assert core.has_quorum(10), "and who sends it is the leader"


# --- transfer, membership


def test_a_transfer_waits_until_the_target_has_the_whole_log() -> None:
    core = make_leader(make_core())
    core.propose(5000, [b"x"])
    core.transfer_leadership(5000, N2)
    assert not of_type(drain(core), TimeoutNow)
    with pytest.raises(ProposalRefusedError, match="on its way to n2"):
        core.propose(5000, [b"y"])
    core.step(5001, AppendResponse(N2, N1, core.term, True, core.log.last_index))
    assert TimeoutNow(N1, N2, core.term) in drain(core)


def test_the_heirs_of_a_leader_are_the_voters_that_were_heard_the_most_caught_up_first() -> None:
    core = make_leader(make_core())
    assert make_core().heirs(0) == [], "only a leader has any"
    core.propose(5000, [b"x"])
    drain(core)
    core.step(5100, AppendResponse(N3, N1, core.term, True, core.log.last_index))
    assert core.heirs(5100) == [N3, N2]
    core.peer_down(5200, N3)
    assert core.heirs(5200) == [N2]
    later_ms = 5000 + core.config.election_timeout_min_ms
    assert core.heirs(later_ms) == [N2]
    assert core.heirs(later_ms + 1) == []


def test_a_removed_node_is_told_that_its_removal_is_committed() -> None:
    """Otherwise it would ask for votes for ever, and wonder why nobody talks to it."""
    core = make_leader(make_core())
    core.propose_remove_voter(5000, N3)
    drain(core)
    removal = core.log.last_index
    core.step(5000, AppendResponse(N3, N1, core.term, True, removal))
    core.step(5000, AppendResponse(N2, N1, core.term, True, removal))
    last_words = [m for m in drain(core) if m.receiver == N3 and isinstance(m, AppendRequest)]
    assert [m.commit for m in last_words] == [removal]
    core.propose(5010, [b"x"])
    core.tick(core.next_deadline_ms)
    assert {m.receiver for m in drain(core)} == {N2}, "that was the last it heard"


def test_a_second_change_of_voters_waits_for_the_first() -> None:
    core = make_leader(make_core())
    core.propose_add_voter(5000, N4)
    with pytest.raises(ProposalRefusedError, match="not committed"):
        core.propose_remove_voter(5000, N3)
    drain(core)
    for follower in (N2, N3):
        core.step(5000, AppendResponse(follower, N1, core.term, True, core.log.last_index))
    core.propose_remove_voter(5000, N3)
    assert core.voters == (N1, N2, N4)


def test_a_new_leader_changes_no_voters_before_it_has_committed_in_its_term() -> None:
    core = make_core()
    win_election(core)
    with pytest.raises(ProposalRefusedError, match="not committed"):
        core.propose_add_voter(5000, N4)


def test_a_configuration_goes_when_its_entry_is_cut_off() -> None:
    core = make_core()
    core.step(10, AppendRequest(N2, N1, 2, 3, 1, (Entry(4, 2, EntryKind.ADD_VOTER, b"n4"),), 3))
    assert core.voters == (N1, N2, N3, N4)
    core.step(20, AppendRequest(N3, N1, 3, 3, 1, (command(4, 3),), 3))
    assert list(core.voters) == TRIO


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    core = make_leader(make_core())
    core.propose_remove_voter(5000, N1)
    drain(core)
    core.step(5000, AppendResponse(N2, N1, core.term, True, core.log.last_index))
    assert core.is_leader, "one of the two remaining voters is no majority"
    term = core.term
    core.step(5000, AppendResponse(N3, N1, core.term, True, core.log.last_index))
    assert core.role is Role.FOLLOWER
    assert len([m for m in drain(core) if isinstance(m, TimeoutNow) and m.term == term]) == 1
    core.tick(100_000)
    assert core.role is Role.FOLLOWER


def test_the_last_voter_stays() -> None:
    core = make_core(state=founding_state([N1]))
    core.tick(5000)
    drain(core)
    with pytest.raises(ProposalRefusedError, match="last voter"):
        core.propose_remove_voter(5000, N1)


def test_a_proposal_without_a_leader_is_refused() -> None:
    with pytest.raises(ProposalRefusedError, match="knows no leader"):
        make_core().propose(10, [b"x"])
