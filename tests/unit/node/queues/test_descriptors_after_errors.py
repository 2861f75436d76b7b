"""Whatever the disk refuses, in whatever a queue or a vhost does: no descriptor is kept that nobody needs any more."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count

import pytest

from node.errors import DiskFullError, OpenFilesError, StorageError
from node.ids import QueueId, QueueName
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VhostStore
from node.store.disk.disk import DiskFile
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.index import owed_references
from node.store.shared.config import StoreConfig, quarantine
from node.store.steps import run_through
from tests.support.messages import publications
from tests.support.nth_refusal import NthRefusal
from tests.support.stores import DATA_DIRECTORY, StoreHarness, run_sync_round

FIRST, SECOND = QueueId(7), QueueId(8)
CONFIG = StoreConfig(
    embed_below_bytes=60,
    v1_segment_entries=16,
    v1_journal_entries_max=24,
    v2_segment_entries=16,
    file_size_limit_bytes=2_000,
)
#: Every so many operations one is refused: each of them in some run, with another offset.
STEP = 3
KINDS = pytest.mark.parametrize("error", [StorageError, OpenFilesError])
#: Versions of the index that the queue has, and is to have.
VERSIONS = pytest.mark.parametrize(("version", "wanted"), [(1, 1), (2, 2), (1, 2), (2, 1)])


def open_queue(store: VhostStore, queue_id: QueueId, version: int) -> LocalReplica:
    return store.open_queue(queue_id, QueueName("/", f"q{queue_id}"), True, version)


def filled(version: int, wanted: int) -> StoreHarness:
    """A vhost in the midst of everything."""
    harness = StoreHarness(CONFIG)
    first, second = open_queue(harness.store, FIRST, version), open_queue(harness.store, SECOND, version)
    for queue in (first, second):
        queue.publish(publications(1, 40, body=bytes(90)))
        queue.publish(publications(41, 20))
    harness.sync()
    first.set_index_version(wanted)
    first.set_lazy(True)
    first.publish(publications(61, 20, persistent=False, body=bytes(90)))
    for turn in range(2):
        harness.store.maintain(turn * 1000)
        harness.sync()
    first.ack([delivery.seq_id for delivery in first.fetch(10, True)])
    second.ack([delivery.seq_id for delivery in second.fetch(30, True)])
    return harness


def needed_by(store: VhostStore) -> int:
    """Descriptors of a vhost without an open queue: its shared stores', and that of its notes."""
    return sum(len(each._files._handles) for each in store._stores) + (not store._disk._notes.is_missing)


def sync_all(group_commit: GroupCommit) -> None:
    while run_sync_round(group_commit):
        pass


@KINDS
@VERSIONS
@pytest.mark.parametrize("after", ["a crash", "a stop", "damage"])
def test_an_opening(version: int, wanted: int, error: type[StorageError], after: str) -> None:
    harness = filled(version, wanted)
    if after == "a crash":
        harness.sync()
        harness.disk.crash(CrashStyle.SUBSET, random.Random(1))
    else:
        harness.store.close()
    if after == "damage":
        cut = harness.disk.open(f"{harness.store.directory}/msg_store_persistent/0.rdq")
        cut.truncate(cut.size - 10)
        cut.abandon()
    for number in count(version % STEP, STEP):
        disk = harness.disk.twin()
        group_commit = GroupCommit()
        with NthRefusal(disk, number, error) as refusal:
            store = begin(disk, group_commit)
            if store is not None and store.is_open:
                for queue_id in (FIRST, SECOND):
                    with suppress(StorageError):
                        open_queue(store, queue_id, wanted).terminate()
        sync_all(group_commit)
        assert disk.open_handles == (needed_by(store) if store is not None and store.is_open else 0), number
        if not refusal.has_come:
            break


def begin(disk: SimulatedDisk, group_commit: GroupCommit) -> VhostStore | None:
    """As `NodeQueueFiles` does it."""
    try:
        store = VhostStore(disk, DATA_DIRECTORY, "/", group_commit, CONFIG, opens_at_once=False)
    except StorageError:
        return None
    try:
        run_through(store.opening)
    except StorageError:
        store.give_up_opening()
    return store


def test_a_first_start_that_cannot_make_its_notes_durable() -> None:
    disk = SimulatedDisk()
    disk.mkdir_durably(DATA_DIRECTORY)

    def refuse(path: str) -> None:
        raise OpenFilesError(f"open of {path} failed: Too many open files (errno 24)")

    disk.sync_directory = refuse  # type: ignore[method-assign]
    assert begin(disk, GroupCommit()) is None
    assert disk.open_handles == 0


def test_a_journal_that_can_be_read_but_once() -> None:
    harness = StoreHarness(CONFIG)
    open_queue(harness.store, FIRST, 1).publish(publications(1, 10))
    harness.sync()
    harness.disk.lose_handles()
    harness.start()
    reads, wanted = 0, harness.disk.before_read

    def refuse(path: str) -> None:
        nonlocal reads
        reads += path.endswith(".jif")
        if path.endswith(".jif") and reads == 2:
            raise StorageError(f"read of {path} failed: Input/output error (errno 5)")
        wanted(path)

    harness.disk.before_read = refuse  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        open_queue(harness.store, FIRST, 1)
    sync_all(harness.group_commit)
    assert harness.disk.open_handles == needed_by(harness.store)


def test_damage_that_finds_no_room_in_the_quarantine() -> None:
    disk = SimulatedDisk()
    disk.mkdir_durably("/queue")
    disk.capacity_bytes = disk.used_bytes
    for _ in range(3):
        with pytest.raises(DiskFullError):
            quarantine(disk, "/queue", "7.bad", b"x" * 1000)
    assert disk.open_handles == 0
    assert disk.list("/queue/quarantine") == []


def test_a_deletion_that_can_open_but_one_of_two_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed_references, "OWED_PER_FLUSH", 1)
    harness = StoreHarness(CONFIG)
    queue = open_queue(harness.store, FIRST, 1)
    queue.publish(publications(1, 20, body=bytes(90)))
    harness.store.flush_writes()
    queue.purge()
    for counter in (31, 41):
        queue.publish(publications(counter, 10, body=bytes(90)))
        harness.store.flush_writes()
    assert len(queue.engine.content.index.journals.open) == 2  # type: ignore[attr-defined]
    harness.sync()
    queue.delete()
    disk, opened = harness.disk, 0
    wanted = disk.open

    def refuse(path: str) -> DiskFile:
        nonlocal opened
        opened += path.endswith(".jif")
        if path.endswith(".jif") and opened == 2:
            raise StorageError(f"open of {path} failed: Input/output error (errno 5)")
        return wanted(path)

    disk.open = refuse  # type: ignore[method-assign]
    for turn in range(30):
        harness.store.maintain(turn * 1000)
        sync_all(harness.group_commit)
    assert opened == 2
    assert disk.open_handles == needed_by(harness.store)


def test_a_queue_that_is_not_durable_keeps_none_when_it_has_paged_out() -> None:
    harness = StoreHarness(CONFIG)
    queue = harness.store.open_queue(FIRST, QueueName("/", "q"), False)
    queue.set_lazy(True)
    queue.publish(publications(1, 20, persistent=False))
    harness.store.maintain(0)
    sync_all(harness.group_commit)
    queue.terminate()
    sync_all(harness.group_commit)
    assert harness.disk.open_handles == needed_by(harness.store)
