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

**Memory.** What is live and what is owed is kept in `node.store.index.live_entries`, at a bit for each entry or less.
Beside it an entry that is still in a journal costs about 110 bytes; the last two segments read 28 bytes an entry.

**Purge.** `settle_range` without sizes reads nothing; references to shared stores are given back later
(`node.store.index.v1.owed_records`).

Deliveries are not recorded, as since RabbitMQ 3.10: what was delivered is known for the queue as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from node.errors import DiskFullError, StorageError
from node.ids import MsgId
from node.message import Message
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.index.held_references import HeldReferences
from node.store.index.index import PagedMessage, Range
from node.store.index.live_bits import bits_of, by_segment, positions
from node.store.index.live_entries import LiveEntries, put_msg_id
from node.store.index.owed_references import ALL, OwedReferences
from node.store.index.v1.format import (
    KIND_EMBEDDED,
    KIND_SHARED,
    RECORD_BYTES,
    SHARED_PAYLOAD,
    Publish,
    checked_record,
    read_places,
)
from node.store.index.v1.journal import Journal
from node.store.index.v1.journals import Journals
from node.store.index.v1.owed_records import OwedInFile, OwedInJournal
from node.store.index.v1.segment import SegmentV1
from node.store.index.v1.segment_files import SegmentFilesV1
from node.store.index.v1.terms import pack_terms
from node.store.shared.config import StoreConfig
from node.store.shared.port import Releases, SharedStore, release_in_pieces, release_references, try_in_pieces

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
        stores = {True: persistent_store, False: transient_store}
        self._group_commit = group_commit
        self._embed_below_bytes = config.embed_below_bytes
        self.files = SegmentFilesV1(disk, directory, queue_id, group_commit, is_durable=is_durable)
        #: Recovery fills it.
        self.live_entries: LiveEntries[SegmentV1] = LiveEntries(
            config.v1_segment_entries, stores, is_durable=is_durable
        )
        self._owed = OwedReferences(stores)
        self.journals = Journals(self.files, self.live_entries, self._owed, config)
        #: There are more finished segments than one flush deletes.
        self._has_finished = False

    def adopt(self, next_journal: int, segments: Iterable[SegmentV1]) -> None:
        """Take over what recovery found; everything is in segment files."""
        self.journals.next_number = next_journal
        for segment in segments:
            self.live_entries.add_segment(segment)

    # -- collecting

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None = None) -> None:
        self.live_entries.publish(messages, envelopes)

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        self.live_entries.settle(seq_ids, messages)

    def settle_range(self, first: int, end: int, keep: Collection[int] = (), *, is_sized: bool = True) -> Range:
        total = [0, 0, 0, 0]
        self.live_entries.cancel_range(first, end, keep, total)
        for segment, bits in self.live_entries.chosen(first, end, keep):
            if is_sized:
                self.live_entries.settle_read(segment, bits, self._describe, total)
            else:
                self._settle_unread(segment, bits, total)
        return Range(*total)

    def _settle_unread(self, segment: SegmentV1, bits: int, total: list[int]) -> None:
        owed = self.live_entries.settle_unread(segment, bits, total)
        for journal in self.journals.open if owed else ():
            there = journal.owe(segment.number, owed)
            if there:
                owed &= ~there
                # It cannot go before, and the next one will be full some time.
                self._owed.owe(OwedInJournal(journal), is_next=True)
        if owed:
            segment.owed_bits |= owed
            self._owed.owe(OwedInFile(self.files, segment))

    @property
    def has_unflushed(self) -> bool:
        entries = self.live_entries
        return bool(entries.pending or entries.settled or self._has_finished or self._owed)

    @property
    def has_unflushed_publishes(self) -> bool:
        return bool(self.live_entries.pending)

    def is_unflushed(self, seq_id: int) -> bool:
        return seq_id in self.live_entries.pending

    # -- writing

    def flush(self, next_seq_id: int) -> int:
        """After a `DiskFullError` everything that was not written is still collected."""
        # Both make room, so they come before anything that a full disk may refuse.
        self._owed.give_back()
        self.journals.delete_moved()
        entries = self.live_entries
        pending = sorted(entries.pending)
        try:
            written = self._write(pending) if entries.settled or pending else 0
        except DiskFullError:
            # Acks take little space, and what they finish makes room.
            self._write(())
            self._delete_finished(next_seq_id)
            raise
        # A full disk does not hinder publishing more than it must: what cannot be moved now is moved later.
        with suppress(DiskFullError):
            self.journals.move_some()
        self.journals.delete_moved()
        self._delete_finished(next_seq_id)
        return written

    def _write(self, pending: Sequence[int]) -> int:
        """Write the acks that were collected, and these pending messages. Returns how many of them are persistent."""
        entries = self.live_entries
        # Before references are taken: a full disk may refuse it.
        self.journals.begin()
        if self._owed:
            self._give_back_at(pending)
        publishes, shared, transient = self._publishes(pending) if pending else ([], [], [])
        taken = self._write_shared(shared, transient) if shared else ()
        persistent = len(pending) - len(transient)
        try:
            self.journals.write(entries.settled, publishes, is_awaited=persistent > 0)
        except StorageError:
            for store, msg_ids in taken:
                store.release_many(msg_ids)
            raise
        entries.settled.clear()
        if pending:
            self._add(pending, shared, transient)
            entries.pending.clear()
            entries.envelopes.clear()
        return persistent

    def _give_back_at(self, seq_ids: Sequence[int]) -> None:
        """These positions, ascending, are used again: a segment's file may get a second record about them."""
        entries = self.live_entries
        for number, members in by_segment(seq_ids, entries.segment_bits):
            segment = entries.segments.get(number)
            if segment is not None and segment.owed_bits:
                again = segment.owed_bits & bits_of(members, entries.segment_mask)
                if again:
                    self._owed.give_back_from(OwedInFile(self.files, segment), positions(again, segment.base))

    def _publishes(self, pending: Sequence[int]) -> tuple[list[Publish], list[int], list[int]]:
        """Records of the pending messages at these positions; which of them go to a shared store, which are
        transient."""
        messages, envelopes = self.live_entries.pending, self.live_entries.envelopes
        embed_below_bytes, is_durable = self._embed_below_bytes, self.files.is_durable
        publishes: list[Publish] = []
        shared: list[int] = []
        transient: list[int] = []
        for seq_id in pending:
            message = messages[seq_id]
            size = len(message.body)
            is_persistent = is_durable and message.persistent
            if not is_persistent:
                transient.append(seq_id)
            if size + len(message.properties) < embed_below_bytes:
                envelope = envelopes.get(seq_id) or message.envelope()
                publishes.append(Publish(seq_id, KIND_EMBEDDED, is_persistent, envelope))
            else:
                shared.append(seq_id)
                payload = SHARED_PAYLOAD.pack(message.msg_id, size)
                publishes.append(Publish(seq_id, KIND_SHARED, is_persistent, payload))
        return publishes, shared, transient

    def _write_shared(self, shared: Sequence[int], transient: Collection[int]) -> list[tuple[SharedStore, list[MsgId]]]:
        """Hand big messages to the shared stores. Returns the references taken."""
        entries = self.live_entries
        stored: dict[bool, list[tuple[MsgId, bytes]]] = {}
        of_transient = frozenset(transient)
        for seq_id in shared:
            message = entries.pending[seq_id]
            envelope = entries.envelopes.get(seq_id) or message.envelope()
            stored.setdefault(seq_id not in of_transient, []).append((message.msg_id, envelope))
        taken: list[tuple[SharedStore, list[MsgId]]] = []
        for is_persistent, items in stored.items():
            store = entries.stores[is_persistent]
            try:
                store.write_batch(items)
            except StorageError:
                for earlier, msg_ids in taken:
                    earlier.release_many(msg_ids)
                raise
            taken.append((store, [msg_id for msg_id, _ in items]))
        return taken

    def _add(self, written: Sequence[int], shared: Sequence[int], transient: Sequence[int]) -> None:
        """These positions, ascending, are in the journal."""
        entries = self.live_entries
        bits = entries.segment_bits
        shared_of = dict(by_segment(shared, bits)) if shared else {}
        transient_of = dict(by_segment(transient, bits)) if transient else {}
        for number, members in by_segment(written, bits):
            segment = entries.segments.get(number)
            if segment is None:
                segment = SegmentV1(number, entries.segment_entries)
                entries.add_segment(segment)
            segment.add_members(members, shared_of.get(number, ()), transient_of.get(number, ()))

    def _delete_finished(self, next_seq_id: int) -> None:
        """Delete segments in which everything is settled and to which nothing more will be appended."""
        finished = [segment for segment in self.live_entries.finished(next_seq_id) if not segment.owed_bits]
        self._has_finished = len(finished) > DELETIONS_MAX
        for segment in finished[:DELETIONS_MAX]:
            self.journals.drop(segment)

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
        return self.live_entries.msg_ids(first, end, self._copy_msg_ids)

    def _copy_msg_ids(self, segment: SegmentV1, bits: int, target: bytearray, first: int) -> None:
        in_journals = self.journals.find_in(segment, bits)
        if in_journals:
            bits &= ~bits_of(in_journals, self.live_entries.segment_mask)
        if bits:
            self.files.copy_msg_ids(segment, bits, target, first)
        if in_journals:
            for seq_id, paged in self._describe(segment, in_journals):
                put_msg_id(target, seq_id - first, paged.msg_id)

    def entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        return self.live_entries.entries(first, end, count_max, self._describe)

    def _describe(self, segment: SegmentV1, seq_ids: Sequence[int]) -> list[tuple[int, PagedMessage]]:
        """What the records of written live entries of one segment say; ascending."""
        in_journals, in_file = self.journals.find(seq_ids)
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
        pending, segments, bits = self.live_entries.pending, self.live_entries.segments, self.live_entries.segment_bits
        for seq_id, paged in entries:
            if seq_id in pending:
                found[seq_id] = pending[seq_id].envelope()
                continue
            segment = segments[seq_id >> bits]
            if segment.is_shared(seq_id):
                shared.setdefault(not segment.is_transient(seq_id), []).append((seq_id, paged.msg_id))
            else:
                embedded.setdefault(segment.number, []).append(seq_id)
        self.live_entries.read_shared(shared, found)
        for number, seq_ids in embedded.items():
            self._read_embedded(segments[number], sorted(seq_ids), found)
        return [found[seq_id] for seq_id, _ in entries]

    def _read_embedded(self, segment: SegmentV1, seq_ids: Sequence[int], found: dict[int, bytes]) -> None:
        in_journals, in_file = self.journals.find(seq_ids)
        sources = [(journal.file, journal.seed, places) for journal, places in in_journals]
        if in_file:
            parsed = self.files.find(segment, in_file)
            sources.append((parsed.file, parsed.seed, {parsed.place(seq_id): seq_id for seq_id in in_file}))
        for file, seed, places in sources:
            for place, piece in read_places(file, seed, list(places)):
                found[places[place]] = checked_record(piece, places[place], file.path)[RECORD_BYTES:]

    # -- end

    def drop_transient(self) -> None:
        self.live_entries.cancel_transient()
        for segment in list(self.live_entries.segments.values()):
            if segment.transient_bits:
                self._settle_unread(segment, segment.transient_bits, [0, 0, 0, 0])

    def close(self, next_seq_id: int) -> None:
        if self._group_commit.failure is not None:
            raise StorageError(f"{self.files.directory} cannot be closed cleanly: {self._group_commit.failure}")
        self._owed.give_back(ALL)
        self.flush(next_seq_id)
        while self._has_finished:
            self._delete_finished(next_seq_id)
        self.journals.move_all()
        self.files.close()
        self.files.sync_all()
        self.journals.close()

    def terms(self) -> bytes:
        assert self.journals.is_empty, "terms follow upon close, when all is in the segments"
        entries = self.live_entries
        return pack_terms(entries.segment_entries, self.journals.next_number, list(entries.segments.values()))

    def delete(self, directory: str) -> Releases:
        named = [(segment, segment.shared_bits) for segment in self.live_entries.segments.values()]
        return self._forget_and_release(named, directory)

    def give_up(self, held: HeldReferences) -> Releases:
        named: list[tuple[SegmentV1, int]] = []
        for number, segment in self.live_entries.segments.items():
            transient = segment.shared_bits & segment.transient_bits
            held.hold(self.version, number, segment.shared_bits ^ transient)
            named.append((segment, transient))
        return self._forget_and_release(named, self.files.directory)

    def _forget_and_release(self, named: Sequence[tuple[SegmentV1, int]], directory: str) -> Releases:
        """The references of these entries, and those that are owed, are given back from files in ``directory``."""
        named = [(segment, bits) for segment, bits in named if bits]
        journals, owed = self.journals.open, self._owed.take_all()
        self.abandon()
        self.moved_to(directory)
        return self._release_in_pieces(named, journals, owed) if named or owed else iter(())

    def moved_to(self, directory: str) -> None:
        self.files.directory = directory

    def _release_in_pieces(
        self,
        named: Sequence[tuple[SegmentV1, int]],
        journals: Sequence[Journal],
        owed: OwedReferences,
    ) -> Releases:
        count_anew = self.live_entries.stores[True].count_anew
        try:
            if not (yield from try_in_pieces(partial(self.journals.reopen, journals), count_anew)):
                return
            yield from owed.give_back_in_pieces()
            for segment, bits in named:
                release = partial(self._release, segment)
                yield from release_in_pieces(positions(bits, segment.base), release, count_anew)
        finally:
            self.abandon()

    def _release(self, segment: SegmentV1, seq_ids: Sequence[int]) -> None:
        """Give back the references of these entries, ascending."""
        found = self._describe(segment, seq_ids)
        release_references(self.live_entries.stores, [(paged.persistent, paged.msg_id) for _, paged in found])

    def abandon(self) -> None:
        self.files.abandon()
        self.journals.abandon()
        self.live_entries.clear()
        self._owed.take_all()
        self._has_finished = False

    @property
    def memory_bytes(self) -> int:
        return self.live_entries.memory_bytes + self.journals.memory_bytes + self.files.memory_bytes

    def check_invariants(self) -> None:
        self.live_entries.check_invariants()
        self.journals.check_invariants()
        self.files.check_invariants()
        self._owed.check_invariants()
        for segment in self.live_entries.segments.values():
            assert not segment.owed_bits or self._owed.knows(OwedInFile(self.files, segment)), "it is known who owes"
