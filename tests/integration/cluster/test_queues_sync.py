"""Synchronisation of mirrors that came late, while clients go on; the first test is a session of an operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.cluster_under_test.local import LocalCluster
from tests.support.live_cluster import (
    LiveCluster,
    SteadyPublisher,
    first_of_free_ports,
    numbered,
    publish_confirmed,
    run_cluster,
)
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROGRAMS = Path(sys.executable).parent
#: Slow enough that a synchronisation of the tests' queues takes seconds, during which something can be observed.
SLOW_SYNC = ("mirroring_sync_max_throughput=512KiB", "mirroring_sync_batch_size=64")
PADDING = b"." * 250


def padded(count: int) -> list[bytes]:
    return [body + PADDING for body in numbered(count)]


# --- an operator's session with the programs ---


class Operator:
    """Runs the console programs on one cluster directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("WARREN_")}

    def command(self, program: str, *arguments: str) -> list[str]:
        where = ["--dir", str(self.directory)]
        program_path = str(PROGRAMS / program)
        return [program_path, *where, *arguments] if program == "warrenctl" else [program_path, *arguments, *where]

    def run(self, program: str, *arguments: str) -> str:
        result = subprocess.run(
            self.command(program, *arguments),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=self._environment,
        )
        assert result.returncode == 0, f"{program} {arguments}: {result.stdout}{result.stderr}"
        return result.stdout

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(program, *arguments),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
        )

    def queue(self, name: str) -> dict[str, Any]:
        columns = ("name", "pid", "slave_pids", "synchronised_slave_pids", "messages", "state")
        rows = json.loads(self.run("warrenctl", "--node", "n2", "--formatter", "json", "list_queues", *columns))
        (row,) = [row for row in rows if row["name"] == name]
        return dict(row)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    directory = tmp_path / "cluster"
    operator = Operator(directory)
    settings = [part for setting in SLOW_SYNC for part in ("--set", setting)]
    try:
        operator.run("warren", "cluster", "up", "--amqp-port", str(first_of_free_ports(3)), *settings)
        yield operator
    finally:
        if (directory / "cluster.json").exists():
            LocalCluster.attach(directory).kill_all()


def test_nothing_is_lost_when_a_late_mirror_is_synchronised_and_the_master_killed(operator: Operator) -> None:
    bodies = padded(10_000)
    operator.run("warrenctl", "set_policy", "ha-all", r"^ha\.", '{"ha-mode":"all"}')
    operator.run("warren", "cluster", "kill", "n3")
    cluster = LiveCluster(LocalCluster.attach(operator.directory))
    cluster.wait_running("n1", "n2")
    with cluster.channel("n1") as channel:
        channel.queue_declare("ha.orders", durable=True)
    publish_confirmed(cluster, "n1", "ha.orders", bodies)

    operator.run("warren", "cluster", "restart", "n3")
    row = eventually(
        lambda: row if len((row := operator.queue("ha.orders"))["slave_pids"]) == 2 else None, "n3 has a mirror"
    )
    assert row is not None
    assert ["<n2." in pid for pid in row["synchronised_slave_pids"]] == [True], "n3 is not synchronised"
    assert row["messages"] == len(bodies)

    # Publishing goes on while the queue is synchronised.
    with SteadyPublisher(cluster, "n2", "ha.orders") as publisher:
        publisher.wait_confirms(1)
        with operator.start("warrenctl", "sync_queue", "ha.orders") as sync:
            eventually(lambda: str(operator.queue("ha.orders")["state"]).startswith("{syncing"), "syncing")
            publisher.wait_confirms(100)
            assert sync.poll() is None, "the confirms came before the synchronisation ended"
            assert sync.wait(120) == 0
        publisher.wait_confirms(100)
    assert publisher.failed == []
    row = operator.queue("ha.orders")
    assert sorted(row["synchronised_slave_pids"]) == sorted(row["slave_pids"])
    assert (len(row["slave_pids"]), row["state"]) == (2, "running")

    # Both mirrors, the one that was there and the one that was filled, have everything when their turn comes.
    everything = bodies + publisher.confirmed
    operator.run("warren", "cluster", "kill", "n1")
    row = eventually(lambda: row if "<n2." in (row := operator.queue("ha.orders"))["pid"] else None, "n2 is master")
    assert row is not None
    assert row["messages"] == len(everything)
    operator.run("warren", "cluster", "restart", "n1")
    cluster.wait_running("n1", "n2", "n3")
    operator.run("warren", "cluster", "kill", "n2")
    cluster.wait_queue("ha.orders", lambda view: view.master == "n3" and view.ready == len(everything), "n3 is master")
    with cluster.channel("n1") as channel:
        assert drain(channel, "ha.orders") == everything


