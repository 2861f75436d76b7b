"""How tests take messages out of a real broker, with pika."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel

from tests.support.waiting import eventually

#: For the next message of those that are there.
PATIENCE_S = 20.0


def get_or_nothing(channel: BlockingChannel, queue: str) -> tuple[Any, bytes] | None:
    method, _, body = channel.basic_get(queue)
    return None if method is None or body is None else (method, body)


def get(channel: BlockingChannel, queue: str) -> tuple[Any, bytes]:
    taken = get_or_nothing(channel, queue)
    assert taken is not None, "the queue is empty"
    return taken


def pump(channel: BlockingChannel, condition: Callable[[], object], what: str) -> None:
    """Let a consumer's callbacks run until ``condition`` is true."""

    def pumped() -> object:
        channel.connection.process_data_events(0.02)
        return condition()

    eventually(pumped, what)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Take and acknowledge everything in the queue, in its order, once."""
    bodies: list[bytes] = []
    expected = channel.queue_declare(queue, passive=True).method.message_count
    if expected:
        channel.basic_qos(prefetch_count=1000)
        for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE_S):
            assert method is not None, f"only {len(bodies)} of {expected} messages came"
            assert body is not None
            bodies.append(body)
            if len(bodies) == expected:
                channel.basic_ack(method.delivery_tag, multiple=True)
                break
            if len(bodies) % 500 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
        channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    return bodies


def take(channel: BlockingChannel, queue: str, count: int) -> list[tuple[str, bytes]]:
    """The next ``count`` messages with their routing keys, without acks."""
    taken: list[tuple[str, bytes]] = []
    for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE_S):
        assert method is not None, f"only {len(taken)} of {count} messages came"
        assert body is not None
        taken.append((method.routing_key, body))
        if len(taken) == count:
            break
    channel.cancel()
    return taken
