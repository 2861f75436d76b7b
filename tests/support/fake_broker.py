"""A broker in memory behind `node.amqp.ports`: enough of RabbitMQ to test a server against, and every call recorded.

Routing: the default exchange, and any declared exchange as direct (fanout if it says so). Queues keep their order,
know consumers, prefetch, the delivery window and exclusive owners. Confirms are immediate unless ``hold_confirms``;
cold calls run through unless ``hold_calls`` (an event to wait for) is set.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any

from node.amqp.ports import (
    ChannelSink,
    ConnectionControl,
    ConnectionInfo,
    DeliverySource,
    Got,
    PublishRequest,
    QueueDeclared,
    Work,
)
from node.errors import ChannelError, ConnectionFailure
from node.flow.stage import SlowPath
from node.ids import QueueName, SeqId
from node.queues.backing_queue import Delivery
from node.queues.events import DELIVERY_WINDOW_MESSAGES, ConsumerSpec


class FakeConsumer:
    def __init__(self, channel: FakeChannel, spec: ConsumerSpec) -> None:
        self.channel = channel
        self.spec = spec
        self.window = DELIVERY_WINDOW_MESSAGES
        self.unacked: set[SeqId] = set()

    def room(self) -> int:
        if self.spec.no_ack or not self.spec.prefetch_count:
            return self.window
        return min(self.window, self.spec.prefetch_count - len(self.unacked))


class FakeQueue:
    def __init__(self, name: QueueName, owner: FakeConnection | None) -> None:
        self.source = DeliverySource(name, 1)
        self.owner = owner
        self.ready: list[Delivery] = []
        self.unacked: dict[SeqId, tuple[Delivery, FakeChannel, FakeConsumer | None]] = {}
        self.consumers: list[FakeConsumer] = []
        self.next_seq_id = 1

    def dispatch(self) -> None:
        """Round-robin in batches, one consumer after the other."""
        progress = True
        while self.ready and progress:
            progress = False
            for consumer in list(self.consumers):
                batch, self.ready = self.ready[: consumer.room()], self.ready[max(0, consumer.room()) :]
                if not batch or consumer.room() <= 0:
                    self.ready = batch + self.ready
                    continue
                progress = True
                consumer.window -= len(batch)
                if not consumer.spec.no_ack:
                    for delivery in batch:
                        self.unacked[delivery.seq_id] = (delivery, consumer.channel, consumer)
                        consumer.unacked.add(delivery.seq_id)
                consumer.channel.sink.deliver(consumer.spec.consumer_tag, self.source, batch)

    def settle(self, seq_ids: Sequence[SeqId], requeue: bool) -> None:
        for seq_id in seq_ids:
            known = self.unacked.pop(seq_id, None)
            if known is None:
                continue
            delivery, _, consumer = known
            if consumer is not None:
                consumer.unacked.discard(seq_id)
            if requeue:
                insort(self.ready, delivery._replace(redelivered=True), key=lambda entry: entry.seq_id)
        self.dispatch()


class FakeBroker:
    """Implements `node.amqp.ports.BrokerPort`. Users: guest/guest; vhost: /."""

    def __init__(self) -> None:
        self.exchanges: dict[str, str] = {"": "direct", "amq.direct": "direct", "amq.fanout": "fanout"}
        self.bindings: set[tuple[str, str, str]] = set()
        self.queues: dict[str, FakeQueue] = {}
        self.connections: list[FakeConnection] = []
        self.controls: list[ConnectionControl] = []
        #: Every call of a channel: (name, arguments).
        self.calls: list[tuple[str, Any]] = []
        self.hold_confirms = False
        self.refuse_publishes = False
        self.hold_calls: asyncio.Event | None = None
        self.generated = 0

    def authenticate(self, mechanism: str, response: bytes, peer_host: str) -> str:
        if mechanism == "PLAIN" and response == b"\x00guest\x00guest":
            return "guest"
        raise ConnectionFailure(403, "login refused")

    def open_connection(self, info: ConnectionInfo, control: ConnectionControl) -> FakeConnection:
        if info.vhost != "/":
            raise ConnectionFailure(530, f"vhost {info.vhost} not found")
        connection = FakeConnection(self)
        self.connections.append(connection)
        self.controls.append(control)
        return connection

    def server_properties(self) -> Mapping[str, Any]:
        return {"product": "Warren", "version": "0"}


class FakeConnection:
    """Implements `node.amqp.ports.BrokerConnection`."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.channels: list[FakeChannel] = []
        self.is_closed = False
        #: What its credit says; its channels say the same.
        self.flow_state = "running"
        self.state = "running"
        #: What `may_publish` answers.
        self.is_welcome = True
        self.alarmed_ms: int | None = None

    def may_publish(self) -> bool:
        return self.is_welcome

    def open_channel(self, number: int, sink: ChannelSink) -> FakeChannel:
        channel = FakeChannel(self, number, sink)
        self.channels.append(channel)
        return channel

    def slow_paths(self) -> Sequence[SlowPath]:
        return []

    async def close(self) -> None:
        self.is_closed = True
        for channel in list(self.channels):
            await channel.close()
        queues = self.broker.queues
        for name in [name for name, queue in queues.items() if queue.owner is self]:
            del queues[name]


