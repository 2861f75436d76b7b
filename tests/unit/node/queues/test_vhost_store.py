"""Directories of a vhost, and the shared store between its queues."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from node.errors import StorageError
from node.ids import QueueId, QueueName
from node.queues import vhost_store
from node.queues.rates import QueueRates
from node.queues.vhost_store import VhostStore
from node.store.disk.disk import FREEING, RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.length_file import LENGTHS_NAME
from node.store.disk.simulated import CrashStyle, SimulatedCrashError, SimulatedDisk
from node.store.shared.compaction.compaction import Reclaimed
from node.store.shared.config import StoreConfig
from node.store.steps import run_through
from tests.support.backing_queue_contract import counters
from tests.support.descriptors import open_descriptors
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, QUEUE_ID, QUEUE_NAME, StoreHarness, run_sync_round

OTHER_ID, OTHER_NAME = QueueId(8), QueueName("/", "a\nname/with ../ everything")


@pytest.fixture
def harness() -> StoreHarness:
    return StoreHarness(StoreConfig(embed_below_bytes=0))


def shared_files(harness: StoreHarness) -> list[str]:
    return harness.disk.list(f"{harness.store.directory}/msg_store_persistent")


def test_a_fan_out_is_written_once_and_kept_until_the_last_queue_has_settled(harness: StoreHarness) -> None:
    first = harness.open_queue()
    second = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    batch = publications(1, 3)
    first.publish(batch)
    harness.sync()
    size = len(harness.disk.snapshot()[f"{harness.store.directory}/msg_store_persistent/0.rdq"])
    second.publish(batch)
    harness.sync()
    assert len(harness.disk.snapshot()[f"{harness.store.directory}/msg_store_persistent/0.rdq"]) == size
    first.purge()
    first = harness.restart()
    assert first.ready == 0
    second = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    assert counters(second.fetch(9, True)) == [1, 2, 3]
    harness.store.check_invariants()


def test_what_is_durable_has_a_name_however_often_the_vhost_was_begun_before() -> None:
    """Its directories may have been made by a process that was killed before it could sync their names."""
    for operations in range(1, 30):
        disk = SimulatedDisk()
        disk.crash_after = operations
        with suppress(SimulatedCrashError):
            StoreHarness(disk=disk).open_queue()
        disk.lose_handles()
        harness = StoreHarness(disk=disk)
        harness.open_queue().publish(publications(1, 1))
        harness.sync()
        assert counters(harness.crash().fetch(9, True)) == [1], f"killed in operation {operations}"


def test_queues_on_disk_and_deletion_of_those_that_are_gone(harness: StoreHarness) -> None:
    harness.open_queue().publish(publications(1, 1))
    harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True).publish(publications(1, 2))
    harness.store.close()
    harness.start()
    assert harness.store.queues_on_disk() == [(QUEUE_ID, QUEUE_NAME), (OTHER_ID, OTHER_NAME)]
    harness.store.delete_queue_directory(OTHER_ID)
    harness.store.delete_queue_directory(OTHER_ID)
    assert harness.store.queues_on_disk() == [(QUEUE_ID, QUEUE_NAME)]
    assert harness.open_queue().ready == 1
    harness.store.check_invariants()


def test_of_many_queues_a_bounded_number_writes_when_a_generation_closes() -> None:
    """Each is confirmed when what it wrote is on disk, whatever generation was open when it collected it."""
    harness = StoreHarness()
    harness.group_commit = GroupCommit(flushed_max=3)
    changed: list[QueueId] = []
    harness.store = VhostStore(
        harness.disk, DATA_DIRECTORY, "/", harness.group_commit, harness.config, on_queue_changed=changed.append
    )
    queues = [harness.store.open_queue(QueueId(n), QueueName("/", f"q{n}"), durable=True) for n in range(8)]
    for _ in queues:
        harness.sync()
    changed.clear()
    collected_in = harness.group_commit.open_generation
    for queue in queues:
        queue.publish(publications(1, 1))
    confirmed: list[list[int]] = []

    def durable() -> set[int]:
        return {n for n, queue in enumerate(queues) if queue.durable_generation >= collected_in}

    while harness.store.has_unflushed:
        sync_round = harness.group_commit.begin()
        assert sync_round is not None
        assert durable() == {n for each in confirmed for n in each}, "nobody says so of what is merely written"
        sync_round.run()
        harness.group_commit.complete(sync_round)
        confirmed.append([n for n, queue in enumerate(queues) if queue.drain_confirmed()])
        assert durable() == {n for each in confirmed for n in each}
        is_complete = harness.group_commit.complete_generation >= collected_in
        assert is_complete == (len(durable()) == len(queues)), "what was settled may be overwritten from then on"
    assert confirmed == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert changed == [3, 4, 5, 6, 7], "nobody was to look at them again when this generation is on disk"
    harness.crash()
    ready = [harness.store.open_queue(QueueId(n), QueueName("/", f"q{n}"), durable=True).ready for n in range(7)]
    assert ready == [1] * 7
    harness.store.check_invariants()


def test_a_deleted_queue_gives_its_messages_back(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    harness.sync()
    queue.delete()
    harness.sync()
    assert harness.store.queues_on_disk() == []
    harness.store.check_invariants()
    harness.store.close()
    harness.start()
    assert harness.store.store_recovery.messages == 0
    assert harness.open_queue().next_seq_id == 0


def test_what_is_on_disk_of_queues_is_listed_without_those_that_are_known(harness: StoreHarness) -> None:
    harness.open_queue().publish(publications(1, 1))
    harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    harness.store.flush_writes()
    assert harness.store.queues_on_disk() == [(QUEUE_ID, QUEUE_NAME), (OTHER_ID, OTHER_NAME)]
    assert list(harness.store.unknown_queues([QUEUE_ID])) == [(OTHER_ID, OTHER_NAME)]
    assert harness.store.queue_file_count(QUEUE_ID) == len(harness.disk.list(harness.queue_directory))


def test_garbage_of_both_shared_stores_is_reclaimed() -> None:
    harness = StoreHarness(StoreConfig(embed_below_bytes=0, file_size_limit_bytes=1000))
    assert harness.store.reclaim() == Reclaimed(has_worked=False, is_urgent=False)
    for durable, name in ((True, "msg_store_persistent"), (False, "msg_store_transient")):
        queue = harness.store.open_queue(QueueId(20 + durable), QueueName("/", name), durable)
        queue.set_lazy(True)
        queue.publish(publications(1, 50, body=bytes(100)))
        harness.sync()
        queue.purge()
        harness.sync()
        before = len(harness.disk.list(f"{harness.store.directory}/{name}"))
        came_of_it = harness.store.reclaim()
        assert came_of_it == Reclaimed(has_worked=True, is_urgent=True), "a file without a message was deleted"
        while harness.store.reclaim().has_worked:
            pass
        assert len(harness.disk.list(f"{harness.store.directory}/{name}")) == 1 < before


def test_notes_of_lengths_that_cannot_be_read_are_counted(harness: StoreHarness) -> None:
    harness.open_queue().publish(publications(1, 1))
    harness.sync()
    harness.restart()
    assert harness.store.unreadable_lengths == 0
    harness.store.close()
    harness.disk.flip_bit(f"{harness.store.directory}/{LENGTHS_NAME}", 64 + 20)
    harness.start()
    assert harness.store.unreadable_lengths == 1


def test_terms_of_queues_are_not_believed_when_the_shared_store_has_lost_something(harness: StoreHarness) -> None:
    harness.open_queue().publish(publications(1, 3))
    harness.sync()
    harness.store.close()
    path = f"{harness.store.directory}/msg_store_persistent/0.rdq"
    harness.disk.unlink(f"{harness.store.directory}/msg_store_persistent/clean.tables")
    harness.disk.flip_bit(path, 64 + 20)
    assert harness.disk.exists(f"{harness.queue_directory}/clean.terms")
    harness.start()
    assert harness.store.store_recovery.corrupt
    assert f"{harness.queue_directory}/clean.terms" not in harness.disk.durable_snapshot()
    queue = harness.open_queue()
    assert queue.recovery_report is not None
    assert not queue.recovery_report.clean
    assert counters(queue.fetch(9, True)) == [2, 3]


@pytest.mark.parametrize("lost_bytes", [100, 5_053], ids=["in a record", "a whole record"])
def test_a_shared_store_that_lost_its_end_after_a_clean_stop_tells_it_once(
    harness: StoreHarness, lost_bytes: int
) -> None:
    harness.open_queue().publish(publications(1, 3, body=bytes(5_000)))
    harness.sync()
    harness.store.close()
    file = harness.disk.open(f"{harness.store.directory}/msg_store_persistent/0.rdq")
    file.truncate(file.size - lost_bytes)
    file.sync()
    harness.start()
    assert not harness.store.store_recovery.clean
    assert len(harness.store.store_recovery.corrupt) == 1
    assert harness.open_queue().ready == 2
    harness.sync()
    harness.crash()
    assert harness.store.store_recovery.corrupt == []


def lose_a_store_file(harness: StoreHarness) -> None:
    """After a clean stop, with all three messages of the queue."""
    harness.open_queue().publish(publications(1, 3, body=bytes(5_000)))
    harness.sync()
    harness.store.close()
    directory = f"{harness.store.directory}/msg_store_persistent"
    harness.disk.unlink(f"{directory}/0.rdq")
    harness.disk.sync_directory(directory)


def test_a_shared_store_that_lost_a_file_after_a_clean_stop_tells_it_once_and_no_queue_believes_its_terms(
    harness: StoreHarness,
) -> None:
    """The notes of lengths say nothing of a file that is gone; the tables of the stop do."""
    lose_a_store_file(harness)
    harness.start()
    (told,) = harness.store.store_recovery.corrupt
    assert "/0.rdq: 15223 durable bytes are missing" in told
    assert harness.open_queue().ready == 0
    harness.sync()
    harness.store.close()
    harness.start()
    assert harness.store.store_recovery.clean
    assert harness.store.store_recovery.corrupt == []


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_a_file_that_was_missing_at_a_start_that_did_not_end_is_not_forgotten(
    harness: StoreHarness, steps: int
) -> None:
    """The tables are gone by then; so must be the terms of the queues."""
    lose_a_store_file(harness)
    store = VhostStore(harness.disk, DATA_DIRECTORY, "/", GroupCommit(), harness.config, opens_at_once=False)
    for _ in range(steps):
        next(store.opening, None)
    assert harness.crash().ready == 0


def test_a_vhost_that_is_closed_while_it_opens_goes_no_further_and_the_next_start_begins_anew(
    harness: StoreHarness,
) -> None:
    harness.open_queue().publish(publications(1, 3))
    harness.sync()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    store = VhostStore(harness.disk, DATA_DIRECTORY, "/", GroupCommit(), harness.config, opens_at_once=False)
    next(store.opening)
    store.close()
    assert list(store.opening) == []
    assert not store.is_open
    harness.start()
    assert counters(harness.open_queue().fetch(9, True)) == [1, 2, 3]


def test_a_stub_that_was_never_written_leaves_a_nameless_queue(harness: StoreHarness) -> None:
    harness.open_queue()
    harness.disk.unlink(f"{harness.queue_directory}/queue.json")
    assert harness.store.queues_on_disk() == [(QUEUE_ID, QueueName("/", ""))]


def test_on_a_real_disk(tmp_path: Path) -> None:
    """The same through a clean stop on the operating system's files."""
    for start in range(2):
        group_commit = GroupCommit()
        store = VhostStore(RealDisk(), str(tmp_path), "/", group_commit, StoreConfig())
        queue = store.open_queue(QUEUE_ID, QUEUE_NAME, durable=True)
        assert queue.ready == start * 20
        queue.publish(publications(1, 10))
        queue.publish(publications(11, 10, body=b"b" * 5000))
        assert run_sync_round(group_commit)
        assert queue.drain_confirmed() == list(range(1, 21))
        store.check_invariants()
        store.close()
    assert not store.has_unflushed


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_queue_that_was_opened_and_closed_holds_no_descriptor(tmp_path: Path, version: int, is_killed: bool) -> None:
    config = StoreConfig(queue_version=version, embed_below_bytes=100, v1_segment_entries=16, v2_segment_entries=8)
    group_commit = GroupCommit()
    store = VhostStore(RealDisk(), str(tmp_path), "/", group_commit, config)
    queue = store.open_queue(QUEUE_ID, QUEUE_NAME, durable=True)
    queue.publish(publications(1, 100))
    queue.publish(publications(101, 10, body=bytes(500)))
    run_sync_round(group_commit)
    if not is_killed:
        store.close()
    FREEING.wait()  # what was unlinked is let go beside us
    before = open_descriptors(tmp_path)
    assert (before > 0) == is_killed
    group_commit = GroupCommit()
    successor = VhostStore(RealDisk(), str(tmp_path), "/", group_commit, config)
    assert successor.open_queue(QUEUE_ID, QUEUE_NAME, durable=True).ready == 110
    run_sync_round(group_commit)
    successor.close()
    FREEING.wait()
    assert open_descriptors(tmp_path) == before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("call", ["pwrite", "open"])
