"""The seam between the AMQP server and the broker.

The server (`node.amqp.server`) speaks the protocol: frames, channel life, delivery tags, publish sequence
numbers, which method answers which. The broker (`node.broker`) knows users, vhosts, exchanges and queues. They
meet here: the server calls `BrokerPort`, `BrokerConnection` and `BrokerChannel`; the broker calls back
`ChannelSink` and `ConnectionControl`.

Hot calls (publish, settle, and everything in `ChannelSink`) are plain functions over batches. Cold calls are
coroutines because a cluster must commit them; while one runs for a channel, the server holds back the later
frames of that channel (bounded by not reading the socket) so that order is kept.

Every call may raise `ChannelError` (the server closes the channel with that reply code) or `ConnectionFailure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from node.flow.stage import SlowPath
from node.ids import QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from node.queues.events import ConsumerSpec


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """Facts about a client connection, for listings and logs."""

    peer_host: str
    peer_port: int
    local_port: int
    user: str
    vhost: str
    client_properties: Mapping[str, Any]


class PublishRequest(NamedTuple):
    """One `basic.publish` with its content. The broker gives the message its `MsgId`."""

    message: Message
    mandatory: bool
    #: Publish sequence number on the channel; 0 when the channel is not in confirm mode.
    publish_seq: int


class DeliverySource(NamedTuple):
    """Which life of which queue a delivery came from: settling it goes back there.

    ``session`` changes when the queue is re-attached (failover): settling a delivery of an older session has
    no effect, because the queue has requeued that message.
    """

    queue: QueueName
    session: int


@dataclass(frozen=True, slots=True)
class QueueDeclared:
    """Answer to a queue declaration."""

    name: str
    ready: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Got:
    """Answer to `basic.get` with a message."""

    source: DeliverySource
    delivery: Delivery
    #: Ready messages left in the queue.
    remaining: int


class ConnectionControl(Protocol):
    """What the broker may do to a client connection."""

    def close(self, reply_code: int, text: str) -> None:
        """Close it with ``connection.close`` (for instance 320, when the node must stop serving)."""

    def pause_reading(self) -> None:
        """Stop reading the socket: too much is in flight. Nested calls count."""

    def resume_reading(self) -> None:
        """Undo one `pause_reading`."""

    def blocked(self, reason: str) -> None:
        """Send ``connection.blocked`` if the client can take it."""

    def unblocked(self) -> None:
        """Send ``connection.unblocked`` if the client can take it, and go on with what `may_publish` held up."""


class ChannelSink(Protocol):
    """What the broker tells a channel. Calls only append to the connection's output; a flush follows later."""

    def deliver(self, consumer_tag: str, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        """Messages for a consumer of this channel."""

    def confirm(self, publish_seqs: Sequence[int]) -> None:
        """These publishes are safe in every queue they were routed to (``basic.ack``, coalesced by the server)."""

    def reject(self, publish_seqs: Sequence[int]) -> None:
        """These publishes were refused (``basic.nack``)."""

    def returned(self, request: PublishRequest, reply_code: int, reply_text: str) -> None:
        """A mandatory message found no queue (``basic.return``); its confirm follows."""

    def source_over(self, source: DeliverySource) -> None:
        """Deliveries of this source can be settled no longer, and come again from another one: those that were not sent
        yet are not to be, unless nobody would acknowledge them."""

    def consumer_cancelled(self, consumer_tag: str) -> None:
        """The queue ended this consumer (``basic.cancel`` to clients that understand it)."""


class BrokerDefinitions(Protocol):
    """Exchanges, queues and bindings, as the user of one connection may see and change them. All cold."""

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
    ) -> None: ...

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None: ...

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> None: ...

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> None: ...

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
        """``name`` empty: the broker makes one (``amq.gen-...``)."""

    async def bind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None: ...

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None: ...

    async def purge_queue(self, queue: str) -> int:
        """Number of messages removed."""

    async def delete_queue(self, queue: str, *, if_unused: bool, if_empty: bool) -> int:
        """Number of ready messages deleted with it; a missing queue is 0, no error."""


