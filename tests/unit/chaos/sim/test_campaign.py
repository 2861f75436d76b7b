"""Campaigns: what they add up, how they end, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.cli_sim import DRAWN_MAX, Size, sim_command
from chaos.sim import campaign
from chaos.sim.campaign import Campaign, SeedResult, run_seeds
from chaos.sim.sometimes import CATALOGUE
from chaos.sim.tally import KEPT_MAX, Tally

PROMOTED = "a mirror was promoted"


def result(seed: int, *violations: str, sightings: tuple[str, ...] = ()) -> SeedResult:
    return SeedResult(seed, violations, 0, 36.0, 1.0, 100, sightings)


# --- what is added up


def test_a_tally_counts_and_keeps_little() -> None:
    tally = Tally(1)
    for seed in range(1, 1001):
        tally.add(result(seed, "lost: it", sightings=(PROMOTED,)))
        tally.check_invariants()
    assert (tally.ran, tally.failed, len(tally.failures)) == (1000, 1000, KEPT_MAX)
    assert tally.sightings[PROMOTED] == 1000
    assert tally.reached == 1
    assert len(tally.unreached()) == len(CATALOGUE) - 1


def test_a_campaign_goes_on_behind_the_last_seed_below_which_none_is_missing() -> None:
    tally = Tally(11)
    for seed in (11, 13, 14):
        tally.add(result(seed))
        tally.check_invariants()
    assert tally.next == 12
    tally.add(result(12))
    assert tally.next == 15


def test_the_summary_says_what_there_was() -> None:
    tally = Tally(5)
    tally.add(result(5, sightings=(PROMOTED,)))
    tally.add(result(6, "lost: it", "stuck: it"))
    said = tally.summary(took_s=4.0, ended="time", commit="abc")
    assert json.loads(json.dumps(said)) == said
    assert (said["commit"], said["seeds"], said["failures"], said["seconds"]) == ("abc", 2, 1, 4.0)
    assert (said["first_seed"], said["next_seed"], said["ended"]) == (5, 7, "time")
    assert said["failed_seeds"] == {"6": "lost: it"}
    assert said["rare_states"][PROMOTED] == 1
    assert list(said["rare_states"]) == list(CATALOGUE), "those never reached, too"


# --- how it ends


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds take no time, and drawings neither; those that end in 7 fail."""
    ran: list[int] = []

    def run_seed(seed: int, *_: object) -> SeedResult:
        ran.append(seed)
        return result(seed, *(("lost: it",) if seed % 10 == 7 else ()))

    monkeypatch.setattr(campaign, "run_seed", run_seed)
    monkeypatch.setattr("chaos.sim.draw.draw_run", lambda *_: None)
    return ran


def sim(*words: str) -> Result:
    return CliRunner().invoke(sim_command, words)


