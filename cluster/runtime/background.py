"""Work of a node that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from node.errors import WarrenError
from node.throttled_log import ThrottledLog

log = logging.getLogger(__name__)


class Background:
    """Tasks whose failure is logged, not lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refusals = ThrottledLog(log, loop.call_later)
        #: Failures are expected now, and interest nobody.
        self.is_stopping = False

    def spawn(self, work: Awaitable[Any], what: str) -> None:
        """Run ``work``, which the log calls ``what``."""
        task = self._loop.create_task(self._run(work, what))
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if isinstance(work, Coroutine):
            # It has not begun if the task was cancelled before it had its turn, which Python would warn of.
            task.add_done_callback(lambda _task: work.close())

    async def _run(self, work: Awaitable[Any], what: str) -> None:
        try:
            await work
        except WarrenError as error:
            # Without a quorum the same is tried, and refused, again and again.
            self._refusals.write(what, f"{what}: {error}", logging.DEBUG if self.is_stopping else logging.INFO)
        except Exception:
            log.exception("%s failed", what)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def stop(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
