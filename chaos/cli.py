"""`warren`: run nodes, clusters and the laboratory. (`warrenctl` asks a running cluster.)

Nothing heavy is imported before a command needs it: a node must not pay for the laboratory's libraries, and
``--help`` for none at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from chaos.cli_chaos import chaos_group
from chaos.cli_cluster import cluster_group
from chaos.cli_store import store_group
from node.errors import ConfigError

#: Exit code of a configuration error (sysexits.h), as `warrenctl` uses it.
EXIT_CONFIG = 78


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="warren-mq", prog_name="warren")
def main() -> None:
    """Warren: an AMQP broker cluster with mirrored queues, and the laboratory that breaks it."""


@main.command("node")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting that wins over the file.")
def node_command(config_path: Path | None, overrides: tuple[str, ...]) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C."""
    from node.config import load_config  # noqa: PLC0415 - see the module's docstring

    try:
        config = load_config(config_path, overrides)
    except ConfigError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_CONFIG)
    from cluster.daemon import run  # noqa: PLC0415 - see the module's docstring

    sys.exit(run(config))


main.add_command(cluster_group)
main.add_command(chaos_group)
main.add_command(store_group)

if __name__ == "__main__":
    main()
