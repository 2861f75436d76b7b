"""Asking a node as a client does: whether it serves, and what only a client can do there."""

from __future__ import annotations

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingConnection

#: For a node to take a connection; then it is asked again.
ANSWER_S = 5.0


def connected(url: str) -> BlockingConnection:
    """A connection on which nothing is waited for longer than that. Blocks. Raises `AMQPError`, `OSError`."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = ANSWER_S
    return pika.BlockingConnection(parameters)


def answers(url: str) -> bool:
    """True if a client can open a connection there. Blocks."""
    try:
        connected(url).close()
    except (pika.exceptions.AMQPError, OSError):
        return False
    return True
