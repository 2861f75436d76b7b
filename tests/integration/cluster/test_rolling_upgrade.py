"""Nodes of the release before and of this one are one cluster, from the first restart to the last."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pika
import pika.exceptions
import pytest

from cluster.metadata.codec import encode_request
from cluster.metadata.commands import (
    ChangeTopology,
    Command,
    FoundCluster,
    NodeDown,
    NodeUp,
    RaiseProtocol,
    Request,
    RequestId,
    SetPolicy,
    TakeService,
)
from cluster.metadata.records import PolicyRecord
from cluster.runtime.metadata_group import MetadataGroup
from node.auth import UserDirectory
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.topology.commands import DeclareQueue
from tests.support.live_cluster import PERSISTENT, LiveCluster, run_cluster
from tests.support.pika_clients import drain
from tests.support.previous_release import check_out_previous_release
from tests.support.waiting import DEFAULT_TIMEOUT_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

QUEUE = "q"
#: Confirms that must come between two steps of the upgrade: all of the cluster works.
CONFIRMS_BETWEEN = 100


class UpgradablePublisher:
    """Publishes numbered messages one by one, through whichever node lets it, and publishes what was not confirmed
    again; in a thread, until told to stop."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.confirmed: list[bytes] = []
        self._cluster = cluster
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> UpgradablePublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(DEFAULT_TIMEOUT_S)
        assert not self._thread.is_alive(), f"a confirm is missing after {len(self.confirmed)}"

    def wait_confirms(self) -> None:
        wanted = len(self.confirmed) + CONFIRMS_BETWEEN
        eventually(lambda: len(self.confirmed) >= wanted, f"{CONFIRMS_BETWEEN} more confirms")

    def _run(self) -> None:
        while not self._is_over.is_set():
            for node in self._cluster.nodes:
                try:
                    self._publish_through(node)
                except (pika.exceptions.AMQPError, OSError):
                    continue

    def _publish_through(self, node: str) -> None:
        with self._cluster.channel(node, confirm=True) as channel:
            while not self._is_over.is_set():
                body = b"%08d" % len(self.confirmed)
                channel.basic_publish("", QUEUE, body, PERSISTENT, mandatory=True)
                self.confirmed.append(body)


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    return check_out_previous_release(tmp_path / "previous")


@pytest.fixture
def cluster(tmp_path: Path, previous: Path) -> Iterator[LiveCluster]:
    """Three nodes of the release before, and a mirrored queue."""
    with run_cluster(tmp_path / "cluster", checkout=previous) as cluster:
        yield cluster


def upgrade(cluster: LiveCluster, node: str) -> None:
    """Stop it in an orderly way, start it with this release, and wait until all see each other."""
    cluster.local.checkouts.pop(node)
    cluster.restart(node)


def warrenctl_of(release: Path, cluster: LiveCluster, *arguments: str) -> str:
    """What the program of another release says, asked about this cluster."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from cluster.cli import main; main()",
            "--dir",
            str(cluster.local.directory.path),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(release)},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def wait_protocol_3(cluster: LiveCluster) -> None:
    def is_known_to_all() -> bool:
        return all(protocol_seen_by(cluster, node) == 3 for node in cluster.nodes)

    eventually(is_known_to_all, "every node knows that the protocol is 3")


def protocol_seen_by(cluster: LiveCluster, node: str) -> int:
    with cluster.admin(node) as client:
        return int(client.cluster_status()["protocol"]["version"])


def test_a_cluster_is_upgraded_node_by_node_while_it_works(cluster: LiveCluster, previous: Path) -> None:
    cluster.set_policy("ha", "^q", ha_mode="all", ha_sync_mode="automatic")
    with cluster.channel("n1") as channel:
        channel.queue_declare(QUEUE, durable=True)
    cluster.wait_synchronised(QUEUE, 2)
    with UpgradablePublisher(cluster) as publisher:
        publisher.wait_confirms()
        for number, node in enumerate(cluster.nodes):
            upgrade(cluster, node)
            cluster.wait_synchronised(QUEUE, 2)
            publisher.wait_confirms()
            # Either release's program, asked through either release's nodes; and a change by the one that was upgraded.
            for asked in cluster.nodes:
                assert "n3" in warrenctl_of(previous, cluster, "-n", asked, "cluster_status")
                assert "n3" in cluster.warrenctl("-n", asked, "cluster_status")[1]
            assert cluster.warrenctl("-n", node, "set_policy", f"p{number}", "^none$", '{"ha-mode":"all"}')[0] == 0
            if node != "n3":
                code, said, error = cluster.warrenctl("-n", node, "cluster_status")
                assert code == 0, error
                assert "Cluster protocol: 2" in said
                assert "Not raised yet: n3 still runs protocol 2" in said
        wait_protocol_3(cluster)
        publisher.wait_confirms()
    with cluster.channel("n2") as channel:
        assert sorted(set(drain(channel, QUEUE))) == publisher.confirmed
    for node in cluster.nodes:
        log = cluster.local.directory.log_path(node).read_text()
        assert "is no command and is passed over" not in log
        assert "did not understand" not in log
        assert "Traceback" not in log


#: Run by the release before: applies what is in the log file, restores the snapshot file, and tells what it has then.
APPLY = """
import pathlib, sys
from cluster.metadata.state import MetadataState
from cluster.runtime.metadata_group import MetadataGroup
from node.auth import UserDirectory
group = MetadataGroup("n1", 1, UserDirectory(frozenset()))
for index, line in enumerate(pathlib.Path(sys.argv[1]).read_text().split(), 1):
    group.apply(index, bytes.fromhex(line))
