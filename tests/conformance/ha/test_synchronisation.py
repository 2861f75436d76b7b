"""RabbitMQ's ``sync_detection_SUITE``, ``eager_sync_SUITE`` and ``many_node_ha_SUITE``.

There a mirror that comes back throws its content away. Here it keeps it and lacks only what came meanwhile, so where a
case needs a mirror that has nothing, it is a new one.
"""

from __future__ import annotations

from typing import Any

import pytest

from chaos.sim.client import Channel, Delivered
from cluster.transport.admin_port import AdminRefused
from tests.conformance.ha.clients import Consumer, Producer, numbered
from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import seeded, simulated

MESSAGES = 200


def pair(**more: Any) -> dict[str, Any]:
    return {"ha-mode": "nodes", "ha-params": ["n1", "n2"], **more}


async def take(channel: Channel) -> Delivered:
    message = await channel.get("q")
    assert message is not None, "a message is ready"
    return message


async def miss(c: Cluster, contents: list[bytes]) -> None:
    """The mirror on n2 is away while these are published."""
    await c.stop("n2")
    await c.publish("q", contents)
    await c.start("n2")
    await c.following("q", "n2")


def is_synchronised(c: Cluster) -> bool:
    return c.placement("q").synchronised == ("n2",)


@simulated
async def test_y1_a_mirror_is_unsynchronised_until_what_it_missed_is_gone() -> None:
    async with cluster(policy=pair()) as c:
        await c.declare("q", "n1")
        await c.synchronised("q", "n2")
        await c.publish("q", [b"before"])
        await miss(c, [b"missed 1", b"missed 2"])
        await c.publish("q", [b"after"])
        await c.pause_ms(500)
        assert not is_synchronised(c)

        channel = await c.channel("n1")
        known, first, second = await take(channel), await take(channel), await take(channel)
        assert [known.body, first.body, second.body] == [b"before", b"missed 1", b"missed 2"]
        channel.ack(known.delivery_tag)
        channel.nack(first.delivery_tag)
        channel.ack(second.delivery_tag)
        await c.pause_ms(500)
        assert not is_synchronised(c), "what went back to the queue is missing still"
        channel.ack((await take(channel)).delivery_tag)
        await c.until(lambda: is_synchronised(c), "nothing is missing any more")

        after = await take(channel)
        channel.nack(after.delivery_tag)
        channel.ack((await take(channel)).delivery_tag)
        await c.pause_ms(500)
        assert is_synchronised(c), "of what it knows it learns everything"


@simulated
async def test_y1_a_mirror_that_missed_nothing_is_synchronised_when_it_is_back() -> None:
    async with cluster(policy=pair()) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(MESSAGES))
        await c.restart("n2")
        await c.synchronised("q", "n2")
        assert c.copy("q", "n2") == numbered(MESSAGES)


@pytest.mark.parametrize(("known", "missed"), [([], [b"1", b"2"]), ([b"1"], [b"2"]), ([b"1", b"2"], [])])
@simulated
async def test_y2_what_the_queue_drops_by_itself_synchronises_as_acks_do(
    known: list[bytes], missed: list[bytes]
) -> None:
    """There they expire, here newer ones push them out of a queue of two; known to the mirror or not, it follows."""
    async with cluster(policy=pair()) as c:
        await c.declare("q", "n1", arguments={"x-max-length": 2})
        await c.synchronised("q", "n2")
        await c.publish("q", known)
        await miss(c, missed)
        await c.publish("q", [b"3"])
        await c.pause_ms(500)
        assert is_synchronised(c) == (not missed), "the first is pushed out, and the second is still missing"
        await c.publish("q", [b"4"])
        await c.until(lambda: is_synchronised(c), "nothing is missing any more")
        assert c.copy("q", "n2") == await c.drain("q", "n3") == [b"3", b"4"]


async def new_mirror(c: Cluster, **policy: Any) -> None:
    """Messages on n1, and a mirror on n2 that has none of them."""
    await c.set_policy({"ha-mode": "nodes", "ha-params": ["n1"], **policy})
    await c.declare("q", "n1")
    await c.publish("q", numbered(MESSAGES))
    await c.set_policy(pair(**policy))
    await c.following("q", "n2")


async def restart_and_be_replaced(c: Cluster) -> None:
    """n1 comes back only when n2 serves: a master that is back sooner goes on with what it has."""
    await c.stop("n1")
    await c.served("q", by="n2")
    await c.start("n1")


@simulated
async def test_e1_without_synchronisation_a_new_mirror_has_nothing_to_serve() -> None:
    async with cluster() as c:
        await new_mirror(c, **{"ha-promote-on-shutdown": "always"})
        await restart_and_be_replaced(c)
        await c.restart("n2")
        await c.served("q")
        assert await c.count("q", "n3") == 0


@simulated
async def test_e1_synchronised_between_two_restarts_nothing_is_lost() -> None:
    async with cluster() as c:
        await new_mirror(c, **{"ha-promote-on-shutdown": "always"})
        await c.sync("q", "n3")
        assert is_synchronised(c)
        await c.sync("q", "n1")  # all are synchronised: nothing to do
        await c.restart("n1")
        await c.restart("n2")
        assert await c.drain("q", "n3") == numbered(MESSAGES)