def test_no_seed_begins_when_time_is_up(quick: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count()
    monkeypatch.setattr(campaign, "is_over", lambda _end_s: next(looks) >= 3)
    assert [each.seed for each in Campaign(range(1, 100), 3, 1, 1, 1, seconds=4).run()] == [1, 2, 3]
    assert run_seeds(range(5), 3, 1, 1, end_s=0.0) == []
    assert quick == [1, 2, 3]


def test_a_campaign_that_is_out_of_time_says_where_to_go_on(quick: list[int]) -> None:
    said = sim("--seeds", "51..", "--jobs", "1", "--seconds", "0.05")
    assert said.exit_code == 1, "seed 57 has failed"
    assert f"{len(quick)} seeds of 3 nodes" in said.output
    assert f"ended by time; to go on: --seeds {51 + len(quick)}..\n" in said.output


def test_an_interrupt_ends_it_with_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(_self: Campaign) -> Iterator[SeedResult]:
        yield result(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Campaign, "run", run)
    summary = tmp_path / "out" / "summary.json"
    said = sim("--seeds", "1..9", "--summary", str(summary))
    assert said.exit_code == 130, "no promise was broken"
    assert "ended by interrupt; to go on: --seeds 2..9\n" in said.output
    assert "never reached" not in said.output, "that says nothing of an interrupted campaign"
    assert json.loads(summary.read_text())["seeds"] == 1


@pytest.mark.parametrize(
    ("results", "exit_code", "line"),
    [
        ([result(1, "lost: it")], 1, "ended by interrupt; to go on: --seeds 2..9"),
        ([], 130, "ended by interrupt, before a seed was done"),
        ([result(5), result(6)], 130, "ended by interrupt; to go on: --seeds 1..9"),
    ],
    ids=["one has failed", "none has ended", "the first have not ended"],
)
def test_how_an_interrupted_campaign_ends(
    monkeypatch: pytest.MonkeyPatch, results: list[SeedResult], exit_code: int, line: str
) -> None:
    def run(_self: Campaign) -> Iterator[SeedResult]:
        yield from results
        raise KeyboardInterrupt

    monkeypatch.setattr(Campaign, "run", run)
    said = sim("--seeds", "1..9")
    assert (said.exit_code, line in said.output.splitlines()) == (exit_code, True), said.output


def test_a_summary_has_the_commit_and_every_rare_state(quick: list[int], tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    assert sim("--seeds", "1..5", "--jobs", "1", "--summary", str(summary)).exit_code == 0
    document = json.loads(summary.read_text())
    assert quick == [1, 2, 3, 4, 5]
    assert (document["seeds"], document["failures"], document["ended"]) == (5, 0, "all seeds")
    assert len(document["rare_states"]) == len(CATALOGUE)
    assert "commit" in document


def test_the_first_failing_seeds_are_drawn(quick: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Path] = []
    monkeypatch.setattr("chaos.sim.draw.draw_run", lambda _schedule, path, _replay: drawn.append(path))
    said = sim("--seeds", "1..60", "--jobs", "1", "--artefacts", str(tmp_path))
    assert said.exit_code == 1
    assert len(quick) == 60
    assert drawn == [tmp_path / f"seed-{seed}.html" for seed in (7, 17, 27)][:DRAWN_MAX]
    assert "warren sim --replay 7 --draw FILE.html" in said.output


def test_what_to_type_names_what_is_not_usual() -> None:
    assert Size(3).command("replay", 7) == "warren sim --replay 7"
    assert Size(5, length_s=8).command("shrink", 7) == "warren sim --shrink 7 --nodes 5 --length 8"
    assert Size(3, scenario="ambush").command("replay", 7) == "warren sim --replay 7 --scenario ambush"


@pytest.mark.parametrize(("written", "first", "last"), [("7", 7, 7), ("1..200", 1, 200), ("50001..", 50001, None)])
def test_seeds_are_one_or_a_range_or_have_no_end(quick: list[int], written: str, first: int, last: int | None) -> None:
    sim("--seeds", written, "--jobs", "1", "--seconds", "0.05")
    assert quick[0] == first
    assert last is None or quick[-1] <= last


def test_what_is_no_range_is_refused() -> None:
    for written in ("..7", "9..3", "a", "1...3"):
        assert sim("--seeds", written).exit_code == 2


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--draw", "f.html"], "--draw goes with --replay SEED"),
        (["--seeds", "7", "--draw", "f.html"], "--draw goes with --replay SEED"),
        (["--keep", "f.json"], "--keep goes with --shrink SEED"),
        (["--replay", "7", "--keep", "f.json"], "--keep goes with --shrink SEED"),
        (["--replay", "7", "--seeds", "1..3"], "--seeds does not go with --replay, which is of one seed: leave it out"),
        (["--shrink", "7", "--draw", "f.html"], "--draw goes with --replay SEED"),
        (["--shrink", "7", "--summary", "f.json"], "--summary does not go with --shrink, which is of one seed"),
        (["--shrink", "7", "--replay", "7"], "--shrink does not go with --replay, which is of one seed: leave it out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_be_without_effect_is_refused(quick: list[int], words: list[str], remedy: str) -> None:
    said = sim(*words)
    assert said.exit_code == 2
    assert remedy in " ".join(said.output.split())
    assert quick == []


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_nothing_but_the_output() -> None:
    """As `warren sim --replay 1 | head -1`."""
    words = ["sim", "--replay", "1", "--operations", "5", "--length", "1"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "chaos.cli", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.integration
def test_workers_end_with_the_campaign(tmp_path: Path) -> None:
    """Ctrl-C, on a real terminal, goes to all of them at once."""
    summary = tmp_path / "summary.json"
    words = ["sim", "--seeds", "1..", "--jobs", "2", "--length", "1", "--operations", "5", "--summary", str(summary)]
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not summary.exists():  # it is written at the beginning
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                break
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)  # which ends when nobody is left who could write
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 130
    assert "ended by interrupt" in out
    assert "Traceback" not in error
    assert json.loads(summary.read_text())["ended"] == "interrupt"
