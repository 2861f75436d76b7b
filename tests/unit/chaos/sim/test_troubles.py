"""What came to be drawn later: in some seeds, of steps that there are, and beside everything that was drawn before."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.sim import drawing
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.drawing import draw_schedule
from chaos.sim.steps import Steps
from chaos.sim.troubles import LONG_FAULTS, TROUBLES, UNBINDING

SEEDS = range(1, 301)


def test_every_kind_is_drawn_and_can_be_done() -> None:
    kinds = Counter(step.kind for seed in SEEDS for step in draw_schedule(seed).steps)
    for kind in ("fan_out", *TROUBLES, *LONG_FAULTS):
        assert kinds[kind] > 0
        assert hasattr(Steps, f"_{kind}") or hasattr(SimulatedCluster, kind)
    for kind in (*TROUBLES, *LONG_FAULTS):
        assert kinds[f"{kind}_end"] == kinds[kind]


def test_what_was_drawn_before_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = SEEDS[:100]
    now = [draw_schedule(seed) for seed in seeds]
    for name in ("draw_troubles", "draw_settings", "draw_fan_outs", "draw_visits"):
        monkeypatch.setattr(drawing, name, lambda *_: [])
    before = [draw_schedule(seed) for seed in seeds]
    assert [schedule.personality for schedule in now] == [schedule.personality for schedule in before]
    assert all(
        not Counter(map(repr, old.steps)) - Counter(map(repr, new.steps)) for old, new in zip(before, now, strict=True)
    )
    changed = sum(old.steps != new.steps for old, new in zip(before, now, strict=True))
    assert len(seeds) / 5 < changed < len(seeds) / 2


def test_no_queue_may_be_away_when_messages_go_to_several() -> None:
    fanned = [
        schedule for schedule in map(draw_schedule, SEEDS) if any(step.kind == "fan_out" for step in schedule.steps)
    ]
    assert fanned
    for schedule in fanned:
        assert UNBINDING.isdisjoint(step.kind for step in schedule.steps)
        assert not schedule.personality.overflow


def test_where_mirrors_are_filled_slowly_no_large_message_goes_to_several() -> None:
    fanned = [
        (schedule.personality, step.args[3])
        for schedule in map(draw_schedule, SEEDS)
        for step in schedule.steps
        if step.kind == "fan_out" and schedule.personality.sync_throughput_bytes
    ]
    assert fanned
    assert all(body_bytes <= personality.body_bytes_max for personality, body_bytes in fanned)


def test_workers_too_lose_their_links() -> None:
    at_work = [schedule for schedule in map(draw_schedule, SEEDS) if schedule.personality.workers]
    assert any("w0" in step.args for schedule in at_work for step in schedule.steps)