# --- one behaviour each ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster"), *SLOW_SYNC) as running:
        running.set_policy("all", r"^ha\.", ha_mode="all")
        yield running


@pytest.fixture
def queue(cluster: LiveCluster, request: pytest.FixtureRequest) -> str:
    """A mirrored queue with 4,000 messages, of which the mirror on n3 has none."""
    cluster.all_up()
    cluster.kill_and_notice("n3")
    name = f"ha.{request.node.name}"
    with cluster.channel("n1") as channel:
        channel.queue_declare(name, durable=True)
    publish_confirmed(cluster, "n1", name, padded(4_000))
    cluster.restart("n3")
    view = cluster.wait_queue(name, lambda view: "n3" in view.mirrors, "n3 has a mirror")
    assert (view.master, view.synchronised) == ("n1", ("n2",))
    return name


def synced_count(state: str | None) -> int:
    """Messages that the slowest mirror has, according to ``{syncing, N}``; 0 in any other state."""
    return int(state.strip("{}").partition(",")[2]) if state and state.startswith("{syncing") else 0


def test_cancelling_keeps_what_arrived(cluster: LiveCluster, queue: str) -> None:
    with cluster.admin("n1") as client:
        reports = client.sync_queue("/", queue)
        next(reports)
        view = cluster.wait_queue(queue, lambda view: synced_count(view.state) >= 1_000, "a quarter has arrived")
        arrived = synced_count(view.state)
        client.cancel_sync_queue("/", queue)
        *_, last = reports
        assert last.is_finished
        view = cluster.wait_queue(queue, lambda view: view.state == "running", "the synchronisation has stopped")
        assert view.synchronised == ("n2",), "a cancelled synchronisation leaves the mirror unsynchronised"
        client.cancel_sync_queue("/", queue)  # nothing runs: not an error

        first_counts = [report.synchronised_messages for report in client.sync_queue("/", queue)]
        assert first_counts[0] >= arrived, "what had arrived need not be sent again"
    cluster.wait_synchronised(queue, 2)
    with cluster.channel("n3") as channel:
        assert drain(channel, queue) == padded(4_000)


def test_a_policy_can_ask_for_automatic_synchronisation(cluster: LiveCluster, queue: str) -> None:
    cluster.set_policy("all", r"^ha\.", ha_mode="all", ha_sync_mode="automatic", ha_sync_batch_size=500)
    cluster.wait_synchronised(queue, 2)
    cluster.set_policy("all", r"^ha\.", ha_mode="all")
    view = cluster.queue(queue)
    assert view is not None
    assert view.is_synchronised, "what is synchronised stays so"
    with cluster.channel("n1") as channel:
        channel.queue_delete(queue)


def test_a_drained_queue_is_synchronised_without_being_told(cluster: LiveCluster, queue: str) -> None:
    publish_confirmed(cluster, "n1", queue, numbered(10))  # these reach the new mirror as they are published
    with cluster.channel("n2") as channel:
        for method, _, body in channel.consume(queue, inactivity_timeout=20):
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            if body == padded(4_000)[-1]:
                break
        channel.cancel()
        cluster.wait_synchronised(queue, 2)
        cluster.wait_queue(queue, lambda view: view.ready == 10, "what was prefetched is ready again")
        assert drain(channel, queue) == numbered(10)
