"""`warren chaos` as one calls it: runs on clusters of real processes, and what is left when they are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chaos.harm import marked
from chaos.harm.journal import outstanding
from chaos.interrupts import EXIT_INTERRUPTED
from chaos.judge.verdict import ExitCode, Verdict
from chaos.suite.commands import EXIT_SKIPPED
from chaos.suite.results import Result, read
from tests.support.recorded_run import recorded_run
from tests.support.told import Told
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

WARREN = [sys.executable, "-m", "chaos.cli", "chaos"]
ROOT = Path(__file__).parents[3]
#: A calm run, and one that kills the master, both short.
CALM = """
id = "T00"
title = "Nothing is done"
holds = "Nothing is found"
[cluster]
nodes = 3
policy = { ha-mode = "all", ha-sync-mode = "automatic" }
[[queue]]
name = "orders"
[load]
rate = 200
warm = "1 s"
calm = "1 s"
[[round]]
[[round.step]]
when = "confirmed >= 400"
do = "wait"
[expect]
at_risk = { confirmed = 400, pairs = 100 }
"""
KILLED = CALM.replace("T00", "T01").replace('do = "wait"', 'do = "kill"\nto = "master of orders"').replace(
    "[expect]", '[[round.step]]\nwhen = "failovers of orders >= 1"\ndo = "heal"\n[expect]'
).replace("pairs = 100", "failovers = 1")  # fmt: skip


def called(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    command = [*WARREN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def written(directory: Path, text: str) -> Path:
    path = directory / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def marks_of(run: Path) -> list[str]:
    """Of all processes that it began, in its journal."""
    lines = (run / "undo.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["told"]["mark"] for line in map(json.loads, lines) if line.get("how") == marked.HOW]


def test_runs_are_judged_and_told_of(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = called("run", written(tmp_path, CALM), "--repeat", "2", "--seed", "3", "--out", out)
    assert ended.returncode == ExitCode.PASS, ended.stdout + ended.stderr
    assert [(result.verdict, result.seed) for result in read(out)] == [(Verdict.PASS, 3), (Verdict.PASS, 4)]
    assert "2 runs: 2 PASS" in ended.stdout
    assert {path.name for path in out.iterdir()} >= {"T00-3", "T00-4", "index.html", "junit.xml", "results.jsonl"}
    run = out / "T00-3"
    assert {path.name for path in run.iterdir()} >= {"report.html", "judgement.json", "journal.json", "findings"}
    assert not [process for mark in marks_of(run) for process in marked.processes_of(mark)]
    assert outstanding(run) == []


def test_a_killed_master_costs_no_message(tmp_path: Path) -> None:
    ended = called("run", written(tmp_path, KILLED), "--seed", "1", "--out", tmp_path / "out")
    assert ended.returncode == ExitCode.PASS, ended.stdout + ended.stderr
    result = Result.from_json((tmp_path / "out" / "T01-1" / "result.json").read_text(encoding="utf-8"))
    assert result.at_risk["failovers"] >= 1
    assert "lost" not in result.counts


def test_what_the_target_cannot_do_is_skipped_and_proves_nothing(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('name = "staging"\n[[node]]\nname = "n1"\namqp = "amqp://127.0.0.1:1/"\n', encoding="utf-8")
    ended = called("run", "kill-master", "--target", cluster, "--judge", "plain", "--out", tmp_path / "out")
    assert ended.returncode == EXIT_SKIPPED, ended.stdout
    assert "not every node has the commands kill and start" in ended.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "out" / "T00-1"
    command = [*WARREN, "run", str(written(tmp_path, CALM)), "--seed", "1", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        eventually(lambda: list(run.glob("clients/*")), "clients begin", 60, poll_interval_s=0.1)
        started = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(number)
        printed, _ = child.communicate(timeout=60)
    assert child.returncode == EXIT_INTERRUPTED, printed
    assert "INTERRUPTED" in printed
    assert "Traceback" not in printed
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert not [process for mark in marks_of(run) for process in marked.processes_of(mark)]
    assert outstanding(run) == []


def test_a_run_that_was_killed_is_healed(tmp_path: Path) -> None:
    run = tmp_path / "out" / "T00-1"
    command = [*WARREN, "run", str(written(tmp_path, CALM)), "--seed", "1", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        eventually(lambda: list(run.glob("clients/*")), "clients begin", 60, poll_interval_s=0.1)
        child.kill()
    assert outstanding(run) != []
    ended = called("heal", run)
    assert (ended.returncode, ended.stdout.startswith("undone: processes of a cluster")) == (0, True)
    assert not [process for mark in marks_of(run) for process in marked.processes_of(mark)]
    assert called("heal", run).stdout == "nothing is left to undo\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0.0, 1.0, 2.5, 5.0])
def test_interrupted_analysis_leaves_no_java(tmp_path: Path, number: signal.Signals, delay_s: float) -> None:
    """Wherever it hits: while Java starts, while Spark starts, while Spark computes."""
    recorded_run(tmp_path, Told().confirmed(*range(1, 101)))
    command = [*WARREN, "analyse", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        process = psutil.Process(child.pid)
        started = eventually(lambda: process.children(recursive=True), "Java starts", 60)
        time.sleep(delay_s)
        started = process.children(recursive=True) or started
        child.send_signal(number)
        printed, _ = child.communicate(timeout=60)
    assert child.returncode in (EXIT_INTERRUPTED, ExitCode.FAIL), printed
    assert "Traceback" not in printed
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
