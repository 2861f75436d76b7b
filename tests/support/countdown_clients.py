"""The two oracles of RabbitMQ's suites (`tests.conformance.ha.clients`) with real clients, and writers that last.

A producer counts down to 1 in persistent messages with confirms, all of which must be answered alike. A consumer acks
what it gets: a number that it has not seen must be the next, one that it has must come flagged as redelivered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractChannel
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.live_cluster import LiveCluster, persistent
from tests.support.waiting import DEFAULT_TIMEOUT_S, eventually

#: What a producer has on its way at once.
IN_FLIGHT = 20
#: A writer is an application that has something to say so often.
PACE_S = 0.02
#: Of what a writer says at a time.
AT_A_TIME = 5
#: Before a writer whose connection was closed tries again.
RECONNECT_S = 0.1
_CONNECT_TIMEOUT_S = 5.0

#: How a client's connection ends, or is refused.
CONNECTION_ERRORS = (aio_pika.exceptions.AMQPError, OSError, TimeoutError)


class _Client:
    """Runs in a thread of its own until it is done, or told to stop."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def _live(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._error = error

    def _join(self, what: str) -> None:
        self._thread.join(DEFAULT_TIMEOUT_S)
        assert not self._thread.is_alive(), f"not within {DEFAULT_TIMEOUT_S:g} s: {what}"
        if self._error is not None:
            raise self._error

    def _wait(self, number: int, what: str) -> None:
        eventually(lambda: self._count() >= number or self._error, f"{number} {what}")
        assert self._error is None, self._error

    def _count(self) -> int:
        raise NotImplementedError


class Producer(_Client):
    """Counts down from ``number`` into a queue, through one node."""

    def __init__(self, cluster: LiveCluster, node: str, queue: str, number: int) -> None:
        self.acks = 0
        self.nacks = 0
        self._url = cluster.url(node)
        self._queue = queue
        self._number = number
        super().__init__()

    def wait_answers(self, number: int) -> None:
        self._wait(number, "answers")

    def all_acked(self) -> None:
        self._join(f"{self._number} confirms")
        assert (self.acks, self.nacks) == (self._number, 0)

    def all_nacked(self) -> None:
        self._join(f"{self._number} refusals")
        assert (self.acks, self.nacks) == (0, self._number)

    def _count(self) -> int:
        return self.acks + self.nacks

    async def _live(self) -> None:
        async with await aio_pika.connect(self._url) as connection:
            exchange = (await connection.channel()).default_exchange
            slots = asyncio.Semaphore(IN_FLIGHT)

            async def publish(number: int) -> None:
                try:
                    await exchange.publish(persistent(b"%d" % number), self._queue)
                    self.acks += 1
                except aio_pika.exceptions.DeliveryError:
                    self.nacks += 1
                finally:
                    slots.release()

            async with asyncio.TaskGroup() as group:
                for number in range(self._number, 0, -1):
                    await slots.acquire()
                    group.create_task(publish(number))


class Consumer:
    """Expects the numbers of a `Producer` from ``number`` down to 1; asks to be told of failovers."""

    def __init__(self, channel: BlockingChannel, queue: str, number: int) -> None:
        #: The lowest number so far; the next new one is one less.
        self.lowest = number + 1
        self.cancels = 0
        self.mistakes: list[str] = []
        self._channel = channel
        self._queue = queue
        self._is_subscribed = False
        channel.add_on_cancel_callback(self._cancelled)

    def wait_lowest(self, number: int) -> None:
        """Until this number has come. Fails for whatever is not as it must be."""

        def is_there() -> bool:
            if not self._is_subscribed:
                self._is_subscribed = True
                self._channel.basic_consume(self._queue, self._delivered, arguments={"x-cancel-on-ha-failover": True})
            self._channel.connection.process_data_events(0.02)
            assert not self.mistakes, self.mistakes[:3]
            return self.lowest <= number

        eventually(is_there, f"number {number}")

    def _cancelled(self, _frame: object) -> None:
        self.cancels += 1
        self._is_subscribed = False

    def _delivered(self, channel: BlockingChannel, method: Any, _properties: object, body: bytes) -> None:
        number = int(body)
        if number == self.lowest - 1:
            self.lowest = number
        elif number < self.lowest:
            self.mistakes.append(f"{number} came where {self.lowest - 1} was due")
        elif not method.redelivered:
            self.mistakes.append(f"{number} came again without the flag, the lowest being {self.lowest}")
        channel.basic_ack(method.delivery_tag)


class Writers(_Client):
    """Publish numbers with confirms, one writer through each node, until told to stop.

    Like an application a writer connects again when its connection is closed; what was unconfirmed then is unknown.
    """

    def __init__(self, cluster: LiveCluster, nodes: Sequence[str], queue: str) -> None:
        #: Node -> what was confirmed to its writer.
        self.confirmed: dict[str, list[bytes]] = {node: [] for node in nodes}
        self._urls = {node: cluster.url(node) for node in nodes}
        self._queue = queue
        super().__init__()

    def wait_progress(self, *nodes: str) -> None:
        """Until the writers through these nodes have been confirmed some more from now on."""
        wanted = {node: len(self.confirmed[node]) + 2 * AT_A_TIME for node in nodes}

        def is_there() -> bool:
            return self._error is not None or all(len(self.confirmed[node]) >= wanted[node] for node in nodes)

        eventually(is_there, f"confirms through {', '.join(nodes)}")
        assert self._error is None, self._error

    def progress_since(self, before: dict[str, int]) -> set[str]:
        """Nodes whose writers have been confirmed some more since there were so many (`counts`)."""
        return {node for node, bodies in self.confirmed.items() if len(bodies) >= before[node] + 2 * AT_A_TIME}

    def counts(self) -> dict[str, int]:
        return {node: len(bodies) for node, bodies in self.confirmed.items()}

    def finish(self) -> list[bytes]:
        """Publish no more, wait for what is outstanding; everything that was confirmed."""
        self.stop()
        return [body for bodies in self.confirmed.values() for body in bodies]

    def stop(self) -> None:
        self._is_over.set()
        self._join(f"the last confirms; {self.counts()} came")

    def _count(self) -> int:
        return sum(self.counts().values())

    async def _live(self) -> None:
        await asyncio.gather(*(self._write(node) for node in self.confirmed))

    async def _write(self, node: str) -> None:
        number = 0
        while not self._is_over.is_set():
            try:
                connection = await aio_pika.connect(self._urls[node], timeout=_CONNECT_TIMEOUT_S)
            except CONNECTION_ERRORS:
                await asyncio.sleep(RECONNECT_S)
                continue
            number += 1
            with suppress(*CONNECTION_ERRORS):
                async with connection:
                    await self._publish(await connection.channel(), node, number)

    async def _publish(self, channel: AbstractChannel, node: str, number: int) -> None:
        at = 0
        while not self._is_over.is_set() and not channel.is_closed:
            bodies = [b"%s %d %06d" % (node.encode(), number, at + step) for step in range(AT_A_TIME)]
            at += AT_A_TIME
            results = await asyncio.gather(
                *(channel.default_exchange.publish(persistent(body), self._queue) for body in bodies),
                return_exceptions=True,
            )
            for body, result in zip(bodies, results, strict=True):
                if not isinstance(result, BaseException):
                    self.confirmed[node].append(body)
            await asyncio.sleep(PACE_S)
