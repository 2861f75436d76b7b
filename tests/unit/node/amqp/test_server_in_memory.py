"""The whole server without a socket: listener and connections are in memory, the client speaks AMQP bytes.

This is how a simulator runs it: the same story gives the same bytes every time.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pamqp import base, body, commands, header
from pamqp import frame as amqp_frame

from node.amqp.frames import PROTOCOL_HEADER
from node.amqp.server import AmqpServer, AmqpServerConfig
from tests.support.amqp_frames import method_bytes, publish_bytes
from tests.support.memory_streams import MemoryListener
from tests.support.observed_broker import ObservedBroker

Basic, Channel, Confirm, Connection, Queue = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
)


class AmqpClient(asyncio.Protocol):
    """Reads what the server sends frame by frame, and keeps every byte."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_lost = False
        self._looked_at = 0
        self._news = asyncio.Event()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._news.set()

    def send(self, *methods: base.Frame, channel: int = 1, data: bytes = b"") -> None:
        self._transport.write(b"".join([method_bytes(channel, method) for method in methods]) + data)

    async def next_frame(self) -> Any:
        while self._looked_at == len(self.heard):
            assert not self.is_lost
            self._news.clear()
            await self._news.wait()
        size, _channel, frame = amqp_frame.unmarshal(bytes(self.heard[self._looked_at :]))
        self._looked_at += size
        return frame

    async def call(self, method: base.Frame, channel: int = 1) -> Any:
        """Send a method, wait for the next frame."""
        self.send(method, channel=channel)
        return await self.next_frame()

    async def delivery(self) -> tuple[int, bytes]:
        """Delivery tag and body of the next message."""
        deliver, head, content = [await self.next_frame() for _ in range(3)]
        assert isinstance(head, header.ContentHeader)
        assert isinstance(content, body.ContentBody)
        return deliver.delivery_tag, content.value

    async def log_in(self) -> None:
        self.send(data=PROTOCOL_HEADER, channel=0)
        assert (await self.next_frame()).name == "Connection.Start"
        assert (await self.call(Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0)).name == "Connection.Tune"
        self.send(Connection.TuneOk(100, 131_072, 0), channel=0)
        assert (await self.call(Connection.Open("/"), 0)).name == "Connection.OpenOk"
        assert (await self.call(Channel.Open())).name == "Channel.OpenOk"


async def a_working_day() -> bytes:
    """All that a client hears between the start and the stop of a server."""
    listener, broker, client = MemoryListener(), ObservedBroker(), AmqpClient()
    server = AmqpServer(broker, AmqpServerConfig(), listen=listener, chance=random.Random(1), clock=lambda: 0.0)
    await server.start("127.0.0.1", 5672)
    assert server.port == 5672
    listener.connect(client)
    await client.log_in()
    assert [connection.name for connection in server.connections()] == ["127.0.0.1:50001 -> 127.0.0.1:5672"]
    assert (await client.call(Queue.Declare(queue="q"))).name == "Queue.DeclareOk"
    assert (await client.call(Basic.Consume(queue="q"))).consumer_tag.startswith("amq.ctag-")
    assert (await client.call(Confirm.Select())).name == "Confirm.SelectOk"
    client.send(data=b"".join([publish_bytes(1, payload=text) for text in (b"one", b"two", b"three")]))
    tags = []
    for text in (b"one", b"two", b"three"):
        tag, received = await client.delivery()
        assert received == text
        tags.append(tag)
    assert (await client.next_frame()).name == "Basic.Ack", "the confirm of all three"
    client.send(Basic.Ack(tags[-1], True))
    assert (await client.call(Basic.Qos())).name == "Basic.QosOk"
    assert broker.queue("q").unacked == 0

    stopping = asyncio.create_task(server.stop())
    assert (await client.next_frame()).reply_code == 320
    assert not listener.is_open
    client.send(Connection.CloseOk(), channel=0)
    await stopping
    assert client.is_lost
    assert server.connections() == []
    return bytes(client.heard)


async def test_a_server_needs_no_socket_and_the_same_story_gives_the_same_bytes() -> None:
    assert await a_working_day() == await a_working_day()


async def test_a_client_that_vanishes_gives_back_what_it_held() -> None:
    listener, broker, client = MemoryListener(), ObservedBroker(), AmqpClient()
    server = AmqpServer(broker, AmqpServerConfig(), listen=listener, chance=random.Random(1), clock=lambda: 0.0)
    await server.start("127.0.0.1", 5672)
    listener.connect(client)
    await client.log_in()
    await client.call(Queue.Declare(queue="q"))
    await client.call(Basic.Consume(queue="q"))
    client.send(data=publish_bytes(1, payload=b"one"))
    await client.delivery()
    client._transport.abort()
    await server.stop()
    assert await broker.take("q") == [(b"one", True)]
