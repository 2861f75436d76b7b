"""`python -m cluster`: one node in the foreground, and the command behind ``warren node``.

A process that is started like this is named after what it is, and loads nothing of the laboratory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cluster.transport.admin_port import ExitCode
from node.config import load_config
from node.errors import ConfigError


@click.command("node", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting that wins over the file.")
def main(config_path: Path | None, overrides: tuple[str, ...]) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C."""
    try:
        config = load_config(config_path, overrides)
    except ConfigError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(ExitCode.CONFIG)
    from cluster.daemon import run  # noqa: PLC0415 - a mistake in the configuration needs no gRPC to be told

    sys.exit(run(config))


if __name__ == "__main__":
    main(prog_name="python -m cluster")
