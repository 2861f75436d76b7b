"""Clients of the simulated cluster: publishers that retry, consumers with habits, and a last one who drains.

They behave and record as those of the laboratory do (`chaos.workload`), so that the same definitions judge both:
`PUB_INVOKE` before the bytes leave, `DELIVER` as the message comes, `ACK_SENT` before the acknowledgement. Each is a
process of its own on a host of its own, and stands for any number of channels, one after the other.

What a consumer does with a delivery depends on the message and how often this consumer has seen it, never on a
generator that others use, too: a schedule from which a step was taken out behaves alike otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any
from zlib import crc32

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind, ProcessLog, ProcKind
from chaos.sim.client import Channel, ClosedError, Connection, Delivered, open_connection
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.network import Address, Network
from chaos.workload.message_id import MIN_BODY_BYTES, MessageId, decode_body, encode_body

#: Until another node is tried.
RECONNECT_PAUSE_S = 0.1
CONNECT_TIMEOUT_S = 3.0
#: How long a client waits for an answer before it takes its connection for dead.
ANSWER_TIMEOUT_S = 20.0
TROUBLE = (ClosedError, OSError, TimeoutError)


class MemoryHistory:
    """The history of a run in memory. Satisfies `chaos.history.History`."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.events: list[Event] = []
        self.logs: list[ProcessLog] = []

    def process(self, kind: ProcKind) -> ProcessLog:
        log = ProcessLog(self, len(self.logs) + 1, kind, 1)
        self.logs.append(log)
        return log

    def now(self) -> tuple[int, int]:
        """(nanoseconds, microseconds) of virtual time; nothing happens before 1, so that none is false."""
        return int(self._loop.now_s * 1e9), 1 + int(self._loop.now_s * 1e6)

    def append(self, event: Event) -> None:
        self.events.append(event)


class Surroundings:
    """What every client needs of the world."""

    def __init__(self, loop: SimulatedLoop, network: Network, nodes: list[Address], seed: int) -> None:
        self.loop = loop
        self.network = network
        #: Where the nodes listen.
        self.nodes = nodes
        self.seed = seed
        self.history = MemoryHistory(loop)
        self.channel_ids = count(1)
        #: Nodes that hold a copy of a queue with everything, now.
        self.holders_of: Callable[[int], frozenset[str]] = lambda _queue: frozenset()
        #: Of each confirmed attempt whose message was not persistent: who held it then.
        self.holders: dict[AttemptKey, frozenset[str]] = {}
        #: In the body of every message: whose run it is of.
        self.run_tag = seed & 0xFFFF_FFFF

    def dice(self, *parts: object) -> int:
        """A number from 0 to 99 that depends on the seed and on this alone."""
        return crc32(repr((self.seed, *parts)).encode()) % 100


class Client:
    """A process with at most one connection, which it makes again when it is lost."""

    def __init__(self, name: str, world: Surroundings, kind: ProcKind) -> None:
        self.name = name
        self.world = world
        self.process: Process = world.loop.start_process(name, lambda: 0.0001)
        self.log = world.history.process(kind)
        self.connection: Connection | None = None
        self.channel: Channel | None = None
        self.channel_id = 0
        self.is_stopping = False
        self._attempts = 0
        self._lost = asyncio.Event()

    def start(self) -> None:
        self.process.create_task(self._live(), name=self.name)

    def stop(self) -> None:
        """Close what is open and do not come back."""
        self.is_stopping = True
        self.drop(is_orderly=True)

    def drop(self, *, is_orderly: bool = False) -> None:
        """Lose the connection; `_live` makes another."""
        connection = self.connection
        if connection is not None and connection.closed is None:
            self.process.call_soon(connection.close if is_orderly else connection.abort)

    def next_node(self) -> int:
        """Position of the node to try next."""
        self._attempts += 1
        return self.world.dice(self.name, self._attempts) % len(self.world.nodes)

    async def _live(self) -> None:
        while not self.is_stopping:
            at = self.next_node()
            address = self.world.nodes[at]
            try:
                connection = await open_connection(
                    self.world.network, self.process, self.name, address, CONNECT_TIMEOUT_S
                )
                self.connection = connection
                self._lost = asyncio.Event()
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    channel = await connection.channel()
                    channel.on_closed = self._closed
                    self.channel_id = next(self.world.channel_ids)
                    self.log.record(Kind.CONN_OPEN, channel_id=self.channel_id, node_id=at)
                    await self.begin(channel)
                self.channel = channel
                if not self.is_stopping:
                    await self._lost.wait()
            except TROUBLE:
                pass
            if self.connection is not None:
                self.connection.close()
            self.connection = self.channel = None
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _closed(self, error: ClosedError) -> None:
        self.channel = None
        self.log.record(Kind.CONN_LOST, channel_id=self.channel_id, err=str(error))
        self.ended()
        self._lost.set()

    async def begin(self, channel: Channel) -> None:
        """A new channel: set it up. Raises what `TROUBLE` lists."""

    def ended(self) -> None:
        """The channel is gone."""


