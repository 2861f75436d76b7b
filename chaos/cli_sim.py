"""`warren sim`: whole clusters in a deterministic simulator, by the seed."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chaos.cli_chaos import extra_needed

#: Of a campaign, so many failing seeds are told in full.
TOLD_MAX = 20


class SeedRange(click.ParamType[range]):
    """``7``, or ``1..200``: both ends included."""

    name = "seeds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", str(value))
        if match is None:
            self.fail(f"{value!r} names no seeds: write one, as 7, or a range, as 1..200", param, ctx)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            self.fail(f"{value!r} is empty: the first seed comes first", param, ctx)
        return range(first, last + 1)


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
@click.option("--seeds", type=SeedRange(), default="1..100", show_default=True, help="Which seeds are run.")
@click.option("--nodes", type=click.IntRange(2, 9), default=3, show_default=True, help="Nodes of each cluster.")
@click.option(
    "--operations", type=click.IntRange(min=1), help="What clients do.  [default: 200; a scenario has its own]"
)
@click.option(
    "--seconds", type=click.IntRange(min=1), help="Virtual time of the faults.  [default: 20; a scenario has its own]"
)
@click.option(
    "--scenario", type=ScenarioName(), default="", metavar="NAME", help="Aim at one thing; `list` names them all."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes side by side.  [default: one for each core]")
@click.option("--replay", type=click.IntRange(min=0), help="Run this seed alone and print what happens, line by line.")
@click.option("--shrink", "shrunk", type=click.IntRange(min=0), help="Find the smallest schedule of a failing seed.")
@click.option("--keep", type=click.Path(path_type=Path), help="With --shrink: write what is left into this file.")
def sim_command(
    ctx: click.Context,
    *,
    seeds: range,
    nodes: int,
    operations: int | None,
    seconds: int | None,
    scenario: str,
    jobs: int | None,
    replay: int | None,
    shrunk: int | None,
    keep: Path | None,
) -> None:
    """Run whole simulated clusters, one for each seed, under every fault, and judge what clients saw.

    Exits 1 if a promise was broken, or if many seeds have never reached some rare state. The same
    seed on the same code does the same.
    """
    if ctx.invoked_subcommand is not None:
        return
    with extra_needed():
        from chaos.sim.campaign import Campaign, jobs_by_default  # noqa: PLC0415 - needs the extra
    if scenario == "list":
        click.echo(_list_of_scenarios())
        return
    length_ms = None if seconds is None else seconds * 1000
    if replay is not None:
        sys.exit(_replay(replay, nodes, operations, length_ms, scenario))
    if shrunk is not None:
        sys.exit(_shrink(shrunk, nodes, operations, length_ms, scenario, keep))
    jobs = jobs or jobs_by_default()
    console = Console(stderr=True)
    begin_s = time.monotonic()
    failed = ran = 0
    simulated_s = 0.0
    sightings: Counter[str] = Counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        try:
            for result in Campaign(seeds, nodes, operations, length_ms, jobs, scenario).run():
                ran += 1
                simulated_s += result.simulated_s
                sightings.update(result.sightings)
                progress.advance(task)
                if result.violations:
                    failed += 1
                    if failed <= TOLD_MAX:
                        click.echo(f"seed {result.seed}:")
                        for violation in result.violations:
                            click.echo(f"  {violation}")
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
    took_s = time.monotonic() - begin_s
    click.echo(
        f"{ran} seeds of {nodes} nodes, {failed} failed; {simulated_s / 3600:.1f} simulated hours in {took_s:.0f} s, "
        f"{ran / took_s:.2f} seeds a second"
    )
    # A scenario is aimed at one thing, and need not reach the others.
    is_blind = not scenario and _tell_unreached(sightings, ran)
    if failed:
        aimed = f" --scenario {scenario}" if scenario else ""
        click.echo(f"look at one of them: warren sim{aimed} --replay SEED, or warren sim{aimed} --shrink SEED")
    sys.exit(1 if failed or is_blind or ran < len(seeds) else 0)


def _tell_unreached(sightings: Counter[str], seeds: int) -> bool:
    """Say which rare states no seed has reached; whether that fails the campaign."""
    from chaos.sim.sometimes import CATALOGUE, ENOUGH_SEEDS  # noqa: PLC0415 - needs the extra

    missing = [name for name in CATALOGUE if not sightings[name]]
    if not missing:
        click.echo(f"all {len(CATALOGUE)} rare states were reached")
        return False
    is_enough = seeds >= ENOUGH_SEEDS
    click.echo(f"{len(missing)} of {len(CATALOGUE)} rare states were never reached:")
    for name in missing:
        click.echo(f"  {name}: {CATALOGUE[name]}")
    if not is_enough:
        click.echo(f"that is no failure of fewer than {ENOUGH_SEEDS} seeds")
    return is_enough


def _replay(seed: int, nodes: int, operations: int | None, length_ms: int | None, scenario: str) -> int:
    from chaos.sim.run import run_schedule  # noqa: PLC0415 - needs the extra
    from chaos.sim.scenarios.catalogue import draw  # noqa: PLC0415

    schedule = draw(seed, nodes, operations, length_ms, scenario)
    click.echo(f"{schedule.personality}")
    outcome = run_schedule(schedule, on_line=click.echo)
    of = f" of {scenario}" if scenario else ""
    click.echo(
        f"seed {seed}{of}: fingerprint {outcome.fingerprint:08x}, {outcome.turns} turns, {outcome.length_s:.3f} s"
    )
    for violation in outcome.violations:
        click.echo(f"  {violation}")
    return int(outcome.is_failed)


def _shrink(
    seed: int, nodes: int, operations: int | None, length_ms: int | None, scenario: str, keep: Path | None
) -> int:
    from chaos.sim.scenarios.catalogue import draw  # noqa: PLC0415 - needs the extra
    from chaos.sim.schedule import write_schedule  # noqa: PLC0415
    from chaos.sim.shrink import shrink  # noqa: PLC0415

    schedule = draw(seed, nodes, operations, length_ms, scenario)
    console = Console(stderr=True)
    with console.status("shrinking") as status:
        try:
            smallest, outcome = shrink(
                schedule, on_progress=lambda runs, steps: status.update(f"{runs} runs, {steps} steps are left")
            )
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    click.echo(f"{len(smallest.steps)} of {len(schedule.steps)} steps:")
    for step in smallest.steps:
        click.echo(f"  {step}")
    for violation in outcome.violations:
        click.echo(f"  {violation}")
    if keep is not None:
        write_schedule(smallest, keep, str(outcome.violations[0]))
        click.echo(f"kept in {keep}")
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
    """Take each safeguard of the product away until a seed shows what it is for, and keep the table of that.

    Each finding is written at once: a run that was interrupted goes on with --missing. Exits 1 if one was not found.
    """
    with extra_needed():
        from chaos.sim.ablation.catalogue import SAFEGUARDS  # noqa: PLC0415 - needs the extra
        from chaos.sim.ablation.finding import find_all  # noqa: PLC0415
        from chaos.sim.ablation.table import read_findings, write_finding  # noqa: PLC0415
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
    click.echo(f"{done - lost} of {len(chosen)} were found missing")
    sys.exit(1 if lost or done < len(chosen) else 0)
