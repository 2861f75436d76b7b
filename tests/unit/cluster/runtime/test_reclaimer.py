"""Garbage is reclaimed in short turns: one per tick, or again soon while it piles up."""

from __future__ import annotations

import asyncio

from cluster.runtime.reclaimer import Reclaimer
from node.store.shared.compaction.compaction import TURN_S, URGENT_EVERY_S, Reclaimed


class Storage:
    """Has so many steps of work, each of which takes some time, and says so often that the next turn is urgent."""

    def __init__(self, *, work: int = 0, urgent: int = 0, step_s: float = TURN_S) -> None:
        self.work = work
        self.urgent = urgent
        self.step_s = step_s
        self.steps = 0
        self.now_s = 0.0
        self.has_unsynced = False
        self.is_calm = asyncio.Event()

    def reclaim(self) -> Reclaimed:
        self.steps += 1
        self.now_s += self.step_s
        if self.steps > self.urgent:
            self.is_calm.set()
        return Reclaimed(self.steps <= self.work, self.steps <= self.urgent)


def reclaimer_of(storage: Storage, requests: list[int] | None = None) -> Reclaimer:
    asked = [] if requests is None else requests
    loop = asyncio.get_running_loop()
    return Reclaimer(loop, storage, lambda: asked.append(storage.steps), lambda: storage.now_s)


async def test_a_turn_per_tick_while_there_is_little_garbage() -> None:
    storage = Storage()
    reclaimer = reclaimer_of(storage)
    for _ in range(3):
        reclaimer.tick()
    assert storage.steps == 3


async def test_a_turn_is_over_after_its_time() -> None:
    storage = Storage(work=100, step_s=TURN_S / 4)
    reclaimer = reclaimer_of(storage)
    reclaimer.tick()
    assert storage.steps == 4
    storage.step_s = 20 * TURN_S
    reclaimer.tick()
    assert storage.steps == 5, "where everything is slow a turn is one step"


async def test_a_turn_is_over_when_everything_waits_for_the_disk() -> None:
    storage = Storage(work=2, step_s=TURN_S / 10)
    reclaimer = reclaimer_of(storage)
    reclaimer.tick()
    assert storage.steps == 3, "the third found nothing to do"


async def test_turns_follow_by_themselves_while_garbage_piles_up_and_a_tick_adds_none() -> None:
    storage = Storage(work=100, urgent=4)
    reclaimer = reclaimer_of(storage)
    reclaimer.tick()
    reclaimer.tick()
    assert storage.steps == 1
    async with asyncio.timeout(10):
        await storage.is_calm.wait()
    assert storage.steps == 5
    reclaimer.tick()
    assert storage.steps == 6


async def test_a_turn_that_wrote_something_asks_for_a_sync() -> None:
    storage = Storage()
    requests: list[int] = []
    reclaimer = reclaimer_of(storage, requests)
    reclaimer.tick()
    storage.has_unsynced = True
    reclaimer.tick()
    assert requests == [2]


async def test_no_turn_follows_a_stop() -> None:
    storage = Storage(work=100, urgent=4)
    reclaimer = reclaimer_of(storage)
    reclaimer.tick()
    reclaimer.stop()
    # Timers come in order: one that was set before this one would have come first.
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(URGENT_EVERY_S, is_over.set)
    await is_over.wait()
    assert storage.steps == 1


async def test_a_mistake_in_a_turn_does_not_make_it_the_last() -> None:
    storage = Storage(work=100, urgent=1)
    reclaimer = reclaimer_of(storage)
    reclaimer.tick()

    def mistake() -> Reclaimed:
        raise RuntimeError("a mistake")

    is_made = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: is_made.set())
    reclaim = storage.reclaim
    storage.reclaim = mistake  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await is_made.wait()
    storage.reclaim = reclaim  # type: ignore[method-assign]
    reclaimer.tick()
    assert storage.steps == 2
