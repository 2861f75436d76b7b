"""The mirror cases of RabbitMQ's ``priority_queue_SUITE``, which were given up in 2021.

Priorities are not carried out here, so what is left is what the cases ask of mirrors: synchronisation of whatever a
queue holds, a mirror that does not fall over, and policies that come and go.
"""

from __future__ import annotations

import asyncio

from chaos.sim.client import Channel, Delivered
from cluster.runtime.queue_role import MirrorRole
from tests.conformance.ha.clients import numbered
from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import seeded

PAIR = {"ha-mode": "nodes", "ha-params": ["n1", "n2"]}
ALL = {"ha-mode": "all", "ha-sync-mode": "automatic"}
#: Above any ``x-max-priority``.
HIGH = 200


async def queue_on_n1(c: Cluster) -> None:
    await c.set_policy({"ha-mode": "nodes", "ha-params": ["n1"]})
    await c.declare("q", "n1")


async def mirror_on_n2(c: Cluster) -> None:
    """New, without anything of what was published before."""
    await c.set_policy(PAIR)
    await c.following("q", "n2")


async def take(channel: Channel, number: int) -> list[Delivered]:
    taken = [await channel.get("q") for _ in range(number)]
    return [message for message in taken if message is not None]


@seeded("P1")
async def test_p1_a_mirror_without_the_head_and_with_unacked_messages_is_synchronised(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await queue_on_n1(c)
        await c.publish("q", numbered(c.chance.randint(1, 100)))
        await mirror_on_n2(c)
        lacking = len(c.copy("q", "n1"))
        await c.publish("q", numbered(100, first=lacking + 1))
        channel = await c.channel("n3")
        taken = await take(channel, c.chance.randint(1, lacking + 50))
        channel.ack(taken[0].delivery_tag)
        await c.pause_ms(c.moment_ms(50))
        await c.sync("q", "n3")
        assert c.placement("q").synchronised == ("n2",)
        await c.until(lambda: c.copy("q", "n2") == numbered(lacking + 99, first=2), "the copies are alike")


@seeded("P2")
async def test_p2_priorities_above_any_maximum_do_not_hold_a_synchronisation_up(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await queue_on_n1(c)
        for number, content in enumerate(numbered(3)):
            await c.publish("q", [content], priority=HIGH - number)
        await mirror_on_n2(c)
        await c.sync("q")
        assert c.copy("q", "n1") == c.copy("q", "n2") == numbered(3)


@seeded("P3")
async def test_p3_nor_do_they_with_unacked_messages(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await queue_on_n1(c)
        for content in numbered(3):
            await c.publish("q", [content], priority=HIGH)
        channel = await c.channel("n3")
        await take(channel, c.chance.randint(1, 3))
        await mirror_on_n2(c)
        await c.sync("q")
        assert c.copy("q", "n1") == c.copy("q", "n2") == numbered(3)


@seeded("P4")
async def test_p4_gets_without_acks_leave_a_mirror_standing_while_its_neighbour_restarts(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(100))
        before = c.role("q", "n2")
        assert isinstance(before, MirrorRole)
        channel = await c.channel("n1")
        restarting = c.loop.create_task(c.restart("n3"))
        got = []
        for _ in range(100):
            message = await channel.get("q", no_ack=True)
            assert message is not None
            got.append(message.body)
            await c.pause_ms(c.chance.uniform(0, 3))
        await restarting
        assert got == numbered(100)
        after = c.role("q", "n2")
        assert isinstance(after, MirrorRole)
        assert after.replica is before.replica, "the mirror is the same"
        await c.until(lambda: not c.copy("q", "n2") and not c.copy("q", "n3"), "nothing is left on the mirrors")


@seeded("P5")
async def test_p5_after_a_synchronisation_and_a_stop_the_order_is_that_of_publishing(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await queue_on_n1(c)
        numbers = numbered(60)
        for at in range(0, 60, 20):
            await c.publish("q", numbers[at : at + 20], priority=c.chance.randint(0, 9))
        await mirror_on_n2(c)
        await c.sync("q", "n2")
        await c.pause_ms(c.moment_ms(20))
        await c.stop("n1")
        await c.served("q", by="n2")
        assert await c.drain("q", "n3") == numbers


async def flip(c: Cluster, flips: int, pause_ms: float, *, is_awaited: bool = True) -> None:
    """Policies come and go over a loaded queue: its process stays the same, and in the end every mirror has all."""
    await queue_on_n1(c)
    await c.publish("q", numbered(300))
    before = c.master_role("q").process
    asked: list[asyncio.Task[None]] = []
    for number in range(flips):
        definition = ALL if number % 2 == 0 else {"ha-mode": "exactly", "ha-params": 1}
        asked.append(c.loop.create_task(c.set_policy(definition)))
        if is_awaited:
            await asked[-1]
        await c.pause_ms(pause_ms)
    await asyncio.gather(*asked)
    await c.set_policy(ALL)
    await c.synchronised("q", "n2", "n3")
    assert c.master_role("q").process is before, "the master's process has never been another"
    assert c.copy("q", "n1") == c.copy("q", "n2") == c.copy("q", "n3") == numbered(300)


@seeded("P6")
async def test_p6_ten_changes_of_the_policy(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await flip(c, 10, 1_000)


@seeded("P7")
async def test_p7_ten_changes_of_the_policy_in_quick_succession(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await flip(c, 10, 5)


@seeded("P8")
async def test_p8_fifteen_changes_that_nobody_waits_for(seed: int) -> None:
    async with cluster(seed=seed) as c:
        await flip(c, 15, c.moment_ms(1), is_awaited=False)
