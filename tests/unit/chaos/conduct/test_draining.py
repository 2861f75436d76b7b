"""When nothing comes any more: empty, still, or not to be known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chaos.conduct.draining import ANSWERED_S, EMPTY_LOOKS, EMPTY_S, STILL_S, await_answers, await_empty
from chaos.conduct.watch import PAUSE_S, Watch
from chaos.targets.target import QueueView
from tests.support.recorded_rows import RecordedRows
from tests.support.scripted_crew import ScriptedCrew
from tests.support.scripted_target import ScriptedTarget
from tests.support.simulated_time import LoopClock, in_simulated_time


class Scene:
    """Two queues on one node, and their clients."""

    def __init__(self) -> None:
        self.target = ScriptedTarget(nodes=1)
        self.crew = ScriptedCrew()
        self.put("a")
        self.put("b")

    def put(self, name: str, ready: int = 0, unacked: int = 0, master: int | None = 1) -> None:
        self.target.views[name] = QueueView(name, master, ready=ready, unacked=unacked, incarnation="x")

    def empty(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> tuple[set[str], list[str], float]:
        """Which queues are drained, what is noted, and how long it took."""

        async def work() -> tuple[set[str], list[str], float]:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            async with Watch(self.target, ["a", "b"], RecordedRows(), LoopClock()) as watch:
                other = asyncio.ensure_future(meanwhile()) if meanwhile is not None else None
                drained, notes = await await_empty(self.crew, watch)
                took_s = loop.time() - began_s
                if other is not None:
                    other.cancel()
            return drained, notes, took_s

        return in_simulated_time(work())

    def answers(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> list[str]:
        async def work() -> list[str]:
            async with Watch(self.target, ["a", "b"], RecordedRows(), LoopClock()) as watch:
                other = asyncio.ensure_future(meanwhile()) if meanwhile is not None else None
                notes = await await_answers(self.crew, watch)
                if other is not None:
                    other.cancel()
            return notes

        return in_simulated_time(work())


def test_empty_queues_are_drained_when_they_were_seen_so_again_and_again() -> None:
    drained, notes, took_s = Scene().empty()
    assert (drained, notes) == ({"a", "b"}, [])
    assert took_s >= (EMPTY_LOOKS - 1) * PAUSE_S


def test_a_queue_that_fills_again_begins_anew() -> None:
    scene = Scene()

    async def fill() -> None:
        await asyncio.sleep(PAUSE_S * 2.5)
        scene.put("a", ready=1)
        await asyncio.sleep(3)
        scene.put("a")

    assert scene.empty(fill)[2] >= 3 + (EMPTY_LOOKS - 1) * PAUSE_S


def test_what_consumers_have_not_proven_is_waited_for() -> None:
    scene = Scene()
    scene.crew.consumed.outstanding = 1

    async def prove() -> None:
        await asyncio.sleep(5)
        scene.crew.consumed.outstanding = 0

    drained, notes, took_s = scene.empty(prove)
    assert (drained, notes) == ({"a", "b"}, [])
    assert took_s >= 5


def test_what_stays_when_consumers_get_no_more_is_told_and_the_queues_count_as_drained() -> None:
    scene = Scene()
    scene.put("a", ready=3)
    drained, notes, took_s = scene.empty()
    assert drained == {"a", "b"}
    assert notes == [
        "consumers get no more, and queues are not empty (a: 3 ready, 0 unacknowledged; b: 0 ready, 0 unacknowledged)"
    ]
    assert STILL_S < took_s < STILL_S + 1


@pytest.mark.parametrize("what", ["nobody leads it", "a consumer is not subscribed"])
def test_who_gets_nothing_for_another_reason_proves_nothing(what: str) -> None:
    scene = Scene()
    scene.put("a", ready=3, master=None if what == "nobody leads it" else 1)
    scene.crew.are_all_subscribed = what == "nobody leads it"
    drained, notes, took_s = scene.empty()
    assert drained == {"b"}
    assert notes == [f"queues did not run empty within {EMPTY_S:g} s: a"]
    assert took_s >= EMPTY_S


def test_as_long_as_something_moves_it_is_not_still() -> None:
    scene = Scene()
    scene.put("a", ready=1000)

    async def consume() -> None:
        for left in range(999, -1, -100):
            await asyncio.sleep(STILL_S - 1)
            scene.crew.consumed.delivered += 100
            scene.put("a", ready=max(left - 99, 0))

    drained, notes, _ = scene.empty(consume)
    assert (drained, notes) == ({"a", "b"}, [])


def test_answers_are_waited_for() -> None:
    scene = Scene()
    scene.crew.published.is_drained = False

    async def answer() -> None:
        await asyncio.sleep(60)
        scene.crew.published.is_drained = True

    assert scene.answers(answer) == []


def test_answers_that_do_not_come_are_told_of() -> None:
    scene = Scene()
    scene.crew.published.is_drained = False
    scene.crew.published.outstanding = 7
    scene.crew.published.waiting = 2
    assert scene.answers() == [
        f"7 publishes were not answered, and 2 messages not attempted again, within {ANSWERED_S:g} s"
    ]