restored = MetadataState(UserDirectory(frozenset()))
restored.restore(pathlib.Path(sys.argv[2]).read_bytes())
print(group.state.snapshot().hex(), restored.snapshot().hex())
"""


def test_both_releases_make_the_same_of_the_same_log_and_read_the_same_snapshots(
    tmp_path: Path, previous: Path
) -> None:
    """A protocol that cannot be raised, because a node of the release before is there, leaves no trace in either."""
    n1, n2 = NodeName("n1"), NodeName("n2")
    policy = PolicyRecord("/", "ha", "^q", {"ha-mode": "all"}, 0, "all")
    history: list[Command] = [
        FoundCluster("/", "guest", "hash", ("administrator",)),
        NodeUp(n1, Incarnation(1), "h:1", "h:2", 3),
        NodeUp(n2, Incarnation(1), "h:3", "h:4", 2),
        SetPolicy(policy),
        ChangeTopology(DeclareQueue("/", "q", durable=True), n1),
        RaiseProtocol(3, ((n1, Incarnation(1)),)),
        NodeDown(n2, Incarnation(1)),
        RaiseProtocol(3, ((n1, Incarnation(1)), (n2, Incarnation(1)))),
        TakeService(n1, ((QueueId(5), Epoch(1)),)),
        NodeUp(n2, Incarnation(2), "h:3", "h:4", 2),
    ]
    group = MetadataGroup(n1, Incarnation(1), UserDirectory(frozenset()))
    payloads = [
        encode_request(Request(RequestId(n1, Incarnation(1), number), command))
        for number, command in enumerate(history, 1)
    ]
    for index, payload in enumerate(payloads, 1):
        group.apply(index, payload)
    (tmp_path / "log").write_text("\n".join(payload.hex() for payload in payloads))
    (tmp_path / "snapshot").write_bytes(group.state.snapshot())
    result = subprocess.run(
        [sys.executable, "-c", APPLY, str(tmp_path / "log"), str(tmp_path / "snapshot")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(previous)},
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    ours = group.state.snapshot().hex()
    assert result.stdout.split() == [ours, ours]


def test_what_was_upgraded_cannot_go_back(cluster: LiveCluster, previous: Path) -> None:
    """Its directory is refused by the release before, and a node with another one finds no way in."""
    for node in cluster.nodes:
        upgrade(cluster, node)
    wait_protocol_3(cluster)
    cluster.local.checkouts["n3"] = previous
    assert cluster.start_and_wait_for_end("n3") != 0
    log = cluster.local.directory.log_path("n3").read_text()
    assert "protocol = 3" in log.splitlines()[-1]
    assert "a newer release of Warren uses this directory" in log.splitlines()[-1]
    # With nothing of its own, as a new node, it is refused by the others.
    data = cluster.local.directory.data_path("n3")
    data.rename(data.with_name("n3.before"))
    cluster.start_one("n3")
    refusal = "n3 speaks protocol 2, and the cluster needs 3 at least: start n3 with the release of the other nodes"
    eventually(lambda: refusal in cluster.local.directory.log_path("n3").read_text(), "n3 says why it is refused")
    asyncio.run(cluster.local.stop("n3"))
    rmtree(data)
    data.with_name("n3.before").rename(data)
    cluster.local.checkouts.pop("n3")
    cluster.restart("n3")
    cluster.wait_running("n1", "n2", "n3")
