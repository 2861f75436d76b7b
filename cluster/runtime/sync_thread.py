"""The worker that only syncs: it carries out the rounds of the group commit, and the loop never waits for the disk.

One round at a time. Whoever wrote and waits for durability calls `SyncThread.request`; at the end of that turn of the
loop the buffers are flushed and a round begins, and everybody who writes while it runs shares the next one, which
begins the moment this one ends. A failed sync is final (see `node.store.disk.group_commit`). A round that finds no
descriptor goes on a little later, and until then nothing is durable: it is waited for like a full disk.

A flush writes a bounded piece of what is collected. If nobody waits for that piece there is no round, and the next
piece follows a little later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.runtime.outside import Worker
from node.errors import OpenFilesError, StorageError
from node.store.disk.group_commit import GroupCommit, SyncRound

log = logging.getLogger(__name__)

#: Until the rest is flushed that nobody waits for: one piece takes a millisecond or two.
FLUSH_AGAIN_S = 0.005
#: Until a round goes on that found no descriptor.
SYNC_AGAIN_S = 0.1


class SyncThread:
    """Runs the rounds of ``group_commit``. All methods and callbacks on the loop's thread.

    ``flush`` writes what is buffered (and may raise `StorageError`); ``on_durable`` is called after each round,
    ``on_failure`` at most once, after which there are no more rounds, and ``on_nothing`` if a round was asked for and
    there was nothing to sync.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        worker: Worker,
        group_commit: GroupCommit,
        flush: Callable[[], None],
        on_durable: Callable[[], None],
        on_failure: Callable[[StorageError], None],
        on_nothing: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._group_commit = group_commit
        self._flush = flush
        self._on_durable = on_durable
        self._on_nothing = on_nothing
        self._on_failure = on_failure
        self._worker = worker
        #: Somebody waits for durability of what no round has taken yet.
        self._is_requested = False
        #: `_begin` will run at the end of this turn.
        self._is_scheduled = False
        #: Of the flush of what the last one left, if no round has begun since.
        self._again: asyncio.TimerHandle | None = None
        self._is_failed = False
        #: Of the round that runs, or of the time until it goes on.
        self._running: asyncio.Future[None] | None = None
        #: The log has it that the round waits for a descriptor.
        self._is_want_told = False

    def request(self) -> None:
        """Make what is written until the end of this turn durable. Cheap to call often."""
        self._is_requested = True
        if not self._is_scheduled and self._running is None and not self._is_failed:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    async def stop(self) -> None:
        """Sync what is still due, then close the worker. No request may follow."""
        while not self._is_failed:
            if self._running is None:
                self._begin()
            if self._running is None:
                break
            await asyncio.wait([self._running])
            await asyncio.sleep(0)  # the future's own callbacks come first
        self._flush_no_more()
        self._worker.close()

    def _begin(self) -> None:
        self._is_scheduled = False
        if self._running is not None or self._is_failed:
            return
        self._is_requested = False
        self._flush_no_more()
        try:
            self._flush()
        except StorageError as error:
            self._fail(error)
            return
        if self._group_commit.failure is not None:
            self._fail(self._group_commit.failure)
            return
        sync_round = self._group_commit.begin()
        if sync_round is None:
            if self._group_commit.has_dirty:
                self._again = self._loop.call_later(FLUSH_AGAIN_S, self._begin)
            else:
                self._on_nothing()
            return
        self._run(sync_round)

    def _run(self, sync_round: SyncRound) -> None:
        self._running = self._worker.run(sync_round.run)
        self._running.add_done_callback(lambda future: self._finished(sync_round, future))

    def _run_later(self, sync_round: SyncRound, error: OpenFilesError) -> None:
        if not self._is_want_told:
            log.error("nothing becomes durable on this node until there is a descriptor for a sync: %s", error)
            self._is_want_told = True
        waiting = self._running = self._loop.create_future()

        def go_on() -> None:
            self._run(sync_round)
            waiting.set_result(None)

        self._loop.call_later(SYNC_AGAIN_S, go_on)

    def _finished(self, sync_round: SyncRound, future: asyncio.Future[None]) -> None:
        self._running = None
        error = future.exception()
        if isinstance(error, OpenFilesError):
            self._run_later(sync_round, error)
            return
        if self._is_want_told:
            log.info("the sync that waited for a descriptor goes on")
            self._is_want_told = False
        if error is not None:
            failure = error if isinstance(error, StorageError) else StorageError(f"a sync failed: {error!r}")
            self._group_commit.fail(sync_round, failure)
            self._fail(failure)
            return
        self._group_commit.complete(sync_round)
        if self._group_commit.failure is not None:
            self._fail(self._group_commit.failure)
            return
        self._on_durable()
        if self._is_requested or self._group_commit.has_dirty:
            self._begin()

    def _flush_no_more(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _fail(self, error: StorageError) -> None:
        self._is_failed = True
        self._on_failure(error)

    def check_invariants(self) -> None:
        if self._is_requested and not self._is_failed:
            assert self._is_scheduled or self._running is not None, "a request is always answered by a round"
