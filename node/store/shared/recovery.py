"""Opening a shared store after a crash: scan all files, count references anew, cut what is torn, report damage.

The indexes say which messages are referenced and how often; a record that no index names is garbage, and so is a second
copy. In the order of their numbers the files are scanned by pieces, mended and synced: what this process calls
recovered must not depend on what the process before it had not synced. It is done in steps (`node.store.steps`). A file
that stays as it is:

- a torn end is cut off; zeros between records become a hole, so that the file is one chain again;
- noted ranges become holes (`node.store.shared.compaction.hole_filling`), and then the note is removed;
- a damaged place is copied to ``quarantine/`` and reported, and the file is frozen: compaction keeps away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from node.ids import MsgId
from node.store.disk.disk import DiskFile
from node.store.formats.record import (
    HEADER_BYTES,
    HOLES_FORMAT,
    NEVER_WRITTEN,
    RECORD_HEADER_BYTES,
    SHARED_STORE_FORMAT,
    Damage,
    pack_hole,
)
from node.store.shared.compaction.hole_filling import erase_ranges, read_durable_note
from node.store.shared.config import quarantine
from node.store.shared.location_table import LocationTable
from node.store.shared.store_file import scan_store_file
from node.store.shared.store_files import TEMPORARY_SUFFIX, FileSummary, StoreFiles
from node.store.steps import Steps, sync_job

#: A step of a scan checks so many records, or as many as make up so many bytes: two milliseconds or so.
RECORDS_PER_STEP = 256
BYTES_PER_STEP = 1 << 20

#: Messages of which one step looks whether they were found: less than a millisecond.
COMPARED_PER_STEP = 1024
#: So much of a damaged place is kept for inspection.
QUARANTINE_BYTES_MAX = 1 << 20

#: Hears how many bytes of how many have been scanned.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class StoreRecovery:
    """What opening a store found."""

    #: True after a clean stop: nothing was scanned.
    clean: bool = False
    messages: int = 0
    #: Unfinished writes cut off.
    torn: int = 0
    #: ``file: offset, size`` of each damaged place.
    corrupt: list[str] = field(default_factory=list)
    #: Messages that indexes name and no file has: those entries have no reference, whoever writes the messages later.
    unfound: set[MsgId] = field(default_factory=set)
    #: Why the tables of a clean stop, if any, were not used.
    dirty_because: str = ""


def numbers_on_disk(files: StoreFiles, suffix: str) -> list[int]:
    """Numbers of the files with this suffix, ascending."""
    stems = [name[: -len(suffix)] for name in files.disk.list(files.directory) if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def remove_temporary_files(files: StoreFiles) -> None:
    """Remove what compaction, or a clean stop, did not finish."""
    for name in files.disk.list(files.directory):
        if name.endswith(TEMPORARY_SUFFIX):
            files.disk.unlink(f"{files.directory}/{name}")


class StoreScan:
    """One pass over all files; fills the tables."""

    def __init__(
        self,
        files: StoreFiles,
        table: LocationTable,
        references: Mapping[MsgId, int],
        report: StoreRecovery,
        on_progress: Progress,
    ) -> None:
        self._files = files
        self._table = table
        self._references = references
        self._report = report
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = 0

    def run(self) -> Steps[None]:
        """Scan everything. Raises `StorageError` if the disk refuses; damage is reported, not raised."""
        files = self._files
        remove_temporary_files(files)
        numbers = numbers_on_disk(files, SHARED_STORE_FORMAT.suffix)
        notes = numbers_on_disk(files, HOLES_FORMAT.suffix)
        self._total_bytes = sum(files.handle(number).size for number in numbers)
        for number in numbers:
            yield from self._scan_file(number, read_durable_note(files, number) if number in notes else [])
        for number in notes:
            files.disk.unlink(files.note_path(number))
        self._report.messages = len(self._table)
        yield from self._find_unfound()
        sync_names = sync_job([files.disk.directory(files.directory)])
        if numbers:
            yield sync_names
        else:
            # A new store is opened at once.
            sync_names()

    def _find_unfound(self) -> Steps[None]:
        if len(self._table) == len(self._references):
            return
        for number, msg_id in enumerate(self._references, 1):
            if msg_id not in self._table:
                self._report.unfound.add(msg_id)
            if number % COMPARED_PER_STEP == 0:
                yield None

    def _read(self, size: int) -> None:
        self._done_bytes += size
        self._on_progress(min(self._done_bytes, self._total_bytes), self._total_bytes)

    def _scan_file(self, number: int, noted: Sequence[tuple[int, int]]) -> Steps[None]:
        files, table, report, references = self._files, self._table, self._report, self._references
        path, file = files.path(number), files.handle(number)
        size = file.size
        problem = SHARED_STORE_FORMAT.problem(file.pread(HEADER_BYTES, 0), number, 0)
        if problem and problem != NEVER_WRITTEN:
            report.corrupt.append(f"{path}: {problem}; its records are checked one by one")
        #: A noted range of which the end was lost is cut off like any torn end.
        end = min([max(size, HEADER_BYTES), *(start for start, stop in noted if stop > size)])
        noted = [(start, stop) for start, stop in noted if stop <= size]
        summary = FileSummary()
        gaps: list[Damage] = []
        records, step_at = 0, HEADER_BYTES
        for found in scan_store_file(file, noted, self._read):
            records += 1
            if records == RECORDS_PER_STEP or found.offset - step_at >= BYTES_PER_STEP:
                records, step_at = 0, found.offset
                yield None
            if isinstance(found, Damage):
                if found.offset < end:
                    end = self._damaged(number, file, found, end, summary, gaps)
                continue
            count = references.get(found.msg_id, 0)
            if count and found.offset < end and found.msg_id not in table:
                table.add(found.msg_id, number, found.offset, found.size, count)
                summary.valid_bytes += RECORD_HEADER_BYTES + found.size
        if problem:
            file.pwrite(SHARED_STORE_FORMAT.header(number, 0), 0)
        erase_ranges(file, noted)
        for gap in gaps:
            file.pwrite(pack_hole(gap.size), gap.offset)
        if end < size:
            file.truncate(end)
        yield sync_job([file])
        summary.record_bytes = end - HEADER_BYTES
        files.adopt(number, summary)

    def _damaged(
        self, number: int, file: DiskFile, damage: Damage, end: int, summary: FileSummary, gaps: list[Damage]
    ) -> int:
        """Count, keep and report; returns where the file ends now."""
        report = self._report
        is_last = damage.offset + damage.size == file.size
        if damage.torn:
            report.torn += 1
            if is_last:
                self._quarantine(number, file, damage)
                return min(end, damage.offset)
            if damage.size >= RECORD_HEADER_BYTES:
                gaps.append(damage)
            else:
                summary.is_frozen = True
            return end
        report.corrupt.append(f"{self._files.path(number)}: damaged at {damage.offset}, {damage.size} bytes")
        self._quarantine(number, file, damage)
        if is_last:
            # New records stand behind the last whole one, never behind damage; the quarantine has what was there.
            return min(end, damage.offset)
        summary.is_frozen = True
        return end

    def _quarantine(self, number: int, file: DiskFile, damage: Damage) -> None:
        piece = file.pread(min(damage.size, QUARANTINE_BYTES_MAX), damage.offset)
        if piece.strip(b"\0"):
            quarantine(self._files.disk, self._files.directory, f"{number}.{damage.offset}.bad", piece)
