"""Taking safeguards away: for the time of a run only, until a seed shows it, and into the table."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import chaos.sim
from chaos.cli_sim import sim_command
from chaos.sim.ablation import finding as finding_module
from chaos.sim.ablation.catalogue import SAFEGUARDS
from chaos.sim.ablation.finding import Finding, find
from chaos.sim.ablation.safeguard import Patches, Safeguard, without
from chaos.sim.ablation.table import DATA_NAME, PAGE_NAME, page, read_findings, write_finding
from chaos.sim.judge import Violation
from chaos.sim.run import Outcome
from chaos.sim.scenarios.catalogue import SCENARIOS
from chaos.sim.schedule import Schedule

DOCS = Path(chaos.sim.__file__).parents[2] / "docs"
#: As the project demands.
SAFEGUARDS_MIN = 20


class Recording:
    """Notes what is replaced, and replaces nothing."""

    def __init__(self) -> None:
        self.replaced: list[tuple[Any, str]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        assert callable(value) or isinstance(value, property)
        self.replaced.append((target, name))


#: Those that are gone through.
EXPECTED = [name for name in SAFEGUARDS if not SAFEGUARDS[name].unseen_because]


def test_there_are_enough() -> None:
    assert len(EXPECTED) >= SAFEGUARDS_MIN


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_what_is_taken_away_is_there_and_comes_back(name: str) -> None:
    safeguard = SAFEGUARDS[name]
    recording = Recording()
    safeguard.take_away(recording)
    before = [vars(target)[attribute] for target, attribute in recording.replaced]
    assert before
    with without(safeguard):
        during = [vars(target)[attribute] for target, attribute in recording.replaced]
    assert all(one is not other for one, other in zip(before, during, strict=True))
    assert before == [vars(target)[attribute] for target, attribute in recording.replaced]


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_each_names_a_module_and_a_scenario_that_there_are(name: str) -> None:
    import_module(SAFEGUARDS[name].where)
    assert SAFEGUARDS[name].scenario in {"", *SCENARIOS}


# --- finding ---


def nothing(_patches: Patches) -> None:
    """A safeguard that is none."""


NOTHING = Safeguard(nothing, "", "", "", "ambush")


def fails(when: bool) -> Outcome:
    return Outcome(1, [Violation("lost", "message 1")] if when else [], 0, 0, 0, [], [])


def test_a_seed_counts_that_fails_without_it_and_not_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    is_away = False

    def take_away(_patches: Patches) -> None:
        nonlocal is_away
        is_away = True

    def run(schedule: Schedule) -> Outcome:
        nonlocal is_away
        was_away, is_away = is_away, False
        # Seed 2 fails anyway, seed 4 only without the safeguard.
        return fails(schedule.seed == 2 or (schedule.seed == 4 and was_away))

    monkeypatch.setattr(finding_module, "run_schedule", run)
    monkeypatch.setattr(finding_module, "shrink", lambda schedule, **_: (schedule.without(frozenset({0})), fails(True)))
    found = find(NOTHING._replace(take_away=take_away), 10, 1)
    assert (found.is_found, found.seeds, found.said) == (True, 4, "lost: message 1")
    assert found.steps_left == found.steps - 1


def test_what_no_seed_shows_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_module, "run_schedule", lambda _schedule: fails(False))
    found = find(NOTHING, 5, 1)
    assert (found.is_found, found.seeds) == (False, 5)


# --- the table ---


def a_finding(name: str, *, is_found: bool = True) -> Finding:
    return Finding(name, SAFEGUARDS[name].scenario, 3, is_found, "lost: message 1", 40, 4)


def test_a_finding_is_kept_and_those_of_before_with_it(tmp_path: Path) -> None:
    one, other = EXPECTED[:2]
    write_finding(tmp_path, a_finding(other))
    write_finding(tmp_path, a_finding(one, is_found=False))
    assert list(read_findings(tmp_path)) == [one, other]
    text = (tmp_path / PAGE_NAME).read_text()
    assert "not in 3" in text
    assert "40 → 4" in text
    assert f"1 of {len(EXPECTED)} removals of a safeguard were noticed by the simulator." in text


def test_the_page_in_the_documents_is_that_of_its_data() -> None:
    assert (DOCS / PAGE_NAME).read_text() == page(json.loads((DOCS / DATA_NAME).read_text()))


# --- the command ---


def ablate(monkeypatch: pytest.MonkeyPatch, docs: Path, *arguments: str, lost: str = "") -> tuple[int, list[str], str]:
    run: list[str] = []

    def find_all(names: list[str], *_: object) -> Any:
        for name in names:
            run.append(name)
            yield a_finding(name, is_found=name != lost)

    monkeypatch.setattr(finding_module, "find_all", find_all)
    result = CliRunner().invoke(sim_command, ["ablate", "--docs", str(docs), *arguments])
    return result.exit_code, run, result.output


def test_the_command_goes_through_all_and_fails_if_one_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = EXPECTED[3]
    code, run, output = ablate(monkeypatch, tmp_path, lost=lost)
    assert (code, run) == (1, EXPECTED)
    noticed = f"{len(EXPECTED) - 1} of {len(EXPECTED)} removals of a safeguard were noticed by the simulator."
    assert output.splitlines()[-1] == noticed

    # Then only what is missing, and by name only that.
    assert ablate(monkeypatch, tmp_path, "--missing")[:2] == (0, [lost])
    assert ablate(monkeypatch, tmp_path, "--safeguard", run[0])[:2] == (0, [run[0]])


def test_an_interrupt_of_it_is_no_safeguard_that_was_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find_all(*_: object) -> Any:
        yield a_finding(EXPECTED[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(finding_module, "find_all", find_all)
    result = CliRunner().invoke(sim_command, ["ablate", "--docs", str(tmp_path)])
    assert result.exit_code == 130


def test_an_unknown_safeguard_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, run, output = ablate(monkeypatch, tmp_path, "--safeguard", "nonsense")
    assert (code, run) == (2, [])
    assert all(name in output for name in SAFEGUARDS)
