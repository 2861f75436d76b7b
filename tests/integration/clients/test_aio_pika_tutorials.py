"""The six tutorials, and publisher confirms, with aio-pika. Where queues and clients stand: see the pika programs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from pamqp.commands import Basic

from tests.integration.clients.conftest import Stage
from tests.support.live_cluster import persistent

pytestmark = pytest.mark.integration

PATIENCE_S = 20


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        yield await connection.channel()


async def receive(queue: AbstractQueue, count: int) -> list[tuple[str | None, bytes]]:
    """The next ``count`` messages with their routing keys."""
    got: list[tuple[str | None, bytes]] = []
    async with asyncio.timeout(PATIENCE_S), queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                got.append((message.routing_key, message.body))
            if len(got) == count:
                break
    return got


async def test_1_hello_world(stage: Stage) -> None:
    name = stage.name("hello")
    async with opened(stage.home_url) as channel:
        await channel.declare_queue(name)
    async with opened(stage.url) as channel:
        await channel.default_exchange.publish(Message(b"Hello World!"), routing_key=name)
    async with opened(stage.url) as channel:
        queue = await channel.declare_queue(name)
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def callback(message: AbstractIncomingMessage) -> None:
            await received.put(message.body)

        await queue.consume(callback, no_ack=True)
        assert await asyncio.wait_for(received.get(), PATIENCE_S) == b"Hello World!"


async def test_2_work_queue(stage: Stage) -> None:
    name, tasks = stage.name("task_queue"), [b"task %d" % number for number in range(20)]
    async with opened(stage.home_url) as channel:
        await channel.declare_queue(name, durable=True)
    async with opened(stage.url) as channel:
        for task in tasks:
            await channel.default_exchange.publish(persistent(task), routing_key=name)
    async with opened(stage.url) as channel:
        await channel.set_qos(prefetch_count=1)
        queue = await channel.declare_queue(name, durable=True)
        assert queue.declaration_result.message_count == len(tasks)
        assert [body for _, body in await receive(queue, len(tasks))] == tasks


async def test_3_publish_subscribe(stage: Stage) -> None:
    name = stage.name("logs")
    async with opened(stage.home_url) as first, opened(stage.home_url) as second, opened(stage.url) as publisher:
        queues = []
        for channel in (first, second):
            logs = await channel.declare_exchange(name, ExchangeType.FANOUT)
            queue = await channel.declare_queue(exclusive=True)
            assert queue.name.startswith("amq")
            await queue.bind(logs)
            queues.append(queue)
        logs = await publisher.declare_exchange(name, ExchangeType.FANOUT)
        for text in (b"info", b"warning"):
            await logs.publish(Message(text), routing_key="")
        for queue in queues:
            assert await receive(queue, 2) == [("", b"info"), ("", b"warning")]


async def test_4_routing(stage: Stage) -> None:
    name = stage.name("direct_logs")
    async with opened(stage.home_url) as subscriber, opened(stage.url) as publisher:
        logs = await subscriber.declare_exchange(name, ExchangeType.DIRECT)
        queue = await subscriber.declare_queue(exclusive=True)
        for severity in ("warning", "error"):
            await queue.bind(logs, routing_key=severity)
        logs = await publisher.get_exchange(name)
        for severity in ("info", "warning", "debug", "error"):
            await logs.publish(Message(severity.encode()), routing_key=severity, mandatory=False)
        assert await receive(queue, 2) == [("warning", b"warning"), ("error", b"error")]
        assert await queue.get(fail=False) is None


async def test_5_topics(stage: Stage) -> None:
    name = stage.name("topic_logs")
    async with opened(stage.home_url) as subscriber, opened(stage.url) as publisher:
        logs = await subscriber.declare_exchange(name, ExchangeType.TOPIC)
        queue = await subscriber.declare_queue(exclusive=True)
        for key in ("kern.*", "*.critical", "cron.#"):
            await queue.bind(logs, routing_key=key)
        logs = await publisher.get_exchange(name)
        keys = ["kern.info", "kern.critical", "auth.critical", "auth.info", "kern.disk.critical", "cron", "cron.a.b"]
        for key in keys:
            await logs.publish(Message(b"text"), routing_key=key, mandatory=False)
        got = [key for key, _ in await receive(queue, 5)]
        assert got == ["kern.info", "kern.critical", "auth.critical", "cron", "cron.a.b"]
        assert await queue.get(fail=False) is None


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


async def test_6_rpc(stage: Stage) -> None:
    name, questions = stage.name("rpc_queue"), [1, 10, 20]
    async with opened(stage.home_url) as server, opened(stage.url) as client:
        requests = await server.declare_queue(name)

        async def on_request(message: AbstractIncomingMessage) -> None:
            async with message.process():
                answer = Message(str(fibonacci(int(message.body))).encode(), correlation_id=message.correlation_id)
                await server.default_exchange.publish(answer, routing_key=message.reply_to or "")

        await requests.consume(on_request)

        futures: dict[str, asyncio.Future[int]] = {}

        async def on_response(message: AbstractIncomingMessage) -> None:
            futures.pop(message.correlation_id or "").set_result(int(message.body))

        callback_queue = await client.declare_queue(exclusive=True)
        await callback_queue.consume(on_response, no_ack=True)
        waiting = []
        for question in questions:
            correlation_id = str(uuid.uuid4())
            futures[correlation_id] = future = asyncio.get_running_loop().create_future()
            waiting.append(future)
            asked = Message(str(question).encode(), correlation_id=correlation_id, reply_to=callback_queue.name)
            await client.default_exchange.publish(asked, routing_key=name)
        assert await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S) == [1, 55, 6765]


async def test_7_publisher_confirms(stage: Stage) -> None:
    name, bodies = stage.name("confirmed"), [b"%d" % number for number in range(500)]
    async with opened(stage.home_url) as channel:
        await channel.declare_queue(name, durable=True)
    async with opened(stage.url) as channel:
        exchange = channel.default_exchange
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*(exchange.publish(persistent(body), name) for body in bodies))
        assert all(isinstance(answer, Basic.Ack) for answer in answers)
        queue = await channel.declare_queue(name, durable=True)
        assert queue.declaration_result.message_count == len(bodies)
        assert [body for _, body in await receive(queue, len(bodies))] == bodies


async def test_transaction(stage: Stage) -> None:
    async with opened(stage.home_url) as channel:
        queue = await channel.declare_queue(stage.name("tx"))
    connection = await aio_pika.connect(stage.url)
    async with connection:
        channel = await connection.channel(publisher_confirms=False)
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"kept"), queue.name, mandatory=False)
        transaction = channel.transaction()
        await transaction.select()
        await channel.default_exchange.publish(Message(b"forgotten"), queue.name, mandatory=False)
        await transaction.rollback()
    async with opened(stage.url) as channel:
        again = await channel.declare_queue(queue.name)
        assert again.declaration_result.message_count == 1
        assert await receive(again, 1) == [(queue.name, b"kept")]
