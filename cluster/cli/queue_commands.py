"""Queues: list, synchronise, promote, purge, delete, spread."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from cluster.cli.formatters import to_json
from cluster.cli.framework import Call, ToolCommand
from cluster.cli.options import tool_command, vhost_option
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode, QueueSelection, SyncProgress


@tool_command("list_queues", usage="[--vhost <vhost>] [--online] [--offline] [--local] [<column> ...]")
@vhost_option
@click.option("--online", is_flag=True, help="Only queues whose master is up.")
@click.option("--offline", is_flag=True, help="Only queues whose master is down.")
@click.option("--local", is_flag=True, help="Only queues whose master is on the node asked.")
@click.argument("columns", nargs=-1)
def list_queues(call: Call, columns: tuple[str, ...], vhost: str, *, online: bool, offline: bool, local: bool) -> None:
    """List queues."""
    chosen = call.check_columns(columns)
    if online and offline:
        call.refuse("--online and --offline exclude each other.")
    call.banner(f"Timeout: {call.timeout_s} seconds ...", f"Listing queues for vhost {vhost} ...")
    with call.client() as client:
        call.show(client.list_queues(vhost, chosen, QueueSelection(online=online, offline=offline, local=local)))


@tool_command("sync_queue", usage="[--vhost <vhost>] <queue>")
@vhost_option
@click.argument("queue")
def sync_queue(call: Call, queue: str, vhost: str) -> None:
    """Fill the unsynchronised mirrors of a queue, and wait for it. The queue stays usable."""
    call.banner(f"Synchronising queue '{queue}' in vhost '{vhost}' ...")
    with call.client() as client:
        last = _follow(client.sync_queue(vhost, queue, timeout_s=call.options.timeout_s), is_shown=call.is_for_people)
    if last is not None and last.synchronised_messages < last.total_messages:
        call.remark("The synchronisation was cancelled; what has arrived at the mirrors stays there.")
    call.done()


def _follow(reports: Iterable[SyncProgress], *, is_shown: bool) -> SyncProgress | None:
    """Wait for the last report; on a terminal with a bar on standard error."""
    last: SyncProgress | None = None
    if not is_shown or not sys.stderr.isatty():
        *_, last = (None, *reports)
        return last
    from rich.console import Console  # noqa: PLC0415 - only for people at a terminal
    from rich.progress import Progress  # noqa: PLC0415 - only for people at a terminal

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("messages", total=None)
        for last in reports:
            progress.update(task, completed=last.synchronised_messages, total=last.total_messages)
    return last


@tool_command("cancel_sync_queue", usage="[--vhost <vhost>] <queue>")
@vhost_option
@click.argument("queue")
def cancel_sync_queue(call: Call, queue: str, vhost: str) -> None:
    """Stop filling mirrors; what has arrived there stays."""
    call.banner(f"Stopping synchronising queue '{queue}' in vhost '{vhost}' ...")
    with call.client() as client:
        client.cancel_sync_queue(vhost, queue)
    call.done()


@tool_command("force_promote", usage="[--vhost <vhost>] [--empty] <queue> <member>")
@vhost_option
@click.option("--empty", "may_be_empty", is_flag=True, help="Even if the member has nothing of the queue.")
@click.argument("queue")
@click.argument("member")
def force_promote(call: Call, queue: str, member: str, vhost: str, *, may_be_empty: bool) -> None:
    """Give up waiting for a complete copy of a queue that is down: a member serves it with what it has.

    What that member lacks is lost for good, even if a complete copy returns later. The loss is counted: see the column
    lossy_promotions of list_queues. A member that has nothing of the queue is refused, and who has something is named;
    with --empty the queue begins empty there.
    """
    call.banner(f"Promoting {member} to master of queue '{queue}' in vhost '{vhost}' whatever it lacks ...")
    with call.client() as client:
        client.force_promote(vhost, queue, member, may_be_empty=may_be_empty)
    call.remark(f"{member} is the master now; what it lacked is lost")
    call.done()


@tool_command("purge_queue", usage="[--vhost <vhost>] <queue>")
@vhost_option
@click.argument("queue")
def purge_queue(call: Call, queue: str, vhost: str) -> None:
    """Remove all ready messages of a queue."""
    call.banner(f"Purging queue '{queue}' in vhost '{vhost}' ...")
    with call.client() as client:
        client.purge_queue(vhost, queue)
    call.done()


@tool_command("delete_queue", usage="[--vhost <vhost>] <queue> [--if-empty|-e] [--if-unused|-u]")
@vhost_option
@click.option("-e", "--if-empty", is_flag=True, help="Only if it has no ready messages.")
@click.option("-u", "--if-unused", is_flag=True, help="Only if it has no consumers.")
@click.argument("queue")
def delete_queue(call: Call, queue: str, vhost: str, *, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue with its messages."""
    conditions = " and ".join(text for is_set, text in ((if_empty, "empty"), (if_unused, "unused")) if is_set)
    condition = f" if queue is {conditions}" if conditions else ""
    call.banner(f"Deleting queue '{queue}' on vhost '{vhost}'{condition} ...")
    with call.client() as client:
        count = client.delete_queue(vhost, queue, if_empty=if_empty, if_unused=if_unused)
    call.remark(f"Queue was successfully deleted with {count} ready messages")
    call.done()


@tool_command("rebalance_queues", usage="[--vhost <vhost>] [--pattern <pattern>] [--dry-run]")
@click.option("-p", "--vhost", default=None, help="Only queues of this virtual host.")
@click.option("--pattern", default="", help="Only queues whose names this regular expression finds.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only tell what would be moved.")
def rebalance_queues(call: Call, vhost: str | None, pattern: str, *, is_dry_run: bool) -> None:
    """Move masters so that each node serves nearly as many queues as any other.

    Only to synchronised mirrors, so nothing is copied and nothing lost; some at a time. Exit code 75 if not every
    planned move was possible.
    """
    call.banner("Planning how masters would be moved ..." if is_dry_run else "Moving masters ...")
    vhost_pattern = "" if vhost is None else f"^{re.escape(vhost)}$"
    refused = 0
    with call.client() as client:
        # The node is asked with a pattern, which may find nothing; a name that there is not is a mistake.
        if vhost is not None and (vhost,) not in client.list_vhosts(["name"]).rows:
            raise AdminError(ExitCode.DATA, f"Virtual host '{vhost}' does not exist")
        reports = client.rebalance_queues(
            vhost_pattern, pattern, is_dry_run=is_dry_run, timeout_s=call.options.timeout_s
        )
        for report in reports:
            if call.formatter == "json":
                click.echo(to_json(report))
            elif report.get("is_finished"):
                masters = ", ".join(f"{node}: {count}" for node, count in report["masters"].items())
                call.remark(f"{report['moves']} {'to be moved' if is_dry_run else 'moved'}; masters {masters}")
            else:
                refused += report["state"] == "refused"
                click.echo(_move_text(report))
    if refused:
        raise AdminError(ExitCode.TEMPORARY, f"{refused} queues could not be moved: ask again")


def _move_text(report: Mapping[str, Any]) -> str:
    where = f"queue '{report['queue']}' in vhost '{report['vhost']}': {report['from']} -> {report['to']}"
    return f"{where} {report['state']}" + (f" ({report['reason']})" if report["reason"] else "")


COMMANDS: tuple[ToolCommand, ...] = (
    list_queues,
    sync_queue,
    cancel_sync_queue,
    force_promote,
    purge_queue,
    delete_queue,
    rebalance_queues,
)