def test_a_queue_that_cannot_be_closed_cleanly_gives_its_descriptors_back(
    call: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_commit = GroupCommit()
    store = VhostStore(RealDisk(), str(tmp_path), "/", group_commit, StoreConfig())
    before = open_descriptors(tmp_path)

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for life in range(3):
        queue = store.open_queue(QUEUE_ID, QUEUE_NAME, True, version)
        assert queue.ready == 10 * life
        queue.publish(publications(1 + 20 * life, 10))
        run_sync_round(group_commit)
        queue.publish(publications(11 + 20 * life, 10))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            with pytest.raises(StorageError):
                queue.terminate()
        assert queue.engine.has_failed
    run_sync_round(group_commit)
    FREEING.wait()  # what was unlinked is let go beside us
    assert open_descriptors(tmp_path) == before


def test_a_queue_that_cannot_be_opened_gives_its_descriptors_back() -> None:
    """Its copy is opened again and again, if they are what is wanting."""
    harness = StoreHarness(StoreConfig(v2_segment_entries=1024))
    harness.open_queue().publish(publications(1, 3000))
    harness.store.close()
    harness.start()
    open_handles = harness.disk.open_handles
    harness.disk.fail_reads = f"queues/{QUEUE_ID}/1.qi"
    for _ in range(3):
        with pytest.raises(StorageError):
            harness.open_queue()
        assert harness.disk.open_handles == open_handles
    harness.disk.fail_reads = None
    assert harness.open_queue().ready == 3000


def test_a_vhost_keeps_the_segments_it_was_made_with() -> None:
    """Other settings would read the files of its queues wrongly."""
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v2_segment_entries=8))
    harness.open_queue().publish(publications(1, 20))
    harness.config = StoreConfig(v1_segment_entries=1024, v2_segment_entries=64)
    queue = harness.restart()
    assert queue.ready == 20
    queue.publish(publications(21, 1))
    harness.sync()
    queue = harness.crash()
    assert queue.ready == 21


