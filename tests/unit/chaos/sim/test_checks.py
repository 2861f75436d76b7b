"""Invariants are checked where something happened, and everywhere now and then and at the end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chaos.sim.checks import CHECKS_EVERY, CHECKS_PER_DEEP_CHECK, Checks
from chaos.sim.run import run_schedule
from cluster.metadata.state import MetadataState
from cluster.mirroring.master import MirroredQueue
from tests.support.simulated import publish, schedule

BUSY = schedule(publish(100), publish(400), publish(700), lasts_ms=1_500)


def violated(planting: pytest.MonkeyPatch, owner: type, *, checks_every: int = 20) -> list[str]:
    """What a run says in which an object of this class does not hold what it promises."""

    def fail(_self: object) -> None:
        raise AssertionError("planted")

    planting.setattr(owner, "check_invariants", fail)
    return [violation.kind for violation in run_schedule(BUSY, checks_every=checks_every).violations]


def test_every_distance_divides_the_next_so_that_a_close_look_sees_what_others_see() -> None:
    assert all(later % earlier == 0 for earlier, later in pairwise(CHECKS_EVERY))


def test_a_queue_that_was_called_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before everything is."""
    monkeypatch.setattr("chaos.sim.checks.CHECKS_PER_DEEP_CHECK", 10**9)
    monkeypatch.setattr(Checks, "everything", lambda _self: None)
    assert "invariant" in violated(monkeypatch, MirroredQueue)


def test_the_metadata_are_looked_into_when_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.sim.checks.CHECKS_PER_DEEP_CHECK", 10**9)
    monkeypatch.setattr(Checks, "everything", lambda _self: None)
    assert "invariant" in violated(monkeypatch, MetadataState)


def test_what_nobody_called_is_looked_into_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checks, "_drained", lambda *_: None)
    monkeypatch.setattr(Checks, "everything", lambda _self: None)
    assert "invariant" in violated(monkeypatch, MirroredQueue)
    assert CHECKS_PER_DEEP_CHECK * CHECKS_EVERY[-1] < 10_000, "some times in a run"


def test_everything_is_looked_into_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "invariant" in violated(monkeypatch, MirroredQueue, checks_every=10**9)


def test_checks_change_nothing() -> None:
    assert run_schedule(BUSY, checks_every=1).fingerprint == run_schedule(BUSY, checks_every=10**9).fingerprint
