"""A vhost of very many queues is opened in steps, each of which asks the disk for little."""

from __future__ import annotations

from itertools import pairwise

import pytest

from node.ids import QueueId, QueueName
from node.queues.vhost_store import QUEUES_COUNTED_PER_STEP, VhostStore
from node.store.disk.disk import DiskFile
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import COMPARED_PER_STEP
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, StoreHarness


def test_an_opening_asks_the_disk_for_a_bounded_number_of_files_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each queue the start looks at some files: whether they lost their ends, whether the queue was closed."""
    harness = StoreHarness()
    count = 3 * COMPARED_PER_STEP
    for n in range(count):
        harness.store.open_queue(QueueId(n), QueueName("/", f"q{n}"), durable=True).publish(publications(1, 1))
    harness.store.close()
    asked: list[str] = []
    open_file, exists = harness.disk.open, harness.disk.exists

    def counted_open(path: str) -> DiskFile:
        asked.append(path)
        return open_file(path)

    def counted_exists(path: str) -> bool:
        asked.append(path)
        return exists(path)

    monkeypatch.setattr(harness.disk, "open", counted_open)
    monkeypatch.setattr(harness.disk, "exists", counted_exists)
    store = VhostStore(harness.disk, DATA_DIRECTORY, "/", GroupCommit(), harness.config, opens_at_once=False)
    per_step = [len(asked)]
    for job in store.opening:
        per_step.append(len(asked) - sum(per_step))
        if job is not None:
            job()
    assert sum(per_step) > 4 * count, "all of them were looked at"
    assert max(per_step) <= 2 * COMPARED_PER_STEP + 10
    opened = [store.open_queue(QueueId(n), QueueName("/", f"q{n}"), durable=True).ready for n in range(count)]
    assert opened == [1] * count
    store.check_invariants()


def test_a_start_after_a_crash_reads_few_queues_that_name_nothing_in_each_step() -> None:
    harness = StoreHarness()
    queues = [harness.store.open_queue(QueueId(n), QueueName("/", f"q{n}"), durable=True) for n in range(1, 41)]
    for queue in queues:
        queue.publish(publications(1, 1))
    harness.sync()
    for queue in queues:
        queue.purge()
    harness.store.flush_writes()
    harness.disk.lose_handles()
    store = VhostStore(harness.disk, DATA_DIRECTORY, "/", GroupCommit(), harness.config, opens_at_once=False)
    reads: list[int] = []
    for job in store.opening:
        reads.append(harness.disk.reads)
        if job is not None:
            job()
    assert len(reads) >= len(queues) // QUEUES_COUNTED_PER_STEP
    assert max(after - before for before, after in pairwise(reads)) <= 2 * QUEUES_COUNTED_PER_STEP
