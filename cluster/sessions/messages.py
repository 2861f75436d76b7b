"""What an entry node (where the client is) and a master's node say to each other about one queue.

A *session* is one conversation between an entry node and the master of one queue, for all channels of that entry
node. It opens with `SessionOpen`, which the master answers; it ends when the link breaks, when either node
dies, or when the mastership moves; then the entry node opens the next one with the queue's current master, attaches its
consumers again and sends its unconfirmed publishes again (the master recognises those it has). Everything carries the
session number, so that a straggler of an earlier conversation is ignored. Session numbers grow per entry node, from
one of its lives to the next, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from node.ids import Epoch, QueueId, SeqId
from node.queues.events import ConsumerSpec

# --- entry node to master ---


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """Begin a session. Anything of an earlier session of this entry node and queue is released first."""

    queue_id: QueueId
    session: int
    #: The epoch of the mastership that the entry node means to talk to.
    epoch: Epoch
    #: Messages of a channel after which the master grants as many more (`node.flow.credit`): the entry node's choice,
    #: because it has to fit the credit that it lets its channels begin with.
    more_credit_after: int
    #: Channels of the entry node have consumed from the queue, in whatever session. Then it names first the consumers
    #: that are left, and something else follows, if only a question: these were all.
    has_consumed: bool = False


@dataclass(frozen=True, slots=True)
class SessionPublish:
    """Publishes of one channel, in order. ``publish_seqs[i]`` is 0 when nobody waits for that confirm."""

    queue_id: QueueId
    session: int
    channel_id: int
    publish_seqs: Sequence[int]
    #: Concatenated envelopes, one per publish.
    envelopes: bytes
    #: Sent in an earlier session already, whose master may have delivered them: see `QueueProcess.publish`.
    is_resent: bool = False


@dataclass(frozen=True, slots=True)
class SessionSettle:
    """Deliveries of one channel settled: ``outcome`` is ``ack``, ``requeue`` or ``discard``."""

    queue_id: QueueId
    session: int
    channel_id: int
    outcome: str
    seq_ids: Sequence[SeqId]
    #: ``requeue``: this is a piece of what the channel gives back; one without positions and this flag ends it. An
    #: older master takes each for all.
    more_follow: bool = False


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """Deliveries written to the consumer's socket."""

    queue_id: QueueId
    session: int
    channel_id: int
    consumer_tag: str
    written: int


@dataclass(frozen=True, slots=True)
class SessionChannelClosed:
    """The channel is gone: release all it holds in this queue."""

    queue_id: QueueId
    session: int
    channel_id: int


@dataclass(frozen=True, slots=True)
class SessionCall:
    """A question that is answered once, by `SessionReply` with the same ``call_id``."""

    queue_id: QueueId
    session: int
    call_id: int
    #: ``consume cancel get purge counts delete_if unseal``. (``unseal``: the deletion that ``delete_if`` prepared
    #: failed, or nobody knows what became of it; the master has it decided.)
    verb: str
    channel_id: int
    consumer: ConsumerSpec | None = None
    consumer_tag: str = ""
    no_ack: bool = False
    if_unused: bool = False
    if_empty: bool = False


# --- master to entry node ---


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The master accepts the session, or not: ``refused`` says why (not the master, unknown queue)."""

    queue_id: QueueId
    session: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class SessionDeliver:
    """Deliveries for one consumer: ``seq_ids[i]`` with ``redelivered[i]``, ``envelopes`` concatenated."""

    queue_id: QueueId
    session: int
    channel_id: int
    consumer_tag: str
    seq_ids: Sequence[SeqId]
    redelivered: Sequence[bool]
    envelopes: bytes


@dataclass(frozen=True, slots=True)
class SessionConfirm:
    """Publishes of one channel that are safe, or (``rejected``) refused."""

    queue_id: QueueId
    session: int
    channel_id: int
    publish_seqs: Sequence[int]
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class SessionCredit:
    """The channel may publish so many messages more."""

    queue_id: QueueId
    session: int
    channel_id: int
    messages: int


@dataclass(frozen=True, slots=True)
class SessionConsumerCancelled:
    """The queue ended this consumer."""

    queue_id: QueueId
    session: int
    channel_id: int
    consumer_tag: str


@dataclass(frozen=True, slots=True)
class SessionReply:
    """Answer to a `SessionCall`. ``reply_code`` 0: it worked; else the channel error to raise."""

    queue_id: QueueId
    session: int
    call_id: int
    reply_code: int = 0
    reply_text: str = ""
    #: ``purge delete_if``: messages. ``counts``: ready.  ``get``: remaining.
    number: int = 0
    #: ``counts``; ``cancel``: those that are left.
    consumers: int = 0
    #: ``get`` with a message: its seq id, redelivered flag and envelope; ``envelope`` empty = queue empty.
    seq_id: SeqId = field(default=SeqId(0))
    redelivered: bool = False
    envelope: bytes = b""
    #: ``delete_if``: the epoch in which the queue was sealed; 0: it was not, its master is not in service yet.
    epoch: int = 0


SessionMessage = (
    SessionOpen
    | SessionPublish
    | SessionSettle
    | SessionGrant
    | SessionChannelClosed
    | SessionCall
    | SessionOpened
    | SessionDeliver
    | SessionConfirm
    | SessionCredit
    | SessionConsumerCancelled
    | SessionReply
)
