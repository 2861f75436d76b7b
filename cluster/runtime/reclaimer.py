"""When the node's storage reclaims garbage: a turn per tick, or hundreds a second while garbage piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from node.store.shared.compaction.compaction import TURN_S, URGENT_EVERY_S, Reclaimed


class Storage(Protocol):
    """What is to be cared for."""

    def reclaim(self) -> Reclaimed:
        """Take a small step. Does not raise."""

    @property
    def has_unsynced(self) -> bool:
        """True if something waits for a sync."""


class Reclaimer:
    """Begins no step after `TURN_S` of a turn, by ``clock`` (seconds, and it goes on within a turn of the loop)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        storage: Storage,
        request_sync: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._storage = storage
        self._request_sync = request_sync
        self._clock = clock
        #: Of the next turn, while it is urgent.
        self._timer: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        """Some times a second."""
        if self._timer is None:
            self._turn()

    def _turn(self) -> None:
        self._timer = None  # it is over, whatever comes of this turn: otherwise no tick would begin another
        end_s = self._clock() + TURN_S
        came_of_it = self._storage.reclaim()
        while came_of_it.has_worked and self._clock() < end_s:
            came_of_it = self._storage.reclaim()
        if came_of_it.is_urgent:
            self._timer = self._loop.call_later(URGENT_EVERY_S, self._turn)
        if self._storage.has_unsynced:
            self._request_sync()

    def stop(self) -> None:
        """No turn after this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
