"""RabbitMQ's ``partitions_SUITE``: all of it was given up as flaky, all of it is a function of a seed here.

There the modes are ignore, pause_minority, pause_if_all_down and autoheal, and the last three exist because the first
lets both sides serve. Warren is a quorum system: who serves is decided by a majority, whatever the mode, so every
partition heals by itself, and no confirm is ever taken back. What is left of a mode is what happens to the *clients* of
a node that has no majority: ``pause_minority`` closes their connections, ``ignore`` keeps them, waiting. What the suite
asks of pause_if_all_down and autoheal is asked of these two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from chaos.sim.client import Channel, ClosedError, Connection
from cluster.raft.core import RaftCore
from cluster.runtime.admin_peers import PEER_TIMEOUT_S
from cluster.sessions.calls import OPERATION_TIMEOUT_S
from node.config import build_config, parse_settings
from node.errors import ConfigError
from tests.conformance.ha.clients import comes_about, numbered, publish_with
from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import seeded, simulated
from tests.support.raft_network import RaftNetwork

ALL = {"ha-mode": "all", "ha-sync-mode": "automatic"}
IGNORE = {"cluster_partition_handling": "ignore"}
#: Longer than the silence timeout, an election and a pause.
LONG_MS = 4_000.0
#: Of one writer: like an application it waits when so many of its publishes are not confirmed.
OUTSTANDING_MAX = 20


async def no_partition_is_known(c: Cluster) -> None:
    """To no node, after the heal: each counts all of them."""
    await c.whole()
    others = len(c.names) - 1
    await c.until(
        lambda: all(len(c.node(name).runtime.links.linked_nodes()) == others for name in c.names), "all are linked"
    )
    for name in c.names:
        status = await c.ask(name, lambda admin: admin.cluster_status())
        assert (status["running_nodes"], status["partitions"]) == (c.names, {})


async def only_these_serve(c: Cluster, *names: str) -> None:
    def who_serves() -> list[str]:
        return [name for name in c.names if c.is_serving(name)]

    await c.until(lambda: who_serves() == sorted(names), f"only {', '.join(names) or 'no nodes'} serve")


class Writer:
    """Publishes numbers with confirms through one node as long as it is told to, and keeps those that were confirmed.

    Like an application it connects again when its connection is closed; what was unconfirmed then is unknown.
    """

    def __init__(self, c: Cluster, node: str, queue: str = "q") -> None:
        self._c = c
        self.node = node
        self._queue = queue
        self.confirmed: list[bytes] = []
        self._outstanding: dict[int, bytes] = {}
        self._number = 0
        self._channels = 0
        self._is_over = False
        self._task = c.loop.create_task(self._live())

    async def _live(self) -> None:
        while not self._is_over:
            try:
                channel = await self._c.channel(self.node, confirm=True)
            except (ClosedError, OSError, TimeoutError):
                await self._c.pause_ms(200)
                continue
            self._outstanding.clear()
            self._channels += 1
            channel.on_confirm = self._answered
            while channel.closed is None and not self._is_over:
                if len(self._outstanding) < OUTSTANDING_MAX:
                    self._publish(channel)
                await self._c.pause_ms(self._c.chance.uniform(20, 200))
            await comes_about(partial(self._is_settled, channel), 60)
            channel.connection.close()

    def _is_settled(self, channel: Channel) -> bool:
        return not self._outstanding or channel.closed is not None

    def _publish(self, channel: Channel) -> None:
        self._number += 1
        content = f"{self.node} {self._channels} {self._number:06}".encode()
        self._outstanding[channel.published + 1] = content
        publish_with(channel, self._queue, content)

    def _answered(self, sequence: int, multiple: bool, is_ack: bool) -> None:
        for number in [each for each in self._outstanding if each == sequence or (multiple and each < sequence)]:
            content = self._outstanding.pop(number)
            if is_ack:
                self.confirmed.append(content)

    async def finish(self) -> list[bytes]:
        """Publish no more, and wait for what is outstanding."""
        self._is_over = True
        await self._c.within(self._task, f"the last confirms through {self.node}", 90)
        return self.confirmed


async def writers_of_a_queue(c: Cluster) -> list[Writer]:
    """One through each node, into a queue whose master is n1."""
    await c.declare("q", "n1")
    return [Writer(c, name) for name in c.names]


async def goes_on(c: Cluster, queue: str = "q") -> None:
    """The cluster is whole, and takes messages through every node."""
    await c.whole()
    await c.served(queue)
    for name in c.names:
        await publish_soon(c, queue, b"at last, " + name.encode(), name)


async def publish_soon(c: Cluster, queue: str, content: bytes, node: str) -> None:
    """As clients do: a node that has just been cut off may close a connection once more before it serves again."""
    end_s = c.loop.now_s + 30
    while True:
        try:
            await c.try_to_publish(queue, [content], node)
            return
        except (ClosedError, OSError):
            assert c.loop.now_s < end_s, f"{node} serves nobody"
            await c.pause_ms(200)


async def promised_survive(c: Cluster, writers: Sequence[Writer]) -> None:
    """Everything that was confirmed is there, what came through one channel in its order, and nothing twice."""
    promised = [content for writer in writers for content in await writer.finish()]
    await goes_on(c)
    survived = [
        content for content in await c.drain("q", c.chance.choice(c.names)) if not content.startswith(b"at last")
    ]
    missing = set(promised) - set(survived)
    if missing:
        c.fail(f"{len(missing)} of {len(promised)} confirmed messages are gone: {sorted(missing)[:5]}")
    assert promised, "something was promised"
    assert len(survived) == len(set(survived)), "none twice"
    for channel in {content[:-7] for content in survived}:
        numbers = [content for content in survived if content[:-7] == channel]
        assert numbers == sorted(numbers), f"{channel.decode()}: in order"


async def no_false_promises(seed: int, *, is_mirrored: bool, config: dict[str, Any]) -> None:
    """Publish with confirms through every node, cut, wait, heal: what was confirmed survives."""
    policy = ALL if is_mirrored else {"ha-mode": "exactly", "ha-params": 1}
    async with cluster(seed=seed, policy=policy, config=config) as c:
        writers = await writers_of_a_queue(c)
        await c.pause_ms(500 + c.moment_ms(500))
        kind = seed % 4
        if kind == 0:
            c.isolate(c.chance.choice(c.names))
        elif kind == 1:
            c.isolate("n1")
        elif kind == 2:
            c.cut(*c.chance.sample(c.names, 2))
        else:
            c.sim.cut(*c.chance.sample(c.names, 2))
        await c.pause_ms(1_000 + c.moment_ms(4_000))
        c.heal()
        await promised_survive(c, writers)


# --- N1 to N5: who stops, who goes on ---


@seeded("N1")
async def test_n1_ignore_keeps_the_clients_of_a_minority_and_promises_them_nothing(seed: int) -> None:
    """RabbitMQ goes on with two clusters, and an operator chooses whose messages to throw away."""
    async with cluster(seed=seed, policy=ALL, config=IGNORE) as c:
        await c.declare("q", "n1")
        channel = await c.channel("n1", confirm=True)
        confirmed: list[int] = []
        channel.on_confirm = lambda number, _multiple, _is_ack: confirmed.append(number)
        await c.pause_ms(c.moment_ms(1_000))
        c.isolate("n1")
        publish_with(channel, "q", b"from the minority")
        await c.until(lambda: c.is_served("q") and c.master("q") != "n1", "the majority has a master")
        await c.publish("q", numbered(10), "n2")
        await c.pause_ms(LONG_MS)
        assert channel.closed is None, "the connection is kept"
        assert not confirmed, "a minority confirms nothing"
        c.heal()
        await c.until(lambda: confirmed, "the publish of the minority is confirmed after the heal")
        await no_partition_is_known(c)
        assert sorted(await c.drain("q", "n1")) == [*numbered(10), b"from the minority"]


@seeded("N2")
async def test_n2_who_is_left_alone_pauses_and_resumes(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        one, other, third = c.chance.sample(c.names, 3)
        channel = await c.channel(third)
        c.kill(one)
        await c.pause_ms(c.moment_ms(LONG_MS))
        assert c.is_serving(other), "two of three go on"
        assert channel.closed is None
        closed: list[ClosedError] = []
        channel.on_closed = closed.append
        c.kill(other)
        await c.until(lambda: closed, "the last closes its connections")
        assert closed[0].code == 320
        assert "pause_minority" in str(closed[0])
        assert not c.is_serving(third)
        c.start_only(one)
        await only_these_serve(c, one, third)
        await c.start(other)
        await no_partition_is_known(c)


@seeded("N3")
async def test_n3_who_is_cut_off_pauses_and_resumes(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        alone = c.chance.choice(c.names)
        others = [name for name in c.names if name != alone]
        await c.pause_ms(c.moment_ms(1_000))
        c.isolate(alone)
        await only_these_serve(c, *others)
        await c.pause_ms(c.moment_ms(LONG_MS))
        assert [c.is_serving(name) for name in others] == [True, True]
        c.heal()
        await no_partition_is_known(c)


@seeded("N4")
async def test_n4_of_five_exactly_a_majority_goes_on_when_nodes_die(seed: int) -> None:
    async with cluster(5, seed=seed, policy=ALL) as c:
        first, second, third, *left = c.chance.sample(c.names, 5)
        c.kill(first)
        await c.pause_ms(c.moment_ms(2_000))
        c.kill(second)
        await c.noticed(first, second)
        await only_these_serve(c, third, *left)
        c.kill(third)
        await only_these_serve(c)
        c.start_only(second)
        await only_these_serve(c, second, *left)
        c.start_only(first, third)
        await no_partition_is_known(c)


@seeded("N5")
async def test_n5_of_five_exactly_a_majority_goes_on_when_links_are_cut(seed: int) -> None:
    async with cluster(5, seed=seed, policy=ALL) as c:
        nodes = c.chance.sample(c.names, 5)
        c.isolate(*nodes[:2])
        await c.pause_ms(c.moment_ms(1_000))
        await only_these_serve(c, *nodes[2:])
        c.cut(nodes[2], nodes[3])
        c.cut(nodes[2], nodes[4])
        await only_these_serve(c)
        c.heal()
        await no_partition_is_known(c)


@pytest.mark.parametrize("mode", ["pause_if_all_down", "autoheal"])
def test_n4_modes_that_a_quorum_has_no_use_for_are_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match="pause_minority"):
        build_config(parse_settings(f"cluster_partition_handling = {mode}", "test"))


# --- N6 to N9: no false promises ---


@seeded("N6")
async def test_n6_no_false_promises_mirrored(seed: int) -> None:
    await no_false_promises(seed, is_mirrored=True, config={})


@seeded("N7")
async def test_n7_no_false_promises_unmirrored(seed: int) -> None:
    await no_false_promises(seed, is_mirrored=False, config={})


@seeded("N8")
async def test_n8_no_false_promises_mirrored_under_the_other_mode(seed: int) -> None:
    await no_false_promises(seed, is_mirrored=True, config=IGNORE)


@seeded("N9")
async def test_n9_no_false_promises_unmirrored_under_the_other_mode(seed: int) -> None:
    await no_false_promises(seed, is_mirrored=False, config=IGNORE)


# --- N10 to N13: the cluster heals by itself ---


@seeded("N10")
async def test_n10_one_two_or_three_cut_links_heal_by_themselves(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        writers = await writers_of_a_queue(c)
        links = [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
        await c.pause_ms(500)
        for link in c.chance.sample(links, 1 + seed % 3):
            await c.pause_ms(c.moment_ms(1_000))
            c.cut(*link)
        await c.pause_ms(c.moment_ms(LONG_MS))
        for link in c.chance.sample(links, 3):
            await c.pause_ms(c.moment_ms(1_000))
            c.heal_link(*link)
        await promised_survive(c, writers)


@seeded("N11")
async def test_n11_it_heals_after_every_node_had_to_stop(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        writers = await writers_of_a_queue(c)
        await c.pause_ms(1_000 + c.moment_ms(500))
        c.isolate(*c.names[:2])
        c.cut("n1", "n2")
        await only_these_serve(c)
        await c.pause_ms(c.moment_ms(LONG_MS))
        c.heal()
        await promised_survive(c, writers)


@seeded("N12")
async def test_n12_it_heals_after_six_partial_partitions(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        writers = await writers_of_a_queue(c)
        await c.pause_ms(500)
        for _ in range(6):
            link = c.chance.sample(c.names, 2)
            c.cut(*link)
            await c.pause_ms(c.moment_ms(2_000))
            c.heal_link(*link)
            await c.pause_ms(c.moment_ms(300))
        await promised_survive(c, writers)


@seeded("N13")
async def test_n13_stray_messages_of_the_past_change_nothing(seed: int) -> None:
    """There a word of the healing that nobody waits for; here every message of elections and of the log that was ever
    sent, once more and in any order, to those who have gone on since."""
    network = RaftNetwork(["n1", "n2", "n3"], seed)
    for round_number in range(3):
        leader = network.elect()
        network.propose(leader, b"%d" % round_number)
        network.run(200)
        network.partition([leader], [name for name in network.nodes if name != leader])
        network.run(3_000)
        network.heal()
    leader = network.elect()
    network.run(500)
    term, applied = network.core(leader).term, list(network.applied(leader))
    history = list(network.sent)
    network.rng.shuffle(history)
    for message in history:
        network.call(message.receiver, partial(RaftCore.step, now_ms=network.now_ms, message=message))
    network.run(3_000)
    assert (network.leader(), network.core(leader).term) == (leader, term)
    network.propose(leader, b"after")
    network.run(500)
    assert [network.applied(name) for name in network.nodes] == [[*applied, b"after"]] * 3


# --- N14 to N17: cuts between two of three ---


@seeded("N14")
async def test_n14_a_cut_to_a_node_that_is_dead_is_no_partition(seed: int) -> None:
    """Whatever is seen first: the two that are left see each other, and neither stops."""
    async with cluster(seed=seed, policy=ALL) as c:
        writers = await writers_of_a_queue(c)
        await c.pause_ms(500)
        one, dead, third = c.chance.sample(c.names, 3)
        c.cut(one, dead)
        await c.pause_ms(c.moment_ms(800))
        c.kill(dead)
        end_s = c.loop.now_s + 5
        while c.loop.now_s < end_s:
            assert c.is_serving(one)
            assert c.is_serving(third)
            await c.pause_ms(50)
        c.start_only(dead)
        c.heal()
        await promised_survive(c, writers)


@seeded("N15")
async def test_n15_a_partial_cut_that_becomes_a_whole_one(seed: int) -> None:
    async with cluster(seed=seed, policy=ALL) as c:
        writers = await writers_of_a_queue(c)
        await c.pause_ms(500)
        alone, one, other = c.chance.sample(c.names, 3)
        c.cut(alone, one)
        await c.pause_ms(c.moment_ms(LONG_MS))
        c.cut(alone, other)
        await only_these_serve(c, one, other)
        await makes_progress(c, writers, one)
        await makes_progress(c, writers, other)
        c.heal()
        await promised_survive(c, writers)


async def makes_progress(c: Cluster, writers: Sequence[Writer], node: str) -> None:
    writer = next(writer for writer in writers if writer.node == node)
    before = len(writer.confirmed)
    await c.until(lambda: len(writer.confirmed) > before + 5, f"confirms through {node}")


async def partial_cut(seed: int, config: dict[str, Any]) -> None:
    """The third sees both. It goes on, and one of the two at least; the other may have to wait for the heal."""
    async with cluster(seed=seed, policy=ALL, config=config) as c:
        writers = await writers_of_a_queue(c)
        await c.pause_ms(500)
        one, other, third = c.chance.sample(c.names, 3)
        c.cut(one, other)
        await c.pause_ms(LONG_MS)
        before = {writer.node: len(writer.confirmed) for writer in writers}

        def progress() -> list[str]:
            return [writer.node for writer in writers if len(writer.confirmed) > before[writer.node] + 5]

        # A link that is cut is noticed after so long. So long again a master waits for the mirror behind it, which the
        # cluster believes alive, and goes on without it then.
        silence_s = c.node(third).config.cluster_silence_timeout_ms / 1000
        limit_s = 2 * silence_s + 5 - LONG_MS / 1000
        await c.until(lambda: third in progress() and len(progress()) >= 2, "the third and another go on", limit_s)
        paused = [name for name in c.names if not c.is_serving(name)]
        assert paused in ([], [one], [other])
        if config == IGNORE:
            assert not paused, "connections are kept"
        c.heal()
        await promised_survive(c, writers)


@seeded("N16")
async def test_n16_of_a_partial_cut_one_pauses_at_most(seed: int) -> None:
    await partial_cut(seed, {})


@seeded("N17")
async def test_n17_of_a_partial_cut_nobody_pauses_under_ignore(seed: int) -> None:
    await partial_cut(seed, IGNORE)


@simulated
async def test_n16_a_master_goes_on_without_a_mirror_that_only_it_cannot_reach() -> None:
    """Noticed after one silence, waited for during another. RabbitMQ notices after 60 s (``net_ticktime``)."""
    async with cluster(policy=ALL) as c:
        await c.declare("q", "n2")
        await c.publish("q", numbered(10))
        leader = c.node("n1").runtime.metadata.consensus.leader
        assert leader == "n1", "who declares nodes down hears both"
        c.cut("n2", "n3")
        began_s = c.loop.now_s
        await c.publish("q", [b"meanwhile"], "n2")
        silence_s = c.node("n2").config.cluster_silence_timeout_ms / 1000
        assert c.loop.now_s - began_s < 2 * silence_s + 2
        assert c.state("n1").members[c.node("n3").runtime.node].is_up, "nobody takes n3 for dead"
        status = await c.ask("n1", lambda admin: admin.cluster_status())
        assert status["partitions"] == {"n2": ["n3"], "n3": ["n2"]}
        c.heal()
        await no_partition_is_known(c)
        await c.synchronised("q", "n1", "n3")
        assert c.copy("q", "n3") == [*numbered(10), b"meanwhile"]


# --- N18, N19: questions to nodes that do not answer ---


@seeded("N18")
async def test_n18_a_hundred_questions_to_a_node_that_is_cut_off_cost_one_delay(seed: int) -> None:
    """Many queues live on a node that is cut off. Who lists them, or asks for each, waits once."""
    async with cluster(seed=seed) as c:
        channel = await c.channel("n2")
        names = [f"queue-{number:03}" for number in range(100)]
        for name in names:
            await channel.declare(name)
        await c.until(lambda: c.newest().topology.queue("/", names[-1]), "all are declared")
        c.isolate("n2")
        await c.pause_ms(c.moment_ms(1_000))
        begin_s = c.loop.now_s
        rows = await c.list_queues("n1", ["name", "messages", "consumers"])
        assert [row["name"] for row in rows] == names
        assert c.loop.now_s - begin_s < PEER_TIMEOUT_S + 1

        connection = await c.connect("n1")
        begin_s = c.loop.now_s
        codes = await c.within(asyncio.gather(*(ask_for(connection, name) for name in names)), "all answers")
        assert codes == [404] * len(names)
        assert c.loop.now_s - begin_s < OPERATION_TIMEOUT_S + 1
        c.heal()
        await no_partition_is_known(c)


async def ask_for(connection: Connection, queue: str) -> int:
    """The code with which a passive declaration is refused; 0: it is not."""
    try:
        await (await connection.channel()).declare(queue, passive=True)
    except ClosedError as error:
        return error.code
    return 0


@seeded("N19")
async def test_n19_a_long_request_of_an_operator_is_not_taken_for_silence(seed: int) -> None:
    """A synchronisation that lasts several silence timeouts, asked of a node that is not the master."""
    config = {"mirroring_sync_max_throughput_bytes": 2_000, "mirroring_sync_batch_size": 10}
    async with cluster(seed=seed, config=config) as c:
        await c.set_policy({"ha-mode": "nodes", "ha-params": ["n1"]})
        await c.declare("q", "n1")
        await c.publish("q", [b"%0100d" % number for number in range(100)])
        await c.set_policy({"ha-mode": "nodes", "ha-params": ["n1", "n2"]})
        await c.following("q", "n2")
        begin_s = c.loop.now_s
        await c.sync("q", "n3")
        assert c.placement("q").synchronised == ("n2",)
        assert c.loop.now_s - begin_s > 3, "it lasted"
        assert all("link" not in line or "down" not in line for line in c.story), "no link was given up"
