"""`warren sim`: whole clusters in a deterministic simulator, by the seed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chaos.extras import extra_needed
from chaos.interrupts import EXIT_INTERRUPTED, sigterm_as_interrupt
from chaos.whole_file import write_whole

if TYPE_CHECKING:
    from chaos.sim.schedule import Schedule
    from chaos.sim.tally import Tally

#: Of a campaign, so many failing seeds are told in full, and so many drawn.
TOLD_MAX = 20
DRAWN_MAX = 3
#: A campaign without an end has so many seeds.
ENDLESS = 2**60
#: Between two writings of the summary of a campaign that goes on.
SUMMARY_EVERY_S = 60.0


class SeedRange(click.ParamType[range]):
    """``7``, or ``1..200``: both ends included; or ``1..``, which ends when it is stopped."""

    name = "seeds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        match = re.fullmatch(r"(\d+)(?:(\.\.)(\d+)?)?", str(value))
        if match is None:
            self.fail(f"{value!r} names no seeds: write one, as 7, or a range, as 1..200 or 201..", param, ctx)
        first = int(match[1])
        last = int(match[3]) if match[3] else first + ENDLESS if match[2] else first
        if last < first:
            self.fail(f"{value!r} is empty: the first seed comes first", param, ctx)
        return range(first, last + 1)


@dataclass(frozen=True)
class Size:
    """How large the world of each seed is, and how long it lasts."""

    nodes: int
    #: ``None``, and so for the length: those of the scenario, or the usual.
    operations: int | None = None
    length_s: int | None = None
    #: Empty: from everything there is.
    scenario: str = ""

    @property
    def length_ms(self) -> int | None:
        return None if self.length_s is None else self.length_s * 1000

    def draw(self, seed: int) -> Schedule:
        from chaos.sim.scenarios.catalogue import draw  # noqa: PLC0415 - needs the extra

        return draw(seed, self.nodes, self.operations, self.length_ms, self.scenario)

    def command(self, action: str, seed: int) -> str:
        """What to type to have this seed again."""
        options = [
            f" --{name} {value}"
            for name, value, usual in (
                ("nodes", self.nodes, 3),
                ("operations", self.operations, None),
                ("length", self.length_s, None),
                ("scenario", self.scenario, ""),
            )
            if value != usual
        ]
        return f"warren sim --{action} {seed}{''.join(options)}"


class ScenarioName(click.ParamType[str]):
    """One that there is, or ``list``; empty: none."""

    name = "scenario"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        with extra_needed():
            from chaos.sim.scenarios.catalogue import SCENARIOS  # noqa: PLC0415 - needs the extra
        name = str(value)
        if name and name not in SCENARIOS and name != "list":
            self.fail(f"{name!r} is no scenario. There are:\n{_list_of_scenarios()}", param, ctx)
        return name


def _list_of_scenarios() -> str:
    from chaos.sim.scenarios.catalogue import SCENARIOS  # noqa: PLC0415 - needs the extra

    return "\n".join(f"  {name:20} {scenario.about}" for name, scenario in SCENARIOS.items())


@click.group("sim", invoke_without_command=True)
@click.pass_context
@click.option(
    "--seeds", type=SeedRange(), default="1..100", show_default=True, help="Which seeds are run: N, N..M, N.."
)
@click.option("--nodes", type=click.IntRange(2, 9), default=3, show_default=True, help="Nodes of each cluster.")
@click.option(
    "--operations", type=click.IntRange(min=1), help="What clients do.  [default: 200; a scenario has its own]"
)
@click.option(
    "--length",
    type=click.IntRange(min=1),
    help="Virtual seconds of the faults at most.  [default: 20; a scenario has its own]",
)
@click.option(
    "--scenario", type=ScenarioName(), default="", metavar="NAME", help="Aim at one thing; `list` names them all."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Begin no seed after so many real seconds."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes side by side.  [default: one for each core]")
@click.option(
    "--summary", type=click.Path(path_type=Path), help="Write what came of the seeds into this file, as JSON."
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Begin behind the campaigns in this book, and add this one, also to the table in the .md file beside it.",
)
@click.option(
    "--artefacts",
    type=click.Path(path_type=Path),
    default=Path("sim-out"),
    show_default=True,
    help=f"Where the first {DRAWN_MAX} failing seeds are drawn.",
)
@click.option(
    "--shrink-runs", type=click.IntRange(min=0), default=0, help="Shrink those, in so many runs at most each."
)
@click.option("--replay", type=click.IntRange(min=0), help="Run this seed alone and print what happens, line by line.")
@click.option("--draw", type=click.Path(path_type=Path), help="With --replay: draw the run into this file, as HTML.")
@click.option("--shrink", "shrunk", type=click.IntRange(min=0), help="Find the smallest schedule of a failing seed.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="With --shrink: write what is left into this file, drawn beside it."
)
def sim_command(
    ctx: click.Context,
    *,
    seeds: range,
    nodes: int,
    operations: int | None,
    length: int | None,
    scenario: str,
    seconds: float | None,
    jobs: int | None,
    summary: Path | None,
    ledger: Path | None,
    artefacts: Path,
    shrink_runs: int,
    replay: int | None,
    draw: Path | None,
    shrunk: int | None,
    keep: Path | None,
) -> None:
    """Run whole simulated clusters and judge what their clients saw.

    There is one for each seed, under every fault. Exits 1 if a promise was broken, or if many seeds have never
    reached some rare state; 130 if it was interrupted before. The same seed on the same code does the same.
    """
    if ctx.invoked_subcommand is not None:
        return
    _refuse_without_effect(ctx)
    with extra_needed():
        from chaos.sim.campaign import Campaign, jobs_by_default  # noqa: PLC0415 - needs the extra
    if scenario == "list":
        click.echo(_list_of_scenarios())
        return
    size = Size(nodes, operations, length, scenario)
    if replay is not None:
        sys.exit(_replay(size, replay, draw))
    if shrunk is not None:
        sys.exit(_shrink(size, shrunk, keep, artefacts))
    if ledger is not None:
        seeds = _seeds_behind(ctx, ledger, size, seconds)
    campaign = Campaign(
        seeds, nodes, operations, size.length_ms, jobs or jobs_by_default(), seconds=seconds, scenario=scenario
    )
    tally, ended, took_s = _run(campaign, summary, ledger)
    click.echo(
        f"{tally.ran} seeds of {nodes} nodes, {tally.failed} failed; {tally.simulated_s / 3600:.1f} simulated hours in "
        f"{took_s:.0f} s, {tally.ran / took_s:.2f} seeds a second"
    )
    if not tally.ran:
        click.echo(f"ended by {ended}, before a seed was done")
    elif tally.ran < len(seeds):
        click.echo(f"ended by {ended}; to go on: --seeds {tally.next}..{'' if len(seeds) >= ENDLESS else seeds[-1]}")
    # A scenario is aimed at one thing, and need not reach the others; nor need a sample that runs out of time.
    is_whole = ended == "all seeds" or (ledger is not None and ended == "time")
    is_blind = not scenario and ended != "interrupt" and _tell_unreached(tally) and is_whole
    if tally.failed:
        click.echo(f"look at one of them: {size.command('replay', tally.failures[0].seed)} --draw FILE.html")
        if ended != "interrupt":
            _draw_failures(size, tally, artefacts, shrink_runs)
    sys.exit(1 if tally.failed or is_blind else EXIT_INTERRUPTED if ended == "interrupt" else 0)


def _refuse_without_effect(ctx: click.Context) -> None:
    """An option that would do nothing is a misunderstanding. Raises `click.UsageError`."""
    given = {
        param.name: param.opts[0]
        for param in ctx.command.params
        if ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
    }
    for name, (option, needed) in _BELONGS_TO.items():
        if name in given and needed not in given:
            raise click.UsageError(f"{given[name]} goes with {option} SEED, and does nothing without it")
    for name, fitting in _OF_ONE_SEED.items():
        if name in given:
            others = [option for other, option in given.items() if other not in fitting]
            if others:
                raise click.UsageError(
                    f"{others[0]} does not go with {given[name]}, which is of one seed: leave it out"
                )


_BELONGS_TO = {"draw": ("--replay", "replay"), "keep": ("--shrink", "shrunk")}
_WORLD = frozenset({"nodes", "operations", "length", "scenario"})
#: What runs one seed alone, and all that counts with it.
_OF_ONE_SEED = {
    "replay": _WORLD | {"replay", "draw"},
    "shrunk": _WORLD | {"shrunk", "keep", "artefacts"},
}


# --- a campaign ---


def _seeds_behind(ctx: click.Context, path: Path, size: Size, seconds: float | None) -> range:
    """Those that no campaign in the book has come to."""
    from chaos.sim import ledger  # noqa: PLC0415 - needs the extra

    if ctx.get_parameter_source("seeds") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--ledger says itself which seeds come next: leave --seeds out")
    if size.scenario or seconds is None:
        raise click.UsageError("a campaign for --ledger has --seconds, and no --scenario")
    try:
        first = ledger.next_seed(ledger.read(path), size.nodes, size.operations, size.length_s)
    except ledger.LedgerError as error:
        raise click.UsageError(str(error)) from error
    return range(first, first + ENDLESS)


def _enter(path: Path, summary: dict[str, Any]) -> None:
    """Add a campaign to the book, and to the document beside it, if there is one."""
    from chaos.sim import ledger  # noqa: PLC0415 - needs the extra

    entries = [*ledger.read(path), ledger.Entry.of_summary(summary)]
    ledger.write(path, entries)
    document = path.with_suffix(".md")
    if document.exists():
        document.write_text(ledger.with_table(document.read_text(encoding="utf-8"), entries), encoding="utf-8")


def _run(campaign: Any, summary: Path | None, ledger: Path | None) -> tuple[Tally, str, float]:
    """What came of it, how it ended, and how long it took."""
    from chaos.sim.sometimes import CATALOGUE  # noqa: PLC0415 - needs the extra
    from chaos.sim.tally import Tally  # noqa: PLC0415

    seeds: range = campaign.seeds
    tally = Tally(seeds[0])
    begin_s = written_s = time.monotonic()
    is_endless = len(seeds) >= ENDLESS
    facts = _facts(campaign)

    def write(ended: str) -> dict[str, Any]:
        document = tally.summary(took_s=time.monotonic() - begin_s, ended=ended, **facts)
        if summary is not None:
            _write_json(summary, document)
        return document

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console) as progress, sigterm_as_interrupt():
        task = progress.add_task("seeds", total=None if is_endless else len(seeds))
        try:
            write("not yet")
            with closing(campaign.run()) as results:
                for result in results:
                    tally.add(result)
                    if result.violations and tally.failed <= TOLD_MAX:
                        _tell_failure(result)
                    now_s = time.monotonic()
                    rate = tally.ran / (now_s - begin_s)
                    said = f"{rate:.2f} seeds/s, {tally.failed} failed, {tally.reached}/{len(CATALOGUE)} rare states"
                    progress.update(task, advance=1, description=said)
                    if now_s - written_s > SUMMARY_EVERY_S:
                        write("not yet")
                        written_s = now_s
            ended = "all seeds" if tally.ran == len(seeds) else "time"
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ended = "interrupt"
    document = write(ended)
    if ledger is not None and tally.ran:
        _enter(ledger, document)
    return tally, ended, max(time.monotonic() - begin_s, 1e-9)


def _facts(campaign: Any) -> dict[str, Any]:
    return {
        "commit": _commit(),
        "nodes": campaign.nodes,
        "scenario": campaign.scenario,
        "operations": campaign.operations,
        "length_s": None if campaign.length_ms is None else campaign.length_ms / 1000,
        "jobs": campaign.jobs,
    }


def _commit() -> str | None:
    """Of the checkout that this is run from, with a plus sign if it was changed, documents apart; ``None`` outside of
    one."""
    root = Path(__file__).parents[1]
    try:
        said = [
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return said[0] + ("+" if said[1] else "")


def _write_json(path: Path, document: dict[str, Any]) -> None:
    """Whole, or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(document, indent=1) + "\n")


