"""``warren chaos``: break clusters, and tell what it did to the messages."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from chaos.conduct.sheet import NoRun, read_sheet
from chaos.harm.journal import DamagedJournal, JournalInUse, heal, outstanding
from chaos.interrupts import EXIT_INTERRUPTED, sigterm_as_interrupt
from chaos.java import JavaMissingError, find_java
from chaos.judge.judgement_file import NoJudgement
from chaos.judge.verdict import ExitCode
from chaos.plan.model import Scenario
from chaos.plan.reading import catalogue, catalogue_documents, read_document, read_scenario, scenario
from chaos.plan.variants import lacks_for_quorum, with_quorum_queues
from chaos.plan.words import PlanError
from chaos.report import page
from chaos.suite import index
from chaos.suite.by_reference import PlainJudge
from chaos.suite.by_spark import SparkJudge
from chaos.suite.junit import junit_xml
from chaos.suite.results import Result, append, read, summarise
from chaos.suite.running import CannotJudge, Judge, Setting, TargetKind, conclude, run_scenario
from chaos.suite.side_by_side import table
from chaos.suite.smallest import smallest
from chaos.suite.undoers import EVERY_UNDOER
from chaos.suite.watching import TerminalWatcher, show_result, show_summary
from chaos.targets.compose import ComposeTarget
from chaos.targets.external import ExternalTarget
from chaos.targets.local import LocalTarget
from chaos.targets.outside import OutsideError, read_outside
from chaos.targets.rabbitmq import RabbitMqTarget

TARGETS: dict[str, TargetKind] = {
    kind.name: kind
    for kind in (
        TargetKind("local", LocalTarget),
        TargetKind("compose", ComposeTarget),
        TargetKind("rabbitmq", RabbitMqTarget),
        TargetKind("rabbitmq-quorum", RabbitMqTarget, with_quorum_queues, lacks_for_quorum),
    )
}
DEFAULT_OUT = Path("chaos-runs")
JUNIT_NAME = "junit.xml"
#: Of the shell: a command that was not carried out, as its precondition is missing.
EXIT_NO_JAVA, EXIT_SKIPPED = 69, 77
_SEEDS = 1_000_000

target_option = click.option(
    "--target", default="local", show_default=True, metavar="|".join((*TARGETS, "FILE")),
    help="What is broken: processes of this machine (Warren, or RabbitMQ with mirrored or quorum queues), containers, "
    "or the cluster that a file tells of.",
)  # fmt: skip
out_option = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT_OUT, show_default=True,
    help="A directory for all runs; each has its own in it.",
)  # fmt: skip
judge_option = click.option(
    "--judge", "judge_name", type=click.Choice(["spark", "plain"]), default="spark", show_default=True,
    help="Who judges: Spark, or plain Python (some 100,000 messages at most).",
)  # fmt: skip
master_option = click.option("--master", "master_url", metavar="URL", help="Spark master; by default this machine.")
seed_option = click.option("--seed", type=click.IntRange(min=0), help="Repeat the random choices of an earlier run.")


@click.group("chaos")
def chaos_group() -> None:
    """Break a cluster under load and account for every message."""


@contextmanager
def errors_as_text() -> Iterator[None]:
    """What is wrong for reasons outside the program ends as one message, not as a traceback."""
    try:
        yield
    except JavaMissingError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_NO_JAVA)
    except (PlanError, OutsideError) as error:
        raise click.UsageError(str(error)) from None
    except (NoRun, NoJudgement, CannotJudge, JournalInUse, DamagedJournal) as error:
        raise click.ClickException(str(error)) from None


def document_named(name: str) -> dict[str, Any]:
    """What a scenario of the catalogue, or of a file, says. Raises `PlanError`."""
    if name.endswith(".toml"):
        return read_document(Path(name))
    known: dict[str, dict[str, Any]] = {}
    for file_name, document in catalogue_documents().items():
        known |= {document["id"]: document, name_of(file_name): document}
    if name not in known:
        raise PlanError(f"there is no scenario {name}; `warren chaos list` names all, and a file ends in .toml")
    return known[name]


def name_of(file_name: str) -> str:
    """K01_kill_master.toml: kill-master."""
    return file_name.removesuffix(".toml").partition("_")[2].replace("_", "-")


def scenario_named(name: str) -> Scenario:
    """Raises `PlanError`."""
    return read_scenario(Path(name)) if name.endswith(".toml") else scenario(document_named(name))


def target_named(name: str) -> TargetKind:
    """Raises `OutsideError`."""
    if name in TARGETS:
        return TARGETS[name]
    if not name.endswith(".toml"):
        raise OutsideError(f"there is no target {name}: it is {', '.join(TARGETS)} or a file that ends in .toml")
    cluster = read_outside(Path(name))
    # The directory is within the run's, which has its name.
    return TargetKind(cluster.name, lambda directory, journal: ExternalTarget(cluster, journal, directory.parent.name))


@chaos_group.command("list")
@click.option("--names", is_flag=True, help="Ids only, one per line.")
def list_command(names: bool) -> None:
    """The scenarios there are."""
    scenarios = catalogue()
    if names:
        click.echo("\n".join(scenarios))
        return
    listed = Table("id", "name", "what is done", "tags", box=None, padding=(0, 2, 0, 0))
    for file_name, document in catalogue_documents().items():
        each = scenarios[document["id"]]
        listed.add_row(each.id, name_of(file_name), each.title, " ".join(each.tags))
    Console().print(listed)


@dataclass(frozen=True, slots=True)
class Order:
    """What a command runs."""

    scenarios: Sequence[str]
    target: str
    out: Path
    seed: int
    repeat: int
    judge_name: str
    master_url: str | None
    shrink: bool = False

    def replay(self, scenario: str, seed: int) -> str:
        """The command for one run of it."""
        words = ["warren chaos run", scenario, f"--seed {seed}"]
        if self.target != "local":
            words.append(f"--target {self.target}")
        return " ".join(words)


@chaos_group.command("run")
@click.argument("scenarios", metavar="ID|NAME|FILE...", nargs=-1, required=True)
@target_option
@out_option
@seed_option
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each, seed by seed.")
@click.option(
    "--shrink", is_flag=True, help="Of a run that does not pass, look for the smallest scenario that shows it."
)
@judge_option
@master_option
def run_command(
    *,
    scenarios: tuple[str, ...],
    target: str,
    out: Path,
    seed: int | None,
    repeat: int,
    shrink: bool,
    judge_name: str,
    master_url: str | None,
) -> None:
    """Run scenarios and judge them.

    The exit code of one run is its verdict: 0 PASS, 10 EXPECTED LOSS (the policy permits it), 1 FAIL, 3 UNKNOWN (the
    record does not tell), 5 VACUOUS (nothing was tested), 77 skipped; of several, 0 if each passed, lost only what it
    may, or was skipped, else that of the worst. 2 wrong arguments, 69 no Java, 130 interrupted.
    """
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    order = Order(scenarios, target, out, seed, repeat, judge_name, master_url, shrink)
    with errors_as_text():
        sys.exit(carry_out(order, Console()))


@chaos_group.command("suite")
@click.argument("tag")
@target_option
@out_option
@seed_option
@judge_option
@master_option
def suite_command(
    *, tag: str, target: str, out: Path, seed: int | None, judge_name: str, master_url: str | None
) -> None:
    """Run every scenario with a tag.

    TAG is smoke (a few minutes), full (all of them), or another: `list` shows them. What the target cannot do is
    skipped, with the reason, and proves nothing. Exit codes as of `run` with several.
    """
    known = catalogue()
    names = [name for name, scenario in known.items() if tag in ("full", *scenario.tags)]
    if not names:
        tags = sorted({each for scenario in known.values() for each in scenario.tags})
        raise click.UsageError(f"no scenario has the tag {tag}; there are full, {', '.join(tags)}")
    order = Order(names, target, out, secrets.randbelow(_SEEDS) if seed is None else seed, 1, judge_name, master_url)
    with errors_as_text():
        sys.exit(carry_out(order, Console()))


@chaos_group.command("analyse")
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@judge_option
@master_option
def analyse_command(run_dir: Path, judge_name: str, master_url: str | None) -> None:
    """Judge the record of a run again."""
    console = Console()
    with errors_as_text():
        sheet = read_sheet(run_dir)
        with interruptible(console, [run_dir]), judge_named(judge_name, run_dir, master_url) as judge:
            result = conclude(run_dir, sheet, judge(run_dir, sheet), 0.0)
    show_result(console, result)
    show_page(console, result)
    sys.exit(exit_code([result]))


@chaos_group.command("watch")
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@master_option
def watch_command(run_dir: Path, master_url: str | None) -> None:
    """Judge a run while it goes on.

    The parts of its record are judged as they appear; the exit codes are those of `run`.
    """
    from chaos.suite.live import watch_run  # noqa: PLC0415 - PySpark takes a second to be imported

    console = Console()
    with errors_as_text(), interruptible(console, []):
        find_java()
        result = watch_run(run_dir, console, master_url)
    show_result(console, result)
    show_page(console, result)
    sys.exit(exit_code([result]))


@chaos_group.command("prove")
@click.option(
    "--messages",
    type=click.IntRange(min=1_000),
    default=1_100_000,
    show_default=True,
    help="Of the history; each is about nine events.",
)
@click.option("--plant", type=click.IntRange(min=1), default=10, show_default=True, help="Anomalies of each class.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of what is drawn.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep the history and what was found.")
@master_option
def prove_command(*, messages: int, plant: int, seed: int, out: Path | None, master_url: str | None) -> None:
    """Measure how often the judge is wrong.

    Known anomalies are planted in a history without any other, and what is found is compared with them. The exit code
    is 0 if all of them were found, and nothing else.
    """
    from chaos.generator.shape import Shape  # noqa: PLC0415 - numpy takes its time to be imported
    from chaos.suite.error_rate import measure  # noqa: PLC0415 - PySpark takes a second to be imported

    shape = Shape(seed=seed, messages=messages, tap=True, failovers=6, left=0.01)
    console = Console()
    with (
        errors_as_text(), interruptible(console, []), tempfile.TemporaryDirectory(prefix="warren-prove-") as own
    ):  # fmt: skip
        find_java()
        directory = Path(own) if out is None else out
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise click.UsageError(f"{directory} is not empty; name another --out")
        rate = measure(directory, shape, plant, master_url)
    console.print(f"{rate.rows:,} events of {rate.messages:,} messages, seed {seed}\n", highlight=False)
    click.echo(rate.table(), nl=False)
    sys.exit(int(not rate.is_perfect))


@chaos_group.command("compare")
@click.argument(
    "directories",
    metavar="OUT...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
def compare_command(directories: tuple[Path, ...]) -> None:
    """Show what targets made of the same scenarios.

    As a table in Markdown, of all runs in the directories OUT (see `run --out`).
    """
    results: list[Result] = []
    for directory in directories:
        try:
            results += read(directory)
        except FileNotFoundError:
            raise click.UsageError(f"{directory} holds no runs") from None
    click.echo(table(results), nl=False)


@chaos_group.command("heal")
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
def heal_command(run_dir: Path) -> None:
    """Undo what a run that was killed has left.

    Processes, mounts, faults, and what it made on a cluster that others use: all that its journal says.
    """
    with errors_as_text():
        healed = heal(run_dir, EVERY_UNDOER)
    for each in healed:
        click.echo(
            f"{'undone' if not each.problem else 'LEFT'}: {each.entry.what}{': ' * bool(each.problem)}{each.problem}"
        )
    if not healed:
        click.echo("nothing is left to undo")
    sys.exit(int(any(each.problem for each in healed)))


# --- carrying out


def carry_out(order: Order, console: Console) -> int:
    """Run all of it, one after the other. Returns the exit code."""
    scenarios = [(name, scenario_named(name)) for name in order.scenarios]
    target = target_named(order.target)
    seeds = range(order.seed, order.seed + order.repeat)
    runs = [(*each, seed, order.out / f"{each[1].id}-{seed}") for seed in seeds for each in scenarios]
    directories = [directory for *_, directory in runs]
    for directory in directories:
        if directory.exists():
            raise click.UsageError(f"{directory} already holds a run; name another --out or --seed")
    order.out.mkdir(parents=True, exist_ok=True)
    watcher = TerminalWatcher(console)
    results: list[Result] = []
    with (
        interruptible(console, directories),
        judge_named(order.judge_name, order.out, order.master_url) as judge,
    ):
        for name, planned, seed, directory in runs:
            setting = Setting(target, judge, watcher, partial(order.replay, name))
            directory.mkdir()
            watcher.begin(f"[bold]{planned.id}[/bold] {planned.title}, seed {seed}, in {directory}")
            result = asyncio.run(run_scenario(planned, directory, seed, setting))
            if result.verdict is None:
                # Nothing was done: there is an empty journal in it.
                shutil.rmtree(directory)
            append(order.out, result)
            results.append(result)
            show_result(console, result)
            show_page(console, result)
            # Over all that were ever run there.
            index.write(read(order.out), order.out)
            if order.shrink and result.is_bad:
                _shrink(name, result, setting, watcher)
    (order.out / JUNIT_NAME).write_text(junit_xml("warren chaos", results), encoding="utf-8")
    if len(results) > 1:
        show_summary(console, summarise(results))
        console.print(f"  all runs: {order.out / index.FILE_NAME}", highlight=False, soft_wrap=True)
    return exit_code(results)


def _shrink(name: str, result: Result, setting: Setting, watcher: TerminalWatcher) -> None:
    """Look for the smallest scenario that shows what a run has shown, and write it beside that."""
    path, runs = asyncio.run(smallest(document_named(name), result, setting))
    watcher.say(f"the smallest that was seen to show it, in {runs} runs: {path}")


@contextmanager
def judge_named(name: str, log_directory: Path, master_url: str | None) -> Iterator[Judge]:
    """Raises `JavaMissingError`, before anything has begun."""
    if name == "plain":
        yield PlainJudge()
        return
    find_java()
    with SparkJudge(log_directory, master_url) as judge:
        yield judge


@contextmanager
def interruptible(console: Console, directories: Iterable[Path]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the program: with what was begun undone, or told of."""
    try:
        with sigterm_as_interrupt():
            yield
    except KeyboardInterrupt:
        left = [directory for directory in directories if directory.exists() and outstanding(directory)]
        console.print("[bold]INTERRUPTED[/bold]: nothing was concluded")
        for directory in left:
            console.print(f"not everything is undone: warren chaos heal {directory}", highlight=False)
        sys.exit(EXIT_INTERRUPTED)


def show_page(console: Console, result: Result) -> None:
    """Where it is."""
    if result.directory:
        console.print(f"  report: {Path(result.directory) / page.FILE_NAME}", highlight=False, soft_wrap=True)


#: The worst first.
_BAD: Sequence[ExitCode] = (ExitCode.FAIL, ExitCode.UNKNOWN, ExitCode.VACUOUS)


def exit_code(results: Sequence[Result]) -> int:
    """See `run_command`."""
    codes = [EXIT_SKIPPED if each.verdict is None else int(ExitCode.of(each.verdict)) for each in results]
    if len(codes) == 1:
        return codes[0]
    return next((int(code) for code in _BAD if code in codes), 0)
