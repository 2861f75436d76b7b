"""What a queue process has to tell channels, collected until it is drained, so that everything leaves in batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from node.ids import ChannelKey
from node.queues.backing_queue import Delivery
from node.queues.consumers import Consumer
from node.queues.events import (
    ConfirmPublished,
    Deliver,
    GrantCredit,
    QueueEffect,
    RejectPublished,
    Token,
    group_by_channel,
)


class Outgoing:
    """See the top of this module."""

    __slots__ = ("_consumers", "confirmed", "others", "rejected")

    def __init__(self) -> None:
        #: Consumers whose outbox is not empty.
        self._consumers: list[Consumer] = []
        #: Publishes to be confirmed beside those of the backing queue.
        self.confirmed: list[Token] = []
        self.rejected: list[Token] = []
        #: To be said last.
        self.others: list[QueueEffect] = []

    def deliver(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """These are for that consumer."""
        if not consumer.outbox:
            self._consumers.append(consumer)
        consumer.outbox.extend(deliveries)

    def channel_gone(self, channel: ChannelKey) -> None:
        """Nobody is there to receive what its consumers were to be given. And if it was cut off, it sends again what it
        was to be told is refused, and is told then what is decided then."""
        self._consumers = [consumer for consumer in self._consumers if consumer.channel != channel]
        if self.rejected:
            self.rejected = [token for token in self.rejected if token[0] != channel]

    def take(self, confirmed: Sequence[Hashable], grants: Sequence[tuple[ChannelKey, int]]) -> list[QueueEffect]:
        """All of it, with the tokens that the backing queue has given back, and what channels are granted.

        Grants go after refusals: who sends on knows of these (`node.queues.refusals`).
        """
        effects: list[QueueEffect] = []
        for consumer in self._consumers:
            effects.append(Deliver(consumer.channel, consumer.spec.consumer_tag, consumer.outbox))
            consumer.outbox = []
        self._consumers = []
        if confirmed or self.confirmed:
            by_channel = group_by_channel([*self.confirmed, *confirmed])
            effects += [ConfirmPublished(channel, seqs) for channel, seqs in by_channel.items()]
            self.confirmed = []
        if self.rejected:
            by_channel = group_by_channel(self.rejected)
            effects += [RejectPublished(channel, seqs) for channel, seqs in by_channel.items()]
            self.rejected = []
        effects += [GrantCredit(channel, messages) for channel, messages in grants]
        effects += self.others
        self.others = []
        return effects

    def check_invariants(self) -> None:
        """Raise `AssertionError` if something would be said twice."""
        waiting = [consumer for consumer in self._consumers if consumer.outbox]
        assert len(set(map(id, waiting))) == len(waiting), "an outbox is sent once"
