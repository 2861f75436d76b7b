"""A real client, pika, against the AMQP server on a port of this machine, with the broker of one node behind it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
import uvloop

from node.amqp.server import AmqpServer, AmqpServerConfig, listen_on_sockets
from tests.support.observed_broker import ObservedBroker
from tests.support.pika_clients import take

pytestmark = pytest.mark.integration


class ServerThread:
    """The server in a loop of its own, because pika's blocking connection needs this thread."""

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = make_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self.run(run())

    def __enter__(self) -> ServerThread:
        self._thread.start()
        self.run(self._start())
        return self

    async def _start(self) -> None:
        self.broker = ObservedBroker()
        self.server = AmqpServer(
            self.broker,
            AmqpServerConfig(stop_timeout_s=5),
            listen=listen_on_sockets,
            chance=random.Random(1),
            clock=time.monotonic,
        )
        await self.server.start("127.0.0.1", 0)

    def __exit__(self, *_: object) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connect(self, password: str = "guest", vhost: str = "/", heartbeat: int = 60) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials("guest", password)
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.server.port, vhost, credentials, heartbeat=heartbeat)
        )


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def served(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with ServerThread(request.param) as server:
        yield server


def test_publish_with_confirms_consume_and_ack(served: ServerThread) -> None:
    with served.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        bodies = [b"", b"small", bytes(range(256)) * 1500]
        for body in bodies:
            sent = pika.BasicProperties(delivery_mode=2, headers={"size": len(body)})  # type: ignore[no-untyped-call]
            channel.basic_publish("", "q", body, sent, mandatory=True)
        got = []
        for method, properties, received in channel.consume("q", inactivity_timeout=5):
            assert method is not None
            assert properties is not None
            assert received is not None
            assert properties.headers == {"size": len(received)}
            got.append(received)
            channel.basic_ack(method.delivery_tag)
            if len(got) == len(bodies):
                break
        assert got == bodies
        channel.cancel()
    assert served.call(lambda: served.broker.queue("q").unacked) == 0


def test_many_messages_in_order(served: ServerThread) -> None:
    """More than the delivery window, so the queue depends on `written`."""
    count = 5000
    with served.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        for number in range(count):
            channel.basic_publish("", "q", str(number).encode())
        assert [int(body) for _, body in take(channel, "q", count)] == list(range(count))


def test_an_unroutable_mandatory_message_comes_back(served: ServerThread) -> None:
    with served.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", "nowhere", b"x", mandatory=True)


def test_a_channel_error_leaves_the_connection_open(served: ServerThread) -> None:
    with served.connect() as connection:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'missing'") as failure:
            channel.queue_declare("missing", passive=True)
        assert failure.value.reply_code == 404
        again = connection.channel()
        assert again.queue_declare("").method.queue.startswith("amq.gen-")


def test_unacked_messages_return_when_the_connection_ends(served: ServerThread) -> None:
    with served.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"1")
        method, _, _ = channel.basic_get("q")
        assert method is not None
        assert not method.redelivered
    with served.connect() as connection:
        method, _, body = connection.channel().basic_get("q", auto_ack=True)
        assert method is not None
        assert (method.redelivered, body) == (True, b"1")


def test_a_transaction(served: ServerThread) -> None:
    with served.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.tx_select()
        channel.basic_publish("", "q", b"kept")
        channel.tx_commit()
        channel.basic_publish("", "q", b"dropped")
        channel.tx_rollback()
        assert channel.queue_declare("q", passive=True).method.message_count == 1


def test_a_wrong_password_is_answered_with_403(served: ServerThread) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="403"):
        served.connect(password="wrong")


def test_a_missing_vhost_is_answered_with_530(served: ServerThread) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*vhost other not found"):
        served.connect(vhost="other")


def test_heartbeats_keep_an_idle_connection(served: ServerThread) -> None:
    with served.connect(heartbeat=1) as connection:
        connection.sleep(3.5)
        assert connection.channel().queue_declare("q").method.queue == "q"


def test_listing_and_stop_with_320(served: ServerThread) -> None:
    connection = served.connect()
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None)
    (listing,) = served.call(served.server.connections)
    assert (listing.user, listing.vhost, listing.state) == ("guest", "/", "running")
    assert [(entry.number, entry.consumer_count) for entry in listing.channels] == [(1, 1)]
    stopping = asyncio.run_coroutine_threadsafe(served.server.stop(), served._loop)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as failure:
        connection.process_data_events(10)
    assert failure.value.reply_code == 320
    stopping.result(10)
    assert served.call(served.server.connections) == []
    assert served.broker.connections[0].is_closed
