"""Index of one queue, second generation, with the queue's own store for small messages (mission S4, S13).

The seam is `node.store.index.index.QueueIndex`. A segment (4096 positions) is a pair of files: ``N.qi`` with a slot of
32 bytes for every position, and ``N.qs`` with the envelopes of the messages smaller than
`StoreConfig.embed_below_bytes` (formats: `node.store.formats.record`). Bigger messages live in the vhost's shared
stores; their slot names them by msg_id.

**Publish** writes a slot, **ack** overwrites it with zeros; there is no journal. A pair of files is deleted when every
entry in it is settled and the queue's positions have moved on to a later segment; at most `DELETIONS_MAX` pairs per
flush, since unlinking thousands of files at once would stop the loop for seconds.

**In memory** a segment is a few numbers and the sets of `node.store.index.segment`. Everything else is read from the
files when it is wanted.

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
from functools import partial

from node.errors import DiskFullError
from node.ids import MsgId
from node.message import Message
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.index.held_references import HeldReferences
from node.store.index.index import IN_SHARED_STORE, UNKNOWN_PLACE, PagedMessage, Range
from node.store.index.live_bits import by_segment, positions
from node.store.index.live_entries import LiveEntries
from node.store.index.owed_references import OwedReferences
from node.store.index.v2.message_writer import MessageWriter
from node.store.index.v2.owed_slots import OwedSlots
from node.store.index.v2.refused_slots import RefusedSlots
from node.store.index.v2.segment import SegmentV2
from node.store.index.v2.segment_files import SegmentFilesV2
from node.store.index.v2.terms import pack_terms, segments_in_terms
from node.store.shared.config import StoreConfig
from node.store.shared.port import Releases, SharedStore, release_in_pieces, release_references

#: Pairs of files deleted per flush: unlinking a pair of some megabytes takes up to half a millisecond.
DELETIONS_MAX = 8
#: Segments whose slots are zeroed per flush, each up to half a millisecond: acks in random order, or what a purge
#: leaves, may concern very many. They lose nothing by waiting: the more acks, the fewer writes for each.
ACK_SEGMENTS_MAX = 4
#: Bytes of copied slots (of a million entries) beyond which no further segment is deleted, so that no more are copied.
OWED_BYTES_MAX = 32 * 1024 * 1024


class QueueIndexV2:
    """See the module text; `node.store.index.index.QueueIndex` says what each method means."""

    version = 2

    def __init__(
        self,
        disk: Disk,
        directory: str,
        queue_id: int,
        *,
        is_durable: bool,
        group_commit: GroupCommit,
        persistent_store: SharedStore,
        transient_store: SharedStore,
        config: StoreConfig,
    ) -> None:
        """``is_durable``: of the queue; in one that is not, every message is transient."""
        stores = {True: persistent_store, False: transient_store}
        segment_entries = config.v2_segment_entries
        self._is_durable = is_durable
        self._group_commit = group_commit
        self.files = SegmentFilesV2(disk, directory, queue_id, group_commit, segment_entries)
        self.live_entries: LiveEntries[SegmentV2] = LiveEntries(segment_entries, stores, is_durable=is_durable)
        self._owed = OwedReferences(stores)
        #: Of the pending ones, those of which a full disk refused the slots.
        self._refused = RefusedSlots(segment_entries)
        self._writer = MessageWriter(
            self.files,
            self.live_entries,
            self._refused,
            is_durable=is_durable,
            embed_below_bytes=config.embed_below_bytes,
        )
        #: There may be more finished segments than one flush deletes.
        self._has_finished = False

    # -- collecting

    @property
    def has_unflushed(self) -> bool:
        entries = self.live_entries
        return bool(entries.pending or entries.settled or self._has_finished or self._owed)

    @property
    def has_unflushed_publishes(self) -> bool:
        """Transient ones count too: the flush is near anyway."""
        return bool(self.live_entries.pending)

    def is_unflushed(self, seq_id: int) -> bool:
        return seq_id in self.live_entries.pending

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None = None) -> None:
        self.live_entries.publish(messages, envelopes)

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        if self._refused.slots:
            self._settle_refused(seq_ids)
        self.live_entries.settle(seq_ids, messages)

    def _settle_refused(self, seq_ids: Iterable[int]) -> None:
        """Pending entries are settled: whatever of them is on disk must go."""
        zeroed, released = self._refused.settle(seq_ids)
        settled = self.live_entries.settled
        for number, bits in zeroed.items():
            settled[number] = settled.get(number, 0) | bits
        release_references(self.live_entries.stores, released)

    def settle_range(self, first: int, end: int, keep: Collection[int] = (), *, is_sized: bool = True) -> Range:
        total = [0, 0, 0, 0]
        self._settle_refused(self.live_entries.cancel_range(first, end, keep, total))
        for segment, bits in self.live_entries.chosen(first, end, keep):
            if is_sized:
                self.live_entries.settle_read(segment, bits, self.files.describe, total)
            else:
                segment.owed_bits |= self.live_entries.settle_unread(segment, bits, total)
        return Range(*total)

    def _copy_owed(self, segment: SegmentV2) -> None:
        """The owed slots of a segment are about to vanish from its file."""
        if segment.owed_bits:
            seq_ids = positions(segment.owed_bits, segment.base)
            self._owed.owe(OwedSlots(self.files.index_file(segment), seq_ids, segment.entries))
            segment.owed_bits = 0

    @property
    def _owes_enough(self) -> bool:
        """True if no more should be copied for now."""
        return self._owed.memory_bytes > OWED_BYTES_MAX

    # -- writing

    def flush(self, next_seq_id: int) -> int:
        """After a `DiskFullError` everything that was not written is still collected."""
        # Before anything that a full disk may refuse: it makes room.
        has_given_back = bool(self._owed)
        self._owed.give_back()
        try:
            # Acks first: a position may be settled and filled again within one turn (a mirror whose tail was replaced).
            if self.live_entries.settled:
                self._flush_acks(next_seq_id)
            written = self._flush_publishes() if self.live_entries.pending else 0
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
        entries = self.live_entries
        at_once = {seq_id >> entries.segment_bits for seq_id in entries.pending} | self._refused.strays.keys()
        count_max = ACK_SEGMENTS_MAX
        # A segment below both is deleted as a whole once its last entry is settled.
        in_use = min(next_seq_id, min(entries.pending, default=next_seq_id)) >> entries.segment_bits
        for number, bits in list(entries.settled.items()):
            segment = entries.segments[number]
            if segment.live_count or number >= in_use:
                if number not in at_once:
                    if count_max == 0 or (segment.owed_bits and self._owes_enough):
                        continue
                    count_max -= 1
                self._copy_owed(segment)
                self._write_acks(segment, bits)
            else:
                segment.is_finished = self._has_finished = True
                self._refused.forget_segment(number)
            del entries.settled[number]

    def _write_acks(self, segment: SegmentV2, bits: int) -> None:
        index_file = self.files.write_zeros(segment, bits)
        if self._refused.zeroed(segment.number, bits):
            self.files.mark_dirty(segment, index_file)

    def _flush_publishes(self) -> int:
        """Returns how many persistent messages were written."""
        entries = self.live_entries
        written = 0
        try:
            for number, seq_ids in by_segment(sorted(entries.pending), entries.segment_bits):
                written += self._writer.write(self._segment(number), seq_ids)
        except DiskFullError:
            entries.forget_written()
            raise
        entries.pending.clear()
        entries.envelopes.clear()
        self._has_finished = True
        return written

    def _segment(self, number: int) -> SegmentV2:
        """The segment, with files made if it has none."""
        segment = self.live_entries.segments.get(number)
        if segment is not None and segment.is_finished:
            # Its files were to be deleted, so its last acks were not written: begin anew.
            self._delete(segment)
            segment = None
        if segment is None:
            segment = self.files.create(number)
            self.live_entries.add_segment(segment)
        return segment

    def _delete(self, segment: SegmentV2) -> None:
        self._copy_owed(segment)
        self.files.delete(segment)
        self._refused.forget_segment(segment.number)
        self.live_entries.drop_segment(segment.number)

    def _delete_finished(self, next_seq_id: int) -> None:
        """Delete the files of segments in which everything is settled and nothing more will be appended."""
        finished = self.live_entries.finished(next_seq_id)
        self._has_finished = len(finished) > DELETIONS_MAX
        del finished[DELETIONS_MAX:]
        for segment in finished:
            if self._owes_enough:
                self._has_finished = True
                break
            self._delete(segment)
        if finished and self._is_durable:
            # Not a promise, but once per segment it is cheap: without it a crash could bring thousands of acked back.
            self._group_commit.mark_dirty(self.files.disk.directory(self.files.directory))

    # -- what is live

    def is_live(self, seq_id: int) -> bool:
        return self.live_entries.is_live(seq_id)

    def count_live(self, first: int, end: int) -> int:
        return self.live_entries.count_live(first, end)

    def live(self, first: int, end: int) -> Iterator[int]:
        return self.live_entries.live(first, end)

    def segment_end(self, seq_id: int) -> int:
        return self.live_entries.segment_end(seq_id)

    # -- reading

    def msg_ids(self, first: int, end: int) -> bytes:
        return self.live_entries.msg_ids(first, end, self.files.copy_msg_ids)

    def entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        return self.live_entries.entries(first, end, count_max, self.files.describe)

    def read(self, entries: Sequence[tuple[int, PagedMessage]]) -> list[bytes]:
        found: dict[int, bytes] = {}
        shared: dict[bool, list[tuple[int, MsgId]]] = {}
        embedded: dict[int, int] = {}
        pending, segments, bits = self.live_entries.pending, self.live_entries.segments, self.live_entries.segment_bits
        if pending:
            found = {seq_id: pending[seq_id].envelope() for seq_id, _ in entries if seq_id in pending}
        unknown = sorted(seq_id for seq_id, entry in entries if entry.place == UNKNOWN_PLACE and seq_id not in found)
        looked_up: dict[int, PagedMessage] = {}
        for number, seq_ids in by_segment(unknown, bits):
            looked_up.update(self.files.describe(segments[number], seq_ids))
        for seq_id, entry in entries:
            if seq_id in found:
                continue
            known = looked_up[seq_id] if entry.place == UNKNOWN_PLACE else entry
            if known.place == IN_SHARED_STORE:
                shared.setdefault(known.persistent, []).append((seq_id, known.msg_id))
            else:
                embedded[seq_id] = known.place
        self.live_entries.read_shared(shared, found)
        for number, seq_ids in by_segment(sorted(embedded), bits):
            self.files.read_embedded(segments[number], [(embedded[seq_id], seq_id) for seq_id in seq_ids], found)
        return [found[seq_id] for seq_id, _ in entries]

    # -- beginning and end

    def adopt_terms(self, terms: bytes) -> None:
        """Take over what `terms` said before a clean stop."""
        for segment in segments_in_terms(terms, self.live_entries.segment_entries):
            self.live_entries.add_segment(segment)

    def adopt_segment(self, number: int, queue_store_end: int, live: Sequence[int], shared: Sequence[int]) -> None:
        """Take over what a scan found in the files of a segment: its persistent live entries, ascending."""
        segment = SegmentV2(number, self.live_entries.segment_entries, queue_store_end)
        segment.add_members(live, shared, ())
        self.live_entries.add_segment(segment)

    def drop_transient(self) -> None:
        self._settle_refused(self.live_entries.cancel_transient())
        for segment in self.live_entries.segments.values():
            if segment.transient_bits:
                owed = self.live_entries.settle_unread(segment, segment.transient_bits, [0, 0, 0, 0])
                segment.owed_bits |= owed

    def close(self, next_seq_id: int) -> None:
        self.flush(next_seq_id)
        while self.live_entries.settled:
            self.flush(next_seq_id)
        # A scan may have found segments in which nothing is live.
        self._has_finished = True
        while self._has_finished or self._owed:
            self._owed.give_back()
            self._delete_finished(next_seq_id)
        self.files.close_all(self.live_entries.segments.values())

    def terms(self) -> bytes:
        return pack_terms(self.live_entries.segments, self.live_entries.segment_entries)

    def delete(self, directory: str) -> Releases:
        self._settle_refused(list(self._refused.slots))
        named = [
            (segment, segment.shared_bits | segment.owed_bits)
            for segment in self.live_entries.segments.values()
            if segment.shared_bits | segment.owed_bits
        ]
        owed = self._owed.take_all()
        self.abandon()
        self.files.directory = directory
        return self._release_in_pieces(owed, named)

    def give_up(self, held: HeldReferences) -> Releases:
        _, released = self._refused.settle(list(self._refused.slots))
        # The slots of some may be in the file.
        held.loose += [msg_id for is_persistent, msg_id in released if is_persistent]
        release_references(self.live_entries.stores, [entry for entry in released if not entry[0]])
        named: list[tuple[SegmentV2, int]] = []
        for number, segment in self.live_entries.segments.items():
            transient = segment.shared_bits & segment.transient_bits
            held.hold(self.version, number, segment.shared_bits ^ transient)
            if transient | segment.owed_bits:
                named.append((segment, transient | segment.owed_bits))
        owed = self._owed.take_all()
        self.abandon()
        return self._release_in_pieces(owed, named)

    def moved_to(self, directory: str) -> None:
        self.files.directory = directory

    def _release_in_pieces(self, owed: OwedReferences, named: Sequence[tuple[SegmentV2, int]]) -> Releases:
        try:
            yield from owed.give_back_in_pieces()
            for segment, bits in named:
                release = partial(self._release, segment)
                yield from release_in_pieces(positions(bits, segment.base), release, self._count_anew)
        finally:
            self.files.abandon()

    def _release(self, segment: SegmentV2, seq_ids: Sequence[int]) -> None:
        """Give back the references of these entries, ascending, of which the slots are in the file."""
        found = list(OwedSlots(self.files.index_file(segment), seq_ids, segment.entries).read(seq_ids))
        if len(found) < len(seq_ids):
            self._count_anew()
        release_references(self.live_entries.stores, found)

    def _count_anew(self) -> None:
        self.live_entries.stores[True].count_anew()

    def abandon(self) -> None:
        self.files.abandon()
        self.live_entries.clear()
        self._refused.clear()
        self._owed.take_all()
        self._has_finished = False

    @property
    def memory_bytes(self) -> int:
        return self.live_entries.memory_bytes + self._owed.memory_bytes + self._refused.memory_bytes

    def check_invariants(self) -> None:
        entries, strays = self.live_entries, self._refused.strays
        entries.check_invariants()
        self._refused.check_invariants(entries.pending, entries.settled)
        self.files.check_invariants(entries.segments)
        self._owed.check_invariants()
        for number, segment in entries.segments.items():
            assert not strays.get(number, 0) & segment.live_bits, f"segment {number}: what is live is no stray"
            is_on_its_way = segment.is_finished or not segment.owed_bits & ~entries.settled.get(number, 0)
            assert is_on_its_way, f"segment {number}: slots of which the references are owed are not overwritten"
