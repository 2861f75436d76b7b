"""The one door to the disk. Everything that Warren keeps in files goes through a `Disk`.

`RealDisk` is the operating system; `node.store.disk.simulated.SimulatedDisk` is its twin in memory, which can lose,
tear, refuse and run full. Paths are plain strings with ``/``; errors of the system come out as `StorageError`.

Threads. All methods are called on the loop's thread, except `DiskFile.sync` and `DirectorySync.sync`, which the group
commit calls on its own thread; what `DiskFile.begin_cut` asks for is done by that of `node.store.disk.freeing`. The
owner may write on, close or unlink a file while it is being synced, close or unlink it while it is being cut:

- `DiskFile.close` of a file with unsynced writes keeps the descriptor until the next `sync` has made them durable, so
  that a file may be closed as soon as nobody writes to it any more and a confirm still never comes too early;
- `DiskFile.abandon` gives the descriptor up without a sync: the file is to be unlinked, or the system may write it when
  it likes.

Neither waits for a sync or a cut under way: the last of them to finish closes the descriptor.

A full disk. The system writes as much as there is room for, and only then refuses. By how much the file has grown is
cut off again at once: at the end of a file that is only appended to, nothing may stand behind which a shorter record
could be written later, for a start after a crash would take the rest for damage, or even for records. So a
`DiskFullError` leaves every file as long as it was. *Inside* its length a part of what was refused may stand: who
writes into the holes of a file must think of that (`node.store.index.v2.refused_slots`). Nobody writes to a file
through two handles at once.

(That the growth survives a power failure and the cut does not, though more was written meanwhile, would take a
write-back in the microseconds between two calls of the system. The simulated disk does not do that.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from node.errors import DiskFullError, OpenFilesError, StorageError
from node.store.disk.freeing import Freeing

#: Of this process.
FREEING = Freeing(os.close)


class Cut(Protocol):
    """A file on its way to a new end; see `DiskFile.begin_cut`."""

    @property
    def is_done(self) -> bool:
        """True if `finish` would not wait."""

    def finish(self) -> None:
        """To be called once, unless the file goes. Waits until it is done. Raises `StorageError` if it failed."""


class DiskFile(Protocol):
    """An open file, for reading and writing. Satisfies `node.store.disk.group_commit.Syncable`."""

    @property
    def path(self) -> str:
        """Where the file was when it was opened."""

    @property
    def size(self) -> int:
        """Length in bytes, as the owner sees it."""

    @property
    def has_unsynced(self) -> bool:
        """True if a write happened through this handle since its last successful `sync` began."""

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write at the end; returns the offset of the first byte. Raises `StorageError`: the tail is then undefined.
        (After a `DiskFullError` it is as it was.)"""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write at ``offset``; a gap before it reads as zeros. Raises `StorageError`.

        After a `DiskFullError` the file is as long as before, and a part may be written inside that length.
        """

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file. Raises `StorageError`."""

    def will_read(self, size: int, offset: int) -> None:
        """These bytes are read soon: the system may fetch them meanwhile. Only a hint: never waits, never raises."""

    def truncate(self, size: int) -> None:
        """Cut to ``size`` bytes, or extend with zeros. Raises `StorageError`."""

    def begin_cut(self, size: int) -> Cut:
        """Cut to ``size`` bytes, and let nobody wait for it. Until it is finished nothing is written, and nothing
        behind the new end is read."""

    def sync(self) -> None:
        """Make all earlier writes durable. Any thread. Raises `StorageError`; then never try again on this file."""

    def close(self) -> None:
        """No more reads and writes. Unsynced writes stay due for the next `sync`."""

    def abandon(self) -> None:
        """No more reads and writes through this handle, and nobody waits for its writes: `sync` becomes a no-op."""


