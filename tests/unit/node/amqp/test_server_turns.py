"""Connections share the time of a turn: what they bring is cut, and nothing is lost or reordered by it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from node.amqp.codec import READ_LIMIT
from node.amqp.connection import ConnectionState
from node.amqp.frames import HEARTBEAT_FRAME
from node.amqp.server.turns import TURN_S
from node.amqp.settling import SETTLE_LIMIT
from tests.support.amqp_frames import method_bytes, publish_bytes
from tests.support.observed_broker import ObservedBroker
from tests.support.server_client import Basic, Channel, Client, Connection, Queue, Tx, calls

BYE = method_bytes(0, Connection.Close(200, "", 0, 0))
BYE_OK = method_bytes(0, Connection.CloseOk())


@pytest.fixture
async def slow(client: Client, broker: ObservedBroker) -> Client:
    """A client of a server whose broker needs a whole turn for each call."""
    await client.send(Queue.Declare(queue="q"))
    return await slow_down(client, broker)


@pytest.fixture
async def consumer(client: Client, broker: ObservedBroker) -> Client:
    """The same; it has been sent a thousand messages."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q"))
    await client.send(data=publish_bytes(1) * 1000)
    client.transport.written.clear()
    return await slow_down(client, broker)


async def slow_down(client: Client, broker: ObservedBroker) -> Client:
    await client.settle()
    broker.calls.clear()
    use_clock(client, lambda: len(broker.calls) * TURN_S)
    return client


def use_clock(client: Client, clock: Callable[[], float]) -> None:
    """From now on it tells the server of ``client`` when a turn is over."""
    client.server.clock = clock


def numbered(first: int, count: int, channel: int = 1) -> bytes:
    """Publishes whose bodies are numbers."""
    return b"".join([publish_bytes(channel, payload=b"%d" % number) for number in range(first, first + count)])


def published(broker: ObservedBroker) -> list[int]:
    """The numbers that reached the broker, in order."""
    return [int(request.message.body) for requests in calls(broker, "publish") for request in requests]


def acked(broker: ObservedBroker) -> int:
    return sum(len(seq_ids) for seq_ids in calls(broker, "ack"))


ACKS = -(-1000 // SETTLE_LIMIT)
ACK_ALL = method_bytes(1, Basic.Ack(1000, True))
QOS = method_bytes(1, Basic.Qos())


async def test_a_flood_takes_several_turns_and_reading_waits(slow: Client, broker: ObservedBroker) -> None:
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT + 1))
    for turn in range(1, 4):
        assert len(calls(broker, "publish")) == turn
        assert slow.is_held_back()
        await asyncio.sleep(0)
    assert not slow.is_held_back()
    assert published(broker) == list(range(3 * READ_LIMIT + 1))


async def test_a_read_that_took_all_the_time_holds_the_next_one_back_for_a_turn(
    slow: Client, broker: ObservedBroker
) -> None:
    slow.shell.data_received(numbered(0, 1))
    assert published(broker) == [0]
    assert slow.is_held_back()
    await asyncio.sleep(0)
    assert not slow.is_held_back()


async def test_a_read_in_time_holds_nothing_back(client: Client) -> None:
    client.shell.data_received(numbered(0, 10 * READ_LIMIT))
    assert not client.is_held_back()


@pytest.mark.parametrize("data", [HEARTBEAT_FRAME, publish_bytes(1)], ids=["heartbeats", "publishes"])
async def test_what_comes_to_nothing_takes_time_too(data: bytes, client: Client) -> None:
    """Only connections that are closing drop publishes, and then there may be very many."""
    looks = itertools.count()
    use_clock(client, lambda: next(looks) * TURN_S / 2)
    if data is not HEARTBEAT_FRAME:
        client.shell.close(320, "shutdown")
    client.shell.data_received(data * 6 * READ_LIMIT)
    await asyncio.sleep(0)
    assert client.has_input()
    assert client.is_held_back()
    await client.settle()
    assert not client.has_input()
    assert not client.is_held_back()


async def test_one_ack_of_many_takes_several_turns(consumer: Client, broker: ObservedBroker) -> None:
    consumer.shell.data_received(ACK_ALL)
    for turn in range(1, ACKS):
        assert len(calls(broker, "ack")) == turn
        assert consumer.is_held_back()
        await asyncio.sleep(0)
    assert not consumer.is_held_back()
    assert acked(broker) == 1000


async def test_a_commit_is_answered_when_all_that_belongs_to_it_is_done(
    consumer: Client, broker: ObservedBroker
) -> None:
    await consumer.send(Tx.Select())
    consumer.transport.written.clear()
    consumer.shell.data_received(ACK_ALL + method_bytes(1, Tx.Commit()))
    while acked(broker) < 1000:
        assert consumer.names() == []
        await asyncio.sleep(0)
    await consumer.settle()
    assert consumer.names() == ["Tx.CommitOk"]


async def test_answers_go_out_though_every_turn_leaves_something_undone(
    consumer: Client, broker: ObservedBroker
) -> None:
    """Between what was left and what comes next, which may be left undone again before a later callback would write."""
    # There is time for two calls.
    call_s = 0.6 * TURN_S
    use_clock(consumer, lambda: len(broker.calls) * call_s)
    consumer.shell.data_received(QOS + method_bytes(1, Basic.Ack(600, True)) + QOS + ACK_ALL)
    assert (acked(broker), consumer.names()) == (2 * SETTLE_LIMIT, [])
    await asyncio.sleep(0)
    assert (acked(broker), consumer.names()) == (600 + SETTLE_LIMIT, ["Basic.QosOk"])
    await consumer.settle()
    assert acked(broker) == 1000


