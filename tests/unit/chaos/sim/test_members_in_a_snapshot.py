"""What a snapshot says of the members is heeded as if this node had followed the entries that are in it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.drawing import draw_personality
from chaos.sim.loop import SimulatedLoop
from cluster.metadata import codec
from cluster.runtime import housekeeping
from node.ids import NodeName
from tests.support.sim_lab import Lab

NAMES = ("n1", "n2", "n3", "n4", "n5")


@pytest.fixture
def wide_lab(quiet_loop: SimulatedLoop) -> Lab:
    """Five nodes that take their time, and logs that do not go back far."""
    lab = Lab(quiet_loop)
    personality = replace(
        draw_personality(Random(1), len(NAMES)), log_entries_kept=5, slice_pieces=1, turn_cost_ms=(1.0, 1.0)
    )
    lab.cluster = SimulatedCluster(quiet_loop, personality, 1)
    lab.start(*NAMES)
    lab.until_converged()
    return lab


def alarms(lab: Lab, name: str) -> list[str]:
    return [node for node, _ in lab.cluster.nodes[name].runtime.alarms.registry.raised()]


def miss_a_snapshot(lab: Lab, name: str, leader: str) -> None:
    """What has happened meanwhile ``name`` hears as a whole."""
    lab.declare(leader, *(f"queue {number}" for number in range(30)))
    before = lab.cluster.nodes[name].raft.core.log.last_index
    assert lab.cluster.nodes[leader].raft.core.log.base_index > before, "it cannot be sent entry by entry"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_alarm_of_a_node_that_went_down_meanwhile_blocks_nobody(wide_lab: Lab, is_forgotten: bool) -> None:
    lab = wide_lab
    leader = lab.leader()
    late, gone = [name for name in NAMES if name != leader][:2]
    lab.cluster.memory_alarm(gone)
    lab.pass_time(1)
    assert alarms(lab, late) == [gone]
    lab.cluster.isolate(late)
    lab.cluster.kill(gone)
    lab.pass_time(20)
    assert alarms(lab, leader) == []
    if is_forgotten:
        lab.forget(gone, at=leader)
    miss_a_snapshot(lab, late, leader)
    lab.cluster.isolate_end(late)
    lab.pass_time(20)
    member = lab.cluster.nodes[late].runtime.metadata.state.members.get(NodeName(gone))
    assert (member is None) == is_forgotten
    assert alarms(lab, late) == []


def test_who_is_forgotten_is_told_of_though_it_is_no_peer_any_more(
    wide_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names who votes from the moment at which the snapshot is there, the records when it is read to its
    end."""
    monkeypatch.setattr(codec, "DECODED_PIECE_BYTES", 10)
    monkeypatch.setattr(housekeeping, "REPROPOSE_EVERY_TICKS", 1)
    lab = wide_lab
    leader = lab.leader()
    late, gone = [name for name in NAMES if name != leader][:2]
    lab.cluster.memory_alarm(gone)
    lab.pass_time(1)
    lab.cluster.isolate(late)
    lab.cluster.kill(gone)
    lab.pass_time(20)
    lab.forget(gone, at=leader)
    miss_a_snapshot(lab, late, leader)
    lab.cluster.isolate_end(late)
    lab.pass_time(20)
    assert alarms(lab, late) == []


def test_the_alarm_of_a_node_that_came_back_meanwhile_counts(wide_lab: Lab) -> None:
    lab = wide_lab
    leader = lab.leader()
    late, back = [name for name in NAMES if name != leader][:2]
    lab.cluster.kill(back)
    lab.pass_time(20)
    lab.cluster.isolate(late)
    lab.start(back)
    lab.pass_time(20)
    miss_a_snapshot(lab, late, leader)
    lab.cluster.isolate_end(late)
    lab.pass_time(20)
    lab.cluster.memory_alarm(back)
    lab.pass_time(2)
    assert alarms(lab, leader) == [back]
    assert alarms(lab, late) == [back]
