"""One direction of the network in memory between two hosts, and what of one connection is on its way there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Generic, Protocol, TypeVar

_Item = TypeVar("_Item")


class PathUser(Protocol):
    """An end of a connection that sends or hears by a path."""

    def path_changed(self) -> None:
        """It was cut or healed."""


class Path:
    """What the network does to what one host sends to another."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        #: One way; each thing sent takes a time between the two, and never overtakes within its connection.
        self.delay_min_s = 0.0
        self.delay_max_s = 0.0
        #: New connections in this direction are refused, as by a firewall that says so.
        self.is_refusing = False
        self._is_open = asyncio.Event()
        self._is_open.set()
        #: In the order in which they came.
        self._users: dict[PathUser, None] = {}

    @property
    def is_cut(self) -> bool:
        return not self._is_open.is_set()

    def cut(self) -> None:
        """From now on nothing arrives."""
        self._is_open.clear()
        for user in list(self._users):
            user.path_changed()

    def heal(self) -> None:
        """What was held arrives, and everything after it."""
        self._is_open.set()
        for user in list(self._users):
            user.path_changed()

    def draw_delay_s(self) -> float:
        return self._chance.uniform(self.delay_min_s, self.delay_max_s)

    async def cross(self) -> None:
        """Wait as long as something takes that is repeated until it arrives."""
        await pass_time(self.draw_delay_s())
        await self._is_open.wait()

    def add(self, user: PathUser) -> None:
        self._users[user] = None

    def discard(self, user: PathUser) -> None:
        self._users.pop(user, None)


class Pipe(Generic[_Item]):
    """What one end of a connection has sent and has not arrived yet."""

    def __init__(self, path: Path, deliver: Callable[[_Item], None]) -> None:
        self._path = path
        self._deliver = deliver
        #: With the time when each is due, which never goes back.
        self._items: deque[tuple[float, _Item]] = deque()
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, item: _Item) -> None:
        self._last_due = max(self._last_due, asyncio.get_running_loop().time() + self._path.draw_delay_s())
        self._items.append((self._last_due, item))
        self.wake()

    def wake(self) -> None:
        """Deliver when the next item is due, if there is one and the path is open."""
        if self._timer is None and self._items and not self._path.is_cut:
            self._timer = asyncio.get_running_loop().call_at(self._items[0][0], self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if self._path.is_cut or not self._items:
            return
        due = self._items[0][0]
        while self._items and self._items[0][0] <= due:
            self._deliver(self._items.popleft()[1])
        self.wake()

    def lose_suffix(self, chance: Random) -> None:
        """What has arrived by now of what was on its way is left to chance; nothing else ever will."""
        items = [item for _, item in self._items]
        self._items.clear()
        arrived = 0 if self._path.is_cut else chance.randint(0, len(items))
        for item in items[:arrived]:
            self._deliver(item)
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def pass_time(seconds: float) -> None:
    """Let a moment of the loop's time pass."""
    loop = asyncio.get_running_loop()
    moment: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _finish, moment)
    try:
        await moment
    finally:
        timer.cancel()


def _finish(moment: asyncio.Future[None]) -> None:
    if not moment.done():  # who waited may have been cancelled in this very turn
        moment.set_result(None)
