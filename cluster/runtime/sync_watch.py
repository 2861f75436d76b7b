"""A disk that neither syncs the log of the metadata nor fails: it hangs, and this node must not lead by it.

A leader does not need its own disk to have things decided: the others commit without it. But it applies nothing that it
has not on disk itself, so what it knows of the cluster is as of when its disk began to hang, and part of what a leader
does goes by that (whom to propose down). A full disk makes a leader silent; one that hangs would not. So a node whose
sync is under way for too long stands back (`RaftCore.stand_back`): it hands over if a majority of the voters is there
without it, and does not stand until the sync has ended. If there is no such majority nothing can be decided, whoever
leads, so nothing that this node knows grows old.

The time is far above what a busy disk takes, so leaders do not change for slowness. A node that was frozen finds a sync
overdue that has long ended, and hears of that in the same turn or the next: so it takes two looks.

Nor is waiting hanging: the worker that syncs also writes snapshots, and a large one takes a slow disk long. All nodes
take theirs at about the same entry, so that nobody would be left to lead; and with a leader the cluster serves its
clients as long as nothing new is decided. So the time of a sync begins anew when no snapshot is being written any more,
or that hangs itself.
"""

from __future__ import annotations

import logging

from cluster.raft.core import RaftCore
from node.errors import StorageError

log = logging.getLogger(__name__)

#: A snapshot that takes so long to be written hangs: the largest has some hundred megabytes.
HANGING_SNAPSHOT_MS = 60_000


class SyncWatch:
    """See the top of this module. Syncs come one after the other."""

    def __init__(self, core: RaftCore, hanging_after_ms: int) -> None:
        self._core = core
        self._hanging_after_ms = hanging_after_ms
        #: When the sync that is under way was given to the worker, and when it began.
        self._given_ms = 0
        self._began_ms: int | None = None
        #: The last look found it overdue.
        self._is_overdue = False
        #: Why this node stands back.
        self._hanging: StorageError | None = None

    def began(self, now_ms: int) -> None:
        """A sync was given to the worker."""
        self._given_ms = self._began_ms = now_ms
        self._is_overdue = False

    def ended(self) -> None:
        """It has succeeded or failed."""
        self._began_ms = None
        if self._hanging is not None:
            self._hanging = None
            self._core.stand_again()
            log.info("the disk has synced the log of the cluster's metadata: this node may lead the cluster again")

    def look(self, now_ms: int, writing_since_ms: int | None = None) -> StorageError | None:
        """On every tick. What to say of the disk if it hangs. ``writing_since_ms``: since when the worker has had a
        snapshot to write, which the sync may have to wait for."""
        if self._began_ms is not None and self._must_wait(now_ms, writing_since_ms):
            self._began_ms, self._is_overdue = now_ms, False
        if self._began_ms is None or now_ms - self._began_ms < self._hanging_after_ms:
            return self._hanging
        if not self._is_overdue:
            self._is_overdue = True
            return self._hanging
        if self._hanging is None:
            seconds = self._hanging_after_ms // 1000
            self._hanging = StorageError(f"a sync has not ended within {seconds} s: the disk hangs")
            log.warning("%s. This node does not lead the cluster until it has, if others can", self._hanging)
        if self._core.voters != (self._core.node,):
            self._core.stand_back(now_ms)
        return self._hanging

    def _must_wait(self, now_ms: int, writing_since_ms: int | None) -> bool:
        """The sync was given to the worker behind a snapshot, not before it, and that does not hang."""
        if writing_since_ms is None or writing_since_ms > self._given_ms:
            return False
        return now_ms - writing_since_ms < HANGING_SNAPSHOT_MS
