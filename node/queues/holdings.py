"""What each channel has of one queue: its consumers, and the deliveries that it has not settled.

A delivery that needs an ack is *held* by the channel it went to until that channel settles it. A channel can settle
only what it holds: settling anything else is ignored, since it is a late word about a message that the queue took back.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.ids import ChannelKey, NodeName, SeqId
from node.queues.consumers import Consumer, ConsumerSet
from node.queues.events import ConsumerSpec

#: Stands for "this channel does not hold it" where ``None`` means "held, without a consumer".
_NOT_HELD = Consumer(ChannelKey(NodeName(""), 0), ConsumerSpec("", no_ack=True, exclusive=False))


class ChannelHoldings:
    """What one channel has of this queue."""

    __slots__ = ("consumers", "held")

    def __init__(self) -> None:
        self.consumers: dict[str, Consumer] = {}
        #: Unacked deliveries -> their consumer, ``None`` for one that `get` fetched.
        self.held: dict[SeqId, Consumer | None] = {}


class Holdings:
    """See the module text. A channel that has nothing of the queue is forgotten."""

    __slots__ = ("_consumers", "by_channel")

    def __init__(self, consumers: ConsumerSet) -> None:
        """``consumers`` hear of what is settled: they may gain capacity by it."""
        self._consumers = consumers
        self.by_channel: dict[ChannelKey, ChannelHoldings] = {}

    def of(self, channel: ChannelKey) -> ChannelHoldings:
        """What this channel has; it is about to have something."""
        holdings = self.by_channel.get(channel)
        if holdings is None:
            holdings = self.by_channel[channel] = ChannelHoldings()
        return holdings

    def remove_consumer(self, consumer: Consumer) -> None:
        """It is gone; what it was given stays held by its channel."""
        del self.by_channel[consumer.channel].consumers[consumer.spec.consumer_tag]

    def release(self, channel: ChannelKey, seq_ids: Sequence[SeqId]) -> list[SeqId]:
        """End the holding of ``seq_ids`` by ``channel``; those it really held."""
        holdings = self.by_channel.get(channel)
        if holdings is None:
            return []
        take = holdings.held.pop
        released = []
        freed: dict[Consumer, None] = {}
        for seq_id in seq_ids:
            consumer = take(seq_id, _NOT_HELD)
            if consumer is _NOT_HELD:
                continue
            released.append(seq_id)
            if consumer is not None:
                consumer.unacked -= 1
                freed[consumer] = None
        for each in freed:
            self._consumers.refresh(each)
        self.forget_if_idle(channel)
        return released

    def forget_if_idle(self, channel: ChannelKey) -> None:
        """Forget the channel unless it has something left."""
        holdings = self.by_channel[channel]
        if not holdings.held and not holdings.consumers:
            del self.by_channel[channel]

    def check_invariants(self, unacked: int) -> None:
        """Raise `AssertionError` if these contradict the consumers, or the ``unacked`` messages of the queue."""
        held_by_consumer: dict[Consumer, int] = {}
        held: list[SeqId] = []
        for holdings in self.by_channel.values():
            assert holdings.held or holdings.consumers, "a channel that has nothing of the queue is forgotten"
            held.extend(holdings.held)
            for consumer in holdings.held.values():
                if consumer is not None:
                    held_by_consumer[consumer] = held_by_consumer.get(consumer, 0) + 1
        assert len(set(held)) == len(held), "a message is held by one channel at a time"
        assert len(held) == unacked, "every unacked message is held by a channel"
        for consumer in self._consumers:
            assert consumer.unacked == held_by_consumer.get(consumer, 0), "a consumer counts what it holds"
            assert self.by_channel[consumer.channel].consumers[consumer.spec.consumer_tag] is consumer, (
                "the channel knows its consumers"
            )
        assert sum(len(each.consumers) for each in self.by_channel.values()) == len(self._consumers), (
            "no channel remembers a consumer that is gone"
        )
