"""What `warrenctl` says of arguments that make no sense: it exits with a code of sysexits and asks no node."""

from __future__ import annotations

import io
import re
from typing import cast

import pytest

from cluster.cli.app import run
from cluster.cli.targets import Target
from cluster.transport.admin_client import AdminClient
from tests.support.recording_client import RecordingClient, Tool

AMOUNT = "write a number of bytes, with a unit if you like: 1073741824, 1GiB, 500MB"
PRIORITY = "99999999999 is not in the range -2147483648<=x<=2147483647."


def test_too_few_arguments(tool: Tool, client: RecordingClient) -> None:
    assert tool("set_policy", "ha") == (
        64,
        "",
        "Error (argument validation): not enough arguments.\nArguments given:\n\tset_policy ha\n\nUsage\n\n"
        "warrenctl [--node <node>] [--quiet] set_policy [--vhost <vhost>] [--priority <priority>] "
        "[--apply-to <apply-to>] <name> <pattern> <definition>\n\n",
    )
    assert client.calls == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["clear_policy", "a", "b"], "too many arguments."),
        (["force_promote", "q"], "not enough arguments."),
        (["list_queues", "--onlin"], "Invalid options for this command: --onlin"),
        (["list_queues", "name", "colour"], "Info key(s) colour are not supported"),
        (["list_queues", "--online", "--offline"], "--online and --offline exclude each other."),
        (["add_user", "u", ""], "the password is empty."),
        (["set_policy", "--priority", "99999999999", "p", "^", "{}"], f"Invalid value for '--priority': {PRIORITY}"),
        (["set_policy", "p", "^", "{}", "99999999999"], f"Invalid value for '[POSITIONAL_PRIORITY]': {PRIORITY}"),
        (["set_vm_memory_high_watermark"], "not enough arguments."),
        (
            ["set_vm_memory_high_watermark", "absolute"],
            "absolute needs an amount behind it, for instance: absolute 512MiB",
        ),
        (["set_vm_memory_high_watermark", "0.4", "0.5"], "too many arguments."),
        (
            ["set_vm_memory_high_watermark", "1.1"],
            "bad value '1.1': write a number from 0 to 1, for instance 0.4, or an amount: absolute 512MiB",
        ),
        (["set_vm_memory_high_watermark", "512MiB"], "an amount is written with a word before it: absolute 512MiB"),
        (["set_vm_memory_high_watermark", "2000000"], "an amount is written with a word before it: absolute 2000000"),
        (["set_vm_memory_high_watermark", "absolute", "2XB"], f"bad value '2XB': {AMOUNT}"),
        (["set_disk_free_limit"], "not enough arguments."),
        (
            ["set_disk_free_limit", "mem_relative"],
            "mem_relative needs a factor behind it, for instance: mem_relative 1.5",
        ),
        (["set_disk_free_limit", "1GB", "2GB"], "too many arguments."),
        (["set_disk_free_limit", "0.5"], "a multiple of the memory is written with a word before it: mem_relative 0.5"),
        (
            ["set_disk_free_limit", "lots"],
            f"bad value 'lots': {AMOUNT}, or a multiple of the memory: mem_relative 1.5",
        ),
        (
            ["set_disk_free_limit", "mem_relative", "much"],
            "bad value 'much': write a number from 0 to 1000, for instance 0.4",
        ),
    ],
)
def test_other_complaints_about_arguments(tool: Tool, arguments: list[str], complaint: str) -> None:
    result = tool(*arguments)
    assert result.exit_code == 64
    assert result.out == ""
    assert result.err.startswith(f"Error (argument validation): {complaint}\nArguments given:\n\t")


def test_an_unknown_column_is_answered_with_those_there_are(tool: Tool) -> None:
    assert "<column> must be one of name, durable, auto_delete, arguments, policy, pid," in tool("list_queues", "x").err


def test_complaints_do_not_repeat_passwords(tool: Tool) -> None:
    assert "hunter2" not in tool("add_user", "u", "hunter2", "oops").err


