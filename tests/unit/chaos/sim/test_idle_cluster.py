"""What a cluster does that nobody asks for anything: hardly anything."""

from __future__ import annotations

from collections import Counter

from chaos.sim.taps import tapped
from cluster.runtime.raft_driver import RaftDriver
from tests.support.sim_lab import NAMES, Lab


def test_a_follower_that_hears_its_leader_does_not_look_at_the_clock_all_the_time(lab: Lab) -> None:
    lab.found()
    leader = lab.leader()
    ticks: Counter[str] = Counter()

    def count(driver: RaftDriver, _result: None) -> None:
        ticks[driver.core.node] += 1

    with tapped(RaftDriver, "_tick", count):
        lab.pass_time(10)
    heartbeats = 10_000 // lab.cluster.machines[leader].config.raft_heartbeat_ms
    assert ticks[leader] <= heartbeats + 1
    assert all(ticks[name] <= 20 for name in NAMES if name != leader)


def test_a_follower_without_its_leader_pauses_when_it_is_time(lab: Lab) -> None:
    lab.found()
    lab.pass_time(1)
    isolated = next(name for name in NAMES if name != lab.leader())
    driver = lab.cluster.nodes[isolated].raft
    lab.cluster.isolate(isolated)
    pause_after_s = driver._standing.pause_after_ms / 1000
    lab.pass_time(pause_after_s - 0.5)
    assert driver.pause is None
    lab.pass_time(0.5 + 0.05)
    assert driver.pause is not None
