"""Compaction by copying: the live records of one or two files into a new one (mission S9, RabbitMQ up to 3.12).

::

    survey    walk the files: which records are alive                  | steps of a hundred records
    copy      live records -> M.rdq.tmp, M a new number                | steps of 128 KiB
    switch    rename to M.rdq when that is durable; tables point to M  | steps of a hundred records
    delete    the old files, when the tables are switched and the new name is durable

Nothing waits: between the steps messages are read from wherever the tables point, and both copies are whole. A message
settled meanwhile is garbage in M from its first moment.

**Crash.** Before the rename is durable there is a ``.tmp``, removed at start. After it there are two copies of each
record; the scan takes the first it meets, and a file without a live record is deleted.

The reference copies the right file's records behind the left one's, in place. A new file costs the space of the
copy for a moment, and needs no argument about what is in which file when.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from node.errors import StorageError
from node.store.disk.disk import DiskFile
from node.store.formats.record import HEADER_BYTES, SHARED_STORE_FORMAT
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
from node.store.shared.store_file import ChainWalk
from node.store.shared.store_files import TEMPORARY_SUFFIX, FileSummary, StoreFiles


class Merge:
    """Copies one or two files into one; a `node.store.shared.compaction.relocation.Compaction`."""

    def __init__(self, files: StoreFiles, table: LocationTable, sources: Sequence[int]) -> None:
        self._files = files
        self._table = table
        self._sources = tuple(sources)
        self.moved_bytes = 0
        self.is_done = False
        self._number = files.take_number()
        self._moves = Moves(files, table, self._number)
        self._target: DiskFile | None = None
        #: Where the next record goes.
        self._end = HEADER_BYTES
        self._is_renamed = False
        #: The next step waits until this generation is durable.
        self._wait_generation = 0
        self._steps = self._run()
        for number in self._sources:
            files.summaries[number].is_busy = True

    def step(self) -> bool:
        if not self._is_renamed and not any(self._files.summaries[number].valid_bytes for number in self._sources):
            # Everything was settled meanwhile.
            self.fail()
            return True
        if self._wait_generation:
            if not self._files.is_durable(self._wait_generation):
                if self._is_renamed and not self._moves.are_switched:
                    self._moves.switch(STEP_RECORDS)
                    return True
                return False
            self._wait_generation = 0
        return next(self._steps, True)

    def _run(self) -> Steps:
        """The steps in order."""
        files = self._files
        walks: list[ChainWalk] = []
        for number in self._sources:
            summary = files.summaries[number]
            walk = ChainWalk(self._table, number, HEADER_BYTES + summary.record_bytes)
            yield from walk_through(files, number, walk)
            if walk.is_broken or walk.live_bytes < summary.valid_bytes:
                raise BrokenSourceError(number)
            walks.append(walk)
        self._target = files.disk.create(files.path(self._number) + TEMPORARY_SUFFIX)
        self._target.pwrite(SHARED_STORE_FORMAT.header(self._number, 0), 0)
        for number, walk in zip(self._sources, walks, strict=True):
            yield from self._copy(number, walk, self._target)
        files.mark_dirty(self._target)
        self._wait_generation = files.open_generation
        yield True
        files.disk.rename(self._target.path, files.path(self._number))
        files.mark_names_dirty()
        files.renamed(self._number, self._target)
        summary = FileSummary(self._end - HEADER_BYTES)
        summary.is_busy = True
        files.adopt(self._number, summary)
        self._is_renamed = True
        self._wait_generation = files.open_generation
        yield True
        while not self._moves.are_switched:
            self._moves.switch(STEP_RECORDS)
            yield True
        self._finish()

    def _copy(self, number: int, walk: ChainWalk, target: DiskFile) -> Steps:
        offsets, sizes = walk.offsets, walk.sizes
        at, count = 0, len(walk.offsets)
        while at < count:
            offset, size = offsets[at], sizes[at]
            if size > STEP_BYTES:
                msg_id = yield from copy_big_record(self._files, number, offset, size, lambda: target, self._end)
                self._moves.add(msg_id, number, offset, self._end)
                self._end += size
                self.moved_bytes += size
                at += 1
                continue
            parts: list[bytes] = []
            # What was settled meanwhile is read, but not copied.
            read = copied = 0
            end = min(at + STEP_RECORDS, count)
            while at < end and read + sizes[at] <= STEP_BYTES:
                # Neighbours are read with one call.
                start, stop = offsets[at], offsets[at] + sizes[at]
                last = at + 1
                while last < end and offsets[last] == stop and read + stop + sizes[last] - start <= STEP_BYTES:
                    stop += sizes[last]
                    last += 1
                data = read_source(self._files, number, stop - start, start)
                read += stop - start
                for each in range(at, last):
                    record = data[offsets[each] - start : offsets[each] + sizes[each] - start]
                    msg_id = checked_msg_id(number, record)
                    if self._table.is_at(msg_id, number, offsets[each]):
                        self._moves.add(msg_id, number, offsets[each], self._end + copied)
                        parts.append(record)
                        copied += sizes[each]
                at = last
            target.pwrite(b"".join(parts), self._end)
            self._end += copied
            self.moved_bytes += copied
            yield True

    def _finish(self) -> None:
        self.is_done = True
        for number in (*self._sources, self._number):
            self._files.set_free(number)

    def fail(self) -> None:
        if self._is_renamed:
            # Only the deletion of the old files is left, and that has its own place.
            self._moves.switch(len(self._moves))
            self._finish()
            return
        self.is_done = True
        if self._target is not None:
            self._target.abandon()
            # If it cannot be removed now, the next start does it. It may have its new name, and not be opened under it.
            for path in (self._target.path, self._files.path(self._number)):
                with suppress(StorageError):
                    self._files.disk.unlink(path)
        for number in self._sources:
            self._files.set_free(number)

    def settle(self) -> None:
        self.fail()
