"""An event loop whose time passes only when there is nothing else to do: a timeout of an hour is over at once.

Time stands still while callbacks run and jumps to the next timer when none is ready, so what happens, and in which
order, depends on nothing outside. It is meant for code without sockets and threads; those are still looked at, but time
does not wait for them.
"""

from __future__ import annotations

import asyncio
import selectors


class StandstillError(RuntimeError):
    """Every task waits, and there is no timer left that could end it."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its `time` begins with 0, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: it moves the loop's time instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise StandstillError("everybody waits for somebody else")
        if not ready and timeout is not None:
            self._loop.now += timeout
        return ready
