"""The commands: what they refuse, and what they return."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.harm.journal import Journal
from chaos.judge.verdict import Verdict
from chaos.plan.reading import catalogue
from chaos.suite import results
from chaos.suite.commands import EXIT_SKIPPED, chaos_group, exit_code
from tests.support.recorded_run import recorded_run
from tests.support.told import Told


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(chaos_group, [str(each) for each in arguments], catch_exceptions=False)


def test_every_scenario_is_listed() -> None:
    assert call("list", "--names").output.split() == list(catalogue())
    assert "The master is killed" in call("list").output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "Missing argument"),
        (["run", "K99"], "there is no scenario K99"),
        (["run", "gone.toml"], "gone.toml: No such file"),
        (["run", "K01", "--target", "kafka"], "there is no target kafka: it is local, compose, rabbitmq"),
        (["run", "K01", "--target", "gone.toml"], "gone.toml"),
        (["suite", "smoking"], "no scenario has the tag smoking; there are full, control,"),
    ],
)
def test_what_is_not_there_is_told(arguments: list[str], told: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "K01-7").mkdir()
    result = call("run", "K01", "--seed", "7", "--out", tmp_path, "--judge", "plain")
    assert result.exit_code == 2
    assert "already holds a run; name another --out or --seed" in result.output


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.PASS], 0),
        ([Verdict.EXPECTED_LOSS], 10),
        ([Verdict.VACUOUS], 5),
        ([None], EXIT_SKIPPED),
        ([Verdict.PASS, None, Verdict.EXPECTED_LOSS], 0),
        ([Verdict.PASS, Verdict.VACUOUS, Verdict.UNKNOWN], 3),
        ([Verdict.UNKNOWN, Verdict.FAIL], 1),
    ],
)
def test_exit_codes(verdicts: list[Verdict | None], code: int) -> None:
    assert exit_code([results.Result("K01", "", "local", 1, verdict) for verdict in verdicts]) == code


def test_a_record_is_judged_again(tmp_path: Path) -> None:
    recorded_run(tmp_path, Told().confirmed(1, 2).settled(1))
    result = call("analyse", tmp_path, "--judge", "plain")
    assert result.exit_code == 1
    assert "FAIL" in result.output
    assert "lost" in result.output
    assert (tmp_path / "report.html").exists()


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    result = call("analyse", tmp_path, "--judge", "plain")
    assert (result.exit_code, "there is no run.json" in result.output) == (1, True)


def test_healing_undoes_what_is_left_and_tells_what_it_cannot(tmp_path: Path) -> None:
    mark = tmp_path / "healed"
    with Journal(tmp_path) as journal:
        journal.will_do("command", "n2 stands still", name="resume", command=f"touch {mark}")
        journal.will_do("spell", "a curse")
    result = call("heal", tmp_path)
    assert result.exit_code == 1
    assert "LEFT: a curse: nobody here knows how to undo 'spell'" in result.output
    assert "undone: n2 stands still" in result.output
    assert mark.exists()


def test_where_nothing_was_done_nothing_is_healed(tmp_path: Path) -> None:
    result = call("heal", tmp_path)
    assert (result.exit_code, result.output) == (0, "nothing is left to undo\n")