def _tell_failure(result: Any) -> None:
    click.echo(f"seed {result.seed}:")
    for violation in result.violations:
        click.echo(f"  {violation}")


def _tell_unreached(tally: Tally) -> bool:
    """Say which rare states no seed has reached; whether that fails the campaign."""
    from chaos.sim.sometimes import CATALOGUE, ENOUGH_SEEDS  # noqa: PLC0415 - needs the extra

    missing = tally.unreached()
    if not missing:
        click.echo(f"all {len(CATALOGUE)} rare states were reached")
        return False
    is_enough = tally.ran >= ENOUGH_SEEDS
    click.echo(f"{len(missing)} of {len(CATALOGUE)} rare states were never reached:")
    for name in missing:
        click.echo(f"  {name}: {CATALOGUE[name]}")
    if not is_enough:
        click.echo(f"that is no failure of fewer than {ENOUGH_SEEDS} seeds")
    return is_enough


def _draw_failures(size: Size, tally: Tally, artefacts: Path, shrink_runs: int) -> None:
    """The first of them, each as it is and, if that is wanted, shrunk."""
    for result in tally.failures[:DRAWN_MAX]:
        if result.violations[0].startswith("harness: "):
            continue  # the simulator's own mistake: there is no run to draw
        _draw(size.draw(result.seed), artefacts / f"seed-{result.seed}.html", size.command("replay", result.seed))
        if shrink_runs:
            _shrink(size, result.seed, artefacts / f"seed-{result.seed}.json", artefacts, runs_max=shrink_runs)


