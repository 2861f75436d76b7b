"""The broker from a client's point of view, without sockets. `tests.support.broker_bench` explains the texts."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from pamqp import commands, header

from node.amqp.ports import ConnectionInfo
from node.broker import channel as channel_module
from node.broker import connection as connection_module
from node.errors import AmqpError, ChannelError, ConnectionFailure
from node.flow.credit import Credit
from node.ids import split_msg_id
from node.queues.events import ConsumerSpec
from node.routing.properties import headers_of
from node.topology.commands import DeleteQueue
from tests.support.broker_bench import BrokerBench, RecordedControl, request
from tests.support.messages import encode_headers


@pytest.fixture
async def bench() -> BrokerBench:
    return BrokerBench()


def spec(tag: str = "t", *, no_ack: bool = False, exclusive: bool = False, **fields: Any) -> ConsumerSpec:
    return ConsumerSpec(tag, no_ack=no_ack, exclusive=exclusive, **fields)


def properties(**fields: Any) -> bytes:
    return header.ContentHeader(0, 0, commands.Basic.Properties(**fields)).marshal()[12:]


#: Three, which `pamqp` would not write.
ODD_DELIVERY_MODE = b"\x10\x00\x03"
#: It stands behind all that can precede it, and in front of one byte.
LATE_DELIVERY_MODE = properties(content_type="a", content_encoding="b", headers={"c": 1}, delivery_mode=1, priority=1)


# --- publishing ---


async def test_publishes_reach_the_queue_in_order_and_are_confirmed(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    client.channel.publish([request("a", seq=1), request("b", seq=2)])
    client.channel.publish([request("c", seq=3)])
    assert await client.heard() == ["confirm 1 2 3"]
    bodies = [each.body for each in bench.node.messages("q")]
    assert bodies == [b"a", b"b", b"c"]


async def test_every_publish_has_its_own_identity(bench: BrokerBench) -> None:
    client = bench.client()
    other = bench.client()
    await client.declare("q")
    client.channel.publish([request(), request()])
    other.channel.publish([request()])
    ids = [split_msg_id(each.msg_id) for each in bench.node.messages("q")]
    assert [counter for _, counter in ids] == [1, 2, 1]
    assert ids[0][0] == ids[1][0] != ids[2][0]


async def test_a_channel_without_confirms_hears_nothing_and_is_counted_all_the_same(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q", durable=True)
    properties = encode_headers({"h": "x" * 1000})
    client.channel.publish([request("12345", persistent=True), request("678", properties=properties, persistent=True)])
    await bench.run()
    assert client.connection.unconfirmed_messages == 2
    assert client.connection.unconfirmed_bytes == 8 + 2 + len(properties), "headers weigh as bodies do"
    await bench.sync()
    assert await client.heard() == []
    assert (client.connection.unconfirmed_messages, client.connection.unconfirmed_bytes) == (0, 0)


async def test_publishes_to_thousands_of_queues_are_enqueued_in_steps_bounded_by_copies(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 publishes to 100 queues and one more are 2,001 copies: however few publishes that are, it is much."""
    monkeypatch.setattr(channel_module, "COPIES_AT_ONCE", 64)
    client = bench.client()
    for number in range(100):
        await client.declare(f"f{number}")
        await client.definitions.bind_queue(f"f{number}", "amq.fanout", "", {})
    await client.declare("q")
    bodies = [b"%d" % number for number in range(20)]
    requests = [request(body.decode(), exchange="amq.fanout", seq=seq) for seq, body in enumerate(bodies, 1)]
    work = client.channel.publish([*requests, request("last", seq=21)])
    assert work is not None
    copies_before, steps = 0, 0
    while True:
        is_done = work.step(client.channel)
        copies = sum(len(bench.node.messages(f"f{number}")) for number in range(100))
        assert copies - copies_before <= 2 * 64, "a step is over with the queue that makes it so many"
        copies_before, steps = copies, steps + 1
        if is_done:
            break
    assert steps >= 2_000 // 128
    assert all([each.body for each in bench.node.messages(f"f{number}")] == bodies for number in range(100))
    assert [each.body for each in bench.node.messages("q")] == [b"last"]
    confirmed = " ".join(await client.heard()).replace("confirm", "").split()
    assert sorted(map(int, confirmed)) == list(range(1, 22)), "each once, by all of its queues"
    assert client.connection.unconfirmed_messages == 0


