"""A consumer that acknowledges by hand and writes everything down.

It keeps up to `prefetch` deliveries, acknowledges them in groups (``multiple``), and goes on at the next node when its
connection dies. `DELIVER` is recorded before anything else happens to the message, `ACK_SENT` once for each message
that an acknowledgement covers, before the acknowledgement is handed to the client library.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass

import aio_pika
import aiormq
from aiormq.abc import DeliveredMessage
from pamqp import commands

from chaos.history import Kind, ProcessLog
from chaos.workload.message_id import MessageId, decode_body
from chaos.workload.nodes import NodeRotation
from chaos.workload.publisher import CONNECT_TIMEOUT_S, CONNECTION_ERRORS, RECONNECT_PAUSE_S, closed_error, open_channel

#: Deliveries covered by one acknowledgement: small enough that unacknowledged ones stay below the prefetch count.
ACK_GROUP = 16
#: Seconds after which a smaller group is acknowledged.
ACK_IDLE_S = 0.02


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How one consumer behaves."""

    consumer_id: int
    queue: str
    queue_id: int
    run_tag: int
    prefetch: int = 200


class _Subscription:
    """One life of the consumer: a channel, its deliveries and what of them is not acknowledged yet."""

    def __init__(self, options: ConsumerOptions, channel: aiormq.Channel, channel_id: int, log: ProcessLog) -> None:
        self._options = options
        self._channel = channel
        self._channel_id = channel_id
        self._log = log
        self._unacked: dict[int, MessageId | None] = {}
        self.is_cancelled = asyncio.Event()
        self.delivery_count = 0

    async def on_deliver(self, delivered: DeliveredMessage) -> None:
        delivery = delivered.delivery
        assert isinstance(delivery, commands.Basic.Deliver), "a subscription gets deliveries only"
        body = delivered.body
        message, crc_ok = decode_body(self._options.run_tag, body)
        tag = int(delivery.delivery_tag or 0)
        self._log.record(
            Kind.DELIVER,
            queue_id=self._options.queue_id,
            pub_id=message.pub_id if message else None,
            seq=message.seq if message else None,
            attempt=message.attempt if message else None,
            channel_id=self._channel_id,
            consumer_id=self._options.consumer_id,
            delivery_tag=tag,
            redelivered=bool(delivery.redelivered),
            body_bytes=len(body),
            crc_ok=crc_ok,
        )
        self.delivery_count += 1
        self._unacked[tag] = message
        if len(self._unacked) >= ACK_GROUP:
            await self.acknowledge()

    async def on_cancel(self, frame: commands.Basic.Cancel) -> None:
        self._log.record(
            Kind.CANCELLED, channel_id=self._channel_id, consumer_id=self._options.consumer_id, err=frame.consumer_tag
        )
        self.is_cancelled.set()

    async def acknowledge(self) -> None:
        """Acknowledge everything delivered so far with one frame."""
        if not self._unacked or self._channel.is_closed:
            return
        covered, self._unacked = self._unacked, {}
        for tag, message in covered.items():
            self._log.record(
                Kind.ACK_SENT,
                queue_id=self._options.queue_id,
                pub_id=message.pub_id if message else None,
                seq=message.seq if message else None,
                attempt=message.attempt if message else None,
                channel_id=self._channel_id,
                consumer_id=self._options.consumer_id,
                delivery_tag=tag,
                multiple=len(covered) > 1,
            )
        # The dictionary keeps arrival order, and tags of a channel only grow: the last one is the highest.
        with suppress(*CONNECTION_ERRORS):
            await self._channel.basic_ack(next(reversed(covered)), multiple=len(covered) > 1, wait=False)

    @property
    def unacked_count(self) -> int:
        return len(self._unacked)


class Consumer:
    """Consumes one queue until `stop`."""

    def __init__(
        self, options: ConsumerOptions, nodes: NodeRotation, log: ProcessLog, channel_ids: itertools.count[int]
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._log = log
        self._channel_ids = channel_ids
        self._is_stopping = asyncio.Event()
        self._subscription: _Subscription | None = None
        self._deliveries_before = 0

    @property
    def delivery_count(self) -> int:
        """Deliveries so far, redeliveries included."""
        return self._deliveries_before + (self._subscription.delivery_count if self._subscription else 0)

    def stop(self) -> None:
        """Acknowledge what was delivered and end `run`."""
        self._is_stopping.set()

    async def run(self) -> None:
        """Connect, consume, and on any loss go on at the next node."""
        try:
            while not self._is_stopping.is_set():
                try:
                    await self._consume_on_one_connection()
                except CONNECTION_ERRORS as error:
                    self._log.record(
                        Kind.CONN_LOST,
                        consumer_id=self._options.consumer_id,
                        node_id=self._nodes.node_id,
                        err=repr(error),
                    )
                    self._nodes.next()
                    await asyncio.sleep(RECONNECT_PAUSE_S)
        finally:
            self._log.end()

    async def _consume_on_one_connection(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await aio_pika.connect(self._nodes.url, timeout=CONNECT_TIMEOUT_S)
        channel_id = next(self._channel_ids)
        consumer_id = self._options.consumer_id
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                channel = await open_channel(connection, publisher_confirms=False)
                subscription = _Subscription(self._options, channel, channel_id, self._log)
                self._subscription = subscription
                channel.on_consumer_cancel_callbacks.add(subscription.on_cancel)
                await channel.basic_qos(prefetch_count=self._options.prefetch)
                self._log.record(
                    Kind.CONN_OPEN, consumer_id=consumer_id, node_id=self._nodes.node_id, channel_id=channel_id
                )
                consume_ok = await channel.basic_consume(self._options.queue, subscription.on_deliver)
            await self._follow(channel, subscription)
            await channel.basic_cancel(str(consume_ok.consumer_tag), timeout=CONNECT_TIMEOUT_S)
            await self._settle(subscription)
        finally:
            with suppress(*CONNECTION_ERRORS):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connection.close()
            self._deliveries_before = self.delivery_count
            self._subscription = None
            # Recorded when no delivery can follow on this channel: from here on its messages may go to others.
            self._log.record(Kind.CH_CLOSE, consumer_id=consumer_id, channel_id=channel_id)

    async def _follow(self, channel: aiormq.Channel, subscription: _Subscription) -> None:
        """Acknowledge small groups in time until told to stop, cancelled by the broker, or cut off (raises)."""
        while not self._is_stopping.is_set():
            if channel.is_closed:
                raise closed_error(channel)
            if subscription.is_cancelled.is_set():
                raise aiormq.exceptions.ChannelInvalidStateError("the broker cancelled the consumer")
            await asyncio.sleep(ACK_IDLE_S)
            await subscription.acknowledge()

    async def _settle(self, subscription: _Subscription) -> None:
        """Deliveries that were already on their way when we cancelled still arrive; acknowledge them too."""
        count = -1
        while subscription.delivery_count != count or subscription.unacked_count:
            count = subscription.delivery_count
            await subscription.acknowledge()
            await asyncio.sleep(ACK_IDLE_S)
