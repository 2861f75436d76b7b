"""`warren`: run nodes, clusters and the laboratory. (`warrenctl` asks a running cluster.)

Nothing is imported before its command is asked for: a node must not pay for the laboratory's libraries.
"""

from __future__ import annotations

from importlib import import_module

import click

from chaos.extras import extra_needed

#: Command -> the module and the name of what carries it out.
COMMANDS = {
    "chaos": ("chaos.suite.commands", "chaos_group"),
    "cluster": ("chaos.cli_cluster", "cluster_group"),
    "node": ("cluster.__main__", "main"),
    "sim": ("chaos.cli_sim", "sim_command"),
    "store": ("chaos.cli_store", "store_group"),
}


class LazyGroup(click.Group):
    """A group that imports each of its commands when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        with extra_needed():
            command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="warren-mq", prog_name="warren")
def main() -> None:
    """Warren: an AMQP broker cluster with mirrored queues, and the laboratory that breaks it."""


if __name__ == "__main__":
    main()
