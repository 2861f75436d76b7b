"""Listings of what clients made: connections, consumers, exchanges, bindings."""

from __future__ import annotations

import click

from cluster.cli.framework import Call, ToolCommand
from cluster.cli.options import tool_command, vhost_option


@tool_command("list_connections", usage="[<column> ...]")
@click.argument("columns", nargs=-1)
def list_connections(call: Call, columns: tuple[str, ...]) -> None:
    """List the client connections of all nodes."""
    chosen = call.check_columns(columns)
    call.banner("Listing connections ...")
    with call.client() as client:
        call.show(client.list_connections(chosen))


@tool_command("list_channels", usage="[<column> ...]")
@click.argument("columns", nargs=-1)
def list_channels(call: Call, columns: tuple[str, ...]) -> None:
    """List the open channels of all nodes."""
    chosen = call.check_columns(columns)
    call.banner("Listing channels ...")
    with call.client() as client:
        call.show(client.list_channels(chosen))


@tool_command("list_flow", usage="[<column> ...]")
@click.argument("columns", nargs=-1)
def list_flow(call: Call, columns: tuple[str, ...]) -> None:
    """List what slows publishers down: the hops that lack credit and the slowest of them, or the alarm."""
    chosen = call.check_columns(columns)
    call.banner("Listing what slows publishers down ...")
    with call.client() as client:
        call.show(client.list_flow(chosen))


@tool_command("list_consumers", usage="[--vhost <vhost>] [<column> ...]")
@vhost_option
@click.argument("columns", nargs=-1)
def list_consumers(call: Call, columns: tuple[str, ...], vhost: str) -> None:
    """List the consumers of a vhost."""
    chosen = call.check_columns(columns)
    call.banner(f"Timeout: {call.timeout_s} seconds ...", f"Listing consumers in vhost {vhost} ...")
    with call.client() as client:
        call.show(client.list_consumers(vhost, chosen))


@tool_command("list_exchanges", usage="[--vhost <vhost>] [<column> ...]")
@vhost_option
@click.argument("columns", nargs=-1)
def list_exchanges(call: Call, columns: tuple[str, ...], vhost: str) -> None:
    """List the exchanges of a vhost."""
    chosen = call.check_columns(columns)
    call.banner(f"Listing exchanges for vhost {vhost} ...")
    with call.client() as client:
        call.show(client.list_exchanges(vhost, chosen))


@tool_command("list_bindings", usage="[--vhost <vhost>] [<column> ...]")
@vhost_option
@click.argument("columns", nargs=-1)
def list_bindings(call: Call, columns: tuple[str, ...], vhost: str) -> None:
    """List the bindings of a vhost."""
    chosen = call.check_columns(columns)
    call.banner(f"Listing bindings for vhost {vhost}...")
    with call.client() as client:
        call.show(client.list_bindings(vhost, chosen))


COMMANDS: tuple[ToolCommand, ...] = (
    list_connections,
    list_channels,
    list_flow,
    list_consumers,
    list_exchanges,
    list_bindings,
)
