"""Who is done with a file, or could not go on with it, has given its descriptor back."""

from __future__ import annotations

import random

import pytest

from node.errors import OpenFilesError, StorageError
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.shared.config import StoreConfig
from node.store.steps import run_through
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, StoreHarness


@pytest.mark.parametrize("version", [1, 2])
def test_a_queue_that_is_not_durable_keeps_no_descriptor(version: int) -> None:
    harness = StoreHarness(StoreConfig(queue_version=version), durable=False)
    before = len(harness.disk.descriptors)
    for _ in range(2):
        queue = harness.open_queue()
        queue.set_lazy(True)
        queue.publish(publications(1, 2))
        harness.sync()
        assert harness.disk.list(harness.queue_directory) != []
        queue.delete()
        while harness.store._deletions:
            harness.sync()
            harness.store.maintain(0)
        assert len(harness.disk.descriptors) == before
    assert harness.disk.descriptors.dropped == []


class _UnreadableDisk(SimulatedDisk):
    """One of its reads fails."""

    reads_left = -1

    def before_read(self, path: str) -> None:
        super().before_read(path)
        self.reads_left -= 1
        if self.reads_left == 0:
            raise StorageError(f"read of {path} failed: planted (errno 5)")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("wanting", ["a descriptor", "a read"])
def test_a_recovery_that_fails_has_no_file_open(version: int, wanting: str) -> None:
    config = StoreConfig(queue_version=version, v1_segment_entries=8, v2_segment_entries=8)
    failures = 0
    for number in range(1, 60):
        harness = StoreHarness(config, disk=(disk := _UnreadableDisk()))
        harness.open_queue().publish(publications(1, 20))
        harness.sync()
        disk.crash(CrashStyle.SUBSET, random.Random(0))
        harness.start()
        before = len(disk.descriptors)
        disk.open_limit, disk.reads_left = (before + number - 1, -1) if wanting == "a descriptor" else (None, number)
        try:
            harness.open_queue()
        except StorageError:
            failures += 1
            disk.open_limit = None
            harness.sync()
            assert (disk.open_files()[before:], disk.descriptors.dropped) == ([], []), f"at number {number}"
    assert failures > 1


@pytest.mark.parametrize("is_new", [True, False])
def test_a_vhost_that_cannot_be_opened_has_no_file_open(is_new: bool) -> None:
    failures = 0
    for limit in range(10):
        disk = SimulatedDisk()
        if not is_new:
            harness = StoreHarness(StoreConfig(embed_below_bytes=0), disk=disk)
            harness.open_queue().publish(publications(1, 20))
            harness.sync()
            disk.crash(CrashStyle.DROP, random.Random(0))
        disk.open_limit = limit
        store = None
        try:
            store = VhostStore(disk, DATA_DIRECTORY, "/", GroupCommit(), StoreConfig(), opens_at_once=False)
            run_through(store.opening)
        except OpenFilesError:
            failures += 1
            if store is not None:
                store.give_up_opening()
            assert disk.open_files() == [], f"with {limit} descriptors"
    assert failures > 1
