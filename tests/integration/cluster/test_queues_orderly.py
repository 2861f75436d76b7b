"""Real nodes that stop in an orderly way, and auto-delete queues whose master dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_cluster import LiveCluster, numbered, publish_confirmed, run_cluster
from tests.support.pika_clients import get, pump
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all", ha_sync_mode="automatic")
        yield cluster


@pytest.fixture
def cluster(running: LiveCluster) -> LiveCluster:
    running.all_up()
    return running


def stop(cluster: LiveCluster, *nodes: str) -> None:
    async def stop_all() -> None:
        await asyncio.gather(*(cluster.local.stop(node) for node in nodes))

    asyncio.run(stop_all())


def five_of_which_two_were_delivered(cluster: LiveCluster, name: str) -> None:
    with cluster.channel("n1") as channel:
        channel.queue_declare(name, durable=True)
    cluster.wait_synchronised(name, 2)
    publish_confirmed(cluster, "n1", name, numbered(5))
    with cluster.channel("n2") as channel:
        for _ in range(2):
            get(channel, name)


def flags(cluster: LiveCluster, node: str, name: str) -> list[bool]:
    cluster.wait_queue(name, lambda view: view.state == "running", "a master in service", node)
    with cluster.channel(node) as channel:
        return [get(channel, name)[0].redelivered for _ in range(5)]


def test_a_mirror_takes_over_from_a_master_that_was_stopped_and_flags_what_was_delivered(cluster: LiveCluster) -> None:
    five_of_which_two_were_delivered(cluster, "ha.handover")
    stop(cluster, "n1")
    cluster.wait_queue("ha.handover", lambda view: view.master != "n1" and view.state == "running", "a new master")
    assert flags(cluster, "n2", "ha.handover") == [True, True, False, False, False]


@pytest.mark.parametrize("order", [("n1", "n2", "n3"), ("n3", "n2", "n1"), None])
def test_a_restart_of_all_nodes_flags_what_was_delivered(cluster: LiveCluster, order: tuple[str, ...] | None) -> None:
    """``None``: all at once."""
    name = f"ha.restart.{'together' if order is None else '-'.join(order)}"
    five_of_which_two_were_delivered(cluster, name)
    if order is None:
        stop(cluster, *cluster.nodes)
    else:
        stop(cluster, order[0])
        # A master that is stopped before it has taken service does not know, and flags everything.
        cluster.wait_queue(name, lambda view: view.master != order[0] and view.state == "running", "a master serves")
        for node in order[1:]:
            stop(cluster, node)
    cluster.restart(*cluster.nodes)
    assert flags(cluster, "n3", name) == [True, True, False, False, False]


def test_an_auto_delete_queue_goes_though_its_master_dies_and_stays_for_its_consumer(cluster: LiveCluster) -> None:
    gone, kept = "ha.auto.gone", "ha.auto.kept"
    received: list[bytes] = []
    with cluster.channel("n1") as declaring:
        for name in (gone, kept):
            declaring.queue_declare(name, durable=True, auto_delete=True)
    for name in (gone, kept):
        cluster.wait_synchronised(name, 2)
    with cluster.channel("n2") as channel, cluster.channel("n3") as other:
        channel.basic_consume(kept, lambda _c, _m, _p, body: received.append(body), auto_ack=True)
        tag = other.basic_consume(gone, lambda *_: None)
        cluster.kill("n1")
        other.basic_cancel(tag)
        eventually(lambda: cluster.queue(gone, "n3") is None, "the queue without consumers is deleted")
        publish_confirmed(cluster, "n3", kept, [b"still here"])
        pump(channel, lambda: received, "the consumer is served")
    eventually(lambda: cluster.queue(kept, "n3") is None, "it goes with its last consumer")
