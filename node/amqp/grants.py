"""When a queue hears that deliveries were written, and so may hand out as many more, on a channel with a limit.

What a queue hands out beyond the limit of a channel is held there, while somebody else could take it. So the channel
is slow to say what was written: the queue may have as many more on their way to a consumer as there is *room* under the
limit, and is told so when settlements make room. Then a channel with one consumer holds nothing; with several, each
may be sent what another one takes the room for.

Nothing stands still for that: whenever there is room, the queue may send as much. There is one more bound at the queue,
in bytes (`node.queues.consumers`), where a share counts whole until all of it was reported. If twice the window of the
largest messages could reach it, all is reported at once.

A session that is over has nothing to be told: its successor begins with a whole window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from node.amqp.channel_events import ChannelEffect, Delivered
from node.amqp.ports import DeliverySource
from node.amqp.values import pack_short_string
from node.queues.backing_queue import Delivery
from node.queues.events import DELIVERY_WINDOW_BYTES, ConsumerSpec


class Consumer:
    """A consumer of the channel."""

    __slots__ = ("early", "largest_bytes", "no_ack", "packed_tag", "source", "tag", "unreported", "window")

    def __init__(self, spec: ConsumerSpec) -> None:
        self.tag = spec.consumer_tag
        self.packed_tag = pack_short_string(self.tag)
        self.no_ack = spec.no_ack
        #: Deliveries that came before ``consume-ok`` was sent; ``None`` afterwards.
        self.early: list[tuple[DeliverySource, Sequence[Delivery]]] | None = []
        #: Deliveries that the queue may hand out before it hears that they were written.
        self.window = spec.window_messages
        #: Of these, so many were written and the queue has not heard of it yet; and which life of which queue that is.
        self.unreported = 0
        self.source: DeliverySource | None = None
        #: Of the bodies that came under a limit.
        self.largest_bytes = 0


class Grants:
    """Appends to the effects of the channel."""

    __slots__ = ("_effects", "_waiting")

    def __init__(self, effects: deque[ChannelEffect]) -> None:
        self._effects = effects
        #: Those of whom something is unreported.
        self._waiting: dict[Consumer, None] = {}

    @property
    def is_waiting(self) -> bool:
        """Something is unreported."""
        return bool(self._waiting)

    def add(self, consumer: Consumer, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        """These were sent: `report` says so in its time."""
        if source != consumer.source:
            consumer.source, consumer.unreported = source, 0
        consumer.unreported += len(deliveries)
        consumer.largest_bytes = max(consumer.largest_bytes, *[len(message.body) for _, message, _ in deliveries])
        self._waiting[consumer] = None

    def report(self, room: int | None) -> None:
        """``room``: deliveries that the limit still allows; ``None`` if there is none."""
        for consumer in list(self._waiting):
            count = consumer.unreported - _kept(consumer, room)
            if count <= 0:
                continue
            assert consumer.source is not None, "it has been sent something"
            self._effects.append(Delivered(consumer.source, consumer.tag, count))
            consumer.unreported -= count
            if not consumer.unreported:
                del self._waiting[consumer]

    def forget(self, consumer: Consumer) -> None:
        """It is gone."""
        self._waiting.pop(consumer, None)

    def clear(self) -> None:
        """They are all gone."""
        self._waiting.clear()

    def check_invariants(self, room: int | None) -> None:
        """Raise `AssertionError` if a queue is kept from sending what it should."""
        for consumer in self._waiting:
            assert not consumer.no_ack, "what does not count against the limit is reported at once"
            assert 0 < consumer.unreported <= _kept(consumer, room), "what there is room for may come"


def _kept(consumer: Consumer, room: int | None) -> int:
    """So many need not be reported yet."""
    if room is None or 2 * consumer.window * consumer.largest_bytes > DELIVERY_WINDOW_BYTES:
        return 0
    return max(0, consumer.window - room)
