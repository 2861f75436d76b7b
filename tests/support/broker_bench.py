"""A whole broker without sockets: local catalogue, the queues of one node (`one_node`), guest and some other users."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from node.amqp.ports import BrokerChannel, BrokerConnection, BrokerPort, ConnectionInfo, DeliverySource, PublishRequest
from node.auth import PermissionRecord, UserRecord, hash_password
from node.broker import Broker
from node.broker.channel import Channel
from node.broker.connection import Connection
from node.flow.credit import FlowControl
from node.ids import MsgId
from node.message import Message
from node.queues.backing_queue import Delivery
from tests.support.one_node import N1, OneNode
from tests.support.queue_bench import NO_PROPERTIES
from tests.support.users import users_with_guest


class RecordedControl:
    """A connection's socket, as the broker sees it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.pauses = 0

    def close(self, reply_code: int, text: str) -> None:
        self.heard.append(f"close {reply_code} {text}")

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None:
        self.pauses -= 1
        assert self.pauses >= 0, "resume undoes a pause"

    def blocked(self, reason: str) -> None:
        self.heard.append(f"blocked {reason}")

    def unblocked(self) -> None:
        self.heard.append("unblocked")


class RecordedSink:
    """What the broker tells a channel, as short texts; deliveries are kept to be settled."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.deliveries: list[tuple[str, DeliverySource, Delivery]] = []

    def deliver(self, consumer_tag: str, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        self.deliveries += [(consumer_tag, source, each) for each in deliveries]
        self.heard.append(f"{consumer_tag}: " + " ".join(each.message.body.decode() for each in deliveries))

    def confirm(self, publish_seqs: Sequence[int]) -> None:
        self.heard.append("confirm " + " ".join(map(str, publish_seqs)))

    def reject(self, publish_seqs: Sequence[int]) -> None:
        self.heard.append("reject " + " ".join(map(str, publish_seqs)))

    def returned(self, request: PublishRequest, reply_code: int, reply_text: str) -> None:
        self.heard.append(f"returned {request.message.body.decode()} {reply_code} {reply_text}")

    def source_over(self, source: DeliverySource) -> None:
        self.heard.append(f"over: {source.queue.name}")

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self.heard.append(f"cancelled {consumer_tag}")


def request(
    body: str = "m",
    *,
    key: str = "q",
    exchange: str = "",
    seq: int = 0,
    mandatory: bool = False,
    properties: bytes = NO_PROPERTIES,
    persistent: bool = False,
) -> PublishRequest:
    """A publish as the server hands it over: the message has no identity yet."""
    message = Message(MsgId(b""), exchange, key, properties, body.encode(), persistent)
    return PublishRequest(message, mandatory, seq)


class Client:
    """One connection with one channel."""

    def __init__(self, bench: BrokerBench, user: str, vhost: str) -> None:
        self.control = RecordedControl()
        info = ConnectionInfo("127.0.0.1", 50000, 5672, user, vhost, {})
        self.connection: Connection = bench.broker.open_connection(info, self.control)
        self.sink = RecordedSink()
        self.channel: Channel = self.connection.open_channel(1, self.sink)
        self.definitions = self.channel.definitions
        self._bench = bench
        # The types promise what the server relies on.
        self._as_connection: BrokerConnection = self.connection
        self._as_channel: BrokerChannel = self.channel

    async def declare(
        self,
        name: str,
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        **arguments: object,
    ) -> tuple[str, int, int]:
        plain = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        declared = await self.definitions.declare_queue(
            name, passive=passive, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=plain
        )
        return declared.name, declared.ready, declared.consumers

    async def exchange(self, name: str, kind: str = "direct", *, passive: bool = False, internal: bool = False) -> None:
        await self.definitions.declare_exchange(
            name, kind, passive=passive, durable=False, auto_delete=False, internal=internal, arguments={}
        )

    async def heard(self) -> list[str]:
        """What the channel was told since the last call, after everything that waits has run."""
        await self._bench.run()
        heard, self.sink.heard = self.sink.heard, []
        return heard


class BrokerBench:
    """``guest`` may do everything; ``reader`` may only read, and write to what begins with ``open``.

    To be made on a running event loop. A persistent message in a durable queue is confirmed after a `sync`.
    """

    def __init__(self, flow: FlowControl | None = None) -> None:
        self.flow = flow or FlowControl()
        self._bytes = itertools.count(1)
        self.node = OneNode(self.flow)
        self.catalogue = self.node.catalogue
        self.users = users_with_guest()
        self.users.set_user(UserRecord("reader", hash_password("secret", b"salt")))
        self.users.set_permission(PermissionRecord("reader", "/", "", "^open", ".*"))
        self.broker = Broker(
            N1,
            self.catalogue,
            self.users,
            self.node.gateway,
            random_bytes=self.random_bytes,
            properties={"product": "Warren"},
            flow=self.flow,
        )
        self._as_port: BrokerPort = self.broker

    def random_bytes(self, count: int) -> bytes:
        """Different at every call, the same in every run."""
        return next(self._bytes).to_bytes(count, "big")

    def client(self, user: str = "guest", vhost: str = "/") -> Client:
        return Client(self, user, vhost)

    async def run(self) -> None:
        """Until nothing is under way but what waits for the disk."""
        await self.node.run()
        self.broker.check_invariants()

    async def sync(self) -> None:
        """The disk has synced: confirms go out."""
        await self.node.sync()
        self.broker.check_invariants()
