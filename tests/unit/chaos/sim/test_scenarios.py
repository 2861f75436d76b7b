"""Scenarios: drawn from the seed alone, made of steps that there are, and asked for by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cli_sim import sim_command
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.drawing import draw_schedule
from chaos.sim.run import run_schedule
from chaos.sim.scenarios.catalogue import SCENARIOS, draw
from chaos.sim.schedule import read_schedule, write_schedule
from chaos.sim.steps import Steps


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_of_a_scenario_is_always_the_same_and_says_what_it_is(name: str) -> None:
    schedule = draw(7, scenario=name)
    assert schedule == draw(7, scenario=name)
    assert schedule.steps != draw(8, scenario=name).steps
    assert schedule.scenario == schedule.without(frozenset({0})).scenario == name


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_steps_of_scenarios_can_be_done(name: str) -> None:
    for seed in range(10):
        for step in draw(seed, scenario=name).steps:
            assert hasattr(Steps, f"_{step.kind}") or hasattr(SimulatedCluster, step.kind), step.kind
            assert step.at_ms >= 0


def test_without_a_scenario_a_seed_is_what_it_was() -> None:
    assert draw(7) == draw_schedule(7)
    assert draw(7).scenario == ""


def test_a_kept_schedule_names_its_scenario(tmp_path: Path) -> None:
    schedule = draw(3, scenario="ambush")
    write_schedule(schedule, tmp_path / "kept.json", "ambush: lost")
    assert read_schedule(tmp_path / "kept.json").scenario == "ambush"


def test_a_run_of_a_scenario_is_the_same_run_each_time() -> None:
    fingerprints = {run_schedule(draw(1, scenario="hostile_commands", operations=4)).fingerprint for _ in range(2)}
    assert len(fingerprints) == 1


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    result = CliRunner().invoke(sim_command, ["--seeds", "1", "--scenario", "nonsense"])
    assert result.exit_code == 2
    assert "'nonsense' is no scenario" in result.output
    assert all(name in result.output for name in SCENARIOS)


def test_the_list_says_what_each_is_aimed_at() -> None:
    result = CliRunner().invoke(sim_command, ["--scenario", "list"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)
    assert all(scenario.about in line for line, scenario in zip(lines, SCENARIOS.values(), strict=True))
