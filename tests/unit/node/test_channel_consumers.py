"""A channel that consumes from thousands of queues: what it has to look at when it hears of one of them."""

from __future__ import annotations

from typing import Any

import pytest

from node.broker.channel_consumers import ChannelConsumer, ChannelConsumers
from node.ids import QueueId
from node.queues.events import ConsumerSpec
from tests.support.broker_bench import BrokerBench, request
from tests.unit.node.amqp.test_channel_machine import Driver, Q

QUEUES = 20


async def test_a_channel_that_hears_of_the_end_of_each_session_looks_at_the_consumers_of_that_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost node may have had all of its queues: to look at every consumer for each of them takes seconds."""
    bench = BrokerBench()
    client = bench.client()
    for number in range(QUEUES):
        await client.declare(f"q{number}")
        for tag in (f"{number}", f"{number} too"):
            await client.channel.consume(f"q{number}", ConsumerSpec(tag, no_ack=False, exclusive=False))
    client.channel.publish([request(key=f"q{number}") for number in range(QUEUES)])
    await client.heard()
    looked_at: list[ChannelConsumer] = []
    of_queue = ChannelConsumers.of_queue

    def observed(self: ChannelConsumers, queue_id: QueueId) -> list[ChannelConsumer]:
        found = list(of_queue(self, queue_id))
        looked_at.extend(found)
        return found

    monkeypatch.setattr(ChannelConsumers, "of_queue", observed)
    for queue in bench.catalogue.topology.queues("/"):
        bench.node.gateway.queue_stopped(queue.queue_id)
    assert await client.heard() == [f"over: q{number}" for number in range(QUEUES)]
    assert len(looked_at) == 2 * QUEUES


class Unread(dict[str, Any]):
    """Nobody goes through it."""

    def values(self) -> Any:
        raise AssertionError("one after the other is looked at")

    __iter__ = items = values


def test_the_server_looks_at_no_consumer_whose_client_knows_of_it() -> None:
    driver = Driver()
    driver.consume()
    driver.machine._consumers = Unread(driver.machine._consumers)
    driver.machine.source_over(Q)


def test_a_consumer_is_found_by_its_tag_and_by_its_queue_until_it_is_gone() -> None:
    consumers = ChannelConsumers()
    first, second, third = (ChannelConsumer(QueueId(queue), Q, no_ack=False) for queue in (1, 1, 2))
    for tag, consumer in (("a", first), ("b", second), ("c", third)):
        consumers.add(tag, consumer)
    consumers.remove("a")
    consumers.remove("c")
    consumers.remove("nobody's")
    consumers.check_invariants()
    assert (consumers.find("b"), "a" in consumers, len(consumers)) == (second, False, 1)
    assert list(consumers.of_queue(QueueId(1))) == [second]
    assert list(consumers.of_queue(QueueId(2))) == []
    consumers.clear()
    consumers.check_invariants()
    assert not consumers
