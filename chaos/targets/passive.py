"""What can be asked of a cluster of which only AMQP is known: whether queues answer, and how many messages are ready.

Who the masters are, and what consumers hold, nobody tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pika.exceptions
from pika.adapters.blocking_connection import BlockingConnection

from chaos.targets.answering import connected
from chaos.targets.target import NotNow, QueueView, TargetError

#: Between two questions: counts of queues are no free lunch for a broker.
INTERVAL_S = 0.5


class PassiveOperator:
    """At one node; `chaos.targets.target.Operator`. Asks one thing at a time."""

    def __init__(self, url: str, queues: Callable[[], Sequence[str]]) -> None:
        """``queues``: their names, as they are known by now."""
        self._url = url
        self._queues = queues
        self._connection: BlockingConnection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def queues(self) -> list[QueueView]:
        async with self._one_at_a_time:
            await asyncio.sleep(INTERVAL_S)
            return await asyncio.to_thread(self._ask)

    def _ask(self) -> list[QueueView]:
        found = []
        for name in self._queues():
            try:
                count = self._opened().channel().queue_declare(name, passive=True).method.message_count
            except pika.exceptions.ChannelClosedByBroker:
                # It is not there, or nobody serves it now.
                continue
            except (pika.exceptions.AMQPError, OSError) as error:
                self._drop()
                raise NotNow(f"it does not answer: {type(error).__name__}") from None
            found.append(QueueView(name, None, ready=count, is_answered_for=True))
        return found

    def _opened(self) -> BlockingConnection:
        """One connection, with a channel for each question: what a broker refuses closes the channel."""
        if self._connection is None or not self._connection.is_open:
            self._connection = connected(self._url)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            try:
                connection.close()
            except (pika.exceptions.AMQPError, OSError):
                return

    async def running(self) -> list[int]:
        raise NotNow("nobody tells which nodes there are")

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        raise _no_management()

    async def clear_policy(self, name: str) -> None:
        raise _no_management()

    async def sync(self, queue: str) -> None:
        raise _no_management()

    async def cancel_sync(self, queue: str) -> None:
        raise _no_management()

    async def purge(self, queue: str) -> None:
        def purge() -> None:
            self._opened().channel().queue_purge(queue)

        async with self._one_at_a_time:
            try:
                await asyncio.to_thread(purge)
            except (pika.exceptions.AMQPError, OSError) as error:
                self._drop()
                raise NotNow(f"{queue} is not purged: {type(error).__name__}") from None

    async def close(self) -> None:
        await asyncio.to_thread(self._drop)


def _no_management() -> TargetError:
    return TargetError("only an operator's interface can do it: the file of the cluster tells of no [management]")
