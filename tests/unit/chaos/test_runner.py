"""How a run ends when something goes wrong before, or instead of, the traffic."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from chaos import runner
from chaos.analysis.jobs import Analysis
from chaos.cluster_under_test.protocol import (
    AdminUnavailable,
    ClusterAdmin,
    ClusterUnderTest,
    NodeEndedError,
    QueueSample,
)
from chaos.run_file import RunFile, read_run_file
from chaos.scenarios.model import Expectation, LossRule
from chaos.verdict import ExitCode, Judgement, Outcome, Verdict


class DeadCluster:
    """A cluster that never serves; ``on_start`` says how it fails."""

    cookie = ""

    def __init__(self, nodes: int, on_start: Callable[[], None], *, is_silent: bool) -> None:
        self._is_silent = is_silent
        self.nodes: Sequence[str] = [f"n{number}" for number in range(1, nodes + 1)]
        self._on_start = on_start
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        self._on_start()

    async def wait_ready(self, nodes: Sequence[str] | None = None, timeout_s: float = 0) -> None:
        if self._is_silent:
            await asyncio.Event().wait()
        raise TimeoutError("n1 did not answer AMQP clients in time")

    async def close(self) -> None:
        self.calls.append("close")

    def kill_all(self) -> None:
        self.calls.append("kill_all")

    async def kill(self, node: str) -> None:
        raise AssertionError("nothing runs that could be killed")

    pause = resume = stop = restart = kill

    def is_running(self, node: str) -> bool:
        return False

    def amqp_url(self, node: str) -> str:
        return "amqp://localhost:1/"

    def admin_address(self, node: str) -> str:
        return "localhost:1"


class DeadAdmin:
    async def list_queues(self) -> list[QueueSample]:
        raise AdminUnavailable("down")

    async def set_policy(self, name: str, pattern: str, definition: object) -> None:
        raise AdminUnavailable("down")

    async def sync_queue(self, queue: str) -> None:
        raise AdminUnavailable("down")

    async def close(self) -> None:
        pass


class Laboratory:
    """Runs scenarios on dead clusters and keeps what was printed."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.printed = io.StringIO()
        self.clusters: list[DeadCluster] = []
        self.on_start: Callable[[], None] = lambda: None
        #: Whether clusters keep the run waiting for ever instead of until a timeout.
        self.is_silent = False

    def run(self, name: str = "control", nodes: int = 3) -> int:
        def make_cluster(count: int, _: Path) -> ClusterUnderTest:
            self.clusters.append(DeadCluster(count, self.on_start, is_silent=self.is_silent))
            return self.clusters[-1]

        def open_admin(_: ClusterUnderTest, __: str) -> ClusterAdmin:
            return DeadAdmin()

        console = Console(file=self.printed, width=200)
        return runner.run_scenario(
            name, nodes, 7, self.out_dir, make_cluster=make_cluster, open_admin=open_admin, console=console
        )


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path / "run")


def test_cluster_that_does_not_serve_in_time_is_a_hang_and_is_closed(laboratory: Laboratory) -> None:
    assert laboratory.run() == ExitCode.HANG
    assert laboratory.clusters[0].calls == ["start", "close", "kill_all"]
    stored = read_run_file(laboratory.out_dir)
    assert stored.outcome is Outcome.HANG
    assert stored.error == "n1 did not answer AMQP clients in time"
    assert "warren chaos run control --nodes 3 --seed 7" in laboratory.printed.getvalue()


def test_node_that_ends_at_its_start_is_no_hang(laboratory: Laboratory) -> None:
    def fail() -> None:
        raise NodeEndedError("n2 ended while it was starting; the end of n2.log:\nno such key")

    laboratory.on_start = fail
    assert laboratory.run() == ExitCode.CRASHED
    assert laboratory.clusters[0].calls == ["start", "close", "kill_all"]
    printed = laboratory.printed.getvalue()
    assert "no such key" in printed
    assert "Traceback" not in printed  # the node's log tells what happened, not our own stack


