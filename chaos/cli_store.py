"""`warren store`: look at what a node has on disk, while it does not run."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.interrupts import EXIT_INTERRUPTED, sigterm_as_interrupt
from node.errors import StorageError

if TYPE_CHECKING:
    from node.inspection.steps import Progress
    from node.inspection.verification import Verification

#: Exit codes (sysexits.h), as `warrenctl` uses them: the directory is none of ours, there is damage, the disk refuses.
EXIT_USAGE = 64
EXIT_DAMAGE = 65
EXIT_UNREADABLE = 70

_directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_formatter_option = click.option(
    "--formatter", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of the output."
)
_queue_option = click.option("--queue", "queue_name", metavar="NAME", help="Only queues of this name, in any vhost.")


@click.group("store")
def store_group() -> None:
    """Look at the storage of a node that does not run. Nothing is changed."""


@store_group.command("inspect")
@_directory_argument
@_formatter_option
@_queue_option
def inspect_command(directory: Path, formatter: str, queue_name: str | None) -> None:
    """Show what is in each file below DIR.

    Counts, garbage, holes, oldest message.

    DIR is a node's data directory, or that of one vhost, one queue or one msg_store_persistent in it. The node should
    not run: it locks nothing, and files that change while they are read give wrong figures.
    """
    with _looking_at(directory) as progress:
        from node.inspection.inspection import inspect  # noqa: PLC0415 - start-up time

        result = inspect(str(directory), queue_name=queue_name, on_progress=progress)
    if queue_name is not None and not result.totals.queues:
        _refuse(f"there is no queue {queue_name!r} below {directory}")
    if formatter == "json":
        click.echo(json.dumps(asdict(result), indent=2))
        return
    from chaos.store_tables import print_inspection  # noqa: PLC0415 - start-up time

    print_inspection(result)


@store_group.command("verify")
@_directory_argument
@_formatter_option
@_queue_option
def verify_command(directory: Path, formatter: str, queue_name: str | None) -> None:
    """Check every checksum and every reference below DIR.

    DIR is a node's data directory, or that of one vhost, one queue or one msg_store_persistent in it. The node should
    not run: it locks nothing, and files that change while they are read look damaged.

    Exit code 65 if there is damage. Unfinished writes of a crash and leftovers of interrupted work are listed, but
    nothing is wrong with them: exit code 0.
    """
    with _looking_at(directory) as progress:
        from node.inspection.verification import verify  # noqa: PLC0415 - start-up time

        result = verify(str(directory), queue_name=queue_name, on_progress=progress)
    if result.unknown_queue:
        _refuse(f"there is no queue {queue_name!r} below {directory}")
    if formatter == "json":
        click.echo(json.dumps(_verification_document(result), indent=2))
    else:
        from chaos.store_tables import print_verification  # noqa: PLC0415 - start-up time

        print_verification(result)
    sys.exit(EXIT_DAMAGE if result.has_damage else 0)


def _verification_document(result: Verification) -> dict[str, Any]:
    from node.inspection.findings import Kind  # noqa: PLC0415 - start-up time

    counts = result.findings.counts
    return {
        "directory": result.place.directory,
        "scope": result.place.scope,
        "queues": result.queues,
        "stores": result.stores,
        "unchecked_references": result.unchecked_references,
        **{kind.value: counts[kind] for kind in Kind},
        "problems": [problem._asdict() for problem in result.findings.problems],
    }


@contextlib.contextmanager
def _looking_at(directory: Path) -> Iterator[Progress]:
    """A bar on standard error, and an end of the program if the directory cannot be looked at."""
    from node.inspection.places import NotStorageError, require_storage  # noqa: PLC0415 - start-up time

    if not directory.is_dir():
        _refuse(f"{directory} is no directory")
    try:
        require_storage(str(directory))  # whoever has files open below another directory is no matter
        _warn_of_nodes(directory)
        with sigterm_as_interrupt(), _progress_bar() as progress:
            yield progress
    except NotStorageError as error:
        _refuse(str(error))
    except StorageError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_UNREADABLE)
    except KeyboardInterrupt:
        click.echo("Interrupted. Nothing was changed.", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _refuse(message: str) -> None:
    click.echo(f"Error: {message}", err=True)
    sys.exit(EXIT_USAGE)


def _warn_of_nodes(directory: Path) -> None:
    from chaos.open_files import data_directory_of, processes_using  # noqa: PLC0415 - start-up time

    used_by = processes_using(data_directory_of(directory))
    if used_by:
        listed = ", ".join(map(str, used_by))
        text = f"Warning: a node seems to run on this directory (process {listed}): "
        click.echo(text + "the files change while they are read, figures and problems may be wrong.", err=True)


@contextlib.contextmanager
def _progress_bar() -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Reading", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"Reading {'/'.join(what.split('/')[-2:])}", completed=done, total=total)

        yield report
