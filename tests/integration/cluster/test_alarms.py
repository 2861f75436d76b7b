"""An alarm on one node stops publishers on all of them, and nothing else: real nodes, unmodified pika."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from cluster.transport.admin_client import AdminClient
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.config import parse_address
from tests.support.live_cluster import PERSISTENT, LiveCluster, numbered, publish_confirmed, run_cluster
from tests.support.pika_clients import drain
from tests.support.waiting import DEFAULT_TIMEOUT_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NODES = ("n1", "n2", "n3")
BLOCK_ALL = MemoryWatermark(0.0)
USUAL = MemoryWatermark(0.4)
#: More than any disk has.
WHOLE_DISK = DiskFreeLimit(2**52)


class Publisher:
    """A pika connection in a thread of its own that publishes numbered messages, one after the other's confirm."""

    def __init__(self, cluster: LiveCluster, node: str, queue: str) -> None:
        self.confirmed: list[bytes] = []
        #: ``blocked REASON`` and ``unblocked``, as they came.
        self.heard: list[str] = []
        self._node = node
        self._queue = queue
        self._number = 0
        self._is_stopping = False
        self._failure = ""
        self._channel: Any = None
        address = parse_address(cluster.local.directory.node(node).amqp_address)
        self._connection: Any = pika.SelectConnection(
            pika.ConnectionParameters(address.host, address.port),
            on_open_callback=self._opened,
            on_close_callback=self._closed,
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._connection.ioloop.add_callback_threadsafe(self._connection.ioloop.stop)
            self._thread.join(DEFAULT_TIMEOUT_S)
        self._connection.ioloop.close()

    def wait_confirms(self, more: int) -> None:
        wanted = len(self.confirmed) + more
        eventually(lambda: len(self.confirmed) >= wanted or self._failure, f"{more} more confirms on {self._node}")
        assert not self._failure, self._failure

    def finish(self) -> None:
        """Publish nothing more and wait until all is confirmed."""
        self._is_stopping = True
        self._thread.join(DEFAULT_TIMEOUT_S)
        assert not self._thread.is_alive(), "the last confirm is missing"

    def _opened(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(
            lambda _, frame: self.heard.append(f"blocked {frame.method.reason}")
        )
        connection.add_on_connection_unblocked_callback(lambda *_: self.heard.append("unblocked"))
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._answered)
        self._publish()

    def _body(self) -> bytes:
        return f"{self._node} {self._number}".encode()

    def _publish(self) -> None:
        self._channel.basic_publish("", self._queue, self._body(), PERSISTENT)

    def _answered(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            self._failure = f"{self._body()!r} was refused"
        self.confirmed.append(self._body())
        self._number += 1
        if self._is_stopping:
            self._connection.close()
        else:
            self._publish()

    def _closed(self, _: Any, reason: BaseException) -> None:
        if not self._is_stopping:
            self._failure = repr(reason)
        self._connection.ioloop.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all")
        yield cluster


@pytest.fixture
def cluster(running: LiveCluster) -> Iterator[LiveCluster]:
    running.all_up()
    yield running
    for node in running.local.running_nodes():
        with running.admin(node) as admin:
            admin.set_memory_watermark(USUAL)
            admin.set_disk_free_limit(DiskFreeLimit())


@pytest.fixture
def queue(cluster: LiveCluster, request: pytest.FixtureRequest) -> str:
    name = f"ha.{request.node.name}"
    with cluster.channel("n1") as channel:
        channel.queue_declare(name, durable=True)
    cluster.wait_synchronised(name, 2)
    return name


@pytest.fixture
def publishers(cluster: LiveCluster, queue: str) -> Iterator[Sequence[Publisher]]:
    """One on every node, all at work."""
    with ExitStack() as stack:
        started = [stack.enter_context(Publisher(cluster, node, queue)) for node in NODES]
        for publisher in started:
            publisher.wait_confirms(5)
        yield started


def states(cluster: LiveCluster, node: str) -> Counter[str]:
    with cluster.admin(node) as admin:
        return Counter(row["state"] for row in admin.list_connections(("state",)).as_dicts())


def wait_states(cluster: LiveCluster, **wanted: int) -> None:
    """Until every running node lists these states of all connections of the cluster."""
    for node in cluster.local.running_nodes():
        eventually(lambda node=node: states(cluster, node) == Counter(wanted), f"{wanted} seen by {node}")  # type: ignore[misc]


def alarms(cluster: LiveCluster, node: str) -> list[tuple[str, str]]:
    with cluster.admin(node) as admin:
        return [(alarm["node"], alarm["resource"]) for alarm in admin.cluster_status()["alarms"]]


def raise_memory(admin: AdminClient) -> None:
    admin.set_memory_watermark(BLOCK_ALL)


def clear_memory(admin: AdminClient) -> None:
    admin.set_memory_watermark(USUAL)


def raise_disk(admin: AdminClient) -> None:
    admin.set_disk_free_limit(WHOLE_DISK)


def clear_disk(admin: AdminClient) -> None:
    admin.set_disk_free_limit(DiskFreeLimit())


def consume_all(cluster: LiveCluster, connection: BlockingConnection, queue: str, bodies: Sequence[bytes]) -> None:
    assert drain(connection.channel(), queue) == bodies


@pytest.mark.parametrize(
    ("set_alarm", "clear_alarm", "resource"),
    [(raise_memory, clear_memory, "memory"), (raise_disk, clear_disk, "disk")],
    ids=["memory", "disk"],
)
def test_an_alarm_on_one_node_blocks_publishers_on_all_and_no_consumer(
    cluster: LiveCluster,
    queue: str,
    publishers: Sequence[Publisher],
    set_alarm: Any,
    clear_alarm: Any,
    resource: str,
) -> None:
    backlog, consumer_heard = f"ha.backlog.{resource}", list[str]()
    with cluster.channel("n1") as channel:
        channel.queue_declare(backlog, durable=True)
    publish_confirmed(cluster, "n1", backlog, numbered(2000))
    consumer = cluster.connect("n3")
    consumer.add_on_connection_blocked_callback(lambda *_: consumer_heard.append("blocked"))
    with cluster.admin("n1") as admin:
        set_alarm(admin)
    wait_states(cluster, blocked=3, blocking=1)
    assert [publisher.heard for publisher in publishers] == [[f"blocked low on {resource}"]] * 3
    with cluster.admin("n2") as admin:
        slowed = admin.list_flow(("node", "slowest_hop", "state")).rows
    assert sorted(slowed) == [(node, f"alarm: {resource} on n1", "blocked") for node in NODES]
    for node in NODES:
        assert alarms(cluster, node) == [("n1", resource)]

    confirmed = [len(publisher.confirmed) for publisher in publishers]
    consume_all(cluster, consumer, backlog, numbered(2000))
    assert consumer_heard == [], "whoever does not publish is not concerned"
    assert [len(publisher.confirmed) for publisher in publishers] == confirmed, "nothing was taken meanwhile"

    with cluster.admin("n1") as admin:
        clear_alarm(admin)
    for publisher in publishers:
        publisher.wait_confirms(20)
    assert [publisher.heard[1:] for publisher in publishers] == [["unblocked"]] * 3
    wait_states(cluster, running=4)
    for publisher in publishers:
        publisher.finish()
    consumer.close()
    with cluster.channel("n2") as channel:
        found = drain(channel, queue)
    assert sorted(found) == sorted(body for publisher in publishers for body in publisher.confirmed)


def test_a_connection_made_during_an_alarm_is_blocked_when_it_publishes(cluster: LiveCluster, queue: str) -> None:
    with cluster.admin("n2") as admin:
        raise_memory(admin)
        raise_disk(admin)
    eventually(lambda: len(alarms(cluster, "n3")) == 2, "n3 knows of both alarms")
    with Publisher(cluster, "n3", queue) as publisher:
        eventually(lambda: publisher.heard == ["blocked low on memory & disk"], "it is told why")
        with cluster.admin("n2") as admin:
            clear_memory(admin)
        eventually(lambda: alarms(cluster, "n3") == [("n2", "disk")], "one alarm is left")
        assert publisher.confirmed == []
        with cluster.admin("n2") as admin:
            clear_disk(admin)
        publisher.wait_confirms(3)
        assert publisher.heard == ["blocked low on memory & disk", "unblocked"]
        publisher.finish()


def test_the_alarms_of_a_node_that_dies_go_with_it_and_its_limits_too(
    cluster: LiveCluster, publishers: Sequence[Publisher]
) -> None:
    with cluster.admin("n3") as admin:
        raise_memory(admin)
        assert admin.status()["vm_memory_high_watermark_limit"] == 0
    wait_states(cluster, blocked=3)
    cluster.kill_and_notice("n3")
    for publisher in publishers[:2]:
        publisher.wait_confirms(5)
        assert publisher.heard == ["blocked low on memory", "unblocked"]
        publisher.finish()
    assert alarms(cluster, "n1") == alarms(cluster, "n2") == []
    cluster.restart("n3")
    with cluster.admin("n3") as admin:
        status = admin.status()
    assert status["vm_memory_high_watermark_setting"] == {"relative": 0.4}
    assert status["alarms"] == []


def test_a_node_that_comes_back_learns_of_an_alarm_that_is_set(cluster: LiveCluster, queue: str) -> None:
    cluster.kill_and_notice("n3")
    with cluster.admin("n1") as admin:
        raise_disk(admin)
    cluster.restart("n3")
    eventually(lambda: alarms(cluster, "n3") == [("n1", "disk")], "n3 knows")
    with Publisher(cluster, "n3", queue) as publisher:
        eventually(lambda: publisher.heard == ["blocked low on disk"], "and blocks")
        with cluster.admin("n1") as admin:
            clear_disk(admin)
        publisher.wait_confirms(3)
        publisher.finish()
