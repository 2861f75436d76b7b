"""Rare states: each is listed, each can be noted, and a campaign that has not reached one says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import chaos.sim
from chaos.cli_sim import sim_command
from chaos.sim import campaign
from chaos.sim.campaign import SeedResult
from chaos.sim.sometimes import CATALOGUE, ENOUGH_SEEDS, LOG_LINES, Sightings, seen_in_log

ROOT = Path(chaos.sim.__file__).parents[2]


def sources(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name)


def test_what_is_not_listed_cannot_be_noted() -> None:
    with pytest.raises(AssertionError, match="not in the catalogue"):
        Sightings().note("something else")


def test_everything_that_is_listed_is_noted_somewhere() -> None:
    noted = set(re.findall(r'"([^"\n]+)"', sources("chaos/sim").replace(sources("chaos/sim/sometimes.py"), "")))
    assert set(CATALOGUE) <= noted | set(LOG_LINES.values())


def test_the_lines_that_are_looked_for_are_lines_of_the_product() -> None:
    """Somebody who changes the wording would blind the simulator."""
    product = re.sub(r'"\s*\n\s*f?"', "", sources("cluster") + sources("node"))
    for beginning, name in LOG_LINES.items():
        assert f'"{beginning}' in product, beginning
        assert seen_in_log(beginning + " and so on") == name


def run_campaign(monkeypatch: pytest.MonkeyPatch, seeds: int, sightings: tuple[str, ...]) -> tuple[int, str]:
    def run(self: campaign.Campaign) -> Any:
        return (SeedResult(seed, (), 0, 1.0, 1.0, 1, sightings) for seed in self.seeds)

    monkeypatch.setattr(campaign.Campaign, "run", run)
    result = CliRunner().invoke(sim_command, ["--seeds", f"1..{seeds}"])
    return result.exit_code, result.output


def test_a_campaign_that_is_large_enough_fails_if_a_state_was_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    all_but_one = tuple(CATALOGUE)[1:]
    code, output = run_campaign(monkeypatch, ENOUGH_SEEDS, all_but_one)
    assert code == 1
    assert f"1 of {len(CATALOGUE)} rare states were never reached" in output
    code, output = run_campaign(monkeypatch, ENOUGH_SEEDS - 1, all_but_one)
    assert code == 0
    assert "that is no failure of fewer" in output
    assert run_campaign(monkeypatch, ENOUGH_SEEDS, tuple(CATALOGUE))[0] == 0
