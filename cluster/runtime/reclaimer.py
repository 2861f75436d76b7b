"""When the node's storage reclaims garbage: a step per tick, or hundreds a second while garbage piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from node.store.compaction import URGENT_EVERY_S


class Storage(Protocol):
    """What is to be cared for."""

    def reclaim(self) -> bool:
        """Take a bounded step; true if the next should follow after `URGENT_EVERY_S`. Does not raise."""

    @property
    def has_unsynced(self) -> bool:
        """True if something waits for a sync."""


class Reclaimer:
    """Never takes two steps in one turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, storage: Storage, request_sync: Callable[[], None]) -> None:
        self._loop = loop
        self._storage = storage
        self._request_sync = request_sync
        #: Of the next step, while it is urgent.
        self._timer: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        """Some times a second."""
        if self._timer is None:
            self._step()

    def _step(self) -> None:
        is_urgent = self._storage.reclaim()
        self._timer = self._loop.call_later(URGENT_EVERY_S, self._step) if is_urgent else None
        if self._storage.has_unsynced:
            self._request_sync()

    def stop(self) -> None:
        """No step after this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
