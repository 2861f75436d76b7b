"""Faults that begin, hold, and end: what is done, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from chaos.conduct.faults import REACTION_S, Faults
from chaos.harm.lines import CLIENTS, Line
from chaos.plan.model import Step
from chaos.plan.reading import scenario
from chaos.record.kinds import Kind
from chaos.targets.target import TargetError
from tests.support.recorded_rows import RecordedRows
from tests.support.scripted_target import ScriptedTarget
from tests.support.simulated_time import LoopClock, in_simulated_time

BETWEEN = [Line(1, 2), Line(2, 1)]


class Scene:
    """A cluster of three, and the faults of a run with two queues."""

    def __init__(self) -> None:
        self.target = ScriptedTarget()
        self.rows = RecordedRows()
        self.risk = {"stored": 0}
        self.faults = Faults(self.target, self.rows, LoopClock(), Random(1), 2, lambda: self.risk)

    def kinds(self) -> list[tuple[Kind, int]]:
        return [(row.kind, int(row.others["fault"])) for row in self.rows.rows]


def run(work: Coroutine[Any, Any, None]) -> None:
    in_simulated_time(work)


def step(text: dict[str, Any]) -> Step:
    document = {"id": "X", "title": "x", "holds": "x", "queue": [{"name": "q"}], "round": [{"step": [text]}]}
    [read] = scenario(document).steps
    return read


def test_who_was_killed_is_started_again() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1"}), [1, 2], [])
        scene.faults.check_invariants()
        await scene.faults.heal()

    run(work())
    assert scene.target.done == [("kill", 1, 2), ("start", 1), ("start", 2)]
    assert scene.kinds() == [(Kind.FAULT_BEGIN, 1), (Kind.FAULT_END, 1)]
    assert scene.faults.holding == []


def test_a_fault_that_lands_nowhere_is_none() -> None:
    scene = Scene()
    scene.target.down = {1}
    scene.target.deaf = {2}

    async def work() -> None:
        assert await scene.faults.begin(step({"do": "kill", "to": "n1"}), [1], []) is None
        assert await scene.faults.begin(step({"do": "memory alarm", "to": "n2"}), [2], []) is None

    run(work())
    assert scene.rows.rows == []
    assert scene.faults.landed == 0


def test_of_several_nodes_those_count_on_which_it_landed() -> None:
    scene = Scene()
    scene.target.down = {1}

    async def work() -> None:
        fault = await scene.faults.begin(step({"do": "kill", "to": "all nodes"}), [1, 2, 3], [])
        assert fault is not None
        assert fault.nodes == (2, 3)

    run(work())
    assert scene.target.done == [("kill", 2, 3)]


@pytest.mark.parametrize(
    ("what", "done"),
    [
        ({"do": "stop", "to": "n1"}, [("stop", 1), ("start", 1)]),
        ({"do": "pause", "to": "n1"}, [("pause", 1), ("resume", 1)]),
        (
            {"do": "slow disk", "to": "n1", "latency": "50 ms"},
            [("slow disk", 1, {"latency": 0.05}), ("no more slow disk", 1)],
        ),
    ],
)
def test_every_fault_of_a_node_has_its_end(what: dict[str, Any], done: list[tuple[Any, ...]]) -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step(what), [1], [])
        await scene.faults.heal()

    run(work())
    assert scene.target.done == done


def test_a_fault_ends_by_itself_and_once() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1", "for": "5 s"}), [1], [])
        await asyncio.sleep(4.9)
        assert scene.target.down == {1}
        await asyncio.sleep(0.2)
        assert scene.target.down == set()
        await scene.faults.heal()
        scene.faults.check()
        scene.faults.check_invariants()

    run(work())
    assert scene.target.done == [("kill", 1), ("start", 1)]


def test_what_is_healed_before_its_time_does_not_end_again() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1", "for": "5 s"}), [1], [])
        await scene.faults.heal()
        await scene.faults.begin(step({"do": "kill", "to": "n1"}), [1], [])
        await asyncio.sleep(10)

    run(work())
    assert scene.target.done == [("kill", 1), ("start", 1), ("kill", 1)]


def test_what_the_end_of_a_fault_meets_is_heard_of() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1", "for": "1 s"}), [1], [])
        scene.target.failing.add(1)
        await asyncio.sleep(2)
        scene.faults.check()

    with pytest.raises(TargetError, match="it does not start"):
        run(work())


def test_only_what_is_named_is_healed() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1", "name": "first"}), [1], [])
        await scene.faults.begin(step({"do": "pause", "to": "n2"}), [2], [])
        await scene.faults.heal("first")

    run(work())
    assert scene.target.done == [("kill", 1), ("pause", 2), ("start", 1)]
    assert [fault.action for fault in scene.faults.holding] == ["pause"]


def test_who_stands_still_is_not_started() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1"}), [1], [])
        scene.target.down.clear()
        await scene.faults.begin(step({"do": "pause", "to": "n1"}), [1], [])
        await scene.faults.start([1])

    run(work())
    assert scene.target.done == [("kill", 1), ("pause", 1)]


def test_a_node_that_does_not_listen_is_told_again() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "memory alarm", "to": "n1"}), [1], [])
        scene.target.deaf = {1}
        ending = asyncio.create_task(scene.faults.heal())
        await asyncio.sleep(3)
        assert not ending.done()
        scene.target.deaf.clear()
        await ending

    run(work())
    assert scene.target.done == [("memory alarm", 1, {}), ("no more memory alarm", 1)]


def test_faults_of_bytes_and_of_connections_are_laid_on_their_lines() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "black hole", "to": "n1 -> n2"}), [], [Line(2, CLIENTS)])
        await scene.faults.begin(step({"do": "cut", "to": "n1 -> n2"}), [], [Line(2, CLIENTS)])
        await scene.faults.heal()

    run(work())
    assert scene.target.done == [
        ("lay", 1, "black hole", ["n2-n0"]),
        ("lay", 2, "cut", ["clients-n2"]),
        ("lift", 2),
        ("lift", 1),
    ]


def test_a_swizzle_cuts_one_line_after_the_other_and_brings_them_back() -> None:
    scene = Scene()
    moments: list[float] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await scene.faults.begin(step({"do": "swizzle", "to": "n1 <-> n2", "over": "4 s"}), [], BETWEEN)
        moments.append(loop.time() - began_s)
        await scene.faults.heal()
        moments.append(loop.time() - began_s)

    run(work())
    assert [done[0] for done in scene.target.done] == ["lay", "lay", "lift", "lift"]
    assert sorted(proxy for done in scene.target.done[:2] for proxy in done[3]) == ["n1-n2", "n2-n1"]
    assert sorted(done[1] for done in scene.target.done[2:]) == [1, 2]
    assert moments == pytest.approx([2.0, 6.0])


# --- what is recorded


@pytest.mark.parametrize(
    ("what", "lines"),
    [({"do": "pause", "to": "n1"}, []), ({"do": "cut", "to": "n1 <-> n2"}, BETWEEN)],
)
def test_what_may_lose_what_is_under_way_disturbs_every_queue(what: dict[str, Any], lines: list[Line]) -> None:
    scene = Scene()

    async def work() -> None:
        await asyncio.sleep(100)
        await scene.faults.begin(step(what), [1], lines)
        await asyncio.sleep(7)
        await scene.faults.heal()

    run(work())
    rows = list(zip(scene.rows.rows, scene.rows.times_us, strict=True))
    began_us = next(since for row, (since, _) in rows if row.kind is Kind.FAULT_BEGIN)
    disturbed = [(row.others["queue"], times) for row, times in rows if row.kind is Kind.DISTURBED]
    interval = (began_us, began_us + round((7 + REACTION_S) * 1e6))
    assert disturbed == [(1, interval), (2, interval)]
    assert scene.faults.longest_hold_us == 7_000_000


def test_a_death_disturbs_nothing_and_holds_nothing_up() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1"}), [1], [])
        await asyncio.sleep(7)
        await scene.faults.heal()

    run(work())
    assert scene.rows.of(Kind.DISTURBED) == []
    assert scene.faults.longest_hold_us == 0


def test_the_record_says_what_was_done_to_whom_and_what_was_at_risk() -> None:
    scene = Scene()
    scene.risk = {"stored": 40, "held": 2}

    async def work() -> None:
        await scene.faults.begin(step({"do": "slow disk", "to": "n1", "latency": "1 s"}), [3], [])
        scene.risk = {"stored": 1, "held": 0}
        await scene.faults.begin(step({"do": "kill", "to": "n1"}), [1, 2], [])

    run(work())
    first, second = scene.rows.of(Kind.FAULT_BEGIN)
    assert first.others["node"] == 3
    assert json.loads(str(first.others["detail"])) == {
        "type": "slow disk",
        "nodes": [3],
        "lines": [],
        "told": {"latency": 1.0},
        "at_risk": {"stored": 40, "held": 2},
    }
    assert "node" not in second.others
    assert scene.faults.risked == {"stored": 41, "held": 2}
    assert scene.faults.landed == 2


def test_something_that_ends_when_it_is_done_is_a_fault_meanwhile() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.during("wipe", [2], scene.target.wipe(2))

    run(work())
    assert scene.kinds() == [(Kind.FAULT_BEGIN, 1), (Kind.FAULT_END, 1)]
    assert scene.target.done == [("wipe", 2)]


def test_consumers_that_stood_still_read_late() -> None:
    scene = Scene()

    async def work() -> None:
        fault = scene.faults.note_begin("pause consumers")
        await asyncio.sleep(3)
        scene.faults.note_end(fault)

    run(work())
    assert scene.faults.longest_hold_us == 3_000_000
    assert scene.rows.of(Kind.DISTURBED) == []


def test_after_the_end_of_a_run_nothing_ends_by_its_time() -> None:
    scene = Scene()

    async def work() -> None:
        await scene.faults.begin(step({"do": "kill", "to": "n1", "for": "1 s"}), [1], [])
        await scene.faults.close()
        await asyncio.sleep(5)

    run(work())
    assert scene.target.done == [("kill", 1)]
