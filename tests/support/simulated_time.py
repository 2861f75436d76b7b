"""Running a coroutine in virtual time: what waits is over at once, and in the right order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from chaos.record.process_record import RunClock
from chaos.sim.loop import simulated_loop

_T = TypeVar("_T")


def in_simulated_time(work: Coroutine[Any, Any, _T]) -> _T:
    """Its result. Fails if it waits for something that never comes."""
    loop = simulated_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class LoopClock(RunClock):
    """Tells the time of the running loop."""

    def now_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6)
