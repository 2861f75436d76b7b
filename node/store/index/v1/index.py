"""Index of one queue, first generation: a journal in front of segments (mission S3, S5).

A queue's seq ids are cut into segments of 16,384 (`StoreConfig.v1_segment_entries`). Everything is written to the
*journal* ``N.jif`` first; a full journal is *carried over*: its live publishes and its acks are appended to the files
of their segments, ``N.idx``, and the journal is deleted. Small messages travel inside the records; bigger ones are in
the shared stores, and their records name them (formats: `node.store.index.v1.format`)::

    publish, settle -> collected -> flush -> journal 7 (current) ---+
                                             journal 6 (moving) ----+--> 0.idx  1.idx  2.idx ...
                                             journal 5 (waiting for the sync of what was moved)

**Cancelling.** A message settled while it is collected touches no file. One settled while its publish is in a journal
never reaches a segment. A segment in which everything is settled is deleted without being written again.

**Carrying over.** A full journal is not moved at once, for its 32,768 entries would hold up the loop: the next journal
begins, and each `flush` moves twice as many entries as it wrote, at least a `MOVE_FRACTION`-th of a journal (a
millisecond), so that a journal is moved before the next is full. Its file is deleted when the generation of the group
commit in which the last of it was moved is durable. Until then a crash finds the publish twice, or half of the second:
the journals win.

**Crash.** The last record about a position in the journals, in the order of their numbers, holds; about a position that
no journal mentions, the last in its segment. That needs no order between the files' syncs but these three, all kept by
deleting late: segments before the journal that was moved into them; journals in the order of their numbers; the
directory, with segments already deleted in it, before the journal that has the acks.

**What is synced.** A journal, when it gets persistent messages. Acks are not synced by themselves.

**Memory.** A segment costs counters, and a bit for each entry unless all or none are live
(`node.store.index.v1.segment`); an entry that is still in a journal about 110 bytes; the last two segments read 28
bytes an entry.

**Purge.** `settle_range` without sizes reads nothing; references to shared stores are given back later
(`node.store.index.v1.owed_records`).

Deliveries are not recorded, as since RabbitMQ 3.10: what was delivered is known for the queue as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from sys import getsizeof

from node.errors import DiskFullError, StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.message import Message
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.index.index import PagedMessage, Range, count_into
from node.store.index.live_bits import between, bits_of, positions, runs_of_bits
from node.store.index.v1.format import (
    KIND_EMBEDDED,
    KIND_SHARED,
    PLACE_PERSISTENT,
    PLACE_SHARED,
    RECORD_BYTES,
    SHARED_PAYLOAD,
    Publish,
    checked_record,
    read_places,
    record_seq_id,
)
from node.store.index.v1.journal import Journal
from node.store.index.v1.owed_records import ALL, OWED_PER_FLUSH, OwedRecords
from node.store.index.v1.segment import Run, Segment, merge_runs, run_bits, runs_of
from node.store.index.v1.segment_files import SegmentFiles
from node.store.index.v1.terms import pack_terms
from node.store.shared.config import StoreConfig
from node.store.shared.port import SharedStore, release_in_pieces

#: A flush that writes little moves this part of a full journal, 256 entries with the usual size: a millisecond.
MOVE_FRACTION = 128
#: Entries that could be moved in the time it takes to open, append to and close one segment file.
FILE_COST_ENTRIES = 8
#: Segments deleted per flush: unlinking a file of some megabytes takes about a tenth of a millisecond.
DELETIONS_MAX = 16


class QueueIndexV1:
    """See the module text; `node.store.index.index.QueueIndex` says what each method means."""

    version = 1

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
        self._is_durable = is_durable
        self.disk = disk
        self.directory = directory
        self.queue_id = queue_id
        self.config = config
        #: By whether the message is persistent.
        self.stores = {True: persistent_store, False: transient_store}
        self._group_commit = group_commit
        self.entries_per_segment = config.v1_segment_entries
        self._bits = self.entries_per_segment.bit_length() - 1
        self._move_entries_min = max(1, config.v1_journal_entries_max // MOVE_FRACTION)
        self.files = SegmentFiles(disk, directory, queue_id, group_commit, is_durable=is_durable)
        #: Every segment with a live entry or a file. Filled by recovery.
        self.segments: dict[int, Segment] = {}
        #: Number of the journal that will be begun next.
        self.next_journal = 0
        #: The journal that is written to; made when there is something to write.
        self._journal: Journal | None = None
        #: A full one that is being carried over.
        self._moving: Journal | None = None
        #: Those carried over, and the generation that makes what was moved durable; in the order of their numbers.
        self._moved: list[tuple[int, Journal]] = []
        #: Published since the last flush.
        self._pending: dict[int, Message] = {}
        #: Envelopes of pending messages, where the publisher had them at hand.
        self._envelopes: dict[int, bytes] = {}
        #: Written entries settled since the last flush. The segments know already.
        self._settled: list[Run] = []
        #: Segments that have no live entry, or had none at some time.
        self._emptied: set[int] = set()
        self._owed = OwedRecords(self.stores, self.files)
        #: There are more finished segments than one flush deletes.
        self._has_finished = False

    def adopt(self, next_journal: int, segments: Iterable[Segment]) -> None:
        """Take over what recovery found; everything is in segment files."""
        self.next_journal = next_journal
        for segment in segments:
            self.segments[segment.number] = segment
            if not segment.live_count:
                self._emptied.add(segment.number)

    # -- collecting

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None = None) -> None:
        self._pending.update(messages)
        if envelopes:
            self._envelopes.update(envelopes)

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        pending = self._pending
        known = dict(zip(seq_ids, messages, strict=True))
        if pending:
            for seq_id in seq_ids:
                if seq_id in pending:
                    self._cancel(seq_id)
                    del known[seq_id]
        for first, count in runs_of(sorted(known), self.entries_per_segment):
            segment = self.segments[first >> self._bits]
            if segment.shared:
                run = range(first, first + count)
                self._release(segment, {seq_id: known[seq_id].msg_id for seq_id in run if segment.is_shared(seq_id)})
            self._remove(segment, [(first, count)])

    def _cancel(self, seq_id: int) -> Message:
        """Forget a message that was not written yet."""
        self._envelopes.pop(seq_id, None)
        return self._pending.pop(seq_id)

    def _release(self, segment: Segment, msg_ids: Mapping[int, MsgId]) -> None:
        """Give back the references of these live entries of shared stores."""
        released: dict[bool, list[MsgId]] = {}
        for seq_id, msg_id in msg_ids.items():
            released.setdefault(not segment.is_transient(seq_id), []).append(msg_id)
        for is_persistent, chosen in released.items():
            self.stores[is_persistent].release_many(chosen)

    def _remove(self, segment: Segment, runs: Iterable[Run]) -> None:
        """Settle written entries of one segment, their references given back already."""
        bits = 0
        for first, count in runs:
            bits |= run_bits(first - segment.base, count)
            self._settled.append((first, count))
        segment.remove(bits)
        if not segment.live_count:
            self._emptied.add(segment.number)

    def settle_range(self, first: int, end: int, keep: Collection[int] = (), *, is_sized: bool = True) -> Range:
        kept = {seq_id for seq_id in keep if first <= seq_id < end}
        total = [0, 0, 0, 0]
        for seq_id in [seq_id for seq_id in self._pending if first <= seq_id < end and seq_id not in kept]:
            message = self._cancel(seq_id)
            count_into(total, self._is_persistent(message), len(message.body))
        kept_bits: dict[int, int] = {}
        for seq_id in kept:
            number = seq_id >> self._bits
            kept_bits[number] = kept_bits.get(number, 0) | 1 << (seq_id & self.entries_per_segment - 1)
        for segment in self._segments_of(first, end):
            bits = segment.live_bits(first, end) & ~kept_bits.get(segment.number, 0)
            if bits:
                self._settle_bits(segment, bits, total, is_sized)
        return Range(*total)

    def _settle_bits(self, segment: Segment, bits: int, total: list[int], is_sized: bool) -> None:
        """Settle written entries of which nothing else is known; ``total`` collects the fields of a `Range`."""
        shared = bits & segment.shared
        if is_sized:
            found = self._describe(segment, positions(bits, segment.base))
            for _, paged in found:
                count_into(total, paged.persistent, paged.body_bytes)
            self._release(segment, {seq_id: paged.msg_id for seq_id, paged in found if segment.is_shared(seq_id)})
        else:
            total[0] += bits.bit_count()
            total[2] += (bits & ~segment.transient).bit_count()
            self._owed.owe(segment, shared, (self._journal, self._moving))
        self._remove(segment, runs_of_bits(bits, segment.base))

    def _is_persistent(self, message: Message) -> bool:
        return self._is_durable and message.persistent

    @property
    def has_unflushed(self) -> bool:
        return bool(self._pending or self._settled or self._has_finished or self._owed)

    @property
    def has_unflushed_publishes(self) -> bool:
        return bool(self._pending)

    def is_unflushed(self, seq_id: int) -> bool:
        return seq_id in self._pending

    # -- writing

    def flush(self, next_seq_id: int) -> int:
        """After a `DiskFullError` everything that was not written is still collected."""
        # Both make room, so they come before anything that a full disk may refuse.
        self._owed.give_back(OWED_PER_FLUSH)
        settled = merge_runs(self._settled, self.entries_per_segment)
        pending = sorted(self._pending)
        self._delete_moved()
        try:
            written = self._write(settled, pending) if settled or pending else 0
        except DiskFullError:
            if settled and pending:
                # Acks take little space, and what they finish makes room.
                self._write(settled, ())
                self._delete_finished(min(next_seq_id, pending[0]))
            raise
        # A full disk does not hinder publishing more than it must: what cannot be moved now is moved later.
        with suppress(DiskFullError):
            if self._journal is not None and self._journal.records >= self.config.v1_journal_entries_max:
                self._begin_move()
            if self._moving is not None:
                self._move(max(self._move_entries_min, 2 * (len(settled) + len(pending))))
        self._delete_moved()
        self._delete_finished(next_seq_id)
        return written

    def _write(self, settled: Sequence[Run], pending: Sequence[int]) -> int:
        """Write what was collected. Returns how many persistent messages there were."""
        journal = self._journal
        if journal is None:
            journal = self._journal = self._new_journal()
        self._owed.give_back_at(pending, self._bits)
        publishes, stored = self._publishes(pending)
        taken = self._write_shared(stored)
        try:
            # Acks first: a position may be settled and filled again within one turn (a mirror whose tail was replaced).
            places = journal.write(settled, publishes)
        except DiskFullError:
            for store, msg_ids in taken:
                store.release_many(msg_ids)
            raise
        for run in settled:
            self._forget(journal, run)
        journal.note(publishes, places)
        self._count_live(publishes)
        self._settled.clear()
        if pending:
            self._pending.clear()
            self._envelopes.clear()
        written = sum([publish.persistent for publish in publishes])
        if written:
            self._group_commit.mark_dirty(journal.file)
        return written

    def _new_journal(self) -> Journal:
        journal = Journal(self.disk, self.directory, self.queue_id, self.next_journal, self.entries_per_segment)
        self.next_journal += 1
        self._mark_directory()
        return journal

    def _mark_directory(self) -> None:
        if self._is_durable:
            self._group_commit.mark_dirty(self.disk.directory(self.directory))

    def _forget(self, journal: Journal, run: Run) -> None:
        """An ack goes into ``journal``: drop publishes that are in journals; the others are in their segment's file."""
        first, count = run
        found = journal.forget(run)
        if self._moving is not None and len(found) < count:
            found += self._moving.forget(run)
        if len(found) == count:
            return
        number = first >> self._bits
        runs = journal.acks.setdefault(number, [])
        if found:
            rest = set(range(first, first + count)).difference(found)
            runs += runs_of(sorted(rest), self.entries_per_segment)
        else:
            runs.append(run)

    def _publishes(self, pending: Sequence[int]) -> tuple[list[Publish], dict[bool, list[tuple[MsgId, bytes]]]]:
        """Records of the pending messages at these positions, and what goes to which shared store."""
        messages, envelopes = self._pending, self._envelopes
        embed_below_bytes, is_durable = self.config.embed_below_bytes, self._is_durable
        publishes: list[Publish] = []
        stored: dict[bool, list[tuple[MsgId, bytes]]] = {}
        for seq_id in pending:
            message = messages[seq_id]
            envelope = envelopes.get(seq_id) or message.envelope()
            size = len(message.body)
            is_persistent = is_durable and message.persistent
            if size + len(message.properties) < embed_below_bytes:
                publishes.append(Publish(seq_id, KIND_EMBEDDED, is_persistent, envelope))
            else:
                stored.setdefault(is_persistent, []).append((message.msg_id, envelope))
                payload = SHARED_PAYLOAD.pack(message.msg_id, size)
                publishes.append(Publish(seq_id, KIND_SHARED, is_persistent, payload))
        return publishes, stored

    def _write_shared(
        self, stored: Mapping[bool, Sequence[tuple[MsgId, bytes]]]
    ) -> list[tuple[SharedStore, list[MsgId]]]:
        """Hand big messages to the shared stores. Returns the references taken."""
        taken: list[tuple[SharedStore, list[MsgId]]] = []
        for is_persistent, items in stored.items():
            store = self.stores[is_persistent]
            try:
                store.write_batch(items)
            except DiskFullError:
                for earlier, msg_ids in taken:
                    earlier.release_many(msg_ids)
                raise
            taken.append((store, [msg_id for msg_id, _ in items]))
        return taken

    def _count_live(self, publishes: Sequence[Publish]) -> None:
        """The segments learn what was written."""
        mask = self.entries_per_segment - 1
        kinds = {publish.seq_id: publish for publish in publishes}
        for first, count in runs_of([publish.seq_id for publish in publishes], self.entries_per_segment):
            number = first >> self._bits
            segment = self.segments.get(number)
            if segment is None:
                segment = self.segments[number] = Segment(number, self.entries_per_segment)
            shared = transient = 0
            for seq_id in range(first, first + count):
                _, kind, is_persistent, _ = kinds[seq_id]
                if kind == KIND_SHARED:
                    shared |= 1 << (seq_id & mask)
                if not is_persistent:
                    transient |= 1 << (seq_id & mask)
            segment.add(run_bits(first & mask, count), shared, transient)

    # -- carrying journals over

    def _begin_move(self) -> None:
        """The current journal is full, or all must go."""
        if self._moving is not None:
            self._owed.give_back_of(self._moving)
            self._move(ALL)
        self._moving, self._journal = self._journal, None

    def _move(self, count: int) -> None:
        """Append up to ``count`` entries of the moving journal to their segments."""
        journal = self._moving
        assert journal is not None, "there is a journal to move"
        while count > 0 and not journal.is_moved:
            number = next(iter(journal.acks)) if journal.acks else next(iter(journal.places))
            segment = self.segments[number]
            if not segment.live_count and not segment.owed:
                self._drop(segment)
                count -= 1
                continue
            runs = merge_runs(journal.acks.get(number, ()), self.entries_per_segment)
            members = journal.places.get(number, {})
            chosen = dict(islice(members.items(), max(count - len(runs), 1)))
            publishes = self._reread(journal, chosen)
            self.files.append(segment, runs, publishes)
            journal.acks.pop(number, None)
            for seq_id in chosen:
                del members[seq_id]
            if not members:
                journal.places.pop(number, None)
            count -= len(runs) + len(chosen) + FILE_COST_ENTRIES
        if journal.is_moved and not journal.owed:
            self._moving = None
            self._moved.append((self._group_commit.open_generation, journal))
            # New segments must have their names, and deleted ones be gone, before this journal is. The file may be due.
            self._mark_directory()
            if self._is_durable:
                self._group_commit.mark_dirty(journal.file)
                journal.file.close()
            else:
                journal.file.abandon()

    def _reread(self, journal: Journal, chosen: Mapping[int, int]) -> list[Publish]:
        """Publish records of a journal, by seq id and place, as they go into a segment."""
        publishes: list[Publish] = []
        for place, piece in read_places(journal.file, journal.seed, list(chosen.values())):
            if piece is None:
                raise StorageError(f"{journal.path} is damaged at {place >> 24}: its checksum does not fit")
            kind = KIND_SHARED if place & PLACE_SHARED else KIND_EMBEDDED
            publishes.append(Publish(record_seq_id(piece), kind, bool(place & PLACE_PERSISTENT), piece[RECORD_BYTES:]))
        publishes.sort()
        return publishes

    def _drop(self, segment: Segment) -> None:
        """Forget a segment in which everything is settled, and delete its file."""
        number = segment.number
        had_file = segment.file_bytes > 0
        self.files.delete(segment)
        for journal in (self._journal, self._moving):
            if journal is not None:
                journal.forget_segment(number)
        del self.segments[number]
        self._emptied.discard(number)
        if had_file:
            # Not a promise, but once per segment it is cheap: else a crash could bring thousands of acked back.
            self._mark_directory()

    def _delete_finished(self, next_seq_id: int) -> None:
        """Delete segments in which everything is settled and to which nothing more will be appended."""
        if not self._emptied:
            # Carrying journals over drops segments, too.
            self._has_finished = False
            return
        tail = next_seq_id >> self._bits
        self._emptied = {number for number in self._emptied if not self.segments[number].live_count}
        finished = [number for number in self._emptied if number < tail and not self.segments[number].owed]
        self._has_finished = len(finished) > DELETIONS_MAX
        for number in finished[:DELETIONS_MAX]:
            self._drop(self.segments[number])

    def _delete_moved(self) -> None:
        """Delete journals whose entries are durable in the segments, the oldest first."""
        waits_for_sync = self.config.confirm_after_sync and self._is_durable
        durable = self._group_commit.durable_generation if waits_for_sync else ALL
        if self._moved and self._moved[0][0] <= durable:
            while self._moved and self._moved[0][0] <= durable:
                self.disk.unlink(self._moved.pop(0)[1].path)
            self.files.forget_synced()

    # -- what is live

    def is_live(self, seq_id: int) -> bool:
        if seq_id in self._pending:
            return True
        segment = self.segments.get(seq_id >> self._bits)
        return segment is not None and segment.has(seq_id)

    def count_live(self, first: int, end: int) -> int:
        pending = len(between(self._pending, first, end))
        return pending + sum([segment.count(first, end) for segment in self._segments_of(first, end)])

    def live(self, first: int, end: int) -> Iterator[int]:
        written = (
            seq_id
            for segment in self._segments_of(first, end)
            for seq_id in positions(segment.live_bits(first, end), segment.base)
        )
        pending = between(self._pending, first, end)
        return merge(written, pending) if pending else written

    def segment_end(self, seq_id: int) -> int:
        return (seq_id >> self._bits) + 1 << self._bits

    @property
    def end_seq_id(self) -> int:
        """First position behind the last segment."""
        return max(self.segments, default=-1) + 1 << self._bits

    def _segments_of(self, first: int, end: int) -> list[Segment]:
        """Segments that overlap [first, end), ascending."""
        lowest, behind = first >> self._bits, (end - 1 >> self._bits) + 1
        segments = self.segments
        if behind - lowest <= len(segments):
            return [segments[number] for number in range(lowest, behind) if number in segments]
        return [segments[number] for number in sorted(segments) if lowest <= number < behind]

    # -- reading

    def msg_ids(self, first: int, end: int) -> bytes:
        found = bytearray(MSG_ID_BYTES * (end - first))
        one_by_one = {seq_id: self._pending[seq_id].msg_id for seq_id in between(self._pending, first, end)}
        for segment in self._segments_of(first, end):
            bits = segment.live_bits(first, end)
            if not bits:
                continue
            in_journals = self._live_in_journals(segment, bits)
            if in_journals:
                one_by_one.update([(seq_id, paged.msg_id) for seq_id, paged in self._describe(segment, in_journals)])
                bits &= ~bits_of(in_journals, self.entries_per_segment - 1)
            if bits:
                self.files.copy_msg_ids(segment, bits, found, first)
        for seq_id, msg_id in one_by_one.items():
            at = (seq_id - first) * MSG_ID_BYTES
            found[at : at + MSG_ID_BYTES] = msg_id
        return bytes(found)

    def _live_in_journals(self, segment: Segment, bits: int) -> list[int]:
        """Which of the written entries with these bits are not in their segment's file yet; ascending."""
        journals = [journal for journal in (self._journal, self._moving) if journal is not None]
        members = [seq_id for journal in journals for seq_id in journal.places.get(segment.number, ())]
        if not members:
            return []
        live = set(positions(bits, segment.base))
        return sorted([seq_id for seq_id in members if seq_id in live])

    def entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        found: list[tuple[int, PagedMessage]] = []
        for segment in self._segments_of(first, end):
            if len(found) >= count_max:
                break
            bits = segment.live_bits(first, end)
            if bits:
                found += self._describe(segment, positions(bits, segment.base)[: count_max - len(found)])
        pending = between(self._pending, first, end)
        if pending:
            found += [(seq_id, self._paged_pending(seq_id)) for seq_id in pending[:count_max]]
            found.sort()
            del found[count_max:]
        return found

    def _paged_pending(self, seq_id: int) -> PagedMessage:
        message = self._pending[seq_id]
        return PagedMessage(message.msg_id, len(message.body), self._is_persistent(message))

    def _in_journals(self, seq_ids: Iterable[int]) -> tuple[list[tuple[Journal, dict[int, int]]], list[int]]:
        """Which of these written entries are in which journal, by place, and which are in segment files."""
        journals = [journal for journal in (self._journal, self._moving) if journal is not None]
        found: list[tuple[Journal, dict[int, int]]] = [(journal, {}) for journal in journals]
        rest: list[int] = []
        for seq_id in seq_ids:
            for journal, places in found:
                place = journal.find(seq_id)
                if place is not None:
                    places[place] = seq_id
                    break
            else:
                rest.append(seq_id)
        return [(journal, places) for journal, places in found if places], rest

    def _describe(self, segment: Segment, seq_ids: Sequence[int]) -> list[tuple[int, PagedMessage]]:
        """What the records of written live entries of one segment say; ascending."""
        in_journals, in_file = self._in_journals(seq_ids)
        found = self.files.describe(segment, in_file) if in_file else []
        for journal, places in in_journals:
            found += journal.describe(list(places))
        if in_journals:
            found.sort()
        return found

    def read(self, entries: Sequence[tuple[int, PagedMessage]]) -> list[bytes]:
        found: dict[int, bytes] = {}
        shared: dict[bool, list[tuple[int, MsgId]]] = {}
        embedded: dict[int, list[int]] = {}
        pending = self._pending
        for seq_id, paged in entries:
            if seq_id in pending:
                found[seq_id] = pending[seq_id].envelope()
                continue
            segment = self.segments[seq_id >> self._bits]
            if segment.is_shared(seq_id):
                shared.setdefault(not segment.is_transient(seq_id), []).append((seq_id, paged.msg_id))
            else:
                embedded.setdefault(segment.number, []).append(seq_id)
        for is_persistent, wanted in shared.items():
            envelopes = self.stores[is_persistent].read_many([msg_id for _, msg_id in wanted])
            found.update(zip([seq_id for seq_id, _ in wanted], envelopes, strict=True))
        for number, seq_ids in embedded.items():
            self._read_embedded(self.segments[number], sorted(seq_ids), found)
        return [found[seq_id] for seq_id, _ in entries]

    def _read_embedded(self, segment: Segment, seq_ids: Sequence[int], found: dict[int, bytes]) -> None:
        in_journals, in_file = self._in_journals(seq_ids)
        sources = [(journal.file, journal.seed, places) for journal, places in in_journals]
        if in_file:
            parsed = self.files.find(segment, in_file)
            sources.append((parsed.file, parsed.seed, {parsed.place(seq_id): seq_id for seq_id in in_file}))
        for file, seed, places in sources:
            for place, piece in read_places(file, seed, list(places)):
                found[places[place]] = checked_record(piece, places[place], file.path)[RECORD_BYTES:]

    # -- end

    def drop_transient(self) -> None:
        for seq_id in [seq_id for seq_id, message in self._pending.items() if not self._is_persistent(message)]:
            self._cancel(seq_id)
        for segment in list(self.segments.values()):
            bits = segment.live & segment.transient
            if bits:
                self._settle_bits(segment, bits, [0, 0, 0, 0], is_sized=False)

    def close(self, next_seq_id: int) -> None:
        if self._group_commit.failure is not None:
            raise StorageError(f"{self.directory} cannot be closed cleanly: {self._group_commit.failure}")
        self._owed.give_back(ALL)
        self.flush(next_seq_id)
        while self._has_finished:
            self._delete_finished(next_seq_id)
        for _ in range(2):
            if self._moving is None and self._journal is not None:
                self._begin_move()
            if self._moving is not None:
                self._move(ALL)
        self.files.close()
        self.files.sync_all()
        if self._moved:
            for _, journal in self._moved:
                journal.file.abandon()
                self.disk.unlink(journal.path)
            self._moved.clear()
            self.disk.sync_directory(self.directory)

    def terms(self) -> bytes:
        is_moved = self._journal is None and self._moving is None and not self._moved
        assert is_moved, "terms follow upon close, when all is in the segments"
        return pack_terms(self.entries_per_segment, self.next_journal, list(self.segments.values()))

    def delete(self, directory: str) -> Iterator[None]:
        shared = [segment for segment in self.segments.values() if segment.live & segment.shared]
        journals, owed = (self._journal, self._moving), self._owed.take_all()
        self.abandon()
        self._journal, self._moving = journals
        return self._release_in_pieces(shared, owed, directory) if shared or owed else iter(())

    def _release_in_pieces(self, segments: Sequence[Segment], owed: OwedRecords, directory: str) -> Iterator[None]:
        self.files.directory = directory
        for journal in (self._journal, self._moving):
            if journal is not None:
                journal.reopen(self.disk, directory)
        yield from owed.give_back_in_pieces()
        for segment in segments:

            def release(seq_ids: Sequence[int], segment: Segment = segment) -> None:
                found = self._describe(segment, seq_ids)
                self._release(segment, {seq_id: paged.msg_id for seq_id, paged in found})

            yield from release_in_pieces(positions(segment.live & segment.shared, segment.base), release)
        self.abandon()

    def abandon(self) -> None:
        self.files.abandon()
        for journal in (self._journal, self._moving, *[journal for _, journal in self._moved]):
            if journal is not None:
                journal.file.abandon()
        self._journal = self._moving = None
        self._moved.clear()
        self.segments.clear()
        self._emptied.clear()
        self._has_finished = False
        self._pending.clear()
        self._envelopes.clear()
        self._settled.clear()
        self._owed.take_all()

    @property
    def memory_bytes(self) -> int:
        size = sum([segment.memory_bytes for segment in self.segments.values()]) + getsizeof(self.segments)
        size += sum([journal.memory_bytes for journal in (self._journal, self._moving) if journal is not None])
        size += self.files.memory_bytes + sum([len(message.body) for message in self._pending.values()])
        return size + getsizeof(self._pending) + getsizeof(self._settled)

    def check_invariants(self) -> None:
        journals = [journal for journal in (self._journal, self._moving) if journal is not None]
        settled = {seq_id for first, count in self._settled for seq_id in range(first, first + count)}
        in_journals: set[int] = set()
        for journal in journals:
            for number, members in journal.places.items():
                assert members, "a journal names only segments of which it has something"
                assert not in_journals & members.keys(), "an entry is in one journal"
                in_journals |= members.keys()
                live = set(positions(self.segments[number].live, self.segments[number].base))
                assert members.keys() <= live | settled, "what a journal remembers is live, or its ack is on its way"
            for number in journal.acks:
                assert self.segments[number].file_bytes, "only entries of a segment file need an ack there"
        for number, segment in self.segments.items():
            assert segment.number == number, "a segment is found by its number"
            segment.check_invariants()
            in_file = set(positions(segment.live, segment.base)) - in_journals
            assert not in_file or segment.file_bytes, "a live entry is in a journal or in its segment's file"
            assert segment.live_count or number in self._emptied, "a segment without live entries will be deleted"
        for seq_id, message in self._pending.items():
            segment_of = self.segments.get(seq_id >> self._bits)
            assert segment_of is None or not segment_of.has(seq_id), f"{message} is pending or written, not both"
        assert not self._envelopes.keys() - self._pending.keys(), "encoded forms belong to pending messages"
        numbers = [journal.number for _, journal in self._moved] + [journal.number for journal in reversed(journals)]
        assert numbers == sorted(numbers), "journals are deleted in the order they were written"
        self.files.check_invariants()
        self._owed.check_invariants(self.segments)
