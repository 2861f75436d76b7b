"""Faults drawn by chance."""

from __future__ import annotations

from random import Random

import pytest

from chaos.conduct.swarm import draws
from chaos.plan.actions import ACTIONS
from chaos.plan.model import Step

FAULTS = [Step(ACTIONS["kill"], for_s=1.0), Step(ACTIONS["pause"], for_s=2.0)]


def test_each_part_of_the_time_has_one_moment() -> None:
    drawn = draws({"faults": FAULTS, "every": 20.0, "draws": 50}, Random(1))
    assert [int(draw.at_s // 20) for draw in drawn] == list(range(50))
    assert {id(draw.step) for draw in drawn} == {id(step) for step in FAULTS}


@pytest.mark.parametrize(("quiet", "least", "most"), [(0.0, 0, 0), (0.5, 60, 140), (1.0, 200, 200)])
def test_some_are_quiet(quiet: float, least: int, most: int) -> None:
    drawn = draws({"faults": FAULTS, "every": 1.0, "quiet": quiet, "draws": 200}, Random(3))
    assert least <= sum(draw.step is None for draw in drawn) <= most


def test_a_seed_draws_the_same_again() -> None:
    told = {"faults": FAULTS, "every": 1.0, "quiet": 0.3, "draws": 30}
    assert draws(told, Random(5)) == draws(told, Random(5)) != draws(told, Random(6))
