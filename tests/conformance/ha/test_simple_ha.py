"""RabbitMQ's ``simple_ha_SUITE``: what clients see when the node of the master stops, is killed, or loses its part.

There the clusters have two or three nodes; here always three, because two nodes of which one is gone are no majority.
The master is on n1, the consumer on n2, the producer on n3.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chaos.sim.client import Channel, ClosedError
from tests.conformance.ha.clients import NO_CAPABILITIES, Consumer, Producer, numbered, publish_with
from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import seeded, simulated

ALL = {"ha-mode": "all", "ha-sync-mode": "automatic"}
#: RabbitMQ's suites publish 20,000 and strike after 50 ms; this many take about as long as the longest failover.
MESSAGES = 200
#: How long it takes to publish them.
PUBLISHING_MS = 60.0

Fault = Callable[[Cluster], Coroutine[Any, Any, None]]


async def stop_master(c: Cluster) -> None:
    await c.stop("n1")


async def kill_master(c: Cluster) -> None:
    c.kill("n1")


async def move_master_by_policy(c: Cluster) -> None:
    await c.set_policy({"ha-mode": "nodes", "ha-params": ["n2", "n3"], "ha-sync-mode": "automatic"}, node="n2")


def produce(channel: Channel) -> Producer:
    return Producer(channel, "q", MESSAGES, pause_ms=PUBLISHING_MS / (MESSAGES / 10))


async def consume_survives(fault: Fault, seed: int) -> None:
    """A consumer that asked to be told of failovers subscribes again, and gets everything in order."""
    async with cluster(seed=seed, policy=ALL) as c:
        await c.declare("q", "n1")
        consumer = Consumer(await c.channel("n2"), "q", MESSAGES, cancel_on_failover=True)
        await consumer.subscribe()
        producer = produce(await c.channel("n3", confirm=True))
        await c.pause_ms(c.moment_ms(PUBLISHING_MS))
        await fault(c)
        await consumer.everything()
        await producer.all_acked()
        await c.until(lambda: consumer.cancels == 1, "the consumer was told once")
        assert c.master("q") == "n2"


async def confirms_survive(fault: Fault, seed: int) -> None:
    """Every publish is confirmed, none refused, and everything is there once and in order."""
    async with cluster(seed=seed, policy=ALL) as c:
        await c.declare("q", "n1")
        producer = produce(await c.channel("n2", confirm=True))
        await c.pause_ms(c.moment_ms(PUBLISHING_MS))
        await fault(c)
        await producer.all_acked()
        await c.served("q", by="n2")
        assert [int(content) for content in await c.drain("q", "n3")] == list(range(MESSAGES, 0, -1))


async def rejects_survive(fault: Fault, overflow: str, seed: int) -> None:
    """The queue holds one message and is full: everything else is refused, before, during and after the failover."""
    async with cluster(seed=seed, policy=ALL) as c:
        await c.declare("q", "n1", arguments={"x-max-length": 1, "x-overflow": overflow})
        await c.publish("q", [b"original"], "n2")
        producer = produce(await c.channel("n2", confirm=True))
        await c.pause_ms(c.moment_ms(PUBLISHING_MS))
        await fault(c)
        await producer.all_nacked()
        await c.served("q", by="n2")
        assert await c.drain("q", "n3") == [b"original"]


async def resumes_by_itself(capabilities: dict[str, Any]) -> None:
    """Whoever did not ask to be told is not cancelled: the deliveries go on."""
    async with cluster(policy=ALL) as c:
        await c.declare("q", "n1")
        consumer = Consumer(await c.channel("n2", capabilities=capabilities), "q", MESSAGES)
        await consumer.subscribe()
        producer = produce(await c.channel("n3", confirm=True))
        await c.pause_ms(PUBLISHING_MS / 2)
        c.kill("n1")
        await consumer.everything()
        await producer.all_acked()
        assert consumer.cancels == 0


@simulated
async def test_s1_declaring_and_deleting_in_quick_succession_never_fails() -> None:
    async with cluster(policy=ALL) as c:
        channel = await c.channel("n1")
        for _ in range(20):
            await c.within(channel.declare("q"), "declare-ok")
            await c.within(channel.delete("q"), "delete-ok")


@seeded("S2")
async def test_s2_the_mirror_exists_when_the_declaration_is_answered(seed: int) -> None:
    """The only confirmed message survives the master, killed in the moment of the confirm, or (every other seed) gone
    with its machine."""
    async with cluster(seed=seed, policy=ALL) as c:
        channel = await c.channel("n1", confirm=True)
        confirmed: list[int] = []

        def kill_at_once(number: int, _multiple: bool, is_ack: bool) -> None:
            assert is_ack, "the only publish is confirmed"
            confirmed.append(number)
            end = c.kill if seed % 2 else c.lose_power
            end("n1")

        channel.on_confirm = kill_at_once
        await channel.declare("q")
        publish_with(channel, "q", b"only one")
        await c.until(lambda: confirmed, "the confirm")
        await c.noticed("n1")
        await c.served("q")
        assert await c.count("q", "n2") == 1
        assert await c.drain("q", "n3") == [b"only one"]


@simulated
async def test_s3_exclusive_queues_go_with_the_node_of_their_connection() -> None:
    async with cluster(policy=ALL) as c:
        channel = await c.channel("n1")
        await channel.declare("mine", exclusive=True, durable=False)
        assert c.placement("mine").mirrors == (), "exclusive queues are never mirrored"
        c.kill("n1")
        await c.until(lambda: c.newest().topology.queue("/", "mine") is None, "the queue is gone")
        await c.start("n1")
        await c.whole()
        for node in c.names:
            with pytest.raises(ClosedError) as refused:
                await c.count("mine", node)
            assert refused.value.code == 404


@seeded("S4")
async def test_s4_exclusive_queues_are_declared_again_on_another_node(seed: int) -> None:
    """They live where their connection does. So the end of another node costs none of the ten, and after the end of
    their own they can be declared again, under the same names, wherever the client goes."""
    async with cluster(seed=seed, policy=ALL) as c:
        names = [f"exclusive-{number}" for number in range(10)]
        arguments = {"x-queue-master-locator": "min-masters"}
        cancelled: list[str] = []
        received: list[bytes] = []

        async def take(node: str) -> Channel:
            channel = await c.channel(node)
            channel.on_cancel = cancelled.append
            channel.on_deliver = lambda message: received.append(message.body)
            for name in names:
                await channel.declare(name, exclusive=True, durable=False, arguments=arguments)
                await channel.consume(name, name, no_ack=True)
            return channel

        async def all_work(channel: Channel) -> None:
            received.clear()
            for name in names:
                publish_with(channel, name, name.encode())
            await c.until(lambda: sorted(received) == [name.encode() for name in names], "each queue has delivered")

        channel = await take("n1")
        await c.pause_ms(c.moment_ms(50))
        c.kill("n2")
        await c.noticed("n2")
        await all_work(channel)
        assert cancelled == []
        await c.start("n2")
        await c.pause_ms(c.moment_ms(50))
        c.kill("n1")
        await c.noticed("n1")
        await all_work(await c.within(take("n3"), "all are declared again"))


@simulated
async def test_s5_consuming_survives_a_stop() -> None:
    await consume_survives(stop_master, 0)


@seeded("S6")
async def test_s6_consuming_survives_sigkill(seed: int) -> None:
    await consume_survives(kill_master, seed)


@simulated
async def test_s7_consuming_survives_a_policy() -> None:
    await consume_survives(move_master_by_policy, 0)


@simulated
async def test_s8_a_consumer_goes_on_by_itself() -> None:
    await resumes_by_itself({"consumer_cancel_notify": True})


@simulated
async def test_s9_so_does_one_that_cannot_be_told() -> None:
    await resumes_by_itself(dict(NO_CAPABILITIES))


@simulated
async def test_s10_confirms_survive_a_stop() -> None:
    await confirms_survive(stop_master, 0)


@seeded("S11")
async def test_s11_confirms_survive_sigkill(seed: int) -> None:
    await confirms_survive(kill_master, seed)


@simulated
async def test_s12_confirms_survive_a_policy() -> None:
    await confirms_survive(move_master_by_policy, 0)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@simulated
async def test_s13_refusals_survive_a_stop(overflow: str) -> None:
    await rejects_survive(stop_master, overflow, 0)


@seeded("S14")
async def test_s14_refusals_survive_sigkill(seed: int) -> None:
    await rejects_survive(kill_master, "reject-publish", seed)


@seeded("S14-dlx")
async def test_s14_refusals_with_dead_lettering_survive_sigkill(seed: int) -> None:
    await rejects_survive(kill_master, "reject-publish-dlx", seed)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@simulated
async def test_s15_refusals_survive_a_policy(overflow: str) -> None:
    await rejects_survive(move_master_by_policy, overflow, 0)


@simulated
async def test_s10_the_queue_keeps_the_order_of_all_that_was_published_before() -> None:
    """Of the same suite's promise: what was there before the failover stands before what came during it."""
    async with cluster(policy=ALL) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(50), "n2")
        producer = produce(await c.channel("n2", confirm=True))
        await c.pause_ms(PUBLISHING_MS / 2)
        c.kill("n1")
        await producer.all_acked()
        assert (await c.drain("q", "n3"))[:50] == numbered(50)