class Publisher(Client):
    """Publishes what it is told, and again what was not confirmed, until it is."""

    def __init__(self, number: int, world: Surroundings, queue_name: Callable[[int], str]) -> None:
        super().__init__(f"p{number}", world, ProcKind.PUBLISHER)
        self.number = number
        self._queue_name = queue_name
        self.last_seq = 0
        #: What is to be published: (queue, seq, attempt, bytes, persistent).
        self._due: deque[tuple[int, int, int, int, bool]] = deque()
        #: By sequence number of the channel.
        self._outstanding: dict[int, tuple[int, int, int, int, bool]] = {}

    def tell(self, queue: int, burst: int, body_bytes: int, is_persistent: bool) -> None:
        for _ in range(burst):
            self.last_seq += 1
            self._due.append((queue, self.last_seq, 1, body_bytes, is_persistent))
        self.process.call_soon(self._publish)

    @property
    def is_idle(self) -> bool:
        """Everything that it was told is confirmed."""
        return not self._due and not self._outstanding

    async def begin(self, channel: Channel) -> None:
        await channel.confirm_select()
        channel.on_confirm = self._answered
        self.channel = channel
        self._publish()

    def _publish(self) -> None:
        channel = self.channel
        while self._due and channel is not None and channel.closed is None:
            item = self._due.popleft()
            queue, seq, attempt, body_bytes, is_persistent = item
            message = MessageId(self.number, seq, attempt)
            body = encode_body(self.world.run_tag, message, max(body_bytes, MIN_BODY_BYTES))
            self._outstanding[channel.published + 1] = item
            self._record(Kind.PUB_INVOKE, item)
            channel.publish(self._queue_name(queue), body, is_persistent=is_persistent)

    def _answered(self, sequence: int, multiple: bool, is_ack: bool) -> None:
        first = min(self._outstanding, default=sequence) if multiple else sequence
        answered = [number for number in range(first, sequence + 1) if number in self._outstanding]
        if not answered:
            self.log.record(Kind.CONFIRM_STRAY, channel_id=self.channel_id, delivery_tag=sequence)
        for number in answered:
            item = self._outstanding.pop(number)
            self._record(Kind.CONFIRM if is_ack else Kind.NACK, item)
            if not is_ack:
                self._again(item)
            elif not item[4]:
                queue, seq, attempt = item[:3]
                self.world.holders[queue, self.number, seq, attempt] = self.world.holders_of(queue)

    def ended(self) -> None:
        for item in self._outstanding.values():
            self._record(Kind.PUB_UNKNOWN, item)
        unknown, self._outstanding = list(self._outstanding.values()), {}
        for item in reversed(unknown):
            self._again(item, is_first=True)

    def _again(self, item: tuple[int, int, int, int, bool], *, is_first: bool = False) -> None:
        queue, seq, attempt, body_bytes, is_persistent = item
        again = (queue, seq, attempt + 1, body_bytes, is_persistent)
        if is_first:
            self._due.appendleft(again)
        else:
            self._due.append(again)
            self.process.call_later(RECONNECT_PAUSE_S, self._publish)

    def _record(self, kind: Kind, item: tuple[int, int, int, int, bool]) -> None:
        queue, seq, attempt, body_bytes, _ = item
        self.log.record(
            kind,
            queue_id=queue,
            pub_id=self.number,
            seq=seq,
            attempt=attempt,
            channel_id=self.channel_id,
            body_bytes=body_bytes,
        )


