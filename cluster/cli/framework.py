"""What all `warrenctl` commands share: options, banners, results, errors and exit codes, as rabbitmqctl has them.

A command is a function of a `Call` and its own arguments. It checks its arguments (`Call.refuse`), announces itself
(`Call.banner`), asks the node (`Call.client`) and writes the answer. Common options may stand before or behind the
name of the command. Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from cluster.cli.formatters import FORMATTERS, format_listing, to_json
from cluster.cli.targets import Target, resolve_target, working_directory
from cluster.listing_columns import LISTINGS
from cluster.transport.admin_client import DEFAULT_TIMEOUT_S, AdminClient
from cluster.transport.admin_port import Table
from cluster.transport.grpc_tls import read_tls

PROGRAM = "warrenctl"
#: Options every command takes, in the usage line.
_COMMON_USAGE = "[--node <node>] [--quiet]"

#: More than that, and gRPC takes the time for over: thirty years.
TIMEOUT_MAX_S = 1e9

Connect = Callable[[Target, float], AdminClient]


def connect_to_node(target: Target, timeout_s: float) -> AdminClient:
    """Raises `ConfigError`. Of a certificate that does not hold nobody is told but the node to which it is shown."""
    tls = None if target.tls is None else read_tls(target.tls)
    if tls is not None and tls.time_problem:
        text = f"{tls.time_problem}, by the clock of this machine; nodes close on whoever shows it"
        click.echo(f"Warning: {text}", err=True)
    credentials = None if tls is None else tls.channel
    return AdminClient(target.address, target.cookie, timeout_s=timeout_s, channel_credentials=credentials)


class ArgumentError(Exception):
    """The command line makes no sense: exit code 64, with the arguments and the usage."""

    def __init__(self, message: str, arguments: Sequence[str], usage: str) -> None:
        super().__init__(message)
        self.text = f"Error (argument validation): {message}\nArguments given:\n\t{' '.join(arguments)}\n\n{usage}"


class UnknownCommandError(Exception):
    """No such command: exit code 64, with the nearest name."""


@dataclass(slots=True)
class CommonOptions:
    """Options of the program; those given behind the command win (`merge`)."""

    node: str | None = None
    directory: Path | None = None
    timeout_s: float | None = None
    formatter: str | None = None
    quiet: bool = False
    silent: bool = False
    no_table_headers: bool = False

    def merge(self, later: CommonOptions) -> CommonOptions:
        return CommonOptions(
            self.node if later.node is None else later.node,
            later.directory or self.directory,
            self.timeout_s if later.timeout_s is None else later.timeout_s,
            later.formatter or self.formatter,
            later.quiet or self.quiet,
            later.silent or self.silent,
            later.no_table_headers or self.no_table_headers,
        )


_OPTION_NAMES = tuple(CommonOptions.__dataclass_fields__)


class Seconds(click.ParamType[float]):
    """A time to wait. rabbitmqctl's ``infinity`` is as long as gRPC can wait."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = click.FLOAT.convert(value, param, ctx)
        if not seconds >= 0:
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return min(seconds, TIMEOUT_MAX_S)


def common_options() -> list[click.Option]:
    """Fresh click options for the program or a command."""
    return [
        click.Option(["-n", "--node", "node"], help="Node: a name of the cluster directory, or host:port."),
        click.Option(["--dir", "directory"], type=click.Path(path_type=Path), help="Cluster directory."),
        click.Option(["-t", "--timeout", "timeout_s"], type=Seconds(), help="Seconds to wait."),
        click.Option(
            ["--formatter"], type=click.Choice(FORMATTERS), help=f"How results are written: {', '.join(FORMATTERS)}."
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="No banner."),
        click.Option(["-s", "--silent"], is_flag=True, help="No banner and no table header."),
        click.Option(["--no-table-headers"], is_flag=True, help="No table header."),
    ]


