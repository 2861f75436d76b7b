"""What the operating system says about memory, disk and descriptors. Cheap enough to be asked ten times a second."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

from cluster.runtime.identity import IDENTITY_FILE
from node.errors import DirectoryGoneError
from node.store.disk.disk import Disk

log = logging.getLogger(__name__)

_STATM = "/proc/self/statm"
_STATM_BYTES_MAX = 256


class SystemProbe:
    """`cluster.runtime.outside.ResourceProbe` of this process."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        #: The identity of the directory was there: this node has begun.
        self._was_there = False
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._process = psutil.Process()
        self._statm: int | None = None
        try:
            # Kept open: a read at its beginning is a few microseconds, opening it each time is ten times that.
            self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            log.debug("no %s here: memory is measured the slower way", _STATM)
        self._trim = _find_trim()

    def used_memory_bytes(self) -> int:
        if self._statm is not None:
            return int(os.pread(self._statm, _STATM_BYTES_MAX, 0).split()[1]) * self._page_bytes
        return int(self._process.memory_info().rss)

    def free_disk_bytes(self) -> int:
        self._look_for_directory()
        return self._disk.free_bytes(self._data_dir)

    def _look_for_directory(self) -> None:
        """Files that are open outlive their directory, and are written and synced as if nothing had happened."""
        try:
            Path(self._data_dir, IDENTITY_FILE).stat()
        except (FileNotFoundError, NotADirectoryError):
            if self._was_there:
                raise DirectoryGoneError(
                    f"data_dir {self._data_dir} was removed while this node ran, or another directory is in its place; "
                    "the next start says what can be done"
                ) from None
        except OSError:
            log.debug("it cannot be seen whether %s is there", self._data_dir)
        else:
            self._was_there = True

    def can_open_files(self, count: int) -> bool:
        tried: list[int] = []
        try:
            tried += (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count))
        except OSError:
            pass
        finally:
            for descriptor in tried:
                os.close(descriptor)
        return len(tried) == count

    def return_memory(self) -> None:
        if self._trim is not None:
            self._trim(0)

    def physical_memory_bytes(self) -> int:
        return int(psutil.virtual_memory().total)

    def memory_group_limits(self) -> list[int]:
        return memory_group_limits()

    def close(self) -> None:
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None


def _find_trim() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; other allocators have none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    found: Callable[[int], int] = trim
    return found


def memory_group_limits(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Limits in bytes of the control groups that this process is in, of either generation; a container is one."""
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for path in _limit_paths(lines, root):
        try:
            text = path.read_text(encoding="utf-8").strip()
        except OSError:
            continue  # not mounted, or hidden from a container, which then sees its own group at the root
        if text.isdigit():
            limits.append(int(text))
    return limits


def _limit_paths(lines: list[str], root: Path) -> Iterator[Path]:
    """Where limits may stand, given the lines ``number:controllers:path``: in the group and in all groups above it."""
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(group)
        for above in (path, *path.parents):
            yield base / str(above).lstrip("/") / name


def raise_open_files_limit() -> int:
    """Let this process open as many files as it may, and return how many that is.

    A queue in use keeps two to six files open and a connection one, while the limit that most systems begin with is
    1,024, for the sake of programs that use ``select``. Ours do not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_limit()


def open_files_limit() -> int:
    """How many files and sockets this process may have open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