# --- one seed ---


def _draw(schedule: Schedule, path: Path, replay: str) -> None:
    from chaos.sim.draw import draw_run  # noqa: PLC0415 - needs the extra

    draw_run(schedule, path, replay)
    _echo(f"drawn in {path}")


def _echo(line: str) -> None:
    """To whoever still reads: one that has enough (``| head``) ends neither the run nor its exit code."""
    try:
        click.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replay(size: Size, seed: int, draw: Path | None) -> int:
    from chaos.sim.run import run_schedule  # noqa: PLC0415 - needs the extra

    schedule = size.draw(seed)
    _echo(f"{schedule.personality}")
    outcome = run_schedule(schedule, on_line=_echo)
    of = f" of {size.scenario}" if size.scenario else ""
    _echo(f"seed {seed}{of}: fingerprint {outcome.fingerprint:08x}, {outcome.turns} turns, {outcome.length_s:.3f} s")
    for violation in outcome.violations:
        _echo(f"  {violation}")
    if draw is not None:
        _draw(schedule, draw, size.command("replay", seed))
    return int(outcome.is_failed)


def _shrink(size: Size, seed: int, keep: Path | None, artefacts: Path, runs_max: int = 400) -> int:
    from chaos.sim.schedule import write_schedule  # noqa: PLC0415 - needs the extra
    from chaos.sim.shrink import shrink  # noqa: PLC0415

    schedule = size.draw(seed)
    console = Console(stderr=True)
    with console.status("shrinking") as status:
        try:
            smallest, outcome = shrink(
                schedule,
                runs_max=runs_max,
                on_progress=lambda runs, steps: status.update(f"{runs} runs, {steps} steps are left"),
            )
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    click.echo(f"{len(smallest.steps)} of {len(schedule.steps)} steps:")
    for step in smallest.steps:
        click.echo(f"  {step}")
    for violation in outcome.violations:
        click.echo(f"  {violation}")
    page = artefacts / f"seed-{seed}-shrunk.html"
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        write_schedule(smallest, keep, str(outcome.violations[0]))
        click.echo(f"kept in {keep}")
        page = keep.with_name(f"{keep.stem}-shrunk.html")
    _draw(smallest, page, size.command("shrink", seed))
    return 1


