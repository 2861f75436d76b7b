"""S4, S6, S11 and S14 of the conformance cases on real processes: the node of the master gets SIGKILL.

RabbitMQ gave them up as flaky. On the simulator they run with thousands of seeds (`tests.conformance.ha`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.countdown_clients import Consumer, Producer
from tests.support.live_cluster import LiveCluster, QueueView, publish_confirmed, run_cluster
from tests.support.pika_clients import drain, pump

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: Takes longer to publish than a failover lasts.
MESSAGES = 2_000
#: So many are answered when the master dies.
BEFORE = 300


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all", ha_sync_mode="automatic")
        yield cluster


@pytest.fixture
def cluster(running: LiveCluster) -> LiveCluster:
    running.all_up()
    return running


def declare(cluster: LiveCluster, name: str, **arguments: object) -> str:
    """A durable queue with its master on n1 and synchronised mirrors on n2 and n3. ``x_max_length`` as clients say."""
    with cluster.channel("n1") as channel:
        channel.queue_declare(
            name, durable=True, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
        )
    cluster.wait_synchronised(name, 2)
    return name


def has_moved(view: QueueView) -> bool:
    return view.master != "n1" and view.state == "running"


def test_s4_exclusive_queues_are_declared_again_on_another_node(cluster: LiveCluster) -> None:
    """They live where their connection does: the end of another node costs none of the ten, and after the end of their
    own they can be declared again, under the same names, wherever the client goes."""
    names = [f"ha.exclusive-{number}" for number in range(10)]
    cancelled: list[object] = []
    received: list[bytes] = []

    def take(channel: BlockingChannel) -> None:
        channel.add_on_cancel_callback(cancelled.append)
        for name in names:
            channel.queue_declare(name, exclusive=True, arguments={"x-queue-master-locator": "min-masters"})
            channel.basic_consume(name, lambda _c, _m, _p, body: received.append(body), auto_ack=True)

    def all_work(channel: BlockingChannel) -> None:
        received.clear()
        for name in names:
            channel.basic_publish("", name, name.encode())
        pump(channel, lambda: len(received) == len(names), "each queue has delivered")
        assert sorted(received) == [name.encode() for name in names]

    with cluster.channel("n1") as channel:
        take(channel)
        cluster.kill_and_notice("n2")
        all_work(channel)
        assert cancelled == []
        cluster.restart("n2")
        cluster.kill_and_notice("n1")
    with cluster.channel("n3") as channel:
        take(channel)
        all_work(channel)


def test_s6_consuming_survives_sigkill(cluster: LiveCluster) -> None:
    queue = declare(cluster, "ha.s6")
    with cluster.channel("n2") as channel:
        consumer = Consumer(channel, queue, MESSAGES)
        producer = Producer(cluster, "n3", queue, MESSAGES)
        consumer.wait_lowest(MESSAGES - BEFORE)
        cluster.kill("n1")
        consumer.wait_lowest(1)
        producer.all_acked()
        assert consumer.cancels == 1
    cluster.wait_queue(queue, has_moved, "a new master")


def test_s11_confirms_survive_sigkill(cluster: LiveCluster) -> None:
    queue = declare(cluster, "ha.s11")
    producer = Producer(cluster, "n2", queue, MESSAGES)
    producer.wait_answers(BEFORE)
    cluster.kill("n1")
    producer.all_acked()
    cluster.wait_queue(queue, has_moved, "a new master")
    with cluster.channel("n3") as channel:
        assert [int(body) for body in drain(channel, queue)] == list(range(MESSAGES, 0, -1))


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_s14_refusals_survive_sigkill(cluster: LiveCluster, overflow: str) -> None:
    """The queue holds one message and is full: all else is refused, before, during and after the failover."""
    queue = declare(cluster, f"ha.s14.{overflow}", x_max_length=1, x_overflow=overflow)
    publish_confirmed(cluster, "n2", queue, [b"original"])
    producer = Producer(cluster, "n2", queue, MESSAGES)
    producer.wait_answers(BEFORE)
    cluster.kill("n1")
    producer.all_nacked()
    cluster.wait_queue(queue, has_moved, "a new master")
    with cluster.channel("n3") as channel:
        assert drain(channel, queue) == [b"original"]
