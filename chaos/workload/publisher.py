"""A publisher that never forgets what it does not know.

Each message has a number ``seq``. Publishing it is an *attempt*; an attempt ends as confirmed, refused (nack, return)
or unknown (the connection went before the answer). Every message whose last attempt is not a confirm is published
again as the next attempt, before new messages, in order of ``seq``: so in the end each message is confirmed at least
once, and copies made by a retry can be told from copies made by the broker.

Up to `window` attempts are outstanding at once; nothing waits for a single confirm.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextlib import suppress
from dataclasses import dataclass

import aio_pika
import aiormq
from pamqp import commands
from pamqp.base import Frame

from chaos.history import Kind, ProcessLog
from chaos.workload.message_id import MessageId, encode_body
from chaos.workload.nodes import NodeRotation
from chaos.workload.tasks import cancel_all

#: Seconds before another node is tried after a failure: a cluster that elects is not helped by a busy loop.
RECONNECT_PAUSE_S = 0.1
#: Seconds for one connection attempt, TCP and AMQP handshake together.
CONNECT_TIMEOUT_S = 5.0
#: Publishes per turn of the pacing loop at most, so that confirms are read in between.
MAX_BURST = 64
#: Pacing granularity in seconds.
PACE_S = 0.01
PERSISTENT = 2

#: Errors that mean: this connection or channel is of no use any more.
CONNECTION_ERRORS = (
    aiormq.exceptions.AMQPError,
    ConnectionError,
    OSError,
    TimeoutError,
    aiormq.exceptions.ChannelInvalidStateError,
)


def closed_error(channel: aiormq.Channel) -> Exception:
    """Why a channel is closed, as one of `CONNECTION_ERRORS`."""
    reason = None if channel.closing.cancelled() else channel.closing.exception()
    if isinstance(reason, CONNECTION_ERRORS):
        return reason
    return aiormq.exceptions.ChannelInvalidStateError(f"the channel was closed: {reason!r}")


async def open_channel(connection: aio_pika.abc.AbstractConnection, *, publisher_confirms: bool) -> aiormq.Channel:
    """A channel of the client library, at the level where publishing need not wait."""
    try:
        opened = await connection.channel(publisher_confirms=publisher_confirms)
    except RuntimeError as error:
        # The client library's way to say that the connection went while we were asking.
        raise aiormq.exceptions.ChannelInvalidStateError(str(error)) from error
    channel = await opened.get_underlay_channel()
    assert isinstance(channel, aiormq.Channel), "the pinned client library hands out its own channels"
    return channel


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How one publisher behaves."""

    pub_id: int
    queue: str
    queue_id: int
    #: Tag of the run in every body.
    run_tag: int
    #: Messages a second at most.
    rate: float
    #: Outstanding attempts at most.
    window: int = 500
    #: Body size.
    body_bytes: int = 256


