"""Snapshots of the metadata, taken over many turns of the loop.

With many queues and bindings a snapshot is megabytes and the better part of a second of work: done in one turn, a node
would miss heartbeats and elections because of its housekeeping. So

1. when enough entries were applied, the state machine hands out what it is now, as pieces to be encoded; whatever is
   applied meanwhile does not change them;
2. one piece is encoded per turn of the loop;
3. the worker that syncs the log writes the file, beside the snapshot in force, and syncs it;
4. back on the loop the file is put into force: a rename, and a new log file that begins behind it.

**Crash.** Until the rename the snapshot and log of before are in force, and a file that was left beside them is removed
at the next start. **A snapshot from the leader** that is installed meanwhile is newer: the one under way is dropped.
**A disk that is full** is tried again after some more entries, or after some time if somebody waits for the snapshot:
what would bring entries may be refused until then. Any other error of the disk stops the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from cluster.raft.core import RaftCore
from cluster.raft.storage import RaftStorage
from cluster.runtime.outside import Worker
from node.errors import ShortageError, StorageError

log = logging.getLogger(__name__)

#: The first protocol whose releases read a snapshot that says which entry made its configuration.
SAYING_CONFIGURATIONS = 3
#: A snapshot for which there was no space is tried again after so many entries.
SNAPSHOT_RETRY_ENTRIES = 1000
#: Or, if somebody waits for it, after so long: encoding a large one takes the better part of a second.
SNAPSHOT_WANTED_RETRY_S = 30.0


class SnapshotSource(Protocol):
    """The state machine, as far as it is asked for snapshots."""

    @property
    def protocol(self) -> int:
        """Which releases carry it out, as of the last entry applied: those that speak this or more."""

    @property
    def wants_snapshot(self) -> bool:
        """Somebody waits to know how large it is."""

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The whole state as of the last entry applied, in pieces; what is applied later does not change them."""

    def snapshot_taken(self, index: int, data: bytes) -> None:
        """The snapshot as of the entry at ``index`` is in force: what led there need not be remembered."""


class SnapshotTaker:
    """Takes one snapshot at a time. Everything on the loop. ``on_failed``: it cannot, and not for want of space."""

    def __init__(
        self,
        core: RaftCore,
        storage: RaftStorage,
        source: SnapshotSource,
        worker: Worker,
        *,
        entries: int,
        log_bytes: int,
        on_failed: Callable[[StorageError], None],
    ) -> None:
        """A snapshot is due ``entries`` after the last, or when the file of the log is longer than ``log_bytes``."""
        self._core = core
        self._storage = storage
        self._source = source
        self._worker = worker
        self._entries_max = entries
        self._log_bytes_max = log_bytes
        self._on_failed = on_failed
        #: Entries applied since the last snapshot was begun.
        self._entries = 0
        #: When the last one was begun.
        self._begun_s = float("-inf")
        self._taking: asyncio.Task[None] | None = None
        #: Since when the worker has one to write, by the loop's clock; ``None``: it has none.
        self.writing_since_ms: int | None = None

    def applied(self, count: int, index: int) -> None:
        """So many entries more, the last at ``index``: begin a snapshot if it is time."""
        self._entries += count
        self.look(index)

    def look(self, index: int) -> None:
        """Between two entries, the last at ``index``; also now and then, for time may have passed."""
        if self._taking is None and self._is_due(index):
            self._entries = 0
            self._begun_s = asyncio.get_running_loop().time()
            says_configuration = self._source.protocol >= SAYING_CONFIGURATIONS
            taking = self._take(index, self._source.snapshot_pieces(), says_configuration)
            self._taking = asyncio.get_running_loop().create_task(taking)

    def _is_due(self, index: int) -> bool:
        if self._source.wants_snapshot and self._may_follow() and self._is_newest(index):
            return True
        is_long = self._entries >= self._entries_max or self._storage.log_bytes > self._log_bytes_max
        return is_long and self._entries > 0

    def _may_follow(self) -> bool:
        """What is wanted is large: one after the other would keep the node busy."""
        return asyncio.get_running_loop().time() - self._begun_s >= SNAPSHOT_WANTED_RETRY_S

    def installed(self) -> None:
        """A snapshot of the leader's is in force."""
        self._entries = 0

    async def stop(self) -> None:
        """Give up the one under way. The worker may still write its file, which nobody reads."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])

    async def _take(self, index: int, pieces: Iterator[bytes], says_configuration: bool) -> None:
        try:
            encoded = []
            for piece in pieces:
                encoded.append(piece)
                await asyncio.sleep(0)
            data = b"".join(encoded)
            if not self._is_newest(index):
                return
            snapshot = self._core.snapshot_of(index, data, says_configuration=says_configuration)
            self.writing_since_ms = int(asyncio.get_running_loop().time() * 1000)
            await self._worker.run(lambda: self._storage.prepare_snapshot(snapshot))
            if self._is_newest(index):
                self._core.compact(snapshot)
                self._source.snapshot_taken(index, data)
                self._storage.adopt_snapshot(snapshot)
        except ShortageError as error:
            log.warning("no space for a snapshot, the log grows on: %s", error)
            self._entries = -SNAPSHOT_RETRY_ENTRIES
        except StorageError as error:
            self._on_failed(error)
        except Exception as error:
            log.exception("taking a snapshot failed")
            self._on_failed(StorageError(f"no snapshot can be taken: {error!r}"))
        finally:
            self._taking = self.writing_since_ms = None

    def _is_newest(self, index: int) -> bool:
        return index > self._core.log.snapshot.index
