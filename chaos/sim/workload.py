"""Clients of the simulated cluster: what all have in common, and publishers that retry.

They behave and record as those of the laboratory do (`chaos.workload`), so that the same definitions judge both:
`PUB_INVOKE` before the bytes leave, `DELIVER` as the message comes, `ACK_SENT` before the acknowledgement. Each is a
process of its own on a host of its own, and stands for any number of channels, one after the other.

Nothing that a client does depends on a generator that others use, too: a schedule from which a step was taken out
behaves alike otherwise. Consumers: `chaos.sim.consumers`; transactions and queues that come and go: `chaos.sim.guests`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple
from zlib import crc32

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind, ProcessLog, ProcKind
from chaos.sim.answers import Answers
from chaos.sim.client import Channel, ClosedError, Connection, Delivered, open_connection
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.network import Address, Network
from chaos.workload.message_id import MIN_BODY_BYTES, MessageId, decode_body, encode_body

#: Until another node is tried.
RECONNECT_PAUSE_S = 0.1
CONNECT_TIMEOUT_S = 3.0
#: How long a client waits for an answer before it takes its connection for dead.
ANSWER_TIMEOUT_S = 20.0
#: So often a publisher tries again what was refused: a queue may be full for ever.
REFUSALS_MAX = 2
#: Routing key of what goes to several queues.
FAN_KEY = "to all"
TROUBLE = (ClosedError, OSError, TimeoutError)


class MemoryHistory:
    """The history of a run in memory. Satisfies `chaos.history.History`."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.events: list[Event] = []
        self.logs: list[ProcessLog] = []
        #: Who each log is of, by its number.
        self.names: dict[int, str] = {}
        #: Hears of every event; ``None``: nobody listens.
        self.on_event: Callable[[Event, str], None] | None = None

    def process(self, kind: ProcKind, name: str = "") -> ProcessLog:
        log = ProcessLog(self, len(self.logs) + 1, kind, 1)
        self.logs.append(log)
        self.names[log.proc_id] = name
        return log

    def now(self) -> tuple[int, int]:
        """(nanoseconds, microseconds) of virtual time; nothing happens before 1, so that none is false."""
        return int(self._loop.now_s * 1e9), 1 + int(self._loop.now_s * 1e6)

    def append(self, event: Event) -> None:
        self.events.append(event)
        if self.on_event is not None:
            self.on_event(event, self.names[event.proc_id])


class SessionMark(NamedTuple):
    """Which session a node has with the master of a queue, and since when."""

    process: int
    queue_id: int
    epoch: int
    session: int
    began_s: float


class Settlement(NamedTuple):
    """An acknowledgement that the master in service has taken for sure, if it is of what it has handed out in that
    session. Times in microseconds."""

    acked_us: int
    proven_us: int
    #: Of that master.
    epoch: int
    #: When the session began.
    began_us: int = 0


