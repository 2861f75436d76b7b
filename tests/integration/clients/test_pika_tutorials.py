# mypy: disable-error-code="no-untyped-call"
"""The six tutorials, and publisher confirms, with pika: the programs of the web, shortened to what they do.

Work queues and the queue of the RPC server are declared on one node and used from the other in half of the runs. In
publish/subscribe, routing and topics every subscriber has an exclusive queue on its own node; there the publisher is
the one elsewhere.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.clients.conftest import Stage
from tests.support.pika_clients import PATIENCE_S, take

pytestmark = pytest.mark.integration


@contextmanager
def opened(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def test_1_hello_world(stage: Stage) -> None:
    queue = stage.name("hello")
    with opened(stage.home_url) as channel:
        channel.queue_declare(queue=queue)
    with opened(stage.url) as channel:
        channel.queue_declare(queue=queue)
        channel.basic_publish(exchange="", routing_key=queue, body=b"Hello World!")
    received: list[bytes] = []
    with opened(stage.url) as channel:

        def callback(channel: BlockingChannel, _method: object, _properties: object, body: bytes) -> None:
            received.append(body)
            channel.stop_consuming()

        channel.basic_consume(queue=queue, on_message_callback=callback, auto_ack=True)
        channel.start_consuming()
    assert received == [b"Hello World!"]


def test_2_work_queue(stage: Stage) -> None:
    queue, tasks = stage.name("task_queue"), [b"task %d" % number for number in range(20)]
    with opened(stage.home_url) as channel:
        channel.queue_declare(queue=queue, durable=True)
    with opened(stage.url) as channel:
        channel.queue_declare(queue=queue, durable=True)
        for task in tasks:
            channel.basic_publish(
                exchange="",
                routing_key=queue,
                body=task,
                properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
            )
    done: list[bytes] = []
    with opened(stage.url) as channel:
        channel.queue_declare(queue=queue, durable=True)
        channel.basic_qos(prefetch_count=1)

        def work(channel: BlockingChannel, method: pika.spec.Basic.Deliver, _properties: object, body: bytes) -> None:
            done.append(body)
            channel.basic_ack(delivery_tag=method.delivery_tag)
            if len(done) == len(tasks):
                channel.stop_consuming()

        channel.basic_consume(queue=queue, on_message_callback=work)
        channel.start_consuming()
        assert channel.queue_declare(queue=queue, passive=True).method.message_count == 0
    assert done == tasks


def test_3_publish_subscribe(stage: Stage) -> None:
    logs = stage.name("logs")
    with opened(stage.home_url) as first, opened(stage.home_url) as second, opened(stage.url) as publisher:
        queues = []
        for channel in (first, second):
            channel.exchange_declare(exchange=logs, exchange_type="fanout")
            queue = channel.queue_declare(queue="", exclusive=True).method.queue
            assert queue.startswith("amq.gen-")
            channel.queue_bind(exchange=logs, queue=queue)
            queues.append(queue)
        publisher.exchange_declare(exchange=logs, exchange_type="fanout")
        for text in (b"info", b"warning"):
            publisher.basic_publish(exchange=logs, routing_key="", body=text)
        for channel, queue in zip((first, second), queues, strict=True):
            assert take(channel, queue, 2) == [("", b"info"), ("", b"warning")]


def test_4_routing(stage: Stage) -> None:
    logs = stage.name("direct_logs")
    with opened(stage.home_url) as subscriber, opened(stage.url) as publisher:
        subscriber.exchange_declare(exchange=logs, exchange_type="direct")
        queue = subscriber.queue_declare(queue="", exclusive=True).method.queue
        for severity in ("warning", "error"):
            subscriber.queue_bind(exchange=logs, queue=queue, routing_key=severity)
        for severity in ("info", "warning", "debug", "error"):
            publisher.basic_publish(exchange=logs, routing_key=severity, body=severity.encode())
        assert take(subscriber, queue, 2) == [("warning", b"warning"), ("error", b"error")]
        assert subscriber.basic_get(queue) == (None, None, None)


def test_5_topics(stage: Stage) -> None:
    logs = stage.name("topic_logs")
    with opened(stage.home_url) as subscriber, opened(stage.url) as publisher:
        subscriber.exchange_declare(exchange=logs, exchange_type="topic")
        queue = subscriber.queue_declare(queue="", exclusive=True).method.queue
        for key in ("kern.*", "*.critical", "cron.#"):
            subscriber.queue_bind(exchange=logs, queue=queue, routing_key=key)
        keys = ["kern.info", "kern.critical", "auth.critical", "auth.info", "kern.disk.critical", "cron", "cron.a.b"]
        for key in keys:
            publisher.basic_publish(exchange=logs, routing_key=key, body=b"text")
        got = [key for key, _ in take(subscriber, queue, 5)]
        assert got == ["kern.info", "kern.critical", "auth.critical", "cron", "cron.a.b"]
        assert subscriber.basic_get(queue) == (None, None, None)


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def serve_fibonacci(url: str, queue: str, request_count: int, is_ready: threading.Event) -> None:
    with opened(url) as channel:
        channel.queue_declare(queue=queue)
        answered = 0

        def on_request(
            channel: BlockingChannel,
            method: pika.spec.Basic.Deliver,
            properties: pika.BasicProperties,
            body: bytes,
        ) -> None:
            nonlocal answered
            answered += 1
            channel.basic_publish(
                exchange="",
                routing_key=properties.reply_to or "",
                properties=pika.BasicProperties(correlation_id=properties.correlation_id),
                body=str(fibonacci(int(body))).encode(),
            )
            channel.basic_ack(delivery_tag=method.delivery_tag)
            if answered == request_count:
                channel.stop_consuming()

        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue=queue, on_message_callback=on_request)
        is_ready.set()
        channel.start_consuming()


def test_6_rpc(stage: Stage) -> None:
    queue, questions, is_ready = stage.name("rpc_queue"), [1, 10, 20], threading.Event()
    server = threading.Thread(
        target=serve_fibonacci, args=(stage.home_url, queue, len(questions), is_ready), daemon=True
    )
    server.start()
    assert is_ready.wait(PATIENCE_S)
    answers = []
    with opened(stage.url) as channel:
        callback_queue = channel.queue_declare(queue="", exclusive=True).method.queue
        for question in questions:
            correlation_id = str(uuid.uuid4())
            asked = pika.BasicProperties(reply_to=callback_queue, correlation_id=correlation_id)
            channel.basic_publish(exchange="", routing_key=queue, properties=asked, body=str(question).encode())
            for method, properties, body in channel.consume(callback_queue, auto_ack=True, inactivity_timeout=20):
                assert method is not None, f"no answer to {question}"
                assert properties is not None
                assert body is not None
                assert properties.correlation_id == correlation_id
                answers.append(int(body))
                break
    server.join(PATIENCE_S)
    assert not server.is_alive()
    assert answers == [1, 55, 6765]


def test_7_publisher_confirms(stage: Stage) -> None:
    queue, count = stage.name("confirmed"), 50
    with opened(stage.home_url) as channel:
        channel.queue_declare(queue=queue, durable=True)
    with opened(stage.url) as channel:
        channel.confirm_delivery()
        for number in range(count):  # returns when confirmed, raises NackError or UnroutableError otherwise
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", queue, str(number).encode(), properties, mandatory=True)
        assert channel.queue_declare(queue=queue, passive=True).method.message_count == count
        assert [int(body) for _, body in take(channel, queue, count)] == list(range(count))


@pytest.mark.parametrize("exchange_type", ["fanout", "topic"])
def test_two_subscribers_on_two_nodes_both_hear(stage: Stage, exchange_type: str) -> None:
    logs = stage.name(exchange_type)
    with opened(stage.home_url) as here, opened(stage.cluster.url("n3")) as there, opened(stage.url) as publisher:
        queues = []
        for channel in (here, there):
            channel.exchange_declare(exchange=logs, exchange_type=exchange_type)
            queue = channel.queue_declare(queue="", exclusive=True).method.queue
            channel.queue_bind(exchange=logs, queue=queue, routing_key="#")
            queues.append(queue)
        publisher.basic_publish(exchange=logs, routing_key="any.thing", body=b"heard")
        assert take(here, queues[0], 1) == take(there, queues[1], 1) == [("any.thing", b"heard")]
