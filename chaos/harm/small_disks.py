"""Disks that can be full: a file system of limited size in a file, mounted where a node has its data.

The file has no name once it is mounted, and holes where nothing was written: when it is unmounted, which ends with the
processes that use it, its room comes back by itself. It is a real file system (ext4), where a sync is one.

Only who may mount can have one. Whether that is so is tried, in a name space of mounts of its own that ends with the
trial.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from chaos.harm.journal import CannotUndo, Journal

#: By which the journal knows `unmount_told`.
HOW = "mount"
#: Far more than a queue of a scenario needs; only what is written takes room.
DISK_BYTES = 4 << 30
_TRIAL_BYTES = 16 << 20
#: What is taken at a time, as long as there is so much; the last is a block.
_PIECES_BYTES = (1 << 30, 1 << 26, 1 << 22, 1 << 18, 1 << 12)
_TIMEOUT_S = 60.0
_FILLER = "filler"
#: Who looks at all file systems (a monitor, say) uses it for a moment.
_UNMOUNT_ATTEMPTS = 5
_UNMOUNT_PAUSE_S = 0.2
#: Few inodes: their tables are written out, and queues have some files each.
_FORMAT = ("mkfs.ext4", "-q", "-F", "-m", "0", "-i", "65536", "-E", "lazy_itable_init=1,lazy_journal_init=1")


class DiskError(Exception):
    """It could not be made, mounted or filled; the text has what was said."""


@cache
def why_none() -> str:
    """Why there can be no small disk on this machine; empty if there can."""
    with tempfile.TemporaryDirectory(prefix="warren-disk-") as scratch:
        image, place = Path(scratch) / "image", Path(scratch) / "place"
        place.mkdir()
        _make_hole(image, _TRIAL_BYTES)
        try:
            _run(*_FORMAT, str(image))
            mount = 'mount -o loop "$0" "$1" && umount "$1"'
            _run("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(image), str(place))
        except DiskError as error:
            return f"no file system can be mounted here: {error}"
    return ""


class SmallDisk:
    """One, mounted."""

    def __init__(self, place: Path, journal: Journal, size_bytes: int = DISK_BYTES) -> None:
        """Make it, and mount it on the directory ``place``. Blocks. Raises `DiskError`."""
        self.place = place
        self._journal = journal
        image = place.with_name(f"{place.name}.image")
        place.mkdir(parents=True, exist_ok=True)
        self._entry = journal.will_do(HOW, f"a file system is mounted on {place}", place=str(place), image=str(image))
        try:
            _make_hole(image, size_bytes)
            _run(*_FORMAT, str(image))
            _run("mount", "-o", "loop", str(image), str(place))
            image.unlink()
            (place / "lost+found").rmdir()
        except BaseException:
            self.close()
            raise

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        state = os.statvfs(self.place)
        return state.f_bavail * state.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but so much. Blocks. Raises `DiskError`."""
        descriptor = os.open(self.place / _FILLER, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for piece_bytes in _PIECES_BYTES:
                while self.free_bytes - piece_bytes >= leave_bytes:
                    if not _take(descriptor, piece_bytes):
                        break
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        """Give back what `fill` took."""
        (self.place / _FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it; what is on it is gone. Nobody may use it any more. May be called twice. Raises `DiskError`."""
        try:
            unmount_told({"place": str(self.place), "image": str(self.place.with_name(f"{self.place.name}.image"))})
        except CannotUndo as error:
            raise DiskError(str(error)) from None
        self._journal.undone(self._entry)


def unmount_told(told: Mapping[str, Any]) -> None:
    """The undoer."""
    place = Path(told["place"])
    for attempt in range(_UNMOUNT_ATTEMPTS):
        try:
            while os.path.ismount(place):
                _run("umount", str(place))
        except DiskError as error:
            if attempt == _UNMOUNT_ATTEMPTS - 1:
                raise CannotUndo(f"{error}; see who uses it (fuser -m {place}), and unmount it by hand") from None
            time.sleep(_UNMOUNT_PAUSE_S)
    Path(told["image"]).unlink(missing_ok=True)


def _make_hole(image: Path, size_bytes: int) -> None:
    image.unlink(missing_ok=True)
    with image.open("xb") as file:
        file.truncate(size_bytes)


def _take(descriptor: int, piece_bytes: int) -> bool:
    """False if there is not so much room."""
    end = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, end, piece_bytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise DiskError(f"the disk could not be filled: {error}") from error
        return False
    return True


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiskError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise DiskError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip() or 'it said nothing'}")