async def test_a_publish_to_thousands_that_is_refused_in_the_middle_leaves_what_came_before_it(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "COPIES_AT_ONCE", 2)
    client = bench.client()
    for name in "abc":
        await client.declare(name)
        await client.definitions.bind_queue(name, "amq.fanout", "", {})
    fan, bad = request("m", exchange="amq.fanout"), request("m", exchange="missing")
    work = client.channel.publish([fan, fan, bad, fan])
    assert work is not None
    assert [work.step(client.channel) for _ in range(4)] == [False] * 4
    with pytest.raises(ChannelError):
        work.step(client.channel)
    assert [len(bench.node.messages(name)) for name in "abc"] == [2, 2, 2]
    client.channel.check_invariants()


async def test_a_check_of_publishes_refuses_what_a_publish_would_and_does_nothing(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    client.channel.check_publishes([request("a")])
    assert bench.node.messages("q") == []
    odd = [properties(expiration="soon"), ODD_DELIVERY_MODE]
    for refused in (request(exchange="missing"), *(request(properties=each) for each in odd)):
        with pytest.raises(ChannelError):
            client.channel.check_publishes([request("a"), refused])
    reader = bench.client("reader")
    with pytest.raises(ChannelError) as caught:
        reader.channel.check_publishes([request(exchange="amq.fanout")])
    assert caught.value.reply_code == 403


async def test_a_publish_to_several_queues_is_confirmed_by_the_last(bench: BrokerBench) -> None:
    client = bench.client()
    for name, durable in (("a", False), ("b", True)):
        await client.declare(name, durable=durable)
        await client.definitions.bind_queue(name, "amq.fanout", "", {})
    client.channel.publish([request(exchange="amq.fanout", seq=1, persistent=True), request(key="a", seq=2)])
    assert await client.heard() == ["confirm 2"]
    await bench.sync()
    assert await client.heard() == ["confirm 1"]


async def test_rejections_reach_the_publisher(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q", max_length=1, overflow="reject-publish")
    client.channel.publish([request(seq=1), request(seq=2)])
    assert await client.heard() == ["confirm 1", "reject 2"]


async def test_an_unroutable_message_is_returned_if_mandatory_and_then_confirmed(bench: BrokerBench) -> None:
    client = bench.client()
    client.channel.publish(
        [request("a", key="none", mandatory=True, seq=1), request("b", key="none", seq=2), request("c", key="none")]
    )
    assert await client.heard() == ["returned a 312 NO_ROUTE", "confirm 1 2"]


async def test_what_precedes_a_refused_publish_is_enqueued(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    with pytest.raises(ChannelError) as caught:
        client.channel.publish([request(seq=1), request(exchange="missing", seq=2), request(seq=3)])
    assert caught.value.reply_text == "NOT_FOUND - no exchange 'missing' in vhost '/'"
    assert await client.heard() == ["confirm 1"]


async def test_an_internal_exchange_takes_nothing_from_clients(bench: BrokerBench) -> None:
    client = bench.client()
    await client.exchange("inner", internal=True)
    with pytest.raises(ChannelError) as caught:
        client.channel.publish([request(exchange="inner")])
    assert caught.value.reply_code == 403


async def test_bcc_is_removed_before_delivery_and_cc_stays(bench: BrokerBench) -> None:
    client = bench.client()
    for name in ("a", "b", "c"):
        await client.declare(name)
    extra = encode_headers({"CC": ["b"], "BCC": ["c"], "kept": 1})
    client.channel.publish([request("m", key="a", properties=extra)])
    for name in ("a", "b", "c"):
        got = await client.channel.get(name, no_ack=True)
        assert got is not None
        assert headers_of(got.delivery.message.properties) == {"CC": ["b"], "kept": 1}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (properties(expiration="soon"), "invalid expiration 'soon'"),
        (properties(expiration="-1"), "invalid expiration '-1'"),
        (properties(expiration="5"), "expiration '5' cannot be kept: messages do not expire in this release"),
        (properties(user_id="root"), "user_id property set to 'root' but authenticated user was 'guest'"),
        (encode_headers({"CC": 5}), "unsupported type of CC header"),
        (ODD_DELIVERY_MODE, "invalid message: delivery mode 3 is neither 1 (transient) nor 2 (persistent)"),
        (LATE_DELIVERY_MODE[:-2] + b"\0\1", "invalid message: delivery mode 0"),
    ],
)
async def test_properties_that_are_refused(bench: BrokerBench, raw: bytes, text: str) -> None:
    client = bench.client()
    await client.declare("q")
    for _ in range(2):  # the second time the route is known
        with pytest.raises(ChannelError) as caught:
            client.channel.publish([request(properties=raw)])
        assert caught.value.reply_text.startswith(f"PRECONDITION_FAILED - {text}")
        client.channel.publish([request(properties=properties(user_id="guest", priority=9, delivery_mode=1))])
    assert bench.node.copy("q").ready == 2


# --- flow and alarms ---


async def test_bytes_count_as_well_and_a_closed_channel_frees_its_part(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "UNCONFIRMED_BYTES", Credit(10, 5))
    client = bench.client()
    await client.declare("q", durable=True)
    client.channel.publish([request("x" * 11, seq=1, persistent=True)])
    assert client.control.pauses == 1
    await client.channel.close()
    assert client.control.pauses == 0
    assert client.connection.unconfirmed_bytes == 0
    await bench.sync()
    assert await client.heard() == []


async def test_an_alarm_pauses_those_who_publish(bench: BrokerBench) -> None:
    publisher, consumer = bench.client(), bench.client()
    bench.broker.set_alarm("low on memory")
    assert not publisher.connection.may_publish()
    assert not publisher.connection.may_publish(), "a second channel tries"
    assert (publisher.control.pauses, consumer.control.pauses) == (1, 0)
    assert (publisher.connection.state, consumer.connection.state) == ("blocked", "blocking")
    await bench.run()
    bench.broker.set_alarm("")
    assert (publisher.control.pauses, publisher.connection.state) == (0, "running")
    assert publisher.connection.may_publish()
    assert publisher.control.heard == ["blocked low on memory", "unblocked"]
    assert consumer.control.heard == [], "a consumer that counts the seconds of a block must not give up"
    await bench.run()


def test_who_has_published_is_told_at_once_and_paused_when_it_tries_again(bench: BrokerBench) -> None:
    publisher = bench.client()
    assert publisher.connection.may_publish()
    bench.broker.set_alarm("low on memory")
    assert publisher.control.heard == ["blocked low on memory"]
    assert (publisher.control.pauses, publisher.connection.state) == (0, "blocking"), "its acks are still read"
    assert not publisher.connection.may_publish()
    assert publisher.control.heard == ["blocked low on memory"], "once is enough"
    bench.broker.set_alarm("")
    assert publisher.control.heard == ["blocked low on memory", "unblocked"]


def test_a_publisher_says_for_how_long_an_alarm_has_stopped_it(bench: BrokerBench) -> None:
    publisher, consumer = bench.client(), bench.client()

    def stopped_ms() -> list[int | None]:
        return [client.connection.alarmed_ms for client in (publisher, consumer)]

    publisher.connection.may_publish()
    assert stopped_ms() == [None, None]
    bench.broker.set_alarm("low on memory")
    bench.broker.flow.advance(1_500)
    assert stopped_ms() == [1_500, None]
    assert not publisher.connection.may_publish()
    assert stopped_ms() == [1_500, None], "it is stopped since it was told"
    bench.broker.set_alarm("")
    assert stopped_ms() == [None, None]


def test_a_new_reason_goes_to_those_who_are_told_from_now_on(bench: BrokerBench) -> None:
    early, late = bench.client(), bench.client()
    bench.broker.set_alarm("low on memory")
    early.connection.may_publish()
    bench.broker.set_alarm("low on memory & disk")
    late.connection.may_publish()
    bench.broker.set_alarm("low on disk")
    assert early.control.heard == ["blocked low on memory"]
    assert late.control.heard == ["blocked low on memory & disk"]
    assert (early.control.pauses, late.control.pauses) == (1, 1)
    bench.broker.set_alarm("")
    assert (early.control.pauses, late.control.pauses) == (0, 0)


# --- consuming ---


async def test_deliveries_are_settled_where_they_came_from(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    await client.channel.consume("q", spec())
    client.channel.publish([request("a"), request("b"), request("c")])
    assert await client.heard() == ["t: a b c"]
    source = client.sink.deliveries[0][1]
    ids = [delivery.seq_id for _, _, delivery in client.sink.deliveries]
    client.channel.ack(source, ids[:1])
    client.channel.discard(source, ids[1:2])
    client.channel.requeue(source, ids[2:])
    assert await client.heard() == ["t: c"]
    client.channel.written(source, "t", 4)
    assert bench.node.copy("q").live_positions(0) == ids[2:], "the others are settled"


async def test_a_delivery_of_an_earlier_life_of_the_queue_settles_nothing(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    client.channel.publish([request("old")])
    got = await client.channel.get("q", no_ack=False)
    assert got is not None
    await client.definitions.delete_queue("q", if_unused=False, if_empty=False)
    await client.declare("q")
    client.channel.publish([request("new")])
    again = await client.channel.get("q", no_ack=False)
    assert again is not None
    assert again.delivery.seq_id == got.delivery.seq_id
    assert again.source != got.source
    client.channel.ack(got.source, [got.delivery.seq_id])
    assert bench.node.copy("q").unacked == 1


async def test_cancel_and_consumer_arguments(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    await client.channel.consume("q", spec(arguments={"x-priority": 3, "x-cancel-on-ha-failover": True}))
    process = bench.node.process("q")
    ((_, stored, _),) = process.consumers()
    assert (stored.priority, stored.cancel_on_failover) == (3, True)
    await client.channel.cancel("t")
    await client.channel.cancel("never")
    assert process.consumer_count == 0
    for arguments in ({"x-priority": "high"}, {"x-cancel-on-ha-failover": "yes"}):
        with pytest.raises(ChannelError) as caught:
            await client.channel.consume("q", spec(arguments=arguments))
        assert caught.value.reply_code == 406
    await client.channel.consume("q", spec())


async def test_a_refused_consumer_leaves_no_trace(bench: BrokerBench) -> None:
    client, other = bench.client(), bench.client()
    await client.declare("q")
    await client.channel.consume("q", spec(exclusive=True))
    with pytest.raises(ChannelError):
        await other.channel.consume("q", spec())
    await client.channel.cancel("t")
    await other.channel.consume("q", spec())


async def test_a_deleted_queue_cancels_its_consumers(bench: BrokerBench) -> None:
    client, other = bench.client(), bench.client()
    await client.declare("q")
    await client.channel.consume("q", spec())
    assert await other.definitions.delete_queue("q", if_unused=False, if_empty=False) == 0
    assert await client.heard() == ["cancelled t"]
    await client.declare("q")
    await client.channel.consume("q", spec())


async def test_a_closed_channel_gives_everything_back(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    await client.channel.consume("q", spec(prefetch_count=1))
    client.channel.publish([request("a"), request("b")])
    await client.heard()
    await client.channel.close()
    await client.channel.close()
    client.channel.publish([request("late")])
    await bench.run()
    assert bench.node.copy("q").ready == 2
    assert client.connection.channels == {}


# --- declaring and deleting ---


async def test_a_declaration_answers_with_counts(bench: BrokerBench) -> None:
    client = bench.client()
    assert await client.declare("q") == ("q", 0, 0)
    await client.channel.consume("q", spec(prefetch_count=1))
    client.channel.publish([request(), request(), request()])
    await bench.run()
    assert await client.declare("q") == ("q", 2, 1)
    assert await client.declare("q", passive=True, durable=True) == ("q", 2, 1)
    assert await client.definitions.purge_queue("q") == 2


async def test_the_broker_makes_names(bench: BrokerBench) -> None:
    client = bench.client()
    first, _, _ = await client.declare("", exclusive=True)
    second, _, _ = await client.declare("")
    assert first != second
    assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", first)
    assert (await client.declare(first, exclusive=True))[0] == first
    assert (await client.declare("line\r\nbreak"))[0] == "linebreak"
    with pytest.raises(ChannelError) as caught:
        await client.declare("amq.gen-mine")
    assert caught.value.reply_code == 403


async def test_conditions_of_deletion(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    client.channel.publish([request()])
    with pytest.raises(ChannelError) as caught:
        await client.definitions.delete_queue("q", if_unused=False, if_empty=True)
    assert caught.value.reply_code == 406
    assert await client.definitions.delete_queue("q", if_unused=True, if_empty=False) == 1
    assert await client.definitions.delete_queue("q", if_unused=True, if_empty=True) == 0


async def test_exchanges_and_bindings(bench: BrokerBench) -> None:
    client = bench.client()
    await client.exchange("in", "fanout")
    await client.exchange("in", "fanout")
    await client.exchange("out", "topic")
    await client.declare("q")
    await client.definitions.bind_exchange("out", "in", "", {})
    await client.definitions.bind_queue("q", "out", "a.*", {})
    client.channel.publish([request("yes", exchange="in", key="a.b"), request("no", exchange="in", key="b.a")])
    await client.definitions.unbind_queue("q", "out", "a.*", {})
    client.channel.publish([request("late", exchange="in", key="a.b")])
    await client.definitions.unbind_exchange("out", "in", "", {})
    await client.definitions.unbind_queue("missing", "out", "a.*", {})
    assert [each.body for each in bench.node.messages("q")] == [b"yes"]
    await client.exchange("in", passive=True)
    await client.definitions.delete_exchange("in", if_unused=False)
    with pytest.raises(ChannelError) as caught:
        await client.exchange("in", passive=True)
    assert caught.value.reply_code == 404


async def test_line_ends_in_names_count_nowhere_in_definitions(bench: BrokerBench) -> None:
    client = bench.client()
    for name in ("in\n", "out\r\n"):
        await client.exchange(name, "fanout")
    await client.declare("q\n")
    await client.definitions.bind_exchange("out\n", "i\nn", "", {})
    await client.definitions.bind_queue("q\n", "out\n", "", {})
    client.channel.publish([request("yes", exchange="in")])
    assert [each.body for each in bench.node.messages("q")] == [b"yes"]
    await client.definitions.unbind_queue("q\n", "out\n", "", {})
    await client.definitions.unbind_exchange("out\n", "in\n", "", {})
    assert not list(
        bench.catalogue.topology.bindings_from("/", "in") + bench.catalogue.topology.bindings_from("/", "out")
    )
    assert await client.definitions.delete_queue("q\n", if_unused=False, if_empty=False) == 1
    await client.definitions.delete_exchange("in\n", if_unused=False)
    assert bench.catalogue.topology.queue("/", "q") is None
    assert bench.catalogue.topology.exchange("/", "in") is None


async def test_asking_for_the_default_exchange_is_refused_as_declaring_it_is(bench: BrokerBench) -> None:
    with pytest.raises(ChannelError) as caught:
        await bench.client().exchange("", passive=True)
    assert caught.value.reply_text == "ACCESS_REFUSED - operation not permitted on the default exchange"


@pytest.mark.parametrize(
    ("kind", "name", "code"), [("x-odd", "x", 503), ("direct", "", 403), ("direct", "amq.x", 403), ("topic", "d", 406)]
)
async def test_exchange_declarations_that_are_refused(bench: BrokerBench, kind: str, name: str, code: int) -> None:
    client = bench.client()
    await client.exchange("d", "direct")
    with pytest.raises(AmqpError) as caught:
        await client.exchange(name, kind)
    assert caught.value.reply_code == code


async def test_missing_queues_are_404(bench: BrokerBench) -> None:
    client = bench.client()
    uses = [
        client.declare("none", passive=True),
        client.channel.consume("none", spec()),
        client.channel.get("none", no_ack=True),
        client.definitions.purge_queue("none"),
        client.definitions.bind_queue("none", "amq.direct", "", {}),
    ]
    for use in uses:
        with pytest.raises(ChannelError) as caught:
            await use
        assert caught.value.reply_text == "NOT_FOUND - no queue 'none' in vhost '/'"


# --- users ---


async def test_who_may_not_publish_does_not_learn_which_exchanges_there_are(bench: BrokerBench) -> None:
    reader = bench.client("reader")
    await bench.client().exchange("inside", internal=True)
    for name in ("missing", "inside"):
        with pytest.raises(ChannelError) as caught:
            reader.channel.publish([request(exchange=name)])
        assert caught.value.reply_code == 403
        assert f"write access to exchange '{name}'" in caught.value.reply_text


async def test_permissions_are_checked_everywhere(bench: BrokerBench) -> None:
    guest, reader = bench.client(), bench.client("reader")
    await guest.declare("q")
    await guest.exchange("open-x", "fanout")
    await guest.declare("open-q")
    reader.channel.publish([request(exchange="open-x")])
    await reader.channel.consume("q", spec())
    await reader.definitions.bind_queue("open-q", "open-x", "", {})
    with pytest.raises(ChannelError) as caught:
        reader.channel.publish([request(key="q")])
    assert caught.value.reply_text == (
        "ACCESS_REFUSED - write access to exchange '' in vhost '/' refused for user 'reader'"
    )
    uses = [
        reader.declare("new"),
        reader.declare(""),
        reader.exchange("new"),
        reader.definitions.bind_queue("q", "open-x", "", {}),
        reader.definitions.bind_exchange("amq.fanout", "open-x", "", {}),
        reader.definitions.unbind_exchange("amq.fanout", "open-x", "", {}),
        reader.definitions.delete_queue("q", if_unused=False, if_empty=False),
        reader.definitions.delete_exchange("open-x", if_unused=False),
    ]
    for use in uses:
        with pytest.raises(ChannelError) as caught:
            await use
        assert caught.value.reply_code == 403
    assert (await reader.declare("q", passive=True))[0] == "q"


async def test_entering_a_vhost(bench: BrokerBench) -> None:
    for user, vhost, text in (
        ("guest", "nowhere", "NOT_ALLOWED - vhost nowhere not found"),
        ("nobody", "/", "NOT_ALLOWED - access to vhost '/' refused for user 'nobody'"),
    ):
        info = ConnectionInfo("127.0.0.1", 1, 5672, user, vhost, {})
        with pytest.raises(ConnectionFailure) as caught:
            bench.broker.open_connection(info, RecordedControl())
        assert caught.value.reply_text == text
    assert bench.broker.authenticate("PLAIN", b"\0guest\0guest", "127.0.0.1") == "guest"
    with pytest.raises(ConnectionFailure):
        bench.broker.authenticate("PLAIN", b"\0guest\0wrong", "127.0.0.1")
    assert bench.broker.server_properties()["product"] == "Warren"


async def test_whoever_and_wherever_is_not_there_any_more_is_objected_to(bench: BrokerBench) -> None:
    assert bench.broker.objection("guest", None) is None
    assert bench.broker.objection("guest", "/") is None
    assert bench.broker.objection("guest", "") == "vhost '' is deleted"
    assert bench.broker.objection("", None) == "user '' is deleted"


async def test_a_deletion_that_is_cancelled_is_left_to_the_master(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client()
    await client.declare("q")

    async def for_ever(_command: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(bench.catalogue, "submit", for_ever)
        task = asyncio.ensure_future(client.definitions.delete_queue("q", if_unused=False, if_empty=False))
        await asyncio.sleep(0)
        client.channel.publish([request(seq=1)])
        assert await client.heard() == []
        task.cancel()
        await asyncio.wait([task])
    assert await client.heard() == [], "the command may have been submitted"
    assert bench.node.deletions_open == [bench.node.queue("q")]
    bench.node.process("q").unseal()
    bench.node.queues.touch(bench.node.queue("q").queue_id)
    assert await client.heard() == ["confirm 1"]


async def test_a_declaration_of_a_queue_that_is_about_to_be_deleted_meets_its_successor(bench: BrokerBench) -> None:
    client = bench.client()
    await client.declare("q")
    first = bench.node.queue("q").queue_id
    await bench.node.gateway.delete_if(first, if_unused=False, if_empty=False)
    declaring = asyncio.ensure_future(client.declare("q"))
    await bench.run()
    assert not declaring.done()
    bench.catalogue.apply(DeleteQueue("/", "q", first))
    await declaring
    assert bench.node.queue("q").queue_id != first
