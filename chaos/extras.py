"""Libraries of the laboratory that who runs brokers only does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

#: Modules of the ``chaos`` extra.
EXTRA_MODULES = frozenset(
    {"aiohttp", "docker", "jinja2", "numpy", "pika", "pyarrow", "pyspark", "requests", "tomli_w", "toxiproxy"}
)


@contextlib.contextmanager
def extra_needed() -> Iterator[None]:
    """Say which extra to install if a library of the laboratory is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_MODULES:
            raise
        raise click.ClickException(
            f"the laboratory needs {module}, which is not installed; install the extra: pip install 'warren-mq[chaos]'"
        ) from None
