"""Runs a scenario from nothing to a verdict, and re-checks stored runs.

    lay out and start the cluster -> policy, queue, mirrors synchronised -> the scenario's steps under traffic
    -> heal, settle, drain -> close the cluster -> Spark -> verdict, report, exit code

Whatever happens on the way (a step that hangs, a crash, Ctrl-C), the cluster is closed, the history is ended properly,
and ``run.json`` says how the run ended.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chaos.analysis.jobs import RATE_BUCKET_US, Analysis, analyse_run
from chaos.analysis.report import CARDS, excess_note, milliseconds, promoted_as, render_report, write_report
from chaos.analysis.session import open_session
from chaos.cluster_under_test.admin import GrpcClusterAdmin
from chaos.cluster_under_test.local import LocalCluster
from chaos.cluster_under_test.protocol import AdminUnavailable, ClusterAdmin, ClusterUnderTest, NodeEndedError
from chaos.faults.nemesis import Nemesis
from chaos.faults.observer import Observer
from chaos.history import HistoryWriter, Kind, ProcessLog, ProcKind, event_parts, open_history
from chaos.interrupts import sigterm_as_interrupt
from chaos.java import JavaMissingError, find_java
from chaos.run_file import NoRunError, RunFile, read_run_file
from chaos.scenarios.catalogue import SCENARIOS
from chaos.scenarios.model import QUEUE_PATTERN, RunOptions, Scenario, Stage
from chaos.scenarios.steps import ScenarioError
from chaos.verdict import EXIT_CODES, ExitCode, Outcome, judge_outcome
from chaos.workload.tasks import cancel_all
from chaos.workload.traffic import Traffic, declare_queue

QUEUE = "chaos.orders"
POLICY = "chaos"
DEFAULT_NODES = 3
HARNESS_PROC, OBSERVER_PROC, NEMESIS_PROC = 1, 2, 3
#: Seconds between heartbeats of the harness, and the delay from which a late one is recorded as a stall.
HEARTBEAT_S = 0.05
STALL_S = 0.25
#: Records below this size (some millions of events) are analysed faster than Java can optimise itself.
SMALL_RUN_BYTES = 32 * 1024 * 1024
_STATUS_INTERVAL_S = 0.25
#: The client libraries' own logs go into the run's directory.
CLIENT_LOGGERS = ("aio_pika", "aiormq", "pamqp")

ClusterFactory = Callable[[int, Path], ClusterUnderTest]
AdminFactory = Callable[[ClusterUnderTest, str], ClusterAdmin]


def local_cluster(nodes: int, directory: Path) -> ClusterUnderTest:
    """A fresh cluster of processes of this machine."""
    return LocalCluster.create(directory, nodes)


def grpc_admin(cluster: ClusterUnderTest, node: str) -> ClusterAdmin:
    """The admin service of one node."""
    return GrpcClusterAdmin(cluster.admin_address(node), cluster.cookie)


@dataclass(slots=True)
class _Run:
    """What the parts of one run share."""

    scenario: Scenario
    options: RunOptions
    run_dir: Path
    file: RunFile
    cluster: ClusterUnderTest
    open_admin: AdminFactory
    console: Console
    started: float

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f} s[/dim]  {text}", highlight=False)


def run_scenario(
    name: str,
    nodes: int = DEFAULT_NODES,
    seed: int | None = None,
    out_dir: Path | None = None,
    *,
    options: RunOptions | None = None,
    make_cluster: ClusterFactory = local_cluster,
    open_admin: AdminFactory = grpc_admin,
    master_url: str | None = None,
    console: Console | None = None,
) -> int:
    """Run a scenario of the catalogue and analyse it. Returns a `chaos.verdict.ExitCode`.

    ``out_dir`` must not hold a run yet; by default it is made under ``chaos-runs`` in the working directory.
    ``master_url`` is Spark's; the default is this machine.
    """
    console = console or Console()
    scenario = SCENARIOS.get(name)
    if scenario is None or nodes < scenario.min_nodes:
        known = ", ".join(SCENARIOS)
        needs = f"{name} needs {scenario.min_nodes} nodes" if scenario else f"no scenario {name!r}; there are: {known}"
        console.print(f"[red]{needs}[/red]")
        return ExitCode.USAGE
    try:
        find_java()
    except JavaMissingError as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        return ExitCode.NO_JAVA
    seed = secrets.randbits(32) if seed is None else seed
    started_at = datetime.datetime.now(datetime.UTC)
    run_id = f"{name}-{started_at:%Y%m%dT%H%M%S}-{seed}"
    run_dir = Path("chaos-runs") / run_id if out_dir is None else out_dir
    if (run_dir / "run.json").exists():
        console.print(f"[red]{run_dir} already holds a run; name another directory[/red]")
        return ExitCode.USAGE
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.print(f"[red]{run_dir} cannot be made: {error.strerror}; name another directory[/red]")
        return ExitCode.USAGE
    options = options or scenario.defaults
    cluster = make_cluster(nodes, run_dir / "cluster")
    policy = dict(scenario.policy(cluster.nodes))
    run_file = RunFile(
        run_id=run_id,
        scenario=name,
        seed=seed,
        nodes=list(cluster.nodes),
        queues=[QUEUE],
        policy=policy,
        expectation=scenario.expectation(cluster.nodes, options),
        traffic=asdict(options.traffic),
        replay=replay_command(name, nodes, seed, options, scenario.defaults),
        started_at=started_at.isoformat(timespec="seconds"),
    )
    run_file.write(run_dir)
    run = _Run(scenario, options, run_dir, run_file, cluster, open_admin, console, time.monotonic())
    console.print(f"[bold]{name}[/bold]: {scenario.summary}\n{nodes} nodes, seed {seed}, records in {run_dir}")
    with client_log(run_dir / "client.log"):
        _conduct(run)
    console.print(f"repeat with: [bold]{run_file.replay}[/bold]", highlight=False)
    judgement = judge_outcome(run_file.outcome)
    if judgement is not None and (run_file.outcome is Outcome.INTERRUPTED or not event_parts(run_dir)):
        console.print(f"[bold]{judgement.verdict}[/bold]: {judgement.reasons[0]}; every node was stopped")
        return EXIT_CODES[judgement.verdict]
    return analyse(run_dir, master_url, console=console)


def analyse(run_dir: Path, master_url: str | None = None, *, console: Console | None = None) -> int:
    """Check a stored run (again), write ``analysis/`` and ``report/``, print the summary; returns the exit code."""
    console = console or Console()
    try:
        run_file = read_run_file(run_dir)
        parts = event_parts(run_dir)
        if not parts:
            raise NoRunError(f"{run_dir} holds no events")
        with console.status("checking every message with Spark ..."):
            began = time.monotonic()
            size_bytes = sum(part.stat().st_size for part in parts)
            with sigterm_as_interrupt(), open_session(master_url, is_small=size_bytes < SMALL_RUN_BYTES) as spark:
                analysis = analyse_run(spark, run_dir, run_file)
    except KeyboardInterrupt:
        console.print("[bold]INTERRUPTED[/bold]: the record is complete; `warren chaos analyse` checks it again")
        return ExitCode.INTERRUPTED
    except NoRunError as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        return ExitCode.USAGE
    except JavaMissingError as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        return ExitCode.NO_JAVA
    page = render_report(analysis.to_json(run_file), run_file, analysis.rates, analysis.control_events, RATE_BUCKET_US)
    report_path = write_report(run_dir, page)
    print_summary(console, analysis, run_file, time.monotonic() - began)
    console.print(f"report: {report_path}", highlight=False, soft_wrap=True)
    return EXIT_CODES[analysis.judgement.verdict]


@contextmanager
def client_log(path: Path) -> Iterator[None]:
    """Keep what the client libraries log: that a killed node ends connections is the experiment, not news."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in CLIENT_LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


