"""What a queue process has to tell channels, collected until it is drained, so that everything leaves in batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import cycle

from node.ids import ChannelKey
from node.queues.backing_queue import Delivery
from node.queues.consumers import Consumer, deal
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

    __slots__ = ("_last", "_runs", "confirmed", "others", "rejected")

    def __init__(self) -> None:
        #: Who is given what, in the order in which it was decided as far as a channel sees it: what goes to one
        #: consumer without anything to another one of its channel in between.
        self._runs: list[tuple[Consumer, list[Delivery]]] = []
        #: The last of each channel.
        self._last: dict[ChannelKey, tuple[Consumer, list[Delivery]]] = {}
        #: Publishes to be confirmed beside those of the backing queue.
        self.confirmed: list[Token] = []
        self.rejected: list[Token] = []
        #: To be said last.
        self.others: list[QueueEffect] = []

    def deliver(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """These are for that consumer."""
        run = self._last.get(consumer.channel)
        if run is None or run[0] is not consumer:
            run = self._last[consumer.channel] = (consumer, [])
            self._runs.append(run)
        run[1].extend(deliveries)

    def deal(self, consumers: Sequence[Consumer], deliveries: Sequence[Delivery]) -> None:
        """One by one, as `node.queues.consumers.deal` shares them out. What a channel is given it is given in the order
        of the queue, whichever of its consumers has it."""
        number = len(consumers)
        if number > 1 and len({consumer.channel for consumer in consumers}) < number:
            for delivery, consumer in zip(deliveries, cycle(consumers), strict=False):
                self.deliver(consumer, (delivery,))
            return
        for position, consumer in enumerate(consumers[: len(deliveries)]):
            self.deliver(consumer, deal(deliveries, number, position))

    def channel_gone(self, channel: ChannelKey) -> None:
        """Nobody is there to receive what its consumers were to be given. And if it was cut off, it sends again what it
        was to be told is refused, and is told then what is decided then."""
        if self._last.pop(channel, None) is not None:
            self._runs = [run for run in self._runs if run[0].channel != channel]
        if self.rejected:
            self.rejected = [token for token in self.rejected if token[0] != channel]

    def take(self, confirmed: Sequence[Hashable], grants: Sequence[tuple[ChannelKey, int]]) -> list[QueueEffect]:
        """All of it, with the tokens that the backing queue has given back, and what channels are granted.

        Grants go after refusals: who sends on knows of these (`node.queues.refusals`).
        """
        effects: list[QueueEffect] = [
            Deliver(consumer.channel, consumer.spec.consumer_tag, deliveries) for consumer, deliveries in self._runs
        ]
        self._runs = []
        self._last.clear()
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
        assert all(deliveries for _, deliveries in self._runs), "who is given nothing is told nothing"
        last = {consumer.channel: deliveries for consumer, deliveries in self._runs}
        assert last.keys() == self._last.keys(), "each channel that is given something has a last run"
        assert all(last[channel] is run[1] for channel, run in self._last.items()), "and that is the last"
