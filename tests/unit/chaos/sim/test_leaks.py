"""What comes and goes leaves nothing behind: sizes of all that is reachable from nodes, before and after.

A round of traffic is made again and again, with queues, vhosts, users, connections, channels and consumers of its own;
after the first ones have filled what is filled once, the others must add nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from chaos.sim.client import Channel, ClosedError, Connection, open_connection
from chaos.sim.machine import AMQP_PORT
from cluster.metadata.records import PolicyRecord
from tests.support.sim_lab import NAMES, PATIENCE_S, Lab
from tests.support.sizes import reachable_sizes

#: As names of a test of sizes; what grows there is bounded by something that takes longer than a test.
BOUNDED_ELSEWHERE = {
    # The log of the metadata, in memory and in the file: until the next snapshot.
    "Entry",
    "History.past",
    "PastRequest",
    "RequestId",
    "RaftLog._entries",
    "_LogContent.entries",
    "RaftLog._configurations",
    "_Configuration",
    "Voter",
    # 4096 origins are remembered of each queue.
    "Origins.last",
    # Kinds of lines within a minute.
    "ThrottledLog._unwritten",
    # A few thousand paths of each shared store.
    "StoreFiles._written",
    # The last few hundred ways to publish, of each connection.
    "FrameReader._publish_cache",
    # The last hundred thousand names that a policy was looked for.
    "PolicyMatches._matches",
}
#: Files of messages, and notes of them, come and go by the number of messages that went through a queue.
OF_FILES = {"FileKey", "_Note", "LengthFile", "Journal", "Journals", "SegmentV2", "SegmentV1", "SubQueue"}
#: What a node is handed: the disk of the simulator keeps what was written.
WORLD = "Node._world"

MIRRORED = {"ha-mode": "all", "ha-sync-mode": "automatic"}
WARMING_ROUNDS = 2
ROUNDS = 4


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    set_policy(founded_lab, "/", MIRRORED)
    for number, name in enumerate(NAMES):
        founded_lab.declare(name, lasting(number))
    founded_lab.until_converged()
    return founded_lab


def lasting(number: int) -> str:
    """A queue that outlives all rounds."""
    return f"lasting{number}"


def set_policy(lab: Lab, vhost: str, definition: Mapping[str, Any]) -> None:
    lab.ask("n3", lambda admin: admin.set_policy(PolicyRecord(vhost, "round", "", dict(definition), 0, "queues")))


def sizes(lab: Lab) -> Counter[str]:
    """Of all nodes together: what one has of a queue another may have after it."""

    def is_counted(name: str) -> bool:
        owner = name.partition(".")[0]
        return name != WORLD and not owner.startswith("Simulated") and owner not in OF_FILES

    return reachable_sizes(lab.cluster.nodes.values(), ("cluster", "node"), is_counted)


def grown(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """What has more elements by one for each round at least; less is of the moment."""
    return {
        name: (before[name], count)
        for name, count in after.items()
        if count >= before[name] + ROUNDS and name not in BOUNDED_ELSEWHERE
    }


def growth(lab: Lab, one_round: Callable[[int], None]) -> dict[str, tuple[int, int]]:
    """What the rounds after the first ones have added."""
    for number in range(WARMING_ROUNDS):
        one_round(number)
    lab.pass_time(5)
    lab.until_converged()
    before = sizes(lab)
    for number in range(WARMING_ROUNDS, WARMING_ROUNDS + ROUNDS):
        one_round(number)
    lab.pass_time(5)
    lab.until_converged()
    return grown(before, sizes(lab))


def connect(lab: Lab, at: str, use: Callable[[Connection], Awaitable[None]], vhost: str = "/") -> None:
    """A client that does something, and leaves."""
    process = lab.loop.start_process("client")

    async def connect_and_use() -> None:
        connection = await open_connection(lab.cluster.network, process, "client", (at, AMQP_PORT), vhost=vhost)
        await use(connection)
        connection.close()

    task = process.create_task(connect_and_use())
    end_s = lab.loop.now_s + PATIENCE_S
    while not task.done() and lab.loop.now_s < end_s:
        lab.pass_time(0.02)
    task.result()


async def publish(channel: Channel, queue: str, count: int, content: bytes = b"x") -> None:
    """And wait for the confirms."""
    last = channel.published + count
    confirmed = asyncio.Event()
    channel.on_confirm = lambda number, _multiple, _is_ack: confirmed.set() if number >= last else None
    for _ in range(count):
        channel.publish(queue, content)
    await confirmed.wait()


async def consume_some(channel: Channel, *queues: str) -> None:
    """Acknowledge two of three, and give the others back or keep them."""
    seen = 0

    def delivered(delivery: Any) -> None:
        nonlocal seen
        seen += 1
        if seen % 3:
            channel.ack(delivery.delivery_tag)
        elif seen % 2:
            channel.nack(delivery.delivery_tag)

    channel.on_deliver = delivered
    await channel.qos(5)
    for queue in queues:
        await channel.consume(queue, f"of {queue}")
    await asyncio.sleep(0.1)


async def come_and_go(connection: Connection) -> None:
    """Use the queues that last from everywhere, and end channels in several ways."""
    queues = [lasting(number) for number in range(len(NAMES))]
    tracked, untracked, consumer, refused = [await connection.channel() for _ in range(4)]
    await tracked.confirm_select()
    for queue in queues:
        await publish(tracked, queue, 2)
        await publish(tracked, queue, 1, bytes(20_000))
        untracked.publish(queue, b"x")
    await consume_some(consumer, *queues)
    await consumer.cancel(f"of {queues[0]}")
    consumer.on_deliver = lambda _delivery: None  # what is said of it after the close would break the protocol
    await consumer.recover()
    await consumer.close()
    await untracked.close()
    with pytest.raises(ClosedError):
        await refused.declare("nonesuch", passive=True)


async def purge_all(connection: Connection) -> None:
    channel = await connection.channel()
    for number in range(len(NAMES)):
        await channel.purge(lasting(number))


async def make_and_delete(connection: Connection) -> None:
    """Queues in several ways, some with a condition, which seals them."""
    channel = await connection.channel()
    await channel.confirm_select()
    for name, options in (("plain", {}), ("empty", {"if_empty": True}), ("unused", {"if_unused": True})):
        await channel.declare(name)
        await publish(channel, name, 3)
        await channel.purge(name)
        await channel.delete(name, **options)
    await channel.declare("exclusive", exclusive=True)
    await channel.declare("auto", auto_delete=True)
    await publish(channel, "auto", 3)
    await consume_some(channel, "auto")


async def fill_a_queue(connection: Connection) -> None:
    """The first of several that do so declares it where he is."""
    channel = await connection.channel()
    await channel.confirm_select()
    await channel.declare("shared")
    await publish(channel, "shared", 5)
    await publish(channel, "shared", 1, bytes(20_000))


@pytest.mark.slow
def test_clients_leave_nothing_behind_in_queues_that_last(lab: Lab) -> None:
    def one_round(_number: int) -> None:
        for name in NAMES:
            connect(lab, name, come_and_go)
            connect(lab, name, purge_all)

    assert growth(lab, one_round) == {}


@pytest.mark.slow
def test_queues_that_are_deleted_leave_nothing_behind(lab: Lab) -> None:
    def one_round(_number: int) -> None:
        for name in NAMES:
            connect(lab, name, make_and_delete)

    assert growth(lab, one_round) == {}


class Lasting:
    """Channels that outlive all rounds, on a connection to each node: what comes and goes does so under them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._process = lab.loop.start_process("client")
        self._channels: dict[str, Channel] = {}

    def do(self, use: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._process.create_task(use())
        end_s = self._lab.loop.now_s + PATIENCE_S
        while not task.done() and self._lab.loop.now_s < end_s:
            self._lab.pass_time(0.02)
        task.result()

    async def open(self) -> None:
        for name in NAMES:
            at = (name, AMQP_PORT)
            connection = await open_connection(self._lab.cluster.network, self._process, "client", at)
            channel = self._channels[name] = await connection.channel()
            await channel.confirm_select()
            await channel.declare_exchange("lasting", "topic")

    async def use(self, number: int) -> None:
        """Everything has names of its own in each round, and is deleted through another node than it was made."""
        for place, name in enumerate(NAMES):
            channel, other = self._channels[name], self._channels[NAMES[place - 1]]
            queue, exchange, key = f"queue {number} {name}", f"exchange {number} {name}", f"key.{number}.{name}"
            await channel.declare(queue)
            await channel.declare_exchange(exchange, auto_delete=True)
            await channel.bind_exchange(exchange, "lasting", f"{key}.#")
            await channel.bind(queue, exchange, "")
            for each in (channel, other):
                await publish(each, queue, 3)
                each.publish(f"{key}.more", b"x", exchange="lasting")
                each.publish(f"nowhere {number}", b"x", mandatory=True)
            await consume_some(other, queue)
            await other.cancel(f"of {queue}")
            await other.recover()
            await other.consume(queue, f"left {number}")
            await channel.unbind(queue, exchange, "")
            await other.delete(queue)


@pytest.mark.slow
def test_what_comes_and_goes_leaves_nothing_behind_in_channels_that_last(lab: Lab) -> None:
    lasting_channels = Lasting(lab)
    lasting_channels.do(lasting_channels.open)

    def one_round(number: int) -> None:
        lasting_channels.do(lambda: lasting_channels.use(number))

    assert growth(lab, one_round) == {}


def test_vhosts_and_users_and_policies_leave_nothing_behind(lab: Lab) -> None:
    def one_round(number: int) -> None:
        vhost, user = f"tenant{number}", f"user{number}"
        lab.ask("n1", lambda admin: admin.add_vhost(vhost))
        lab.ask("n2", lambda admin: admin.add_user(user, "secret", ()))
        lab.ask("n2", lambda admin: admin.set_permissions(vhost, user, ".*", ".*", ".*"))
        lab.ask("n2", lambda admin: admin.set_permissions(vhost, "guest", ".*", ".*", ".*"))
        set_policy(lab, vhost, MIRRORED)
        for name in NAMES:
            connect(lab, name, fill_a_queue, vhost)
        set_policy(lab, vhost, {"ha-mode": "exactly", "ha-params": 1})
        lab.pass_time(0.5)
        set_policy(lab, vhost, {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"})
        lab.pass_time(0.5)
        lab.ask("n1", lambda admin: admin.delete_user(user))
        lab.ask("n2", lambda admin: admin.delete_vhost(vhost))

    assert growth(lab, one_round) == {}


@pytest.mark.slow
def test_nodes_and_links_that_come_and_go_leave_nothing_behind(lab: Lab) -> None:
    def one_round(_number: int) -> None:
        for name in NAMES:
            connect(lab, name, come_and_go)
        lab.cluster.kill("n2")
        lab.pass_time(3)
        lab.start("n2")
        lab.until_converged()
        lab.cluster.cut("n1", "n3")
        lab.pass_time(6)
        lab.cluster.cut_end("n1", "n3")
        lab.until_converged()
        connect(lab, "n1", purge_all)

    assert growth(lab, one_round) == {}


def test_a_member_that_is_forgotten_and_replaced_leaves_nothing_behind(lab: Lab) -> None:
    def one_round(_number: int) -> None:
        lab.replace_disk("n3", "n1")
        lab.until_converged()

    assert growth(lab, one_round) == {}