def test_the_owner_hears_of_a_queue_that_fails_while_nobody_calls_it() -> None:
    harness = StoreHarness(StoreConfig(queue_version=1))
    failed: list[QueueId] = []
    harness.store = VhostStore(
        harness.disk, DATA_DIRECTORY, "/", harness.group_commit, harness.config, on_queue_changed=failed.append
    )
    queue = harness.open_queue()
    queue.publish(publications(1, 10))
    harness.sync()
    queue.set_index_version(2)
    harness.store.maintain(0)
    harness.disk.fail_writes = ".qs"
    for _ in range(3):
        harness.store.maintain(0)
        harness.sync()
    assert failed == [QUEUE_ID]


def test_the_owner_hears_that_a_queue_waits_for_space_and_that_it_no_longer_does() -> None:
    harness = StoreHarness()
    heard: list[bool] = []
    harness.store = VhostStore(
        harness.disk,
        DATA_DIRECTORY,
        "/",
        harness.group_commit,
        harness.config,
        on_queue_changed=lambda _: heard.append(queue.is_disk_full),
    )
    queue = harness.open_queue()
    harness.disk.capacity_bytes = harness.disk.used_bytes
    queue.publish(publications(1, 10))
    for _ in range(3):
        harness.store.maintain(0)
        harness.sync()
    assert heard == [True], "a mirror has somebody to tell"
    harness.disk.capacity_bytes = 1 << 40
    harness.store.maintain(0)
    harness.sync()
    assert heard == [True, False]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_what_is_paged_out_at_a_time_is_bounded_over_all_queues(monkeypatch: pytest.MonkeyPatch, is_lazy: bool) -> None:
    """A shortage of memory, or a policy that makes all of them lazy."""
    monkeypatch.setattr("node.queues.stages.READ_AHEAD_MESSAGES", 0)
    monkeypatch.setattr("node.queues.vhost_store.MAINTENANCE_MESSAGES", 250)
    harness = StoreHarness()
    queues = [harness.store.open_queue(QueueId(n), QueueName("/", str(n)), durable=True) for n in range(1, 11)]
    for queue in queues:
        queue.publish(publications(1, 100))
        if is_lazy:
            queue.set_lazy(True)
        else:
            queue.set_ram_duration_target(0.0)
    steps = [sum(queue.status().in_ram for queue in queues)]
    while steps[-1]:
        harness.store.maintain(0)
        steps.append(sum(queue.status().in_ram for queue in queues))
    assert steps == [1000, 700, 400, 100, 0]


