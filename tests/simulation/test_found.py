"""Schedules that have found a defect once, shrunk to what it took. The product keeps its promises under them now; with
the safeguard taken away again (`chaos.sim.ablation`) they find the same.

One more: ``warren sim --shrink SEED --keep FILE`` for a defect that was one, and a function that brings it back; or
``warren sim ablate --safeguard NAME --keep DIRECTORY``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.sim.ablation.catalogue import SAFEGUARDS
from chaos.sim.run import run_schedule
from chaos.sim.schedule import read_schedule
from chaos.sim.shrink import run_closely
from tests.support.amounts import few_fast

#: Worlds in which a stored schedule may show its defect; the first is the one it was found in.
TRIES = 10
#: Judges took these for defects once.
EXCUSED = sorted((Path(__file__).parent / "excused").glob("*.json"), key=lambda path: path.stat().st_size)
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"), key=lambda path: path.stat().st_size)


def test_every_schedule_has_its_safeguard_and_there_are_some() -> None:
    assert FOUND
    assert {path.stem for path in FOUND} <= set(SAFEGUARDS)


@pytest.mark.parametrize("path", few_fast(FOUND, 6), ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    assert run_schedule(read_schedule(path)).violations == []


@pytest.mark.parametrize("path", few_fast(FOUND, 2), ids=lambda path: path.stem)
def test_what_was_found_once_would_be_found_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, kind = json.loads(path.read_text())["found"].partition(": ")
    assert name == path.stem
    SAFEGUARDS[name].take_away(monkeypatch)
    kept = read_schedule(path)
    # Other delays, too: a change of the product that has nothing to do with it may move the moment that it takes.
    tries = (replace(kept, seed=kept.seed + offset) for offset in range(TRIES))
    # Checks as close as those by which it was shrunk: what is wrong between two turns is seen in few of them.
    assert any(kind in [violation.kind for violation in run_closely(tried).violations] for tried in tries)


def test_there_are_some_that_were_excused() -> None:
    assert EXCUSED


@pytest.mark.parametrize("path", few_fast(EXCUSED, 1), ids=lambda path: path.stem)
def test_what_was_no_defect_is_not_called_one(path: Path) -> None:
    assert run_schedule(read_schedule(path)).violations == []
