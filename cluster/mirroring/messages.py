"""What a queue's master and its mirrors say to each other.

One ordered conversation per (queue, mirror), in frames over the link from the master's node to the mirror's node,
answers over the link back. A link delivers in order; when it breaks an unknown suffix is lost, and the master
starts the conversation again with a new `Attach`. Nothing is ever retransmitted blindly: an attach compares
*content*, so a broken link, a promotion, a restarted replica and a brand-new mirror are all the same case.

The life of a conversation::

    master                                        mirror
      | Attach(epoch, attach_id, next_seq_id,       |   adopts the epoch, or refuses an old one;
      |        origins, digests, horizon)  -------> |   drops whole segments the master has nothing in
      |                                             |   (the master has settled them) when it may
      | Ops(index i+1 ...)  ----------------------> |   live operations follow at once
      | <--------------- AttachReply(mismatched)    |   segments whose digest differs, with what it holds there
      | Ops(Discard extras, SyncBatch missing ...)  |   the difference, inside the same stream
      | <--------------- OpsAck(applied, durable)   |   cumulative, batched

*Fill.* A mirror that the record calls synchronised (it lacks nothing confirmed, at most an unfinished tail) is
filled at once and holds back confirms until it is. Any other mirror is filled when synchronisation is asked for
(`sync_queue`, ``ha-sync-mode = automatic``), in throttled batches between live operations; a cancel keeps what
has arrived. A mirror with nothing missing is synchronised, whoever filled it or however the master drained.

*Replies.* The difference may take many `AttachReply` frames (each bounded, one a turn of the mirror's loop); the first
`OpsAck` of an attach that does not say ``is_describing`` ends them. Those before it keep the window open while a long
queue is compared. Every attach takes an index of the conversation for itself, so an ack also says when all that the
mirror held then is durable.

*End of the difference.* A `SyncBatchOp` without positions tells the mirror that it now lacks nothing. Only then does it
believe ``Attach.origins``: high-water counters above messages that it lacks would make it take the second sending
of a lost message for a duplicate (the full argument is in `cluster.mirroring.promotion`).

*Horizon.* ``horizon`` promises that no message at or above it has been delivered by this master; a promoted mirror
flags every message below it as redelivered. The master delivers nothing at or above the lowest horizon that its
mirrors have acknowledged, and moves it ahead in large steps, so the price is one small op per some thousand messages.

*End.* A master that will deliver no more says how far it has really delivered: then nothing else is flagged. One whose
node stops in an orderly way says it before it goes. One that learns from the record that another node is the master now
says it then; who has heard no later master takes it, although the epoch is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from node.ids import Epoch, OriginId, QueueId, SeqId
from node.queues.replica import Holding, SegmentDigest, SeqRange


@dataclass(frozen=True, slots=True)
class PublishOp:
    """Messages at ``first_seq_id`` and the seq ids after it; ``envelopes`` is their concatenation.

    ``awaited``: origins clients await confirms of, from these counters on. Not said while every mirror for which
    confirms wait has all that came before.
    """

    first_seq_id: SeqId
    message_count: int
    envelopes: bytes
    awaited: Mapping[OriginId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettleOp:
    """Messages that are gone for good: acked, dropped, purged, delivered without ack."""

    ranges: tuple[SeqRange, ...]


@dataclass(frozen=True, slots=True)
class SyncBatchOp:
    """Messages the mirror lacks, at explicit ascending positions; those it has are skipped.

    Without positions: the end of the difference, from here on the mirror lacks nothing.
    """

    seq_ids: tuple[SeqId, ...]
    envelopes: bytes


@dataclass(frozen=True, slots=True)
class HorizonOp:
    """The master may from now on deliver everything below ``horizon``."""

    horizon: SeqId


@dataclass(frozen=True, slots=True)
class OriginsOp:
    """High-water counters of origins whose messages were never stored (delivered without ack to a waiting consumer).

    A counter accounts for everything of its origin below it, so the op follows all publishes of its turn.
    """

    origins: Mapping[OriginId, int]


@dataclass(frozen=True, slots=True)
class EndOp:
    """The master delivers nothing any more in this epoch, and nobody has delivered anything at or above
    ``delivered_below``: an orderly stop, or another is the master now."""

    delivered_below: SeqId


MirrorOp = PublishOp | SettleOp | SyncBatchOp | HorizonOp | OriginsOp | EndOp


@dataclass(frozen=True, slots=True)
class Attach:
    """Master to mirror: begin (again)."""

    queue_id: QueueId
    epoch: Epoch
    #: Grows with every attach of this mirror in this epoch. Everything said under another number is ignored.
    attach_id: int
    #: Index of the attach itself in the conversation: the first `Ops` frame after it begins at ``index + 1``.
    index: int
    next_seq_id: SeqId
    horizon: SeqId
    origins: Mapping[OriginId, int]
    digests: tuple[SegmentDigest, ...]
    #: Index of the metadata log that the master's node had applied: see `cluster.mirroring.early`.
    as_of_index: int
    #: The master takes acknowledgements before the last reply, and tells them by `OpsAck.is_describing`. One of an
    #: older release takes the first for the end of the replies.
    hears_between: bool
    #: This master may have refused some of what is below the counters of ``origins``. One of an older release does not
    #: say so.
    may_lack_refused: bool


@dataclass(frozen=True, slots=True)
class SegmentHoldings:
    """What the mirror holds in a segment whose digest differed."""

    segment: int
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class AttachReply:
    """Mirror to master: (a part of) the difference as the mirror sees it, below ``Attach.next_seq_id``."""

    queue_id: QueueId
    epoch: Epoch
    attach_id: int
    mismatched: tuple[SegmentHoldings, ...]


@dataclass(frozen=True, slots=True)
class AttachRefused:
    """Answer to an attach or to operations of a master of the past: a higher epoch is known here, so it is fenced."""

    queue_id: QueueId
    epoch: Epoch
    #: The epoch that fences the sender.
    known_epoch: Epoch


@dataclass(frozen=True, slots=True)
class Ops:
    """Master to mirror: operations ``first_index``, ``first_index + 1`` ..."""

    queue_id: QueueId
    epoch: Epoch
    attach_id: int
    first_index: int
    ops: tuple[MirrorOp, ...]
    #: As in the attach, now: policies come and go, and the mirror's node may skip one that the master has followed.
    may_lack_refused: bool = False


@dataclass(frozen=True, slots=True)
class OpsAck:
    """Mirror to master: cumulative progress. ``durable_index <= applied_index``."""

    queue_id: QueueId
    epoch: Epoch
    attach_id: int
    applied_index: int
    durable_index: int
    #: The mirror's disk refuses writes: what is applied and not durable waits in memory for space.
    is_disk_full: bool
    #: More replies to the attach follow.
    is_describing: bool


MirrorMessage = Attach | AttachReply | AttachRefused | Ops | OpsAck


def end_in(message: MirrorMessage) -> EndOp | None:
    """The end of a mastership, if this frame says it; it has one to itself."""
    op = message.ops[-1] if isinstance(message, Ops) and message.ops else None
    return op if isinstance(op, EndOp) else None
