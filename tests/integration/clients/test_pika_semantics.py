# mypy: disable-error-code="no-untyped-call"
"""What clients rely on beyond the tutorials, each on the master's node and elsewhere, mirrored and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.clients.conftest import Stage
from tests.support.live_cluster import PERSISTENT, LiveCluster, numbered, publish_confirmed
from tests.support.pika_clients import drain, get, get_or_nothing, pump
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

MANY = 10_000
LARGE_BYTES = 5 * 1024 * 1024


@pytest.fixture
def channel(stage: Stage) -> Iterator[BlockingChannel]:
    with stage.cluster.channel(stage.node) as opened:
        yield opened


@pytest.fixture
def queue(stage: Stage) -> str:
    """A durable queue whose master is at ``stage.home``."""
    name = stage.name("queue")
    with stage.cluster.channel(stage.home) as opened:
        opened.queue_declare(name, durable=True)
    view = stage.cluster.queue(name)
    assert view is not None
    assert (view.master, len(view.mirrors)) == (stage.home, 2 if stage.prefix.startswith("ha.") else 0)
    return name


def is_empty(channel: BlockingChannel, queue: str) -> bool:
    return channel.basic_get(queue)[0] is None


# --- taking messages ---


def test_basic_get_counts_what_is_left(channel: BlockingChannel, queue: str) -> None:
    for body in (b"a", b"b"):
        channel.basic_publish("", queue, body)
    first, body = get(channel, queue)
    assert (body, first.redelivered, first.message_count, first.routing_key) == (b"a", False, 1, queue)
    second, body = get(channel, queue)
    assert (body, second.message_count) == (b"b", 0)
    assert is_empty(channel, queue)
    channel.basic_ack(second.delivery_tag, multiple=True)


def test_requeued_messages_come_back_in_order_marked_redelivered(channel: BlockingChannel, queue: str) -> None:
    for body in numbered(5):
        channel.basic_publish("", queue, body)
    taken = [get(channel, queue) for _ in range(3)]
    assert [method.redelivered for method, _ in taken] == [False] * 3
    channel.basic_nack(taken[-1][0].delivery_tag, multiple=True, requeue=True)
    again = [get(channel, queue) for _ in range(5)]
    assert [body for _, body in again] == numbered(5)
    assert [method.redelivered for method, _ in again] == [True] * 3 + [False] * 2
    channel.basic_nack(again[-1][0].delivery_tag, multiple=True, requeue=False)
    assert is_empty(channel, queue)


def test_unacked_messages_return_when_the_connection_ends(stage: Stage, queue: str) -> None:
    with stage.cluster.channel(stage.node) as first:
        first.basic_publish("", queue, b"taken, not acknowledged")
        get(first, queue)
    with stage.cluster.channel(stage.node) as second:
        taken = eventually(lambda: get_or_nothing(second, queue), "the message is back")
        assert taken is not None
        method, _ = taken
        assert method.redelivered
        second.basic_ack(method.delivery_tag)


def test_prefetch_shares_work_fairly(stage: Stage, queue: str) -> None:
    """A consumer that acknowledges nothing keeps what its prefetch allows; the other gets all the rest."""
    slow: list[bytes] = []
    fast: list[bytes] = []
    with stage.cluster.channel(stage.node) as idle, stage.cluster.channel(stage.node) as busy:
        idle.basic_qos(prefetch_count=2)
        idle.basic_consume(queue, lambda _c, _m, _p, body: slow.append(body))
        busy.basic_qos(prefetch_count=1)

        def work(channel: BlockingChannel, method: pika.spec.Basic.Deliver, _properties: object, body: bytes) -> None:
            fast.append(body)
            channel.basic_ack(method.delivery_tag)

        busy.basic_consume(queue, work)
        for body in numbered(20):
            busy.basic_publish("", queue, body)

        def served() -> bool:
            for channel in (idle, busy):
                channel.connection.process_data_events(0.01)
            return len(slow) + len(fast) == 20

        eventually(served, "all 20 messages are with a consumer")
        assert (len(slow), len(fast)) == (2, 18)
        assert sorted(slow + fast) == numbered(20)


def test_messages_of_a_remote_master_keep_their_order(stage: Stage, queue: str) -> None:
    bodies = numbered(MANY)
    publish_confirmed(stage.cluster, stage.node, queue, bodies)
    with stage.cluster.channel(stage.node) as channel:
        assert drain(channel, queue) == bodies


def test_large_message(stage: Stage, queue: str) -> None:
    body = bytes(range(256)) * (LARGE_BYTES // 256)
    with stage.cluster.channel(stage.node, confirm=True) as channel:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
        method, got = get(channel, queue)
        assert got == body
        channel.basic_ack(method.delivery_tag)


# --- publishing ---


def test_mandatory_message_that_nobody_wants_is_returned(stage: Stage) -> None:
    with stage.cluster.channel(stage.node, confirm=True) as channel:
        with pytest.raises(pika.exceptions.UnroutableError) as returned:
            channel.basic_publish("", stage.name("nobody"), b"text", mandatory=True)
        (message,) = returned.value.messages
        assert message.body == b"text"
        assert (message.method.reply_code, message.method.reply_text) == (312, "NO_ROUTE")
        channel.basic_publish("", stage.name("nobody"), b"text")  # not mandatory: dropped, and confirmed


def test_a_binding_counts_on_every_node_once_it_is_answered(cluster: LiveCluster) -> None:
    """Programs declare on one connection and publish on another; so does everybody behind a load balancer."""
    with (
        cluster.channel("n1", confirm=True) as first,
        cluster.channel("n2", confirm=True) as second,
        cluster.channel("n3", confirm=True) as third,
    ):
        channels = [first, second, third]
        for number in range(60):
            declarer, publisher, key = channels[number % 3], channels[(number + 1) % 3], f"key-{number}"
            queue = declarer.queue_declare("", exclusive=True).method.queue
            declarer.queue_bind(queue, "amq.direct", key)
            publisher.basic_publish("amq.direct", key, b"text", mandatory=True)  # UnroutableError if not known there
            declarer.queue_unbind(queue, "amq.direct", key)
            with pytest.raises(pika.exceptions.UnroutableError):
                publisher.basic_publish("amq.direct", key, b"text", mandatory=True)


def test_headers_exchange(stage: Stage, channel: BlockingChannel, queue: str) -> None:
    exchange = stage.name("headers")
    channel.exchange_declare(exchange, "headers")
    channel.queue_bind(queue, exchange, arguments={"x-match": "all", "format": "pdf", "type": "report"})
    channel.queue_bind(queue, exchange, arguments={"x-match": "any", "urgent": True, "size": 7})
    candidates: list[tuple[bytes, dict[str, Any]]] = [
        (b"both", {"format": "pdf", "type": "report", "more": 1}),
        (b"half", {"format": "pdf"}),
        (b"any", {"size": 7}),
        (b"other value", {"size": 8, "urgent": False}),
        (b"nothing", {}),
    ]
    for body, headers in candidates:
        channel.basic_publish(exchange, "", body, pika.BasicProperties(headers=headers))
    assert [get(channel, queue)[1] for _ in range(2)] == [b"both", b"any"]
    assert is_empty(channel, queue)


def test_transaction_commits_or_rolls_back(stage: Stage, queue: str) -> None:
    with stage.cluster.channel(stage.node) as watcher, stage.cluster.channel(stage.node) as channel:
        channel.tx_select()
        for body in numbered(3):
            channel.basic_publish("", queue, body)
        assert is_empty(watcher, queue)
        channel.tx_commit()
        channel.basic_publish("", queue, b"taken back")
        channel.tx_rollback()
        assert channel.queue_declare(queue, passive=True).method.message_count == 3

        method, _ = get(channel, queue)
        channel.basic_ack(method.delivery_tag)
        channel.tx_rollback()
        channel.basic_ack(method.delivery_tag)  # the acknowledgement was undone, so the tag is known still
        channel.tx_commit()
        assert drain(watcher, queue) == numbered(3)[1:]


# --- queues and their lives ---


def test_server_named_queue_and_the_last_name(channel: BlockingChannel) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue
    other = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    assert name != other
    channel.queue_bind("", "amq.fanout")  # the empty name means the queue declared last
    channel.basic_publish("amq.fanout", "", b"text")
    assert get(channel, other)[1] == b"text"
    assert is_empty(channel, name)


def test_exclusive_queue_lives_with_its_connection(stage: Stage) -> None:
    name = stage.name("exclusive")
    with stage.cluster.channel(stage.home) as owner:
        owner.queue_declare(name, exclusive=True)
        view = stage.cluster.queue(name)
        assert view is not None
        assert view.mirrors == ()  # exclusive queues are never mirrored
        with stage.cluster.channel(stage.node) as other:
            closed = _refused(lambda: other.queue_declare(name, passive=True))
            assert closed.reply_code == 405
            assert "cannot obtain exclusive access to locked queue" in closed.reply_text
    eventually(lambda: stage.cluster.queue(name) is None, "the queue has gone with its connection")


def test_auto_delete_queue_goes_with_its_last_consumer(stage: Stage) -> None:
    name = stage.name("auto-delete")
    with stage.cluster.channel(stage.home) as first:
        first.queue_declare(name, auto_delete=True)
    with stage.cluster.channel(stage.node) as channel:
        tags = [channel.basic_consume(name, lambda *_: None) for _ in range(2)]
        channel.basic_cancel(tags[0])
        assert channel.queue_declare(name, passive=True).method.consumer_count == 1
        channel.basic_cancel(tags[1])
        eventually(lambda: stage.cluster.queue(name) is None, "the queue has gone with its last consumer")


def test_consumer_hears_that_its_queue_was_deleted(stage: Stage, queue: str) -> None:
    with stage.cluster.channel(stage.node) as channel, stage.cluster.channel("n3") as other:
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = channel.basic_consume(queue, lambda *_: None)
        other.queue_delete(queue)
        pump(channel, lambda: cancelled, "basic.cancel")
        assert cancelled == [tag]
        assert channel.is_open


# --- refusals ---


def _refused(request: Any) -> pika.exceptions.ChannelClosedByBroker:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        request()
    return refused.value


def test_passive_declare_of_a_missing_queue(stage: Stage, channel: BlockingChannel) -> None:
    name = stage.name("missing")
    refused = _refused(lambda: channel.queue_declare(name, passive=True))
    assert (refused.reply_code, refused.reply_text) == (404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
    assert channel.connection.channel().is_open  # the connection goes on


def test_inequivalent_declare(channel: BlockingChannel, queue: str) -> None:
    refused = _refused(lambda: channel.queue_declare(queue, durable=False))
    assert (refused.reply_code, refused.reply_text) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'false' but current is 'true'",
    )
    other = channel.connection.channel()
    arguments = {"x-max-length": 5}
    refused = _refused(lambda: other.queue_declare(queue, durable=True, arguments=arguments))
    assert refused.reply_code == 406
    assert f"inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/'" in refused.reply_text
    assert "received the value '5' of type 'signedint' but current is none" in refused.reply_text


def test_unknown_delivery_tag(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"text")
    method, _ = get(channel, queue)
    channel.basic_ack(method.delivery_tag)
    channel.basic_ack(method.delivery_tag)
    refused = _refused(lambda: channel.queue_declare(queue, passive=True))
    assert (refused.reply_code, refused.reply_text) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")


def test_wrong_password(cluster: LiveCluster, node: str) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as refused:
        cluster.connect(node, credentials=pika.PlainCredentials("guest", "wrong"))
    text = str(refused.value)
    assert "403" in text
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in text


def test_unknown_vhost(cluster: LiveCluster, node: str) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as refused:
        cluster.connect(node, virtual_host="nowhere")
    assert "(530) 'NOT_ALLOWED - vhost nowhere not found'" in str(refused.value)


@pytest.mark.parametrize(("asked", "agreed"), [(None, 60), (7, 7), (0, 0)])
def test_heartbeat_is_negotiated(cluster: LiveCluster, node: str, asked: int | None, agreed: int) -> None:
    connection = cluster.connect(node, heartbeat=asked)
    with connection, cluster.admin(node) as client:
        tuned = connection._impl.params.heartbeat
        assert (60 if tuned is None else tuned) == agreed
        rows = client.list_connections(("peer_port", "timeout")).as_dicts()
        port = connection._impl._transport._sock.getsockname()[1]  # type: ignore[union-attr]
        assert [row["timeout"] for row in rows if row["peer_port"] == port] == [agreed]
