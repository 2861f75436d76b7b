"""As of when a node has applied whatever the group has committed. (That no claim is ever wrong is checked by
`tests.support.raft_network` in everything that runs on it, under loss, delay, repetition, partitions and crashes.)
"""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.core import RaftConfig, RaftCore, founding_state
from cluster.raft.currency import NEVER_MS, Currency
from cluster.raft.messages import AppendResponse, Heartbeat, HeartbeatResponse
from cluster.raft.progress import Progress
from node.ids import NodeName
from tests.support.raft_core import N1, N2, N3, drain, make_core, make_leader, of_type, win_election
from tests.support.raft_network import RaftNetwork

NAMES = ["n1", "n2", "n3"]


def as_of_ms(network: RaftNetwork, name: str) -> int:
    return network.core(name).currency.as_of_ms(network.nodes[name].applied_index)


def age_ms(network: RaftNetwork, name: str) -> int:
    return network.now_ms - as_of_ms(network, name)


def test_a_claim_counts_when_what_it_names_is_applied() -> None:
    currency = Currency()
    currency.note(100, 7)
    currency.note(200, 9)
    currency.note(300, 9)
    assert (currency.as_of_ms(6), currency.missing_index) == (NEVER_MS, 9)
    assert currency.as_of_ms(7) == 100
    assert currency.as_of_ms(9) in (200, 300)
    assert currency.missing_index is None
    currency.check_invariants()


def test_of_many_claims_that_wait_the_latest_is_kept_in_whatever_order_they_come() -> None:
    """Besides the first: a node that is always a little behind must become current at some time."""
    for claims in ([(200, 9), (300, 12)], [(300, 12), (200, 9)]):
        currency = Currency()
        currency.note(100, 7)
        for as_of, committed in claims:
            currency.note(as_of, committed)
        currency.check_invariants()
        assert currency.as_of_ms(7) == 100
        assert currency.missing_index == 12
        assert currency.as_of_ms(12) == 300


def test_an_older_claim_changes_nothing() -> None:
    currency = Currency()
    currency.note(300, 5)
    assert currency.as_of_ms(5) == 300
    currency.note(200, 4)
    assert currency.as_of_ms(9) == 300
    currency.check_invariants()


def test_each_claim_counts_as_soon_as_what_it_names_is_applied_and_not_before() -> None:
    currency = Currency()
    currency.note(100, 7)
    currency.note(150, 7)
    assert currency.as_of_ms(6) == NEVER_MS
    currency.note(200, 9)
    currency.note(300, 11)
    assert currency.as_of_ms(10) == 150, "of those that wait only the first and the latest are kept"
    assert currency.as_of_ms(11) == 300
    assert currency.missing_index is None


def test_the_latest_claim_stands_for_all_before_it() -> None:
    currency = Currency()
    currency.note(100, 7)
    currency.note(300, 9)
    assert currency.as_of_ms(9) == 300
    assert currency.missing_index is None
    currency.check_invariants()


def test_what_is_known_to_be_missing_is_not_said_by_an_old_claim() -> None:
    currency = Currency()
    currency.note(300, 5)
    assert currency.as_of_ms(5) == 300
    for as_of_ms in (200, 300):
        currency.note(as_of_ms, 6)
        assert currency.missing_index is None


def test_of_claims_as_of_the_same_moment_the_first_counts() -> None:
    """It asks for less."""
    currency = Currency()
    for committed in (7, 9, 12):
        currency.note(300 if committed > 7 else 100, committed)
    assert currency.missing_index == 9


def test_who_hears_the_leader_and_applies_is_current_within_some_heartbeats() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    for _ in range(300):
        network.propose(leader, b"x")
        network.run(10)
        assert all(age_ms(network, name) <= 500 for name in NAMES)


def test_who_is_cut_off_is_current_as_of_then() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(1000)
    cut_ms = network.now_ms
    network.partition([leader], [name for name in NAMES if name != leader])
    network.run(5000)
    assert as_of_ms(network, leader) <= cut_ms, "it led on for a second and knew no better, but nobody vouched for it"
    assert all(age_ms(network, name) <= 400 for name in NAMES if name != leader)
    network.heal()
    network.run(1000)
    assert age_ms(network, leader) <= 400


def test_of_two_both_must_have_heard_the_leader() -> None:
    network = RaftNetwork(NAMES[:2])
    leader = network.elect()
    network.run(1000)
    cut_ms = network.now_ms
    network.partition(*([name] for name in NAMES[:2]))
    network.run(500)
    assert network.core(leader).is_leader, "it has a while left"
    assert as_of_ms(network, leader) <= cut_ms


def test_a_leader_says_nothing_before_it_has_committed_something_of_its_term() -> None:
    """It does not know how far its predecessor came."""
    core = make_core()
    win_election(core)
    core.step(5010, HeartbeatResponse(N2, N1, core.term, 1, 5001))
    assert core.currency.as_of_ms(core.log.applied) == NEVER_MS
    core.tick(5015 + core.config.heartbeat_interval_ms)
    assert [heartbeat.committed for heartbeat in of_type(drain(core), Heartbeat)] == [0, 0]
    core.step(5120, AppendResponse(N2, N1, core.term, True, core.log.last_index))
    drain(core)
    core.step(5130, HeartbeatResponse(N2, N1, core.term, 1, 5001))
    assert core.currency.as_of_ms(core.log.applied) == 5000


