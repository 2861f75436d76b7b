"""RabbitMQ's ``gm_SUITE``: the group that carries a master's operations to its mirrors.

There it is a ring that every member may speak in. Here only the master speaks, to each mirror, and who is a member is
the cluster's decision. What the suite asks of the ring is asked of that.
"""

from __future__ import annotations

import pytest

from chaos.sim.client import ClosedError
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from node.ids import Epoch, NodeName
from tests.conformance.ha.clients import Producer, numbered
from tests.conformance.ha.harness import cluster
from tests.conformance.ha.runs import simulated
from tests.support.messages import publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE
from tests.support.stores import StoreHarness


class Group:
    """A master on n1 and mirrors on n2 and n3, joined by hand."""

    def __init__(self) -> None:
        self.record = MastershipRecord(QUEUE, Epoch(1), N1, (N2, N3), (N2, N3))
        self.disks = {name: StoreHarness() for name in (N1, N2, N3)}
        self.master = MirroredQueue(N1, self.disks[N1].open_queue(), self.record)
        self.locals = {name: self.disks[name].open_queue() for name in (N2, N3)}
        self.mirrors = {name: MirrorReplica(QUEUE, self.locals[name], Epoch(1)) for name in (N2, N3)}

    def join(self, *names: NodeName) -> None:
        for name in names:
            self.master.mirror_link_up(name)
        self.exchange()

    def exchange(self, *names: NodeName) -> None:
        """What is said reaches everybody, or only these, and is answered."""
        for _ in range(4):
            for name, message in self.master.take_messages():
                if name in (names or self.mirrors):
                    self.mirrors[name].receive(N1, message)
            for name in names or self.mirrors:
                for _, answer in self.mirrors[name].take_messages():
                    self.master.receive(name, answer)
        self.master.check_invariants()

    def sync(self, *names: NodeName) -> None:
        for name in names:
            self.disks[name].sync()
            if name in self.mirrors:
                self.mirrors[name].durable_advanced()

    def ready(self) -> tuple[int, int]:
        return self.locals[N2].ready, self.locals[N3].ready


def test_g1_members_join_and_leave() -> None:
    group = Group()
    group.join(N2)
    group.master.publish(publications(1, 3))
    group.exchange()
    assert group.ready() == (3, 0)
    group.join(N3)
    assert group.ready() == (3, 3), "who joins learns what there is"
    group.master.mirror_link_down(N2)
    group.master.set_record(MastershipRecord(QUEUE, Epoch(1), N1, (N3,), (N3,), (N1, N3)))
    group.master.publish(publications(4, 1))
    group.exchange()
    assert group.ready() == (3, 4), "who has left hears no more"
    group.master.check_invariants()


def test_g2_what_is_said_reaches_every_member_once() -> None:
    group = Group()
    group.join(N2, N3)
    group.master.publish(publications(1, 1))
    group.exchange()
    group.exchange()
    assert group.ready() == (1, 1)


def test_g3_it_is_confirmed_when_the_last_member_has_it_on_disk() -> None:
    group = Group()
    group.join(N2, N3)
    group.master.publish(publications(1, 1))
    group.exchange()
    group.sync(N1, N2)
    group.exchange()
    assert group.master.drain_confirmed() == []
    group.sync(N3)
    group.exchange()
    assert group.master.drain_confirmed() == [1]


@simulated
async def test_g4_all_survivors_learn_of_a_death() -> None:
    async with cluster(5, policy={"ha-mode": "all"}) as c:
        await c.declare("q", "n1")
        c.kill("n4")
        await c.noticed("n4")
        await c.placed("q", "n1", "n2", "n3", "n5")
        c.kill("n1")
        await c.noticed("n1", "n4")
        await c.placed("q", "n2", "n3", "n5")


@simulated
async def test_g5_what_two_members_say_at_once_stands_in_the_order_of_each_everywhere() -> None:
    """Publishers on both mirrors, and a thousand messages among each other."""
    async with cluster(policy={"ha-mode": "all"}) as c:
        await c.declare("q", "n1")
        low = Producer(await c.channel("n2", confirm=True), "q", 500)
        high = Producer(await c.channel("n3", confirm=True), "q", 1_000, last=501)
        await low.all_acked()
        await high.all_acked()
        master, first, second = (c.copy("q", name) for name in c.names)
        assert master == first == second
        assert len(master) == 1_000
        numbers = [int(content) for content in master]
        assert numbers != sorted(numbers, reverse=True), "they came among each other"
        assert [number for number in numbers if number <= 500] == list(range(500, 0, -1))
        assert [number for number in numbers if number > 500] == list(range(1_000, 500, -1))


@pytest.mark.parametrize("dead", ["n1", "n3"])
@pytest.mark.parametrize("later_ms", [0.0, 0.5, 1.0, 2.0, 4.0])
@simulated
async def test_g7_a_queue_that_is_deleted_as_a_member_dies_ends_cleanly(dead: str, later_ms: float) -> None:
    async with cluster(policy={"ha-mode": "all"}) as c:
        await c.declare("q", "n1")
        await c.publish("q", numbered(20))
        queue_id = c.queue("q").queue_id
        channel = await c.channel("n2")
        deleting = c.loop.create_task(channel.delete("q"))
        await c.pause_ms(later_ms)
        c.kill(dead)
        try:
            await c.within(deleting, "delete-ok")
        except ClosedError as error:
            c.fail(f"the deletion was refused: {error}")
        await c.start(dead)
        await c.whole()
        for name in c.names:
            assert c.state(name).topology.queue("/", "q") is None
            assert queue_id not in c.node(name).runtime.queues.roles
