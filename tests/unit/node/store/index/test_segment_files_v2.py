"""Which files of an index of version 2 are open, and who waits for a sync of those that are closed."""

from __future__ import annotations

import copy
import random

import pytest

from node.ids import SeqId
from node.queues.local_replica import LocalReplica
from node.store.disk.disk import DiskFile
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import GuardedFile
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.formats.record import HEADER_BYTES, SLOT_BYTES, ZERO_SLOT
from node.store.index.v2.segment_files import OPEN_SEGMENTS_MAX, SegmentFilesV2
from node.store.shared.config import StoreConfig
from tests.support.index_driver import DIRECTORY, V2, IndexDriver
from tests.support.messages import publications
from tests.support.stores import StoreHarness, run_sync_round

ENTRIES, SEGMENTS = 8, 10


@pytest.fixture
def harness() -> StoreHarness:
    return StoreHarness(StoreConfig(v2_segment_entries=ENTRIES))


def filled(harness: StoreHarness) -> LocalReplica:
    """A queue of ten full segments, all delivered and durable."""
    queue = harness.open_queue()
    queue.publish(publications(1, SEGMENTS * ENTRIES))
    harness.sync()
    queue.drain_confirmed()
    assert len(queue.fetch(SEGMENTS * ENTRIES, ack_required=True)) == SEGMENTS * ENTRIES
    return queue


def ack_one_of_each(queue: LocalReplica, place: int) -> None:
    queue.ack([SeqId(number * ENTRIES + place) for number in range(SEGMENTS)])


def flush(harness: StoreHarness) -> None:
    while harness.store.has_unflushed:
        harness.store.flush_writes()


def zeroed(harness: StoreHarness, place: int) -> list[bool]:
    """Per segment, whether the slot at ``place`` is zero in the file."""
    files = harness.disk.snapshot()
    at = HEADER_BYTES + place * SLOT_BYTES
    contents = [files[f"{harness.queue_directory}/{number}.qi"] for number in range(SEGMENTS)]
    return [content[at : at + SLOT_BYTES] == ZERO_SLOT for content in contents]


@pytest.mark.parametrize("rounds", range(4))
def test_a_stop_syncs_what_it_wrote_and_all_names(rounds: int) -> None:
    """Whatever a round of the group commit has synced before."""
    driver = IndexDriver(V2)
    for size in (20, 5, 30):
        driver.settle(driver.publish(size)[::3])
        driver.publish(1, big=True)
        if rounds:
            rounds -= 1
            driver.sync()
        else:
            driver.flush()
    driver.index.close(driver.next_seq_id)
    assert driver.disk.durable_snapshot() == driver.disk.snapshot()
    assert f"{DIRECTORY}/7.qs" in driver.disk.snapshot()


def test_a_stop_with_everything_durable_syncs_no_segment() -> None:
    """A queue has thousands, and what was synced long ago need not be synced again."""
    driver = IndexDriver(V2)
    driver.publish(50)
    driver.publish(5, big=True)
    driver.sync()
    driver.disk.synced.clear()
    driver.index.close(driver.next_seq_id)
    assert driver.disk.synced == [DIRECTORY]


def test_what_is_given_up_is_never_synced_though_somebody_waited_for_it() -> None:
    """Neither what is open nor what was closed since it was written."""
    driver = IndexDriver(V2)
    driver.publish(8 * 2 * OPEN_SEGMENTS_MAX)
    driver.flush()
    driver.index.abandon()
    run_sync_round(driver.group_commit)
    assert [content for content in driver.disk.durable_snapshot().values() if content] == []


def test_the_file_that_was_used_least_recently_is_closed_first() -> None:
    disk = SimulatedDisk()
    disk.mkdir(DIRECTORY)
    files = SegmentFilesV2(disk, DIRECTORY, 7, GroupCommit(), ENTRIES)
    segments = [files.create(number) for number in range(OPEN_SEGMENTS_MAX)]
    files.files(segments[0])
    files.create(OPEN_SEGMENTS_MAX)
    is_open = [segment.queue_store_file is not None for segment in segments]
    assert is_open == [number != 1 for number in range(OPEN_SEGMENTS_MAX)]


def test_acks_all_over_a_queue_are_written_and_ask_for_no_sync(harness: StoreHarness) -> None:
    queue = filled(harness)
    before = harness.disk.open_handles
    ack_one_of_each(queue, 3)
    flush(harness)
    assert all(zeroed(harness, 3))
    assert harness.disk.open_handles <= before + OPEN_SEGMENTS_MAX
    assert harness.group_commit.begin() is None
    queue.check_invariants()


