"""Faults of disks as steps: each does what it says, and ends with its end or with the heal."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.loop import simulated_loop
from chaos.sim.machine import Machine
from chaos.sim.run import run_schedule
from node.errors import DiskFullError, OpenFilesError, StorageError
from node.store.disk.disk import read_whole
from tests.support.simulated import personality, publish, schedule

#: Of each fault: its arguments, and what it makes impossible.
FAULTS: dict[str, tuple[Any, ...]] = {
    "short_of_files": (0,),
    "fail_reads": ("/f",),
    "full_kind": ("/f",),
}
FAILURES = {"short_of_files": OpenFilesError, "fail_reads": StorageError, "full_kind": DiskFullError}


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(simulated_loop(), personality(), seed=1)
    for machine in cluster.machines.values():
        machine.disk.mkdir("/d")
        machine.disk.create("/d/f").abandon()
    return cluster


def use(machine: Machine) -> None:
    """Open, read and write a file."""
    file = machine.disk.open("/d/f")
    try:
        file.append(b"more")
        file.pread(1, 0)
    finally:
        file.abandon()


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("is_mended", [False, True])
def test_a_fault_lasts_until_its_end_or_until_the_disk_is_mended(
    cluster: SimulatedCluster, kind: str, is_mended: bool
) -> None:
    machine = cluster.machines["n1"]
    getattr(cluster, kind)("n1", *FAULTS[kind])
    assert machine.is_disk_bad
    with pytest.raises(FAILURES[kind]):
        use(machine)
    use(cluster.machines["n2"])
    if is_mended:
        machine.mend_disk()
    else:
        getattr(cluster, f"{kind}_end")("n1")
    use(machine)
    assert not machine.is_disk_bad


def test_a_node_may_have_so_many_files_more_in_every_life(cluster: SimulatedCluster) -> None:
    machine = cluster.machines["n1"]
    kept = machine.disk.open("/d/f")
    cluster.short_of_files("n1", 1)
    assert machine.probe.can_open_files(1)
    assert not machine.probe.can_open_files(2)
    use(machine)
    other = machine.disk.open("/d/f")
    with pytest.raises(OpenFilesError):
        read_whole(machine.disk, "/d/f")
    machine.disk.lose_handles()
    others = [machine.disk.open("/d/f") for _ in range(2)]
    with pytest.raises(OpenFilesError):
        machine.disk.open("/d/f")
    for file in (kept, other, *others):
        file.abandon()


@pytest.mark.parametrize("is_mended", [False, True])
def test_nothing_is_synced_while_a_disk_hangs(cluster: SimulatedCluster, is_mended: bool) -> None:
    machine = cluster.machines["n1"]
    machine.start_process()
    file = machine.disk.create("/d/synced")
    file.append(b"data")
    machine.disk.sync_directory("/d")
    cluster.hang_disk("n1")
    worker = machine.world().worker("sync")
    asked = worker.run(file.sync)
    later = worker.run(lambda: None)
    cluster.loop.run_until(60)
    assert machine.is_disk_bad
    assert not asked.done()
    assert machine.disk.durable_snapshot()["/d/synced"] == b""
    if is_mended:
        machine.mend_disk()
    else:
        cluster.hang_disk_end("n1")
    cluster.loop.run_until(61)
    assert asked.done()
    assert later.done()
    assert machine.disk.durable_snapshot()["/d/synced"] == b"data"
    assert not machine.is_disk_bad


def test_what_waits_for_a_disk_dies_with_its_process(cluster: SimulatedCluster) -> None:
    machine = cluster.machines["n1"]
    machine.start_process()
    cluster.hang_disk("n1")
    done: list[str] = []
    machine.world().worker("sync").run(lambda: done.append("in the first life"))
    cluster.loop.run_until(1)
    cluster.kill("n1")
    machine.start_process()
    machine.world().worker("sync").run(lambda: done.append("in the second"))
    cluster.loop.run_until(2)
    cluster.hang_disk_end("n1")
    cluster.loop.run_until(3)
    assert done == ["in the second"]


@pytest.mark.parametrize(
    ("kind", "args"),
    [("short_of_files", (0,)), ("fail_reads", ("/queues/",)), ("full_kind", ("/raft/",)), ("hang_disk", ())],
)
def test_the_heal_ends_it_too_and_the_story_has_it(kind: str, args: tuple[Any, ...]) -> None:
    """As it is without its end, which shrinking may take out."""
    outcome = run_schedule(schedule(publish(100), (500, kind, "n1", *args), publish(700), lasts_ms=1_500))
    assert outcome.violations == []
    assert any(line.split()[1:] == [kind, "n1", *map(str, args)] for line in outcome.story)
