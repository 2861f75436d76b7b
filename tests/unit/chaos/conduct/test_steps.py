"""Steps of a scenario, taken one after the other."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from chaos.conduct.faults import Faults
from chaos.conduct.steps import NotReached, Steps, pattern_of
from chaos.conduct.watch import Watch
from chaos.plan.actions import ACTIONS
from chaos.plan.reading import scenario
from chaos.record.kinds import Kind
from chaos.targets.target import QueueView
from tests.support.recorded_rows import RecordedRows
from tests.support.scripted_crew import ScriptedCrew
from tests.support.scripted_target import ScriptedTarget
from tests.support.simulated_time import LoopClock, in_simulated_time

HEAD = """
id = "X"
title = "x"
holds = "x"
[[queue]]
name = "orders"
[[queue]]
name = "b.c"
"""


class Scene:
    """A cluster of three, its clients, and a scenario of which the rounds are given."""

    def __init__(self) -> None:
        self.target = ScriptedTarget()
        self.target.views = {"orders": QueueView("orders", 1, (2, 3), (2,), ready=5, incarnation="a")}
        self.crew = ScriptedCrew()
        self.rows = RecordedRows()
        self.said: list[str] = []
        self.faults: Faults | None = None
        self.steps: Steps | None = None

    def play(self, rounds: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> float:
        """All rounds, while something else happens. Returns the seconds that they took."""
        return in_simulated_time(self._play(rounds, meanwhile))

    async def _play(self, rounds: str, meanwhile: Callable[[], Awaitable[None]] | None) -> float:
        plan = scenario(tomllib.loads(HEAD + rounds))
        clock, chance = LoopClock(), Random(1)
        self.faults = Faults(self.target, self.rows, clock, chance, 2, dict)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with Watch(self.target, ["orders", "b.c"], self.rows, clock) as watch:
            self.steps = steps = Steps(
                plan, self.target, watch, self.crew, self.faults, self.rows, clock, chance, self.said.append
            )
            other = asyncio.ensure_future(meanwhile()) if meanwhile is not None else None
            await watch.next_look()
            await steps.take_all()
            took_s = loop.time() - began_s
            if other is not None:
                await other
        await self.faults.close()
        return took_s

    def done(self) -> list[tuple[Any, ...]]:
        return self.target.done


def one_round(*steps: str, times: int = 1) -> str:
    return f"[[round]]\ntimes = {times}\n" + "".join(f"[[round.step]]\n{step}\n" for step in steps)


def test_every_action_can_be_taken() -> None:
    """By the table: none is read, and then not known."""
    scene = Scene()
    scene.play("")
    assert scene.steps is not None
    assert set(scene.steps.doers()) == {name for name, action in ACTIONS.items() if not action.is_fault}


def test_a_step_waits_for_its_condition_and_no_longer() -> None:
    scene = Scene()

    async def fill() -> None:
        await asyncio.sleep(20)
        scene.target.views["orders"] = QueueView("orders", 2, ready=2000, incarnation="b")

    took_s = scene.play(one_round('when = "ready of orders >= 2000"\ndo = "kill"\nto = "master of orders"'), fill)
    assert scene.done() == [("kill", 2)]
    assert 20 <= took_s < 21


def test_what_does_not_come_to_pass_is_told() -> None:
    scene = Scene()
    with pytest.raises(NotReached, match=r"ready of orders >= 9 did not come to pass within 30 s: it is 5"):
        scene.play(one_round('when = "ready of orders >= 9"\nwithin = "30 s"\ndo = "kill"\nto = "n1"'))
    assert scene.done() == []


def test_a_time_counts_from_the_step_before_and_begins_before_a_condition() -> None:
    scene = Scene()

    async def publish() -> None:
        await asyncio.sleep(8)
        scene.crew.published.confirmed = 10

    took_s = scene.play(
        one_round(
            'do = "stop consumers"',
            'when = "confirmed >= 10"\nafter = "3 s"\ndo = "start consumers"',
            'after = "5 s"\ndo = "wait"',
        ),
        publish,
    )
    assert scene.crew.told == [("cease", "consumer"), ("start", "consumer")]
    assert 13 <= took_s < 14


def test_counts_begin_anew_with_each_round() -> None:
    scene = Scene()
    scene.crew.published.confirmed = 100

    async def publish() -> None:
        for _ in range(4):
            await asyncio.sleep(10)
            scene.crew.published.confirmed += 50

    took_s = scene.play(one_round('when = "confirmed >= 100"\ndo = "wait"', times=2), publish)
    assert 40 <= took_s < 41


def test_failovers_count_since_the_round_began() -> None:
    scene = Scene()

    async def fail_over() -> None:
        for number in (2, 3):
            await asyncio.sleep(10)
            scene.target.views["orders"] = QueueView("orders", number, incarnation=f"life {number}")

    took_s = scene.play(one_round('when = "failovers of orders >= 1"\ndo = "wait"', times=2), fail_over)
    assert 20 <= took_s < 21
    assert len(scene.rows.of(Kind.PROMOTED)) == 2


@pytest.mark.parametrize(
    ("condition", "within"),
    [
        ("synchronised of orders = 1", True),
        ("mirrors of orders = 2", True),
        ("running = 2", True),
        ("held >= 7", True),
        ("redelivered >= 3", True),
        ("outstanding = 4", True),
        ("unacked of orders >= 1", False),
        ("ready of b.c >= 0", False),
    ],
)
def test_what_can_be_waited_for(condition: str, within: bool) -> None:
    scene = Scene()
    scene.target.down = {3}

    async def consume() -> None:
        await asyncio.sleep(1)
        scene.crew.consumed.held = 7
        scene.crew.consumed.redelivered = 3
        scene.crew.published.outstanding = 4

    text = one_round(f'when = "{condition}"\nwithin = "5 s"\ndo = "wait"')
    if within:
        scene.play(text, consume)
    else:
        with pytest.raises(NotReached):
            scene.play(text, consume)


def test_a_step_waits_until_there_is_who_is_meant() -> None:
    scene = Scene()
    scene.target.views["orders"] = QueueView("orders", None)

    async def promote() -> None:
        await asyncio.sleep(10)
        scene.target.views["orders"] = QueueView("orders", 3, incarnation="b")

    scene.play(one_round('do = "pause"\nto = "master of orders"'), promote)
    assert scene.done() == [("pause", 3)]


def test_nobody_who_is_meant_is_a_result() -> None:
    scene = Scene()
    scene.target.views["orders"] = QueueView("orders", 1, incarnation="a")
    with pytest.raises(NotReached, match="every mirror of orders: there is nobody"):
        scene.play(one_round('do = "kill"\nto = "every mirror of orders"\nwithin = "5 s"'))


def test_orders_go_to_a_node_that_takes_them() -> None:
    scene = Scene()
    scene.target.deaf = {1}
    scene.target.down = {2}
    scene.play(one_round('do = "sync"\nto = "orders"', 'do = "cancel sync"\nto = "orders"', 'do = "clear policy"'))
    assert scene.done() == [
        ("sync", "orders", "at n3"),
        ("cancel sync", "orders", "at n3"),
        ("clear policy", "chaos", "at n3"),
    ]


def test_an_order_waits_for_a_node() -> None:
    scene = Scene()
    scene.target.deaf = {1, 2, 3}

    async def hear() -> None:
        await asyncio.sleep(30)
        scene.target.deaf = {1, 2}

    scene.play(one_round('do = "sync"\nto = "orders"'), hear)
    assert scene.done() == [("sync", "orders", "at n3")]


def test_an_order_that_nobody_takes_is_a_result() -> None:
    scene = Scene()
    scene.target.deaf = {1, 2, 3}
    with pytest.raises(NotReached, match="no node takes an order: n3 does not answer"):
        scene.play(one_round('do = "sync"\nto = "orders"'))


def test_a_purge_is_recorded() -> None:
    scene = Scene()
    scene.play(one_round('do = "purge"\nto = "b.c"'))
    [row] = scene.rows.of(Kind.EMPTIED)
    assert row.others == {"queue": 2, "detail": "purge"}


def test_a_policy_is_for_the_queues_of_the_scenario_only() -> None:
    scene = Scene()
    scene.play(one_round('do = "set policy"\npolicy = { ha-mode = "all" }'))
    assert scene.done() == [("set policy", "chaos", r"^(?:orders|b\.c)$", {"ha-mode": "all"}, "at n1")]
    assert pattern_of(["a+"]) == r"^(?:a\+)$"


def test_nodes_are_restarted_one_after_the_other() -> None:
    scene = Scene()
    scene.play(one_round('do = "rolling restart"\nto = "n1, n3"'))
    assert scene.done() == [
        ("stop", 1), ("start", 1), ("wait ready", 1), ("stop", 3), ("start", 3), ("wait ready", 3),
    ]  # fmt: skip
    assert scene.faults is not None
    assert scene.faults.landed == 2


def test_a_node_that_is_down_is_only_started_by_a_rolling_restart() -> None:
    scene = Scene()
    scene.target.down = {1}
    scene.play(one_round('do = "rolling restart"\nto = "n1"', 'do = "wipe"\nto = "n2"'))
    assert scene.done() == [("start", 1), ("wait ready", 1), ("wipe", 2)]


def test_clients_are_told() -> None:
    scene = Scene()
    names = ["stop publishers", "hold", "pause consumers", "resume consumers", "release", "start publishers"]
    scene.play(one_round(*(f'do = "{name}"' for name in names)))
    assert scene.crew.told == [
        ("drain", "publisher"),
        ("hold", "consumer"),
        ("pause", "consumer"),
        ("resume", "consumer"),
        ("release", "consumer"),
        ("start", "publisher"),
    ]
    assert [row.kind for row in scene.rows.of(Kind.FAULT_BEGIN, Kind.FAULT_END)] == [Kind.FAULT_BEGIN, Kind.FAULT_END]


def test_a_swarm_draws_takes_what_can_be_done_and_goes_on() -> None:
    scene = Scene()
    took_s = scene.play(
        one_round(
            'do = "any of"\nevery = "10 s"\ndraws = 30\nquiet = 0.3\nfaults = ['
            '{ do = "kill", to = "a random node", for = "4 s" },'
            '{ do = "kill", to = "every mirror of b.c", for = "4 s" } ]',
            'do = "heal"',
        )
    )
    kills = [done for done in scene.done() if done[0] == "kill"]
    assert len(kills) == len([done for done in scene.done() if done[0] == "start"])
    assert 5 <= len(kills) <= 20
    assert scene.said.count("a quiet time") + scene.said.count(
        "every mirror of b.c: nobody has told of the queue yet"
    ) == 30 - len(kills)
    assert 290 <= took_s <= 301
