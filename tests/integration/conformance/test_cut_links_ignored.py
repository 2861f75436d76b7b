"""N1, N8, N9 and N17 of the conformance cases on three real processes under ``cluster_partition_handling = ignore``.

See `tests.integration.conformance.test_cut_links`. What RabbitMQ asks of pause_if_all_down is asked of this mode: a
node that has no majority keeps the connections of its clients and confirms nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conformance.conftest import WriteThroughAll
from tests.integration.conformance.scenes import declare, promised_survive
from tests.support.countdown_clients import Producer
from tests.support.linked_cluster import LinkedCluster, run_linked_cluster
from tests.support.live_cluster import numbered, publish_confirmed
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedCluster]:
    with run_linked_cluster(tmp_path_factory.mktemp("cluster"), "cluster_partition_handling=ignore") as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all", ha_sync_mode="automatic")
        yield cluster


def wait_taken_over(cluster: LinkedCluster, queue: str) -> None:
    cluster.wait_running("n2", "n3")  # until then n1 would be asked where the queue is
    cluster.wait_queue(queue, lambda view: view.master != "n1" and view.state == "running", "moved", node="n2")


def test_n1_ignore_keeps_the_clients_of_a_minority_and_promises_them_nothing(cluster: LinkedCluster) -> None:
    queue = declare(cluster, "ha.n1")
    connection = cluster.connect("n1")
    cluster.links.isolate("n1")
    producer = Producer(cluster, "n1", queue, 10)
    wait_taken_over(cluster, queue)
    eventually(lambda: cluster.status("n1").get("running_nodes") == ["n1"], "n1 knows that it is alone")
    publish_confirmed(cluster, "n2", queue, numbered(10))
    connection.process_data_events(0)
    assert connection.is_open, "the connection is kept"
    assert (producer.acks, producer.nacks) == (0, 0), "a minority confirms nothing"
    cluster.links.heal()
    producer.all_acked()
    cluster.wait_whole()
    with cluster.channel("n1") as channel:
        assert sorted(drain(channel, queue)) == sorted([*numbered(10), *(b"%d" % number for number in range(1, 11))])
    connection.close()


def test_n8_no_false_promises_mirrored_under_the_other_mode(
    cluster: LinkedCluster, write_through_all: WriteThroughAll
) -> None:
    queue = declare(cluster, "ha.n8")
    writers = write_through_all(queue)
    cluster.links.isolate("n1")
    wait_taken_over(cluster, queue)
    writers.wait_progress("n2", "n3")
    promised_survive(cluster, writers, queue, "n1")


def test_n9_no_false_promises_unmirrored_under_the_other_mode(
    cluster: LinkedCluster, write_through_all: WriteThroughAll
) -> None:
    queue = declare(cluster, "plain.n9", mirror_count=0)
    writers = write_through_all(queue)
    cluster.links.isolate("n1")
    cluster.wait_running("n2", "n3")
    cluster.links.heal()
    writers.wait_progress("n1", "n2", "n3")
    promised_survive(cluster, writers, queue, "n2")


def test_n17_of_a_partial_cut_nobody_pauses_under_ignore(
    cluster: LinkedCluster, write_through_all: WriteThroughAll
) -> None:
    queue = declare(cluster, "ha.n17")
    writers = write_through_all(queue)
    cluster.links.cut("n1", "n2")
    eventually(lambda: cluster.status("n3").get("partitions"), "the cut is known")
    before = writers.counts()
    eventually(
        lambda: "n3" in (going_on := writers.progress_since(before)) and len(going_on) >= 2,
        "the third and another go on",
    )
    assert all(cluster.is_serving(node) for node in cluster.nodes)
    promised_survive(cluster, writers, queue, "n2")
