"""A node whose data directory was deleted: it ends and says what can be done, and nobody else notices."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.transport.admin_port import ExitCode
from tests.support.live_cluster import LiveCluster, SteadyPublisher, run_cluster
from tests.support.pika_clients import drain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

QUEUE = "lost.disk"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path / "cluster") as cluster:
        yield cluster


def log_of(cluster: LiveCluster, node: str) -> str:
    return cluster.local.directory.log_path(node).read_text()


@pytest.mark.parametrize("victim", ["n1", "n3"])
def test_a_wiped_node_ends_and_the_others_lose_nothing(cluster: LiveCluster, victim: str) -> None:
    others = [node for node in cluster.nodes if node != victim]
    cluster.set_policy("all", "^lost", ha_mode="all", ha_sync_mode="automatic")
    with cluster.channel(others[0]) as channel:
        channel.queue_declare(QUEUE, durable=True)
    cluster.wait_synchronised(QUEUE, 2)
    with SteadyPublisher(cluster, others[0], QUEUE) as publisher:
        publisher.wait_confirms(100)
        cluster.kill(victim)
        shutil.rmtree(cluster.local.directory.data_path(victim))
        assert cluster.start_and_wait_for_end(victim) == ExitCode.CONFIG
        publisher.wait_confirms(100)
    assert publisher.failed == []
    last_line = log_of(cluster, victim).splitlines()[-1]
    assert "stopped: the data of" in last_line
    assert f"`warrenctl forget_cluster_node {victim}`" in last_line
    cluster.wait_running(*others)
    for other in others:
        refusals = [line for line in log_of(cluster, other).splitlines() if f"{victim} has lost its data" in line]
        assert len(refusals) <= 2, "once by each of the two who may have dialed, not at every attempt"
    view = cluster.wait_synchronised(QUEUE, 1)
    assert victim not in (view.master, *view.mirrors)
    assert view.lossy_promotions == 0
    with cluster.channel(others[1]) as channel:
        assert sorted(drain(channel, QUEUE)) == sorted(publisher.confirmed)
