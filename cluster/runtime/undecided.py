"""Proposals that whoever made them may withdraw.

What nobody has decided is proposed again under each new leader, for half a minute, and by then it may only do harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Generic, TypeVar

from cluster.runtime.background import Background

_About = TypeVar("_About")


class Undecided(Generic[_About]):
    """At most one about each thing."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._changes: dict[_About, asyncio.Task[object]] = {}

    def __contains__(self, about: _About) -> bool:
        return about in self._changes

    def __iter__(self) -> Iterator[_About]:
        return iter(list(self._changes))

    def propose(self, about: _About, change: Coroutine[Any, Any, object], what: str) -> None:
        """Have ``change``, which the log calls ``what``, decided, in place of what was proposed about the same."""
        self.withdraw(about)
        task = self._changes[about] = asyncio.get_running_loop().create_task(change)
        task.add_done_callback(lambda done: self._decided(about, done))
        self._background.spawn(task, what)

    def withdraw(self, about: _About) -> None:
        """If it is not decided yet."""
        change = self._changes.pop(about, None)
        if change is not None:
            change.cancel()

    def _decided(self, about: _About, change: asyncio.Task[object]) -> None:
        if self._changes.get(about) is change:
            del self._changes[about]
        if not change.cancelled():
            change.exception()  # told by the background, unless that has ended before