def test_interrupt_closes_the_cluster_and_has_its_own_code(laboratory: Laboratory) -> None:
    laboratory.is_silent = True
    laboratory.on_start = lambda: signal.raise_signal(signal.SIGINT)
    assert laboratory.run() == ExitCode.INTERRUPTED
    assert laboratory.clusters[0].calls == ["start", "close", "kill_all"]
    assert read_run_file(laboratory.out_dir).outcome is Outcome.INTERRUPTED


def test_termination_is_an_interrupt(laboratory: Laboratory) -> None:
    laboratory.is_silent = True
    laboratory.on_start = lambda: signal.raise_signal(signal.SIGTERM)
    assert laboratory.run() == ExitCode.INTERRUPTED
    assert "close" in laboratory.clusters[0].calls


def test_termination_is_an_interrupt_in_the_background_too(laboratory: Laboratory) -> None:
    """Where a script started us, so that Ctrl-C in its terminal does not reach us."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        laboratory.is_silent = True
        laboratory.on_start = lambda: signal.raise_signal(signal.SIGTERM)
        assert laboratory.run() == ExitCode.INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert laboratory.clusters[0].calls == ["start", "close", "kill_all"]


def test_unknown_error_closes_the_cluster_and_is_shown(laboratory: Laboratory) -> None:
    def fail() -> None:
        raise LookupError("a mistake of ours")

    laboratory.on_start = fail
    assert laboratory.run() == ExitCode.CRASHED
    assert laboratory.clusters[0].calls == ["start", "close", "kill_all"]
    assert "a mistake of ours" in laboratory.printed.getvalue()


def test_missing_java_is_told_before_anything_starts(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(laboratory.out_dir))
    assert laboratory.run() == ExitCode.NO_JAVA
    assert laboratory.clusters == []
    assert "needs Java 17" in laboratory.printed.getvalue()


@pytest.mark.parametrize(("name", "nodes"), [("no-such-scenario", 3), ("kill-master", 2)])
def test_request_that_makes_no_sense(laboratory: Laboratory, name: str, nodes: int) -> None:
    assert laboratory.run(name, nodes) == ExitCode.USAGE
    assert laboratory.clusters == []


def test_a_directory_that_cannot_be_made_is_no_verdict(laboratory: Laboratory) -> None:
    laboratory.out_dir.parent.mkdir(exist_ok=True)
    (laboratory.out_dir.parent / "file").write_text("")
    laboratory.out_dir = laboratory.out_dir.parent / "file" / "run"
    assert laboratory.run() == ExitCode.USAGE


def test_directory_with_a_run_is_left_alone(laboratory: Laboratory) -> None:
    assert laboratory.run() == ExitCode.HANG
    before = (laboratory.out_dir / "run.json").read_text()
    assert laboratory.run("kill-master") == ExitCode.USAGE
    assert (laboratory.out_dir / "run.json").read_text() == before


def test_analysis_of_a_directory_without_a_run(tmp_path: Path) -> None:
    printed = io.StringIO()
    assert runner.analyse(tmp_path, console=Console(file=printed, width=200)) == ExitCode.USAGE
    assert "holds no run" in printed.getvalue()


def test_the_summary_explains_deliveries_without_a_confirm(tmp_path: Path) -> None:
    run = RunFile(
        run_id="r", scenario="kill-master", seed=7, nodes=["n1"], queues=["q"], policy={}, traffic={}, replay="again",
        expectation=Expectation(LossRule.FORBIDDEN, None, 1, 1), started_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    for delivered, is_explained in ((10, False), (11, True)):
        output = io.StringIO()
        findings = {"confirmed": 10, "delivered": delivered}
        analysis = Analysis(Judgement(Verdict.PASS, ()), findings, [], {}, [], [], [])
        runner.print_summary(Console(file=output, width=200), analysis, run, 1.0)
        assert ("delivered exceeds confirmed by 1: " in output.getvalue()) is is_explained
