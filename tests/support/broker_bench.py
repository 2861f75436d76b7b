"""A whole broker without sockets: local catalogue, local queues in memory, guest and some other users."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from node.amqp.ports import BrokerChannel, BrokerConnection, BrokerPort, ConnectionInfo, DeliverySource, PublishRequest
from node.auth import PermissionRecord, UserDirectory, UserRecord, hash_password
from node.broker import Broker
from node.broker.channel import Channel
from node.broker.connection import Connection
from node.flow.credit import FlowControl
from node.ids import MsgId, NodeName, QueueId
from node.message import Message
from node.queues.backing_queue import Delivery
from node.queues.queue_host import LocalQueueGateway
from node.topology.commands import DeleteQueue
from node.topology.local_catalogue import LocalCatalogue
from node.topology.records import QueueRecord
from tests.support.memory_backing_queue import MemoryBackingQueue
from tests.support.queue_bench import NO_PROPERTIES


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

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self.heard.append(f"cancelled {consumer_tag}")

    def fail(self, error: Exception) -> None:
        self.heard.append(f"fail {error}")


def request(
    body: str = "m",
    *,
    key: str = "q",
    exchange: str = "",
    seq: int = 0,
    mandatory: bool = False,
    properties: bytes = NO_PROPERTIES,
) -> PublishRequest:
    """A publish as the server hands it over: the message has no identity yet."""
    message = Message(MsgId(b""), exchange, key, properties, body.encode(), persistent=False)
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

    def heard(self) -> list[str]:
        """What the channel was told since the last call, after everything that waits has run."""
        self._bench.run()
        heard, self.sink.heard = self.sink.heard, []
        return heard


class BrokerBench:
    """``guest`` may do everything; ``reader`` may only read, and write to what begins with ``open``."""

    def __init__(self, *, hold_confirms: bool = False, flow: FlowControl | None = None) -> None:
        self.flow = flow or FlowControl()
        self._waiting: list[Callable[[], None]] = []
        self._bytes = itertools.count(1)
        self.hold_confirms = hold_confirms
        self.storages: dict[QueueId, MemoryBackingQueue] = {}
        self.catalogue = LocalCatalogue()
        self.users = UserDirectory.with_default_user(self.random_bytes)
        self.users.set_user(UserRecord("reader", hash_password("secret", b"salt")))
        self.users.set_permission(PermissionRecord("reader", "/", "", "^open", ".*"))
        self.gateway = LocalQueueGateway(
            NodeName("n1"), self._waiting.append, self._make_storage, self._delete_unused, self.flow
        )
        self.catalogue.topology.observe(self.gateway)
        self.broker = Broker(
            NodeName("n1"),
            self.catalogue,
            self.users,
            self.gateway,
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

    def run(self) -> None:
        """Run the callbacks that a loop would run, then check everything."""
        while self._waiting:
            self._waiting.pop(0)()
        self.broker.check_invariants()
        self.gateway.check_invariants()
        self.catalogue.topology.check_invariants()

    def make_safe(self) -> None:
        """Storage has synced: confirms go out."""
        for storage in self.storages.values():
            storage.make_safe()
        self.gateway.host.touch_all()
        self.run()

    def storage(self, queue: str) -> MemoryBackingQueue:
        record = self.catalogue.topology.queue("/", queue)
        assert record is not None
        return self.storages[record.queue_id]

    def _make_storage(self, queue: QueueRecord) -> MemoryBackingQueue:
        storage = self.storages[queue.queue_id] = MemoryBackingQueue(hold_confirms=self.hold_confirms)
        return storage

    def _delete_unused(self, queue: QueueRecord) -> None:
        self.catalogue.apply(DeleteQueue(queue.vhost, queue.name, queue.queue_id))
