"""Members of a cluster: join, forget, reset.

`forget_cluster_node --offline` is the one command that asks no node: it works on the directory of one that is down
(`cluster.runtime.offline_forgetting`).
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import click

from cluster.cli.formatters import to_json
from cluster.cli.framework import Call, ToolCommand
from cluster.cli.node_commands import STARTUP_TIMEOUT_S, wait_until
from cluster.cli.options import tool_command
from cluster.cli.targets import NODE_VARIABLE, resolve_target, working_directory
from cluster.directory import find_cluster_directory
from cluster.real_world.data_lock import DataLock
from cluster.runtime.offline_forgetting import Forgetting, carry_out, plan_forgetting
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode
from cluster.transport.carrier import ProbeResult
from cluster.transport.probe import probe
from node.errors import ConfigError, StorageError
from node.store.disk.disk import RealDisk

_PROBE_TIMEOUT_S = 1.0


@tool_command(
    "forget_cluster_node",
    usage="[--confirm] <node> | --offline [--data-dir <dir>] [--dry-run | --confirm] <node> [<node> ...]",
)
@click.option("--offline", is_flag=True, help="On a node that is down, when a majority is gone for good.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="With --offline: directory of the node that is down.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --offline: only tell what would be lost.")
@click.option("--confirm", "is_confirmed", is_flag=True, help="With --offline: do it. Else: ask no further.")
@click.argument("members", nargs=-1, required=True, metavar="<node>")
def forget_cluster_node(
    call: Call, members: tuple[str, ...], *, offline: bool, data_dir: Path | None, is_dry_run: bool, is_confirmed: bool
) -> None:
    """Remove a node that is stopped and will not return with what it has.

    What only it had is lost: queues that wait for it are served with what the other members have, and those of which
    nobody else has anything are deleted. If a member that does not answer might have something of such a queue, or who
    was to serve it goes meanwhile, that is refused without --confirm. The node may join again with an empty data
    directory, as a new one.

    With --offline, where a majority of the cluster is gone for good: works on the directory of a node that is stopped
    (-n names it in the cluster directory, or --data-dir), which goes on as the truth, without those named. Use it on
    the node that was the last to go down: --dry-run names for each queue who had all of it. What the others knew and it
    did not is lost. They must never come back with what they have; they are refused if they try.
    """
    if offline:
        _forget_offline(call, members, data_dir, is_dry_run=is_dry_run, is_confirmed=is_confirmed)
        return
    if data_dir is not None or is_dry_run:
        call.refuse("--data-dir and --dry-run go with --offline.")
    if len(members) > 1:
        call.refuse("too many arguments.")
    call.banner(f"Removing node {members[0]} from the cluster")
    with call.client() as client:
        document = client.forget_cluster_node(members[0], is_confirmed=is_confirmed)
    for queue in document["deleted_queues"]:
        call.remark(f"{queue} is deleted: nobody else had anything of it")
    for queue, node in document.get("lossy_queues", {}).items():
        call.remark(f"{queue} is served by {node} with what it has, which may lack messages")
    call.done()


def _forget_offline(
    call: Call, members: tuple[str, ...], data_dir: Path | None, *, is_dry_run: bool, is_confirmed: bool
) -> None:
    if is_dry_run == is_confirmed:
        call.refuse("--offline needs either --dry-run, to tell what would be lost, or --confirm, to do it.")
    directory = str(data_dir or _directory_of_target(call))
    disk, lock = RealDisk(), _lock(directory)
    try:
        plan = plan_forgetting(disk, directory, members)
        for name, address in plan.addresses.items():
            if asyncio.run(probe(address, _PROBE_TIMEOUT_S)) is ProbeResult.ACCEPTED:
                raise ConfigError(
                    f"somebody listens at {address}, where {name} was: if {name} runs, this cluster is not lost; if it "
                    "is another program, stop that one for the moment"
                )
        _tell(call, plan, is_dry_run=is_dry_run)
        if not is_dry_run:
            carry_out(disk, directory, plan, random.SystemRandom())
    except StorageError as error:
        raise AdminError(ExitCode.SOFTWARE, str(error)) from None
    finally:
        lock.release()
    if call.formatter == "json":
        click.echo(to_json(_document(plan, is_dry_run=is_dry_run)))
    elif not is_dry_run:
        call.remark(f"Start {plan.node} now. {', '.join(plan.forgotten)} may join with empty data directories only.")


def _lock(directory: str) -> DataLock:
    """Raises `ConfigError`."""
    try:
        if not Path(directory).is_dir():
            raise ConfigError(f"{directory} is no directory: name that of the node that is down")
        return DataLock(directory)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be used: {error.strerror}; run this as the user that the node runs as"
        ) from None


def _directory_of_target(call: Call) -> Path:
    """Of a local cluster. Raises `ConfigError`."""
    found = find_cluster_directory(call.options.directory, os.environ, working_directory())
    name = call.options.node or os.environ.get(NODE_VARIABLE)
    if found is None or not name or ":" in name:
        raise ConfigError("name the node that is down with -n, as the cluster directory has it, or give its --data-dir")
    return found.data_path(found.node(name).name)


def _tell(call: Call, plan: Forgetting, *, is_dry_run: bool) -> None:
    """What it means, in words that nobody can miss."""
    would = "would be" if is_dry_run else "is"
    them = ", ".join(plan.forgotten)
    call.banner(
        f"What {plan.node} has of the metadata {would} the truth from now on: what {them} knew beyond it {would} lost,",
        f"and {them} must never come back with what is in their directories.",
        f"Members that are left: {', '.join(plan.remaining)}. A majority of them has to run.",
    )
    if plan.uncertain_entries:
        count = "would count" if is_dry_run else "count"
        call.remark(f"Entries of the log that {count}, though perhaps never committed: {plan.uncertain_entries}.")
    for queue in plan.deleted_queues:
        call.remark(f"{queue} {would} deleted: nobody else had anything of it ({_who_had_all(plan, queue)})")
    for queue in plan.lossy_queues:
        call.remark(f"{queue} {would} served by a copy that may lack messages ({_who_had_all(plan, queue)})")
    for queue in plan.waiting_queues:
        call.remark(f"{queue} waits for another member that is left")
    call.remark(f"Queues deleted: {len(plan.deleted_queues)}; that may lack messages: {len(plan.lossy_queues)}.")
    if plan.last_complete and is_dry_run:
        call.remark("Where the directory of a node that had everything is still there, rather go on with that one.")


def _who_had_all(plan: Forgetting, queue: str) -> str:
    """As far as the survivor knows."""
    return f"last complete: {', '.join(plan.last_complete[queue]) or 'nobody'}"


def _document(plan: Forgetting, *, is_dry_run: bool) -> dict[str, object]:
    return {
        "node": plan.node,
        "forgotten": plan.forgotten,
        "remaining": plan.remaining,
        "deleted_queues": plan.deleted_queues,
        "lossy_queues": plan.lossy_queues,
        "waiting_queues": plan.waiting_queues,
        "last_complete": plan.last_complete,
        "uncertain_entries": plan.uncertain_entries,
        "is_dry_run": is_dry_run,
    }


@tool_command("join_cluster", usage="<existing node>")
@click.argument("existing", metavar="<existing node>")
def join_cluster(call: Call, existing: str) -> None:
    """Have a node that is alone join the cluster of another.

    Waits until it has (-t, 300 seconds by default). The existing node is named by the address of its cluster listener
    (host:port), or as the cluster directory has it. Both must have the same cookie. The node begins again with an
    empty directory, so it must not have any data: `warrenctl reset` gives up what it has. No configuration has to be
    changed. Exit code 70 if it cannot join as it is, as when its cookie is another one; 75 if it does not reach the
    existing node, the cluster has no majority, or the node was told something else just before.
    """
    address = resolve_target(existing, call.options.directory, os.environ, working_directory()).address
    call.banner(f"Clustering node {call.target.name} with {existing}")
    with call.client() as client:
        members = set(client.join_cluster(address)["cluster"])
    timeout_s = STARTUP_TIMEOUT_S if call.options.timeout_s is None else call.options.timeout_s
    if not wait_until(lambda: _is_of(call, members), timeout_s):
        state = (
            "goes on trying: see its log" if _is_there(call) else "does not answer: if it has ended, its log says why"
        )
        text = f"{call.target.name} has not joined within {timeout_s:g} seconds, and {state}"
        raise AdminError(ExitCode.TEMPORARY, text)
    call.done()


def _is_of(call: Call, members: set[str]) -> bool:
    try:
        with call.client() as client:
            return client.status()["is_serving"] and members <= set(client.cluster_status()["members"])
    except AdminError as error:
        if error.exit_code in (ExitCode.UNAVAILABLE, ExitCode.TEMPORARY):
            return False
        raise


def _is_there(call: Call) -> bool:
    try:
        with call.client() as client:
            client.status()
    except AdminError as error:
        return error.exit_code is not ExitCode.UNAVAILABLE
    return True


@tool_command("reset", usage="--confirm")
@click.option("--confirm", "is_confirmed", is_flag=True, help="Everything that the node has is to be lost.")
def reset(call: Call, *, is_confirmed: bool) -> None:
    """Give up everything that a node has, which is alone: it begins again with an empty data directory.

    A member of a cluster cannot be reset: stop it, and forget it on another member.
    """
    if not is_confirmed:
        call.refuse("everything that the node has would be lost: --confirm says that this is meant.")
    call.banner(f"Resetting node {call.target.name} ...")
    with call.client() as client:
        client.reset()
    call.done()


COMMANDS: tuple[ToolCommand, ...] = (
    forget_cluster_node,
    join_cluster,
    reset,
)
