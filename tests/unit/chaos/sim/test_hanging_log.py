"""A leader of the metadata group whose disk hangs: neither does it sync, nor fail."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.drawing import draw_personality
from chaos.sim.loop import SimulatedLoop
from cluster.runtime.driver_config import DriverConfig
from node.ids import NodeName
from tests.support.sim_lab import Lab

FIVE = ("n1", "n2", "n3", "n4", "n5")
HANGING_S = DriverConfig().hanging_sync_ms / 1000
#: A sync of a quick disk takes a millisecond.
MS_PER_S = 1000


@pytest.fixture
def five(quiet_loop: SimulatedLoop) -> Lab:
    """Five nodes, all up; their syncs take a millisecond."""
    lab = Lab(quiet_loop)
    personality = replace(draw_personality(Random(1), 5), sync_ms=(1, 1))
    lab.cluster = SimulatedCluster(quiet_loop, personality, 1)
    lab.start(*FIVE)
    lab.until_converged()
    return lab


def other_than(*names: str) -> str:
    return next(name for name in FIVE if name not in names)


def test_who_came_back_and_dies_is_declared_down_though_the_disk_of_the_leader_hangs(five: Lab) -> None:
    leader = five.leader()
    victim = other_than(leader)
    witness = other_than(leader, victim)
    five.cluster.slow_disk(leader, 100 * MS_PER_S)
    five.declare(witness, "q")
    five.cluster.kill(victim)
    five.pass_time(8)
    member = five.cluster.nodes[witness].runtime.metadata.state.members
    assert not member[NodeName(victim)].is_up
    five.start(victim)
    five.pass_time(8)
    assert member[NodeName(victim)].is_up
    assert five.leader() != leader
    five.cluster.kill(victim)
    five.pass_time(15)
    assert not member[NodeName(victim)].is_up
    assert five.leader() != leader


def test_it_hands_over_without_an_election_timeout_and_comes_back_without_disturbing(five: Lab) -> None:
    leader = five.leader()
    five.cluster.slow_disk(leader, 30 * MS_PER_S)
    five.declare(other_than(leader), "q")
    began_s = five.loop.now_s
    while five.cluster.nodes[leader].raft.core.is_leader:
        five.pass_time(0.1)
    assert HANGING_S - 1 < five.loop.now_s - began_s < HANGING_S + 1
    five.pass_time(0.5)
    heir = five.leader()
    five.cluster.slow_disk_end(leader)
    term = five.cluster.nodes[heir].raft.core.term
    five.pass_time(60)
    five.until_converged()
    assert (five.leader(), five.cluster.nodes[heir].raft.core.term) == (heir, term)


def test_a_disk_that_is_merely_slow_changes_no_leader(five: Lab) -> None:
    leader = five.leader()
    five.cluster.slow_disk(leader, int((HANGING_S - 2) * MS_PER_S))
    for number in range(3):
        five.declare(other_than(leader), f"q{number}")
        five.pass_time(HANGING_S)
    assert five.leader() == leader


def test_who_nobody_could_replace_leads_on(five: Lab) -> None:
    """Without its disk there is no majority, so nothing is decided that it would not know."""
    leader = five.leader()
    dead = [name for name in FIVE if name != leader][:2]
    for name in dead:
        five.cluster.kill(name)
    five.pass_time(15)
    five.cluster.slow_disk(leader, 30 * MS_PER_S)
    declaring = five.begin_to_use(other_than(leader, *dead), lambda channel: channel.declare("q"))
    five.pass_time(15)
    assert not declaring.done()
    assert five.leader() == leader
    five.start(dead[0])
    five.pass_time(5)
    assert five.leader() != leader
