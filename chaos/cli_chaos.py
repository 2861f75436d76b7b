"""`warren chaos`: break clusters, and tell what it did to the messages."""

from __future__ import annotations

import click


@click.group("chaos")
def chaos_group() -> None:
    """Break a cluster under load and account for every message."""