@simulated
async def test_e1_who_comes_back_with_its_content_needs_no_synchronisation() -> None:
    """RabbitMQ loses everything here: its mirrors discard what they had."""
    async with cluster(policy=pair()) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(MESSAGES))
        await c.restart("n1")
        await c.restart("n2")
        await c.served("q")
        assert await c.drain("q", "n3") == numbered(MESSAGES)


@simulated
async def test_e1_unacked_messages_are_synchronised_too() -> None:
    async with cluster() as c:
        await new_mirror(c)
        channel = await c.channel("n3")
        for _ in range(10):
            await take(channel)
        await c.sync("q")
        assert c.copy("q", "n2") == numbered(MESSAGES)
        channel.connection.abort()
        c.kill("n1")
        await c.served("q", by="n2")
        assert await c.drain("q", "n3") == numbered(MESSAGES)


@simulated
async def test_e1_a_queue_without_mirrors_cannot_be_synchronised() -> None:
    async with cluster() as c:
        await c.declare("q", "n1")
        with pytest.raises(AdminRefused, match="not_mirrored"):
            await c.sync("q")


@simulated
async def test_e2_a_cancelled_synchronisation_leaves_the_queue_running_and_the_mirror_behind() -> None:
    """What has arrived stays on the mirror; there it is thrown away."""
    config = {"mirroring_sync_max_throughput_bytes": 5_000, "mirroring_sync_batch_size": 10}
    async with cluster(config=config) as c:
        await new_mirror(c, **{"ha-promote-on-shutdown": "always"})
        await c.cancel_sync("q")  # nothing is being synchronised: success
        asked = c.loop.create_task(c.sync("q", "n3"))
        await c.until(lambda: c.copy("q", "n2"), "the first messages have arrived")
        (listed,) = await c.list_queues("n1", ["name", "state"])
        assert listed["state"].startswith("{syncing, ")
        await c.cancel_sync("q", "n2")
        await asked
        await c.cancel_sync("q", "n2")
        await c.publish("q", [b"while it runs"], "n3")
        await c.pause_ms(1_000)
        assert not is_synchronised(c)
        arrived = c.copy("q", "n2")
        assert arrived[-1] == b"while it runs"
        assert 0 < len(arrived) < MESSAGES
        await restart_and_be_replaced(c)
        assert await c.drain("q", "n3") == arrived


@simulated
async def test_e3_with_automatic_synchronisation_nodes_may_be_restarted_one_after_the_other() -> None:
    async with cluster(policy={"ha-mode": "all", "ha-sync-mode": "automatic"}) as c:
        await c.declare("q", "n1")
        for number, name in enumerate(["n1", "n2", "n3", "n1"]):
            await c.publish("q", numbered(100, first=1 + 100 * number), "n2")
            await c.restart(name)
            await c.until(lambda: len(c.placement("q").synchronised) == 2, "all are synchronised again")
        assert await c.drain("q", "n3") == numbered(400)


@simulated
async def test_e4_a_policy_that_becomes_automatic_synchronises() -> None:
    async with cluster() as c:
        await new_mirror(c)
        await c.pause_ms(1_000)
        assert not is_synchronised(c)
        await c.set_policy(pair(**{"ha-sync-mode": "automatic"}))
        await c.synchronised("q", "n2")
        assert c.copy("q", "n2") == numbered(MESSAGES)


@pytest.mark.parametrize("when", ["before", "after"])
@simulated
async def test_e5_messages_that_go_back_around_a_synchronisation_are_kept(when: str) -> None:
    async with cluster() as c:
        await c.set_policy({"ha-mode": "nodes", "ha-params": ["n1"]})
        await c.declare("q", "n1")
        await c.publish("q", numbered(2))
        await c.set_policy(pair())
        await c.following("q", "n2")
        channel = await c.channel("n1")
        first, second = await take(channel), await take(channel)
        if when == "before":
            channel.nack(first.delivery_tag)
        await c.sync("q")
        if when == "after":
            channel.nack(first.delivery_tag)
        channel.nack(second.delivery_tag)
        await c.until(lambda: c.master_role("q").mirrored.ready == 2, "both are back")
        await c.restart("n1")
        assert await c.drain("q", "n3") == numbered(2)


@seeded("M1")
async def test_m1_master_and_three_mirrors_are_killed_one_after_the_other(seed: int) -> None:
    """Six nodes there, of which two are left. A majority must be left here, so there are nine."""
    async with cluster(9, seed=seed, policy={"ha-mode": "all", "ha-sync-mode": "automatic"}) as c:
        await c.declare("q", "n1")
        consumer = Consumer(await c.channel("n8"), "q", 200, cancel_on_failover=True)
        await consumer.subscribe()
        producer = Producer(await c.channel("n9", confirm=True), "q", 200, pause_ms=3)
        for _ in range(4):
            await c.pause_ms(c.moment_ms(30))
            c.kill(c.master("q") if c.chance.random() < 0.5 and c.master("q") < "n8" else c.running()[0])
        await consumer.everything()
        await producer.all_acked()
