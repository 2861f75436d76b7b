"""The consumers of one channel: by tag, as clients name them, and by queue, as queues speak of them.

A channel may consume from thousands of queues, and when a node is lost it hears of all of its queues in one turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from node.amqp.ports import DeliverySource
from node.ids import QueueId


class ChannelConsumer:
    """One of them."""

    __slots__ = ("no_ack", "queue_id", "source")

    def __init__(self, queue_id: QueueId, source: DeliverySource, no_ack: bool) -> None:
        self.queue_id = queue_id
        #: Source of its latest deliveries.
        self.source = source
        self.no_ack = no_ack


class ChannelConsumers:
    """See the module text."""

    __slots__ = ("_by_queue", "_by_tag", "find")

    def __init__(self) -> None:
        self._by_tag: dict[str, ChannelConsumer] = {}
        #: Queue -> tag -> consumer; no queue without.
        self._by_queue: dict[QueueId, dict[str, ChannelConsumer]] = {}
        #: By its tag; every delivery asks.
        self.find = self._by_tag.get

    def __len__(self) -> int:
        return len(self._by_tag)

    def __contains__(self, tag: str) -> bool:
        return tag in self._by_tag

    def of_queue(self, queue_id: QueueId) -> Iterable[ChannelConsumer]:
        """Those that consume from this queue."""
        return self._by_queue.get(queue_id, {}).values()

    def add(self, tag: str, consumer: ChannelConsumer) -> None:
        """The tag is not in use."""
        self._by_tag[tag] = self._by_queue.setdefault(consumer.queue_id, {})[tag] = consumer

    def remove(self, tag: str) -> None:
        """If it is there."""
        consumer = self._by_tag.pop(tag, None)
        if consumer is not None:
            of_queue = self._by_queue[consumer.queue_id]
            del of_queue[tag]
            if not of_queue:
                del self._by_queue[consumer.queue_id]

    def clear(self) -> None:
        """The channel is closed."""
        self._by_tag.clear()
        self._by_queue.clear()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the two tables differ."""
        assert all(self._by_queue.values()), "a queue is listed for somebody"
        listed = {tag: consumer for of_queue in self._by_queue.values() for tag, consumer in of_queue.items()}
        assert listed == self._by_tag, "whoever consumes is found by his queue"
        for queue_id, of_queue in self._by_queue.items():
            assert all(each.queue_id == queue_id for each in of_queue.values()), "and by no other"
