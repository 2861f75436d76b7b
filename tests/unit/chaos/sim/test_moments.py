"""Moments in the life of a node that a step lies in wait for."""

from __future__ import annotations

from chaos.sim.run import run_schedule
from tests.support.simulated import SAFE_POLICY, publish, schedule

ALONE = {**SAFE_POLICY, "ha-mode": "nodes", "ha-params": ["n1"]}
MIRRORED = {**SAFE_POLICY, "ha-mode": "nodes", "ha-params": ["n1", "n2"]}


def test_a_master_is_met_as_it_is_about_to_say_that_a_mirror_lacks_nothing() -> None:
    outcome = run_schedule(
        schedule(
            publish(100),
            (450, "lie_in_wait", "filled", "isolate"),
            (500, "policy", MIRRORED),
            (7_000, "isolate_end", "n1"),
            policy=ALONE,
            lasts_ms=8_000,
        )
    )
    assert outcome.violations == []
    story = [line[11:] for line in outcome.story]
    met = story.index("n1: filled ")
    # It is taken for dead before it is heard, and then the mirror serves.
    assert any("epoch 1: is down" in line for line in story[met:]), story
    assert any("elects n2 (was n1)" in line for line in story[met:]), story
