"""A node that is sent a snapshot never sees the entries that are in it: what became of its own request among them it
does not know, least of all that it was carried out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.client import Channel, ClosedError
from cluster.metadata.commands import ChangeTopology
from node.ids import NodeName
from node.topology.commands import DeclareQueue
from tests.support.sim_lab import NAMES, Lab


def test_a_refusal_that_a_snapshot_has_is_not_told_as_success(lab: Lab) -> None:
    lab.cluster.personality = replace(lab.cluster.personality, log_entries_kept=5)
    lab.found()
    leader = lab.leader()
    follower = next(name for name in NAMES if name != leader)
    lab.cluster.cut(leader, follower)
    lab.change(leader, ChangeTopology(DeclareQueue("/", "q", durable=False), NodeName(leader)))

    async def declare(channel: Channel) -> tuple[int, int]:
        return await channel.declare("q", durable=True)

    asked = lab.begin_to_use(follower, declare)
    lab.pass_time(0.3)
    lab.declare(leader, *(f"other {number}" for number in range(30)))
    lab.pass_time(0.5)
    assert not asked.done()
    lab.cluster.reset(leader, follower, "both", 0)  # what it was sent is lost, and the log does not go back so far
    lab.cluster.cut_end(leader, follower)
    lab.pass_time(10)
    state = lab.cluster.nodes[follower].runtime.metadata.state
    queue = state.topology.queue("/", "q")
    assert queue is not None
    assert not queue.durable
    with pytest.raises(ClosedError):
        asked.result()
