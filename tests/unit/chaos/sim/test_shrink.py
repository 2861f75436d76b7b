"""What a failing schedule is shrunk to, with runs that only look at which steps are left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.sim.drawing import draw_schedule
from chaos.sim.judge import Violation
from chaos.sim.run import Outcome
from chaos.sim.schedule import Schedule, Step
from chaos.sim.shrink import shrink


def schedule(*kinds: str) -> Schedule:
    drawn = draw_schedule(1)
    return Schedule(1, drawn.personality, tuple(Step(at, kind) for at, kind in enumerate(kinds)), len(kinds))


def fails_if(condition: Callable[[list[str]], bool], kind: str = "lost") -> Callable[[Schedule], Outcome]:
    def run(tried: Schedule) -> Outcome:
        is_failing = condition([step.kind for step in tried.steps])
        return Outcome(1, [Violation(kind, "")] if is_failing else [], 0, 0, 0, [], [])

    return run


def left(found: Schedule) -> list[str]:
    return [step.kind for step in found.steps]


def test_only_what_is_needed_is_left_and_in_its_order() -> None:
    long = schedule(*"abcdefgh" * 8, "kill", *"xyz" * 9, "start", *"uvw" * 7)
    found, outcome = shrink(long, run=fails_if(lambda kinds: "kill" in kinds and "start" in kinds))
    assert left(found) == ["kill", "start"]
    assert outcome.is_failed


def test_what_fails_without_any_step_is_shrunk_to_none() -> None:
    found, _ = shrink(schedule(*"abc"), run=fails_if(lambda _kinds: True))
    assert left(found) == []


def test_another_failure_is_not_the_one_that_is_looked_for() -> None:
    def run(tried: Schedule) -> Outcome:
        kinds = left(tried)
        kind = "lost" if "kill" in kinds else "stuck"
        return Outcome(1, [Violation(kind, "")], 0, 0, 0, [], [])

    found, outcome = shrink(schedule("a", "kill", "b"), run=run)
    assert left(found) == ["kill"]
    assert outcome.violations[0].kind == "lost"


def test_it_stops_when_it_has_tried_enough() -> None:
    runs: list[int] = []
    shrink(
        schedule(*"abcdefgh" * 20),
        runs_max=7,
        run=fails_if(lambda kinds: len(kinds) == 160),
        on_progress=lambda count, _steps: runs.append(count),
    )
    assert runs[-1] == 7


def test_what_does_not_fail_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(schedule("a"), run=fails_if(lambda _kinds: False))
