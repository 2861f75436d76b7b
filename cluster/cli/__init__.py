"""`warrenctl`: rabbitmqctl's commands and output, for Warren."""

from cluster.cli.app import main

__all__ = ["main"]
