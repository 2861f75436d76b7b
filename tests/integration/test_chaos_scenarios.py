"""Whole scenarios on clusters of real processes, small; the numbers of the catalogue are for `warren chaos run`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chaos.history import HistoryWriter, Kind, ProcKind
from chaos.run_file import RunFile
from chaos.runner import run_scenario
from chaos.scenarios.model import Expectation, LossRule, RunOptions
from chaos.verdict import ExitCode, Outcome
from chaos.workload.traffic import TrafficOptions
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

TRAFFIC = TrafficOptions(rate=1_000)


def verdict_of(run_dir: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((run_dir / "analysis" / "verdict.json").read_text())
    return document


def processes_under(directory: Path) -> list[int]:
    """Processes whose command line names the directory."""
    return [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(str(directory) in part for part in process.info["cmdline"] or ())
    ]


def test_control_run_finds_nothing(tmp_path: Path) -> None:
    options = RunOptions(messages=2_000, failovers=0, traffic=TRAFFIC)
    assert run_scenario("control", 3, 1, tmp_path, options=options) == ExitCode.PASS
    assert (tmp_path / "report" / "index.html").exists()
    assert processes_under(tmp_path) == []


def test_killed_masters_cost_no_message(tmp_path: Path) -> None:
    options = RunOptions(messages=4_000, failovers=2, traffic=TRAFFIC)
    assert run_scenario("kill-master", 3, 1, tmp_path, options=options) == ExitCode.PASS
    failovers = verdict_of(tmp_path)["failovers"]
    assert isinstance(failovers, list)
    assert [row["is_oldest_synchronised"] for row in failovers] == [True, True]
    assert processes_under(tmp_path) == []


def test_unsafe_promotion_loses_exactly_what_the_mirror_lacked(tmp_path: Path) -> None:
    options = RunOptions(messages=1_000, failovers=1, traffic=TRAFFIC)
    assert run_scenario("unsafe-promotion", 3, 1, tmp_path, options=options) == ExitCode.EXPECTED_LOSS
    findings = verdict_of(tmp_path)["findings"]
    assert isinstance(findings, dict)
    assert (findings["lost"], findings["lost_unexpectedly"], findings["not_lost"]) == (500, 0, 0)


def test_interrupt_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from chaos.runner import run_scenario; "
        "sys.exit(run_scenario('control', 3, 1, Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        eventually(
            lambda: list(tmp_path.glob("events/*")) or len(processes_under(tmp_path / "cluster")) >= 3,
            "the nodes start",
            60,
            poll_interval_s=0.1,
        )
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == ExitCode.INTERRUPTED
    assert processes_under(tmp_path / "cluster") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0.0, 1.0, 2.5, 5.0])
def test_interrupted_analysis_leaves_no_java(tmp_path: Path, number: signal.Signals, delay_s: float) -> None:
    """Wherever it hits: while Java starts, while Spark starts, while Spark computes."""
    store_run(tmp_path)
    command = [str(Path(sys.executable).parent / "warren"), "chaos", "analyse", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        process = psutil.Process(child.pid)
        started = eventually(lambda: process.children(recursive=True), "Java starts", 60)
        time.sleep(delay_s)
        started = process.children(recursive=True) or started
        child.send_signal(number)
        printed, _ = child.communicate(timeout=60)
    assert child.returncode == ExitCode.INTERRUPTED, printed
    assert "Traceback" not in printed
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def store_run(run_dir: Path) -> None:
    """A run as `warren chaos analyse` wants it."""
    with HistoryWriter(run_dir, "run", 1, "test", rows_per_part=50) as history:
        publisher = history.process(100, ProcKind.PUBLISHER)
        for seq in range(1, 101):
            publisher.record(Kind.PUB_INVOKE, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=1)
            publisher.record(Kind.CONFIRM, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=1)
    RunFile(
        run_id="run",
        scenario="control",
        seed=1,
        nodes=["n1"],
        queues=["chaos.orders"],
        policy={},
        expectation=Expectation(LossRule.FORBIDDEN, None, 1, 0),
        traffic={},
        replay="warren chaos run control --seed 1",
        started_at="2026-01-01T00:00:00+00:00",
        outcome=Outcome.COMPLETED,
    ).write(run_dir)