class Consumer(Client):
    """Consumes one queue and treats its deliveries as its habits say."""

    def __init__(
        self,
        number: int,
        world: Surroundings,
        queue_name: Callable[[int], str],
        *,
        prefetch: int,
        requeue_percent: int,
        hold_percent: int,
    ) -> None:
        super().__init__(f"c{number}", world, ProcKind.CONSUMER)
        self.number = number
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._requeue_percent = requeue_percent
        self._hold_percent = hold_percent
        self.queue: int | None = None
        self._is_started = False
        self._seen: dict[MessageId, int] = {}

    def consume(self, queue: int) -> None:
        """Of this queue from now on."""
        self.queue = queue
        if self._is_started:
            self.drop(is_orderly=True)
        else:
            self._is_started = True
            self.start()

    def cancel(self) -> None:
        """Consume nothing, on the same channel; what was delivered stays unacked."""
        channel = self.channel
        if channel is not None and channel.closed is None and self.queue is not None:
            self.process.create_task(self._cancel(channel))

    async def _cancel(self, channel: Channel) -> None:
        with suppress(*TROUBLE):
            await channel.cancel("tag")

    def give_back(self) -> None:
        """Requeue everything that is held."""
        channel = self.channel
        if channel is not None and channel.closed is None:
            self.process.call_soon(self._give_back, channel)

    def _give_back(self, channel: Channel) -> None:
        if channel.closed is None and channel is self.channel:
            self.process.call_soon(self.drop)

    async def begin(self, channel: Channel) -> None:
        channel.on_deliver = self._delivered
        channel.on_cancel = lambda _tag: self.drop(is_orderly=True)
        await channel.qos(self._prefetch)
        if self.queue is not None:
            await channel.consume(self._queue_name(self.queue), "tag")

    def _delivered(self, delivered: Delivered) -> None:
        message = record_delivery(self.log, self.world.run_tag, self.queue, delivered, self.channel_id)
        if message is None:
            return
        times = self._seen[message] = self._seen.get(message, 0) + 1
        habit = self.world.dice(self.name, message, times)
        if habit < self._hold_percent and times == 1:
            return
        delay_s = 0.0 if habit % 3 else 0.01 * (habit % 7)
        is_requeued = habit >= 100 - self._requeue_percent and times < 4
        self.process.call_later(delay_s, self._settle, self.channel_id, delivered, message, is_requeued)

    def _settle(self, channel_id: int, delivered: Delivered, message: MessageId, is_requeued: bool) -> None:
        channel = self.channel
        if channel is None or channel.closed is not None or channel_id != self.channel_id:
            return
        record_settlement(self.log, self.queue, delivered, message, channel_id, is_requeued=is_requeued)
        if is_requeued:
            channel.nack(delivered.delivery_tag)
        else:
            channel.ack(delivered.delivery_tag)


def record_delivery(
    log: ProcessLog, run_tag: int, queue: int | None, delivered: Delivered, channel_id: int
) -> MessageId | None:
    """`DELIVER`; which message it is, if that can be read."""
    message, crc_ok = decode_body(run_tag, delivered.body)
    log.record(
        Kind.DELIVER,
        queue_id=queue,
        pub_id=None if message is None else message.pub_id,
        seq=None if message is None else message.seq,
        attempt=None if message is None else message.attempt,
        channel_id=channel_id,
        delivery_tag=delivered.delivery_tag,
        redelivered=delivered.is_redelivered,
        body_bytes=len(delivered.body),
        crc_ok=crc_ok,
    )
    return message


def record_settlement(
    log: ProcessLog,
    queue: int | None,
    delivered: Delivered,
    message: MessageId,
    channel_id: int,
    *,
    is_requeued: bool = False,
) -> None:
    """`ACK_SENT` or `NACK_SENT`, before the bytes leave."""
    log.record(
        Kind.NACK_SENT if is_requeued else Kind.ACK_SENT,
        queue_id=queue,
        pub_id=message.pub_id,
        seq=message.seq,
        attempt=message.attempt,
        channel_id=channel_id,
        delivery_tag=delivered.delivery_tag,
        requeue=is_requeued or None,
    )


class Visitor(Client):
    """Makes single requests: declares, purges, deletes, gets; and drains the queues in the end."""

    def __init__(self, name: str, world: Surroundings, queue_name: Callable[[int], str]) -> None:
        super().__init__(name, world, ProcKind.CONSUMER)
        self._queue_name = queue_name

    async def request(self, ask: Callable[[Channel], Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Ask once, on a connection of its own. Raises what `TROUBLE` lists."""
        address = self.world.nodes[self.next_node()]
        async with asyncio.timeout(timeout_s):
            connection = await open_connection(self.world.network, self.process, self.name, address, CONNECT_TIMEOUT_S)
            try:
                channel = await connection.channel()
                channel.label = next(self.world.channel_ids)
                return await ask(channel)
            finally:
                connection.close()

    async def insist(self, ask: Callable[[Channel], Any]) -> Any:
        """Ask until it is answered."""
        while True:
            try:
                return await self.request(ask)
            except TROUBLE:
                await asyncio.sleep(RECONNECT_PAUSE_S)

    async def get_one(self, channel: Channel, queue: int) -> bool:
        """Get and ack a message, if there is one."""
        delivered = await channel.get(self._queue_name(queue))
        if delivered is None:
            return False
        message = record_delivery(self.log, self.world.run_tag, queue, delivered, channel.label)
        if message is not None:
            record_settlement(self.log, queue, delivered, message, channel.label)
        channel.ack(delivered.delivery_tag)
        return True

    async def drain(self, queue: int) -> None:
        """Get everything. The acks are known to have been received when the last answer, "empty", comes."""

        async def all_of_it(channel: Channel) -> None:
            while await self.get_one(channel, queue):
                pass

        await self.insist(all_of_it)