class DirectorySync(Protocol):
    """The entries of one directory as something to sync: created, renamed and unlinked names become durable. Two of one
    directory are equal."""

    def sync(self) -> None:
        """Any thread. A directory that is gone is no error. Raises `StorageError`, and `OpenFilesError` if there is no
        descriptor for it: then nothing was tried, and may be tried again."""


class Disk(Protocol):
    """File system operations. All raise `StorageError`."""

    def open(self, path: str) -> DiskFile:
        """Open an existing file."""

    def create(self, path: str) -> DiskFile:
        """Create an empty file, or empty an existing one. Its name is durable after `sync_directory`."""

    def rename(self, old_path: str, new_path: str) -> None:
        """Atomic; a file replaces ``new_path``. A directory moves with everything in it, to where nothing is."""

    def unlink(self, path: str) -> None:
        """Remove a file. A missing file is no error. Its space may be free a little later."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything below it. A missing directory is no error."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""

    def exists(self, path: str) -> bool:
        """True if ``path`` is a file or directory."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents. An existing directory is no error."""

    def sync_directory(self, path: str) -> None:
        """Make the entries of a directory durable."""

    def directory(self, path: str) -> DirectorySync:
        """The directory as something the group commit can sync."""

    def announce_cut(self, path: str, size: int) -> None:
        """A file will be truncated to ``size`` bytes when the open generation of the group commit is durable.

        Who keeps durable lengths (`node.store.disk.guarded`) need not wait for the disk then; others do nothing.
        """

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written on the file system of ``path``."""


def read_whole(disk: Disk, path: str) -> bytes:
    """Content of a file. Raises `StorageError` if it cannot be read."""
    file = disk.open(path)
    try:
        return file.pread(file.size, 0)
    finally:
        file.close()


def write_durably(disk: Disk, path: str, content: bytes) -> None:
    """Replace a small file as a whole: after a crash it holds the old content or the new, never a mixture."""
    disk.rename(write_beside(disk, path, content), path)
    disk.sync_directory(path.rpartition("/")[0])


def write_beside(disk: Disk, path: str, content: bytes) -> str:
    """Write, durably, what is to become the file ``path``; returns what it is to be renamed from."""
    temporary = path + ".tmp"
    file = disk.create(temporary)
    try:
        file.pwrite(content, 0)
        file.sync()
    except StorageError:
        file.abandon()
        with contextlib.suppress(StorageError):  # perhaps for want of the very space that it takes
            disk.unlink(temporary)
        raise
    file.close()
    return temporary


def sync_file(disk: Disk, path: str) -> None:
    """Make durable what is in a file, whoever wrote it. Raises `StorageError`."""
    file = disk.open(path)
    try:
        file.sync()
    except StorageError:
        file.abandon()
        raise
    file.close()


#: Errors that go away when somebody makes room: no space on the device, quota exceeded.
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Errors that go away when somebody closes files -> the limit that was reached, and how it is raised.
_OPEN_FILES_LIMITS = {
    errno.EMFILE: "this process has as many files open as it may (`ulimit -Hn`, LimitNOFILE)",
    errno.ENFILE: "this system has as many files open as it can (`fs.file-max`)",
}


def _failure(operation: str, path: str, error: OSError) -> StorageError:
    text = f"{operation} of {path} failed: {error.strerror or error} (errno {error.errno})"
    if error.errno in _FULL_ERRNOS:
        return DiskFullError(text)
    limit = _OPEN_FILES_LIMITS.get(error.errno or 0)
    return StorageError(text) if limit is None else OpenFilesError(f"{text}: {limit}")


def _failed_sync(path: str, error: OSError, tell: Callable[[StorageError], None]) -> StorageError:
    """What to raise, after it was told. Not even a full disk is passed on as such: what is left behind is unknown."""
    failure = StorageError(str(_failure("fsync", path, error)))
    tell(failure)
    return failure


def _status(path: str) -> os.stat_result | None:
    """``None`` if nothing is there. Raises `StorageError`."""
    try:
        return Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failure("stat", path, error) from error


def _is_directory(path: str) -> bool:
    """Raises `StorageError` if that cannot be found out."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


