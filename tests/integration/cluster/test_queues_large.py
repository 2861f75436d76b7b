"""More for a queue elsewhere, or for its consumers, than the link takes at once: it waits, and the link goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.live_cluster import PERSISTENT, LiveCluster, run_cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MEBIBYTE = 1024 * 1024
#: Hundreds of megabytes go through one disk: nobody is to be thought dead for that.
PATIENCE = ("cluster.silence_timeout_ms=5000", "raft.election_timeout_ms=1000", "raft.heartbeat_ms=100")
#: And a turn of the loop may encode or decode dozens of them.
GREAT_PATIENCE = ("cluster.silence_timeout_ms=10000", "raft.election_timeout_ms=3000", "raft.heartbeat_ms=100")


def check_links(tmp_path: Path, cluster: LiveCluster) -> None:
    for node in cluster.nodes:
        assert "does not read them" not in (tmp_path / f"{node}.log").read_text()


def test_a_commit_that_is_larger_than_a_frame_of_the_mesh_is_answered(tmp_path: Path) -> None:
    """A transaction may hold 256 MiB, a frame 160."""
    with run_cluster(tmp_path, *PATIENCE) as cluster:
        with cluster.channel("n2") as channel:
            channel.queue_declare("q", durable=True)
        with closing(cluster.connect("n1", heartbeat=0)) as connection:
            channel = connection.channel()
            channel.tx_select()
            body = bytes(3 * MEBIBYTE)
            for _ in range(60):
                channel.basic_publish("", "q", body, PERSISTENT)
            channel.tx_commit()
            assert channel.queue_declare("q", passive=True).method.message_count == 60
        check_links(tmp_path, cluster)


def test_what_ten_connections_keep_for_a_node_reaches_it_when_it_is_back(tmp_path: Path) -> None:
    """Each keeps to its bound; together they have more than may wait for a link."""
    with run_cluster(tmp_path, *PATIENCE) as cluster, ExitStack() as connections:
        with cluster.channel("n2") as channel:
            channel.queue_declare("q", durable=True)
        body = bytes(MEBIBYTE)
        channels = []
        for _ in range(10):
            channel = connections.enter_context(closing(cluster.connect("n1", heartbeat=0))).channel()
            channel.tx_select()
            for _ in range(31):
                channel.basic_publish("", "q", body, PERSISTENT)
            channel.queue_declare("")  # all of it was read
            channels.append(channel)
        cluster.kill_and_notice("n2")
        pool = connections.enter_context(ThreadPoolExecutor(len(channels)))
        commits = [pool.submit(channel.tx_commit) for channel in channels]
        cluster.start_one("n2")
        for commit in commits:
            commit.result(timeout=60)

        def has_arrived() -> bool:
            view = cluster.queue("q", "n2")
            return view is not None and view.ready == 310

        eventually(has_arrived, "everything is in the queue", timeout_s=60)
        check_links(tmp_path, cluster)


def test_large_messages_of_some_queues_reach_consumers_elsewhere(tmp_path: Path) -> None:
    """What the queues would give to their consumers in a few turns is more than may wait for a link."""
    queues = [f"q{number}" for number in range(8)]
    with run_cluster(tmp_path, *GREAT_PATIENCE) as cluster:
        body = bytes(60 * MEBIBYTE)
        with cluster.channel("n2", confirm=True) as channel:
            for queue in queues:
                channel.queue_declare(queue, durable=True)
                channel.basic_publish("", queue, body, PERSISTENT)

        def consume(queue: str) -> tuple[int, bool]:
            with closing(cluster.connect("n1", heartbeat=0)) as connection:
                channel = connection.channel()
                method, _, received = next(channel.consume(queue, inactivity_timeout=40))
                assert method is not None and received is not None, f"nothing of {queue} has come"  # noqa: PT018
                return len(received), method.redelivered

        with ThreadPoolExecutor(len(queues)) as pool:
            assert list(pool.map(consume, queues)) == [(len(body), False)] * len(queues)
        check_links(tmp_path, cluster)