class Work(Protocol):
    """Something that takes longer than a turn of the loop may, cut into steps. The channel for which it is done does
    nothing else until it is done; everybody else goes on in between."""

    def step(self, broker: BrokerChannel) -> bool:
        """Do a millisecond or two of it. True when it is done.

        Raises as a call of the broker does; then the rest is void.
        """


class BrokerChannel(Protocol):
    """One open channel, seen from the server."""

    @property
    def channel_id(self) -> int:
        """Of its `node.ids.ChannelKey`."""

    @property
    def definitions(self) -> BrokerDefinitions:
        """Those of its connection."""

    # --- hot ---

    def publish(self, requests: Sequence[PublishRequest]) -> Work | None:
        """Route and enqueue a batch, in order. Confirms and returns come through the sink.

        What goes to very many queues is not enqueued yet when this returns: the work is to be done before anything else
        of this channel.
        """

    def check_publishes(self, requests: Sequence[PublishRequest]) -> None:
        """Raises what `publish` would now, and does nothing (`tx`)."""

    def ack(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        """Settle deliveries for good."""

    def requeue(self, source: DeliverySource, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> None:
        """Give deliveries back to their places in the queue. ``more_follow``: a piece of them; until a call without it
        the queue delivers nothing to anybody."""

    def discard(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        """Reject deliveries without requeue."""

    def written(self, source: DeliverySource, consumer_tag: str, count: int) -> None:
        """``count`` deliveries of this consumer have left for the socket: the queue may send as many more."""

    @property
    def flow_state(self) -> str:
        """``flow`` while a queue slows the channel down, and a moment longer; else ``running``."""

    # --- cold ---

    async def consume(self, queue: str, spec: ConsumerSpec) -> None:
        """Start a consumer. Deliveries reach the sink only after this returned (``consume-ok`` goes first)."""

    async def cancel(self, consumer_tag: str) -> None:
        """Stop a consumer: when this returns no more deliveries of it reach the sink. Unacked ones stay unacked."""

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        """One message from the head, or ``None``."""

    async def close(self) -> None:
        """The channel is gone: requeue what is unacked, then remove its consumers."""


class BrokerConnection(Protocol):
    """One authenticated connection in a vhost."""

    @property
    def state(self) -> str:
        """``running``, ``flow``, ``blocking`` or ``blocked``, as listings show it."""

    def may_publish(self) -> bool:
        """The client is about to publish. False while an alarm is raised: then the broker has paused reading, and what
        was read, this publish and all behind it, waits for `ConnectionControl.unblocked`."""

    @property
    def alarmed_ms(self) -> int | None:
        """For how long it has been a publisher stopped by an alarm; ``None`` if it is not."""

    def open_channel(self, number: int, sink: ChannelSink) -> BrokerChannel: ...

    @property
    def flow_state(self) -> str:
        """``flow`` while its socket is not read for want of credit, and some seconds longer; else ``running``."""

    def slow_paths(self) -> Sequence[SlowPath]:
        """The blocked hops (`node.flow.credit`) below the connection."""

    async def close(self) -> None:
        """The connection is gone: close what is left open, delete its exclusive queues."""


class BrokerPort(Protocol):
    """The broker, seen from the server."""

    def authenticate(self, mechanism: str, response: bytes, peer_host: str) -> str:
        """The user name. Raises `LoginRefused`, or another `ConnectionFailure`. Whoever catches it logs it."""

    def open_connection(self, info: ConnectionInfo, control: ConnectionControl) -> BrokerConnection:
        """Enter a vhost. Raises `ConnectionFailure` 530 if it is missing or the user may not."""

    def server_properties(self) -> Mapping[str, Any]:
        """Product, version, cluster name ...: for ``connection.start``. Capabilities are the server's business."""
