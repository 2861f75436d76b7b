"""What a failed sync leaves behind, and how the next start finds out what the disk has.

When fsync fails, the kernel marks the pages that it could not write as clean and keeps them: whoever reads the file
sees what was written, another fsync succeeds at once, and the disk has none of it (Rebello et al., *Can Applications
Recover from fsync Failures?*, USENIX ATC 2020). So no file is synced a second time after that
(`node.store.disk.group_commit`). A process that ends and starts again, as a node does, opens the same pages, though:
it would take a vote for kept that the next loss of power takes away, an entry of the log for safe that it
acknowledges, and a message for one that it need not be sent.

So a process leaves a note when a sync fails, and whoever comes after gives up what is in memory of every file in the
directory before it reads one (`posix_fadvise`, ``POSIX_FADV_DONTNEED``: what is clean goes, what is yet to be written
stays). From then on it reads what the disk has, as after a loss of power, which every file is made for. The note need
not survive such a loss: neither does what it is about. A system that keeps the pages all the same is as it was before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from node.errors import StorageError
from node.store.disk.disk import Disk

log = logging.getLogger(__name__)

NOTE_FILE = "sync.failed"


class OwnDisk(Disk, Protocol):
    """A disk that tells of failed syncs."""

    #: Called on the thread of each sync that has failed.
    on_sync_failed: Callable[[], None]

    def reread(self, path: str) -> None:
        """Give up what is in memory of a file and is not to be written: it is read from the disk again. A directory,
        or nothing, is no error. Raises `StorageError`."""


def note_failed_syncs(disk: OwnDisk, data_dir: str) -> None:
    """From now on a failed sync leaves a note in ``data_dir``."""
    path = f"{data_dir}/{NOTE_FILE}"

    def note() -> None:
        with suppress(StorageError):  # a disk that takes no names any more takes no start either
            if not disk.exists(path):
                disk.create(path).close()

    disk.on_sync_failed = note


def reread_if_noted(disk: OwnDisk, data_dir: str) -> None:
    """Before anything is read from ``data_dir``. Raises `StorageError`."""
    path = f"{data_dir}/{NOTE_FILE}"
    if disk.exists(path):
        log.warning("a sync failed in the life before: all files are read from the disk again")
        _reread_all(disk, data_dir)
        disk.unlink(path)


def _reread_all(disk: OwnDisk, directory: str) -> None:
    for name in disk.list(directory):
        disk.reread(f"{directory}/{name}")
        _reread_all(disk, f"{directory}/{name}")