def test_a_clean_stop_makes_the_acks_durable_that_nobody_waited_for(harness: StoreHarness) -> None:
    queue = filled(harness)
    ack_one_of_each(queue, 3)
    flush(harness)
    queue = harness.restart()
    assert queue.ready == SEGMENTS * (ENTRIES - 1)
    # From the terms file, which is gone now. A power failure leaves what was synced.
    queue = harness.crash()
    assert queue.ready == SEGMENTS * (ENTRIES - 1)


def test_what_is_published_is_waited_for_though_its_file_was_closed(harness: StoreHarness) -> None:
    queue = filled(harness)
    counters = range(1001, 1001 + 2 * OPEN_SEGMENTS_MAX)
    for counter in counters:
        queue.publish(publications(counter, 1))
        harness.store.flush_writes()
        queue.advance_next_seq_id(SeqId((counter - 1000 + SEGMENTS) * ENTRIES))
    ack_one_of_each(queue, 3)
    flush(harness)
    harness.sync()
    assert queue.drain_confirmed() == list(counters)
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()
    queue = harness.open_queue()
    assert len([1 for delivery in queue.fetch(200, True) if delivery.seq_id >= SEGMENTS * ENTRIES]) == len(counters)


def test_a_recovery_keeps_few_files_open_however_many_segments_there_are(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.store.index.v2.recovery.SYNCED_SEGMENTS", 2)
    filled(harness)
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    most = 0
    opened = SimulatedDisk.open

    def counted(disk: SimulatedDisk, path: str) -> DiskFile:
        nonlocal most
        file = opened(disk, path)
        most = max(most, disk.open_handles)
        return file

    harness.start()
    before = harness.disk.open_handles
    monkeypatch.setattr(SimulatedDisk, "open", counted)
    assert harness.open_queue().ready == SEGMENTS * ENTRIES
    assert most - before <= SEGMENTS, "of twice as many"


def test_acks_all_over_a_queue_leave_open_what_is_appended_to() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/queue")
    files = SegmentFilesV2(disk, "/queue", 7, GroupCommit(), ENTRIES)
    segments = [files.create(number) for number in range(SEGMENTS)]
    tail = segments[-1]
    files.files(tail)
    for segment in segments[:-1]:
        files.index_file(segment)
        files.check_invariants(dict(enumerate(segments)))
    assert tail.queue_store_file is not None
    assert [segment.number for segment in segments if segment.index_file is not None] == [7, 8, 9]


def test_bodies_are_synced_before_their_slots_count_though_the_file_was_closed_in_between() -> None:
    """A full disk refuses the slots of a body that is written already; reads elsewhere displace the file."""
    disk, group_commit = SimulatedDisk(), GroupCommit()
    disk.mkdir("/queue")
    files = SegmentFilesV2(disk, "/queue", 7, group_commit, ENTRIES)
    segment, *others = [files.create(number) for number in range(1 + OPEN_SEGMENTS_MAX)]
    run_sync_round(group_commit)

    def displace() -> None:
        for other in others:
            files.files(other)
        assert segment.queue_store_file is None

    _, queue_store_file = files.files(segment)
    queue_store_file.pwrite(b"body", HEADER_BYTES)
    displace()
    files.mark_dirty(segment, *files.files(segment))
    displace()
    run_sync_round(group_commit)
    disk.crash(CrashStyle.DROP, random.Random(0))
    assert disk.snapshot()["/queue/0.qs"][HEADER_BYTES:] == b"body"


@pytest.mark.parametrize("suffix", [".qi", ".qs"])
def test_a_clean_stop_does_not_count_on_a_sync_that_is_still_under_way(harness: StoreHarness, suffix: str) -> None:
    """The terms say that nothing need be scanned, so everything must be there before they are."""
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    sync_round = harness.group_commit.begin()
    assert sync_round is not None
    (file,) = [file for file in sync_round.files if isinstance(file, GuardedFile) and file.path.endswith(suffix)]
    twins: list[SimulatedDisk] = []

    def stop() -> None:
        harness.disk.on_operation = None
        queue.terminate()
        twins.append(copy.deepcopy(harness.disk))

    harness.disk.on_operation = stop
    file.sync()
    (harness.disk,) = twins
    queue = harness.crash()
    assert queue.recovery_report is not None
    assert queue.recovery_report.clean
    assert len(queue.fetch(2, ack_required=True)) == 2
    assert not queue.engine.has_failed
