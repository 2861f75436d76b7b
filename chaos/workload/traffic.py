"""The clients of one run, as a group: publishers and consumers spread over the nodes, and the final drain."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import aio_pika

from chaos.cluster_under_test.protocol import AdminUnavailable, ClusterAdmin, ClusterUnderTest
from chaos.history import HistoryWriter, Kind, ProcessLog, ProcKind
from chaos.workload.consumer import Consumer, ConsumerOptions
from chaos.workload.message_id import run_tag
from chaos.workload.nodes import NodeRotation
from chaos.workload.publisher import CONNECT_TIMEOUT_S, CONNECTION_ERRORS, Publisher, PublisherOptions
from chaos.workload.tasks import cancel_all

#: Seconds between looks at a condition that a wait is for.
POLL_S = 0.05
#: The queue must be empty on every node at two looks this far apart, with no delivery in between.
EMPTY_TWICE_APART_S = 1.0
#: First process numbers, so that a report reader knows who is who.
PUBLISHER_PROC_BASE = 100
CONSUMER_PROC_BASE = 200


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """Size of the workload."""

    publishers: int = 2
    consumers: int = 3
    #: Messages a second of all publishers together.
    rate: float = 2000.0
    window: int = 500
    prefetch: int = 200
    body_bytes: int = 256


class StrayConfirmWatch(logging.Handler):
    """The client library only logs a confirm that answers nothing; this turns the log line into an event."""

    def __init__(self, log: ProcessLog) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if "Unexpected confirmation" in str(record.msg):
            self._log.record(Kind.CONFIRM_STRAY, err=record.getMessage())


class Traffic:
    """All clients of one queue. Use `start`, then the verbs, then `close`."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        history: HistoryWriter,
        log: ProcessLog,
        *,
        run_id: str,
        queue: str,
        queue_id: int,
        options: TrafficOptions,
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._log = log
        self._run_id = run_id
        self.queue = queue
        self.queue_id = queue_id
        self.options = options
        self._chance = chance
        self._channel_ids = itertools.count(1)
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._consumer_tasks: list[asyncio.Task[None]] = []
        self._stray_watch = StrayConfirmWatch(log)

    @property
    def confirmed_count(self) -> int:
        return sum(publisher.confirmed_count for publisher in self.publishers)

    @property
    def delivery_count(self) -> int:
        return sum(consumer.delivery_count for consumer in self.consumers)

    def start_publishers(self) -> None:
        """Connect the publishers, starting from different nodes; they publish nothing until allowed to."""
        logging.getLogger("aiormq.channel").addHandler(self._stray_watch)
        first = self._chance.randrange(len(self._cluster.nodes))
        for number in range(self.options.publishers):
            proc_id = PUBLISHER_PROC_BASE + number
            publisher = Publisher(
                PublisherOptions(
                    pub_id=number,
                    queue=self.queue,
                    queue_id=self.queue_id,
                    run_tag=run_tag(self._run_id),
                    rate=self.options.rate / self.options.publishers,
                    window=self.options.window,
                    body_bytes=self.options.body_bytes,
                ),
                self._rotation(first + number),
                self._history.process(proc_id, ProcKind.PUBLISHER),
                self._channel_ids,
            )
            self.publishers.append(publisher)
            self._tasks.append(asyncio.create_task(publisher.run(), name=f"publisher {number}"))

    def start_consumers(self) -> None:
        """Connect the consumers, one after the other to the nodes in turn: most are not at the master's node."""
        first = self._chance.randrange(len(self._cluster.nodes))
        for number in range(self.options.consumers):
            consumer = Consumer(
                ConsumerOptions(number, self.queue, self.queue_id, run_tag(self._run_id), self.options.prefetch),
                self._rotation(first + number),
                self._history.process(CONSUMER_PROC_BASE + number, ProcKind.CONSUMER),
                self._channel_ids,
            )
            self.consumers.append(consumer)
            self._consumer_tasks.append(asyncio.create_task(consumer.run(), name=f"consumer {number}"))

    def publish_without_limit(self) -> None:
        """Publish at the full rate until `settle`."""
        for publisher in self.publishers:
            publisher.allow(None)

    async def publish(self, count: int, timeout_s: float) -> None:
        """Publish ``count`` messages, shared evenly, and wait until every one is confirmed."""
        share, rest = divmod(count, len(self.publishers))
        for number, publisher in enumerate(self.publishers):
            publisher.allow(share + (number < rest))
        await self._wait_settled(timeout_s)

    async def settle(self, timeout_s: float) -> None:
        """Begin nothing new and wait until everything begun is confirmed."""
        for publisher in self.publishers:
            publisher.hold()
        await self._wait_settled(timeout_s)

    async def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll ``condition``; a client that died on an unexpected error is reported instead of waited for."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.raise_if_a_client_died()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(f"{what} did not happen within {timeout_s:.0f} s") from None

    def raise_if_a_client_died(self) -> None:
        """Clients outlive every broker fault; an exception that ends one is a mistake of the laboratory."""
        for task in (*self._tasks, *self._consumer_tasks):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def drain(self, admins: Callable[[], Awaitable[list[ClusterAdmin]]], timeout_s: float) -> None:
        """Wait until every node twice says that nothing is ready or unacknowledged, with no delivery in between.

        Raises `TimeoutError`: then nothing may be called lost, and the run is no success.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self.raise_if_a_client_died()
                    deliveries = self.delivery_count
                    if await self._is_empty_everywhere(admins):
                        await asyncio.sleep(EMPTY_TWICE_APART_S)
                        if deliveries == self.delivery_count and await self._is_empty_everywhere(admins):
                            return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(f"the queue was not empty on every node within {timeout_s:.0f} s") from None

    async def stop_consumers(self) -> None:
        """Acknowledge what arrived and disconnect."""
        await self._stop(self.consumers, self._consumer_tasks)

    async def close(self) -> None:
        """Disconnect everything, whatever state it is in."""
        logging.getLogger("aiormq.channel").removeHandler(self._stray_watch)
        await self._stop(self.publishers, self._tasks)
        await self._stop(self.consumers, self._consumer_tasks)

    async def _stop(self, clients: list[Publisher] | list[Consumer], tasks: list[asyncio.Task[None]]) -> None:
        for client in clients:
            client.stop()
        if not tasks:
            return
        _, running = await asyncio.wait(tasks, timeout=2 * CONNECT_TIMEOUT_S)
        await cancel_all(running)

    async def _wait_settled(self, timeout_s: float) -> None:
        def is_settled() -> bool:
            return all(publisher.is_settled for publisher in self.publishers)

        await self.wait_for(is_settled, "the confirm of every published message", timeout_s)

    async def _is_empty_everywhere(self, admins: Callable[[], Awaitable[list[ClusterAdmin]]]) -> bool:
        depths = []
        for admin in await admins():
            try:
                samples = await admin.list_queues()
            except AdminUnavailable:
                return False
            depths += [
                sample.messages_ready + sample.messages_unacked for sample in samples if sample.queue == self.queue
            ]
        self._log.record(Kind.DEPTH, queue_id=self.queue_id, result=max(depths, default=-1))
        return bool(depths) and not any(depths)

    def _rotation(self, first: int) -> NodeRotation:
        names = list(self._cluster.nodes)
        return NodeRotation(names, {name: self._cluster.amqp_url(name) for name in names}, first % len(names))


async def declare_queue(url: str, queue: str, timeout_s: float = 10.0) -> None:
    """Declare a durable queue through the node at ``url``: it becomes the master's node. Tries until it works."""
    async with asyncio.timeout(timeout_s):
        while True:
            with suppress(*CONNECTION_ERRORS):
                connection = await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S)
                async with connection:
                    channel = await connection.channel()
                    await channel.declare_queue(queue, durable=True)
                    return
            await asyncio.sleep(POLL_S)