@pytest.mark.parametrize("arguments", [("add_vhost", "\udcff"), ("-q", "add_user", "u", "hunter2\udcff")])
def test_what_is_no_text_is_named_by_its_place_and_not_sent(
    tool: Tool, client: RecordingClient, arguments: tuple[str, ...]
) -> None:
    """Bytes that are not UTF-8 can be neither sent nor shown, and may be of a password."""
    complaint = f"Error (argument validation): argument {len(arguments)} is not UTF-8 text; write it in UTF-8\n"
    assert tool(*arguments) == (64, "", complaint)
    assert client.calls == []


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_password_from_standard_input_that_is_no_text_is_refused(
    tool: Tool, client: RecordingClient, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    """Python reads it in either way, depending on the locale."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hunter2\xff\n"), "utf-8", errors))
    result = tool("add_user", "u")
    assert result.exit_code == 64
    assert result.err.startswith("Error (argument validation): the password is not UTF-8 text.\n")
    assert "hunter2" not in result.err
    assert client.calls == []


def test_an_unknown_command(tool: Tool) -> None:
    meant = "Error: No such command 'list_quues'. Did you mean 'list_queues'?\n"
    assert tool("list_quues") == tool("help", "list_quues") == (64, "", meant)
    unknown = "Error: No such command 'frobnicate'. `warrenctl help` lists the commands.\n"
    assert tool("frobnicate") == tool("help", "frobnicate") == (64, "", unknown)


def test_an_unknown_option_before_the_command(tool: Tool) -> None:
    result = tool("--nod", "n1", "status")
    assert (result.exit_code, result.out) == (64, "")
    assert result.err.startswith("Error (argument validation): No such option '--nod'.")
    assert result.err.endswith("\n`warrenctl help` lists the options.\n")
    assert len(result.err.splitlines()) == 2


def test_the_version(tool: Tool) -> None:
    result = tool("--version")
    assert (result.exit_code, result.err) == (0, "")
    assert re.fullmatch(r"warrenctl, version \S+\n", result.out)


def test_no_command_at_all_shows_the_help(tool: Tool) -> None:
    result = tool()
    assert result.exit_code == 64
    assert result.err.startswith("Usage\n\nwarrenctl ")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["set_policy", "ha", "^", "{"], 65, "JSON decoding error. Reason: "),
        (["set_policy", "ha", "^", "[]"], 65, "JSON decoding error. Reason: write an object"),
        (["set_policy", "ha", "(", "{}"], 70, "Validation failed\n\npattern should be regular expression but gave "),
        (["set_policy", "ha", "^", "{}"], 70, "Validation failed\n\nDefinition cannot be empty"),
        (
            ["set_policy", "ha", "^", '{"ha-mode":' + "[" * 100_000],
            65,
            "JSON decoding error. Reason: it is nested too deeply",
        ),
        (
            ["set_policy", "ha", "^", '{"ha-mode":' + "[" * 400 + "]" * 400 + "}"],
            65,
            "JSON decoding error. Reason: it is nested too deeply",
        ),
        (["set_permissions", "u", "(", "", ""], 70, "Invalid regular expression '(': "),
        (["set_permissions", "u", "", "a{4294967295}", ""], 70, "Invalid regular expression 'a{4294967295}': "),
    ],
)
def test_what_can_be_seen_wrong_here_is_not_sent(
    tool: Tool, client: RecordingClient, arguments: list[str], exit_code: int, message: str
) -> None:
    result = tool("-q", *arguments)
    assert result.exit_code == exit_code
    assert result.err.startswith(f"Error:\n{message}")
    assert client.calls == []


def test_a_time_without_end_is_as_long_as_grpc_can_wait(client: RecordingClient) -> None:
    """`--timeout infinity` is what rabbitmqctl takes."""
    waited: list[float] = []

    def connect(_target: Target, timeout_s: float) -> AdminClient:
        waited.append(timeout_s)
        return cast(AdminClient, client)

    for text in ("infinity", "1e300", "0.5"):
        assert run(["-n", "h:1", "-t", text, "clear_policy", "p"], connect) == 0
    assert waited == [1e9, 1e9, 0.5]
    for text in ("nan", "-1", "soon"):
        assert run(["-n", "h:1", "-t", text, "clear_policy", "p"], connect) == 64
    assert len(waited) == 3
