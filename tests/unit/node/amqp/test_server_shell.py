"""The asyncio shell on a transport in memory: flow control, order of broker calls, and that errors stay at home."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from node.amqp.frames import PROTOCOL_HEADER
from node.amqp.methods import pack_method
from node.amqp.server import AmqpServerConfig, connection
from node.amqp.server.connection import OUTPUT_LIMIT_BYTES, WAITING_LIMIT_BYTES
from node.queues.events import DELIVERY_WINDOW_MESSAGES
from tests.support.amqp_frames import method_bytes, publish_bytes
from tests.support.observed_broker import ObservedBroker
from tests.support.server_client import Basic, Channel, Client, Confirm, Connection, Queue, calls, server_of


async def test_a_read_of_publishes_is_one_call_and_one_write(client: Client, broker: ObservedBroker) -> None:
    await client.send(Confirm.Select(), Queue.Declare(queue="q"))
    before = client.transport.write_count
    assert await client.send(data=publish_bytes(1) * 50) == ["Basic.Ack"]
    assert [len(requests) for requests in calls(broker, "publish")] == [50]
    assert client.transport.write_count == before + 1


async def test_frames_behind_a_cold_call_wait_and_reading_stops_when_they_are_many(
    client: Client, broker: ObservedBroker
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


async def test_another_channel_does_not_wait(client: Client, broker: ObservedBroker) -> None:
    await client.send(Channel.Open(), channel=2)
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q"))
    await client.send(channel=2, data=publish_bytes(2))
    assert len(calls(broker, "publish")) == 1
    broker.hold_calls.set()
    await client.settle()


async def test_a_client_that_does_not_read_is_given_a_bounded_number_of_messages(
    client: Client, broker: ObservedBroker
) -> None:
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    client.transport.is_stuck = True
    for _ in range(5):
        await client.send(data=publish_bytes(1) * DELIVERY_WINDOW_MESSAGES)
        client.transport.written.clear()
    assert calls(broker, "written") == []
    assert broker.queue("q").ready == 4 * DELIVERY_WINDOW_MESSAGES
    client.transport.is_stuck = False
    client.shell.resume_writing()
    while broker.queue("q").ready:
        await client.settle()
    assert sum(count for _, count in calls(broker, "written")) == 5 * DELIVERY_WINDOW_MESSAGES


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


async def test_a_channel_with_two_mistakes_behind_a_cold_call_is_closed_once_and_its_messages_go_back(
    client: Client, broker: ObservedBroker
) -> None:
    """The second is noticed before the broker has been asked for what the first asks."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q", consumer_tag="t"), data=publish_bytes(1))
    mistakes = publish_bytes(1, exchange="missing") + method_bytes(1, Basic.Ack(99))
    assert await client.send(Queue.Declare(queue="other"), data=mistakes) == ["Queue.DeclareOk", "Channel.Close"]
    process = broker.queue("q")
    assert (process.ready, process.unacked, process.consumer_count) == (1, 0, 0)
    assert await client.send(Channel.CloseOk(), Channel.Open()) == ["Channel.OpenOk"]


async def test_a_channel_that_is_closed_behind_a_mistake_is_closed(client: Client) -> None:
    closing = publish_bytes(1, exchange="missing") + method_bytes(1, Channel.Close(0, "", 0, 0))
    assert await client.send(Queue.Declare(queue="q"), data=closing) == ["Queue.DeclareOk", "Channel.CloseOk"]
    assert await client.send(Channel.Open()) == ["Channel.OpenOk"]