class Publisher:
    """Publishes message numbers 1, 2, 3... as far as `allow` lets it, until `stop`."""

    def __init__(
        self, options: PublisherOptions, nodes: NodeRotation, log: ProcessLog, channel_ids: itertools.count[int]
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._log = log
        self._channel_ids = channel_ids
        #: Highest message number that may be published; None: no limit.
        self._limit: int | None = 0
        self._last_seq = 0
        #: Messages to publish again: (seq, next attempt), a heap.
        self._retries: list[tuple[int, int]] = []
        #: Attempts without an answer.
        self._outstanding: dict[asyncio.Task[Frame | None], MessageId] = {}
        self._is_stopping = False
        self._wake = asyncio.Event()
        self.confirmed_count = 0

    @property
    def pub_id(self) -> int:
        return self._options.pub_id

    def allow(self, count: int | None) -> None:
        """Let it publish ``count`` more messages; None: no limit. 0 holds it after those already begun."""
        self._limit = None if count is None else (self._last_seq if self._limit is None else self._limit) + count
        self._wake.set()

    def hold(self) -> None:
        """Begin no new message; those begun are still brought to a confirm."""
        self._limit = self._last_seq
        self._wake.set()

    @property
    def is_settled(self) -> bool:
        """Whether every message allowed so far is confirmed. Never true without a limit."""
        return self._limit == self._last_seq == self.confirmed_count

    def stop(self) -> None:
        """End `run` as soon as no answer is outstanding on a live connection."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Connect, publish, and on any loss go on at the next node."""
        try:
            while not self._is_stopping:
                try:
                    await self._publish_on_one_connection()
                except CONNECTION_ERRORS as error:
                    self._log.record(Kind.CONN_LOST, pub_id=self.pub_id, node_id=self._nodes.node_id, err=repr(error))
                    self._nodes.next()
                    await asyncio.sleep(RECONNECT_PAUSE_S)
        finally:
            await self._give_up_outstanding()
            self._log.end()

    async def _publish_on_one_connection(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await aio_pika.connect(self._nodes.url, timeout=CONNECT_TIMEOUT_S)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                channel = await open_channel(connection, publisher_confirms=True)
            channel_id = next(self._channel_ids)
            self._log.record(Kind.CONN_OPEN, pub_id=self.pub_id, node_id=self._nodes.node_id, channel_id=channel_id)
            await self._publish_on_channel(channel, channel_id)
            self._log.record(Kind.CONN_CLOSE, pub_id=self.pub_id, channel_id=channel_id)
        finally:
            await self._give_up_outstanding()
            with suppress(*CONNECTION_ERRORS):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connection.close()

    async def _publish_on_channel(self, channel: aiormq.Channel, channel_id: int) -> None:
        loop = asyncio.get_running_loop()
        budget, last_time = 0.0, loop.time()
        delivery_tag = 0
        while not (self._is_stopping and not self._outstanding):
            if channel.is_closed:
                raise closed_error(channel)
            now = loop.time()
            # Unused time is forgotten after a burst's worth: a pause is not followed by a flood.
            budget = min(budget + (now - last_time) * self._options.rate, MAX_BURST)
            last_time = now
            while budget >= 1 and len(self._outstanding) < self._options.window:
                message = None if self._is_stopping else self._next_message()
                if message is None:
                    break
                budget -= 1
                delivery_tag += 1
                self._begin_attempt(channel, channel_id, message, delivery_tag)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(PACE_S):
                    await self._wake.wait()

    def _next_message(self) -> MessageId | None:
        if self._retries:
            seq, attempt = heapq.heappop(self._retries)
            return MessageId(self.pub_id, seq, attempt)
        if self._limit is not None and self._last_seq >= self._limit:
            return None
        self._last_seq += 1
        return MessageId(self.pub_id, self._last_seq, attempt=1)

    def _begin_attempt(
        self,
        channel: aiormq.Channel,
        channel_id: int,
        message: MessageId,
        delivery_tag: int,
    ) -> None:
        options = self._options
        self._log.record(
            Kind.PUB_INVOKE,
            queue_id=options.queue_id,
            pub_id=message.pub_id,
            seq=message.seq,
            attempt=message.attempt,
            channel_id=channel_id,
            delivery_tag=delivery_tag,
            node_id=self._nodes.node_id,
            body_bytes=options.body_bytes,
        )
        # The client sends in the order in which its tasks were made: each takes the channel's lock in turn.
        task = asyncio.get_running_loop().create_task(
            channel.basic_publish(
                encode_body(options.run_tag, message, options.body_bytes),
                routing_key=options.queue,
                properties=commands.Basic.Properties(
                    delivery_mode=PERSISTENT,
                    content_type="application/octet-stream",
                    message_id=f"{message.pub_id}-{message.seq}-{message.attempt}",
                ),
                mandatory=True,
                wait=False,
            )
        )
        self._outstanding[task] = message
        task.add_done_callback(lambda done: self._end_attempt(done, channel_id, delivery_tag))

    def _end_attempt(self, task: asyncio.Task[Frame | None], channel_id: int, delivery_tag: int) -> None:
        message = self._outstanding.pop(task)
        kind, error = outcome_of(task)
        self._log.record(
            kind,
            queue_id=self._options.queue_id,
            pub_id=message.pub_id,
            seq=message.seq,
            attempt=message.attempt,
            channel_id=channel_id,
            delivery_tag=delivery_tag,
            node_id=self._nodes.node_id,
            err=error,
        )
        if kind is Kind.CONFIRM:
            self.confirmed_count += 1
        else:
            heapq.heappush(self._retries, (message.seq, message.attempt + 1))

    async def _give_up_outstanding(self) -> None:
        """The connection is gone: what has no answer yet will get none."""
        if self._outstanding:
            await cancel_all(list(self._outstanding))
            # Done callbacks run in the loop's next turn.
            await asyncio.sleep(0)

    def check_invariants(self) -> None:
        assert len(self._outstanding) <= self._options.window, "more attempts outstanding than the window"
        assert self.confirmed_count + len(self._outstanding) + len(self._retries) == self._last_seq, (
            "each message is confirmed, outstanding or to be retried"
        )


def outcome_of(task: asyncio.Task[Frame | None]) -> tuple[Kind, str | None]:
    """What a finished publish came to, and why when it failed."""
    if task.cancelled():
        return Kind.PUB_UNKNOWN, "no answer before the connection was given up"
    error = task.exception()
    if isinstance(error, aiormq.exceptions.PublishError):
        return Kind.RETURN, str(error)
    if isinstance(error, aiormq.exceptions.DeliveryError):
        return Kind.NACK, str(error)
    if error is not None:
        return Kind.PUB_UNKNOWN, repr(error)
    if isinstance(task.result(), commands.Basic.Ack):
        return Kind.CONFIRM, None
    return Kind.RETURN, "returned as unroutable"
