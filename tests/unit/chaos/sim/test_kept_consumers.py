"""An auto-delete queue stays, with all that was confirmed, as long as a consumer may yet be attached again."""

from __future__ import annotations

import asyncio

from chaos.sim.client import Channel
from chaos.sim.taps import tapped
from cluster.metadata.commands import ChangeTopology, MoveMaster
from cluster.metadata.records import MastershipRecord
from cluster.sessions.host import SessionHost
from node.ids import NodeName
from node.topology.commands import DeclareQueue
from tests.support.sim_lab import Lab

COUNT = 3


class Consumer:
    """Takes one message, and no other before that is acknowledged, which it never is."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()

    async def consume(self, channel: Channel) -> None:
        await channel.qos(1)
        await channel.consume("q", "t")
        await self.is_over.wait()
        await channel.cancel("t")


def consumed(lab: Lab, **consumers: Consumer) -> tuple[MastershipRecord, list[asyncio.Task[None]]]:
    """An auto-delete queue with messages, mastered by n1, and who consumes from it through which node."""
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    lab.change("n1", ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=True), NodeName("n1")))
    lab.until_converged()
    tasks = [lab.begin_to_use(node, consumer.consume) for node, consumer in consumers.items()]
    lab.publish("n1", "q", COUNT)
    lab.until_converged()
    record = lab.record("n1", "q")
    assert record is not None
    return record, tasks


def test_a_consumer_whose_node_stands_still_while_the_master_moves_keeps_its_queue(founded_lab: Lab) -> None:
    """For less than the cluster needs to notice: its links are up, and it has yet to hear of the move."""
    lab = founded_lab
    record, (consuming,) = consumed(lab, n3=Consumer())
    lab.cluster.pause("n3")
    lab.change("n1", MoveMaster(record.queue_id, record.epoch, NodeName("n2")))
    lab.pass_time(3.5)
    lab.cluster.pause_end("n3")
    lab.pass_time(5)
    assert lab.record("n1", "q") is not None
    assert lab.ready("n1", "q") == COUNT - 1, "the consumer is there, and holds one"
    assert not consuming.done()


def test_a_consumer_whose_node_stands_still_before_it_can_attach_it_keeps_its_queue(founded_lab: Lab) -> None:
    """It has heard of the move, and has asked the new master for a session."""
    lab = founded_lab
    record, (consuming,) = consumed(lab, n3=Consumer())
    asked: list[NodeName] = []

    def hear(_host: SessionHost, _result: object, node: NodeName, _message: object) -> None:
        if node == "n3" and not asked:
            asked.append(node)
            lab.cluster.pause(node)

    with tapped(SessionHost, "_open", hear):
        lab.change("n1", MoveMaster(record.queue_id, record.epoch, NodeName("n2")))
        lab.pass_time(3.5)
    assert asked
    lab.cluster.pause_end("n3")
    lab.pass_time(5)
    assert lab.record("n1", "q") is not None
    assert lab.ready("n1", "q") == COUNT - 1
    assert not consuming.done()


def test_it_keeps_it_though_the_last_one_that_is_there_is_cancelled(founded_lab: Lab) -> None:
    lab = founded_lab
    lasting, passing = Consumer(), Consumer()
    record, tasks = consumed(lab, n3=lasting, n2=passing)
    lab.cluster.pause("n3")
    lab.change("n1", MoveMaster(record.queue_id, record.epoch, NodeName("n2")))
    lab.pass_time(0.5)
    passing.is_over.set()
    lab.pass_time(3)
    lab.cluster.pause_end("n3")
    lab.pass_time(5)
    assert lab.record("n1", "q") is not None
    assert lab.ready("n1", "q") == COUNT - 1
    lasting.is_over.set()
    lab.pass_time(5)
    assert all(task.done() for task in tasks)
    assert lab.record("n1", "q") is None, "it goes with the last one"