class FakeChannel:
    """Implements `node.amqp.ports.BrokerChannel` and its `BrokerDefinitions`."""

    def __init__(self, connection: FakeConnection, number: int, sink: ChannelSink) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.number = self.channel_id = number
        self.sink = sink
        self.is_closed = False
        self.definitions = self

    # --- hot ---

    def publish(self, requests: Sequence[PublishRequest]) -> Work | None:
        self.broker.calls.append(("publish", list(requests)))
        touched: dict[str, FakeQueue] = {}
        confirmed = []
        for request in requests:
            message = request.message
            if message.exchange not in self.broker.exchanges:
                raise ChannelError(404, f"no exchange '{message.exchange}' in vhost '/'")
            targets = self._route(message.exchange, message.routing_key)
            if not targets and request.mandatory:
                self.sink.returned(request, 312, "NO_ROUTE")
            for queue in targets:
                queue.ready.append(Delivery(SeqId(queue.next_seq_id), message, False))
                queue.next_seq_id += 1
                touched[queue.source.queue.name] = queue
            if request.publish_seq:
                confirmed.append(request.publish_seq)
        if confirmed and self.broker.refuse_publishes:
            self.sink.reject(confirmed)
        elif confirmed and not self.broker.hold_confirms:
            self.sink.confirm(confirmed)
        for queue in touched.values():
            queue.dispatch()
        return None

    def check_publishes(self, requests: Sequence[PublishRequest]) -> None:
        for request in requests:
            if request.message.exchange not in self.broker.exchanges:
                raise ChannelError(404, f"no exchange '{request.message.exchange}' in vhost '/'")

    def _route(self, exchange: str, routing_key: str) -> list[FakeQueue]:
        if exchange == "":
            names = {routing_key}
        else:
            is_fanout = self.broker.exchanges[exchange] == "fanout"
            names = {
                queue
                for source, queue, key in self.broker.bindings
                if source == exchange and (is_fanout or key == routing_key)
            }
        return [self.broker.queues[name] for name in sorted(names) if name in self.broker.queues]

    def ack(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        self._settle("ack", source, seq_ids, requeue=False)

    def requeue(self, source: DeliverySource, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> None:
        self._settle("requeue", source, seq_ids, requeue=True)

    def discard(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        self._settle("discard", source, seq_ids, requeue=False)

    def _settle(self, name: str, source: DeliverySource, seq_ids: Sequence[SeqId], *, requeue: bool) -> None:
        self.broker.calls.append((name, list(seq_ids)))
        queue = self.broker.queues.get(source.queue.name)
        if queue is not None:
            queue.settle(seq_ids, requeue)

    def written(self, source: DeliverySource, consumer_tag: str, count: int) -> None:
        self.broker.calls.append(("written", (consumer_tag, count)))
        queue = self.broker.queues.get(source.queue.name)
        if queue is None:
            return
        for consumer in queue.consumers:
            if consumer.channel is self and consumer.spec.consumer_tag == consumer_tag:
                consumer.window += count
        queue.dispatch()

    # --- cold ---

    async def _cold(self, name: str, *arguments: object) -> None:
        self.broker.calls.append((name, arguments))
        if self.broker.hold_calls is not None:
            await self.broker.hold_calls.wait()

    async def declare_exchange(
        self,
        name: str,
        type: str,
        *,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
    ) -> None:
        await self._cold("declare_exchange", name, type, durable, dict(arguments))
        if passive and name not in self.broker.exchanges:
            raise ChannelError(404, f"no exchange '{name}' in vhost '/'")
        if type not in ("direct", "fanout"):
            raise ConnectionFailure(503, f"unknown exchange type '{type}'")
        self.broker.exchanges[name] = type

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        await self._cold("delete_exchange", name, if_unused)
        self.broker.exchanges.pop(name, None)

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> None:
        await self._cold("bind_exchange", destination, source, routing_key)

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> None:
        await self._cold("unbind_exchange", destination, source, routing_key)

    async def declare_queue(
        self,
        name: str,
        *,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
    ) -> QueueDeclared:
        await self._cold("declare_queue", name, durable, dict(arguments))
        if not name:
            self.broker.generated += 1
            name = f"amq.gen-{self.broker.generated}"
        queue = self.broker.queues.get(name)
        if queue is None:
            if passive:
                raise ChannelError(404, f"no queue '{name}' in vhost '/'")
            owner = self.connection if exclusive else None
            queue = self.broker.queues[name] = FakeQueue(QueueName("/", name), owner)
        return QueueDeclared(name, len(queue.ready), len(queue.consumers))

    async def bind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
        await self._cold("bind_queue", queue, exchange, routing_key)
        self._find(queue)
        self.broker.bindings.add((exchange, queue, routing_key))

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
        await self._cold("unbind_queue", queue, exchange, routing_key)
        self.broker.bindings.discard((exchange, queue, routing_key))

    async def purge_queue(self, queue: str) -> int:
        await self._cold("purge_queue", queue)
        found = self._find(queue)
        count, found.ready = len(found.ready), []
        return count

    async def delete_queue(self, queue: str, *, if_unused: bool, if_empty: bool) -> int:
        await self._cold("delete_queue", queue, if_unused, if_empty)
        found = self.broker.queues.pop(queue, None)
        if found is None:
            return 0
        for consumer in found.consumers:
            consumer.channel.sink.consumer_cancelled(consumer.spec.consumer_tag)
        return len(found.ready)

    async def consume(self, queue: str, spec: ConsumerSpec) -> None:
        await self._cold("consume", queue, spec)
        found = self._find(queue)
        if any(consumer.spec.exclusive for consumer in found.consumers) or (spec.exclusive and found.consumers):
            raise ChannelError(403, f"queue '{queue}' in vhost '/' in exclusive use")
        found.consumers.append(FakeConsumer(self, spec))
        asyncio.get_running_loop().call_soon(found.dispatch)

    async def cancel(self, consumer_tag: str) -> None:
        await self._cold("cancel", consumer_tag)
        for queue in self.broker.queues.values():
            queue.consumers = [
                consumer
                for consumer in queue.consumers
                if (consumer.channel, consumer.spec.consumer_tag) != (self, consumer_tag)
            ]

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        await self._cold("get", queue, no_ack)
        found = self._find(queue)
        if not found.ready:
            return None
        delivery = found.ready.pop(0)
        if not no_ack:
            found.unacked[delivery.seq_id] = (delivery, self, None)
        return Got(found.source, delivery, len(found.ready))

    @property
    def flow_state(self) -> str:
        return self.connection.flow_state

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.broker.calls.append(("close", self.number))
        self.connection.channels.remove(self)
        for queue in self.broker.queues.values():
            queue.consumers = [consumer for consumer in queue.consumers if consumer.channel is not self]
            queue.settle([seq for seq, (_, channel, _) in queue.unacked.items() if channel is self], requeue=True)

    def _find(self, name: str) -> FakeQueue:
        queue = self.broker.queues.get(name)
        if queue is None:
            raise ChannelError(404, f"no queue '{name}' in vhost '/'")
        if queue.owner is not None and queue.owner is not self.connection:
            raise ChannelError(405, f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'")
        return queue