def test_to_a_follower_of_which_nothing_was_heard_no_stamp_is_sent_back() -> None:
    """It would take it for proof that it was current then."""
    core = make_leader(make_core())
    core.tick(5100)
    assert core.currency.as_of_ms(core.log.applied) == NEVER_MS, "nor has the leader any proof for itself"
    assert [(heartbeat.stamp_ms, heartbeat.echo_ms) for heartbeat in of_type(drain(core), Heartbeat)] == [(5101, 0)] * 2


def test_what_a_process_has_stamped_is_not_sent_to_the_one_after_it() -> None:
    """Its clock is another."""
    core = make_leader(make_core())
    for now_ms in (5100, 5200):
        core.tick(now_ms)
        drain(core)
        for follower in (N2, N3):
            core.step(now_ms, HeartbeatResponse(follower, N1, core.term, 77, now_ms + 1))
    core.tick(5300)
    assert [heartbeat.echo_ms for heartbeat in of_type(drain(core), Heartbeat)] == [77, 77]
    core.peer_down(5350, N2)
    core.tick(5400)
    assert [heartbeat.echo_ms for heartbeat in of_type(drain(core), Heartbeat)] == [0, 77]


def test_who_cannot_write_what_it_is_sent_is_not_current_although_the_leader_is_heard() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(1000)
    slow = next(name for name in NAMES if name != leader)
    network.nodes[slow].disk_delay_max_ms = 1_000_000
    network.propose(leader, b"x")
    begin_ms = network.now_ms
    network.run(4000)
    assert network.core(slow).has_quorum(network.now_ms)
    assert as_of_ms(network, slow) <= begin_ms + 100
    assert network.core(slow).currency.missing_index == network.nodes[leader].applied_index


def test_a_node_alone_is_always_current() -> None:
    network = RaftNetwork(["n1"])
    network.elect()
    network.run(50)
    assert age_ms(network, "n1") <= 20


def test_words_that_waited_in_a_socket_prove_nothing_about_the_present() -> None:
    """As after a freeze of this process: the heartbeats of that time arrive all at once."""
    core = RaftCore(RaftConfig(N2), founding_state([N1, N2, N3]), Random(1), 0)
    core.step(10, Heartbeat(N1, N2, 1, 3, 3, 10, 0))
    core.step(110, Heartbeat(N1, N2, 1, 3, 3, 110, 11))
    assert core.currency.as_of_ms(3) == 10
    for late in range(210, 2000, 100):
        core.step(9000, Heartbeat(N1, N2, 1, 3, 3, late, 111))
    assert core.currency.as_of_ms(3) == 110
    assert core.has_quorum(9000), "which is why hearing the leader is not enough"


@pytest.mark.parametrize(
    ("committed", "echo_ms", "as_of_ms"),
    [(3, 151, 150), (3, 1, 0), (3, 201, 200), (3, 202, NEVER_MS), (3, 0, NEVER_MS), (0, 151, NEVER_MS)],
)
def test_a_follower_believes_a_stamp_of_its_own_with_what_was_committed_then(
    committed: int, echo_ms: int, as_of_ms: int
) -> None:
    """And none that it has not given yet: it is of another process under its name."""
    core = RaftCore(RaftConfig(N2), founding_state([N1, N2, N3]), Random(1), 0)
    core.step(200, Heartbeat(N1, N2, 1, 3, committed, 500, echo_ms))
    assert core.currency.as_of_ms(3) == as_of_ms


def test_releases_without_stamps_are_believed_when_they_are_heard() -> None:
    follower = RaftCore(RaftConfig(N2), founding_state([N1, N2, N3]), Random(1), 0)
    follower.step(500, Heartbeat(N1, N2, 1, 3, 0, 0, 0))
    assert follower.currency.as_of_ms(3) == 500

    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(1000)
    core = network.core(leader)
    network.partition(*([name] for name in NAMES))
    network.run(300)
    other = NodeName(next(name for name in NAMES if name != leader))
    core.step(network.now_ms, HeartbeatResponse(other, NodeName(leader), core.term, 0, 0))
    assert age_ms(network, leader) == 0


@pytest.mark.parametrize(("answered_ms", "echo_ms"), [(200, 201), (201, 201), (200, 101), (200, 202)])
def test_an_answer_counts_for_the_stamp_that_it_answers_and_none_for_one_that_was_not_given_yet(
    answered_ms: int, echo_ms: int
) -> None:
    progress = Progress(next_index=1, now_ms=0)
    progress.note_stamps(answered_ms, stamp_ms=77, echo_ms=echo_ms)
    assert progress.echo_ms == {201: 201, 101: 101, 202: 201}[echo_ms]


def test_a_leader_that_was_deposed_and_does_not_know_vouches_for_nobody() -> None:
    network = RaftNetwork(["n1", "n2", "n3", "n4", "n5"])
    leader = network.elect()
    network.run(1000)
    others = [name for name in network.nodes if name != leader]
    companion, majority = others[0], others[1:]
    cut_ms = network.now_ms
    network.partition([leader, companion], majority)
    for name in majority:  # as if the process of the leader were gone: nobody waits for the end of its lease
        network.call(name, lambda core: core.peer_down(network.now_ms, NodeName(leader)))
    network.run_until(lambda: any(network.core(name).is_leader for name in majority), limit_ms=900)
    network.propose(next(name for name in majority if network.core(name).is_leader), b"unknown to the others")
    network.run(500)
    assert network.core(leader).is_leader, "it has a while left"
    assert as_of_ms(network, companion) <= cut_ms
