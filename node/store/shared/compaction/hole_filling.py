"""Compaction in place: live records from the end of a file move into holes near its start (mission S10, RabbitMQ 3.13).

A *hole* is a range without a live record; holes and live records alternate. ::

    survey    walk the file: live records and holes                           | steps of a hundred records
    note      N.holes lists every hole                                        | generation g1
    fill      last record -> first hole that it fits, again and again         | when g1 is durable; generation g2
    publish   remove the note; tables point to the copies (in steps);         | when g2 is durable; generation g3
              announce the cut
    cut       in pieces, until the file ends behind its last live record      | when g3 is durable

A record fits a hole if it fills it, or leaves room for the header of a *hole record* (`node.store.formats.record`): 12
bytes that say how many to skip, so that the file remains one chain. (The reference zeroes all holes first and lets its
scan look for the next record byte by byte; the header costs a write of 12 bytes instead of megabytes.) The pass ends
with the first record that fits no hole; if half of the file is garbage even then, the owner lets
`node.store.shared.compaction.merging` copy the rest.

The file is cut at *marks*: places where a record begins, which the survey notes about a megabyte apart. Filling keeps
them: what is left of a hole becomes a hole record up to the next mark in it, where the dead records stand as they did.
(What is one record longer than a megabyte, or one hole of an earlier pass, is cut off at once.)

**Invariant: what lies in a noted range is needed by nobody.** While the note is on disk, each live record has a whole
copy outside of all noted ranges: there it was when the note was written, and nothing outside is touched before the
note is gone for good. So a start that finds a note passes over its ranges, writes a hole record at the head of each,
and removes it; whether a copy in them was torn is not even looked at. And once the note is gone for good, every byte of
the file was synced, so that whatever does not fit its checksum is damage and is reported.

Tables are switched after g2 and the old copies cut off after g3 only. Reads never wait, for they use whichever copy the
tables name. A record settled meanwhile becomes garbage wherever it is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress

from node.errors import StorageError
from node.store.disk.disk import Cut, DiskFile, read_whole, sync_file
from node.store.formats.record import HEADER_BYTES, RECORD_HEADER_BYTES, pack_hole, pack_holes_note, unpack_holes_note
from node.store.shared.compaction.relocation import (
    STEP_BYTES,
    STEP_RECORDS,
    BrokenSourceError,
    Moves,
    Steps,
    checked_msg_id,
    copy_big_record,
    read_source,
    walk_through,
)
from node.store.shared.location_table import LocationTable
from node.store.shared.store_file import RECORD_BYTES_MIN, ChainWalk
from node.store.shared.store_files import StoreFiles

#: So many holes are tried for a record. Holes too small for any record are forgotten, so this many are rarely needed.
HOLES_TRIED_MAX = 64
#: Cut off at a time, where records allow: freeing so much takes the file system about half a millisecond.
CUT_BYTES = 1024 * 1024


class HoleFilling:
    """Compacts one file in place; a `node.store.shared.compaction.relocation.Compaction`."""

    def __init__(self, files: StoreFiles, table: LocationTable, number: int) -> None:
        self._files = files
        self._table = table
        self.number = number
        self.moved_bytes = 0
        self.is_done = False
        self._summary = files.summaries[number]
        self._summary.is_busy = True
        self._moves = Moves(files, table, number)
        #: Ends of the holes still to fill; a start moves when something was put there.
        self._hole_starts = array("I")
        self._hole_ends = array("I")
        #: Holes before this one are too small for anything.
        self._first_hole = 0
        #: Where the file will end.
        self._end = HEADER_BYTES
        #: Where it may end before, ascending.
        self._marks = array("I")
        self._is_filling = self._is_published = False
        self._wait_generation = 0
        #: Where to, while one is under way.
        self._cut: tuple[int, Cut] | None = None
        self._steps = self._run()

    def step(self) -> bool:
        files = self._files
        if not self._summary.valid_bytes:
            # Everything was settled meanwhile: the file goes, and its note after it.
            self._finish()
            return True
        if self._wait_generation:
            if not files.is_durable(self._wait_generation):
                if self._is_published and not self._moves.are_switched:
                    self._moves.switch(STEP_RECORDS)
                    return True
                return False
            self._wait_generation = 0
        return next(self._steps, True)

    @property
    def is_stuck(self) -> bool:
        """True if the pass did not help: the next record from the end fits no hole."""
        return self.is_done and 0 < self._summary.valid_bytes * 2 < self._summary.record_bytes

    def _run(self) -> Steps:
        """The steps in order."""
        files, number, summary = self._files, self.number, self._summary
        walk = ChainWalk(self._table, number, HEADER_BYTES + summary.record_bytes, CUT_BYTES)
        yield from walk_through(files, number, walk)
        if walk.is_broken or walk.live_bytes < summary.valid_bytes:
            raise BrokenSourceError(number)
        self._marks = walk.marks
        if len(walk.holes) > 2 or (walk.holes and walk.offsets and walk.holes[0] < walk.offsets[-1]):
            if not files.is_transient:
                self._write_note(walk.holes)
                yield True
            self._hole_starts, self._hole_ends = walk.holes[::2], walk.holes[1::2]
            self._is_filling = True
            yield from self._fill(walk)
            files.mark_dirty(self._file())
            self._wait_generation = files.open_generation
            yield True
            files.drop_note(number)
            files.mark_names_dirty()
            self._is_published = True
        self._end = max(self._end, walk.offsets[-1] + walk.sizes[-1] if walk.offsets else HEADER_BYTES)
        files.announce_cut(number, self._end)
        self._wait_generation = files.open_generation
        yield True
        while not self._moves.are_switched:
            self._moves.switch(STEP_RECORDS)
            yield True
        while self._marks and self._marks[-1] >= self._end + RECORD_HEADER_BYTES:
            yield from self._cut_to(self._marks.pop())
        yield from self._cut_to(self._end)
        files.mark_dirty(self._file())
        self._finish()

    def _cut_to(self, end: int) -> Steps:
        cut = self._files.begin_cut(self.number, end)
        self._cut = end, cut
        yield True
        while not cut.is_done:
            yield False
        self._cut = None
        self._files.end_cut(self.number, end, cut)

    def _write_note(self, holes: Sequence[int]) -> None:
        files = self._files
        note = files.disk.create(files.note_path(self.number))
        files.noted[self.number] = None
        try:
            note.pwrite(pack_holes_note(self.number, holes), 0)
        except StorageError:
            note.abandon()
            raise
        files.mark_dirty(note)
        files.mark_names_dirty()
        note.close()
        self._wait_generation = files.open_generation

    def _file(self) -> DiskFile:
        """The file, opened again if others took its place between two steps."""
        return self._files.handle(self.number)

    def _fill(self, walk: ChainWalk) -> Steps:
        file = self._file()
        offsets, sizes = walk.offsets, walk.sizes
        # Also of what was settled meanwhile, which is not moved.
        read = looked_at = 0
        while offsets:
            if read >= STEP_BYTES or looked_at >= STEP_RECORDS // 2:
                read = looked_at = 0
                # Not marked before the last step: a write would wait for an fsync of the same file.
                yield True
                file = self._file()
            offset, size = offsets[-1], sizes[-1]
            read += size
            looked_at += 1
            hole = self._hole_for(offset, size)
            if hole < 0:
                return
            target = self._hole_starts[hole]
            if size > STEP_BYTES:
                msg_id = yield from copy_big_record(self._files, self.number, offset, size, self._file, target)
                file = self._file()
            else:
                record = read_source(self._files, self.number, size, offset)
                msg_id = checked_msg_id(self.number, record)
                if not self._table.is_at(msg_id, self.number, offset):
                    offsets.pop()
                    sizes.pop()
                    continue
                file.pwrite(record, target)
            self._shorten(hole, size, file)
            self._moves.add(msg_id, self.number, offset, target)
            offsets.pop()
            sizes.pop()
            self.moved_bytes += size

    def _hole_for(self, offset: int, size: int) -> int:
        """The first hole before ``offset`` that a record fits; -1 if there is none."""
        starts, ends = self._hole_starts, self._hole_ends
        first, count = self._first_hole, len(self._hole_starts)
        while first < count and ends[first] - starts[first] < RECORD_BYTES_MIN:
            first += 1
        self._first_hole = first
        for hole in range(first, min(first + HOLES_TRIED_MAX, count)):
            if starts[hole] >= offset:
                break
            room = ends[hole] - starts[hole]
            if room == size or room >= size + RECORD_HEADER_BYTES:
                return hole
        return -1

    def _shorten(self, hole: int, size: int, file: DiskFile) -> None:
        """The first ``size`` bytes of a hole are taken; what is left is a hole record."""
        start = self._hole_starts[hole] = self._hole_starts[hole] + size
        self._end = max(self._end, start)
        if start < self._hole_ends[hole]:
            file.pwrite(pack_hole(self._next_start(hole) - start), start)

    def _next_start(self, hole: int) -> int:
        """Where something begins behind the hole record at the head of a hole: at a mark, or behind the hole."""
        mark = bisect_left(self._marks, self._hole_starts[hole] + RECORD_HEADER_BYTES)
        end = self._hole_ends[hole]
        return min(self._marks[mark], end) if mark < len(self._marks) else end

    def _finish(self) -> None:
        self.is_done = True
        self._files.set_free(self.number)

    def _wait_for_cut(self) -> None:
        """Whoever looks at the file next shall find its end where it stays."""
        if self._cut is not None:
            end, cut = self._cut
            with suppress(StorageError):
                self._files.end_cut(self.number, end, cut)

    def fail(self) -> None:
        self._wait_for_cut()
        if self._is_published:
            self._moves.switch(len(self._moves))
        elif not self._is_filling:
            with suppress(StorageError):
                self._files.drop_note(self.number)
        if self.number in self._files.noted:
            # What is in the holes nobody knows; the note stays and says so, until the store closes or starts.
            self._summary.is_frozen = True
        self._finish()

    def settle(self) -> None:
        self._wait_for_cut()
        files = self._files
        if self._is_published:
            self._moves.switch(len(self._moves))
        elif self._is_filling and self._summary.valid_bytes:
            erase_noted(files, self.number)
        else:
            files.drop_note(self.number)
        self._finish()


def erase_noted(files: StoreFiles, number: int) -> None:
    """Make every noted range a hole again, durably, and remove the note, whose name is the caller's to sync. Raises
    `StorageError`."""
    ranges = read_durable_note(files, number)
    file = files.handle(number)
    erase_ranges(file, ranges)
    file.sync()
    files.drop_note(number)


def read_durable_note(files: StoreFiles, number: int) -> list[tuple[int, int]]:
    """The ranges that a note names, which may be written on return: the note is durable. Empty if it was never wholly
    written, so that nothing was done yet."""
    path = files.note_path(number)
    ranges = unpack_holes_note(number, read_whole(files.disk, path))
    if ranges:
        sync_file(files.disk, path)
        files.disk.sync_directory(files.directory)
    return ranges or []


def erase_ranges(file: DiskFile, ranges: Sequence[tuple[int, int]]) -> None:
    """Write a hole record at the head of each range."""
    for start, end in ranges:
        file.pwrite(pack_hole(end - start), start)
