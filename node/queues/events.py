"""What goes into and comes out of a queue process, the same whether its channel is on this node or another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from node.ids import ChannelKey
from node.queues.backing_queue import Delivery

#: Deliveries that a queue sends to one consumer before the channel says they were written to the socket
#: (`QueueProcess.grant`). Bounds what piles up for a client that does not read, at a message per credit.
DELIVERY_WINDOW_MESSAGES = 2000
#: The same in bytes of bodies: while so many are on their way to one consumer nothing follows. The message that reaches
#: it goes out whole, so at least one is always under way, however big.
DELIVERY_WINDOW_BYTES = 4 * 1024 * 1024
#: What a publish is known by until it is answered: its channel, and its publish sequence number there.
Token = tuple[ChannelKey, int]
#: Channels of clients that ask for no confirms number their publishes from here on, which no other channel reaches.
INTERNAL_SEQ_BASE = 1 << 62


def is_confirm_awaited(token: Hashable) -> bool:
    """By a client: false for ``None``, and for what a channel has numbered for itself."""
    return token is not None and not (isinstance(token, tuple) and token[1] >= INTERNAL_SEQ_BASE)


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A request to consume, as `basic.consume` gives it."""

    consumer_tag: str
    no_ack: bool
    exclusive: bool
    #: Unacked deliveries allowed to this consumer, 0 = no limit. Ignored with ``no_ack``.
    prefetch_count: int = 0
    #: ``x-priority``: higher is served first.
    priority: int = 0
    #: ``x-cancel-on-ha-failover``: cancel instead of re-attaching when the master changes.
    cancel_on_failover: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: Deliveries that may be handed out and not be written to the socket yet; 0: `DELIVERY_WINDOW_MESSAGES`. Fewer for
    #: a channel with a limit of its own, behind which they would wait while others could take them.
    window: int = 0

    @property
    def window_messages(self) -> int:
        return min(self.window or DELIVERY_WINDOW_MESSAGES, DELIVERY_WINDOW_MESSAGES)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliveries for one consumer, in order."""

    channel: ChannelKey
    consumer_tag: str
    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class ConfirmPublished:
    """These publishes of the channel are safe in this queue (publish sequence numbers, any order)."""

    channel: ChannelKey
    publish_seqs: Sequence[int]


@dataclass(frozen=True, slots=True)
class RejectPublished:
    """These publishes of the channel were refused by this queue (overflow ``reject-publish``)."""

    channel: ChannelKey
    publish_seqs: Sequence[int]


@dataclass(frozen=True, slots=True)
class CancelConsumer:
    """The queue ends this consumer: the queue is deleted, or moved and the consumer asked for it."""

    channel: ChannelKey
    consumer_tag: str


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """The channel may send this queue so many messages more (`node.flow.credit`)."""

    channel: ChannelKey
    messages: int


@dataclass(frozen=True, slots=True)
class DeleteUnused:
    """An auto-delete queue has lost its last consumer: its owner must delete it, if that is still so then."""

    #: A consumer was cut off rather than cancelled: it may live, and be attached again. This is said of each, the last
    #: one or not: as long as it may, the queue is not deleted for want of the others.
    may_return: bool = False


QueueEffect = Deliver | ConfirmPublished | RejectPublished | CancelConsumer | GrantCredit | DeleteUnused


def group_by_channel(tokens: Sequence[Hashable]) -> dict[ChannelKey, list[int]]:
    """Tokens (`Token`) as the publish sequence numbers of each channel, in order."""
    grouped: dict[ChannelKey, list[int]] = {}
    last: ChannelKey | None = None
    seqs: list[int] = []
    for channel, seq in cast(Sequence[Token], tokens):
        if channel is not last:
            last = channel
            seqs = grouped.setdefault(channel, [])
        seqs.append(seq)
    return grouped
