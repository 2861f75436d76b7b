"""A node whose data directory was deleted: it ends and says what can be done, and nobody else notices."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.transport.admin_port import ExitCode
from tests.support.live_cluster import LiveCluster, SteadyPublisher, numbered, publish_confirmed, run_cluster
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


def test_a_node_whose_directory_is_removed_while_it_runs_ends_and_nothing_is_lost(cluster: LiveCluster) -> None:
    """What it writes to files that are still open would be gone with the process, and it would confirm all of it."""
    cluster.set_policy("all", "^lost", ha_mode="all", ha_sync_mode="automatic")
    with cluster.channel("n1") as channel:
        channel.queue_declare(QUEUE, durable=True)
    cluster.wait_synchronised(QUEUE, 2)
    with SteadyPublisher(cluster, "n2", QUEUE) as publisher:
        publisher.wait_confirms(100)
        shutil.rmtree(cluster.local.directory.data_path("n1"))
        cluster.warrenctl("-n", "n1", "set_disk_free_limit", "1MB")  # has the disk looked at, now
        assert cluster.local.wait_for_end("n1") == ExitCode.SOFTWARE
        publisher.wait_confirms(100)
    assert publisher.failed == []
    assert "was removed while this node ran" in log_of(cluster, "n1").splitlines()[-1]
    with cluster.channel("n2") as channel:
        assert sorted(drain(channel, QUEUE)) == sorted(publisher.confirmed)


def test_a_wiped_node_is_forgotten_and_joins_as_a_new_one(cluster: LiveCluster) -> None:
    cluster.set_policy("all", "^lost", ha_mode="all", ha_sync_mode="automatic")
    with cluster.channel("n1") as channel:
        channel.queue_declare(QUEUE, durable=True)
    with cluster.channel("n3") as channel:
        channel.queue_declare("alone", durable=True)
    publish_confirmed(cluster, "n1", QUEUE, numbered(100))
    assert cluster.warrenctl("-n", "n1", "forget_cluster_node", "n3") == (
        70,
        "Removing node n3 from the cluster\n",
        "Error:\nnode n3 must be stopped before it can be removed\n",
    )
    cluster.kill_and_notice("n3")
    shutil.rmtree(cluster.local.directory.data_path("n3"))
    code, output, _ = cluster.warrenctl("-n", "n1", "forget_cluster_node", "n3")
    assert code == 0
    assert "queue 'alone' in vhost '/' is deleted: nobody else had anything of it" in output
    with cluster.channel("n2") as channel:
        channel.queue_declare("alone", durable=True)
    cluster.restart("n3")
    cluster.wait_running("n1", "n2", "n3")
    cluster.wait_synchronised(QUEUE, 2)
    cluster.kill("n1")
    view = cluster.wait_queue(QUEUE, lambda view: view.state == "running" and view.ready == 100, "served", "n3")
    assert view.lossy_promotions == 0
    with cluster.channel("n3") as channel:
        assert drain(channel, QUEUE) == numbered(100)


def test_a_forgotten_node_with_its_old_directory_is_told_what_to_do(cluster: LiveCluster) -> None:
    cluster.kill_and_notice("n3")
    assert cluster.warrenctl("-n", "n1", "forget_cluster_node", "n3")[0] == 0
    assert cluster.start_and_wait_for_end("n3") == ExitCode.CONFIG
    assert "n3 was removed from the cluster of n1, n2: delete its data directory" in log_of(cluster, "n3")
    cluster.restart("n1")  # its configuration names n3 still
    cluster.wait_running("n1", "n2")