@pytest.mark.parametrize("is_orderly", [True, False])
async def test_what_a_client_sent_behind_a_cold_call_is_done_before_its_connection_ends(
    client: Client, broker: ObservedBroker, is_orderly: bool
) -> None:
    """A declaration, an ack and a publish without waiting for anything, and goodbye."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q", consumer_tag="t"), data=publish_bytes(1))
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q", nowait=True), Basic.Ack(1))
    await client.send(Basic.Cancel("t", nowait=True), data=publish_bytes(1, payload=b"last"))
    if is_orderly:
        assert await client.send(Connection.Close(200, "", 0, 0), channel=0) == []
    else:
        client.shell.connection_lost(None)
        await client.settle()
    assert not broker.connections[0].is_closed
    broker.hold_calls.set()
    await client.settle()
    assert client.names()[-1:] == ["Connection.CloseOk"] * is_orderly
    assert broker.connections[0].is_closed
    assert await broker.take("q") == [(b"last", False)]


async def test_a_call_that_takes_too_long_does_not_keep_a_connection_from_ending(
    client: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0)
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q"), data=publish_bytes(1))
    assert await client.send(Connection.Close(200, "", 0, 0), channel=0) == ["Connection.CloseOk"]
    assert calls(broker, "publish") == []


async def test_what_waits_behind_a_call_does_not_keep_a_connection_that_the_server_closes(
    client: Client, broker: ObservedBroker
) -> None:
    """It would not be done any more."""
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q"), data=publish_bytes(1))
    stop = asyncio.ensure_future(client.server.stop())
    await client.settle()
    broker.hold_calls.set()
    assert await client.send(Connection.CloseOk(), channel=0) == ["Connection.Close"]
    assert stop.done()
    assert client.server.connections() == []
    assert calls(broker, "publish") == []


async def test_an_answer_that_comes_before_the_broker_has_closed_does_not_keep_it_either(
    client: Client, broker: ObservedBroker
) -> None:
    """The answer is read in the turn in which the connection is closed."""
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q"), data=publish_bytes(1))
    client.shell.close(320, "shutdown")
    await client.send(Connection.CloseOk(), channel=0)
    assert client.server.connections() == []
    broker.hold_calls.set()
    await client.settle()
    assert broker.connections[0].is_closed


async def hold_message_and_call(client: Client, broker: ObservedBroker) -> None:
    """The client has a message of ``q`` that it has not settled, and waits for an answer."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q"), data=publish_bytes(1))
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="other"))


async def test_a_server_that_stops_and_waits_for_no_call_any_more_gives_all_back(
    client: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may go on, with other clients, when its pause has ended."""
    await hold_message_and_call(client, broker)
    monkeypatch.setattr(client.server, "_config", AmqpServerConfig(stop_timeout_s=0))
    await client.server.stop()
    await client.settle()
    assert broker.connections[0].is_closed
    assert await broker.take("q") == [(b"hello", True)]


async def test_a_server_that_stops_does_not_wait_long_for_a_call(
    client: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for a queue that nobody serves, and what supervises the node has less patience."""
    await hold_message_and_call(client, broker)
    monkeypatch.setattr(client.server, "_config", AmqpServerConfig(calls_timeout_s=0))
    stop = asyncio.create_task(client.server.stop())
    await client.settle()
    await client.send(Connection.CloseOk(), channel=0)
    assert stop.done()
    assert broker.connections[0].is_closed
    assert await broker.take("q") == [(b"hello", True)]


async def test_a_server_that_stops_does_not_wait_long_for_what_a_call_does_when_it_is_given_up(
    client: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion has its queue asked what comes of it, which nobody serves."""
    await client.send(Queue.Declare(queue="q"))
    never = asyncio.Event()
    for question in ("delete_if", "delete_abandoned"):
        monkeypatch.setattr(broker.bench.node.gateway, question, lambda *_arguments: never.wait())
    await client.send(Queue.Delete(queue="q"))
    monkeypatch.setattr(client.server, "_config", AmqpServerConfig(calls_timeout_s=0))
    stop = asyncio.create_task(client.server.stop())
    await client.settle()
    await client.send(Connection.CloseOk(), channel=0)
    assert stop.done()
    assert broker.connections[0].is_closed


async def test_who_is_dropped_after_hanging_up_is_not_waited_for(client: Client, broker: ObservedBroker) -> None:
    broker.hold_calls = asyncio.Event()
    await client.send(Queue.Declare(queue="q"), data=publish_bytes(1))
    client.transport.close()
    await client.settle()
    assert len(client.server.connections()) == 1
    client.shell.abort()
    assert client.server.connections() == []
    broker.hold_calls.set()
    await client.settle()
    assert broker.connections[0].is_closed


async def test_what_was_on_its_way_to_a_consumer_without_acks_takes_no_other_message_back(
    client: Client, broker: ObservedBroker
) -> None:
    """It was never stored. The first message of the queue was, and a consumer of the same channel has it."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q", consumer_tag="a"))
    await client.send(Basic.Qos(prefetch_count=1, global_=True))  # its queue has more on the way
    assert (await client.send(data=publish_bytes(1)))[0] == "Basic.Deliver"
    await client.send(Basic.Consume(queue="q", consumer_tag="b", no_ack=True))
    assert await client.send(data=publish_bytes(1) * 2) == ["Basic.Deliver"], "the limit holds what is to be acked"
    assert await client.send(Basic.Cancel("b")) == ["Basic.CancelOk"]
    assert await client.send(Basic.Ack(1)) == ["Basic.Deliver"]
    assert await client.send(Basic.Ack(3)) == []
    assert (broker.queue("q").ready, broker.queue("q").unacked) == (0, 0)


