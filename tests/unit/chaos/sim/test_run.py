"""Whole nodes in one process: a run is a function of its schedule, and what breaks a promise is found."""

from __future__ import annotations

import pytest

from chaos.history import Kind
from chaos.sim.ablation.storage import orphaned_consumer
from chaos.sim.drawing import draw_schedule
from chaos.sim.judge import Violation
from chaos.sim.run import Outcome, run_schedule
from chaos.sim.scenarios.catalogue import draw
from chaos.sim.schedule import Personality, Schedule, Step


def small(seed: int = 4) -> Schedule:
    """Three seconds of a seed."""
    return draw_schedule(seed, operations=30, length_ms=3_000)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_schedule(small())


def test_a_small_run_keeps_every_promise(outcome: Outcome) -> None:
    assert outcome.violations == []
    kinds = [event.kind for event in outcome.events]
    assert kinds.count(Kind.CONFIRM) > 10, "something was at risk"
    assert outcome.turns > 1000


def test_the_same_schedule_does_the_same(outcome: Outcome) -> None:
    again = run_schedule(small())
    assert again.fingerprint == outcome.fingerprint
    assert again.story == outcome.story
    assert again.events == outcome.events


def test_another_seed_does_something_else(outcome: Outcome) -> None:
    assert run_schedule(small(5)).fingerprint != outcome.fingerprint


def test_a_consumer_that_outlives_its_channel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    orphaned_consumer(monkeypatch)
    found = (run_schedule(draw(seed, scenario="sessions")).violations for seed in range(29, 33))
    told = (str(violation) for violations in found for violation in violations)
    assert any("whose channels do not have them" in each for each in told), "the first of some seeds that meets one"


def test_a_deletion_without_an_answer_may_be_carried_out_after_the_next_declaration() -> None:
    """Its node stands aside before it can say what became of it; the queue is declared at another, and goes then."""
    outcome = run_schedule(draw(12, scenario="stale_metadata"))
    assert any("refused: 320" in line for line in outcome.story)
    assert outcome.violations == []


def test_a_step_may_be_taken_out() -> None:
    """And one that makes no sense where it comes does nothing."""
    personality: Personality = small().personality
    steps = (Step(10, "start", ("n1",)), Step(20, "kill", ("n2",)), Step(30, "kill", ("n2",)), Step(40, "resume", ()))
    whole = Schedule(1, personality, steps, 100)
    kept = whole.without(frozenset({3}))
    assert [step.kind for step in kept.steps] == ["start", "kill", "kill"]
    assert run_schedule(kept).violations == []


def test_a_violation_reads_as_a_line() -> None:
    assert str(Violation("lost", "message 1:2")) == "lost: message 1:2"
