"""A disk that is really full: nodes whose data lies on one small file system in memory.

With a limit the alarm stops publishers before there is no space; without it every write fails with ENOSPC. Either way
the nodes stay alive, nothing confirmed is lost, and all goes on when there is space again.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_cluster import LiveCluster, SteadyPublisher, numbered, publish_confirmed, run_cluster
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root"),
]

SIZE_MB = 96
#: Of the alarm.
LIMIT_BYTES = 40_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Filler:
    """A file that takes all the space there is."""

    def __init__(self, place: Path) -> None:
        self._path = place / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Until so much is free; 0: not a page."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                block = bytes(size)
                try:
                    while not leave_bytes or self._free_bytes() > leave_bytes + size:
                        file.write(block)
                except OSError:
                    continue

    def _free_bytes(self) -> int:
        status = os.statvfs(self._path.parent)
        return status.f_bavail * status.f_frsize

    def free(self) -> None:
        self._path.unlink()


def state_of(cluster: LiveCluster, queue: str) -> str:
    return str(column_of(cluster, queue, "state"))


def disk_full_nodes(cluster: LiveCluster, queue: str) -> list[str]:
    """Nodes whose copy of the queue waits for space."""
    pids = column_of(cluster, queue, "disk_full_pids")
    return [pid.strip("<>").split(".")[0] for pid in pids]


def column_of(cluster: LiveCluster, queue: str, column: str) -> Any:
    with cluster.admin() as admin:
        rows = admin.list_queues(columns=("name", column)).as_dicts()
    return next(row[column] for row in rows if row["name"] == queue)


def declare(cluster: LiveCluster, queue: str) -> None:
    with cluster.channel("n1") as channel:
        channel.queue_declare(queue, durable=True)


@pytest.mark.parametrize("name", ["plain", "ha.mirrored"])
def test_without_a_limit_writes_wait_for_space(small_disk: Path, name: str) -> None:
    with run_cluster(small_disk / "cluster", "disk_free_limit.absolute = 0") as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all")
        declare(cluster, name)
        if name.startswith("ha."):
            cluster.wait_synchronised(name, 2)
        before = [b"before " + body for body in numbered(500)]
        publish_confirmed(cluster, "n1", name, before)
        filler = Filler(small_disk)
        with SteadyPublisher(cluster, "n1", name) as publisher:
            publisher.wait_confirms(50)
            filler.fill()
            eventually(lambda: state_of(cluster, name) == "disk_full", "the queue waits for space")
            assert cluster.local.running_nodes() == ["n1", "n2", "n3"]
            with cluster.channel("n2") as channel:
                assert channel.basic_get(name, auto_ack=True)[2] == before[0], "consumers are served"
            filler.free()
            publisher.wait_confirms(50)
        assert publisher.failed == []
        assert state_of(cluster, name) in ("running", "flow")
        with cluster.channel("n3") as channel:
            assert drain(channel, name) == before[1:] + publisher.confirmed
        assert cluster.local.running_nodes() == ["n1", "n2", "n3"]


def test_a_mirror_without_space_is_named(small_disk: Path, tmp_path: Path) -> None:
    """The master has space enough: all that its user sees otherwise is that no confirm comes."""
    place = small_disk / "n2"
    place.mkdir()
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "n2").symlink_to(place)
    with run_cluster(tmp_path / "cluster", "disk_free_limit.absolute = 0") as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all")
        declare(cluster, "ha.mirrored")
        cluster.wait_synchronised("ha.mirrored", 2)
        filler = Filler(small_disk)
        with SteadyPublisher(cluster, "n1", "ha.mirrored") as publisher:
            publisher.wait_confirms(50)
            filler.fill()
            eventually(lambda: disk_full_nodes(cluster, "ha.mirrored") == ["n2"], "the mirror waits for space")
            assert state_of(cluster, "ha.mirrored") == "disk_full"
            filler.free()
            publisher.wait_confirms(50)
        assert publisher.failed == []
        assert disk_full_nodes(cluster, "ha.mirrored") == []
        with cluster.channel("n3") as channel:
            assert drain(channel, "ha.mirrored") == publisher.confirmed


def test_the_alarm_blocks_publishers_before_the_disk_is_full(small_disk: Path) -> None:
    with run_cluster(small_disk / "cluster", f"disk_free_limit.absolute = {LIMIT_BYTES}") as cluster:
        declare(cluster, "plain")
        filler = Filler(small_disk)
        with SteadyPublisher(cluster, "n1", "plain") as publisher:
            publisher.wait_confirms(50)
            filler.fill(leave_bytes=LIMIT_BYTES // 2)
            with cluster.admin() as admin:
                eventually(
                    lambda: "blocked" in [row["state"] for row in admin.list_connections(("state",)).as_dicts()],
                    "the publisher is blocked",
                )
            filler.free()
            publisher.wait_confirms(50)
        assert publisher.failed == []
        with cluster.channel("n1") as channel:
            assert drain(channel, "plain") == publisher.confirmed


def test_a_change_of_metadata_waits_for_space(small_disk: Path) -> None:
    with run_cluster(small_disk / "cluster", "disk_free_limit.absolute = 0") as cluster:
        declare(cluster, "plain")
        filler = Filler(small_disk)
        filler.fill()

        def declare_exchange() -> None:
            with cluster.channel("n1") as channel:
                # More than what is left of the last page of a log.
                channel.exchange_declare("large", durable=True, arguments={"note": "n" * 10_000})

        declaring = threading.Thread(target=declare_exchange)
        declaring.start()
        eventually(lambda: exchange_is_asked_for(cluster), "the request has come")
        assert "large" not in exchanges(cluster)
        assert cluster.local.running_nodes() == ["n1", "n2", "n3"]
        filler.free()
        declaring.join()
        assert "large" in exchanges(cluster)
        assert cluster.local.running_nodes() == ["n1", "n2", "n3"]


def exchange_is_asked_for(cluster: LiveCluster) -> bool:
    """The channel that declares is open, and it is the only one."""
    with cluster.admin() as admin:
        return len(admin.list_channels(("pid",)).as_dicts()) == 1


def exchanges(cluster: LiveCluster) -> set[str]:
    with cluster.admin() as admin:
        return {row["name"] for row in admin.list_exchanges("/", ("name",)).as_dicts()}