class Call:
    """One run of a command."""

    def __init__(
        self, options: CommonOptions, command: ToolCommand, arguments: Sequence[str], connect: Connect
    ) -> None:
        self.options = options
        self.formatter = options.formatter or "table"
        self._command = command
        self._arguments = arguments
        self._connect = connect
        self._target: Target | None = None

    @property
    def target(self) -> Target:
        """The node asked. Raises `ConfigError`."""
        if self._target is None:
            self._target = resolve_target(self.options.node, self.options.directory, os.environ, working_directory())
        return self._target

    @property
    def timeout_s(self) -> float:
        return DEFAULT_TIMEOUT_S if self.options.timeout_s is None else self.options.timeout_s

    @property
    def is_for_people(self) -> bool:
        """Banners and remarks are wanted: neither asked to be quiet nor written for a program to read."""
        return not self.options.quiet and not self.options.silent and self.formatter in ("table", "pretty_table")

    def client(self) -> AdminClient:
        """A connection to the node; use it in a ``with`` statement."""
        if not self.target.cookie:
            # A node alone makes its cookie when it starts, and may be starting.
            self._target = None
        return self._connect(self.target, self.timeout_s)

    def refuse(self, message: str) -> NoReturn:
        """The arguments are wrong."""
        raise ArgumentError(message, self._arguments, self._command.usage_text())

    def banner(self, *lines: str) -> None:
        if self.is_for_people:
            for line in lines:
                click.echo(line)

    def remark(self, text: str) -> None:
        """Something a person likes to read after success."""
        if self.is_for_people:
            click.echo(text)

    def done(self) -> None:
        """An action succeeded."""
        if self.formatter == "json":
            click.echo(to_json({"result": "ok", "node": self.target.name}))

    def show(self, table: Table) -> None:
        has_header = not self.options.silent and not self.options.no_table_headers
        click.echo(format_listing(table, self.formatter, has_header=has_header), nl=False)

    def check_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns to list: ``columns``, or the defaults of this listing."""
        listing = LISTINGS[self._command.tool_name]
        unknown = listing.unknown(tuple(columns))
        if unknown:
            self.refuse(f"Info key(s) {','.join(unknown)} are not supported")
        return tuple(columns) or listing.default


class ToolCommand(click.Command):
    """A command with rabbitmqctl's complaints about its arguments."""

    def __init__(self, *args: Any, usage: str = "", has_secret: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()
        self.usage = usage
        #: Arguments behind the first are passwords: complaints do not repeat them.
        self.has_secret = has_secret

    @property
    def tool_name(self) -> str:
        assert self.name is not None, "every command is registered by name"
        return self.name

    def usage_text(self) -> str:
        """Usage as complaints and ``help`` show it."""
        line = " ".join(part for part in (PROGRAM, _COMMON_USAGE, self.tool_name, self.usage) if part)
        text = f"Usage\n\n{line}\n"
        if self.tool_name in LISTINGS:
            text += f"\n<column> must be one of {', '.join(LISTINGS[self.tool_name].columns)}\n"
        return text

    def get_help(self, ctx: click.Context) -> str:
        assert self.help is not None, "every command says what it does"
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        return f"{self.usage_text()}\n{inspect.cleandoc(self.help)}\n\nOptions:\n{_option_lines(options)}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [self.tool_name, *args]
        if self.has_secret:
            given[2:] = ["***"] * len(given[2:])
        ctx.meta["arguments"] = given
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise ArgumentError(_complaint(error), given, self.usage_text()) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Turn the common options into the `Call` that the command gets as its first argument."""
        given = CommonOptions(**{name: ctx.params.pop(name) for name in _OPTION_NAMES})
        before, connect = ctx.obj
        ctx.params["call"] = Call(before.merge(given), self, ctx.meta["arguments"], connect)
        return super().invoke(ctx)


def _complaint(error: click.UsageError) -> str:
    if isinstance(error, click.MissingParameter):
        return "not enough arguments."
    if isinstance(error, click.NoSuchOption):
        return f"Invalid options for this command: {error.option_name}"
    if "extra argument" in error.message:
        return "too many arguments."
    return error.format_message()


class ToolGroup(click.Group):
    """The program: finds the command or says which was meant."""

    command_class = ToolCommand

    def get_help(self, ctx: click.Context) -> str:
        return program_help(self)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands:
            raise UnknownCommandError(unknown_command_text(self, name))
        return super().resolve_command(ctx, args)


def unknown_command_text(group: click.Group, name: str) -> str:
    close = difflib.get_close_matches(name, group.commands, n=1)
    remedy = f"Did you mean '{close[0]}'?" if close else f"`{PROGRAM} help` lists the commands."
    return f"Error: No such command '{name}'. {remedy}"


def program_help(group: click.Group) -> str:
    width = max(len(name) for name in group.commands)
    lines = [
        f"  {name:<{width}}  {command.get_short_help_str(100)}" for name, command in sorted(group.commands.items())
    ]
    usage = f"Usage\n\n{PROGRAM} [--node <node>] [--timeout <timeout>] [--quiet] <command> [<command options>]\n"
    options = [param for param in group.params if isinstance(param, click.Option)]
    return "\n".join([usage, "Commands:", *lines, "", "Options:", _option_lines(options), ""])


def _option_lines(options: Sequence[click.Option]) -> str:
    """One line each."""
    return "\n".join(f"  {', '.join(option.opts):<22}{option.help}" for option in options if option.help is not None)
