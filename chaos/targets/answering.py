"""Whether a node serves clients, asked as a client asks."""

from __future__ import annotations

import pika
import pika.exceptions

#: For a node to take a connection; then it is asked again.
ANSWER_S = 5.0


def answers(url: str) -> bool:
    """True if a client can open a connection there. Blocks."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = ANSWER_S
    try:
        pika.BlockingConnection(parameters).close()
    except (pika.exceptions.AMQPError, OSError):
        return False
    return True
