"""RabbitMQ's ``crashing_queues_SUITE``: what a crash of one queue's process costs.

There a supervisor starts the process again at once, and gives up after some crashes. Here a mistake takes the copy of
this queue out of service on this node, and a mirror takes over; without one the queue waits for a restart of its node,
because the next start would only meet the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest

from chaos.sim.client import ClosedError
from node.queues.queue_process import QueueProcess
from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import simulated

AUTOMATIC = {"ha-mode": "all", "ha-sync-mode": "automatic"}
EXPECTED = ("a mistake of ours",)


@contextmanager
def crashing(process: QueueProcess) -> Iterator[None]:
    """This queue process fails the next time it is drained, and all others work."""
    drain = QueueProcess.drain

    def mistaken(self: QueueProcess, *arguments: Any, **options: Any) -> Any:
        if self is process:
            raise TypeError("a mistake of ours")
        return drain(self, *arguments, **options)

    with patch.object(QueueProcess, "drain", mistaken):
        yield


async def crash(c: Cluster) -> None:
    """The queue's process crashes while another client declares the queue again and again."""
    process = c.master_role("q").process
    is_over = False

    async def declare_again_and_again() -> None:
        while not is_over:
            with suppress(ClosedError):
                await c.count("q", "n3")
            await c.pause_ms(5)

    declaring = c.loop.create_task(declare_again_and_again())
    with crashing(process):
        await c.until(lambda: c.role("q", "n1") is None or c.master("q") != "n1", "the process is gone")
        await c.pause_ms(50)
    is_over = True
    await c.within(declaring, "the last declaration")


async def two_messages(c: Cluster, *, durable: bool = True) -> None:
    await c.declare("q", "n1", durable=durable)
    await c.publish("q", [b"transient"], is_persistent=False)
    await c.publish("q", [b"persistent"])


@simulated
async def test_k1_a_mirrored_queue_survives_with_all_its_messages_and_one_mirror() -> None:
    async with cluster(policy={"ha-mode": "all"}, expected=EXPECTED) as c:
        await two_messages(c)
        await crash(c)
        await c.served("q", by="n2")
        await c.until(lambda: "n3" in c.placement("q").synchronised, "a mirror is left")
        await c.publish("q", [b"after"], "n3")
        assert await c.drain("q", "n3") == [b"transient", b"persistent", b"after"]


@simulated
async def test_k1_of_exactly_two_copies_the_one_that_failed_is_replaced() -> None:
    async with cluster(policy={"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}) as c:
        await c.declare("q", "n1")
        (mirror,) = c.placement("q").mirrors
        (spare,) = {"n2", "n3"} - {mirror}
        c.set_disk_failing(mirror, f"/{c.queue('q').queue_id}/")
        await c.publish("q", [b"persistent"])
        await c.placed("q", "n1", spare)


@simulated
async def test_k2_without_mirrors_what_is_persistent_is_there_after_a_restart() -> None:
    async with cluster(expected=EXPECTED) as c:
        await two_messages(c)
        await crash(c)
        await c.restart("n1")
        assert await c.drain("q", "n3") == [b"persistent"]


@simulated
async def test_k4_a_crashed_queue_is_refused_by_name_and_other_queues_work() -> None:
    async with cluster(expected=EXPECTED) as c:
        await c.declare("other", "n1")
        await two_messages(c)
        await crash(c)
        with pytest.raises(ClosedError) as refused:
            await c.count("q", "n3")
        assert refused.value.code == 404
        assert "home node 'n1'" in str(refused.value)
        await c.publish("other", [b"as ever"], "n3")
        await c.stop("n1")
        await c.until(lambda: c.record("q").is_down, "it goes down with its node")


@simulated
async def test_k3_of_a_queue_that_is_not_durable_nothing_is_left() -> None:
    async with cluster(expected=EXPECTED) as c:
        await two_messages(c, durable=False)
        await crash(c)
        await c.restart("n1")
        await c.declare("q", "n1", durable=False)
        assert await c.count("q", "n3") == 0


@simulated
async def test_k4_a_crashed_queue_can_be_deleted_and_declared_again() -> None:
    async with cluster(expected=EXPECTED) as c:
        await two_messages(c)
        await crash(c)
        channel = await c.channel("n3")
        await c.within(channel.delete("q"), "delete-ok")
        await c.declare("q", "n1")
        await c.publish("q", [b"a new life"])
        await c.stop("n1")
        await c.until(lambda: c.record("q").is_down, "it goes down with its node")
        (listed,) = await c.list_queues("n2", ["name", "state"])
        assert listed == {"name": "q", "state": "down"}


# --- D12 to D15: what is a process of its own and fails alone is a vhost there, and the copy of a queue here ---


async def mirrored_queue(c: Cluster) -> None:
    await c.declare("q", "n1")
    await c.publish("q", [b"before"])
    await c.synchronised("q", "n2", "n3")


def fail(c: Cluster, node: str) -> None:
    """What the copy on this node writes next is refused."""
    c.set_disk_failing(node, f"/{c.queue('q').queue_id}/")


@simulated
async def test_d12_a_mirror_that_failed_recovers_with_its_node() -> None:
    async with cluster(policy=AUTOMATIC) as c:
        await mirrored_queue(c)
        fail(c, "n2")
        await c.publish("q", [b"meanwhile"])
        await c.synchronised("q", "n3")
        c.set_disk_failing("n2", None)
        c.kill("n2")
        await c.start("n2")
        await c.synchronised("q", "n2", "n3")
        assert c.copy("q", "n2") == [b"before", b"meanwhile"]


@simulated
async def test_d13_a_mirror_that_failed_recovers_with_its_node_in_an_orderly_way() -> None:
    async with cluster(policy=AUTOMATIC) as c:
        await mirrored_queue(c)
        fail(c, "n2")
        await c.publish("q", [b"meanwhile"])
        await c.synchronised("q", "n3")
        c.set_disk_failing("n2", None)
        await c.restart("n2")
        await c.synchronised("q", "n2", "n3")
        assert c.copy("q", "n2") == [b"before", b"meanwhile"]


@simulated
async def test_d14_the_master_moves_when_its_copy_fails() -> None:
    async with cluster(policy=AUTOMATIC) as c:
        await mirrored_queue(c)
        fail(c, "n1")
        await c.publish("q", [b"meanwhile"], "n3")
        await c.served("q", by="n2")
        assert await c.drain("q", "n1") == [b"before", b"meanwhile"]


@simulated
async def test_d15_who_was_the_master_when_its_copy_failed_recovers_as_a_mirror() -> None:
    async with cluster(policy=AUTOMATIC) as c:
        await mirrored_queue(c)
        fail(c, "n1")
        await c.publish("q", [b"meanwhile"], "n3")
        await c.served("q", by="n2")
        c.set_disk_failing("n1", None)
        await c.restart("n1")
        await c.synchronised("q", "n1", "n3")
        assert c.copy("q", "n1") == [b"before", b"meanwhile"]