class Surroundings:
    """What every client needs of the world."""

    def __init__(
        self, loop: SimulatedLoop, network: Network, nodes: list[Address], seed: int, answers: Answers
    ) -> None:
        self.loop = loop
        self.network = network
        #: Where the nodes listen.
        self.nodes = nodes
        self.seed = seed
        self.history = MemoryHistory(loop)
        self.channel_ids = count(1)
        #: Attempts whose messages were not persistent.
        self.transient: set[AttemptKey] = set()
        #: Attempts that are confirmed together with others: to other queues, or of the same transaction.
        self.joint: set[AttemptKey] = set()
        #: Attempts that were settled for sure, and how often they may have been.
        self.settled: dict[AttemptKey, list[Settlement]] = {}
        #: Which session the node at a position has with the master in service of a queue; ``None``: with none.
        self.session_of: Callable[[int, int], SessionMark | None] = lambda _entry, _queue: None
        #: Hears what has just happened to some client and queue: "confirm" or "deliver".
        self.on_moment: Callable[[str, int], None] = lambda _what, _queue: None
        #: Hears of rare states that were reached, see `chaos.sim.sometimes`.
        self.note: Callable[[str], None] = lambda _name: None
        #: What the broker says that needs a reason.
        self.answers = answers
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
        self.log = world.history.process(kind, name)
        self.connection: Connection | None = None
        self.channel: Channel | None = None
        self.channel_id = 0
        self.is_stopping = False
        #: The broker has told this connection of an alarm, and not that it is over.
        self.is_blocked = False
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

    @property
    def is_asking(self) -> bool:
        """Its channel has asked for something that was not answered yet."""
        return self.channel is not None and self.channel.is_asking

    def next_node(self) -> int:
        """Position of the node to try next."""
        self._attempts += 1
        return self.world.dice(self.name, self._attempts) % len(self.world.nodes)

    def told_at(self, entry: int) -> Callable[[ClosedError, int], None]:
        """Who hears why the node at this position ends a channel of ours, or a connection."""
        node = self.world.nodes[entry][0]
        return lambda error, sent_us: self.world.answers.ended(self.name, node, error, sent_us)

    async def _live(self) -> None:
        while not self.is_stopping:
            at = self.next_node()
            address = self.world.nodes[at]
            try:
                connection = await open_connection(
                    self.world.network, self.process, self.name, address, CONNECT_TIMEOUT_S, told=self.told_at(at)
                )
                self.connection = connection
                self.is_blocked = False
                connection.on_blocked = self._blocked
                connection.on_silent = lambda: self.world.note("a client gave up a silent connection")
                self._lost = asyncio.Event()
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    channel = await connection.channel()
                    self.adopt(channel, at)
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

    def adopt(self, channel: Channel, entry: int) -> None:
        """A new channel, to the node at a position, is ours."""
        channel.on_closed = self._closed
        channel.entry = entry
        self.channel_id = channel.label = next(self.world.channel_ids)
        self.log.record(Kind.CONN_OPEN, channel_id=self.channel_id, node_id=entry)

    def lose(self) -> None:
        """The channel is of no use any more; `_live` makes another connection."""
        self.channel = None
        self._lost.set()

    def _blocked(self, is_blocked: bool) -> None:
        self.is_blocked = is_blocked
        self.world.note("a client was told of an alarm" if is_blocked else "a client was told that an alarm is over")

    def _closed(self, error: ClosedError) -> None:
        self.channel = None
        self.log.record(Kind.CONN_LOST, channel_id=self.channel_id, err=str(error))
        self.ended()
        self._lost.set()

    async def begin(self, channel: Channel) -> None:
        """A new channel: set it up. Raises what `TROUBLE` lists."""

    def ended(self) -> None:
        """The channel is gone."""


def fan_name(queues: Sequence[int]) -> str:
    """The exchange that takes a message to each of these."""
    return f"fan {' '.join(map(str, queues))}"


class Item(NamedTuple):
    """One message that is to be published, and how often it was tried."""

    queue: int
    seq: int
    attempt: int
    body_bytes: int
    is_persistent: bool
    is_mandatory: bool = False
    #: How often the broker has refused it.
    refusals: int = 0
    #: All queues that it goes to, through an exchange (`fan_name`); empty: the one, by the default exchange.
    fan: tuple[int, ...] = ()

    @property
    def queues(self) -> tuple[int, ...]:
        """Where it goes."""
        return self.fan or (self.queue,)


