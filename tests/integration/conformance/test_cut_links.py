"""N2, N3, N6, N7, N10 to N16, N18 and N19 of the conformance cases on three real processes under ``pause_minority``.

RabbitMQ gave the whole suite up as flaky. On the simulator the cases run with thousands of seeds
(`tests.conformance.ha.test_partitions`, where it is said what is asked and why); here each runs once, and what a seed
draws there is chosen. Links are cut by relays (`tests.support.relays`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import aio_pika
import aio_pika.exceptions
import pytest

from tests.integration.conformance.conftest import WriteThroughAll
from tests.integration.conformance.scenes import closing_of, declare, promised_survive
from tests.support.linked_cluster import LinkedCluster, run_linked_cluster
from tests.support.live_cluster import numbered, publish_confirmed
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: A synchronisation that N19 asks for lasts several times as long as a silence (`FAST_DETECTION`).
SYNC_BYTES_PER_S = 400_000
SYNC_SECONDS = 7
SILENCE_S = 2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedCluster]:
    settings = [f"mirroring_sync_max_throughput={SYNC_BYTES_PER_S}", "mirroring_sync_batch_size=10"]
    with run_linked_cluster(tmp_path_factory.mktemp("cluster"), *settings) as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all", ha_sync_mode="automatic")
        yield cluster


# --- who stops, who goes on ---


def test_n2_who_is_left_alone_pauses_and_resumes(cluster: LinkedCluster) -> None:
    connection = cluster.connect("n3")
    cluster.kill_and_notice("n1")
    assert cluster.is_serving("n2"), "two of three go on"
    connection.process_data_events(0)
    assert connection.is_open
    cluster.kill("n2")
    reason = closing_of(connection)
    assert "320" in repr(reason)
    assert "pause_minority" in repr(reason)
    cluster.wait_only_these_serve()
    cluster.restart("n1")
    cluster.wait_only_these_serve("n1", "n3")
    cluster.restart("n2")
    cluster.wait_whole()


def test_n3_who_is_cut_off_pauses_and_resumes(cluster: LinkedCluster) -> None:
    cluster.links.isolate("n2")
    cluster.wait_only_these_serve("n1", "n3")
    cluster.links.heal()
    cluster.wait_whole()


# --- no false promises ---


def test_n6_no_false_promises_mirrored(cluster: LinkedCluster, write_through_all: WriteThroughAll) -> None:
    queue = declare(cluster, "ha.n6")
    writers = write_through_all(queue)
    cluster.links.isolate("n1")
    cluster.wait_running("n2", "n3")  # until then n1 would be asked where the queue is
    cluster.wait_queue(queue, lambda view: view.master != "n1" and view.state == "running", "moved", node="n2")
    writers.wait_progress("n2", "n3")
    promised_survive(cluster, writers, queue, "n1")


def test_n7_no_false_promises_unmirrored(cluster: LinkedCluster, write_through_all: WriteThroughAll) -> None:
    queue = declare(cluster, "plain.n7", mirror_count=0)
    writers = write_through_all(queue)
    cluster.links.isolate("n1")
    cluster.wait_only_these_serve("n2", "n3")
    cluster.links.heal()
    writers.wait_progress("n1", "n2", "n3")
    promised_survive(cluster, writers, queue, "n2")


# --- the cluster heals by itself ---


@pytest.mark.parametrize("count", [1, 2, 3])
def test_n10_one_two_or_three_cut_links_heal_by_themselves(
    cluster: LinkedCluster, write_through_all: WriteThroughAll, count: int
) -> None:
    queue = declare(cluster, f"ha.n10-{count}")
    writers = write_through_all(queue)
    links = [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
    for link in links[:count]:
        cluster.links.cut(*link)
    if count == 1:
        eventually(lambda: cluster.status("n3").get("partitions"), "the cut is known")
    else:
        cluster.wait_only_these_serve(*(["n2", "n3"] if count == 2 else []))
    for link in reversed(links):
        cluster.links.heal_link(*link)
    promised_survive(cluster, writers, queue, "n3")


def test_n11_it_heals_after_every_node_had_to_stop(cluster: LinkedCluster, write_through_all: WriteThroughAll) -> None:
    queue = declare(cluster, "ha.n11")
    writers = write_through_all(queue)
    cluster.links.isolate("n1")
    cluster.links.isolate("n2")
    cluster.wait_only_these_serve()
    promised_survive(cluster, writers, queue, "n1")


def test_n12_it_heals_after_six_partial_partitions(cluster: LinkedCluster, write_through_all: WriteThroughAll) -> None:
    """Some so short that only half is noticed; one and the other are what a partial partition may be."""
    queue = declare(cluster, "ha.n12")
    writers = write_through_all(queue)
    for one, other in [("n1", "n2"), ("n2", "n3"), ("n1", "n3")] * 2:
        cluster.links.cut(one, other)
        (third,) = set(cluster.nodes) - {one, other}
        writers.wait_progress(third)
        cluster.links.heal_link(one, other)
    promised_survive(cluster, writers, queue, "n2")


def test_n13_stray_messages_of_the_past_change_nothing(cluster: LinkedCluster) -> None:
    """What a leader says to nobody waits in the relays until the others have chosen another, and arrives then."""
    past = str(eventually(lambda: cluster.status("n1").get("leader"), "a leader"))
    others = [node for node in cluster.nodes if node != past]
    for other in others:
        cluster.links.cut_way(past, other)

    def chosen() -> str | None:
        leaders = {cluster.status(node).get("leader") for node in others}
        leader = leaders.pop()
        return leader if not leaders and leader in others else None

    eventually(chosen, "another leader")
    with cluster.channel(others[0]) as channel:
        channel.queue_declare("plain.n13", durable=True)
    cluster.links.heal()
    cluster.wait_whole()
    for node in cluster.nodes:
        publish_confirmed(cluster, node, "plain.n13", numbered(1))
    with cluster.channel(past) as channel:
        assert drain(channel, "plain.n13") == numbered(1) * 3


# --- cuts between two of three ---


def test_n14_a_cut_to_a_node_that_is_dead_is_no_partition(
    cluster: LinkedCluster, write_through_all: WriteThroughAll
) -> None:
    """Whatever is seen first: the two that are left see each other, and neither closes a connection."""
    queue = declare(cluster, "ha.n14")
    writers = write_through_all(queue)
    connections = [cluster.connect(node) for node in ("n1", "n3")]
    cluster.links.cut("n1", "n2")
    cluster.kill_and_notice("n2")
    writers.wait_progress("n1", "n3")
    for connection in connections:
        connection.process_data_events(0)
        assert connection.is_open
        connection.close()
    cluster.links.heal()
    cluster.restart("n2")
    promised_survive(cluster, writers, queue, "n2")


def test_n15_a_partial_cut_that_becomes_a_whole_one(cluster: LinkedCluster, write_through_all: WriteThroughAll) -> None:
    queue = declare(cluster, "ha.n15")
    writers = write_through_all(queue)
    cluster.links.cut("n1", "n2")
    eventually(lambda: cluster.status("n3").get("partitions"), "the partial cut is known")
    cluster.links.cut("n1", "n3")
    cluster.wait_only_these_serve("n2", "n3")
    writers.wait_progress("n2", "n3")
    promised_survive(cluster, writers, queue, "n1")


def test_n16_of_a_partial_cut_one_pauses_at_most(cluster: LinkedCluster, write_through_all: WriteThroughAll) -> None:
    queue = declare(cluster, "ha.n16")
    writers = write_through_all(queue)
    cluster.links.cut("n1", "n2")
    eventually(lambda: cluster.status("n3").get("partitions"), "the cut is known")
    before = writers.counts()
    eventually(
        lambda: "n3" in (going_on := writers.progress_since(before)) and len(going_on) >= 2,
        "the third and another go on",
    )
    paused = [node for node in cluster.nodes if not cluster.is_serving(node)]
    assert paused in ([], ["n1"], ["n2"])
    promised_survive(cluster, writers, queue, "n2")


# --- questions to nodes that do not answer ---


def test_n18_a_hundred_questions_to_a_node_that_is_cut_off_cost_one_delay(cluster: LinkedCluster) -> None:
    """Each delay is 5 s for an operator and 15 s for a client: one is within their patience, a hundred are not."""
    names = [f"plain.n18-{number:03}" for number in range(100)]
    with cluster.channel("n2") as channel:
        for name in names:
            channel.queue_declare(name, durable=True)
    cluster.links.isolate("n2")
    with cluster.admin("n1") as client:
        rows = client.list_queues("/", ["name", "messages", "consumers"]).as_dicts()
    assert sorted(row["name"] for row in rows) == names
    assert asyncio.run(asyncio.wait_for(ask_for_all(cluster.url("n1"), names), 30)) == [404] * len(names)
    cluster.links.heal()
    cluster.wait_whole()


async def ask_for_all(url: str, names: list[str]) -> list[int]:
    """The codes with which passive declarations are refused, all asked at once; 0: it was not."""

    async def ask_for(connection: aio_pika.abc.AbstractConnection, name: str) -> int:
        try:
            channel = await connection.channel()
            await channel.declare_queue(name, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return 404
        return 0

    async with await aio_pika.connect(url) as connection:
        return list(await asyncio.gather(*(ask_for(connection, name) for name in names)))


def test_n19_a_long_request_of_an_operator_is_not_taken_for_silence(cluster: LinkedCluster) -> None:
    """A synchronisation that lasts several silence timeouts, asked of a node that is not the master."""
    name = "long.n19"
    cluster.set_policy("long", r"^long\.", ha_mode="nodes", ha_params=["n1"])
    declare(cluster, name, mirror_count=0)
    body = bytes(10_000)
    publish_confirmed(cluster, "n1", name, [body] * (SYNC_SECONDS * SYNC_BYTES_PER_S // len(body)))
    cluster.set_policy("long", r"^long\.", ha_mode="nodes", ha_params=["n1", "n2"])
    cluster.wait_queue(name, lambda view: view.streaming == ("n2",), "the mirror follows")
    before = lost_links(cluster)
    began_s = time.monotonic()
    with cluster.admin("n3") as client:
        *_, last = client.sync_queue("/", name)
    assert last.is_finished
    assert time.monotonic() - began_s > 2 * SILENCE_S, "it lasted: the limit of its speed allows no less"
    assert lost_links(cluster) == before
    cluster.wait_queue(name, lambda view: view.synchronised == ("n2",), "synchronised")


def lost_links(cluster: LinkedCluster) -> list[str]:
    """What the nodes' logs say of links that were given up."""
    logs = [cluster.local.directory.log_path(node).read_text(encoding="utf-8") for node in cluster.nodes]
    return [line for log in logs for line in re.findall(r"link \d+ to n\d is down.*", log)]
