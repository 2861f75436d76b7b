"""The producer and the consumer by which RabbitMQ's HA suites judge find what they are there to find."""

from __future__ import annotations

import pytest

from tests.conformance.ha.clients import CaseFailed, Consumer, Producer
from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import simulated


async def consume(c: Cluster, contents: list[bytes]) -> Consumer:
    """What a consumer that expects 3, 2, 1 makes of these."""
    await c.declare("q", "n1")
    await c.publish("q", contents)
    consumer = Consumer(await c.channel("n1"), "q", 3)
    await consumer.subscribe()
    return consumer


@simulated
async def test_c1_a_producer_wants_an_answer_to_everything_and_the_same() -> None:
    async with cluster(1) as c:
        await c.declare("q", "n1", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        producer = Producer(await c.channel("n1", confirm=True), "q", 10)
        with pytest.raises(CaseFailed, match="5 of 10 publishes were nacked"):
            await producer.all_acked()
        with pytest.raises(CaseFailed, match="5 of 10 publishes were acked"):
            await producer.all_nacked()


@simulated
async def test_c1_a_producer_does_not_wait_for_ever() -> None:
    async with cluster(3, policy={"ha-mode": "all"}, config={"cluster_partition_handling": "ignore"}) as c:
        await c.declare("q", "n1")
        channel = await c.channel("n1", confirm=True)
        c.isolate("n1")
        producer = Producer(channel, "q", 10)
        with pytest.raises(CaseFailed, match="10 publishes were not answered in 10 s"):
            await producer.all_acked(limit_s=10)


@simulated
async def test_c2_a_consumer_is_content_with_everything_in_its_order() -> None:
    async with cluster(1) as c:
        consumer = await consume(c, [b"3", b"2", b"1"])
        await consumer.everything()
        assert await c.count("q", "n1") == 0, "everything was acked"


@simulated
async def test_c2_a_consumer_takes_again_what_is_flagged() -> None:
    async with cluster(1) as c:
        await c.declare("q", "n1")
        await c.publish("q", [b"3", b"2", b"1"])
        first = await c.channel("n1")
        await first.get("q")
        await first.get("q")
        consumer = Consumer(await c.channel("n1"), "q", 3)
        consumer.lowest = 2  # it has seen both
        first.connection.close()
        await c.until(lambda: c.master_role("q").mirrored.ready == 3, "both are back")
        await consumer.subscribe()
        await consumer.everything()
        assert consumer.redelivered == 2


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        ([b"3", b"1"], "1 came where 2 was due"),
        ([b"3", b"2", b"2"], "2 came again without the flag"),
        ([b"3", b"2"], "2 was the last"),
    ],
)
@simulated
async def test_c2_a_consumer_finds_what_is_missing_and_what_is_there_twice(
    contents: list[bytes], complaint: str
) -> None:
    async with cluster(1) as c:
        consumer = await consume(c, contents)
        with pytest.raises(CaseFailed, match=complaint):
            await consumer.everything()


@simulated
async def test_c3_a_consumer_that_asked_to_be_told_subscribes_again_on_the_same_channel() -> None:
    async with cluster(policy={"ha-mode": "all"}) as c:
        await c.declare("q", "n1")
        await c.publish("q", [b"3", b"2"])
        consumer = Consumer(await c.channel("n2"), "q", 3, cancel_on_failover=True)
        await consumer.subscribe()
        await c.until(lambda: consumer.lowest == 2, "two messages")
        c.kill("n1")
        await c.until(lambda: consumer.cancels, "the cancel")
        await c.publish("q", [b"1"], "n3")
        await consumer.everything()


@simulated
async def test_c3_a_cancel_that_nobody_asked_for_is_a_mistake() -> None:
    async with cluster(1) as c:
        consumer = await consume(c, [b"3"])
        await (await c.channel("n1")).delete("q")
        with pytest.raises(CaseFailed, match="was cancelled and had not asked for it"):
            await consumer.everything()


@pytest.mark.slow
@simulated
async def test_c4_twenty_thousand_messages_and_a_fault_every_fifty_milliseconds() -> None:
    """The volume of RabbitMQ's suites: the master is stopped after 50 ms, the next one after 100."""
    number = 20_000
    async with cluster(5, policy={"ha-mode": "all", "ha-sync-mode": "automatic"}) as c:
        await c.declare("q", "n1")
        consumer = Consumer(await c.channel("n4"), "q", number, cancel_on_failover=True)
        await consumer.subscribe()
        producer = Producer(await c.channel("n5", confirm=True), "q", number, pause_ms=1, at_a_time=50)
        await c.pause_ms(50)
        await c.stop("n1")
        await c.pause_ms(50)
        await c.stop("n2")
        await consumer.everything()
        await producer.all_acked()