def replay_command(name: str, nodes: int, seed: int, options: RunOptions, defaults: RunOptions) -> str:
    """The command line that repeats a run: what differs from the scenario's defaults is said."""
    words = ["warren", "chaos", "run", name, "--nodes", str(nodes), "--seed", str(seed)]
    if options.messages != defaults.messages:
        words += ["--messages", str(options.messages)]
    if options.failovers != defaults.failovers:
        words += ["--failovers", str(options.failovers)]
    return " ".join(words)


def print_summary(console: Console, analysis: Analysis, run: RunFile, analysis_s: float) -> None:
    """The table at the end of a run."""
    findings = analysis.findings
    table = Table(title=f"{run.scenario}, seed {run.seed}")
    table.add_column("finding")
    table.add_column("count", justify="right")
    for name, label, is_bad in CARDS:
        count = findings.get(name, 0)
        style = ("red" if count else "green") if is_bad else ""
        table.add_row(label, f"{count:,}", style=style)
    for row in analysis.ledger:
        promoted = promoted_as(
            row,
            oldest="oldest synchronised mirror",
            other="NOT the oldest synchronised",
            nobody="no mirror was synchronised",
        )
        table.add_row(
            f"failover {row['epoch'] - 1}: {row['old_master']} -> {row['new_master']} ({promoted})",
            f"detected {milliseconds(row['detect_us'])}, no confirm {milliseconds(row['rto_publish_us'])}, "
            f"no delivery {milliseconds(row['rto_consume_us'])}",
        )
    console.print(table)
    if note := excess_note(findings):
        console.print(note, highlight=False)
    console.print(f"[bold]{analysis.judgement.verdict}[/bold]  (checked in {analysis_s:.1f} s)")
    for reason in analysis.judgement.reasons:
        console.print(f"  {reason}", highlight=False)
    console.print(f"seed {run.seed}; repeat with: {run.replay}", highlight=False, soft_wrap=True)


# --- one run ---