def test_a_queue_with_much_to_page_out_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.queues.stages.PAGE_OUT_MESSAGES", 100)
    monkeypatch.setattr("node.queues.vhost_store.MAINTENANCE_MESSAGES", 100)
    harness = StoreHarness()
    queues = [harness.store.open_queue(QueueId(n), QueueName("/", str(n)), durable=True) for n in range(1, 4)]
    for queue, messages in zip(queues, (1000, 500, 50), strict=True):
        queue.publish(publications(1, messages))
        queue.set_ram_duration_target(0.0)
    in_ram = []
    for _ in range(5):
        harness.store.maintain(0)
        in_ram.append([queue.status().in_ram for queue in queues])
    assert in_ram == [[900, 500, 50], [900, 400, 50], [800, 400, 0], [800, 300, 0], [700, 300, 0]]


@pytest.mark.parametrize("version", [1, 2])
def test_whoever_opens_a_queue_after_a_crash_and_whoever_starts_the_vhost_hear_how_far_it_is(version: int) -> None:
    harness = StoreHarness(StoreConfig(queue_version=version, v1_segment_entries=8, v2_segment_entries=8))
    queue = harness.open_queue()
    for first in range(1, 21):
        queue.publish(publications(first, 1))
        harness.sync()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    told: list[tuple[str, int, int]] = []
    heard: list[tuple[int, int]] = []
    store = VhostStore(
        harness.disk,
        DATA_DIRECTORY,
        "/",
        GroupCommit(),
        harness.config,
        on_progress=lambda what, done, total: told.append((what, done, total)),
    )
    run_through(
        store.queue_opening(
            QUEUE_ID, QUEUE_NAME, durable=True, on_progress=lambda done, total: heard.append((done, total))
        )
    )
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert [each for each in told if "segments" in each[0]] == [
        (f"index of {QUEUE_NAME}, segments", done, total) for done, total in heard
    ]


