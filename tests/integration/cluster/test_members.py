"""Members that come, go and are given up, as an operator sees it: real processes and the real warrenctl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cluster.transport.admin_client import AdminClient, AdminError
from cluster.transport.admin_port import ExitCode
from tests.support.live_cluster import LiveCluster, numbered, publish_confirmed, run_cluster
from tests.support.pika_clients import drain
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path / "cluster") as cluster:
        cluster.set_policy("all", "^ha", ha_mode="all", ha_sync_mode="automatic")
        yield cluster


def log_of(cluster: LiveCluster, node: str) -> str:
    return cluster.local.directory.log_path(node).read_text()


def test_a_survivor_forgets_the_majority_offline(cluster: LiveCluster) -> None:
    with cluster.channel("n1") as channel:
        channel.queue_declare("ha.q", durable=True)
        channel.queue_declare("alone", durable=True)
    cluster.wait_synchronised("ha.q", 2)
    publish_confirmed(cluster, "n1", "ha.q", numbered(100))
    forget = ("-n", "n3", "forget_cluster_node", "--offline")
    code, _, error = cluster.warrenctl(*forget, "--confirm", "n1", "n2")
    assert (code, "is in use by process" in error) == (78, True)
    cluster.kill("n3")
    code, _, error = cluster.warrenctl(*forget, "--confirm", "n1", "n2")
    assert (code, "somebody listens at" in error) == (78, True), "the others live"
    cluster.kill("n1", "n2")
    code, output, _ = cluster.warrenctl(*forget, "--dry-run", "n1", "n2")
    assert code == 0
    assert "queue 'alone' in vhost '/' would be deleted: nobody else had anything of it (last complete: n1)" in output
    assert "rather go on with that one" in output
    code, output, _ = cluster.warrenctl(*forget, "--confirm", "n1", "n2")
    assert code == 0
    assert "Members that are left: n3." in output
    assert "Queues deleted: 1; that may lack messages: 0." in output
    cluster.start_one("n3")
    view = cluster.wait_queue("ha.q", lambda view: view.state == "running" and view.ready == 100, "served", "n3")
    assert view.lossy_promotions == 0
    assert cluster.queue("alone", "n3") is None
    for node in ("n1", "n2"):
        assert cluster.start_and_wait_for_end(node) == ExitCode.CONFIG
        assert f"{node} was forgotten while n3 was down" in log_of(cluster, node)
    with cluster.channel("n3") as channel:
        assert drain(channel, "ha.q") == numbered(100)


@contextmanager
def node_alone(cluster: LiveCluster, directory: Path, name: str, cookie: str = "") -> Iterator[str]:
    """Its address; it knows nobody, but has the cluster's cookie, or ``cookie``."""
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "node_name": name,
        "data_dir": directory,
        "listeners.tcp.default": f"127.0.0.1:{free_port()}",
        "cluster.listener": address,
        "cluster.cookie": cookie or cluster.local.cookie,
    }
    command = [sys.executable, "-m", "cluster", *(f"--set={key}={value}" for key, value in settings.items())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: is_up(address, settings["cluster.cookie"]), f"{name} serves")
            yield address
        finally:
            os.kill(process.pid, signal.SIGKILL)


def is_up(address: str, cookie: object) -> bool:
    with AdminClient(address, str(cookie)) as client, suppress(AdminError):
        return bool(client.status()["is_serving"])
    return False


def test_of_two_cookies_that_differ_it_is_said_whose_they_are(cluster: LiveCluster, tmp_path: Path) -> None:
    secret = "the secret of a node alone"
    with node_alone(cluster, tmp_path / "n4", "n4", secret) as address:
        code, _, error = cluster.warrenctl("-n", address, "join_cluster", "n2")
        assert (code, f"warrenctl and the node at {address} have different cookies" in error) == (69, True)
        n2 = cluster.local.directory.node("n2")
        with AdminClient(address, secret) as client:
            with pytest.raises(AdminError, match=f"n4's cookie is not that of the node at {n2.cluster_address}"):
                client.join_cluster(n2.cluster_address)
            with pytest.raises(AdminError, match=f"n4 could not ask a node at {n2.amqp_address}: .*not its AMQP port"):
                client.join_cluster(n2.amqp_address)


def test_a_node_alone_joins(cluster: LiveCluster, tmp_path: Path) -> None:
    with cluster.channel("n1") as channel:
        channel.queue_declare("ha.q", durable=True)
    with node_alone(cluster, tmp_path / "n4", "n4") as address:
        assert cluster.warrenctl("-n", address, "add_user", "u", "p")[0] == 0
        code, _, error = cluster.warrenctl("-n", address, "join_cluster", "n2")
        assert (code, "n4 has 1 users besides the default one, which would be lost" in error) == (70, True)
        assert cluster.warrenctl("-n", address, "reset", "--confirm")[0] == 0
        eventually(lambda: cluster.warrenctl("-n", address, "await_startup")[0] == 0, "it begins again")
        assert cluster.warrenctl("-n", address, "join_cluster", "n2") == (
            0,
            f"Clustering node {address} with n2\n",
            "",
        )
        with cluster.admin("n1") as client:
            assert client.cluster_status()["running_nodes"] == ["n1", "n2", "n3", "n4"]
        assert "n4" in cluster.wait_synchronised("ha.q", 3).mirrors
        code, _, error = cluster.warrenctl("-n", address, "reset", "--confirm")
        assert (code, "is a member of the cluster" in error) == (70, True)


def test_masters_are_spread(cluster: LiveCluster) -> None:
    with cluster.channel("n1") as channel:
        for number in range(6):
            channel.queue_declare(f"ha.{number}", durable=True)
    for number in range(6):
        cluster.wait_synchronised(f"ha.{number}", 2)
        publish_confirmed(cluster, "n1", f"ha.{number}", numbered(10))
    code, output, _ = cluster.warrenctl("rebalance_queues", "--dry-run")
    assert (code, "4 to be moved; masters n1: 2, n2: 2, n3: 2" in output) == (0, True)
    code, output, _ = cluster.warrenctl("rebalance_queues", "--vhost", "/", "--pattern", "^ha")
    assert (code, "4 moved; masters n1: 2, n2: 2, n3: 2" in output) == (0, True)
    views = [cluster.wait_synchronised(f"ha.{number}", 2) for number in range(6)]
    assert sorted(str(view.master) for view in views) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    with cluster.channel("n2") as channel:
        for number in range(6):
            assert drain(channel, f"ha.{number}") == numbered(10)


def test_declares_go_on_while_the_leader_stops_in_order(cluster: LiveCluster) -> None:
    with cluster.admin("n1") as client:
        leader = client.cluster_status()["leader"]
    other = next(node for node in cluster.nodes if node != leader)
    longest_s = 0.0
    with cluster.channel(other) as channel:
        os.kill(cluster.local.pid(leader) or 0, signal.SIGTERM)
        number = 0
        while cluster.local.is_running(leader):
            began_s = time.monotonic()
            channel.queue_declare(f"declared.{number}", durable=True)
            longest_s = max(longest_s, time.monotonic() - began_s)
            number += 1
    assert longest_s < 2, "an election would take as long"
    heirs = [node for node in cluster.nodes if node != leader]
    assert any(f"the metadata group is led by {heir} from now on" in log_of(cluster, leader) for heir in heirs)