class Publisher(Client):
    """Publishes what it is told, and again what was not confirmed, until it is; gives up what is refused again and
    again, and what no queue takes."""

    def __init__(self, number: int, world: Surroundings, queue_name: Callable[[int], str]) -> None:
        super().__init__(f"p{number}", world, ProcKind.PUBLISHER)
        self.number = number
        self._queue_name = queue_name
        self.last_seq = 0
        #: What is to be published.
        self._due: deque[Item] = deque()
        #: By sequence number of the channel.
        self._outstanding: dict[int, Item] = {}

    def tell(
        self,
        queue: int,
        burst: int,
        body_bytes: int,
        is_persistent: bool,
        is_mandatory: bool = False,
        *,
        fan: tuple[int, ...] = (),
    ) -> None:
        for _ in range(burst):
            self.last_seq += 1
            self._due.append(Item(queue, self.last_seq, 1, body_bytes, is_persistent, is_mandatory, fan=fan))
        self.process.call_soon(self._publish)

    @property
    def is_idle(self) -> bool:
        """Everything that it was told is confirmed, or given up."""
        return not self._due and not self._outstanding

    async def begin(self, channel: Channel) -> None:
        await channel.confirm_select()
        channel.on_confirm = self._answered
        channel.on_return = self._returned
        self.channel = channel
        self._publish()

    def _publish(self) -> None:
        channel = self.channel
        while self._due and channel is not None and channel.closed is None:
            item = self._due.popleft()
            message = MessageId(self.number, item.seq, item.attempt)
            body = encode_body(self.world.run_tag, message, max(item.body_bytes, MIN_BODY_BYTES))
            self._outstanding[channel.published + 1] = item
            attempts = [(queue, self.number, item.seq, item.attempt) for queue in item.queues]
            if not item.is_persistent:
                self.world.transient.update(attempts)
            if len(attempts) > 1:
                self.world.joint.update(attempts)
            if item.attempt > 1:
                self.world.note("a message was published again")
            self._record(Kind.PUB_INVOKE, item)
            channel.publish(
                FAN_KEY if item.fan else self._queue_name(item.queue),
                body,
                exchange=fan_name(item.fan) if item.fan else "",
                is_persistent=item.is_persistent,
                mandatory=item.is_mandatory,
            )

    def _returned(self, returned: Delivered) -> None:
        """No queue took it; its confirm follows."""
        message, _ = decode_body(self.world.run_tag, returned.body)
        items = [] if message is None else [item for item in self._outstanding.values() if item.seq == message.seq]
        if not items:
            self.log.record(Kind.CONFIRM_STRAY, channel_id=self.channel_id)
        for item in items:
            self._record(Kind.RETURN, item)
        self.world.note("a message was returned")

    def _answered(self, sequence: int, multiple: bool, is_ack: bool) -> None:
        assert self.channel is not None, "it has answered"
        sent_us = self.channel.heard_us
        first = min(self._outstanding, default=sequence) if multiple else sequence
        answered = [number for number in range(first, sequence + 1) if number in self._outstanding]
        if not answered:
            self.log.record(Kind.CONFIRM_STRAY, channel_id=self.channel_id, delivery_tag=sequence)
        for number in answered:
            item = self._outstanding.pop(number)
            self._record(Kind.CONFIRM if is_ack else Kind.NACK, item, sent_us)
            for queue in item.queues:
                self.world.on_moment("confirm", queue)
            if not is_ack:
                self.world.note("a publish was refused")
                if item.refusals < REFUSALS_MAX:
                    self._again(item._replace(refusals=item.refusals + 1))

    def ended(self) -> None:
        for item in self._outstanding.values():
            self._record(Kind.PUB_UNKNOWN, item)
        unknown, self._outstanding = list(self._outstanding.values()), {}
        for item in reversed(unknown):
            self._again(item, is_first=True)

    def _again(self, item: Item, *, is_first: bool = False) -> None:
        again = item._replace(attempt=item.attempt + 1)
        if is_first:
            self._due.appendleft(again)
        else:
            self._due.append(again)
            self.process.call_later(RECONNECT_PAUSE_S, self._publish)

    def _record(self, kind: Kind, item: Item, sent_us: int | None = None) -> None:
        for queue in item.queues:
            self.log.record(
                kind,
                t_lo_us=sent_us,
                queue_id=queue,
                pub_id=self.number,
                seq=item.seq,
                attempt=item.attempt,
                channel_id=self.channel_id,
                body_bytes=item.body_bytes,
            )
