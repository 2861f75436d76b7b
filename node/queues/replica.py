"""What mirroring needs of a local queue beyond `BackingQueue`: explicit positions and a description of its content.

A master's local queue and a mirror are the same engine. A mirror never decides anything: it stores what the
master tells it at the seq id the master chose, and at promotion it becomes a master's local queue as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from node.ids import Epoch, MsgId, OriginId, SeqId
from node.message import Message
from node.queues.backing_queue import BackingQueue
from node.store.steps import Steps

#: Seq ids per digest segment: the same as entries per index file, so that a digest is cheap to keep per file.
DIGEST_SEGMENT_ENTRIES = 4096


class SeqRange(NamedTuple):
    """Seq ids from ``first`` (inclusive) to ``end`` (exclusive)."""

    first: SeqId
    end: SeqId


class SegmentDigest(NamedTuple):
    """Content of one segment of `DIGEST_SEGMENT_ENTRIES` seq ids: number of live messages (`entries`), 64-bit digest.

    The digest is BLAKE2b, 8 bytes, over 16 bytes for each position of the segment in order: the msg_id of what is live
    there, zeros where nothing is. It depends on the content alone, not on where a replica keeps it, and is made by
    copying and hashing whole stretches: some hundredths of a microsecond an entry.
    """

    segment: int
    entries: int
    digest: int


class Holding(NamedTuple):
    """One live message that a replica has."""

    seq_id: SeqId
    msg_id: MsgId


def digest_of(segment: int, entries: int, msg_ids: bytes | bytearray) -> SegmentDigest:
    """The digest of a segment with ``entries`` live messages; ``msg_ids`` is what it is made of."""
    return SegmentDigest(segment, entries, int.from_bytes(blake2b(msg_ids, digest_size=8).digest(), "big"))


class ReplicaQueue(BackingQueue, Protocol):
    """A local queue that mirroring can drive by position. Live = ready or unacked."""

    @property
    def next_seq_id(self) -> SeqId:
        """The seq id the next `publish` will use."""

    @property
    def first_live_seq_id(self) -> SeqId:
        """Lowest live seq id, or `next_seq_id` if nothing is live."""

    def insert(self, seq_ids: Sequence[SeqId], messages: Sequence[Message], envelopes: Sequence[bytes]) -> None:
        """Store messages, ready, at the given ascending positions; positions already live are skipped.

        Used by a mirror for published batches (at the tail) and for sync batches (anywhere below it). Raises
        `next_seq_id` above the highest position and the origins' high-water counters. ``envelopes[i]`` is
        ``messages[i].envelope()``, at hand already.
        """

    def remove(self, ranges: Iterable[SeqRange]) -> int:
        """Settle whatever is live in the ranges, ready or unacked. Returns how many messages."""

    def advance_next_seq_id(self, next_seq_id: SeqId) -> None:
        """Raise (never lower) the position of the next publish."""

    def live_counts(self) -> list[tuple[int, int]]:
        """Number and live messages of every digest segment that has one, ascending. Memory only."""

    def live_positions(self, segment: int) -> list[SeqId]:
        """Positions of the live messages of one digest segment, ascending. Memory only."""

    def digests(self) -> list[SegmentDigest]:
        """One digest per segment that has a live message, ascending. Reads what is on disk only, without checking it
        entry by entry (see `node.store.index.index.QueueIndex.msg_ids`)."""

    def prepare_digests(self) -> Steps[None]:
        """Compute what `digests` would, in steps of some milliseconds between which the queue may be used. A segment is
        looked at once: what changes behind a step is left for `digests`. Raises `StorageError`."""

    def msg_ids(self, segment: int) -> list[MsgId]:
        """Those of the live messages of one segment, ascending by position. Read in bulk and unchecked, as for digests:
        a cheap first look where `holdings` is seldom needed."""

    def holdings(self, segment: int) -> list[Holding]:
        """The live messages of one segment, ascending. Reads and checks what is on disk only."""

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        """Envelopes of the live messages among ``seq_ids``, in that order; bodies come from disk if need be."""

    def origins(self) -> Mapping[OriginId, int]:
        """Highest accepted counter per origin, for `is_duplicate` on another replica."""

    def merge_origins(self, origins: Mapping[OriginId, int]) -> None:
        """Raise the high-water counters to at least these."""

    def mark_delivered_below(self, seq_id: SeqId) -> None:
        """Every live message below ``seq_id`` counts as possibly delivered: its next delivery is flagged."""

    def mark_none_delivered(self) -> None:
        """Nothing counts as delivered any more. For a mirror: its master knows, and says so as long as they talk."""

    @property
    def delivered_below(self) -> SeqId:
        """Every live message below it counts as possibly delivered, those from there on do not."""

    @property
    def delivered_epoch(self) -> Epoch:
        """What was kept over a clean stop: no master up to this epoch delivers anything at or above what was then
        `delivered_below`. 0: that is not known."""

    def close_deliveries(self, epoch: Epoch, delivered_below: SeqId) -> None:
        """To be kept over the clean stop that follows: masters up to ``epoch`` deliver nothing at or above this."""

    @property
    def write_generation(self) -> int:
        """Generation of the group commit that a write made now belongs to."""

    @property
    def is_disk_full(self) -> bool:
        """True while the disk refuses writes and what was collected waits in memory for space."""

    @property
    def durable_generation(self) -> int:
        """Highest generation that is on disk for this queue. ``durable >= g``: every write stamped g is safe.

        While nothing of this queue waits for a sync it is at least `write_generation`: an idle queue is durable.
        """
