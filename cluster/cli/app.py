"""The program `warrenctl`: its commands, and what becomes of every error."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

import click

from cluster.cli import (
    access_commands,
    listing_commands,
    member_commands,
    node_commands,
    policy_commands,
    queue_commands,
)
from cluster.cli.formatters import to_json
from cluster.cli.framework import (
    PROGRAM,
    ArgumentError,
    CommonOptions,
    Connect,
    ToolGroup,
    UnknownCommandError,
    common_options,
    connect_to_node,
    program_help,
    unknown_command_text,
)
from cluster.cli.targets import Target, advice, working_directory
from cluster.transport.admin_client import AdminClient, AdminError
from cluster.transport.admin_port import ExitCode
from node.errors import ConfigError

#: As a shell reports a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130


def run(arguments: Sequence[str], connect: Connect = connect_to_node) -> int:
    """Run one command line; the exit code is rabbitmqctl's. ``connect`` makes the client of a node."""
    asked: list[Target] = []

    def connect_and_remember(target: Target, timeout_s: float) -> AdminClient:
        asked.append(target)
        return connect(target, timeout_s)

    if unreadable := _argument_without_encoding(arguments):
        text = f"argument {unreadable} is not UTF-8 text; write it in UTF-8"
        click.echo(f"Error (argument validation): {text}", err=True)
        return ExitCode.USAGE
    program = _program(connect_and_remember)
    is_json = _asks_for_json(arguments)
    try:
        program.main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except (ArgumentError, UnknownCommandError) as error:
        text = error.text if isinstance(error, ArgumentError) else str(error)
        click.echo(text, err=True)
        return ExitCode.USAGE
    except click.exceptions.NoArgsIsHelpError:
        click.echo(program_help(program), err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        complaint = error.format_message()
        click.echo(f"Error (argument validation): {complaint}\n`{PROGRAM} help` lists the options.", err=True)
        return ExitCode.USAGE
    except ConfigError as error:
        return _report(ExitCode.CONFIG, str(error), None, is_json=is_json)
    except AdminError as error:
        return _report(error.exit_code, error.message, asked[-1] if asked else None, is_json=is_json)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    return ExitCode.OK


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def _argument_without_encoding(arguments: Sequence[str]) -> int:
    """The place of the first that could be neither sent nor shown, counted from 1; 0 if there is none."""
    for place, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            return place
    return 0


def _asks_for_json(arguments: Sequence[str]) -> bool:
    return "--formatter=json" in arguments or ("--formatter", "json") in itertools.pairwise(arguments)


def _report(exit_code: int, message: str, target: Target | None, *, is_json: bool) -> int:
    node = "" if target is None else target.name
    if is_json:
        body = {"result": "error", "node": node, "error": ExitCode(exit_code).name.lower(), "message": message}
        click.echo(to_json(body), err=True)
    elif exit_code == ExitCode.UNAVAILABLE:
        missing = [] if target is None else advice(target, message, os.environ, working_directory())
        paragraphs = "".join(f"{paragraph}\n\n" for paragraph in missing)
        click.echo(_unavailable_text(node, message, paragraphs), err=True)
    else:
        click.echo(f"Error:\n{message}", err=True)
    return exit_code


def _unavailable_text(node: str, message: str, missing: str) -> str:
    return f"""Error: unable to perform an operation on node '{node}': {message}

{missing}Please check that

 * the node runs: `warren cluster status`, or the log of the node
 * the address is that of its cluster listener (`cluster.listener` in its configuration), not the AMQP port
 * the cookie is the node's: it is read from the cluster directory (--dir, WARREN_CLUSTER_DIR),
   or from WARREN_COOKIE_FILE or WARREN_COOKIE; of a node alone it is in ~/.warren.cookie
 * both sides use TLS, or neither (`cluster.ssl_options` of the node; here WARREN_SSL_CACERTFILE,
   WARREN_SSL_CERTFILE and WARREN_SSL_KEYFILE)
"""


def _program(connect: Connect) -> ToolGroup:
    def remember_options(**options: object) -> None:
        click.get_current_context().obj = (CommonOptions(**options), connect)  # type: ignore[arg-type]

    program = ToolGroup(
        PROGRAM,
        params=[*common_options()],
        callback=remember_options,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    click.version_option(package_name="warren-mq", prog_name=PROGRAM, help="Show the version.")(program)
    for module in (policy_commands, queue_commands, listing_commands, access_commands, node_commands, member_commands):
        for command in module.COMMANDS:
            program.add_command(command)
    program.add_command(_help_command(program))
    return program


def _help_command(program: ToolGroup) -> click.Command:
    def show(name: str | None) -> None:
        """Show the commands, or how one is used."""
        if name is None:
            click.echo(program_help(program))
            return
        command = program.commands.get(name)
        if command is None:
            raise UnknownCommandError(unknown_command_text(program, name))
        assert command.help is not None, "every command says what it does"
        click.echo(command.get_help(click.Context(command)))

    argument = click.Argument(["name"], required=False)
    return click.Command("help", callback=show, params=[argument], help=show.__doc__)
