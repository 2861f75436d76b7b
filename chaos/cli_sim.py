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


@click.command("sim")
@click.option("--seeds", type=SeedRange(), default="1..100", show_default=True, help="Which seeds are run.")
@click.option("--nodes", type=click.IntRange(2, 9), default=3, show_default=True, help="Nodes of each cluster.")
@click.option("--operations", type=click.IntRange(min=1), default=200, show_default=True, help="What clients do.")
@click.option(
    "--seconds", type=click.IntRange(min=1), default=20, show_default=True, help="Virtual time of the faults at most."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes side by side.  [default: one for each core]")
@click.option("--replay", type=click.IntRange(min=0), help="Run this seed alone and print what happens, line by line.")
@click.option("--shrink", "shrunk", type=click.IntRange(min=0), help="Find the smallest schedule of a failing seed.")
@click.option("--keep", type=click.Path(path_type=Path), help="With --shrink: write what is left into this file.")
def sim_command(
    *,
    seeds: range,
    nodes: int,
    operations: int,
    seconds: int,
    jobs: int | None,
    replay: int | None,
    shrunk: int | None,
    keep: Path | None,
) -> None:
    """Run whole simulated clusters, one for each seed, under every fault, and judge what clients saw.

    Exits 1 if a promise was broken, or if many seeds have never reached some rare state. The same
    seed on the same code does the same.
    """
    with extra_needed():
        from chaos.sim.campaign import Campaign, jobs_by_default  # noqa: PLC0415 - needs the extra
    if replay is not None:
        sys.exit(_replay(replay, nodes, operations, seconds))
    if shrunk is not None:
        sys.exit(_shrink(shrunk, nodes, operations, seconds, keep))
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
            for result in Campaign(seeds, nodes, operations, seconds * 1000, jobs).run():
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
    is_blind = _tell_unreached(sightings, ran)
    if failed:
        click.echo("look at one of them: warren sim --replay SEED, or warren sim --shrink SEED")
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


def _replay(seed: int, nodes: int, operations: int, seconds: int) -> int:
    from chaos.sim.drawing import draw_schedule  # noqa: PLC0415 - needs the extra
    from chaos.sim.run import run_schedule  # noqa: PLC0415

    schedule = draw_schedule(seed, nodes, operations, seconds * 1000)
    click.echo(f"{schedule.personality}")
    outcome = run_schedule(schedule, on_line=click.echo)
    click.echo(f"seed {seed}: fingerprint {outcome.fingerprint:08x}, {outcome.turns} turns, {outcome.length_s:.3f} s")
    for violation in outcome.violations:
        click.echo(f"  {violation}")
    return int(outcome.is_failed)


def _shrink(seed: int, nodes: int, operations: int, seconds: int, keep: Path | None) -> int:
    from chaos.sim.drawing import draw_schedule  # noqa: PLC0415 - needs the extra
    from chaos.sim.schedule import write_schedule  # noqa: PLC0415
    from chaos.sim.shrink import shrink  # noqa: PLC0415

    schedule = draw_schedule(seed, nodes, operations, seconds * 1000)
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
