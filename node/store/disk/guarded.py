"""A disk that knows how long the files of a vhost durably are, and says at the start which of them are shorter.

It stands between the stores of a vhost and the real disk, so that none of them has to think of it: whatever is synced
through it is noted (`node.store.disk.length_file`), whatever is deleted is forgotten, and before a file is cut,
replaced or begun anew, its note is lowered. Other files pass through untouched.

**When notes are written.** A sync finishes on the group commit's thread; its length is collected, and `write_notes`,
about once a second, writes what was collected, a bounded number of notes per tick, and asks the group commit to sync it
with the next round. So what was synced in the last second before a power failure is not guarded yet. After a sync that
failed nothing is noted: the next one of that file succeeds, and the disk has none of it (`node.store.disk.distrust`).

**Deleted queues.** A directory that is moved away is forgotten in steps, some files a tick. Until then there are notes
of files that are not there; nobody misses these. A file that is made anew under such a name has its note lowered first,
like any other, and is not forgotten with the old one.

**When a note is lowered.** Notes are overwritten in place and synced some time; a file that is shorter than a stale
note would be a false alarm. `announce_cut` lowers a note ahead of time, durable with the next round of the group
commit, and whatever is synced until the cut, or the last of several, does not raise it again; a cut that was not
announced waits for a sync of the notes, on the loop's thread. That happens where segments are begun again under their
number (a mirror whose tail was replaced, a conversion back), and in recovery.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from weakref import WeakValueDictionary

from node.errors import DiskFullError, OpenFilesError, StorageError
from node.store.disk.disk import Cut, DirectorySync, Disk, DiskFile
from node.store.disk.group_commit import GroupCommit
from node.store.disk.length_file import (
    LENGTHS_NAME,
    QUEUES,
    SHARED_STORE,
    FileKey,
    LengthFile,
    ShortFile,
    file_key,
    short_file,
)
from node.store.steps import Steps, run_through

log = logging.getLogger(__name__)

#: Notes are written this often at most.
WRITE_EVERY_MS = 1000
#: Files that one step of the comparison at the start opens: a millisecond.
COMPARED_PER_STEP = 32
#: Files of deleted queues that one tick forgets: two milliseconds.
FORGOTTEN_PER_TICK = 512


class _File:
    """A file in one life of its name, whatever handles it has."""

    __slots__ = ("__weakref__", "cuts", "is_gone", "key")

    def __init__(self, key: FileKey) -> None:
        self.key = key
        #: How often it was cut: handles opened before a cut do not know its length.
        self.cuts = 0
        self.is_gone = False


class GuardedCut:
    """`Cut` of a file of which every sync is noted."""

    __slots__ = ("_file", "_inner", "_size")

    def __init__(self, file: GuardedFile, size: int, inner: Cut) -> None:
        self._file = file
        self._size = size
        self._inner = inner

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    def finish(self) -> None:
        self._inner.finish()
        self._file.was_cut(self._size)


class GuardedFile:
    """`DiskFile` of which every sync is noted."""

    __slots__ = ("_cuts", "_disk", "_file", "_inner", "_is_abandoned")

    def __init__(self, disk: GuardedDisk, file: _File, inner: DiskFile) -> None:
        self._disk = disk
        self._file = file
        self._inner = inner
        self._cuts = file.cuts
        self._is_abandoned = False

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def has_unsynced(self) -> bool:
        return self._inner.has_unsynced

    def append(self, data: bytes | bytearray | memoryview) -> int:
        return self._inner.append(data)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._inner.pwrite(data, offset)

    def pread(self, size: int, offset: int) -> bytes:
        return self._inner.pread(size, offset)

    def will_read(self, size: int, offset: int) -> None:
        self._inner.will_read(size, offset)

    def truncate(self, size: int) -> None:
        if size < self._inner.size:
            self._disk.cut(self._file, size)
        self._inner.truncate(size)
        # Not before: a sync under way on the other thread may still have seen the old length.
        self._cuts = self._file.cuts

    def begin_cut(self, size: int) -> GuardedCut:
        self._disk.begin_cut(self._file, size)
        return GuardedCut(self, size, self._inner.begin_cut(size))

    def was_cut(self, size: int) -> None:
        """What `begin_cut` asked for is done. Only now may the file's note be raised again: a handle that was opened
        meanwhile has seen the old length."""
        self._disk.cut(self._file, size)
        self._cuts = self._file.cuts

    def sync(self) -> None:
        cuts, size = self._cuts, self._inner.size
        self._inner.sync()
        if not self._is_abandoned:
            self._disk.synced(self._file, cuts, size)

    def close(self) -> None:
        self._inner.close()

    def abandon(self) -> None:
        self._is_abandoned = True
        self._inner.abandon()


class GuardedDisk:
    """Implements `Disk` for the files of one vhost; see the module text."""

    def __init__(self, disk: Disk, directory: str, group_commit: GroupCommit, *, compares_at_once: bool = True) -> None:
        """``directory`` of the vhost, which exists. Raises `StorageError`.

        Unless it ``compares_at_once``, the steps of ``comparison`` do, and no guarded file is touched before.
        """
        self._inner = disk
        self._prefix = directory + "/"
        self._group_commit = group_commit
        self._notes = LengthFile(disk, directory, reads_at_once=False)
        self._files: WeakValueDictionary[FileKey, _File] = WeakValueDictionary()
        #: Lengths that were synced since the notes were written. Guarded by the lock.
        self._synced: dict[FileKey, int] = {}
        #: Lengths to which files will be cut: what is longer is not noted meanwhile. Guarded by the lock.
        self._announced: dict[FileKey, int] = {}
        self._lock = threading.Lock()
        self._write_at_ms = 0
        self._has_failed = False
        #: The last write of notes was not of all.
        self._has_left_some = False
        #: Paths of files whose directory was moved away, to be forgotten.
        self._moved_away: deque[str] = deque()
        #: Files that were found to have lost durable bytes, by path; until their owner has recovered without them.
        self._short_files: dict[str, ShortFile] = {}
        try:
            if self._notes.is_missing:
                self._begin_notes()
        except StorageError:
            self._notes.abandon()
            raise
        #: To be gone through by whoever did not want it to be done at once.
        self.comparison: Steps[None] = self._compare()
        if compares_at_once:
            run_through(self.comparison)

    def _begin_notes(self) -> None:
        """On the first start there is nothing to be missed. Later somebody, or something, has removed the notes."""
        if self._has_stores():
            log.warning(
                "%s%s is missing: if a file here lost its end before this start, nobody can tell; from now on lengths "
                "are noted anew (expected once, after an upgrade from a version without notes)",
                self._prefix,
                LENGTHS_NAME,
            )
        # On a full disk the first note makes it.
        with suppress(DiskFullError):
            self._notes.make()

    def _has_stores(self) -> bool:
        inner = self._inner
        queues = self._prefix + QUEUES
        directories = [self._prefix + SHARED_STORE]
        directories += [f"{queues}/{name}" for name in (inner.list(queues) if inner.exists(queues) else ())]
        return any(
            self._key(f"{directory}/{name}") is not None
            for directory in directories
            if inner.exists(directory)
            for name in inner.list(directory)
        )

    def _compare(self) -> Steps[None]:
        """The files with what is noted of them: three for each queue, of which the disk is asked."""
        yield from self._notes.reading
        for number, (key, noted_bytes) in enumerate(self._notes.noted(), 1):
            path = f"{self._prefix}{key.path}"
            if not self._inner.exists(path):
                self._notes.forget(key)
            elif (short := short_file(self._inner, path, noted_bytes)) is not None:
                self._short_files[path] = short
            if number % COMPARED_PER_STEP == 0:
                yield None

    @property
    def unreadable_notes(self) -> int:
        """Notes that could not be read at the start: torn by a crash, or damaged."""
        return self._notes.unreadable

    def short_files_in(self, directory: str) -> list[ShortFile]:
        """The files of one directory that had lost durable bytes at the start."""
        return [short for path, short in self._short_files.items() if path.rpartition("/")[0] == directory]

    def short_files_below(self, directory: str) -> list[ShortFile]:
        """The same for a directory and all below it."""
        return [short for path, short in self._short_files.items() if path.startswith(directory + "/")]

    def acknowledge(self, directory: str) -> None:
        """Its owner has reported them and recovered what is left: their notes are lowered.

        Not before: until then every start must tell of them.
        """
        for short in self.short_files_in(directory):
            del self._short_files[short.path]
            self._notes.lower(self._noted_key(short.path), short.found_bytes)
            self._group_commit.mark_dirty(self._notes)

    def _key(self, path: str) -> FileKey | None:
        return file_key(path.removeprefix(self._prefix)) if path.startswith(self._prefix) else None

    def _noted_key(self, path: str) -> FileKey:
        key = self._key(path)
        assert key is not None, "what is noted has a key"
        return key

    # -- what handles tell

    def synced(self, file: _File, cuts: int, size: int) -> None:
        """A handle of ``file`` was synced when it had ``size`` bytes and knew of ``cuts``. Any thread."""
        with self._lock:
            if not file.is_gone and file.cuts == cuts and self._group_commit.failure is None:
                size = min(size, self._announced.get(file.key, size))
                self._synced[file.key] = max(size, self._synced.get(file.key, 0))

    def begin_cut(self, file: _File, size: int) -> None:
        """A file will get shorter, and whoever opens and syncs it meanwhile does not know when. Raises
        `StorageError`."""
        with self._lock:
            self._announced[file.key] = min(size, self._announced.get(file.key, size))
        self._lower(file, size)

    def cut(self, file: _File, size: int) -> None:
        """A file gets shorter. Raises `StorageError`."""
        with self._lock:
            if size <= self._announced.get(file.key, -1):
                del self._announced[file.key]
        self._lower(file, size)

    def _lower(self, file: _File, size: int) -> None:
        with self._lock:
            file.cuts += 1
            synced = self._synced.get(file.key, 0)
            if synced > size:
                self._synced[file.key] = size
        self._notes.lower_for_good(file.key, size)

    def _gone(self, key: FileKey | None) -> None:
        """The file of this name is gone, or will be."""
        if key is None:
            return
        with self._lock:
            file = self._files.pop(key, None)
            if file is not None:
                file.is_gone = True
            self._synced.pop(key, None)
            self._announced.pop(key, None)
        self._notes.forget(key)

    def _forget_some(self) -> None:
        """A bounded number of files of directories that were moved away."""
        moved_away = self._moved_away
        for _ in range(min(len(moved_away), FORGOTTEN_PER_TICK)):
            path = moved_away.popleft()
            # There may be another of this name: then its note was lowered when it was made.
            if not self._inner.exists(path):
                self._gone(self._key(path))

    def _gone_below(self, directory: str) -> None:
        for name in self._inner.list(directory):
            self._gone(self._key(f"{directory}/{name}"))

    # -- notes

    def announce_cut(self, path: str, size: int) -> None:
        """See `Disk.announce_cut`."""
        key = self._key(path)
        if key is None:
            return
        with self._lock:
            self._announced[key] = size
            if key in self._synced:
                self._synced[key] = min(size, self._synced[key])
        self._notes.lower(key, size)
        self._group_commit.mark_dirty(self._notes)

    def write_notes(self, now_ms: int) -> None:
        """Write some of what was collected, if it is time or the last call left something; so call it every tick.

        On a full disk later; after any other error never again.
        """
        self._forget_some()
        if (now_ms < self._write_at_ms and not self._has_left_some) or self._has_failed:
            return
        self._write_at_ms = now_ms + WRITE_EVERY_MS
        self._has_left_some = False
        self._collect()
        try:
            written = self._notes.write()
        except DiskFullError:
            return
        except StorageError as error:
            self._has_failed = True
            log.error("%s: durable lengths are not noted any more: %s", self._prefix, error)
            return
        if written is not None:
            self._group_commit.mark_dirty(written)
            self._has_left_some = self._notes.has_changes

    def _collect(self) -> None:
        with self._lock:
            synced, self._synced = self._synced, {}
        for key, size in synced.items():
            self._notes.raise_to(key, size)

    def close(self) -> None:
        """After everything else was closed: write and sync the notes. Raises `StorageError`."""
        while self._moved_away:
            self._forget_some()
        self._collect()
        self._notes.close()

    def abandon(self) -> None:
        """Close the notes as they are: nobody needs any of the files any more."""
        self._notes.abandon()

    # -- Disk

    def open(self, path: str) -> DiskFile:
        inner = self._inner.open(path)
        key = self._key(path)
        return inner if key is None else self._guard(key, inner)

    def create(self, path: str) -> DiskFile:
        key = self._key(path)
        if key is None:
            return self._inner.create(path)
        self._gone(key)
        self._notes.lower_for_good(key, 0)
        return self._guard(key, self._inner.create(path))

    def _guard(self, key: FileKey, inner: DiskFile) -> GuardedFile:
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = _File(key)
        return GuardedFile(self, file, inner)

    def rename(self, old_path: str, new_path: str) -> None:
        """A file that takes a guarded name is guarded when it was synced under it."""
        key = self._key(new_path)
        if key is not None:
            self._gone(key)
            self._notes.lower_for_good(key, 0)
        self._gone(self._key(old_path))
        below: list[str] = []
        # A listing takes a descriptor, the rest does not: what it would name is forgotten by the next start.
        with suppress(OpenFilesError):
            below += [f"{old_path}/{name}" for name in self._inner.list(old_path)]
        self._inner.rename(old_path, new_path)
        # Nobody misses them, so there is time: a queue of ten million messages has five thousand.
        self._moved_away += below

    def unlink(self, path: str) -> None:
        self._gone(self._key(path))
        self._inner.unlink(path)

    def remove_directory(self, path: str) -> None:
        self._gone_below(path)
        self._inner.remove_directory(path)

    def list(self, path: str) -> list[str]:
        return self._inner.list(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def mkdir(self, path: str) -> None:
        self._inner.mkdir(path)

    def sync_directory(self, path: str) -> None:
        self._inner.sync_directory(path)

    def directory(self, path: str) -> DirectorySync:
        return self._inner.directory(path)

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        self._notes.check_invariants()
        assert all(file.key == key for key, file in self._files.items()), "a file is filed under its key"