async def test_connections_take_turns(client: Client, broker: ObservedBroker) -> None:
    await client.send(Queue.Declare(queue="q"))
    other = await Client(client.server).open()
    slow = await slow_down(client, broker)
    slow.shell.data_received(numbered(0, 4 * READ_LIMIT))
    other.shell.data_received(numbered(10_000, 1))
    assert published(broker) == list(range(READ_LIMIT))
    await slow.settle()
    assert published(broker).index(10_000) == 2 * READ_LIMIT, "it comes when the first has had a second turn"
    assert not other.is_held_back()
    assert not slow.is_held_back()
    other.transport.close()
    await other.settle()


async def test_what_comes_meanwhile_comes_after(slow: Client, broker: ObservedBroker) -> None:
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
    behind: bytes, answer: str, consumer: Client, broker: ObservedBroker
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


async def test_other_channels_wait_for_what_was_left_undone(consumer: Client, broker: ObservedBroker) -> None:
    await consumer.send(Channel.Open(), channel=2)
    consumer.shell.data_received(ACK_ALL + numbered(0, 1, channel=2))
    await consumer.settle()
    assert [name for name, _ in broker.calls] == ["ack"] * ACKS + ["publish", "written"]


async def test_what_waited_behind_a_cold_call_takes_turns_too(slow: Client, broker: ObservedBroker) -> None:
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
    slow: Client, broker: ObservedBroker
) -> None:
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT + 1))
    slow.shell.connection_lost(None)
    slow.transport.is_closed = True
    slow.shell.connection_lost(None)
    assert len(slow.server.connections()) == 1
    await slow.settle()
    assert published(broker) == list(range(3 * READ_LIMIT + 1))
    assert [name for name, _ in broker.calls] == ["publish"] * 4 + ["close"]
    assert broker.connections[0].is_closed
    assert slow.server.connections() == []


async def test_acks_left_undone_by_a_lost_connection_count(consumer: Client, broker: ObservedBroker) -> None:
    consumer.shell.data_received(ACK_ALL)
    consumer.transport.close()
    await consumer.settle()
    assert acked(broker) == 1000
    assert broker.connections[0].is_closed
    assert broker.queue("q").ready == 0


async def test_a_lost_connection_under_an_alarm_closes(slow: Client, broker: ObservedBroker) -> None:
    """What the broker does not take is not waited for."""
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT))
    broker.connections[0].is_welcome = False
    slow.transport.close()
    await slow.settle()
    assert published(broker) == list(range(READ_LIMIT))
    assert broker.connections[0].is_closed


async def test_an_alarm_holds_up_what_is_left(slow: Client, broker: ObservedBroker) -> None:
    control, connection = broker.controls[0], broker.connections[0]
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT) + method_bytes(1, Queue.Declare(queue="behind")))
    connection.is_welcome = False
    await slow.settle()
    assert published(broker) == list(range(READ_LIMIT))
    assert not slow.shell.reading.awaits_turn, "only the end of the alarm helps"
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


async def test_a_connection_that_is_idle_is_looked_at_and_left_alone(
    slow: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be fifty thousand, four times a second."""
    gone_on: list[str] = []
    monkeypatch.setattr(slow.shell, "_process_events", lambda: gone_on.append("on"))
    now = asyncio.get_running_loop().time()
    slow.shell.machine.heartbeat_s = 60
    slow.shell.tick(now + 20)
    assert gone_on == []
    slow.shell.tick(now + 40)
    assert gone_on == ["on"], "a heartbeat is to be sent"


async def test_a_timeout_does_not_lose_what_was_left_undone(consumer: Client, broker: ObservedBroker) -> None:
    consumer.shell.data_received(ACK_ALL)
    consumer.shell.close(320, "shutdown")
    consumer.shell.tick(asyncio.get_running_loop().time() + 1000)
    assert consumer.transport.is_closed
    await consumer.settle()
    assert acked(broker) == 1000
    assert broker.connections[0].is_closed


async def test_stop_waits_for_what_was_left_undone(consumer: Client, broker: ObservedBroker) -> None:
    server = consumer.server
    consumer.shell.data_received(ACK_ALL)
    stopping = asyncio.create_task(server.stop())
    await consumer.settle()
    assert consumer.names() == ["Connection.Close"]
    assert acked(broker) == 1000
    assert not stopping.done()
    assert not consumer.is_held_back()
    await consumer.send(data=BYE_OK)
    assert stopping.done(), "it waits for nobody else"
    assert [name for name, _ in broker.calls] == ["ack"] * ACKS + ["close"]


async def test_stop_waits_also_for_those_who_do_not_answer(
    consumer: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = consumer.server
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
    is_late: bool, slow: Client, broker: ObservedBroker
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


async def test_reading_goes_on_after_a_close_until_the_answer_is_there(slow: Client, broker: ObservedBroker) -> None:
    control = broker.controls[0]
    control.pause_reading()
    control.close(320, "shutdown")
    await slow.settle()
    broker.calls.append(("somebody else's", None))
    slow.server.turns.may_go_on()
    broker.calls.append(("somebody else's", None))
    slow.shell.data_received(numbered(0, 3 * READ_LIMIT))
    assert slow.is_held_back()
    await slow.settle()
    assert not slow.is_held_back()
    await slow.send(data=BYE_OK)
    assert slow.transport.is_closed
