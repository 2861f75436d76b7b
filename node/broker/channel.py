"""One channel, on the broker's side: publishes into queues, deliveries out of them, consumers.

Publish. Each message gets its `MsgId` (the channel's origin and a counter), is routed (`node.routing.router`), and is
put with the others of the batch for the same queue; each queue gets the batch in one call. A message that goes nowhere
is returned if it is mandatory and then confirmed. Every publish is tracked until its queues confirm it, also on a
channel without confirms (there under an internal number), so that its bytes count as long as somebody must hold them.

Credit (`node.flow.credit`). The gateway keeps the channel's credit towards each queue. While it has none left for one
of them, the channel withholds what it owes its connection, so a publisher that never asks for confirms is slowed to
the pace of the slowest queue that it publishes to.

Deliveries name their source as ``(queue, session)``. The session number that the server sees holds the identity of the
queue's life and the gateway's session, so that settling finds its way without a table, also after the queue is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from node.amqp.ports import BrokerChannel, ChannelSink, ConnectionInfo, DeliverySource, Got, PublishRequest, Work
from node.broker.channel_consumers import ChannelConsumer, ChannelConsumers
from node.broker.definitions import Definitions
from node.broker.nobody import NOBODY
from node.broker.parts import BrokerParts
from node.errors import ChannelError
from node.flow.credit import Hop, Tally
from node.flow.stage import CONNECTION_MEMORY_MS, STAGE_MEMORY_MS, HopView, SlowPath, Stage
from node.ids import ORIGIN_BYTES, MsgId, OriginId, QueueId, QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from node.queues.confirm_tracker import ConfirmTracker, Resolved
from node.queues.events import INTERNAL_SEQ_BASE, ConsumerSpec
from node.routing.properties import (
    DELIVERY_MODE_BIT_HIGH,
    EXPIRATION_BIT_HIGH,
    USER_ID_BIT_LOW,
    delivery_mode_of,
    headers_of,
    plain_table,
    short_string_of,
    without_header,
)
from node.routing.router import EXTRA_KEYS_MARK
from node.topology.arguments import check_consumer_arguments, check_expiration, describe_exchange, describe_queue
from node.topology.names import missing_exchange
from node.topology.records import QueueRecord

_DELIVERY_MODES = (1, 2)
#: Width of the gateway's session number inside `DeliverySource.session`: that of the field in which nodes name it.
_SESSION_BITS = 64
_SESSION_MASK = (1 << _SESSION_BITS) - 1
_COUNTER = struct.Struct(">Q")
#: Copies of messages, one per queue, that a batch may come to and be enqueued at once; more are enqueued in steps of so
#: many. One takes a microsecond or two, ten if its queue gets no other.
COPIES_AT_ONCE = 512
#: Bindings, words and further routing keys that may be looked at to find the queues of a batch (`Router.looked_at`);
#: then the rest of it has further steps. One takes two microseconds or three, at most.
LOOKED_AT_ONCE = 512


class _Batch:
    """What a batch of publishes comes to."""

    __slots__ = ("by_queue", "copies", "done", "fanouts", "refusal", "requests", "sizes")

    def __init__(self) -> None:
        #: How many publishes these are.
        self.requests = 0
        #: Why the last of them is not among them.
        self.refusal: Exception | None = None
        #: Messages times queues, of those that go to several queues.
        self.copies = 0
        self.by_queue: dict[QueueId, tuple[list[Message], list[int]]] = {}
        #: Publish sequence number -> size, of all that go to a queue.
        self.sizes: dict[int, int] = {}
        #: Those that go to several queues, with how many.
        self.fanouts: list[tuple[int, int]] = []
        #: Publish sequence numbers that no queue will answer for.
        self.done: list[int] = []

    def lists_of(self, queue_id: QueueId) -> tuple[list[Message], list[int]]:
        lists = self.by_queue.get(queue_id)
        if lists is None:
            lists = self.by_queue[queue_id] = ([], [])
        return lists


class ChannelOwner(Protocol):
    """The connection, as far as its channels know it."""

    @property
    def parts(self) -> BrokerParts: ...

    @property
    def info(self) -> ConnectionInfo: ...

    @property
    def definitions(self) -> Definitions: ...

    def publishes_begun(self, messages: int, size_bytes: int) -> None:
        """Publishes are on their way to queues."""

    def publishes_ended(self, messages: int, size_bytes: int) -> None:
        """Queues answered for publishes."""

    def hop_changed(self, hop: Hop) -> None:
        """The hop from the connection to a channel was blocked or freed."""

    def channel_closed(self, channel: Channel, unconfirmed_messages: int, unconfirmed_bytes: int) -> None:
        """A channel shut with so many publishes under way: nobody waits for them any more."""


class Channel:
    """Implements `BrokerChannel` towards the server and `QueueChannelSink` towards the queues."""

    def __init__(self, owner: ChannelOwner, number: int, sink: ChannelSink) -> None:
        parts = owner.parts
        self.number = number
        self.definitions = owner.definitions
        self._owner = owner
        self._vhost = owner.info.vhost
        self._user = owner.info.user
        self._sink = sink
        self._gateway = parts.gateway
        self._router = parts.router
        self._authenticator = parts.authenticator
        self._topology = parts.catalogue.topology
        self._origin = OriginId(parts.random_bytes(ORIGIN_BYTES))
        self._published = 0
        self._unnumbered = INTERNAL_SEQ_BASE
        self._tracker = ConfirmTracker()
        self._consumers = ChannelConsumers()
        self._is_closed = False
        #: The hop from the connection to this channel, both halves of it; then the channel's own, towards queues.
        self.hop = Hop(f"channel {number}", parts.flow.in_process)
        self._tally = Tally(self.hop.credit.more_after)
        self.flow = Stage(parts.flow)
        self.key = self._gateway.open_channel(self)

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their queues."""
        return len(self._tracker)

    # --- publishing ---

    def publish(self, requests: Sequence[PublishRequest]) -> Work | None:
        """Route and enqueue a batch, in order. If one is refused, those before it are enqueued all the same."""
        if self._is_closed or not requests:
            return None
        batch = self._route_batch(requests)
        if batch.copies > COPIES_AT_ONCE or batch.requests < len(requests):
            return _Fanout(self, batch, requests)
        for queue_id, (messages, seqs) in batch.by_queue.items():
            self._gateway.publish(self.key, queue_id, messages, seqs)
        self._end_batch(batch)
        return None

    def _route_batch(self, requests: Sequence[PublishRequest]) -> _Batch:
        """The first of these, or all: queues will answer for them."""
        batch = _Batch()
        batch.requests = len(requests)
        try:
            batch.requests = self._sort(requests, batch)
        except Exception as error:
            batch.refusal = error
        if batch.sizes:
            self._tracker.expect(batch.sizes)
            for seq, queues in batch.fanouts:
                self._tracker.expect_fanout(seq, queues)
            self._owner.publishes_begun(len(batch.sizes), sum(batch.sizes.values()))
        return batch

    def _end_batch(self, batch: _Batch) -> None:
        """Its queues have it. Raises why it ended where it did, if a publish was refused."""
        if batch.done:
            self._sink.confirm(batch.done)
        self._processed(batch.requests)
        if batch.refusal is not None:
            raise batch.refusal

    def check_publishes(self, requests: Sequence[PublishRequest]) -> None:
        """Raises what `publish` would now."""
        exchange: str | None = None
        for message, _, _ in requests:
            if message.exchange != exchange:
                exchange = message.exchange
                self._check_publish(exchange)
            if message.properties[0] & DELIVERY_MODE_BIT_HIGH:
                _check_delivery_mode(message.properties)
            self._check_properties(message)

    def _processed(self, messages: int) -> None:
        """A batch of the connection is with the queues: sent and granted in one, unless a queue has us wait."""
        self._tally.pending += messages
        granted = 0 if self.flow.is_blocked else self._tally.take()
        if self.hop.change(granted - messages):
            self._owner.hop_changed(self.hop)

    def queue_hop_changed(self, hop: Hop) -> None:
        is_changed = self.flow.note(hop)
        if is_changed and not self.flow.is_blocked and not self._is_closed and self.hop.change(self._tally.take()):
            self._owner.hop_changed(self.hop)

    @property
    def channel_id(self) -> int:
        """See `BrokerChannel.channel_id`."""
        return self.key.channel_id

    @property
    def flow_state(self) -> str:
        """``flow`` if a queue has it wait, or had of late; else ``running``."""
        return self.flow.state(STAGE_MEMORY_MS)

    def slow_paths(self, view: HopView) -> list[SlowPath]:
        """How it goes on from the connection's hop ``view`` to this channel."""
        paths: list[SlowPath] = []
        for hop in self.flow.slow_hops(CONNECTION_MEMORY_MS):
            queue_id = None if isinstance(hop.receiver, str) else hop.receiver
            paths.append(SlowPath(self.number, (view, self.flow.view(hop, CONNECTION_MEMORY_MS)), queue_id))
        return paths or [SlowPath(self.number, (view,), None)]

    def busiest_queue(self) -> QueueId | None:
        """The queue with the most unconfirmed publishes of this channel."""
        return self._gateway.busiest_queue(self.key)

    def _sort(self, requests: Sequence[PublishRequest], batch: _Batch) -> int:
        """Fill ``batch``. The loop that every message goes through. Returns for how many: it stops when they go to very
        many queues, or when very many bindings or keys were looked at to find them."""
        known_route = self._router.cached(self._vhost).get
        origin = self._origin
        pack = _COUNTER.pack
        sizes = batch.sizes
        first = counter = self._published
        last_exchange: str | None = None
        last_route: object = None
        messages: list[Message] = []
        seqs: list[int] = []
        looked_at_most = self._router.looked_at + LOOKED_AT_ONCE
        is_long = False
        try:
            for message, mandatory, seq in requests:
                exchange = message.exchange
                if exchange != last_exchange:
                    self._check_publish(exchange)
                    last_exchange = exchange
                properties = message.properties
                if properties[0] & DELIVERY_MODE_BIT_HIGH and not message.persistent:
                    _check_delivery_mode(properties)
                route = known_route((exchange, message.routing_key))
                if (
                    route is None
                    or EXTRA_KEYS_MARK in properties
                    or properties[0] & EXPIRATION_BIT_HIGH
                    or properties[1] & USER_ID_BIT_LOW
                ):
                    route = self._route_with_care(message)
                    is_long = self._router.looked_at > looked_at_most
                counter += 1
                message.msg_id = MsgId(origin + pack(counter))
                if len(route) == 1:
                    if route is not last_route:
                        last_route = route
                        messages, seqs = batch.lists_of(route[0].queue_id)
                    if not seq:
                        self._unnumbered = seq = self._unnumbered + 1
                    messages.append(message)
                    seqs.append(seq)
                    sizes[seq] = len(message.body) + len(properties)
                elif route:
                    self._sort_fanout(message, seq, route, batch)
                    if batch.copies > COPIES_AT_ONCE:
                        break
                else:
                    if mandatory:
                        self._sink.returned(PublishRequest(message, mandatory, seq), 312, "NO_ROUTE")
                    if seq:
                        batch.done.append(seq)
                if is_long:
                    break
        finally:
            self._published = counter
        return counter - first

    def _sort_fanout(self, message: Message, seq: int, route: Sequence[QueueRecord], batch: _Batch) -> None:
        if not seq:
            self._unnumbered = seq = self._unnumbered + 1
        for queue in route:
            messages, seqs = batch.lists_of(queue.queue_id)
            messages.append(message)
            seqs.append(seq)
        batch.sizes[seq] = len(message.body) + len(message.properties)
        batch.fanouts.append((seq, len(route)))
        batch.copies += len(route)

    def _check_publish(self, exchange: str) -> None:
        self.definitions.require("write", "exchange", exchange)  # first: who may not publish learns of no names
        record = self._topology.exchange(self._vhost, exchange)
        if record is None:
            raise missing_exchange(self._vhost, exchange)
        if record.internal:
            raise ChannelError(403, f"cannot publish to internal {describe_exchange(self._vhost, exchange)}")

    def _route_with_care(self, message: Message) -> tuple[QueueRecord, ...]:
        """Route a message whose properties need a look, or whose route is not known yet."""
        self._check_properties(message)
        properties = message.properties
        route = self._router.route(self._vhost, message.exchange, message.routing_key, properties)
        if route and b"BCC" in properties and "BCC" in headers_of(properties):
            message.properties = without_header(properties, "BCC")
        return route

    def _check_properties(self, message: Message) -> None:
        properties = message.properties
        if properties[0] & EXPIRATION_BIT_HIGH:
            check_expiration(short_string_of(properties, "expiration") or "")
        if properties[1] & USER_ID_BIT_LOW:
            claimed = short_string_of(properties, "user_id")
            if claimed != self._user and not self._authenticator.has_tag(self._user, "impersonator"):
                raise ChannelError(
                    406, f"user_id property set to '{claimed}' but authenticated user was '{self._user}'"
                )

    # --- settling ---

    def ack(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        queue_id, session = _target(source)
        self._gateway.settle_ack(self.key, queue_id, session, seq_ids)

    def requeue(self, source: DeliverySource, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> None:
        queue_id, session = _target(source)
        self._gateway.settle_requeue(self.key, queue_id, session, seq_ids, more_follow)

    def discard(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        queue_id, session = _target(source)
        self._gateway.settle_discard(self.key, queue_id, session, seq_ids)

    def written(self, source: DeliverySource, consumer_tag: str, count: int) -> None:
        queue_id, session = _target(source)
        self._gateway.grant(self.key, queue_id, session, consumer_tag, count)

    # --- what queues tell ---

    def queue_delivered(
        self, queue_id: QueueId, session: int, consumer_tag: str, deliveries: Sequence[Delivery]
    ) -> None:
        consumer = self._consumers.find(consumer_tag)
        if consumer is None or consumer.queue_id != queue_id:
            # Cancelled while they were on their way: nobody will settle them, so the queue gets them back.
            if not self._is_closed:
                self._gateway.settle_requeue(self.key, queue_id, session, [each.seq_id for each in deliveries])
            return
        source = consumer.source
        if source.session & _SESSION_MASK != session:
            source = consumer.source = _source(source.queue, queue_id, session)
        self._sink.deliver(consumer_tag, source, deliveries)

    def queue_confirmed(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self._resolved(self._tracker.confirmed(publish_seqs))

    def queue_rejected(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self._resolved(self._tracker.rejected(publish_seqs))

    def _resolved(self, resolved: Resolved) -> None:
        confirmed, rejected, size_bytes = resolved
        if self._unnumbered != INTERNAL_SEQ_BASE:
            self._tell([each for each in confirmed if each < INTERNAL_SEQ_BASE], self._sink.confirm)
            self._tell([each for each in rejected if each < INTERNAL_SEQ_BASE], self._sink.reject)
        else:
            self._tell(confirmed, self._sink.confirm)
            self._tell(rejected, self._sink.reject)
        if (number := len(confirmed) + len(rejected)) and not self._is_closed:
            self._owner.publishes_ended(number, size_bytes)

    def _tell(self, publish_seqs: Sequence[int], tell: Any) -> None:
        if publish_seqs and not self._is_closed:
            tell(publish_seqs)

    def queue_cancelled_consumer(self, queue_id: QueueId, consumer_tag: str) -> None:
        consumer = self._consumers.find(consumer_tag)
        if consumer is not None and consumer.queue_id == queue_id:
            self._consumers.remove(consumer_tag)
            self._sink.consumer_cancelled(consumer_tag)

    def queue_session_over(self, queue_id: QueueId, session: int) -> None:
        for consumer in self._consumers.of_queue(queue_id):
            if consumer.source.session & _SESSION_MASK == session:
                self._sink.source_over(consumer.source)
                return  # it is the same for all of them

    # --- consuming ---

    async def consume(self, queue: str, spec: ConsumerSpec) -> None:
        self.definitions.require("read", "queue", queue)
        spec = with_parsed_arguments(spec, describe_queue(self._vhost, queue))
        assert spec.consumer_tag not in self._consumers, "the server refuses a consumer tag that is in use"
        while True:
            record = self.definitions.queue(queue)
            try:
                await self._consume(record, spec)
            except ChannelError:
                if self._topology.queue_by_id(record.queue_id) is not None:
                    raise
                # It was about to be deleted, and is: there may be another by now.
            else:
                return

    async def _consume(self, record: QueueRecord, spec: ConsumerSpec) -> None:
        tag = spec.consumer_tag
        source = _source(record.queue_name, record.queue_id, 0)
        self._consumers.add(tag, ChannelConsumer(record.queue_id, source, spec.no_ack))
        try:
            await self._gateway.consume(self.key, record.queue_id, spec)
        except BaseException:
            self._consumers.remove(tag)
            raise

    async def cancel(self, consumer_tag: str) -> None:
        consumer = self._consumers.find(consumer_tag)
        if consumer is None:
            return
        try:
            await self._gateway.cancel(self.key, consumer.queue_id, consumer_tag)
        finally:
            self._consumers.remove(consumer_tag)

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        self.definitions.require("read", "queue", queue)
        record = self.definitions.queue(queue)
        got = await self._gateway.get(self.key, record.queue_id, no_ack)
        if got is None:
            return None
        session, delivery, remaining = got
        return Got(_source(record.queue_name, record.queue_id, session), delivery, remaining)

    async def close(self) -> None:
        """The queues take back what this channel holds and drop its consumers. Closing twice is no error."""
        self.shut()

    def shut(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._consumers.clear()
        self._gateway.close_channel(self.key)
        if self.hop.reset():
            self._owner.hop_changed(self.hop)
        self._owner.channel_closed(self, len(self._tracker), self._tracker.size_bytes)
        self._sink = NOBODY

    def check_invariants(self) -> None:
        self._tracker.check_invariants()
        self.flow.check_invariants()
        self._consumers.check_invariants()
        assert self._is_closed or self.hop.balance + self._tally.pending == self.hop.credit.initial, (
            "credit is conserved; nothing is in flight between two calls"
        )
        assert self.flow.is_blocked or not self._tally.is_due, "grants are withheld by a blocked channel only"
        assert not self._is_closed or not self._consumers, "a closed channel has no consumers"


class _Fanout:
    """Publishes that go to very many queues, or are long to route, on their way. Implements `Work`.

    They are routed as many at a time as come to `COPIES_AT_ONCE` copies, or have `LOOKED_AT_ONCE` bindings or keys
    looked at, then queue after queue is given its share.
    """

    __slots__ = ("_batch", "_channel", "_done", "_requests", "_shares")

    def __init__(self, channel: Channel, batch: _Batch, requests: Sequence[PublishRequest]) -> None:
        """``batch`` is what the first of ``requests`` come to."""
        self._channel = channel
        self._requests = requests
        #: Of these, those that are enqueued.
        self._done = 0
        self._begin(batch)

    def _begin(self, batch: _Batch) -> None:
        self._batch = batch
        self._shares = iter(batch.by_queue.items())

    def step(self, broker: BrokerChannel) -> bool:
        """See `Work`."""
        channel = self._channel
        if channel._is_closed:
            return True
        copies = 0
        for queue_id, (messages, seqs) in self._shares:
            channel._gateway.publish(channel.key, queue_id, messages, seqs)
            copies += len(messages)
            if copies >= COPIES_AT_ONCE:
                return False
        self._done += self._batch.requests
        channel._end_batch(self._batch)
        if self._done == len(self._requests):
            return True
        self._begin(channel._route_batch(self._requests[self._done :]))
        return False


def with_parsed_arguments(spec: ConsumerSpec, what: str) -> ConsumerSpec:
    """``x-priority`` and ``x-cancel-on-ha-failover`` as fields. Raises `ChannelError` 406 for a wrong value."""
    if not spec.arguments:
        return spec
    arguments = plain_table(spec.arguments)
    check_consumer_arguments(what, arguments)
    return replace(
        spec,
        priority=arguments.get("x-priority", spec.priority),
        cancel_on_failover=arguments.get("x-cancel-on-ha-failover", spec.cancel_on_failover),
        arguments=arguments,
    )


def _check_delivery_mode(properties: bytes) -> None:
    """Raises `ChannelError` 406 for a number that means nothing: its sender may take the message for persistent."""
    mode = delivery_mode_of(properties)
    if mode not in _DELIVERY_MODES:
        raise ChannelError(406, f"invalid message: delivery mode {mode} is neither 1 (transient) nor 2 (persistent)")


def _source(queue: QueueName, queue_id: QueueId, session: int) -> DeliverySource:
    assert session <= _SESSION_MASK, "session numbers fit their field"
    return DeliverySource(queue, queue_id << _SESSION_BITS | session)


def _target(source: DeliverySource) -> tuple[QueueId, int]:
    return QueueId(source.session >> _SESSION_BITS), source.session & _SESSION_MASK
