"""`warren cluster`: a cluster of real processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.interrupts import EXIT_INTERRUPTED, sigterm_as_interrupt
from cluster.directory import DEFAULT_DIRECTORY, DESCRIPTOR_FILE, ENVIRONMENT_VARIABLE
from node.errors import ConfigError

if TYPE_CHECKING:
    from chaos.cluster_under_test.local import LocalCluster

DEFAULT_AMQP_PORT = 5672
#: Three interpreters start and elect a leader in a few seconds; a loaded machine is given far more.
START_TIMEOUT_S = 60.0

directory_option = click.option(
    "--dir",
    "path",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DIRECTORY,
    envvar=ENVIRONMENT_VARIABLE,
    show_default=True,
    show_envvar=True,
    help="Directory of the cluster.",
)


@contextlib.contextmanager
def errors_as_text() -> Iterator[None]:
    """What can go wrong for reasons outside the program ends as one message and exit code 1, not as a traceback."""
    from chaos.cluster_under_test.local import ClusterRunningError, NodeNotReadyError  # noqa: PLC0415 - start-up time
    from chaos.cluster_under_test.ports import PortInUseError  # noqa: PLC0415 - start-up time
    from chaos.cluster_under_test.protocol import NodeEndedError  # noqa: PLC0415 - start-up time

    try:
        yield
    except (ConfigError, ClusterRunningError, PortInUseError, NodeEndedError, NodeNotReadyError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'system'}: {error.strerror or error}") from None


def run_or_kill(cluster: LocalCluster, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; if it is interrupted or fails, no process of the cluster is left."""
    try:
        with sigterm_as_interrupt():
            asyncio.run(work)
    except KeyboardInterrupt:
        cluster.kill_all()
        click.echo("Interrupted: all nodes were stopped.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BaseException:
        cluster.kill_all()
        raise


@click.group("cluster")
def cluster_group() -> None:
    """Run a cluster on this machine."""


@cluster_group.command("up")
@directory_option
@click.option("--nodes", "node_count", type=click.IntRange(1, 9), help="Number of nodes.  [default: 3]")
@click.option(
    "--amqp-port", type=click.IntRange(1, 65535), help=f"Port of n1; n2 has the next.  [default: {DEFAULT_AMQP_PORT}]"
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of every node.")
def up_command(path: Path, node_count: int | None, amqp_port: int | None, settings: tuple[str, ...]) -> None:
    """Start a cluster and wait until it serves. A directory that has one is started again, with its data."""
    with errors_as_text():
        cluster = _lay_out(path, node_count, amqp_port, settings)
        if cluster.running_nodes() == cluster.nodes:
            click.echo(f"The cluster in {path} already runs.")
            print_nodes(cluster)
            return
        if cluster.running_nodes():
            raise click.ClickException(
                f"part of the cluster in {path} runs ({', '.join(cluster.running_nodes())}); start the others with "
                "`warren cluster restart NODE`, or stop all with `warren cluster down`"
            )
        run_or_kill(cluster, _start_with_progress(cluster))
    print_nodes(cluster)


def _lay_out(path: Path, node_count: int | None, amqp_port: int | None, settings: tuple[str, ...]) -> LocalCluster:
    from chaos.cluster_under_test.local import LocalCluster  # noqa: PLC0415 - start-up time

    if not (path / DESCRIPTOR_FILE).exists():
        return LocalCluster.create(
            path, node_count or 3, first_amqp_port=amqp_port or DEFAULT_AMQP_PORT, settings=settings
        )
    cluster = LocalCluster.attach(path)
    first_port = int(cluster.directory.nodes[0].amqp_address.rpartition(":")[2])
    is_other = (node_count or len(cluster.nodes)) != len(cluster.nodes) or (amqp_port or first_port) != first_port
    if is_other or settings:
        raise click.ClickException(
            f"{path} holds a cluster of {len(cluster.nodes)} nodes from port {first_port}; start it without options, "
            f"edit the files {path}/*.conf, remove it with `warren cluster down --wipe --dir {path}`, "
            "or choose another --dir"
        )
    return cluster


async def _start_with_progress(cluster: LocalCluster) -> None:
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Starting nodes", total=len(cluster.nodes))
        await cluster.start()
        await cluster.wait_ready(timeout_s=START_TIMEOUT_S, on_ready=lambda _: progress.advance(task))


def print_nodes(cluster: LocalCluster) -> None:
    """One line per node: name, URL, process."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - start-up time
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.table import Table  # noqa: PLC0415 - start-up time

    table = Table("node", "AMQP URL", "pid", box=SIMPLE_HEAD)
    for name in cluster.nodes:
        pid = cluster.pid(name)
        table.add_row(name, cluster.amqp_url(name), str(pid) if pid else "[red]down[/red]")
    Console().print(table)


@cluster_group.command("status")
@directory_option
def status_command(path: Path) -> None:
    """Which nodes run. Exit code 1 if one is down."""
    with errors_as_text():
        cluster = _attach(path)
        print_nodes(cluster)
    sys.exit(0 if cluster.running_nodes() == cluster.nodes else 1)


@cluster_group.command("down")
@directory_option
@click.option("--wipe", is_flag=True, help="Remove its files and data, too.")
def down_command(path: Path, wipe: bool) -> None:
    """Stop all nodes: SIGTERM, then SIGKILL for one that hangs."""
    with errors_as_text():
        cluster = _attach(path)
        running = cluster.running_nodes()
        asyncio.run(cluster.close())
        click.echo(f"Stopped {', '.join(running)}." if running else "No node was running.")
        if wipe:
            cluster.directory.remove()
            click.echo(f"Removed the cluster in {path}.")


@cluster_group.command("kill")
@click.argument("node")
@directory_option
def kill_command(node: str, path: Path) -> None:
    """SIGKILL a node: it gets no chance to write or say anything."""

    async def kill(cluster: LocalCluster) -> None:
        if cluster.pid(node) is None:
            raise click.ClickException(f"{node} does not run")
        await cluster.kill(node)

    _act_on(path, kill)
    click.echo(f"Killed {node}.")


@cluster_group.command("restart")
@click.argument("node")
@directory_option
def restart_command(node: str, path: Path) -> None:
    """Start a node again on its data, and wait until it serves. One that runs is stopped first."""

    from chaos.cluster_under_test.local import NodeNotReadyError  # noqa: PLC0415 - start-up time

    def tell(name: str, hindrance: str) -> None:
        click.echo(f"{name} does not serve clients yet: {hindrance}", err=True)

    async def restart(cluster: LocalCluster) -> None:
        await cluster.restart(node)
        process = f"process {cluster.pid(node)}"
        waited = f"it is waited for until it serves clients, {START_TIMEOUT_S:g} s at most."
        click.echo(f"{node} was started ({process}); {waited}", err=True)
        try:
            await cluster.wait_ready([node], START_TIMEOUT_S, on_hindrance=tell)
        except NodeNotReadyError as error:
            left = (
                f"{node} is left running ({process}) and goes on trying; its log is {cluster.directory.log_path(node)}"
            )
            raise click.ClickException(f"{error}\n{left}. `warren cluster kill {node}` ends it.") from None

    _act_on(path, restart)
    click.echo(f"{node} runs.")


def _attach(path: Path) -> LocalCluster:
    from chaos.cluster_under_test.local import LocalCluster  # noqa: PLC0415 - start-up time

    return LocalCluster.attach(path)


def _act_on(path: Path, action: Callable[[LocalCluster], Coroutine[Any, Any, None]]) -> None:
    with errors_as_text():
        asyncio.run(action(_attach(path)))