async def test_a_channel_that_has_reached_its_limit_leaves_the_rest_to_others(
    client: Client, broker: ObservedBroker
) -> None:
    other = await Client(client.server).open()
    one_each = Basic.Qos(prefetch_count=1, global_=True)
    await client.send(Queue.Declare(queue="q"), one_each, Basic.Consume(queue="q", consumer_tag="a"))
    assert await client.send(data=publish_bytes(1) * 2) == ["Basic.Deliver"]
    assert (await other.send(one_each, Basic.Consume(queue="q", consumer_tag="b")))[-1] == "Basic.Deliver"
    assert await client.send(Basic.Ack(1), data=publish_bytes(1)) == ["Basic.Deliver"]
    assert (broker.queue("q").ready, broker.queue("q").unacked) == (0, 2)


async def test_what_is_held_when_its_queue_stops_is_not_sent(client: Client, broker: ObservedBroker) -> None:
    """It would be acknowledged in vain, for it comes again where the queue goes on."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q", consumer_tag="a"))
    await client.send(Basic.Qos(prefetch_count=1, global_=True))
    assert await client.send(data=publish_bytes(1) * 2) == ["Basic.Deliver"]
    (queue,) = broker.bench.catalogue.topology.all_queues()
    broker.bench.node.gateway.queue_stopped(queue.queue_id)
    assert await client.send(Basic.Ack(1)) == []


async def test_pauses_of_the_broker_nest(client: Client, broker: ObservedBroker) -> None:
    control = broker.controls[0]
    control.pause_reading()
    control.pause_reading()
    control.resume_reading()
    assert client.is_held_back()
    control.resume_reading()
    assert not client.is_held_back()


async def test_the_state_listed_is_the_brokers(client: Client, broker: ObservedBroker) -> None:
    broker.connections[0].state = "flow"
    assert client.shell.listing().state == "flow"


async def test_during_an_alarm_publishes_wait_with_all_that_is_behind_them(
    client: Client, broker: ObservedBroker
) -> None:
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


async def test_an_alarm_that_comes_back_at_once_holds_the_publishes_again(
    client: Client, broker: ObservedBroker
) -> None:
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


async def test_a_blocked_connection_can_be_closed_by_the_node(client: Client, broker: ObservedBroker) -> None:
    broker.connections[0].is_welcome = False
    await client.send(data=publish_bytes(1))
    broker.controls[0].close(320, "shutdown")
    await client.settle()
    assert client.names() == ["Connection.Close"]
    await client.send(Connection.CloseOk(), channel=0)
    assert client.transport.is_closed
    assert calls(broker, "publish") == []


async def test_flow_is_the_brokers_to_know_and_listed(client: Client, broker: ObservedBroker) -> None:
    connection = broker.connections[0]
    connection.state = connection.flow_state = connection.channels[0].flow_state = "flow"
    listing = client.shell.listing()
    assert [listing.state, *(channel.state for channel in listing.channels)] == ["flow", "flow"]


async def test_an_error_of_publish_closes_the_channel_with_its_method(client: Client, broker: ObservedBroker) -> None:
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


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        (method_bytes(1, Basic.Ack(99)), "PRECONDITION_FAILED - unknown delivery tag 99 (406, caused by basic.ack)"),
        (
            method_bytes(1, Queue.Declare(queue="missing", passive=True)),
            "NOT_FOUND - no queue 'missing' in vhost '/' (404, caused by queue.declare)",
        ),
        (
            pack_method(1, Queue.Declare, 0, "a\x1b[1A", True, False, False, False, False, {}),
            "\"NOT_FOUND - no queue 'a\\x1b[1A' in vhost '/'\" (404, caused by queue.declare)",
        ),
    ],
    ids=["406", "404", "escape"],
)
async def test_why_a_channel_was_closed_is_a_warning(
    client: Client, caplog: pytest.LogCaptureFixture, mistake: bytes, reason: str
) -> None:
    await client.send(data=mistake)
    (record,) = [record for record in caplog.records if "closed by an error" in record.message]
    assert record.levelno == logging.WARNING
    assert record.message == f"{client.shell.name}: channel 1 closed by an error: {reason}"


async def test_a_client_that_makes_a_mistake_again_and_again_does_not_fill_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert await client.send(Basic.Ack(99)) == ["Channel.Close"]
        assert await client.send(Channel.CloseOk(), Channel.Open()) == ["Channel.OpenOk"]
    lines = [record.message for record in caplog.records if "closed by an error" in record.message]
    assert [line.partition("delivery tag ")[2] for line in lines] == ["99 (406, caused by basic.ack)"]


async def test_a_mistake_of_ours_ends_this_connection_only(
    client: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = await Client(client.server).open()

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


async def test_a_lost_connection_gives_everything_back(client: Client, broker: ObservedBroker) -> None:
    await client.send(Queue.Declare(queue="kept"), Queue.Declare(queue="own", exclusive=True))
    await client.send(data=publish_bytes(1, routing_key="kept"))
    await client.send(Basic.Consume(queue="kept"))
    assert broker.queue("kept").unacked == 1
    client.transport.close()
    await client.settle()
    assert broker.connections[0].is_closed
    assert await broker.take("kept") == [(b"hello", True)]
    assert broker.queue_names() == ["kept"]
    assert client.server.connections() == []


async def test_a_close_by_the_client_is_answered_when_the_broker_is_done(
    client: Client, broker: ObservedBroker
) -> None:
    await client.send(Queue.Declare(queue="own", exclusive=True))
    assert await client.send(Connection.Close(200, "", 0, 0), channel=0) == ["Connection.CloseOk"]
    assert broker.queue_names() == []
    assert client.transport.is_closed


async def test_too_many_connections_are_dropped(broker: ObservedBroker) -> None:
    server = await server_of(broker, connections_max=1)
    first, second = Client(server), Client(server)
    assert second.transport.is_closed
    assert not first.transport.is_closed
    first.transport.close()
    await first.settle()
    assert server.connections() == []


async def test_a_refused_login_logs_no_password(broker: ObservedBroker, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(await server_of(broker))
    client.shell.data_received(PROTOCOL_HEADER)
    properties: Any = {"capabilities": {"authentication_failure_close": True}}
    await client.send(Connection.StartOk(properties, "PLAIN", "\0guest\0hunter2"), channel=0)
    assert "refused" in caplog.text
    assert "hunter2" not in caplog.text
    client.transport.close()
    await client.settle()


async def test_a_deleted_user_is_shown_out_whatever_its_name_and_no_stranger_is(
    broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old releases have let the empty name in."""
    monkeypatch.setattr(broker, "authenticate", lambda *_: "")
    server = await server_of(broker)
    stranger, user = Client(server), Client(server)
    for client in (stranger, user):
        client.shell.data_received(PROTOCOL_HEADER)
    await user.send(Connection.StartOk({}, "PLAIN", "\0\0secret"), channel=0)
    assert (user.shell.listing().user, user.shell.listing().vhost) == ("", "")
    objections: list[tuple[str, str | None]] = []

    def objection(name: str, vhost: str | None) -> str:
        objections.append((name, vhost))
        return f"user '{name}' is deleted"

    server.close_objectionable(objection)
    assert objections == [("", None)]
    assert user.shell.machine.is_closed_by_server
    assert not stranger.shell.machine.is_closed_by_server


async def test_who_leaves_before_logging_in_is_no_warning(
    broker: ObservedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Health checks and load balancers do: connect, perhaps say hello, and hang up."""
    caplog.set_level(logging.INFO)
    for hello in (b"", PROTOCOL_HEADER):
        probe = Client(await server_of(broker))
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
