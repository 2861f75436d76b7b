"""Taking out what is left in a queue when the run is over."""

from __future__ import annotations

import asyncio

import pika.exceptions

from chaos.clients.body import Bodies
from chaos.conduct.channel import opened_channel

#: For one more message to come; then the queue does not hand out what it says that it has.
NEXT_MESSAGE_S = 15.0


class CannotLook(Exception):
    """The queue does not tell what it has; the text says why."""


async def look(url: str, run: str, queue: str) -> list[int]:
    """Keys of everything ready in it, in its order; 0 for what is not of this run. Raises `CannotLook`.

    Nothing is taken out: it is given back when the connection ends.
    """
    return await asyncio.to_thread(_look, url, run, queue)


def _look(url: str, run: str, queue: str) -> list[int]:
    bodies = Bodies(run)
    keys: list[int] = []
    try:
        with opened_channel(url) as channel:
            count = channel.queue_declare(queue, passive=True).method.message_count
            if not count:
                return keys
            for method, _properties, body in channel.consume(queue, inactivity_timeout=NEXT_MESSAGE_S):
                if method is None or body is None:
                    raise CannotLook(f"queue {queue!r} says that it has {count} messages, and hands out {len(keys)}")
                keys.append(bodies.decode(body).key)
                if len(keys) == count:
                    return keys
    except (pika.exceptions.AMQPError, OSError) as error:
        raise CannotLook(f"queue {queue!r} cannot be looked into: {type(error).__name__}: {error}") from error
    raise CannotLook(f"queue {queue!r} was deleted while it was looked into")
