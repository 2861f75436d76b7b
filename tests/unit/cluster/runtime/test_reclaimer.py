"""Garbage is reclaimed a step at a time: with the ticks, or soon again while it piles up."""

from __future__ import annotations

import asyncio

from cluster.runtime.reclaimer import Reclaimer
from node.store.compaction import URGENT_EVERY_S


class Storage:
    """Says of so many steps that the next is urgent."""

    def __init__(self, urgent: int) -> None:
        self.urgent = urgent
        self.steps = 0
        self.has_unsynced = False
        self.is_calm = asyncio.Event()

    def reclaim(self) -> bool:
        self.steps += 1
        if self.steps > self.urgent:
            self.is_calm.set()
        return self.steps <= self.urgent


def reclaimer_of(storage: Storage, requests: list[int]) -> Reclaimer:
    return Reclaimer(asyncio.get_running_loop(), storage, lambda: requests.append(storage.steps))


async def test_a_step_per_tick_while_there_is_little_garbage() -> None:
    storage = Storage(urgent=0)
    reclaimer = reclaimer_of(storage, [])
    for _ in range(3):
        reclaimer.tick()
    assert storage.steps == 3


async def test_steps_follow_by_themselves_while_garbage_piles_up_and_a_tick_adds_none() -> None:
    storage = Storage(urgent=4)
    reclaimer = reclaimer_of(storage, [])
    reclaimer.tick()
    reclaimer.tick()
    assert storage.steps == 1, "never two in one turn"
    async with asyncio.timeout(10):
        await storage.is_calm.wait()
    assert storage.steps == 5
    reclaimer.tick()
    assert storage.steps == 6


async def test_a_step_that_wrote_something_asks_for_a_sync() -> None:
    storage = Storage(urgent=0)
    requests: list[int] = []
    reclaimer = reclaimer_of(storage, requests)
    reclaimer.tick()
    storage.has_unsynced = True
    reclaimer.tick()
    assert requests == [2]


async def test_no_step_follows_a_stop() -> None:
    storage = Storage(urgent=4)
    reclaimer = reclaimer_of(storage, [])
    reclaimer.tick()
    reclaimer.stop()
    # Timers come in order: one that was set before this one would have come first.
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(URGENT_EVERY_S, is_over.set)
    await is_over.wait()
    assert storage.steps == 1
