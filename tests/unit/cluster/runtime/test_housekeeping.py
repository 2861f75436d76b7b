"""What a tick does, how often, and what is made of one that comes late."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from cluster.runtime.housekeeping import (
    LOOK_FOR_ROOM_EVERY_TICKS,
    PAUSE_MS,
    READMIT_EVERY_TICKS,
    REPROPOSE_EVERY_TICKS,
    TICK_S,
    Housekeeping,
)

TICK_MS = int(TICK_S * 1000)


class Bench:
    """Parts that count what they are asked to do."""

    def __init__(self) -> None:
        self.now_ms = 5000
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.pauses_ms: list[int] = []
        self.wants_sync = False
        part = self.part
        membership = SimpleNamespace(tick=self.tick_membership, repeat=part("repeat"))
        self.housekeeping = Housekeeping(
            asyncio.get_running_loop(),
            lambda: self.now_ms,
            flow=cast(Any, SimpleNamespace(advance=part("flow"))),
            membership=cast(Any, membership),
            queues=cast(Any, SimpleNamespace(tick=part("queues"))),
            alarms=cast(Any, SimpleNamespace(tick=part("alarms"))),
            files=cast(Any, SimpleNamespace(maintain=self.maintain)),
            reclaimer=cast(Any, SimpleNamespace(tick=part("reclaimer"), stop=part("reclaimer stopped"))),
            proposals=cast(Any, SimpleNamespace(readmit=part("readmit"))),
            room=cast(Any, SimpleNamespace(look=part("room"), stop=part("room stopped"))),
            request_sync=part("sync"),
        )

    def part(self, name: str) -> Any:
        return lambda *_: self.note(name)

    def tick_membership(self, now_ms: int, pause_ms: int) -> None:
        self.note("membership")
        self.pauses_ms.append(pause_ms)

    def maintain(self, now_ms: int) -> bool:
        self.note("files")
        return self.wants_sync

    def note(self, name: str) -> None:
        self.calls[name] += 1
        self.order.append(name)

    def tick(self, after_ms: int = TICK_MS) -> None:
        self.now_ms += after_ms
        self.housekeeping.tick()


async def test_every_tick_looks_after_everything_in_one_order() -> None:
    bench = Bench()
    bench.tick()
    assert bench.order == ["flow", "membership", "queues", "alarms", "files", "reclaimer"]


async def test_some_things_are_looked_at_now_and_then() -> None:
    bench = Bench()
    ticks = 2 * READMIT_EVERY_TICKS
    for _ in range(ticks):
        bench.tick()
    assert bench.calls["queues"] == ticks
    assert bench.calls["repeat"] == ticks // REPROPOSE_EVERY_TICKS
    assert bench.calls["room"] == ticks // LOOK_FOR_ROOM_EVERY_TICKS
    assert bench.calls["readmit"] == 2


async def test_a_sync_is_asked_for_if_the_storage_wants_one() -> None:
    bench = Bench()
    bench.tick()
    assert "sync" not in bench.calls
    bench.wants_sync = True
    bench.tick()
    assert bench.calls["sync"] == 1


async def test_a_tick_that_comes_much_too_late_excuses_the_peers() -> None:
    bench = Bench()
    bench.tick()
    bench.tick(TICK_MS + PAUSE_MS - 1)
    bench.tick(TICK_MS + PAUSE_MS)
    bench.tick(60_000)
    assert bench.pauses_ms == [0, 0, PAUSE_MS, 60_000 - TICK_MS]


async def test_the_first_tick_is_at_once_and_none_comes_after_the_end() -> None:
    bench = Bench()
    bench.housekeeping.start()
    assert bench.calls["flow"] == 1
    bench.housekeeping.stop()
    assert bench.calls["reclaimer stopped"] == 1
    # Timers come in order: the next tick would have come first.
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(TICK_S, is_over.set)
    await is_over.wait()
    assert bench.calls["flow"] == 1
