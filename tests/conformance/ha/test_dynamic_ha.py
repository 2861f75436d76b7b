"""RabbitMQ's ``dynamic_ha_SUITE``: what policies do to queues that are in use, and who may be promoted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from chaos.sim.client import ClosedError
from cluster.policy.placement import CurrentPlacement, suggest_nodes
from node.ids import NodeName
from tests.conformance.ha.clients import numbered, publish_with
from tests.conformance.ha.harness import VHOST, Cluster, cluster
from tests.conformance.ha.runs import seeded, simulated
from tests.support.amounts import slow

AUTOMATIC = {"ha-sync-mode": "automatic"}
ALL = {"ha-mode": "all", **AUTOMATIC}


def nodes_policy(*names: str, **more: Any) -> dict[str, Any]:
    return {"ha-mode": "nodes", "ha-params": list(names), **more}


# --- D1: who is chosen ---

#: What the policy says, the running nodes, mirrors now of master a ("*" synchronised); master wanted, mirrors that must
#: be chosen, and how many more of the other running nodes.
CHOICES: list[tuple[dict[str, Any], str, str, str, int]] = [
    ({"ha-mode": "all"}, "a b c", "", "a b c", 0),
    ({"ha-mode": "all"}, "a b c", "b* c*", "a b c", 0),
    # A mirror that does not run is not wanted.
    ({"ha-mode": "all"}, "a b c", "d*", "a b c", 0),
    # A node is added; two are added and one goes.
    (nodes_policy("a", "b", "c"), "a b c d", "b*", "a b c", 0),
    (nodes_policy("a", "b", "c"), "a b c d", "d*", "a b c", 0),
    # Listed nodes that do not run are passed over; if none runs, the master stays alone.
    (nodes_policy("a", "b", "f"), "a b c d", "b*", "a b", 0),
    (nodes_policy("f", "g", "h"), "a b c d", "b*", "a", 0),
    # A master that is not listed stays as long as nothing is synchronised ...
    (nodes_policy("b", "c"), "a b c d", "", "a b c", 0),
    (nodes_policy("b", "c"), "a b c d", "b", "a b c", 0),
    # ... and then gives way to a synchronised one, whatever the order of the list.
    (nodes_policy("b", "c"), "a b c d", "b*", "b c", 0),
    (nodes_policy("c", "b"), "a b c d", "b*", "b c", 0),
    ({"ha-mode": "exactly", "ha-params": 2}, "a b c d", "", "a", 1),
    ({"ha-mode": "exactly", "ha-params": 3}, "a b c d", "", "a", 2),
    ({"ha-mode": "exactly", "ha-params": 2}, "a b c d", "c*", "a c", 0),
    ({"ha-mode": "exactly", "ha-params": 3}, "a b c d", "c*", "a c", 1),
    # A surplus goes.
    ({"ha-mode": "exactly", "ha-params": 2}, "a b c d", "c* d*", "a c", 0),
    ({"ha-mode": "exactly", "ha-params": 3}, "a b c d", "c* d*", "a c d", 0),
]


@pytest.mark.parametrize(("definition", "running", "mirrors", "wanted", "more"), CHOICES)
def test_d1_which_nodes_a_policy_chooses(
    definition: dict[str, Any], running: str, mirrors: str, wanted: str, more: int
) -> None:
    now = CurrentPlacement(
        NodeName("a"),
        tuple(NodeName(word.rstrip("*")) for word in mirrors.split()),
        tuple(NodeName(word.rstrip("*")) for word in mirrors.split() if word.endswith("*")),
    )
    chosen = suggest_nodes(definition, now, [NodeName(word) for word in running.split()])
    master, *must = wanted.split()
    assert chosen.master == master
    assert set(must) <= set(chosen.mirrors)
    extra = set(chosen.mirrors) - set(must)
    assert len(extra) == more
    assert extra <= set(running.split()) - {master}


# --- D2, D4, D5: policies that change ---


@simulated
async def test_d2_a_queue_follows_its_policy_through_known_states_only() -> None:
    """Nobody may ever see the queue anywhere else than on the way from one policy to the next."""
    async with cluster(policy={"ha-mode": "exactly", "ha-params": 1}) as c:
        seen: list[str] = []

        def look() -> None:
            placement = c.placement("q")
            words = f"{placement.master} {' '.join(sorted(placement.mirrors))}".strip()
            if words not in seen:
                seen.append(words)

        async def change(definition: Mapping[str, Any] | None, ends: str, *on_the_way: str) -> None:
            seen.clear()
            look()
            if definition is None:
                await c.clear_policy()
            else:
                await c.set_policy(definition)
            master, *mirrors = ends.split()
            await c.placed("q", master, *mirrors)
            await c.synchronised("q", *mirrors)
            await c.pause_ms(200)
            assert seen[-1] == ends
            assert set(seen) <= {ends, *on_the_way}

        await c.declare("q", "n1")
        await c.publish("q", numbered(20))
        c.watchers.append(look)
        await change(ALL, "n1 n2 n3", "n1", "n1 n2", "n1 n3")
        await change(nodes_policy("n1", "n2", **AUTOMATIC), "n1 n2", "n1 n2 n3", "n1")
        await change(nodes_policy("n1", "n3", **AUTOMATIC), "n1 n3", "n1 n2", "n1 n2 n3", "n1")
        await change(None, "n1", "n1 n3")
        on_the_way = ("n1", "n1 n2", "n1 n3", "n1 n2 n3", "n2 n1", "n2 n1 n3", "n2")
        await change(nodes_policy("n2", **AUTOMATIC), "n2", *on_the_way)
        await change(nodes_policy("n2", "n3", **AUTOMATIC), "n2 n3", "n2")
        c.watchers.clear()
        assert await c.drain("q", "n1") == numbered(20)


@simulated
async def test_d3_nodes_that_join_are_recruited_as_mirrors() -> None:
    """Three of five founding members are left when the other two join as the new nodes that they are by then."""
    async with cluster(nodes=5) as c:
        for gone in ("n4", "n5"):
            c.kill(gone)
            c.sim.machines[gone].wipe_disk()
            c.sim.machines[gone].disk_before = None
            await c.noticed(gone)
            await forget(c, gone)
        await c.set_policy({"ha-mode": "exactly", "ha-params": 4, **AUTOMATIC})
        await c.declare("q", "n1")
        await c.placed("q", "n1", "n2", "n3")
        await c.publish("q", numbered(20))
        await c.start("n4", "n5")
        await c.whole()
        (recruited,) = set(c.placement("q").mirrors) - {"n2", "n3"}
        (other,) = {"n4", "n5"} - {recruited}
        await c.synchronised("q", "n2", "n3", recruited)
        await c.stop(recruited)
        await c.synchronised("q", "n2", "n3", other)
        assert c.copy("q", other) == numbered(20)


async def forget(c: Cluster, gone: str) -> None:
    await c.ask("n1", lambda admin: admin.forget_cluster_node(gone))


@simulated
async def test_what_was_confirmed_by_a_recruit_outlives_the_master_that_is_forgotten() -> None:
    """It was never filled, so its record calls it complete only when there is no other any more."""
    async with cluster() as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(20))
        await c.set_policy({"ha-mode": "nodes", "ha-params": ["n1", "n2"], "ha-sync-mode": "manual"})
        await c.following("q", "n2")
        await c.publish("q", numbered(30)[20:])
        await c.stop("n1")
        await c.until(lambda: c.record("q").is_down, "the queue waits for its complete copy")
        await c.noticed("n1")
        await c.ask("n3", lambda admin: admin.forget_cluster_node("n1"))
        await c.until(lambda: c.is_served("q"), "the copy that is left serves")
        assert await c.drain("q", "n3") == numbered(30)[20:]


@pytest.mark.parametrize("lives", [25, slow(100)])
@simulated
async def test_d4_no_operation_fails_while_policies_come_and_go(lives: int) -> None:
    async with cluster() as c:
        is_over = False

        async def flip() -> None:
            while not is_over:
                await c.set_policy(ALL, node="n2")
                await c.pause_ms(c.chance.uniform(1, 20))
                await c.clear_policy(node="n3")
                await c.pause_ms(c.chance.uniform(1, 20))

        flips = asyncio.get_running_loop().create_task(flip())
        channel = await c.channel("n1", confirm=True)
        confirms: list[bool] = []
        channel.on_confirm = lambda _number, _multiple, is_ack: confirms.append(is_ack)

        async def live(number: int) -> None:
            received: list[bytes] = []
            channel.on_deliver = lambda message: received.append(message.body)
            await c.within(channel.declare("q"), "declare-ok")
            publish_with(channel, "q", b"%d" % number)
            await c.within(channel.consume("q", f"tag-{number}", no_ack=True), "consume-ok")
            await c.until(lambda: received, "the message")
            assert received == [b"%d" % number]
            await c.within(channel.delete("q"), "delete-ok")

        for number in range(lives):
            await live(number)
        await c.until(lambda: len(confirms) == lives, "all confirms")
        assert all(confirms)
        is_over = True
        await flips


@simulated
async def test_d5_a_nodes_policy_picks_its_master_among_synchronised_mirrors() -> None:
    async with cluster(policy=ALL) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(200))
        await c.synchronised("q", "n2", "n3")
        second = c.placement("q").mirrors[1]
        await c.set_policy(nodes_policy(second))
        await c.placed("q", second)

        # n1 is listed and has nothing any more: whoever has everything stays until n1 has it, too.
        await c.set_policy(nodes_policy("n1"))
        await c.following("q", "n1")
        await c.pause_ms(2_000)
        assert (c.master("q"), c.placement("q").synchronised) == (second, ())
        await c.sync("q")
        await c.placed("q", "n1")
        assert await c.drain("q", second) == numbered(200)


# --- D7, D8, D9 ---


@simulated
async def test_d6_each_mirror_alone_has_everything_after_an_orderly_end() -> None:
    """The others are forgotten offline, by one mirror and then by the other."""
    async with cluster(policy=ALL) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(15))
        await c.synchronised("q", "n2", "n3")
        for name in c.names:
            await c.stop(name)
        for alone in ("n2", "n3"):
            c.sim.forget_offline(alone, *(name for name in c.names if name != alone))
            await c.start(alone)
            await c.served("q", alone)
            assert c.copy("q", alone) == numbered(15)
            assert await c.count("q", alone) == 15
            await c.stop(alone)


@pytest.mark.parametrize("nodes", [2, 3])
@simulated
async def test_d7_a_mirror_that_cannot_be_opened_does_not_disturb_the_master(nodes: int) -> None:
    """There a vhost is dead on the node of the new mirror; here, where vhosts are no processes, the disk refuses its
    copy."""
    async with cluster(nodes) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(10))
        before = c.master_role("q").process
        c.set_disk_failing("n2", f"/{c.queue('q').queue_id}/")
        await c.set_policy(ALL)
        await c.publish("q", numbered(10, first=11))
        await c.pause_ms(1_000)
        assert c.master_role("q").process is before, "the same queue process serves"
        c.set_disk_failing("n2", None)
        assert await c.drain("q", "n2") == numbered(20)


@simulated
async def test_d8_a_vhost_with_a_mirrored_queue_can_be_deleted() -> None:
    async with cluster(policy=ALL) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(10))
        queue_id = c.queue("q").queue_id
        await c.ask("n2", lambda admin: admin.delete_vhost(VHOST))

        def is_gone() -> bool:
            nodes = [c.node(name).runtime for name in c.names]
            return all(
                not node.metadata.state.topology.has_vhost(VHOST) and queue_id not in node.queues.roles
                for node in nodes
            )

        await c.until(is_gone, "vhost and queue are gone from every node")


async def behind(c: Cluster, **policy: Any) -> None:
    """A queue with ten messages on n1 whose only mirror, on n2, lacks them."""
    await c.set_policy(nodes_policy("n1", **policy))
    await c.declare("q", "n1")
    await c.publish("q", numbered(10))
    await c.set_policy(nodes_policy("n1", "n2", **policy))
    await c.placed("q", "n1", "n2")
    await c.following("q", "n2")
    assert c.placement("q").synchronised == ()


async def declare_refused(c: Cluster, node: str) -> int:
    with pytest.raises(ClosedError) as refused:
        await c.declare("q", node)
    return refused.value.code


async def down_queue(c: Cluster) -> None:
    await behind(c)
    await c.stop("n1")
    await c.until(lambda: c.record("q").is_down, "the queue is down")


@simulated
async def test_d9_a_queue_whose_master_is_gone_is_refused_by_name() -> None:
    async with cluster() as c:
        await down_queue(c)
        assert await declare_refused(c, "n2") == 404
        with pytest.raises(ClosedError) as refused:
            await (await c.channel("n3")).delete("q", if_empty=True)
        assert "home node 'n1'" in str(refused.value), "nobody can tell whether it is empty; who could is named"
        assert c.record("q").is_down, "it is still there"


@simulated
async def test_d9_a_queue_whose_master_is_gone_can_be_deleted() -> None:
    async with cluster() as c:
        await down_queue(c)
        await c.within((await c.channel("n3")).delete("q"), "delete-ok")
        await c.declare("q", "n2")
        assert await c.count("q", "n3") == 0


# --- D10, D11: who may be promoted ---


@pytest.mark.parametrize(
    ("policy", "is_promoted"),
    [({}, True), ({"ha-promote-on-failure": "when-synced"}, False), ({"ha-promote-on-failure": "always"}, True)],
)
@simulated
async def test_d10_promotion_after_a_kill(policy: dict[str, Any], is_promoted: bool) -> None:
    async with cluster() as c:
        await behind(c, **policy)
        c.kill("n1")
        await promoted_or_not(c, is_promoted)


@pytest.mark.parametrize(
    ("policy", "is_promoted"),
    [
        ({}, False),
        ({"ha-promote-on-shutdown": "when-synced"}, False),
        ({"ha-promote-on-shutdown": "always", "ha-promote-on-failure": "always"}, True),
        ({"ha-promote-on-shutdown": "always", "ha-promote-on-failure": "when-synced"}, False),
    ],
)
@simulated
async def test_d11_promotion_after_a_stop(policy: dict[str, Any], is_promoted: bool) -> None:
    async with cluster() as c:
        await behind(c, **policy)
        await c.stop("n1")
        await promoted_or_not(c, is_promoted)


async def promoted_or_not(c: Cluster, is_promoted: bool) -> None:
    await c.noticed("n1")
    if is_promoted:
        await c.served("q", by="n2")
        assert await c.count("q", "n3") == 0
        return
    await c.until(lambda: c.record("q").is_down, "the queue is down")
    assert await declare_refused(c, "n3") == 404
    await c.start("n1")
    await c.served("q", by="n1")
    assert await c.drain("q", "n3") == numbered(10)


# --- D20, D21: any policies ---


def is_as_wanted(c: Cluster, definition: Mapping[str, Any] | None) -> bool:
    """Whether the queue is where the policy wants it, with everything on every copy."""
    placement = c.placement("q")
    mode = None if definition is None else definition["ha-mode"]
    copies = {placement.master, *placement.mirrors}
    if mode == "all":
        is_there = copies == set(c.names)
    elif mode == "exactly":
        assert definition is not None
        is_there = len(copies) == min(definition["ha-params"], len(c.names))
    elif mode == "nodes":
        assert definition is not None
        is_there = copies == set(definition["ha-params"])
    else:
        is_there = not placement.mirrors
    return is_there and placement.synchronised == placement.mirrors and c.is_served("q")


async def apply_policies(seed: int, definitions: Sequence[Mapping[str, Any] | None]) -> None:
    """One after the other, from one node after the other, at moments of the seed, while messages come; the last counts
    in the end, and no message is lost."""
    async with cluster(seed=seed, policy=ALL) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(100))
        publishing = asyncio.get_running_loop().create_task(c.publish("q", numbered(100, first=101), "n2"))
        has_policy = True
        for position, definition in enumerate(definitions):
            node = c.names[position % len(c.names)]
            if definition is not None:
                await c.set_policy({**definition, **AUTOMATIC}, node=node)
            elif has_policy:
                await c.clear_policy(node=node)
            has_policy = definition is not None
            await c.pause_ms(c.moment_ms(30))
        await publishing
        await c.until(lambda: is_as_wanted(c, definitions[-1]), f"the queue is as {definitions[-1]} wants it")
        placement = c.placement("q")
        for node in (placement.master, *placement.mirrors):
            assert c.copy("q", node) == numbered(200)


@seeded("D20")
async def test_d20_whatever_policies_come_the_last_one_holds(seed: int) -> None:
    names = ["n1", "n2", "n3"]
    async with cluster(1, seed=seed) as dice:
        chance = dice.chance
    choices: list[Mapping[str, Any] | None] = [None, {"ha-mode": "all"}]
    choices += [{"ha-mode": "exactly", "ha-params": number} for number in (1, 2, 3)]
    definitions = [
        chance.choice([*choices, nodes_policy(*chance.sample(names, chance.randint(1, 3)))])
        for _ in range(chance.randint(2, 8))
    ]
    await apply_policies(seed, definitions)


@seeded("D21-a")
async def test_d21_a_nodes_policy_that_shrinks(seed: int) -> None:
    await apply_policies(seed, [nodes_policy("n1", "n2"), nodes_policy("n1")])


@seeded("D21-b")
async def test_d21_mirrors_everywhere_and_then_one_elsewhere(seed: int) -> None:
    three = {"ha-mode": "exactly", "ha-params": 3}
    await apply_policies(seed, [three, None, {"ha-mode": "all"}, nodes_policy("n2")])


@seeded("D21-c")
async def test_d21_nine_changes(seed: int) -> None:
    two, three = ({"ha-mode": "exactly", "ha-params": number} for number in (2, 3))
    everywhere = {"ha-mode": "all"}
    await apply_policies(seed, [everywhere, None, two, everywhere, three, three, None, three, everywhere])
