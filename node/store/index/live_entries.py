"""The core of an index: which entries of one queue are live, and in which state each of them is.

A position (seq id) goes through these states; both generations keep them here and add their files::

    free --- publish --> pending --- written --> live on disk --- settle --> settled --- flush --> free
              |                                                     |
              +-- settle: cancelled, never touches the disk         +--> owed (`owed_references`), if nobody read it

*Pending*: collected, with its message in memory; the next flush writes it. *Live on disk*: written; a bit of its
`Segment` says so, and two more whether the message is in a shared store and whether it is transient. *Settled*: since
the last flush, so that its ack is still to be written; the bit is cleared at once. An entry that is in a shared store
holds one reference there from the flush that wrote it until it is settled and, if its record was not read, until
`OwedReferences` has given it back.

Settling needs the msg_ids of what is in a shared store. Who acks knows them (`settle`); who settles a range either
has every record read (`settle_read`), or does not and owes (`settle_unread`).

Everything here is memory. Where a generation has to look into files for what this module does in general, it hands in
a function (`Describe`, `CopyMsgIds`).

**Cost.** Per batch, not per message: a group of entries of one segment is one set of bits. Per entry on disk nothing is
kept but bits, and none while a segment is full.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Generic, TypeVar

from node.ids import MSG_ID_BYTES, MsgId
from node.message import Message
from node.store.index.index import PagedMessage, count_into
from node.store.index.live_bits import between, bits_of, by_segment, positions
from node.store.index.segment import Segment
from node.store.shared.port import SharedStore

#: A segment with what one generation knows of its files.
SegmentT = TypeVar("SegmentT", bound=Segment)
#: What the records of written live entries of one segment say: (segment, ascending seq ids) -> (seq id, paged). Reads.
Describe = Callable[[SegmentT, Sequence[int]], list[tuple[int, PagedMessage]]]
#: Copy the msg_ids of written live entries: (segment, their bits, target, seq id of the first place in it). Reads.
CopyMsgIds = Callable[[SegmentT, int, bytearray, int], None]

#: Estimate of the memory of one pending message beside its body.
_PENDING_MEMORY_BYTES = 500


class LiveEntries(Generic[SegmentT]):
    """See the module text."""

    def __init__(self, segment_entries: int, stores: Mapping[bool, SharedStore], *, is_durable: bool) -> None:
        """``stores``: the shared stores, by whether a message is persistent. ``is_durable``: of the queue; in one that
        is not, every message is transient."""
        self.segment_entries = segment_entries
        self.segment_bits = segment_entries.bit_length() - 1
        self.segment_mask = segment_entries - 1
        self.stores = stores
        self._is_durable = is_durable
        #: Published since the last flush, or refused by a full disk.
        self.pending: dict[int, Message] = {}
        #: Envelopes of pending messages, where the publisher had them at hand.
        self.envelopes: dict[int, bytes] = {}
        #: Every segment with a live entry, a file, or both.
        self.segments: dict[int, SegmentT] = {}
        #: Settled since the last flush, of those that were written: segment -> its set of entries.
        self.settled: dict[int, int] = {}
        #: Segments that may have no live entry: something was settled in them, or they were added, since `finished` has
        #: looked, or they had none then; in the order in which that happened.
        self._emptied: dict[int, None] = {}

    # -- pending entries

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None) -> None:
        """See `QueueIndex.publish`."""
        self.pending.update(messages)
        if envelopes:
            self.envelopes.update(envelopes)

    def is_persistent(self, message: Message) -> bool:
        """True if a message of this queue must survive a crash."""
        return self._is_durable and message.persistent

    def cancel(self, seq_ids: Iterable[int]) -> None:
        """Forget pending entries."""
        for seq_id in seq_ids:
            del self.pending[seq_id]
            self.envelopes.pop(seq_id, None)

    def cancel_range(self, first: int, end: int, keep: Collection[int], total: list[int]) -> list[int]:
        """Settle what is pending in [first, end), but for ``keep``, and add it to the fields of a `Range`.

        Returns the positions.
        """
        pending = self.pending
        if not pending:
            return []
        kept = frozenset(keep)
        chosen = [seq_id for seq_id in pending if first <= seq_id < end and seq_id not in kept]
        for seq_id in chosen:
            message = pending[seq_id]
            count_into(total, self.is_persistent(message), len(message.body))
        self.cancel(chosen)
        return chosen

    def cancel_transient(self) -> list[int]:
        """Settle what is pending and not persistent. Returns the positions."""
        chosen = [seq_id for seq_id, message in self.pending.items() if not self.is_persistent(message)]
        self.cancel(chosen)
        return chosen

    def forget_written(self) -> None:
        """A flush ended early: what it has written is not pending any more."""
        self.cancel([seq_id for seq_id in self.pending if self.is_written(seq_id)])

    # -- settling what was written

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        """See `QueueIndex.settle`. Raises `StorageError` if a shared store does."""
        pending = self.pending
        written: Sequence[int] = seq_ids
        if pending:
            written = [seq_id for seq_id in seq_ids if pending.pop(seq_id, None) is None]
            if self.envelopes:
                for seq_id in seq_ids:
                    self.envelopes.pop(seq_id, None)
        known: dict[int, Message | PagedMessage] | None = None
        for number, members in by_segment(sorted(written), self.segment_bits):
            segment = self.segments[number]
            bits = bits_of(members, self.segment_mask)
            if segment.shared_bits:
                if known is None:
                    known = dict(zip(seq_ids, messages, strict=True))
                self._release(segment, bits & segment.shared_bits, known)
            self._settle(segment, bits)

    def chosen(self, first: int, end: int, keep: Collection[int]) -> list[tuple[SegmentT, int]]:
        """What is written and live in [first, end), but for ``keep``: sets of entries by segment."""
        kept = dict(by_segment(sorted([seq_id for seq_id in keep if first <= seq_id < end]), self.segment_bits))
        found: list[tuple[SegmentT, int]] = []
        for segment in self.segments_of(first, end):
            bits = segment.live_between(first, end)
            if segment.number in kept:
                bits &= ~bits_of(kept[segment.number], self.segment_mask)
            if bits:
                found.append((segment, bits))
        return found

    def settle_read(self, segment: SegmentT, bits: int, describe: Describe[SegmentT], total: list[int]) -> None:
        """Settle these written entries, whose records are read for their sizes and msg_ids.

        ``total``: the fields of a `Range`. Raises `StorageError`.
        """
        found = describe(segment, positions(bits, segment.base))
        for _, paged in found:
            count_into(total, paged.persistent, paged.body_bytes)
        shared = bits & segment.shared_bits
        if shared:
            self._release(segment, shared, dict(found))
        self._settle(segment, bits)

    def settle_unread(self, segment: SegmentT, bits: int, total: list[int]) -> int:
        """Settle these written entries and read nothing: ``total`` gets no sizes.

        Returns the set of those whose reference to a shared store is owed now.
        """
        total[0] += bits.bit_count()
        total[2] += (bits & ~segment.transient_bits).bit_count()
        shared = bits & segment.shared_bits
        self._settle(segment, bits)
        return shared

    def _settle(self, segment: SegmentT, bits: int) -> None:
        number = segment.number
        self.settled[number] = self.settled.get(number, 0) | bits
        segment.settle(bits)
        self._emptied[number] = None

    def _release(self, segment: SegmentT, shared: int, known: Mapping[int, Message | PagedMessage]) -> None:
        """Give back the references of these live entries of shared stores."""
        for is_persistent, bits in segment.by_store(shared):
            msg_ids = [known[seq_id].msg_id for seq_id in positions(bits, segment.base)]
            self.stores[is_persistent].release_many(msg_ids)

    # -- segments

    def add_segment(self, segment: SegmentT) -> None:
        """A new segment, or one that was found on disk."""
        self.segments[segment.number] = segment
        self._emptied[segment.number] = None

    def drop_segment(self, number: int) -> None:
        """Forget a segment in which everything is settled, and acks that need not be written now."""
        del self.segments[number]
        self._emptied.pop(number, None)
        self.settled.pop(number, None)

    def finished(self, next_seq_id: int) -> list[SegmentT]:
        """Segments in which everything is settled and nothing will be published any more."""
        if not self._emptied:
            return []
        segments = self.segments
        self._emptied = {number: None for number in self._emptied if not segments[number].live_count}
        tail = min(next_seq_id, min(self.pending, default=next_seq_id)) >> self.segment_bits
        return [segments[number] for number in self._emptied if number < tail]

    def segments_of(self, first: int, end: int) -> list[SegmentT]:
        """Segments that overlap [first, end), ascending."""
        lowest, behind = first >> self.segment_bits, (end - 1 >> self.segment_bits) + 1
        segments = self.segments
        if behind - lowest <= len(segments):
            return [segments[number] for number in range(lowest, behind) if number in segments]
        return [segments[number] for number in sorted(segments) if lowest <= number < behind]

    def segment_end(self, seq_id: int) -> int:
        """See `QueueIndex.segment_end`."""
        return (seq_id | self.segment_mask) + 1

    @property
    def end_seq_id(self) -> int:
        """First position behind the last segment."""
        return max(self.segments, default=-1) + 1 << self.segment_bits

    # -- what is live

    def is_written(self, seq_id: int) -> bool:
        """True if live on disk."""
        segment = self.segments.get(seq_id >> self.segment_bits)
        return segment is not None and segment.has(seq_id)

    def is_live(self, seq_id: int) -> bool:
        """See `QueueIndex.is_live`."""
        return seq_id in self.pending or self.is_written(seq_id)

    def count_live(self, first: int, end: int) -> int:
        """See `QueueIndex.count_live`."""
        pending = len(between(self.pending, first, end)) if self.pending else 0
        return pending + sum([segment.count(first, end) for segment in self.segments_of(first, end)])

    def live(self, first: int, end: int) -> Iterator[int]:
        """See `QueueIndex.live`."""
        pending = between(self.pending, first, end)
        written: list[int] = []
        for segment in self.segments_of(first, end):
            found = positions(segment.live_between(first, end), segment.base)
            if not pending or pending[0] >= segment.base + self.segment_entries:
                yield from found
            else:
                written += found
        yield from sorted(pending + written) if written else pending

    def entries(
        self, first: int, end: int, count_max: int, describe: Describe[SegmentT]
    ) -> list[tuple[int, PagedMessage]]:
        """See `QueueIndex.entries`."""
        found: list[tuple[int, PagedMessage]] = []
        for segment in self.segments_of(first, end):
            if len(found) >= count_max:
                break
            bits = segment.live_between(first, end)
            if bits:
                found += describe(segment, positions(bits, segment.base)[: count_max - len(found)])
        pending = between(self.pending, first, end)
        if pending:
            # Written ones may lie between them and behind them: look at so many of both.
            found += [(seq_id, self._paged_pending(seq_id)) for seq_id in pending[:count_max]]
            found.sort()
            del found[count_max:]
        return found

    def _paged_pending(self, seq_id: int) -> PagedMessage:
        message = self.pending[seq_id]
        return PagedMessage(message.msg_id, len(message.body), self.is_persistent(message))

    def msg_ids(self, first: int, end: int, copy: CopyMsgIds[SegmentT]) -> bytes:
        """See `QueueIndex.msg_ids`."""
        found = bytearray(MSG_ID_BYTES * (end - first))
        for segment in self.segments_of(first, end):
            bits = segment.live_between(first, end)
            if bits:
                copy(segment, bits, found, first)
        for seq_id in between(self.pending, first, end):
            put_msg_id(found, seq_id - first, self.pending[seq_id].msg_id)
        return bytes(found)

    def read_shared(self, wanted: Mapping[bool, Sequence[tuple[int, MsgId]]], found: dict[int, bytes]) -> None:
        """Add envelopes from the shared stores to ``found``, by seq id. ``wanted``: by whether they are persistent."""
        for is_persistent, entries in wanted.items():
            envelopes = self.stores[is_persistent].read_many([msg_id for _, msg_id in entries])
            found.update(zip([seq_id for seq_id, _ in entries], envelopes, strict=True))

    # -- end

    def clear(self) -> None:
        """Forget everything."""
        for members in (self.pending, self.envelopes, self.segments, self.settled, self._emptied):
            members.clear()

    @property
    def memory_bytes(self) -> int:
        """Estimate of what is held in memory."""
        written = getsizeof(self.segments) + sum([segment.memory_bytes for segment in self.segments.values()])
        bodies = sum([len(message.body) for message in self.pending.values()])
        return written + bodies + len(self.pending) * _PENDING_MEMORY_BYTES

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert not self.envelopes.keys() - self.pending.keys(), "encoded forms belong to pending messages"
        assert self.settled.keys() <= self.segments.keys(), "what is settled was written in a segment"
        for number, segment in self.segments.items():
            assert segment.number == number, "a segment is found by its number"
            assert segment.entries == self.segment_entries, "all segments have one size"
            segment.check_invariants()
            assert not self.settled.get(number, 0) & segment.live_bits, f"segment {number}: live or settled, not both"
            is_known = segment.live_count or number in self._emptied
            assert is_known, f"segment {number} has no live entry and will be deleted"
        assert self._emptied.keys() <= self.segments.keys(), "what may be finished is there"
        for seq_id in self.pending:
            assert not self.is_written(seq_id), f"{seq_id} is pending or written, not both"


def put_msg_id(target: bytearray, place: int, msg_id: MsgId) -> None:
    """Put a msg_id into its place of what `LiveEntries.msg_ids` returns."""
    at = place * MSG_ID_BYTES
    target[at : at + MSG_ID_BYTES] = msg_id