class RealCut:
    """`Cut` of the operating system, done by another thread."""

    __slots__ = ("_done", "_error", "_file", "_size")

    def __init__(self, file: RealFile, size: int) -> None:
        self._file = file
        self._size = size
        self._done = threading.Event()
        self._error: StorageError | None = None

    def run(self) -> None:
        """On that thread."""
        try:
            self._file.truncate_and_release(self._size)
        except StorageError as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def finish(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error


class RealFile:
    """`DiskFile` on a descriptor of the operating system."""

    __slots__ = (
        "_abandoned",
        "_closed",
        "_cutting",
        "_fd",
        "_lock",
        "_path",
        "_size",
        "_sync_failed",
        "_unsynced",
        "_users",
    )

    def __init__(
        self, path: str, fd: int, size: int, unsynced: bool, sync_failed: Callable[[StorageError], None]
    ) -> None:
        """``sync_failed`` is called on the thread of a sync that has."""
        self._path = path
        self._sync_failed = sync_failed
        #: -1 once the descriptor is given back.
        self._fd = fd
        self._size = size
        self._unsynced = unsynced
        #: Other threads that need the descriptor.
        self._users = 0
        #: Cuts under way.
        self._cutting = 0
        self._closed = False
        self._abandoned = False
        #: Guards the life of the descriptor only; never held during input or output.
        self._lock = threading.Lock()

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def has_unsynced(self) -> bool:
        return self._cutting > 0 or self._unsynced

    def append(self, data: bytes | bytearray | memoryview) -> int:
        offset = self._size
        self.pwrite(data, offset)
        return offset

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        assert not self._closed, "a closed file takes no writes"
        end = offset + len(data)
        written = 0
        try:
            written = os.pwrite(self._fd, data, offset)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            if written:
                self._unsynced = True
                self._cut_growth(offset + written)
            raise _failure("write", self._path, error) from error
        self._size = max(self._size, end)
        # After the write: a sync that began in between may or may not have covered it.
        self._unsynced = True

    def _cut_growth(self, end: int) -> None:
        """A write ended early, at ``end``: the file shall be as long as it was."""
        if end > self._size:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError as error:
                raise _failure("truncate", self._path, error) from error

    def pread(self, size: int, offset: int) -> bytes:
        assert not self._closed, "a closed file cannot be read"
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _failure("read", self._path, error) from error
        return data

    def will_read(self, size: int, offset: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def truncate(self, size: int) -> None:
        assert not self._closed, "a closed file cannot be cut"
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _failure("truncate", self._path, error) from error
        self._size = size
        self._unsynced = True

    def begin_cut(self, size: int) -> RealCut:
        assert not self._closed, "a closed file cannot be cut"
        with self._lock:
            self._users += 1
            self._cutting += 1
        self._size = size
        cut = RealCut(self, size)
        FREEING.run(cut.run)
        return cut

    def truncate_and_release(self, size: int) -> None:
        """What `begin_cut` asked for. Any thread. Raises `StorageError`."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _failure("truncate", self._path, error) from error
        finally:
            with self._lock:
                # A sync that began in between may or may not have covered it. Nobody syncs a closed file once more.
                self._unsynced = self._unsynced or not self._closed
                # Last: whoever looks without the lock sees one of the two.
                self._cutting -= 1
                self._users -= 1
                self._close_if_done()

    def sync(self) -> None:
        with self._lock:
            if self._fd < 0 or self._abandoned:
                return
            self._users += 1
            self._unsynced = False
            fd = self._fd
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._unsynced = True
            raise _failed_sync(self._path, error, self._sync_failed) from error
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_done()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_if_done()

    def abandon(self) -> None:
        with self._lock:
            self._closed = self._abandoned = True
            self._close_if_done()

    def _close_if_done(self) -> None:
        """Give the descriptor back unless somebody still needs it. The lock is held."""
        if self._closed and not self._users and self._fd >= 0 and (self._abandoned or not self._unsynced):
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class RealDirectorySync:
    """`DirectorySync` of the operating system."""

    path: str
    sync_failed: Callable[[StorageError], None]

    def sync(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure("open", self.path, error) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise _failed_sync(self.path, error, self.sync_failed) from error
        finally:
            os.close(fd)


def _reread_below(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _reread_below(entry.path)
            elif entry.is_file(follow_symlinks=False):
                _reread_file(entry.path)


def _reread_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # of a file system that does not know it
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class RealDisk:
    """`Disk` of the operating system."""

    def __init__(self) -> None:
        #: Called on the thread of each sync that has failed (`node.store.disk.distrust`).
        self.on_sync_failed: Callable[[StorageError], None] = lambda _error: None

    def _sync_failed(self, error: StorageError) -> None:
        self.on_sync_failed(error)

    def open(self, path: str) -> DiskFile:
        return self._open(path, os.O_RDWR)

    def create(self, path: str) -> DiskFile:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def _open(self, path: str, flags: int) -> RealFile:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o640)
            # What an earlier process wrote and did not sync is unsynced for us too.
            size = os.fstat(fd).st_size
            return RealFile(path, fd, size, bool(flags & os.O_CREAT), self._sync_failed)
        except OSError as error:
            raise _failure("open", path, error) from error

    def rename(self, old_path: str, new_path: str) -> None:
        try:
            Path(old_path).replace(new_path)
        except OSError as error:
            raise _failure("rename", old_path, error) from error

    def unlink(self, path: str) -> None:
        descriptor = -1
        # Without one, which the system may refuse, it takes longer.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise _failure("unlink", path, error) from error
        finally:
            if descriptor >= 0:
                FREEING.close(descriptor)

    def remove_directory(self, path: str) -> None:
        if not _is_directory(path):
            return
        directory = Path(path)
        try:
            for entry in directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    self.remove_directory(str(entry))
                else:
                    entry.unlink()
            directory.rmdir()
        except OSError as error:
            raise _failure("removal", path, error) from error

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not Path objects
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _failure("listing", path, error) from error

    def exists(self, path: str) -> bool:
        return _status(path) is not None

    def mkdir(self, path: str) -> None:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failure("mkdir", path, error) from error

    def sync_directory(self, path: str) -> None:
        RealDirectorySync(path, self._sync_failed).sync()

    def directory(self, path: str) -> DirectorySync:
        return RealDirectorySync(path, self._sync_failed)

    def announce_cut(self, path: str, size: int) -> None:
        """See `Disk.announce_cut`: nothing is kept here."""

    def reread(self, path: str) -> None:
        """See `node.store.disk.distrust.OwnDisk`."""
        try:
            if Path(path).is_dir():
                _reread_below(path)
            elif Path(path).is_file():
                _reread_file(path)
        except OSError as error:
            raise _failure("reading again", path, error) from error

    def free_bytes(self, path: str) -> int:
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise _failure("statvfs", path, error) from error
        return status.f_bavail * status.f_frsize


class ReadOnlyDisk(RealDisk):
    """The operating system's files for who only looks: everything that would change something raises `StorageError`."""

    def open(self, path: str) -> DiskFile:
        return self._open(path, os.O_RDONLY)

    def create(self, path: str) -> DiskFile:
        raise _only_read(path)

    def rename(self, old_path: str, new_path: str) -> None:
        raise _only_read(old_path)

    def unlink(self, path: str) -> None:
        raise _only_read(path)

    def remove_directory(self, path: str) -> None:
        raise _only_read(path)

    def mkdir(self, path: str) -> None:
        raise _only_read(path)

    def sync_directory(self, path: str) -> None:
        raise _only_read(path)


def _only_read(path: str) -> StorageError:
    return StorageError(f"{path} is only read, never changed")
