"""A publisher without confirms against a slow hop of a real cluster: slowed, shown, the hop named, nothing lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.transport.admin_client import AdminError
from tests.support.live_cluster import PERSISTENT, LiveCluster, numbered, run_cluster
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: Small, so that the frozen mirror has little to catch up with and the test is soon over.
CREDIT = ("msg_store_credit_disc_bound.initial=800", "cluster.credit.initial=800")
#: What they let through, twice over: the credit of each hop and what one read of the socket holds.
BOUND_MESSAGES = 10_000
#: A frozen node counts as alive for as long as a test may need it to.
PATIENCE = ("cluster.silence_timeout_ms=60000",)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster"), *CREDIT, *PATIENCE) as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all")
        yield cluster


class Flood:
    """Publishes numbered persistent messages without confirms as fast as it is let, in a thread, until told to stop."""

    def __init__(self, cluster: LiveCluster, node: str, queue: str) -> None:
        self.published = 0
        self._cluster, self._node, self._queue = cluster, node, queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the socket is never read again"

    def _run(self) -> None:
        with self._cluster.channel(self._node) as channel:
            while not self._stop.is_set():
                channel.basic_publish("", self._queue, b"%08d" % self.published, PERSISTENT)
                self.published += 1


def listed(cluster: LiveCluster, listing: str, node: str, *columns: str) -> list[dict[str, Any]]:
    """Rows of a listing; none while the node cannot answer."""
    try:
        with cluster.admin(node) as client:
            table = (
                client.list_queues("/", columns) if listing == "queues" else getattr(client, f"list_{listing}")(columns)
            )
    except AdminError:
        return []
    return table.as_dicts()


@pytest.mark.parametrize("entry", ["n1", "n2"])
def test_a_frozen_mirror_slows_its_publishers_and_is_named(cluster: LiveCluster, entry: str) -> None:
    queue = f"ha.flow-{entry}"
    with cluster.channel("n1") as channel:
        channel.queue_declare(queue, durable=True)
    cluster.wait_synchronised(queue, 2)
    asyncio.run(cluster.local.pause("n3"))
    try:
        with Flood(cluster, entry, queue) as flood:

            def slowed() -> dict[str, Any] | None:
                rows = listed(cluster, "flow", "n1", "node", "queue", "chain", "slowest_hop", "state")
                return next((row for row in rows if "mirror n3: blocked" in row["chain"]), None)

            path = eventually(slowed, "a path to the mirror on n3")
            assert path is not None
            assert (path["node"], path["queue"], path["state"]) == (entry, queue, "blocked")
            assert path["slowest_hop"] == f"queue / {queue} on n1 -> mirror n3"
            assert path["chain"].startswith(f"{entry} connection 127.0.0.1:")
            # Every listing waits for the frozen node for some seconds: all at once.
            with ThreadPoolExecutor() as pool:
                connections = pool.submit(listed, cluster, "connections", entry, "state")
                channels = pool.submit(listed, cluster, "channels", entry, "state")
                queues = pool.submit(listed, cluster, "queues", "n1", "name", "messages", "state", "flow_slowest_hop")
            assert connections.result() == channels.result() == [{"state": "flow"}]
            (row,) = [row for row in queues.result() if row["name"] == queue]
            assert (row["state"], row["flow_slowest_hop"]) == ("flow", "mirror n3")
            assert row["messages"] < BOUND_MESSAGES
            asyncio.run(cluster.local.resume("n3"))
            taken = flood.published
            eventually(lambda: flood.published > taken + 2_000, "the publisher goes on")
        published = numbered(flood.published)
    finally:
        asyncio.run(cluster.local.resume("n3"))
    cluster.wait_queue(queue, lambda view: view.ready == len(published), f"all {len(published)} arrive")
    with cluster.channel("n3") as channel:
        assert drain(channel, queue) == published
