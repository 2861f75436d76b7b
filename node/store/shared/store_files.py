"""The files of one shared store: names, open handles, and how many bytes of each are alive.

A file's bytes are counted without its header. Everything that is *durable later* goes through here: `mark_dirty` and
`is_durable` ask the group commit for a persistent store, and do nothing for a transient one, whose files nobody reads
after a restart.
"""

from __future__ import annotations

from contextlib import suppress

from node.errors import StorageError
from node.store.disk.disk import Cut, Disk, DiskFile, sync_file
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import HEADER_BYTES, HOLES_FORMAT, SHARED_STORE_FORMAT
from node.store.shared.config import StoreConfig

#: Files kept open for reading. Consumers read near the head of few queues; this is below any descriptor limit.
OPEN_FILES_MAX = 32
#: Paths remembered with the generation of their last write; beyond it, those that are durable are forgotten.
WRITTEN_PATHS_MAX = 64
#: Suffix of a file that is being written by compaction; removed at start.
TEMPORARY_SUFFIX = ".tmp"


class FileSummary:
    """Bytes of one file, headers of records included, the header of the file not."""

    __slots__ = ("is_busy", "is_frozen", "record_bytes", "valid_bytes")

    def __init__(self, record_bytes: int = 0, valid_bytes: int = 0, is_frozen: bool = False) -> None:
        self.record_bytes = record_bytes
        self.valid_bytes = valid_bytes
        #: Compaction is at work on it.
        self.is_busy = False
        #: Compaction keeps away: a live record could not be read (the evidence stays), or writing into it failed.
        self.is_frozen = is_frozen