def _conduct(run: _Run) -> None:
    """Run the scenario in an event loop of its own; the outcome is in ``run.file`` and on disk afterwards."""
    try:
        with sigterm_as_interrupt(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop_runner:
            loop_runner.run(_live(run))
        run.file.outcome = Outcome.COMPLETED
    except KeyboardInterrupt:
        run.file.outcome, run.file.error = Outcome.INTERRUPTED, "interrupted"
    except TimeoutError as error:
        run.file.outcome, run.file.error = Outcome.HANG, str(error)
    except NodeEndedError as error:
        run.file.outcome, run.file.error = Outcome.CRASHED, str(error)
    except ScenarioError as error:
        run.file.outcome, run.file.error = Outcome.NOT_REACHED, str(error)
    except Exception as error:  # whatever broke, the record of it must be written and the nodes stopped
        run.file.outcome, run.file.error = Outcome.CRASHED, f"{type(error).__name__}: {error}"
        run.console.print_exception(max_frames=12)
    finally:
        run.cluster.kill_all()
        run.file.duration_s = round(time.monotonic() - run.started, 3)
        run.file.write(run.run_dir)
    if run.file.error:
        run.say(f"[red]{run.file.outcome}: {escape(run.file.error)}[/red]")


async def _live(run: _Run) -> None:
    """Cluster up, play, cluster down: the cluster is closed however the play ends."""
    try:
        run.say("starting the cluster")
        await run.cluster.start()
        await run.cluster.wait_ready(timeout_s=run.options.step_timeout_s)
        with open_history(run.run_dir, run.file.run_id, run.file.seed, run.scenario.name) as history:
            await _play(run, history)
    finally:
        await run.cluster.close()


async def _play(run: _Run, history: HistoryWriter) -> None:
    """Everything between a running cluster and a drained queue."""
    cluster, chance = run.cluster, random.Random(run.file.seed)
    log = history.process(HARNESS_PROC, ProcKind.HARNESS)
    observer_log = history.process(OBSERVER_PROC, ProcKind.OBSERVER)
    observer = Observer(cluster, run.open_admin, observer_log, QUEUE, 0)
    nemesis = Nemesis(cluster, history.process(NEMESIS_PROC, ProcKind.NEMESIS))
    traffic = Traffic(
        cluster,
        history,
        log,
        run_id=run.file.run_id,
        queue=QUEUE,
        queue_id=0,
        options=run.options.traffic,
        chance=chance,
    )
    stage = Stage(cluster, nemesis, observer, traffic, log, chance, run.options, run.say)
    helpers = [
        asyncio.create_task(observer.run(), name="observer"),
        asyncio.create_task(_watch_stalls(log), name="stall watch"),
        asyncio.create_task(_show_status(run, stage), name="status"),
    ]
    try:
        await _prepare(run, stage)
        await run.scenario.steps(stage)
        await _drain(run, stage)
    finally:
        await traffic.close()
        await cancel_all(helpers)
        await observer.close()
        observer_log.end()


async def _prepare(run: _Run, stage: Stage) -> None:
    stage.phase("preparing the queue")
    first = stage.nodes[0]
    async with asyncio.timeout(run.options.step_timeout_s):
        while True:
            # A cluster that has just elected may still refuse the first change.
            with suppress(AdminUnavailable):
                await stage.observer.admin(first).set_policy(POLICY, QUEUE_PATTERN, run.file.policy)
                break
            await asyncio.sleep(_STATUS_INTERVAL_S)
    await declare_queue(run.cluster.amqp_url(first), QUEUE, run.options.step_timeout_s)
    mirrors = run.scenario.initial_mirrors(stage.nodes)
    await stage.observer.wait_synchronised(mirrors, run.options.step_timeout_s)
    stage.traffic.start_publishers()


async def _drain(run: _Run, stage: Stage) -> None:
    """All faults healed, every publish confirmed, the queue empty twice on every node."""
    stage.phase("drain")
    began = time.monotonic()
    await stage.nemesis.heal(run.options.step_timeout_s)
    await stage.traffic.settle(run.options.step_timeout_s)
    await stage.traffic.drain(stage.observer.live_admins, run.options.step_timeout_s)
    await stage.traffic.stop_consumers()
    run.file.drain_s = round(time.monotonic() - began, 3)
    stage.phase("drained")


async def _watch_stalls(log: ProcessLog) -> None:
    """Record when this process itself did not run: what looks like an outage then is ours."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(HEARTBEAT_S)
        late_s = time.monotonic() - before - HEARTBEAT_S
        if late_s >= STALL_S:
            late_us = int(late_s * 1e6)
            log.record(Kind.STALL, t_lo_us=log.now_us() - late_us, result=late_us, detail=json.dumps({"s": late_s}))


async def _show_status(run: _Run, stage: Stage) -> None:
    """One line that moves, on a terminal only."""
    if not run.console.is_terminal:
        return
    with run.console.status("") as status:
        while True:
            traffic, last = stage.traffic, stage.observer.view.last
            master = f"master {last.master}, synchronised {' '.join(last.synchronised)}" if last else "no queue yet"
            status.update(
                f"confirmed {traffic.confirmed_count:,}  delivered {traffic.delivery_count:,}  "
                f"failovers {len(stage.observer.view.promotions)}  {master}"
            )
            await asyncio.sleep(_STATUS_INTERVAL_S)
