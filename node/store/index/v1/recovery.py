"""Reading an index of version 1 back: what is live in its files. `index` beside this says what holds after a crash.

After a crash everything is made as a clean stop leaves it: what only journals had is appended to the segments, files
with unreadable pieces are written anew without them (the pieces go to ``quarantine/``), all is synced, and only then
the journals are deleted. A crash in the middle finds the journals again. It is cut into steps (`node.store.steps`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain, islice

from node.errors import StorageError
from node.ids import MsgId, OriginId, split_msg_id
from node.store.disk.disk import DiskFile, write_durably
from node.store.formats.record import HEADER_BYTES, JOURNAL_FORMAT, SEGMENT_FORMAT
from node.store.index.held_references import HeldReferences, takes_over
from node.store.index.index import ENTRIES_PER_STEP, Progress, RecoveredIndex, RecoveryReport
from node.store.index.live_bits import runs
from node.store.index.v1.format import (
    KIND_EMBEDDED,
    KIND_SHARED,
    RECORD_BYTES,
    Publish,
    checksum_seed,
    files_of,
    pack_publishes,
    place_offset,
    place_size,
    read_places,
    record_seq_id,
)
from node.store.index.v1.index import QueueIndexV1
from node.store.index.v1.scan import (
    JournalContents,
    Problem,
    SegmentContent,
    StoredEntry,
    journals_in_steps,
    segment_in_steps,
)
from node.store.index.v1.segment import SegmentV1
from node.store.index.v1.terms import unpack_terms
from node.store.shared.config import quarantine
from node.store.steps import Steps, fetch_ahead, sync_job

#: Entries of journals that a step appends to a segment: some milliseconds, and one handle that waits for its sync.
APPENDED_PER_STEP = 2048


def recover_v1(
    index: QueueIndexV1,
    report: RecoveryReport,
    terms: bytes | None,
    *,
    store_is_damaged: bool,
    held: HeldReferences | None = None,
    unfound: Collection[MsgId] = (),
    progress: Progress = lambda _done, _total: None,
) -> Steps[RecoveredIndex]:
    """Fill a new index from its files.

    ``terms``: what `QueueIndexV1.terms` gave at a clean stop; with them nothing is scanned, and the report does not
    know the bytes of the bodies. ``store_is_damaged``: the shared store lost something, so that a missing message is
    damage. ``held``: the references that what is found still has; the others take one, and are added. ``None``: all
    have theirs, but for messages ``unfound`` when they were counted. ``progress`` is told of each segment of a scan.
    Raises `StorageError` if the disk refuses; damage is reported, not raised.
    """
    if terms is not None and _recover_clean(index, report, terms):
        return RecoveredIndex(index.live_entries.end_seq_id, {})
    report.clean = False
    recovery = _DirtyRecovery(index, report, store_is_damaged, held, unfound)
    end_seq_id = yield from recovery.run(progress)
    return RecoveredIndex(end_seq_id, recovery.origins)


def _recover_clean(index: QueueIndexV1, report: RecoveryReport, terms: bytes) -> bool:
    """False if the files are not those that the terms speak of."""
    unpacked = unpack_terms(terms, index.live_entries.segment_entries)
    if unpacked is None:
        report.damaged(f"{index.files.directory}: the terms are damaged or of another size of segments; scanning")
        return False
    next_journal, segments = unpacked
    expected = {segment.number: segment.file_bytes for segment in segments if segment.file_bytes}
    names = index.files.disk.list(index.files.directory)
    found: dict[int, int] = {}
    for number in files_of(names, SEGMENT_FORMAT):
        file = index.files.disk.open(index.files.path(number))
        found[number] = file.size
        file.close()
    if found != expected or files_of(names, JOURNAL_FORMAT):
        report.damaged(f"{index.files.directory}: the files are not those that the clean stop left; scanning")
        return False
    index.adopt(next_journal, segments)
    for segment in segments:
        # Their store was emptied: there is nothing to give back.
        segment.shared_bits &= ~segment.transient_bits
        report.transient += segment.transient_bits.bit_count()
    index.drop_transient()
    report.messages += sum(segment.live_count for segment in segments)
    return True


class _DirtyRecovery:
    """One pass over all files of one queue after a crash."""

    def __init__(
        self,
        index: QueueIndexV1,
        report: RecoveryReport,
        store_is_damaged: bool,
        held: HeldReferences | None,
        unfound: Collection[MsgId],
    ) -> None:
        self._index = index
        self._store = index.live_entries.stores[True]
        self._held = held
        self._unfound = unfound
        self._disk = index.files.disk
        self._directory = index.files.directory
        self._report = report
        self._store_is_damaged = store_is_damaged
        self._segments: list[SegmentV1] = []
        #: Highest id of each origin among the live messages.
        self.origins: dict[OriginId, MsgId] = {}
        #: Files in which an earlier process, or this recovery, may have written what no sync has covered.
        self._unsynced: dict[str, None] = {}
        #: A file was begun anew, and a crash may still find the one that had its name.
        self._has_begun_anew = False

    def run(self, progress: Progress) -> Steps[int]:
        index, disk, directory = self._index, self._disk, self._directory
        entries = index.live_entries.segment_entries
        names = disk.list(directory)
        for name in names:
            if name.endswith(SEGMENT_FORMAT.suffix + ".tmp"):
                disk.unlink(f"{directory}/{name}")
        journals = yield from journals_in_steps(disk, directory, index.files.queue_id, entries, self._note)
        in_files = files_of(names, SEGMENT_FORMAT)
        numbers = sorted(journals.mentioned.keys() | set(in_files))
        for done, number in enumerate(numbers, 1):
            if done < len(numbers):
                fetch_ahead(disk, index.files.path(numbers[done]))
            content = SegmentContent(file_end=number * entries)
            if number in in_files:
                content = yield from segment_in_steps(disk, directory, number, index.files.queue_id, self._note)
            yield from self._segment(number, content, journals)
            yield from self._sync()
            progress(done, len(numbers))
        # Names of new segments, before the journals go.
        yield sync_job([disk.directory(directory)])
        journal_numbers = files_of(names, JOURNAL_FORMAT)
        for number in journal_numbers:
            disk.unlink(f"{directory}/{number}{JOURNAL_FORMAT.suffix}")
        disk.sync_directory(directory)
        index.adopt(max(journal_numbers, default=-1) + 1, self._segments)
        return (max(numbers, default=-1) + 1) * entries

    def _sync(self) -> Steps[None]:
        """Through handles of its own: a round of the group commit may be syncing the same files right now, and is not
        done because it has begun."""
        files: list[DiskFile] = []
        try:
            files += map(self._disk.open, self._unsynced)
            self._unsynced.clear()
            # The name first: once the length of a file was noted, a shorter one under its name would pass for damage.
            names = [self._disk.directory(self._directory)] if self._has_begun_anew else []
            self._has_begun_anew = False
            if files:
                yield sync_job([*names, *files])
        finally:
            for file in files:
                file.close()

    def _note(self, problem: Problem) -> None:
        if problem.torn and problem.path not in self._report.short_files:
            # Zeros are the unwritten end of a file or a hole: nothing can be said of what should be there.
            self._report.torn += bool(problem.data.strip(b"\0"))
            return
        self._report.damaged(f"{problem.path}: {problem.description}")
        if self._held is not None:
            self._held.distrust()
        file_name = problem.path.rpartition("/")[2]
        place = problem.description.rpartition(" at ")[2].split(",")[0]
        quarantine(self._disk, self._directory, f"{file_name}.{place if place.isdigit() else 0}.bad", problem.data)

    def _segment(self, number: int, content: SegmentContent, journals: JournalContents) -> Steps[None]:
        index, entries = self._index, self._index.live_entries.segment_entries
        from_journals = journals.publishes.get(number, {})
        in_file: dict[int, StoredEntry] = {}
        settled: list[int] = []
        for done, (seq_id, entry) in enumerate(content.live.items(), 1):
            if not done % ENTRIES_PER_STEP:
                yield None
            if seq_id // entries != number:
                raise StorageError(f"{index.files.path(number)} was written with segments of another size")
            moved = from_journals.get(seq_id)
            if journals.mentions(seq_id) and (moved is None or not _is_same(moved, entry)):
                settled.append(seq_id)
                continue
            # What was moved already is not moved again.
            from_journals.pop(seq_id, None)
            if self._survives(entry):
                in_file[seq_id] = entry
            else:
                settled.append(seq_id)
        added = {seq_id: entry for seq_id, entry in from_journals.items() if self._survives(entry)}
        path = index.files.path(number)
        if not in_file and not added:
            self._disk.unlink(path)
            return
        segment = SegmentV1(number, entries)
        _count(segment, in_file.values())
        _count(segment, added.values())
        self._segments.append(segment)
        for done, entry in enumerate(chain(in_file.values(), added.values()), 1):
            if not done % ENTRIES_PER_STEP:
                yield None
            self._report.body_bytes += entry.body_bytes
            origin = split_msg_id(entry.msg_id)[0]
            self.origins[origin] = max(self.origins.get(origin, entry.msg_id), entry.msg_id)
        self._report.messages += segment.live_count
        if content.is_bad:
            self._write_anew(segment, in_file, content.data)
        else:
            segment.file_bytes, segment.file_end = len(content.data), content.file_end
            segment.is_written_once = content.is_written_once
            if in_file:
                # An earlier process may have died before its group commit: what we now call recovered must be safe.
                self._unsynced[path] = None
            elif content.data:
                # Begun anew by what is added, as another file: a crash could leave that with the rest of this one.
                self._disk.unlink(path)
                self._has_begun_anew = True
                segment.file_bytes, segment.file_end, settled = 0, number * entries, []
        if settled and not content.is_bad:
            index.files.append(segment, runs(sorted(settled)), [])
            self._unsynced[path] = None
        if added:
            yield from self._add(segment, added)

    def _add(self, segment: SegmentV1, added: Mapping[int, StoredEntry]) -> Steps[None]:
        """Append what only journals had, in pieces: after a crash in between, those that were moved are known."""
        rest = iter(sorted(added))
        while piece := list(islice(rest, APPENDED_PER_STEP)):
            self._index.files.append(segment, [], self._publishes_of({seq_id: added[seq_id] for seq_id in piece}))
            self._unsynced[self._index.files.path(segment.number)] = None
            yield None

    def _survives(self, entry: StoredEntry) -> bool:
        if not entry.persistent:
            self._report.transient += 1
            return False
        if entry.is_shared and not self._takes_over(entry):
            if self._store_is_damaged:
                self._report.damaged(
                    f"{self._directory}: seq id {entry.seq_id}: message {entry.msg_id.hex()} is not in the shared store"
                )
            else:
                self._report.torn += 1
            return False
        return True

    def _takes_over(self, entry: StoredEntry) -> bool:
        return takes_over(self._held, self._unfound, self._index.version, entry.seq_id, entry.msg_id, self._store)

    def _write_anew(self, segment: SegmentV1, in_file: Mapping[int, StoredEntry], data: bytes) -> None:
        """Replace a file that has unreadable pieces by one with its live entries only."""
        number = segment.number
        publishes: list[Publish] = []
        for seq_id, entry in sorted(in_file.items()):
            start = place_offset(entry.place)
            payload = data[start + RECORD_BYTES : start + place_size(entry.place)]
            publishes.append(Publish(seq_id, _kind(entry), entry.persistent, payload))
            segment.file_end = seq_id + 1
        parts = [SEGMENT_FORMAT.header(number, self._index.files.queue_id)]
        pack_publishes(publishes, checksum_seed(SEGMENT_FORMAT, number), HEADER_BYTES, parts)
        content = b"".join(parts)
        path = self._index.files.path(number)
        write_durably(self._disk, path, content)
        # For who keeps durable lengths: under this name it has not been synced.
        self._unsynced[path] = None
        segment.file_bytes = len(content)

    def _publishes_of(self, entries: Mapping[int, StoredEntry]) -> list[Publish]:
        """Records of journals, as they go into a segment."""
        by_journal: dict[int, list[int]] = {}
        for entry in entries.values():
            by_journal.setdefault(entry.journal, []).append(entry.place)
        publishes: list[Publish] = []
        for number, places in by_journal.items():
            file = self._disk.open(f"{self._directory}/{number}{JOURNAL_FORMAT.suffix}")
            try:
                for _, piece in read_places(file, checksum_seed(JOURNAL_FORMAT, number), places):
                    if piece is None:
                        raise StorageError(f"{file.path} changed while it was read")
                    entry = entries[record_seq_id(piece)]
                    publishes.append(Publish(entry.seq_id, _kind(entry), entry.persistent, piece[RECORD_BYTES:]))
            finally:
                file.close()
        publishes.sort()
        return publishes


def _kind(entry: StoredEntry) -> int:
    return KIND_SHARED if entry.is_shared else KIND_EMBEDDED


def _is_same(one: StoredEntry, other: StoredEntry) -> bool:
    """True if the second is a copy of the first."""
    return one[:5] == other[:5]


def _count(segment: SegmentV1, entries: Iterable[StoredEntry]) -> None:
    live = shared = 0
    for entry in entries:
        bit = 1 << entry.seq_id - segment.base
        live |= bit
        if entry.is_shared:
            shared |= bit
    segment.add(live, shared, 0)