@sim_command.command("ablate")
@click.option("--safeguard", "names", multiple=True, metavar="NAME", help="This one only; may be given again.")
@click.option("--missing", is_flag=True, help="Only those that the table does not have as found yet.")
@click.option("--seeds-at-most", type=click.IntRange(min=1), default=10_000, show_default=True, help="Of each.")
@click.option(
    "--shrink-runs", type=click.IntRange(min=1), default=200, show_default=True, help="To make a schedule small."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Safeguards side by side.  [default: one for each core]")
@click.option(
    "--docs", type=click.Path(path_type=Path, file_okay=False, exists=True), default="docs", help="Where the table is."
)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Write shrunk schedules into here.")
def ablate_command(
    *,
    names: tuple[str, ...],
    missing: bool,
    seeds_at_most: int,
    shrink_runs: int,
    jobs: int | None,
    docs: Path,
    keep: Path | None,
) -> None:
    """Take safeguards away until the simulator shows what they are for.

    They are those of the product, one after the other; the table of that is kept. Each finding is written at
    once: a run that was interrupted goes on with --missing. Exits 1 if one was not noticed, 130 if it was
    interrupted.
    """
    with extra_needed():
        from chaos.sim.ablation.catalogue import SAFEGUARDS  # noqa: PLC0415 - needs the extra
        from chaos.sim.ablation.finding import find_all  # noqa: PLC0415
        from chaos.sim.ablation.table import noticed_in_words, read_findings, write_finding  # noqa: PLC0415
        from chaos.sim.campaign import jobs_by_default  # noqa: PLC0415
        from chaos.sim.schedule import write_schedule  # noqa: PLC0415
    unknown = [name for name in names if name not in SAFEGUARDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no safeguard. There are: {', '.join(SAFEGUARDS)}")
    kept = read_findings(docs)
    chosen = [name for name in SAFEGUARDS if name in names or not (names or SAFEGUARDS[name].unseen_because)]
    if missing:
        chosen = [name for name in chosen if not kept.get(name, {}).get("is_found")]
    lost = done = 0
    with Console(stderr=True).status("taking safeguards away") as status:
        try:
            for finding in find_all(chosen, seeds_at_most, shrink_runs, jobs or jobs_by_default(), status.update):
                done += 1
                lost += not finding.is_found
                write_finding(docs, finding)
                said = f"{finding.steps} -> {finding.steps_left} steps, {finding.said}" if finding.is_found else "-"
                click.echo(
                    f"{done}/{len(chosen)} {finding.safeguard} ({finding.scenario}): {finding.seeds} seeds, {said}"
                )
                if keep is not None and finding.schedule is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    kind = finding.said.partition(":")[0]
                    path = keep / f"{finding.safeguard}.json"
                    write_schedule(finding.schedule, path, f"{finding.safeguard}: {kind}")
        except KeyboardInterrupt:
            click.echo("interrupted; --missing goes on", err=True)
    click.echo(noticed_in_words(done - lost, len(chosen)))
    sys.exit(1 if lost else EXIT_INTERRUPTED if done < len(chosen) else 0)
