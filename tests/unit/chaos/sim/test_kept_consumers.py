"""An auto-delete queue stays, with all that was confirmed, as long as a consumer may yet be attached again."""

from __future__ import annotations

import asyncio

from chaos.sim.client import Channel
from cluster.metadata.commands import ChangeTopology, MoveMaster
from node.ids import NodeName
from node.topology.commands import DeclareQueue
from tests.support.sim_lab import Lab

COUNT = 3


def test_a_consumer_whose_node_stands_still_while_the_master_moves_keeps_its_queue(founded_lab: Lab) -> None:
    """For less than the cluster needs to notice: its links are up, and it has yet to hear of the move."""
    lab = founded_lab
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    lab.change("n1", ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=True), NodeName("n1")))
    lab.until_converged()

    async def consume(channel: Channel) -> None:
        await channel.qos(1)
        await channel.consume("q", "t")
        await asyncio.Event().wait()

    consuming = lab.begin_to_use("n3", consume)
    lab.publish("n1", "q", COUNT)
    lab.until_converged()
    record = lab.record("n1", "q")
    assert record is not None
    lab.cluster.pause("n3")
    lab.change("n1", MoveMaster(record.queue_id, record.epoch, NodeName("n2")))
    lab.pass_time(3.5)
    lab.cluster.pause_end("n3")
    lab.pass_time(5)
    assert lab.record("n1", "q") is not None
    assert lab.ready("n1", "q") == COUNT - 1, "the consumer is there, and holds one"
    assert not consuming.done()
