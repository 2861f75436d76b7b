"""Whole groups of Raft nodes in a friendly simulated network: what a user of the cluster would notice."""

from __future__ import annotations

import pytest

from cluster.raft.core import ProposalRefusedError
from node.ids import NodeName
from tests.support.raft_network import RaftNetwork

NAMES = ["n1", "n2", "n3"]


def others(leader: str) -> list[str]:
    return [name for name in NAMES if name != leader]


def test_a_command_proposed_anywhere_is_applied_everywhere_in_one_order() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(200)
    for name in NAMES:
        assert network.propose(name, f"{name}.1".encode(), f"{name}.2".encode())
    network.run(300)
    orders = [network.applied(name) for name in NAMES]
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 6
    assert network.leader() == leader


def test_a_dead_leader_whose_connections_were_reset_is_replaced_within_a_fraction_of_a_second() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    died_ms = network.now_ms
    network.crash(leader)
    for name in others(leader):
        network.call(name, lambda core: core.peer_down(network.now_ms, NodeName(leader)))
    network.run_until(lambda: network.leader() is not None)
    assert network.now_ms - died_ms <= 300, "far below the election timeout of a second"


def test_a_silent_leader_is_replaced_after_the_election_timeout() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    network.crash(leader)
    network.run(900)
    assert network.leader() is None
    network.run_until(lambda: network.leader() is not None, limit_ms=5000)


def test_a_minority_knows_that_it_is_one_and_the_majority_goes_on() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    network.partition([leader], others(leader))
    network.run(5000)
    assert not network.core(leader).is_leader
    assert not network.core(leader).has_quorum(network.now_ms)
    assert all(network.core(name).has_quorum(network.now_ms) for name in others(leader))
    with pytest.raises(ProposalRefusedError):
        network.core(leader).propose(network.now_ms, [b"x"])


def test_a_node_that_was_cut_off_does_not_disturb_the_leader_when_it_returns() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    outsider, other = others(leader)
    term = network.core(leader).term
    network.partition([outsider], [leader, other])
    network.propose(leader, b"meanwhile")
    network.run(20_000)
    network.heal()
    network.run(3000)
    assert network.core(leader).is_leader
    assert network.core(leader).term == term, "pre-votes raise no term"
    assert network.applied(outsider) == [b"meanwhile"]


def test_a_node_that_hears_but_is_not_heard_does_not_disturb_either() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    mute, other = others(leader)
    term = network.core(leader).term
    network.cut = {(leader, mute)}
    network.run(10_000)
    assert network.core(leader).is_leader
    assert network.core(leader).term == term
    assert network.propose(other, b"x")


def test_a_follower_that_missed_a_compacted_log_catches_up_by_snapshot() -> None:
    network = RaftNetwork(NAMES)
    network.compact_every = 10
    leader = network.elect()
    absent = others(leader)[0]
    network.crash(absent)
    for number in range(40):
        network.propose(leader, f"{number}".encode())
        network.run(20)
    network.start(absent)
    network.run(3000)
    assert network.nodes[absent].applied_index == network.nodes[leader].applied_index
    assert len(network.applied(absent)) < 40, "the snapshot stood for the rest"


def test_a_node_joins_learns_everything_and_counts() -> None:
    network = RaftNetwork(["n1", "n2", "n3", "n4"], founders=NAMES)
    network.compact_every = 10
    leader = network.elect()
    for number in range(30):
        network.propose(leader, f"{number}".encode())
        network.run(20)
    network.call(leader, lambda core: core.propose_add_voter(network.now_ms, NodeName("n4")))
    network.run(2000)
    assert sorted(network.core("n4").voters) == ["n1", "n2", "n3", "n4"]
    assert network.nodes["n4"].applied_index == network.nodes[leader].applied_index
    gone = others(leader)[0]
    network.crash(gone)
    network.run(100)
    network.propose(leader, b"with three of four")
    network.run(500)
    assert network.applied("n4")[-1] == b"with three of four"


def test_a_leader_that_removes_itself_is_replaced_and_stays_quiet() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    network.call(leader, lambda core: core.propose_remove_voter(network.now_ms, NodeName(leader)))
    network.run(500)
    heir = network.leader()
    assert heir in others(leader)
    term = network.core(str(heir)).term
    network.run(10_000)
    assert network.core(str(heir)).term == term
    assert sorted(network.core(str(heir)).voters) == others(leader)


def test_a_leader_whose_own_removal_nobody_else_has_heard_of_is_there_to_be_elected() -> None:
    """Of two voters the other cannot win without its vote, and has less in its log."""
    network = RaftNetwork(["n1", "n2"])
    leader = network.elect()
    other = next(name for name in ("n1", "n2") if name != leader)
    network.run(500)
    network.partition([leader], [other])
    network.call(leader, lambda core: core.propose_remove_voter(network.now_ms, NodeName(leader)))
    network.run(5000)
    assert network.leader() is None
    network.heal()
    network.run(20_000)
    assert network.leader() == other
    assert network.core(other).voters == (NodeName(other),)
    assert not network.core(leader).log.may_lead(NodeName(leader)), "it has heard that its removal is committed"


def test_who_alone_has_its_removal_is_there_to_be_elected() -> None:
    """The power of the leader failed before it was on its own disk."""
    network = RaftNetwork(["n1", "n2"])
    leader = network.elect()
    removed = next(name for name in ("n1", "n2") if name != leader)
    network.run(500)
    network.nodes[leader].disk_delay_max_ms = 10_000
    network.call(leader, lambda core: core.propose_remove_voter(network.now_ms, NodeName(removed)))
    network.run_until(lambda: removed not in network.core(removed).voters)
    network.run(50)
    network.nodes[leader].writes.clear()
    network.crash(leader)
    network.nodes[leader].disk_delay_max_ms = None
    network.start(leader)
    assert len(network.core(leader).voters) == 2
    network.run(20_000)
    assert network.leader() == leader
    assert network.core(leader).voters == (NodeName(leader),)


def test_leadership_is_handed_over_without_a_pause() -> None:
    network = RaftNetwork(NAMES)
    leader = network.elect()
    network.run(500)
    target = others(leader)[1]
    network.call(leader, lambda core: core.transfer_leadership(network.now_ms, NodeName(target)))
    network.run(200)
    assert network.leader() == target
