"""The asyncio shell on a transport in memory: flow control, order of broker calls, and that errors stay at home."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pamqp import base, commands

from node.amqp.channel import SETTLE_LIMIT
from node.amqp.codec import READ_LIMIT
from node.amqp.connection import ConnectionState
from node.amqp.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from node.amqp.server import AmqpServer, AmqpServerConfig
from node.amqp.server.connection import OUTPUT_LIMIT_BYTES, WAITING_LIMIT_BYTES, ConnectionShell
from node.amqp.server.turns import TURN_S, InputTurns
from node.errors import ChannelError
from node.queues.events import DELIVERY_WINDOW_MESSAGES
from tests.support.amqp_frames import method_bytes, publish_bytes, unmarshal_all
from tests.support.fake_broker import FakeBroker

Basic, Channel, Confirm, Connection, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
    commands.Tx,
)


class MemoryTransport(asyncio.Transport):
    """Keeps what is written. ``is_stuck``: the peer does not read, so the buffer only grows."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 5672)})
        self.written = bytearray()
        self.write_count = 0
        self.is_closed = False
        self.is_reading_paused = False
        self.is_stuck = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += data
        self.write_count += 1
        if self.is_stuck:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self.is_stuck else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class Client:
    """One client of a server, both in this loop."""

    def __init__(self, server: AmqpServer) -> None:
        self.transport = MemoryTransport()
        self.shell = self.transport.protocol = ConnectionShell(server)
        self.shell.connection_made(self.transport)

    def is_held_back(self) -> bool:
        """The server does not read what this client sends."""
        return self.transport.is_reading_paused

    def has_input(self) -> bool:
        """There is something left that the server has not looked at."""
        return self.shell.machine.has_input

    def state(self) -> ConnectionState:
        return self.shell.machine.state

    async def settle(self) -> None:
        """Let the loop turn until nothing new can happen."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def send(self, *methods: base.Frame, channel: int = 1, data: bytes = b"") -> list[str]:
        """Send methods, then raw bytes; the names of the methods that came back."""
        self.shell.data_received(b"".join([method_bytes(channel, method) for method in methods]) + data)
        await self.settle()
        return self.names()

    def frames(self) -> list[Any]:
        frames = [frame for _, frame in unmarshal_all(bytes(self.transport.written)) if isinstance(frame, base.Frame)]
        self.transport.written.clear()
        return frames

    def names(self) -> list[str]:
        return [frame.name for frame in self.frames()]

    async def open(self) -> Client:
        capabilities: Any = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True}}
        self.shell.data_received(PROTOCOL_HEADER)
        await self.send(Connection.StartOk(capabilities, "PLAIN", "\0guest\0guest"), channel=0)
        names = await self.send(Connection.TuneOk(100, 131_072, 0), Connection.Open("/"), channel=0)
        assert names == ["Connection.OpenOk"]
        assert await self.send(Channel.Open()) == ["Channel.OpenOk"]
        return self


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    client = await Client(AmqpServer(broker, AmqpServerConfig(seed=1))).open()
    yield client
    client.transport.close()
    await client.settle()


def calls(broker: FakeBroker, name: str) -> list[Any]:
    return [arguments for known, arguments in broker.calls if known == name]


async def test_a_read_of_publishes_is_one_call_and_one_write(client: Client, broker: FakeBroker) -> None:
    await client.send(Confirm.Select(), Queue.Declare(queue="q"))
    before = client.transport.write_count
    assert await client.send(data=publish_bytes(1) * 50) == ["Basic.Ack"]
    assert [len(requests) for requests in calls(broker, "publish")] == [50]
    assert client.transport.write_count == before + 1


async def test_frames_behind_a_cold_call_wait_and_reading_stops_when_they_are_many(
    client: Client, broker: FakeBroker
) -> None:
    broker.hold_calls = asyncio.Event()
    big = publish_bytes(1, payload=bytes(100_000))
    await client.send(Queue.Declare(queue="q"), data=big)
    assert not client.is_held_back()
    await client.send(data=big * (WAITING_LIMIT_BYTES // 100_000))
    assert client.is_held_back()
    assert calls(broker, "publish") == []
    broker.hold_calls.set()
    await client.settle()
    assert not client.is_held_back()
    assert sum(len(requests) for requests in calls(broker, "publish")) == 1 + WAITING_LIMIT_BYTES // 100_000
    assert client.names() == ["Queue.DeclareOk"]


async def test_what_is_sent_behind_the_close_of_a_channel_keeps_nobody_from_talking(client: Client) -> None:
    big = publish_bytes(1, payload=bytes(100_000))
    await client.send(Channel.Close(0, "", 0, 0), data=big * (2 + WAITING_LIMIT_BYTES // 100_000))
    assert not client.is_held_back()
    assert await client.send(Channel.Open()) == ["Channel.OpenOk"]


async def test_another_channel_does_not_wait(client: Client, broker: FakeBroker) -> None:
    await client.send(Channel.Open(), channel=2)
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q"))
    await client.send(channel=2, data=publish_bytes(2))
    assert len(calls(broker, "publish")) == 1
    broker.hold_calls.set()
    await client.settle()


async def test_a_client_that_does_not_read_is_given_a_bounded_number_of_messages(
    client: Client, broker: FakeBroker
) -> None:
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    client.transport.is_stuck = True
    for _ in range(5):
        await client.send(data=publish_bytes(1) * DELIVERY_WINDOW_MESSAGES)
        client.transport.written.clear()
    assert calls(broker, "written") == []
    assert len(broker.queues["q"].ready) == 4 * DELIVERY_WINDOW_MESSAGES
    client.transport.is_stuck = False
    client.shell.resume_writing()
    await client.settle()
    assert sum(count for _, count in calls(broker, "written")) == 5 * DELIVERY_WINDOW_MESSAGES
    assert broker.queues["q"].ready == []


async def test_answers_that_nobody_reads_stop_the_questions(client: Client) -> None:
    await client.send(Queue.Declare(queue="q"))
    await client.send(data=publish_bytes(1, payload=bytes(OUTPUT_LIMIT_BYTES), body_frame_bytes=100_000))
    client.transport.is_stuck = True
    client.shell.data_received(method_bytes(1, Basic.Get(queue="q")))
    await client.settle()
    assert client.is_held_back()
    client.transport.is_stuck = False
    client.shell.resume_writing()
    assert not client.is_held_back()


async def test_pauses_of_the_broker_nest(client: Client, broker: FakeBroker) -> None:
    control = broker.controls[0]
    control.pause_reading()
    control.pause_reading()
    control.resume_reading()
    assert client.is_held_back()
    control.resume_reading()
    assert not client.is_held_back()


async def test_the_state_listed_is_the_brokers(client: Client, broker: FakeBroker) -> None:
    broker.connections[0].state = "flow"
    assert client.shell.listing().state == "flow"


async def test_during_an_alarm_publishes_wait_with_all_that_is_behind_them(client: Client, broker: FakeBroker) -> None:
    await client.send(Confirm.Select(), Queue.Declare(queue="q"))
    control, connection = broker.controls[0], broker.connections[0]
    connection.is_welcome = False
    control.blocked("low on memory")
    await client.settle()
    assert [frame.reason for frame in client.frames()] == ["low on memory"]
    assert await client.send(Queue.Declare(queue="before")) == ["Queue.DeclareOk"], "only publishing is held up"
    assert await client.send(data=publish_bytes(1) + method_bytes(1, Queue.Declare(queue="behind"))) == []
    assert await client.send(Queue.Declare(queue="later")) == [], "what was under way when reading stopped waits, too"
    assert calls(broker, "publish") == []
    connection.is_welcome = True
    control.unblocked()
    await client.settle()
    names = client.names()
    assert names[0] == "Connection.Unblocked"
    assert sorted(names[1:]) == ["Basic.Ack", "Queue.DeclareOk", "Queue.DeclareOk"]
    assert [name for name, _ in broker.calls][-3:] == ["publish", "declare_queue", "declare_queue"]


async def test_an_alarm_that_comes_back_at_once_holds_the_publishes_again(client: Client, broker: FakeBroker) -> None:
    await client.send(Queue.Declare(queue="q"))
    control, connection = broker.controls[0], broker.connections[0]
    connection.is_welcome = False
    await client.send(data=publish_bytes(1))
    control.unblocked()
    await client.settle()
    assert calls(broker, "publish") == []
    connection.is_welcome = True
    control.unblocked()
    await client.settle()
    assert len(calls(broker, "publish")) == 1


async def test_a_blocked_connection_can_be_closed_by_the_node(client: Client, broker: FakeBroker) -> None:
    broker.connections[0].is_welcome = False
    await client.send(data=publish_bytes(1))
    broker.controls[0].close(320, "shutdown")
    await client.settle()
    assert client.names() == ["Connection.Close"]
    await client.send(Connection.CloseOk(), channel=0)
    assert client.transport.is_closed
    assert calls(broker, "publish") == []


async def test_flow_is_the_brokers_to_know_and_listed(client: Client, broker: FakeBroker) -> None:
    broker.connections[0].state = broker.connections[0].flow_state = "flow"
    listing = client.shell.listing()
    assert [listing.state, *(channel.state for channel in listing.channels)] == ["flow", "flow"]
    broker.connections[0].state = broker.connections[0].flow_state = "running"


async def test_an_error_of_publish_closes_the_channel_with_its_method(client: Client, broker: FakeBroker) -> None:
    await client.send(Confirm.Select(), Queue.Declare(queue="q"))
    good, bad = publish_bytes(1), publish_bytes(1, exchange="missing")
    await client.send()
    client.shell.data_received(good + bad + good)
    await client.settle()
    close = client.frames()[-1]
    assert (close.name, close.reply_code, close.class_id, close.method_id) == ("Channel.Close", 404, 60, 40)
    assert calls(broker, "close") == [1]
    assert await client.send(data=good) == []
    assert await client.send(Channel.CloseOk(), Channel.Open(), Basic.Qos()) == ["Channel.OpenOk", "Basic.QosOk"]


async def test_the_broker_may_close_a_channel(client: Client, broker: FakeBroker) -> None:
    sink = broker.connections[0].channels[0].sink
    sink.fail(ChannelError(404, "home node is down"))
    await client.settle()
    assert client.names() == ["Channel.Close"]
    assert broker.connections[0].channels == []


async def test_a_mistake_of_ours_ends_this_connection_only(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = await Client(client.shell._server).open()

    def fail(_requests: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(broker.connections[0].channels[0], "publish", fail)
    client.shell.data_received(publish_bytes(1, payload=b"secret body"))
    await client.settle()
    assert [(frame.name, frame.reply_code) for frame in client.frames()] == [("Connection.Close", 541)]
    assert "a mistake" in caplog.text
    assert "secret body" not in caplog.text
    assert await other.send(Queue.Declare(queue="q")) == ["Queue.DeclareOk"]
    other.transport.close()
    await other.settle()


async def test_a_frame_on_an_unopened_channel_is_504(client: Client) -> None:
    client.shell.data_received(publish_bytes(5))
    await client.settle()
    (close,) = client.frames()
    assert (close.name, close.reply_code) == ("Connection.Close", 504)
    assert await client.send(Connection.CloseOk(), channel=0) == []
    assert client.transport.is_closed


async def test_a_closed_number_is_free_and_there_are_no_more_than_negotiated(client: Client) -> None:
    client.shell.machine.channel_max = 5
    for number in range(2, 6):
        assert await client.send(Channel.Open(), channel=number) == ["Channel.OpenOk"]
    await client.send(Channel.Close(200, "", 0, 0), channel=3)
    assert await client.send(Channel.Open(), channel=3) == ["Channel.OpenOk"]
    assert await client.send(Channel.Open(), channel=6) == ["Connection.Close"]


async def test_a_lost_connection_gives_everything_back(client: Client, broker: FakeBroker) -> None:
    await client.send(Queue.Declare(queue="kept"), Queue.Declare(queue="own", exclusive=True))
    await client.send(data=publish_bytes(1, routing_key="kept"))
    await client.send(Basic.Consume(queue="kept"))
    assert len(broker.queues["kept"].unacked) == 1
    client.transport.close()
    await client.settle()
    assert broker.connections[0].is_closed
    assert [delivery.redelivered for delivery in broker.queues["kept"].ready] == [True]
    assert list(broker.queues) == ["kept"]
    assert client.shell._server.connections() == []


async def test_a_close_by_the_client_is_answered_when_the_broker_is_done(client: Client, broker: FakeBroker) -> None:
    await client.send(Queue.Declare(queue="own", exclusive=True))
    assert await client.send(Connection.Close(200, "", 0, 0), channel=0) == ["Connection.CloseOk"]
    assert broker.queues == {}
    assert client.transport.is_closed


async def test_too_many_connections_are_dropped(broker: FakeBroker) -> None:
    server = AmqpServer(broker, AmqpServerConfig(connections_max=1))
    first, second = Client(server), Client(server)
    assert second.transport.is_closed
    assert not first.transport.is_closed
    first.transport.close()
    await first.settle()
    assert server.connections() == []


async def test_a_refused_login_logs_no_password(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(AmqpServer(broker, AmqpServerConfig()))
    client.shell.data_received(PROTOCOL_HEADER)
    properties: Any = {"capabilities": {"authentication_failure_close": True}}
    await client.send(Connection.StartOk(properties, "PLAIN", "\0guest\0hunter2"), channel=0)
    assert "refused" in caplog.text
    assert "hunter2" not in caplog.text
    client.transport.close()
    await client.settle()


async def test_who_leaves_before_logging_in_is_no_warning(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Health checks and load balancers do: connect, perhaps say hello, and hang up."""
    caplog.set_level(logging.INFO)
    for hello in (b"", PROTOCOL_HEADER):
        probe = Client(AmqpServer(broker, AmqpServerConfig(seed=1)))
        if hello:
            probe.shell.data_received(hello)
        probe.transport.close()
        await probe.settle()
    assert [record.levelno for record in caplog.records if "left before logging in" in record.message] == [
        logging.INFO
    ] * 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_disappears_is_a_warning(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.transport.close()
    await client.settle()
    (record,) = [record for record in caplog.records if "closed unexpectedly" in record.message]
    assert record.levelno == logging.WARNING


# --- turns ---

BYE = method_bytes(0, Connection.Close(200, "", 0, 0))
BYE_OK = method_bytes(0, Connection.CloseOk())


@pytest.fixture
async def slow(client: Client, broker: FakeBroker) -> Client:
    """A client of a server whose broker needs a whole turn for each call."""
    await client.send(Queue.Declare(queue="q"))
    return await slow_down(client, broker)


@pytest.fixture
async def consumer(client: Client, broker: FakeBroker) -> Client:
    """The same; it has been sent a thousand messages."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q"))
    await client.send(data=publish_bytes(1) * 1000)
    client.transport.written.clear()
    return await slow_down(client, broker)


async def slow_down(client: Client, broker: FakeBroker) -> Client:
    await client.settle()
    broker.calls.clear()
    client.shell._server.turns = InputTurns(asyncio.get_running_loop().call_soon, lambda: len(broker.calls) * TURN_S)
    return client


def numbered(first: int, count: int, channel: int = 1) -> bytes:
    """Publishes whose bodies are numbers."""
    return b"".join([publish_bytes(channel, payload=b"%d" % number) for number in range(first, first + count)])


def published(broker: FakeBroker) -> list[int]:
    """The numbers that reached the broker, in order."""
    return [int(request.message.body) for requests in calls(broker, "publish") for request in requests]


def acked(broker: FakeBroker) -> int:
    return sum(len(seq_ids) for seq_ids in calls(broker, "ack"))


ACKS = -(-1000 // SETTLE_LIMIT)
ACK_ALL = method_bytes(1, Basic.Ack(1000, True))
QOS = method_bytes(1, Basic.Qos())


async def test_a_flood_takes_several_turns_and_reading_waits(slow: Client, broker: FakeBroker) -> None:
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT + 1))
    for turn in range(1, 4):
        assert len(calls(broker, "publish")) == turn
        assert slow.is_held_back()
        await asyncio.sleep(0)
    assert not slow.is_held_back()
    assert published(broker) == list(range(3 * READ_LIMIT + 1))


async def test_a_read_that_took_all_the_time_holds_the_next_one_back_for_a_turn(
    slow: Client, broker: FakeBroker
) -> None:
    slow.shell.data_received(numbered(0, 1))
    assert published(broker) == [0]
    assert slow.is_held_back()
    await asyncio.sleep(0)
    assert not slow.is_held_back()


async def test_a_read_in_time_holds_nothing_back(client: Client) -> None:
    client.shell._server.turns = InputTurns(asyncio.get_running_loop().call_soon, lambda: 0.0)
    client.shell.data_received(numbered(0, 10 * READ_LIMIT))
    assert not client.is_held_back()


@pytest.mark.parametrize("data", [HEARTBEAT_FRAME, publish_bytes(1)], ids=["heartbeats", "publishes"])
async def test_what_comes_to_nothing_takes_time_too(data: bytes, client: Client) -> None:
    """Only connections that are closing drop publishes, and then there may be very many."""
    looks = itertools.count()
    client.shell._server.turns = InputTurns(asyncio.get_running_loop().call_soon, lambda: next(looks) * TURN_S / 2)
    if data is not HEARTBEAT_FRAME:
        client.shell.close(320, "shutdown")
    client.shell.data_received(data * 6 * READ_LIMIT)
    await asyncio.sleep(0)
    assert client.has_input()
    assert client.is_held_back()
    await client.settle()
    assert not client.has_input()
    assert not client.is_held_back()


async def test_one_ack_of_many_takes_several_turns(consumer: Client, broker: FakeBroker) -> None:
    consumer.shell.data_received(ACK_ALL)
    for turn in range(1, ACKS):
        assert len(calls(broker, "ack")) == turn
        assert consumer.is_held_back()
        await asyncio.sleep(0)
    assert not consumer.is_held_back()
    assert acked(broker) == 1000


async def test_a_commit_is_answered_when_all_that_belongs_to_it_is_done(consumer: Client, broker: FakeBroker) -> None:
    await consumer.send(Tx.Select())
    consumer.transport.written.clear()
    consumer.shell.data_received(ACK_ALL + method_bytes(1, Tx.Commit()))
    while acked(broker) < 1000:
        assert consumer.names() == []
        await asyncio.sleep(0)
    await consumer.settle()
    assert consumer.names() == ["Tx.CommitOk"]


async def test_answers_go_out_though_every_turn_leaves_something_undone(consumer: Client, broker: FakeBroker) -> None:
    """Between what was left and what comes next, which may be left undone again before a later callback would write."""
    # There is time for two calls.
    call_s = 0.6 * TURN_S
    consumer.shell._server.turns = InputTurns(asyncio.get_running_loop().call_soon, lambda: len(broker.calls) * call_s)
    consumer.shell.data_received(QOS + method_bytes(1, Basic.Ack(600, True)) + QOS + ACK_ALL)
    assert (acked(broker), consumer.names()) == (2 * SETTLE_LIMIT, [])
    await asyncio.sleep(0)
    assert (acked(broker), consumer.names()) == (600 + SETTLE_LIMIT, ["Basic.QosOk"])
    await consumer.settle()
    assert acked(broker) == 1000


async def test_connections_take_turns(slow: Client, broker: FakeBroker) -> None:
    server = slow.shell._server
    server.turns = InputTurns(asyncio.get_running_loop().call_soon)
    other = await Client(server).open()
    await slow_down(slow, broker)
    slow.shell.data_received(numbered(0, 4 * READ_LIMIT))
    other.shell.data_received(numbered(10_000, 1))
    assert published(broker) == list(range(READ_LIMIT))
    await slow.settle()
    assert published(broker).index(10_000) == 2 * READ_LIMIT, "it comes when the first has had a second turn"
    assert not other.is_held_back()
    assert not slow.is_held_back()
    other.transport.close()
    await other.settle()


async def test_what_comes_meanwhile_comes_after(slow: Client, broker: FakeBroker) -> None:
    """Reading is paused, but the loop may have read already."""
    slow.shell.data_received(numbered(0, 2 * READ_LIMIT + 5))
    slow.shell.data_received(numbered(2 * READ_LIMIT + 5, READ_LIMIT)[:-7])
    await asyncio.sleep(0)
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT + 5)[-7:])
    await slow.settle()
    assert published(broker) == list(range(3 * READ_LIMIT + 5))


@pytest.mark.parametrize(
    ("behind", "answer"),
    [
        (method_bytes(1, Channel.Close(200, "", 0, 0)), "Channel.CloseOk"),
        (BYE, "Connection.CloseOk"),
        (method_bytes(1, Basic.Ack(5000)), "Channel.Close"),
        (publish_bytes(5), "Connection.Close"),
    ],
)
async def test_all_acks_come_before_what_is_behind_them(
    behind: bytes, answer: str, consumer: Client, broker: FakeBroker
) -> None:
    consumer.shell.data_received(ACK_ALL + behind)
    assert acked(broker) < 1000
    await consumer.settle()
    await consumer.settle()
    assert consumer.names() == [answer]
    assert [name for name, _ in broker.calls] == ["ack"] * ACKS + ["close"]
    assert acked(broker) == 1000
    assert not consumer.is_held_back()


async def test_a_number_is_free_again_after_an_error_behind_a_long_ack(consumer: Client) -> None:
    consumer.shell.data_received(ACK_ALL + method_bytes(1, Basic.Ack(5000)) + numbered(0, 2 * READ_LIMIT))
    await consumer.settle()
    assert consumer.names() == ["Channel.Close"]
    assert await consumer.send(Channel.CloseOk(), Channel.Open(), Basic.Qos()) == ["Channel.OpenOk", "Basic.QosOk"]


async def test_other_channels_wait_for_what_was_left_undone(consumer: Client, broker: FakeBroker) -> None:
    await consumer.send(Channel.Open(), channel=2)
    consumer.shell.data_received(ACK_ALL + numbered(0, 1, channel=2))
    await consumer.settle()
    assert [name for name, _ in broker.calls] == ["ack"] * ACKS + ["publish", "written"]


async def test_what_waited_behind_a_cold_call_takes_turns_too(slow: Client, broker: FakeBroker) -> None:
    broker.hold_calls = asyncio.Event()
    await slow.send(Queue.Declare(queue="q"), data=numbered(0, 3 * READ_LIMIT))
    assert not slow.is_held_back()
    broker.hold_calls.set()
    await asyncio.sleep(0)
    assert len(calls(broker, "publish")) < 3
    assert slow.is_held_back()
    await slow.send(data=numbered(3 * READ_LIMIT, 1))
    assert published(broker) == list(range(3 * READ_LIMIT + 1))
    assert not slow.is_held_back()


async def test_a_connection_lost_while_it_awaits_its_turn_closes_when_all_is_done(
    slow: Client, broker: FakeBroker
) -> None:
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT + 1))
    slow.shell.connection_lost(None)
    slow.transport.is_closed = True
    slow.shell.connection_lost(None)
    assert len(slow.shell._server.connections()) == 1
    await slow.settle()
    assert published(broker) == list(range(3 * READ_LIMIT + 1))
    assert [name for name, _ in broker.calls] == ["publish"] * 4 + ["close"]
    assert broker.connections[0].is_closed
    assert slow.shell._server.connections() == []


async def test_acks_left_undone_by_a_lost_connection_count(consumer: Client, broker: FakeBroker) -> None:
    consumer.shell.data_received(ACK_ALL)
    consumer.transport.close()
    await consumer.settle()
    assert acked(broker) == 1000
    assert broker.connections[0].is_closed
    assert broker.queues["q"].ready == []


async def test_a_lost_connection_under_an_alarm_closes(slow: Client, broker: FakeBroker) -> None:
    """What the broker does not take is not waited for."""
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT))
    broker.connections[0].is_welcome = False
    slow.transport.close()
    await slow.settle()
    assert published(broker) == list(range(READ_LIMIT))
    assert broker.connections[0].is_closed


async def test_an_alarm_holds_up_what_is_left(slow: Client, broker: FakeBroker) -> None:
    control, connection = broker.controls[0], broker.connections[0]
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT) + method_bytes(1, Queue.Declare(queue="behind")))
    connection.is_welcome = False
    await slow.settle()
    assert published(broker) == list(range(READ_LIMIT))
    assert not slow.shell._awaits_turn, "only the end of the alarm helps"
    connection.is_welcome = True
    control.unblocked()
    await slow.settle()
    assert published(broker) == list(range(3 * READ_LIMIT))
    assert slow.names() == ["Connection.Unblocked", "Queue.DeclareOk"]
    assert not slow.is_held_back()


async def test_who_awaits_its_turn_is_sent_heartbeats_and_need_not_send_any(slow: Client) -> None:
    now = asyncio.get_running_loop().time()
    slow.shell.machine.heartbeat_s = 1
    slow.shell.data_received(numbered(0, 5 * READ_LIMIT))
    slow.shell.tick(now + 1000)
    assert slow.state() is ConnectionState.RUNNING
    await asyncio.sleep(0)
    assert slow.is_held_back()
    assert HEARTBEAT_FRAME in slow.transport.written
    await slow.settle()
    assert not slow.is_held_back()
    slow.shell.tick(now + 1001)
    assert slow.state() is ConnectionState.RUNNING
    slow.shell.tick(now + 1100)
    assert slow.state() is ConnectionState.CLOSED, "now it could have"
    await slow.settle()


async def test_a_timeout_does_not_lose_what_was_left_undone(consumer: Client, broker: FakeBroker) -> None:
    consumer.shell.data_received(ACK_ALL)
    consumer.shell.close(320, "shutdown")
    consumer.shell.tick(asyncio.get_running_loop().time() + 1000)
    assert consumer.transport.is_closed
    await consumer.settle()
    assert acked(broker) == 1000
    assert broker.connections[0].is_closed


class Listener:
    """As much of `asyncio.Server` as `AmqpServer.stop` needs."""

    def close(self) -> None:
        pass


async def test_stop_waits_for_what_was_left_undone(consumer: Client, broker: FakeBroker) -> None:
    server: Any = consumer.shell._server
    server._listener = Listener()
    consumer.shell.data_received(ACK_ALL)
    stopping = asyncio.create_task(server.stop())
    await consumer.settle()
    assert consumer.names() == ["Connection.Close"]
    assert acked(broker) == 1000
    assert not stopping.done()
    assert not consumer.is_held_back()
    await consumer.send(data=BYE_OK)
    await stopping
    assert [name for name, _ in broker.calls] == ["ack"] * ACKS + ["close"]


async def test_stop_waits_also_for_those_who_do_not_answer(
    consumer: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = consumer.shell._server
    server._listener = Listener()
    consumer.shell.data_received(ACK_ALL)

    async def lose_patience(waiting: Any, _timeout_s: float) -> None:
        monkeypatch.undo()
        waiting.close()
        raise TimeoutError

    monkeypatch.setattr(asyncio, "wait_for", lose_patience)
    await server.stop()
    assert [name for name, _ in broker.calls] == ["ack"] * ACKS + ["close"]
    assert server.connections() == []


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_answer_to_a_close_is_read_though_the_broker_had_stopped_reading(
    is_late: bool, slow: Client, broker: FakeBroker
) -> None:
    control = broker.controls[0]
    slow.shell.data_received(numbered(0, 2 * READ_LIMIT))
    control.pause_reading()
    if is_late:
        await slow.settle()
        assert slow.is_held_back()
    control.close(320, "shutdown")
    await slow.settle()
    assert slow.names() == ["Connection.Close"]
    assert not slow.is_held_back()
    control.resume_reading()
    await slow.send(data=BYE_OK)
    assert slow.transport.is_closed


async def test_reading_goes_on_after_a_close_until_the_answer_is_there(slow: Client, broker: FakeBroker) -> None:
    control = broker.controls[0]
    control.pause_reading()
    control.close(320, "shutdown")
    await slow.settle()
    broker.calls.append(("somebody else's", None))
    slow.shell._server.turns.may_go_on()
    broker.calls.append(("somebody else's", None))
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT))
    assert slow.is_held_back()
    await slow.settle()
    assert not slow.is_held_back()
    await slow.send(data=BYE_OK)
    assert slow.transport.is_closed