class StoreFiles:
    """See the module text. Methods that touch the disk raise `StorageError`."""

    def __init__(
        self, disk: Disk, directory: str, group_commit: GroupCommit, config: StoreConfig, is_transient: bool
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.size_limit_bytes = config.file_size_limit_bytes
        self.is_transient = is_transient
        self.summaries: dict[int, FileSummary] = {}
        self.total_bytes = 0
        self.valid_bytes = 0
        #: The file that takes writes; ``None`` until the next write makes one.
        self.current: int | None = None
        #: Numbers are never used again while the store is open.
        self.next_number = 0
        #: Files that may have lost their last live message, to be deleted.
        self.empty: dict[int, None] = {}
        #: Files of which less than half is alive, for hole filling.
        self.sparse: dict[int, None] = {}
        #: Files with a note of holes on disk.
        self.noted: dict[int, None] = {}
        self._group_commit = group_commit
        self._directory_sync = disk.directory(directory)
        #: Open files, least recently used first.
        self._handles: dict[int, DiskFile] = {}
        #: Closed files that still wait for a sync.
        self._closing: list[DiskFile] = []
        #: Generation of the last write to each path, and to the directory; some may be durable.
        self._written: dict[str, int] = {}
        self._names_written = 0

    # -- durability

    def mark_dirty(self, file: DiskFile) -> None:
        """The group commit shall sync this file."""
        if self.is_transient:
            return
        self._group_commit.mark_dirty(file)
        self._written[file.path] = self._group_commit.open_generation
        if len(self._written) > WRITTEN_PATHS_MAX:
            durable = self._group_commit.durable_generation
            self._written = {path: stamp for path, stamp in self._written.items() if stamp > durable}

    def mark_names_dirty(self) -> None:
        """The group commit shall sync the directory."""
        if not self.is_transient:
            self._group_commit.mark_dirty(self._directory_sync)
            self._names_written = self._group_commit.open_generation

    def sync(self) -> None:
        """Make durable, on this thread, what the group commit has not made durable yet. Raises `StorageError`."""
        durable = self._group_commit.durable_generation
        for path in [path for path, generation in self._written.items() if generation > durable]:
            # Anew, by name: a round may be syncing the file right now, and its handle says that it owes nothing.
            if self.disk.exists(path):
                sync_file(self.disk, path)
        self._written.clear()
        if self._names_written > durable:
            self.disk.sync_directory(self.directory)
            self._names_written = 0

    @property
    def open_generation(self) -> int:
        """Stamp of what is written now, for `is_durable`."""
        return self._group_commit.open_generation

    def is_durable(self, generation: int) -> bool:
        """Whether everything marked until ``generation`` is on disk (or this store does not care)."""
        return self.is_transient or self._group_commit.complete_generation >= generation

    @property
    def has_failed_sync(self) -> bool:
        """True if nothing will ever be durable again."""
        return not self.is_transient and self._group_commit.failure is not None

    # -- names and handles

    def path(self, number: int) -> str:
        """Path of a store file."""
        return f"{self.directory}/{number}{SHARED_STORE_FORMAT.suffix}"

    def note_path(self, number: int) -> str:
        """Path of the note of holes of a store file."""
        return f"{self.directory}/{number}{HOLES_FORMAT.suffix}"

    def take_number(self) -> int:
        """A number for a new file."""
        number = self.next_number
        self.next_number += 1
        return number

    def handle(self, number: int) -> DiskFile:
        """The open file, opened if need be; valid until the next call."""
        file = self._handles.pop(number, None)
        if file is None:
            file = self.disk.open(self.path(number))
        self.remember(number, file)
        return file

    def remember(self, number: int, file: DiskFile) -> None:
        """``file`` is the open file of ``number``."""
        self._handles[number] = file
        if len(self._handles) > OPEN_FILES_MAX:
            self._close(self._handles.pop(next(iter(self._handles))))

    def _close(self, file: DiskFile) -> None:
        if self.is_transient:
            # Unsynced writes would keep the descriptor until a sync, and there never is one.
            file.abandon()
            return
        if file.has_unsynced:
            # The descriptor lives until the sync, so there must be one. And whoever marks the file later has another
            # handle, which knows nothing of these writes.
            self._group_commit.mark_dirty(file)
            self._closing = [earlier for earlier in self._closing if earlier.has_unsynced]
            self._closing.append(file)
        file.close()

    def renamed(self, number: int, file: DiskFile) -> None:
        """``file``, opened under another name, has become ``number``: it is opened anew under its own."""
        self._close(file)
        self.mark_dirty(self.handle(number))

    def current_file(self) -> tuple[int, DiskFile]:
        """Number and handle of the file that takes writes."""
        if self.current is not None:
            return self.current, self.handle(self.current)
        number = self.take_number()
        file = self.disk.create(self.path(number))
        try:
            file.pwrite(SHARED_STORE_FORMAT.header(number, 0), 0)
        except StorageError:
            file.abandon()
            # The next attempt has another number: else every one would leave a file.
            with suppress(StorageError):
                self.disk.unlink(self.path(number))
            raise
        self.remember(number, file)
        self.adopt(number, FileSummary())
        self.current = number
        self.mark_dirty(file)
        self.mark_names_dirty()
        return number, file

    # -- bytes

    def adopt(self, number: int, summary: FileSummary) -> None:
        """A file that is there from now on."""
        self.summaries[number] = summary
        self.total_bytes += summary.record_bytes
        self.valid_bytes += summary.valid_bytes
        self.next_number = max(self.next_number, number + 1)

    def appended(self, number: int, size: int) -> None:
        """``size`` bytes of live records were written at the end of a file."""
        summary = self.summaries[number]
        summary.record_bytes += size
        summary.valid_bytes += size
        self.total_bytes += size
        self.valid_bytes += size

    def roll(self) -> None:
        """The current file is full: the next write begins another."""
        number, self.current = self.current, None
        if number is not None:
            self.look_at(number)

    def discard(self, number: int, size: int) -> None:
        """A record of ``size`` bytes is garbage now."""
        summary = self.summaries[number]
        summary.valid_bytes -= size
        self.valid_bytes -= size
        if summary.valid_bytes * 2 < summary.record_bytes:
            self.look_at(number)

    def look_at(self, number: int) -> None:
        """Note what compaction may want to do with a file."""
        summary = self.summaries[number]
        if number == self.current:
            return
        if not summary.valid_bytes:
            self.empty[number] = None
        elif summary.valid_bytes * 2 < summary.record_bytes:
            self.sparse[number] = None

    def transfer(self, old: int, new: int, size: int) -> None:
        """A live record of ``size`` bytes is served from another file's copy now."""
        self.summaries[old].valid_bytes -= size
        self.summaries[new].valid_bytes += size

    def set_free(self, number: int) -> None:
        """Compaction is done with a file."""
        summary = self.summaries.get(number)
        if summary is not None:
            summary.is_busy = False
            self.look_at(number)

    def announce_cut(self, number: int, end: int) -> None:
        """`begin_cut` is due when the open generation is durable, and there will be something to sync in it."""
        self.disk.announce_cut(self.path(number), end)
        self.mark_names_dirty()

    def begin_cut(self, number: int, end: int) -> Cut:
        """Truncate a file to ``end`` bytes, its header included; what stood behind was garbage. `end_cut` is due."""
        assert end <= HEADER_BYTES + self.summaries[number].record_bytes, "a cut makes a file shorter"
        return self.handle(number).begin_cut(end)

    def end_cut(self, number: int, end: int, cut: Cut) -> None:
        """Count what is free now. Raises `StorageError`."""
        cut.finish()
        summary = self.summaries[number]
        self.total_bytes -= summary.record_bytes - (end - HEADER_BYTES)
        summary.record_bytes = end - HEADER_BYTES

    def delete(self, number: int) -> None:
        """Remove a file without live messages, and its note after it: what the note excuses must never be without."""
        summary = self.summaries[number]
        assert not summary.valid_bytes, f"file {number} still holds live messages"
        handle = self._handles.pop(number, None)
        if handle is not None:
            handle.abandon()
        self.disk.unlink(self.path(number))
        self.drop_note(number)
        del self.summaries[number]
        self.total_bytes -= summary.record_bytes
        self.sparse.pop(number, None)
        self.empty.pop(number, None)

    def delete_one_empty(self) -> bool:
        """Delete one file without live messages; false if there is none."""
        while self.empty:
            number = next(iter(self.empty))
            summary = self.summaries.get(number)
            if summary is not None and not summary.valid_bytes and not summary.is_busy and number != self.current:
                self.delete(number)
                return True
            del self.empty[number]
        return False

    def drop_note(self, number: int) -> None:
        """Remove the note of holes of a file, if there is one."""
        if number in self.noted:
            self.disk.unlink(self.note_path(number))
            del self.noted[number]

    def abandon(self) -> None:
        """Close all files as they are: an fsync that failed is never tried again."""
        for file in (*self._handles.values(), *self._closing):
            file.abandon()
        self._handles.clear()
        self._closing.clear()

    def close(self) -> None:
        """Make all files durable and close them."""
        for file in self._handles.values():
            self._close(file)
        self._handles.clear()
        for file in self._closing:
            file.sync()
        self._closing.clear()
        if not self.is_transient:
            self.disk.sync_directory(self.directory)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the counts contradict each other."""
        summaries = self.summaries
        for number, summary in summaries.items():
            assert 0 <= summary.valid_bytes <= summary.record_bytes, f"file {number}: no more valid bytes than bytes"
            assert number < self.next_number, f"number {number} must not be given away again"
            if not summary.valid_bytes and number != self.current and not summary.is_busy:
                assert number in self.empty, f"file {number} is empty and nobody would delete it"
        assert self.valid_bytes == sum(s.valid_bytes for s in summaries.values()), "the total is the sum over the files"
        assert self.total_bytes == sum(s.record_bytes for s in summaries.values()), "and so is the total of all bytes"
        assert self.current is None or self.current in summaries, "the current file is counted"
        assert self.noted.keys() <= summaries.keys(), "a note belongs to a file"
        assert len(self._handles) <= OPEN_FILES_MAX, "open files are bounded"
