"""Nodes: status, start-up, stop, limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import click

from cluster.cli.formatters import to_json
from cluster.cli.framework import Call, ToolCommand
from cluster.cli.options import tool_command
from cluster.cli.reports import cluster_status_text, status_text
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.config_keys import DISK_TO_MEMORY_FACTOR_MAX, parse_amount, parse_factor

#: Recovering a large store takes minutes; rabbitmqctl waits as long.
STARTUP_TIMEOUT_S = 300.0
_POLL_INTERVAL_S = 0.25
_AMOUNT_EXAMPLE = "absolute 512MiB"
_FACTOR_EXAMPLE = "mem_relative 1.5"


@tool_command("cluster_status")
def cluster_status(call: Call) -> None:
    """Members, which of them run, partitions, alarms, listeners."""
    call.banner(f"Cluster status of node {call.target.name} ...")
    with call.client() as client:
        document = client.cluster_status()
    click.echo(to_json(document) if call.formatter == "json" else cluster_status_text(document))


@tool_command("status")
def status(call: Call) -> None:
    """The node asked: process, memory, disk, listeners, totals."""
    call.banner(f"Status of node {call.target.name} ...")
    with call.client() as client:
        document = client.status()
    click.echo(to_json(document) if call.formatter == "json" else status_text(document))


@tool_command("await_startup")
def await_startup(call: Call) -> None:
    """Wait until the node serves clients. Exit code 75 if it does not in time (-t, 300 seconds by default)."""
    call.banner(f"Waiting for node {call.target.name} to start ...")
    timeout_s = STARTUP_TIMEOUT_S if call.options.timeout_s is None else call.options.timeout_s
    hindrance = ""

    def serves() -> bool:
        nonlocal hindrance
        hindrance = _hindrance(call)
        return not hindrance

    if not wait_until(serves, timeout_s):
        text = f"{call.target.name} did not start within {timeout_s:g} seconds: {hindrance}"
        raise AdminError(ExitCode.TEMPORARY, text)
    call.done()


@tool_command("stop")
def stop(call: Call) -> None:
    """Stop the node in good order, and wait until it is gone."""
    call.banner(f"Stopping and halting node {call.target.name} ...")
    with call.client() as client:
        client.shutdown()
    if not wait_until(lambda: not _answers(call), call.timeout_s):
        raise AdminError(ExitCode.TEMPORARY, f"{call.target.name} still runs after {call.timeout_s:g} seconds")
    call.done()


@tool_command("set_vm_memory_high_watermark", usage="<fraction> | absolute <value>")
@click.argument("words", nargs=-1, required=True, metavar="<fraction> | absolute <value>")
def set_vm_memory_high_watermark(call: Call, words: tuple[str, ...]) -> None:
    """Set the memory limit of a node until it stops: a fraction of its memory, or absolute bytes.

    Two forms; units of an amount are kB, MB, GB (1000) and kiB, MiB, GiB (1024):

    warrenctl set_vm_memory_high_watermark 0.4
    warrenctl set_vm_memory_high_watermark absolute 512MiB
    """
    if words[0] == "absolute":
        if len(words) == 1:
            call.refuse(f"absolute needs an amount behind it, for instance: {_AMOUNT_EXAMPLE}")
        watermark = MemoryWatermark(absolute_bytes=_amount(call, _only(call, words[1:])))
    else:
        watermark = MemoryWatermark(_fraction(call, _only(call, words)))
    value = f"{watermark.relative:g}" if watermark.absolute_bytes is None else f"{watermark.absolute_bytes} bytes"
    call.banner(f"Setting memory threshold on {call.target.name} to {value} ...")
    with call.client() as client:
        client.set_memory_watermark(watermark)
    call.done()


@tool_command("set_disk_free_limit", usage="<value> | mem_relative <factor>")
@click.argument("words", nargs=-1, required=True, metavar="<value> | mem_relative <factor>")
def set_disk_free_limit(call: Call, words: tuple[str, ...]) -> None:
    """Set the disk limit of a node until it stops: bytes, or a multiple of its memory.

    Two forms; units of an amount are kB, MB, GB (1000) and kiB, MiB, GiB (1024):

    warrenctl set_disk_free_limit 2GB
    warrenctl set_disk_free_limit mem_relative 1.5
    """
    if words[0] == "mem_relative":
        if len(words) == 1:
            call.refuse(f"mem_relative needs a factor behind it, for instance: {_FACTOR_EXAMPLE}")
        limit = DiskFreeLimit(relative=_factor(call, _only(call, words[1:])))
        value = f"{limit.relative:g} times the total RAM"
    else:
        limit = DiskFreeLimit(_disk_amount(call, _only(call, words)))
        value = f"{limit.absolute_bytes} bytes"
    call.banner(f"Setting disk free limit on {call.target.name} to {value} ...")
    with call.client() as client:
        client.set_disk_free_limit(limit)
    call.done()


def _only(call: Call, words: tuple[str, ...]) -> str:
    if not words:
        call.refuse("not enough arguments.")
    if len(words) > 1:
        call.refuse("too many arguments.")
    return words[0]


def _amount(call: Call, text: str) -> int:
    try:
        return parse_amount(text)
    except ValueError as error:
        call.refuse(f"bad value '{text}': {error}")


def _disk_amount(call: Call, text: str) -> int:
    try:
        return parse_amount(text)
    except ValueError as error:
        if _is_number(text, DISK_TO_MEMORY_FACTOR_MAX):
            call.refuse(f"a multiple of the memory is written with a word before it: mem_relative {text}")
        call.refuse(f"bad value '{text}': {error}, or a multiple of the memory: {_FACTOR_EXAMPLE}")


def _fraction(call: Call, text: str) -> float:
    try:
        return parse_factor(text, 1.0)
    except ValueError as error:
        if _is_amount(text):
            call.refuse(f"an amount is written with a word before it: absolute {text}")
        call.refuse(f"bad value '{text}': {error}, or an amount: {_AMOUNT_EXAMPLE}")


def _factor(call: Call, text: str) -> float:
    try:
        return parse_factor(text, DISK_TO_MEMORY_FACTOR_MAX)
    except ValueError as error:
        call.refuse(f"bad value '{text}': {error}")


def _is_amount(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return parse_amount(text) >= 0
    return False


def _is_number(text: str, high: float) -> bool:
    with contextlib.suppress(ValueError):
        return parse_factor(text, high) >= 0
    return False


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Ask now and then; false if it did not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _hindrance(call: Call) -> str:
    """Why the node does not serve clients yet; empty once it does."""
    try:
        with call.client() as client:
            document = client.status()
    except AdminError as error:
        if error.exit_code in (ExitCode.UNAVAILABLE, ExitCode.TEMPORARY):
            return error.message
        raise
    if document["is_serving"]:
        return ""
    paused = document.get("paused")
    reason = "it starts, stops, or needs a majority of the members" if paused is None else paused["reason"]
    return f"it runs, but serves no clients: {reason}; see its log"


def _answers(call: Call) -> bool:
    try:
        with call.client() as client:
            client.status()
    except AdminError as error:
        return error.exit_code != ExitCode.UNAVAILABLE
    return True


COMMANDS: tuple[ToolCommand, ...] = (
    cluster_status,
    status,
    await_startup,
    stop,
    set_vm_memory_high_watermark,
    set_disk_free_limit,
)