def test_a_vhost_that_is_given_up_keeps_no_file_open(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 2, body=bytes(5_000)))
    harness.sync()
    queue.delete()
    while not harness.store.is_idle:
        harness.sync()
        harness.store.maintain(0)
    assert harness.disk.open_handles > 0
    harness.store.abandon()
    assert harness.disk.open_handles == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_queue_that_has_failed_keeps_no_file_open_when_it_is_closed(version: int) -> None:
    harness = StoreHarness(StoreConfig(queue_version=version))
    before = harness.disk.open_handles
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    harness.sync()
    assert harness.disk.open_handles > before
    harness.disk.fail_writes = harness.queue_directory
    queue.publish(publications(3, 2))
    harness.store.flush_writes()
    assert queue.engine.has_failed
    queue.terminate()
    assert harness.disk.open_handles == before


@pytest.mark.parametrize("version", [1, 2])
def test_a_queue_file_that_lost_its_end_after_a_clean_stop_leaves_no_reference_behind(version: int) -> None:
    """The tables of the shared store count what the lost entries referred to, so they must not be believed."""
    harness = StoreHarness(
        StoreConfig(embed_below_bytes=0, v1_segment_entries=8, v2_segment_entries=8, queue_version=version)
    )
    harness.open_queue().publish(publications(1, 16))
    harness.sync()
    harness.store.close()
    (path,) = [path for path in harness.disk.snapshot() if path.endswith(("/1.qi", "/1.idx"))]
    file = harness.disk.open(path)
    file.truncate(file.size - 100)
    file.sync()
    for opens_queue in (False, True):
        harness.start()
        assert not harness.store.store_recovery.clean, "until the queue has recovered without the lost entries"
        if opens_queue:
            queue = harness.open_queue()
        else:
            harness.store.close()
    harness.store.close()
    harness.start()
    assert harness.store.store_recovery.clean, "it was told, and what is left recovered"
    queue = harness.open_queue()
    assert 8 <= queue.ready < 16
    assert harness.store.shared_status().messages == queue.ready
    queue.purge()
    harness.sync()
    harness.store.check_invariants()
    harness.store.close()
    harness.start()
    assert harness.store.store_recovery.clean
    assert harness.store.shared_status().messages == 0


def test_of_very_many_queues_each_call_looks_at_some_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhost_store, "LOOKED_AT_MAX", 2)
    harness = StoreHarness()
    names = [f"q{number}" for number in range(5)]
    queues = {
        name: harness.store.open_queue(QueueId(number), QueueName("/", name), durable=True)
        for number, name in enumerate(names)
    }
    looked_at: list[str] = []
    monkeypatch.setattr(
        QueueRates, "tick", lambda self, _now_ms: looked_at.extend(n for n in names if queues[n].engine.rates is self)
    )
    for call in range(5):
        harness.store.maintain(100 * call)
    assert looked_at == names * 2
