"""Index of one queue, second generation, with the queue's own store for small messages (mission S4, S13).

The seam is `node.store.index.index.QueueIndex`. A segment (4096 positions) is a pair of files: ``N.qi`` with a slot of
32 bytes for every position, and ``N.qs`` with the envelopes of the messages smaller than
`StoreConfig.embed_below_bytes` (formats: `node.store.formats.record`). Bigger messages live in the vhost's shared
stores; their slot names them by msg_id.

**Publish** writes a slot, **ack** overwrites it with zeros; there is no journal. A pair of files is deleted when every
entry in it is settled and the queue's positions have moved on to a later segment; at most `DELETIONS_MAX` pairs per
flush, since unlinking thousands of files at once would stop the loop for seconds.

**In memory** a segment is a few numbers and three sets of bits: which entries are live, which of them are in a shared
store, which are transient. While all are live the first is a constant that all segments share; the others are mostly
zero. Everything else is read from the files when it is wanted.

**Write buffer.** `publish` and `settle` only collect. `flush` writes everything collected in a turn: one append to
``.qs`` and one pwrite to ``.qi`` per segment (more only if the slots are not neighbours). A message that is settled
before the flush is forgotten and never touches the disk. The state of a segment changes after its writes, and a flush
that a full disk stopped half-way (`DiskFullError`) may be repeated. `node.store.index.v2.refused_slots` knows what it
has left.

**Purge.** `settle_range` without sizes only clears bits; references to shared stores are given back later
(`node.store.index.v2.owed_slots`).

**What is synced.** Publishes of persistent messages mark both files for the group commit. Acks and transient messages
do not; acks ride along with the next round of a file or with the system's own write-back. A recovered message may
therefore have been acked shortly before the crash, never the other way round.

**Order of names.** ``.qs`` is created before ``.qi`` and deleted after it. So a ``.qi`` without a ``.qs`` it needs is
damage, and a ``.qs`` alone is a leftover.

**Crash.** A slot stands alone: a torn ack has status 0 and old bytes behind it (the ack counts); a torn publish has
status 1 and no checksum (it was never confirmed: dropped and counted). A slot or record that is whole but
whose checksum is wrong is corruption: copied to ``quarantine/``, reported, never served. Recovery is in
`node.store.index.v2.recovery`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from zlib import crc32

from node.errors import DiskFullError, StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.message import Message
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import (
    CRC,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    SEQ_ID_CRC_MASK,
    SLOT_BODY,
    SLOT_BYTES,
    SLOT_PERSISTENT,
    SLOT_SHARED,
    STATUS_PRESENT,
    Slot,
    slot_offset,
    unpack_slot,
)
from node.store.index.index import IN_SHARED_STORE, UNKNOWN_PLACE, PagedMessage, Range, count_into
from node.store.index.live_bits import between, bits_between, bits_of, by_segment, positions, runs
from node.store.index.v2.owed_slots import OwedSlots
from node.store.index.v2.refused_slots import RefusedSlots, by_seq_id, is_persistent, is_shared
from node.store.index.v2.segment_files import Segment, SegmentFiles, paged_of
from node.store.index.v2.terms import pack_terms, segments_in_terms
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from node.store.shared.port import release_in_pieces, release_references

#: Pairs of files deleted per flush: unlinking a pair of some megabytes takes up to half a millisecond.
DELETIONS_MAX = 8
#: Segments whose slots are zeroed per flush, each up to half a millisecond: acks in random order, or what a purge
#: leaves, may concern very many. They lose nothing by waiting: the more acks, the fewer writes for each.
ACK_SEGMENTS_MAX = 4
#: Estimate of the memory of one segment beside its bits: object, dictionary entry, numbers.
_SEGMENT_MEMORY_BYTES = 320
#: Estimate of the memory of one collected message beside its body.
_PENDING_MEMORY_BYTES = 500


class QueueIndexV2:
    """Implements `QueueIndex`; see the module text."""

    version = 2

    def __init__(
        self,
        disk: Disk,
        directory: str,
        queue_id: int,
        *,
        is_durable: bool,
        group_commit: GroupCommit,
        persistent_store: MessageStore,
        transient_store: MessageStore,
        config: StoreConfig,
    ) -> None:
        """``is_durable``: of the queue; in one that is not, every message is transient."""
        self._is_durable = is_durable
        self._group_commit = group_commit
        #: The shared stores, by whether the message is persistent.
        self._stores = {True: persistent_store, False: transient_store}
        self._embed_below_bytes = config.embed_below_bytes
        self.segment_entries = config.v2_segment_entries
        self._segment_bits = self.segment_entries.bit_length() - 1
        self._slot_mask = self.segment_entries - 1
        #: `Segment.live_bits` while every entry is live.
        self._full_bits = (1 << self.segment_entries) - 1
        self.files = SegmentFiles(disk, directory, queue_id, group_commit, self.segment_entries)
        #: Every segment that has files.
        self.segments: dict[int, Segment] = {}
        #: Published since the last flush.
        self._pending: dict[int, Message] = {}
        #: Envelopes of pending messages, where the publisher had them at hand.
        self._envelopes: dict[int, bytes] = {}
        #: Settled since the last flush, of those whose slots are on disk: segment -> its bits.
        self._settled: dict[int, int] = {}
        #: Of the pending ones, those of which a full disk refused the slots.
        self._refused = RefusedSlots(self.segment_entries)
        #: There may be more finished segments than one flush deletes.
        self._has_finished = False
        self._owed = OwedSlots(self._stores, self.segment_entries)

    # -- collecting

    @property
    def has_unflushed(self) -> bool:
        """See `QueueIndex.has_unflushed`."""
        return bool(self._pending or self._settled or self._has_finished or self._owed)

    @property
    def has_unflushed_publishes(self) -> bool:
        """See `QueueIndex.has_unflushed_publishes`. (Transient ones count too: the flush is near anyway.)"""
        return bool(self._pending)

    def is_unflushed(self, seq_id: int) -> bool:
        """See `QueueIndex.is_unflushed`."""
        return seq_id in self._pending

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None = None) -> None:
        """See `QueueIndex.publish`."""
        self._pending.update(messages)
        if envelopes is not None:
            self._envelopes.update(envelopes)

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        """See `QueueIndex.settle`."""
        pending = self._pending
        written: Sequence[int] = seq_ids
        if pending:
            written = [seq_id for seq_id in seq_ids if pending.pop(seq_id, None) is None]
            if self._envelopes:
                for seq_id in seq_ids:
                    self._envelopes.pop(seq_id, None)
            if self._refused.slots:
                self._settle_refused(seq_ids)
        if written:
            for segment, members, bits in self._clear(sorted(written)):
                known = dict(zip(seq_ids, messages, strict=True))
                msg_ids = {seq_id: known[seq_id].msg_id for seq_id in members}
                self._release(segment, bits & segment.shared_bits, msg_ids)

    def _settle_refused(self, seq_ids: Iterable[int]) -> None:
        """Pending entries are settled: whatever of them is on disk must go."""
        zeroed, released = self._refused.settle(seq_ids)
        for number, bits in zeroed.items():
            self._settled[number] = self._settled.get(number, 0) | bits
        release_references(self._stores, released)

    def _clear(self, seq_ids: Sequence[int]) -> list[tuple[Segment, Sequence[int], int]]:
        """Written entries are settled: clear their live bits, note their acks.

        Returns (segment, seq ids, bits) where a shared store may be concerned: `_release` is due there.
        """
        cleared: list[tuple[Segment, Sequence[int], int]] = []
        for number, members in by_segment(seq_ids, self._segment_bits):
            segment = self.segments[number]
            bits = bits_of(members, self._slot_mask)
            self._clear_bits(segment, bits, len(members))
            if segment.shared_bits:
                cleared.append((segment, members, bits))
            elif segment.transient_bits:
                segment.transient_bits &= ~bits
        return cleared

    def _clear_bits(self, segment: Segment, bits: int, count: int) -> None:
        settled = self._settled
        settled[segment.number] = settled.get(segment.number, 0) | bits
        segment.live_bits &= ~bits
        segment.live -= count

    def _release(self, segment: Segment, shared: int, msg_ids: Mapping[int, MsgId]) -> None:
        """Give back the references of the entries with bits in ``shared``."""
        base = segment.number << self._segment_bits
        for persistent in (True, False):
            bits = shared & (~segment.transient_bits if persistent else segment.transient_bits)
            if bits:
                self._stores[persistent].release_many([msg_ids[seq_id] for seq_id in positions(bits, base)])
        segment.shared_bits &= ~shared
        segment.transient_bits &= segment.live_bits

    def settle_range(self, first: int, end: int, keep: Collection[int] = (), *, is_sized: bool = True) -> Range:
        """See `QueueIndex.settle_range`."""
        total = [0, 0, 0, 0]
        cancelled = [seq_id for seq_id in self._pending if first <= seq_id < end and seq_id not in keep]
        for seq_id in cancelled:
            message = self._pending.pop(seq_id)
            self._envelopes.pop(seq_id, None)
            count_into(total, self._is_durable and message.persistent, len(message.body))
        self._settle_refused(cancelled)
        kept = dict(by_segment(sorted(seq_id for seq_id in keep if first <= seq_id < end), self._segment_bits))
        for number in self._segments_between(first, end):
            segment = self.segments[number]
            base = number << self._segment_bits
            bits = segment.live_bits & bits_between(first, end, base, self.segment_entries)
            if number in kept:
                bits &= ~bits_of(kept[number], self._slot_mask)
            if bits:
                self._settle_bits(segment, bits, total, is_sized)
        return Range(*total)

    def _settle_bits(self, segment: Segment, bits: int, total: list[int], is_sized: bool) -> None:
        """Settle the written entries with these bits; ``total`` collects the fields of a `Range`."""
        count = bits.bit_count()
        shared = bits & segment.shared_bits
        if not is_sized:
            total[0] += count
            total[2] += count - (bits & segment.transient_bits).bit_count()
            self._clear_bits(segment, bits, count)
            segment.owed_bits |= shared
            segment.shared_bits &= ~shared
            segment.transient_bits &= segment.live_bits
            return
        seq_ids = positions(bits, segment.number << self._segment_bits)
        slots = self._slots(segment, seq_ids)
        for slot in slots:
            count_into(total, slot.persistent, slot.body_bytes)
        self._clear_bits(segment, bits, count)
        msg_ids = {seq_id: MsgId(slot.msg_id) for seq_id, slot in zip(seq_ids, slots, strict=True)} if shared else {}
        self._release(segment, shared, msg_ids)

    def _copy_owed(self, segment: Segment) -> None:
        """The owed slots of a segment are about to vanish from its file."""
        if segment.owed_bits:
            seq_ids = positions(segment.owed_bits, segment.number << self._segment_bits)
            self._owed.copy(self.files.index_file(segment), seq_ids)
            segment.owed_bits = 0

    # -- writing

    def flush(self, next_seq_id: int) -> int:
        """See `QueueIndex.flush`. After a `DiskFullError` everything that was not written is still collected."""
        # Before anything that a full disk may refuse: it makes room.
        has_given_back = bool(self._owed)
        self._owed.give_back()
        try:
            # Acks first: a position may be settled and filled again within one turn (a mirror whose tail was replaced).
            if self._settled:
                self._flush_acks(next_seq_id)
            written = self._flush_publishes() if self._pending else 0
        except DiskFullError:
            # Makes room; and the last acks of what is finished are not written. What is behind a pending one waits.
            self._delete_finished(next_seq_id)
            self._has_finished = True
            raise
        if self._has_finished:
            self._delete_finished(next_seq_id)
        if not has_given_back:
            self._owed.give_back()
        return written

    def _flush_acks(self, next_seq_id: int) -> None:
        """Zero slots: in some segments now, in others later, but at once where something is or was written."""
        settled = self._settled
        at_once = {seq_id >> self._segment_bits for seq_id in self._pending} | self._refused.strays.keys()
        count_max = ACK_SEGMENTS_MAX
        # A segment below both is deleted as a whole once its last entry is settled.
        in_use = min(next_seq_id, min(self._pending, default=next_seq_id)) >> self._segment_bits
        for number, bits in list(settled.items()):
            segment = self.segments[number]
            if segment.live or number >= in_use:
                if number not in at_once:
                    if count_max == 0 or (segment.owed_bits and self._owed.is_full):
                        continue
                    count_max -= 1
                self._copy_owed(segment)
                self._write_acks(segment, bits)
            else:
                segment.is_finished = self._has_finished = True
                self._refused.forget_segment(number)
            del settled[number]

    def _flush_publishes(self) -> int:
        """Returns how many persistent messages were written."""
        written = 0
        pending, self._pending = self._pending, {}
        envelopes, self._envelopes = self._envelopes, {}
        try:
            for number, seq_ids in by_segment(sorted(pending), self._segment_bits):
                written += self._write_publishes(self._segment(number), seq_ids, pending, envelopes)
        except DiskFullError:
            unwritten = [seq_id for seq_id in pending if not self._is_written(seq_id)]
            self._pending = {seq_id: pending[seq_id] for seq_id in unwritten}
            self._envelopes = {seq_id: envelopes[seq_id] for seq_id in unwritten if seq_id in envelopes}
            raise
        self._has_finished = True
        return written

    def _write_publishes(
        self, segment: Segment, seq_ids: Sequence[int], pending: Mapping[int, Message], envelopes: Mapping[int, bytes]
    ) -> int:
        """Returns how many persistent messages were written."""
        refused = self._refused
        if refused.slots:
            slots, shared, transient = self._write_refused(segment, seq_ids, pending, envelopes)
        else:
            slots, shared, transient = self._write_messages(segment, seq_ids, pending, envelopes)
        index_file, queue_store_file = self.files.files(segment)
        try:
            at = 0
            for first, count in runs(seq_ids):
                end = at + count * SLOT_BYTES
                index_file.pwrite(slots[at:end], self._slot_offset(first))
                at = end
        except DiskFullError:
            refused.keep(seq_ids, by_seq_id(seq_ids, slots))
            refused.find_strays(segment.number, index_file, seq_ids)
            raise
        if refused.slots:
            refused.written(segment.number, seq_ids)
        self._add_bits(segment, seq_ids, shared, transient)
        if len(transient) < len(seq_ids):
            embedded = (queue_store_file,) if len(shared) < len(seq_ids) else ()
            self.files.mark_dirty(segment, index_file, *embedded)
        return len(seq_ids) - len(transient)

    def _write_refused(
        self, segment: Segment, seq_ids: Sequence[int], pending: Mapping[int, Message], envelopes: Mapping[int, bytes]
    ) -> tuple[bytes, Sequence[int], Sequence[int]]:
        """The same as `_write_messages` where the messages of some may be in their places already."""
        known = dict(self._refused.slots)
        due = [seq_id for seq_id in seq_ids if seq_id not in known]
        if due:
            known.update(by_seq_id(due, self._write_messages(segment, due, pending, envelopes)[0]))
        shared = [seq_id for seq_id in seq_ids if is_shared(known[seq_id])]
        transient = [seq_id for seq_id in seq_ids if not is_persistent(known[seq_id])]
        return b"".join([known[seq_id] for seq_id in seq_ids]), shared, transient

    def _write_messages(
        self, segment: Segment, seq_ids: Sequence[int], pending: Mapping[int, Message], envelopes: Mapping[int, bytes]
    ) -> tuple[bytes, Sequence[int], Sequence[int]]:
        """Put messages into their places. Returns their slots, which are now to be written, and which of them are in a
        shared store, and which are transient."""
        embed_below_bytes, slot_mask = self._embed_below_bytes, self._slot_mask
        offset = segment.queue_store_end
        records: list[bytes] = []
        slots: list[bytes] = []
        shared: list[int] = []
        transient: list[int] = []
        is_durable = self._is_durable
        pack_record_header, pack_body, pack_crc = RECORD_HEADER.pack, SLOT_BODY.pack, CRC.pack
        for seq_id in seq_ids:
            message = pending[seq_id]
            body_bytes = len(message.body)
            flags = SLOT_PERSISTENT
            if not (is_durable and message.persistent):
                flags = 0
                transient.append(seq_id)
            if body_bytes + len(message.properties) < embed_below_bytes:
                envelope = envelopes.get(seq_id) if envelopes else None
                if envelope is None:
                    envelope = message.envelope()
                size = len(envelope)
                key = seq_id & slot_mask
                records += (pack_record_header(size, crc32(envelope, key), key, RECORD_MARK), envelope)
                body = pack_body(STATUS_PRESENT, flags, size - body_bytes, message.msg_id, offset, body_bytes)
                offset += RECORD_HEADER_BYTES + size
            else:
                shared.append(seq_id)
                body = pack_body(STATUS_PRESENT, flags | SLOT_SHARED, 0, message.msg_id, 0, body_bytes)
            slots += (body, pack_crc(crc32(body, seq_id & SEQ_ID_CRC_MASK)))
        data = b"".join(slots)
        if records:
            _, queue_store_file = self.files.files(segment)
            queue_store_file.pwrite(b"".join(records), segment.queue_store_end)
            segment.queue_store_end = offset
        if shared:
            missing = set(shared)
            try:
                self._write_shared(missing, frozenset(transient), pending, envelopes)
            except DiskFullError:
                placed = [seq_id for seq_id in seq_ids if seq_id not in missing]
                self._refused.keep(placed, by_seq_id(seq_ids, data))
                raise
        return data, shared, transient

    def _write_shared(
        self,
        missing: set[int],
        transient: Collection[int],
        pending: Mapping[int, Message],
        envelopes: Mapping[int, bytes],
    ) -> None:
        """Hand big messages to the shared stores. What is there is taken out of ``missing``."""
        for is_transient in (False, True):
            chosen = sorted([seq_id for seq_id in missing if (seq_id in transient) == is_transient])
            if chosen:
                items = [
                    (pending[seq_id].msg_id, envelopes.get(seq_id) or pending[seq_id].envelope()) for seq_id in chosen
                ]
                self._stores[not is_transient].write_batch(items)
                missing.difference_update(chosen)

    def _add_bits(
        self, segment: Segment, seq_ids: Sequence[int], shared: Sequence[int], transient: Sequence[int]
    ) -> None:
        bits = segment.live_bits | bits_of(seq_ids, self._slot_mask)
        segment.live += len(seq_ids)
        segment.live_bits = self._full_bits if segment.live == self.segment_entries else bits
        if shared:
            segment.shared_bits |= bits_of(shared, self._slot_mask)
        if transient:
            segment.transient_bits |= bits_of(transient, self._slot_mask)

    def _write_acks(self, segment: Segment, bits: int) -> None:
        index_file = self.files.write_zeros(segment, bits)
        if self._refused.zeroed(segment.number, bits):
            self.files.mark_dirty(segment, index_file)

    def _delete_finished(self, next_seq_id: int) -> None:
        """Delete the files of segments in which everything is settled and nothing more will be appended."""
        tail = min(next_seq_id, min(self._pending, default=next_seq_id)) >> self._segment_bits
        finished = [number for number, segment in self.segments.items() if not segment.live and number < tail]
        self._has_finished = len(finished) > DELETIONS_MAX
        del finished[DELETIONS_MAX:]
        for number in finished:
            if self._owed.is_full:
                self._has_finished = True
                break
            self._copy_owed(self.segments[number])
            self.files.delete(self.segments.pop(number))
            self._refused.forget_segment(number)
            self._settled.pop(number, None)
        if finished and self._is_durable:
            # Not a promise, but once per segment it is cheap: without it a crash could bring thousands of acked back.
            self._group_commit.mark_dirty(self.files.disk.directory(self.files.directory))

    # -- what is live

    def _is_written(self, seq_id: int) -> bool:
        segment = self.segments.get(seq_id >> self._segment_bits)
        return segment is not None and bool(segment.live_bits >> (seq_id & self._slot_mask) & 1)

    def is_live(self, seq_id: int) -> bool:
        """See `QueueIndex.is_live`."""
        return seq_id in self._pending or self._is_written(seq_id)

    def count_live(self, first: int, end: int) -> int:
        """See `QueueIndex.count_live`."""
        count = len(between(self._pending, first, end))
        for number in self._segments_between(first, end):
            segment = self.segments[number]
            base = number << self._segment_bits
            if first <= base and base + self.segment_entries <= end:
                count += segment.live
            else:
                count += (segment.live_bits & bits_between(first, end, base, self.segment_entries)).bit_count()
        return count

    def live(self, first: int, end: int) -> Iterator[int]:
        """See `QueueIndex.live`."""
        pending = between(self._pending, first, end)
        written: list[int] = []
        for number in self._segments_between(first, end):
            base = number << self._segment_bits
            bits = self.segments[number].live_bits & bits_between(first, end, base, self.segment_entries)
            if not pending or pending[0] >= base + self.segment_entries:
                yield from positions(bits, base)
            else:
                written += positions(bits, base)
        yield from sorted(pending + written) if written else pending

    def segment_end(self, seq_id: int) -> int:
        """See `QueueIndex.segment_end`."""
        return (seq_id | self._slot_mask) + 1

    def _segments_between(self, first: int, end: int) -> list[int]:
        """Numbers of the segments with files that overlap [first, end), ascending."""
        low, high = first >> self._segment_bits, (end - 1) >> self._segment_bits
        if high - low < len(self.segments):
            return [number for number in range(low, high + 1) if number in self.segments]
        return sorted(number for number in self.segments if low <= number <= high)

    # -- reading

    def msg_ids(self, first: int, end: int) -> bytes:
        """See `QueueIndex.msg_ids`."""
        found = bytearray(MSG_ID_BYTES * (end - first))
        for number in self._segments_between(first, end):
            segment = self.segments[number]
            bits = segment.live_bits & bits_between(first, end, number << self._segment_bits, self.segment_entries)
            if bits:
                self.files.copy_msg_ids(segment, bits, found, first)
        for seq_id in between(self._pending, first, end):
            at = (seq_id - first) * MSG_ID_BYTES
            found[at : at + MSG_ID_BYTES] = self._pending[seq_id].msg_id
        return bytes(found)

    def entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        """See `QueueIndex.entries`."""
        found: list[tuple[int, PagedMessage]] = []
        pending = between(self._pending, first, end)
        if pending:
            # Written ones may lie between them and behind them: look at so many of both.
            found = [(seq_id, self._paged_pending(seq_id)) for seq_id in pending[:count_max]]
            found += self._written_entries(first, end, count_max)
            found.sort()
            return found[:count_max]
        return self._written_entries(first, end, count_max)

    def _paged_pending(self, seq_id: int) -> PagedMessage:
        message = self._pending[seq_id]
        return PagedMessage(message.msg_id, len(message.body), self._is_durable and message.persistent)

    def _written_entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        found: list[tuple[int, PagedMessage]] = []
        for number in self._segments_between(first, end):
            segment = self.segments[number]
            base = number << self._segment_bits
            bits = segment.live_bits & bits_between(first, end, base, self.segment_entries)
            seq_ids = positions(bits, base)[: count_max - len(found)]
            if seq_ids:
                slots = self._slots(segment, seq_ids)
                found += [(seq_id, paged_of(slot)) for seq_id, slot in zip(seq_ids, slots, strict=True)]
            if len(found) >= count_max:
                break
        return found

    def _slots(self, segment: Segment, seq_ids: Sequence[int]) -> list[Slot]:
        """Slots of written live entries of one segment, ascending. Raises `StorageError` if one is damaged."""
        index_file, _ = self.files.files(segment)
        start = self._slot_offset(seq_ids[0])
        data = index_file.pread(self._slot_offset(seq_ids[-1]) + SLOT_BYTES - start, start)
        first = seq_ids[0]
        slots: list[Slot] = []
        for seq_id in seq_ids:
            at = (seq_id - first) * SLOT_BYTES
            slot = unpack_slot(seq_id, data[at : at + SLOT_BYTES])
            if slot is None:
                raise StorageError(f"slot of seq id {seq_id} in {index_file.path} is damaged")
            slots.append(slot)
        return slots

    def read(self, entries: Sequence[tuple[int, PagedMessage]]) -> list[bytes]:
        """See `QueueIndex.read`."""
        found: dict[int, bytes] = {}
        shared: dict[bool, list[tuple[int, MsgId]]] = {}
        embedded: dict[int, int] = {}
        pending = self._pending
        if pending:
            found = {seq_id: pending[seq_id].envelope() for seq_id, _ in entries if seq_id in pending}
        unknown = sorted(seq_id for seq_id, entry in entries if entry.place == UNKNOWN_PLACE and seq_id not in found)
        looked_up: dict[int, PagedMessage] = {}
        for number, seq_ids in by_segment(unknown, self._segment_bits):
            slots = self._slots(self.segments[number], seq_ids)
            looked_up.update(zip(seq_ids, map(paged_of, slots), strict=True))
        for seq_id, entry in entries:
            if seq_id in found:
                continue
            known = looked_up[seq_id] if entry.place == UNKNOWN_PLACE else entry
            if known.place == IN_SHARED_STORE:
                shared.setdefault(known.persistent, []).append((seq_id, known.msg_id))
            else:
                embedded[seq_id] = known.place
        for persistent, wanted in shared.items():
            envelopes = self._stores[persistent].read_many([msg_id for _, msg_id in wanted])
            found.update(zip([seq_id for seq_id, _ in wanted], envelopes, strict=True))
        for number, seq_ids in by_segment(sorted(embedded), self._segment_bits):
            self.files.read_embedded(self.segments[number], [(embedded[seq_id], seq_id) for seq_id in seq_ids], found)
        return [found[seq_id] for seq_id, _ in entries]

    # -- files

    def _segment(self, number: int) -> Segment:
        """The segment, with files made if it has none."""
        segment = self.segments.get(number)
        if segment is not None and segment.is_finished:
            # Its files were to be deleted, so its last acks were not written: begin anew.
            self._copy_owed(segment)
            self.files.delete(self.segments.pop(number))
            self._refused.forget_segment(number)
            segment = None
        if segment is None:
            segment = self.segments[number] = self.files.create(number)
        return segment

    def _slot_offset(self, seq_id: int) -> int:
        """Where in the .qi file of its segment the slot of ``seq_id`` stands."""
        return slot_offset(seq_id, self.segment_entries)

    def drop_transient(self) -> None:
        """See `QueueIndex.drop_transient`."""
        pending = self._pending
        dropped = [s for s, message in pending.items() if not (self._is_durable and message.persistent)]
        for seq_id in dropped:
            del pending[seq_id]
            self._envelopes.pop(seq_id, None)
        self._settle_refused(dropped)
        for segment in list(self.segments.values()):
            if segment.transient_bits:
                self._settle_bits(segment, segment.transient_bits, [0, 0, 0, 0], is_sized=False)

    def close(self, next_seq_id: int) -> None:
        """See `QueueIndex.close`."""
        self.flush(next_seq_id)
        while self._settled:
            self.flush(next_seq_id)
        # A scan may have found segments in which nothing is live.
        self._has_finished = True
        while self._has_finished or self._owed:
            self._owed.give_back()
            self._delete_finished(next_seq_id)
        self.files.close_all(self.segments.values())

    def terms(self) -> bytes:
        """See `QueueIndex.terms`."""
        return pack_terms(self.segments, self.segment_entries)

    def adopt_terms(self, terms: bytes) -> None:
        """Take over what `terms` said before a clean stop."""
        for segment in segments_in_terms(terms, self.segment_entries):
            self.segments[segment.number] = segment

    def adopt_segment(self, number: int, queue_store_end: int, live: Sequence[int], shared: Sequence[int]) -> Segment:
        """Take over what a scan found in the files of a segment: its persistent live entries, ascending."""
        segment = self.segments[number] = Segment(number, queue_store_end)
        if live:
            self._add_bits(segment, live, shared, ())
        return segment

    def delete(self, directory: str) -> Iterator[None]:
        """See `QueueIndex.delete`."""
        self._settle_refused(list(self._refused.slots))
        shared = [segment for segment in self.segments.values() if segment.shared_bits | segment.owed_bits]
        owed = self._owed.take_all()
        self.abandon()
        self.files.directory = directory
        return self._release_in_pieces(owed, shared)

    def _release_in_pieces(self, owed: OwedSlots, segments: Sequence[Segment]) -> Iterator[None]:
        yield from owed.give_back_in_pieces()
        for segment in segments:

            def release(seq_ids: Sequence[int], segment: Segment = segment) -> None:
                owed.copy(self.files.index_file(segment), seq_ids)
                while owed:
                    owed.give_back()

            bits = segment.shared_bits | segment.owed_bits
            yield from release_in_pieces(positions(bits, segment.number << self._segment_bits), release)
        self.files.abandon()

    def abandon(self) -> None:
        """See `QueueIndex.abandon`."""
        self.files.abandon()
        self.segments.clear()
        self._pending.clear()
        self._envelopes.clear()
        self._settled.clear()
        self._refused.clear()
        self._has_finished = False
        self._owed.take_all()

    @property
    def memory_bytes(self) -> int:
        """See `QueueIndex.memory_bytes`."""
        partial = sum([segment.live != self.segment_entries for segment in self.segments.values()])
        pending = sum([len(message.body) for message in self._pending.values()])
        written = len(self.segments) * _SEGMENT_MEMORY_BYTES + partial * self.segment_entries // 8
        collected = len(self._pending) * _PENDING_MEMORY_BYTES + pending
        return written + collected + self._owed.memory_bytes + self._refused.memory_bytes

    def check_invariants(self) -> None:
        """See `QueueIndex.check_invariants`."""
        assert not self._envelopes.keys() - self._pending.keys(), "encoded forms belong to pending messages"
        self._refused.check_invariants(self._pending, self._settled)
        self.files.check_invariants(self.segments)
        self._owed.check_invariants()
        for number, segment in self.segments.items():
            segment.check_invariants(self.segment_entries, self._settled.get(number, 0))
            live = segment.live_bits
            assert not self._refused.strays.get(number, 0) & live, f"segment {number}: what is live is no stray"
            base = number << self._segment_bits
            assert not set(positions(live, base)) & self._pending.keys(), "an entry is pending or written"
