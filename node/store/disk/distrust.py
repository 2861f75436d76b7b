"""What a failed sync leaves behind, and how the next start finds out what the disk has.

When fsync fails, the kernel marks the pages that it could not write as clean and keeps them: whoever reads the file
sees what was written, another fsync succeeds at once, and the disk has none of it (Rebello et al., *Can Applications
Recover from fsync Failures?*, USENIX ATC 2020). So after that nothing that this process wrote counts as durable, in
whatever file it is and whoever synced it (`Use.on_failed`), and the node ends. A process that ends and starts again, as
a node does, opens the same pages, though: it would take a vote for kept that the next loss of power takes away, an
entry of the log for safe that it acknowledges, and a message for one that it need not be sent.

A process cannot be relied on to tell: it may be killed before it hears of the failure. So it leaves a mark when it
begins, and takes it away when it has ended in order and no sync has failed. Who finds one gives up what is in memory of
every file of the node before it reads one (`posix_fadvise`, ``POSIX_FADV_DONTNEED``: what is clean goes, what is yet to
be written stays). From then on it reads what the disk has, as after a loss of power, which every file is made for. The
mark need not survive such a loss: neither does what it is about. A system that keeps the pages all the same is as it
was before. What else is in the directory, a `lost+found` of root's or an operator's link, is nobody's business here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from node.errors import StorageError
from node.store.disk.disk import Disk

log = logging.getLogger(__name__)

MARK_FILE = "running"


class OwnDisk(Disk, Protocol):
    """A disk that tells of failed syncs."""

    #: Called on the thread of each sync that has failed.
    on_sync_failed: Callable[[StorageError], None]

    def reread(self, path: str) -> None:
        """Give up what is in memory of a file, or of all files below a directory, and is not to be written: it is read
        from the disk again. Nothing there is no error, and no link below is followed. Raises `StorageError`."""


class Use:
    """From the first look at a data directory to the end of the process, or of what it did there."""

    def __init__(self, disk: OwnDisk, data_dir: str) -> None:
        """Mark the directory, unless it is. Raises `StorageError`."""
        self._disk = disk
        self._path = f"{data_dir}/{MARK_FILE}"
        self._has_failed = False
        #: Called on the thread of each sync that has failed, before anybody can hear of another.
        self.on_failed: Callable[[StorageError], None] = lambda _error: None
        disk.on_sync_failed = self._note_failure
        if not disk.exists(self._path):
            # Not closed: it would keep its descriptor until a sync, and nobody syncs it.
            disk.create(self._path).abandon()

    def _note_failure(self, error: StorageError) -> None:
        self._has_failed = True
        self.on_failed(error)

    def end(self) -> None:
        """Everything that was written is closed: the mark goes, unless a sync has failed."""
        if not self._has_failed:
            with suppress(StorageError):  # it costs the next start some reading
                self._disk.unlink(self._path)


def reread_if_marked(disk: OwnDisk, data_dir: str, names: Collection[str]) -> None:
    """Before anything is read from ``data_dir``, of which the node has these. Raises `StorageError`."""
    if disk.exists(f"{data_dir}/{MARK_FILE}"):
        log.info("the process before did not end in order, or a sync failed: files are read from the disk, not memory")
        for name in sorted(names):
            disk.reread(f"{data_dir}/{name}")
