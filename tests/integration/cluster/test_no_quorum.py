"""What a node without a majority tells operators and clients, in words: on real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.support.live_cluster import LiveCluster, run_cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TEMPORARY = 75


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        with running.channel("n1") as channel:
            channel.queue_declare("q", durable=True)
        yield running


def status(cluster: LiveCluster) -> dict[str, Any]:
    code, text, errors = cluster.warrenctl("-n", "n1", "--formatter", "json", "cluster_status")
    assert code == 0, errors
    document: dict[str, Any] = json.loads(text)
    return document


def refuses_clients(cluster: LiveCluster) -> bool:
    try:
        with cluster.channel("n1"):
            return False
    except pika.exceptions.AMQPConnectionError:
        return True


def log_of(cluster: LiveCluster, node: str) -> str:
    return "".join(path.read_text() for path in cluster.local.directory.path.glob(f"**/{node}*.log"))


def check_words(cluster: LiveCluster, *reason: str) -> None:
    """Every command that is about the cluster says why it is refused, and nothing else."""
    for command in (
        ["list_queues"],
        ["list_users"],
        ["list_exchanges"],
        ["add_user", "u", "p"],
        ["set_policy", "p", "^", '{"ha-mode":"all"}'],
        ["delete_queue", "q"],
    ):
        code, _, errors = cluster.warrenctl("-n", "n1", *command)
        assert code == TEMPORARY, (command, errors)
        assert all(part in errors for part in reason), (command, errors)
        assert "did not answer in time" not in errors
        assert "does not exist" not in errors


def test_a_node_that_lost_the_majority_and_one_that_has_not_found_it_say_so(cluster: LiveCluster) -> None:
    cluster.kill("n2", "n3")
    eventually(lambda: "n1" in (status(cluster).get("paused") or {}), "n1 says that it pauses", timeout_s=20)
    document = status(cluster)
    assert document["running_nodes"] == ["n1"]
    check_words(cluster, "node n1 is paused for ", "it has no quorum", "it reaches nobody, and lacks n2, n3")
    code, text, _ = cluster.warrenctl("-n", "n1", "cluster_status")
    assert code == 0
    assert "Node n1 serves no clients, since 20" in text
    assert "It lacks: n2, n3" in text
    assert refuses_clients(cluster)
    assert "this node pauses (pause_minority): it has no quorum" in log_of(cluster, "n1")
    assert "led by None" not in log_of(cluster, "n1")

    # Started again alone it knows no vhost: that is not to be said.
    cluster.kill("n1")
    cluster.start_one("n1")
    check_words(cluster, "node n1 is ", "it reaches nobody, and lacks n2, n3")
    assert refuses_clients(cluster)

    cluster.all_up()
    eventually(lambda: not refuses_clients(cluster), "clients are served again")
    assert not status(cluster)["paused"]
    code, text, _ = cluster.warrenctl("-q", "-n", "n1", "list_queues")
    assert (code, "q\t0" in text) == (0, True)
