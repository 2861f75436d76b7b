"""`warren chaos`: break clusters, and tell what it did to the messages."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from chaos.cli_cluster import errors_as_text

#: Modules of the ``chaos`` extra: who runs brokers only does not have them.
_EXTRA_MODULES = frozenset({"aio_pika", "aiormq", "docker", "pyarrow", "pyspark", "toxiproxy"})


@contextlib.contextmanager
def extra_needed() -> Iterator[None]:
    """Say which extra to install if a library of the laboratory is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRA_MODULES:
            raise
        raise click.ClickException(
            f"the laboratory needs {module}, which is not installed; install the extra: pip install 'warren-mq[chaos]'"
        ) from None


@click.group("chaos")
def chaos_group() -> None:
    """Break a cluster under load and account for every message."""


@chaos_group.command("list")
@click.option("--names", is_flag=True, help="Names only, one per line.")
def list_command(names: bool) -> None:
    """The scenarios there are."""
    with extra_needed():
        from chaos.scenarios.catalogue import SCENARIOS  # noqa: PLC0415 - needs the extra
    width = max(map(len, SCENARIOS))
    for name, scenario in SCENARIOS.items():
        click.echo(name if names else f"{name:<{width}}  {scenario.summary}")


@chaos_group.command("run")
@click.argument("scenario")
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Nodes of the cluster.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeat the random choices of an earlier run.")
@click.option("--out", "out_dir", type=click.Path(path_type=Path), help="Where the records and the report go.")
@click.option("--messages", type=click.IntRange(min=1), help="Confirmed messages, at least.")
@click.option("--failovers", type=click.IntRange(min=0), help="Masters killed, where the scenario kills masters.")
@click.option("--master", "master_url", help="Spark master of the analysis; by default this machine.")
def run_command(
    *,
    scenario: str,
    nodes: int,
    seed: int | None,
    out_dir: Path | None,
    messages: int | None,
    failovers: int | None,
    master_url: str | None,
) -> None:
    """Run SCENARIO on a new local cluster and judge it.

    The exit code is the verdict: 0 pass, 10 lost exactly what the policy permits, 1 fail, 3 unknown (the record is
    incomplete), 4 a step hung, 5 nothing was tested, 6 a node or the harness crashed; 2 wrong arguments, 69 no
    Java, 130 interrupted.
    """
    with extra_needed():
        from chaos.runner import run_scenario  # noqa: PLC0415 - needs the extra
        from chaos.scenarios.catalogue import SCENARIOS  # noqa: PLC0415 - needs the extra
    options = None
    if scenario in SCENARIOS:
        defaults = SCENARIOS[scenario].defaults
        options = dataclasses.replace(
            defaults,
            messages=defaults.messages if messages is None else messages,
            failovers=defaults.failovers if failovers is None else failovers,
        )
    with errors_as_text():
        sys.exit(run_scenario(scenario, nodes, seed, out_dir, options=options, master_url=master_url))


@chaos_group.command("analyse")
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--master", "master_url", help="Spark master; by default this machine.")
def analyse_command(run_dir: Path, master_url: str | None) -> None:
    """Judge the stored run in RUN_DIR again."""
    with extra_needed():
        from chaos.runner import analyse  # noqa: PLC0415 - needs the extra
    sys.exit(analyse(run_dir, master_url))
