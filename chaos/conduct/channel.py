"""One channel, for what is done once: declaring queues, and looking into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel


@contextmanager
def opened_channel(url: str) -> Iterator[BlockingChannel]:
    """On a connection of its own. Blocks. Raises `pika.exceptions.AMQPError`, `OSError`."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()
