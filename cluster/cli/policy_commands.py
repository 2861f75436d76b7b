"""Policies: how queues are mirrored."""

from __future__ import annotations

from typing import Any

import click

from cluster.cli.framework import Call, ToolCommand
from cluster.cli.options import tool_command, vhost_option
from cluster.metadata.records import PolicyRecord
from cluster.policy.validation import PolicyError, validate_policy
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_codec import definition_from_json
from cluster.transport.admin_port import ExitCode

#: As it goes over the wire.
_PRIORITY = click.IntRange(-(2**31), 2**31 - 1)


def _parse_definition(text: str) -> dict[str, Any]:
    try:
        return definition_from_json(text)
    except ValueError as error:
        raise AdminError(ExitCode.DATA, f"JSON decoding error. Reason: {error}") from None


@tool_command(
    "set_policy",
    usage="[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>",
)
@vhost_option
@click.option("--priority", type=_PRIORITY, help="Of the policies that match a queue the highest counts.")
@click.option(
    "--apply-to",
    type=click.Choice(("queues", "exchanges", "all")),
    default="all",
    help="What the policy is for: queues, exchanges, all (the default).",
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@click.argument("positional_priority", type=_PRIORITY, required=False)
def set_policy(
    call: Call,
    *,
    name: str,
    pattern: str,
    definition: str,
    positional_priority: int | None,
    priority: int | None,
    apply_to: str,
    vhost: str,
) -> None:
    """Set a policy, or replace the one of that name. The priority may also stand last, as in old versions."""
    if priority is not None and positional_priority is not None:
        call.refuse("the priority is given twice.")
    level = next((given for given in (priority, positional_priority) if given is not None), 0)
    call.banner(
        f'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "{level}" '
        f'for vhost "{vhost}" ...'
    )
    policy = PolicyRecord(vhost, name, pattern, _parse_definition(definition), level, apply_to)
    try:
        validate_policy(policy)
    except PolicyError as error:
        raise AdminError(ExitCode.SOFTWARE, f"Validation failed\n\n{error}") from None
    with call.client() as client:
        client.set_policy(policy)
    call.done()


@tool_command("clear_policy", usage="[--vhost <vhost>] <name>")
@vhost_option
@click.argument("name")
def clear_policy(call: Call, name: str, vhost: str) -> None:
    """Remove a policy."""
    call.banner(f'Clearing policy "{name}" on vhost "{vhost}" ...')
    with call.client() as client:
        client.clear_policy(vhost, name)
    call.done()


@tool_command("list_policies", usage="[--vhost <vhost>]")
@vhost_option
def list_policies(call: Call, vhost: str) -> None:
    """List the policies of a vhost."""
    call.banner(f'Listing policies for vhost "{vhost}" ...')
    with call.client() as client:
        call.show(client.list_policies(vhost, call.check_columns(())))


COMMANDS: tuple[ToolCommand, ...] = (set_policy, clear_policy, list_policies)
