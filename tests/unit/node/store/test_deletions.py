"""Deleted queues on their way out: moved at once, removed in steps."""

from __future__ import annotations

import logging
import random
from itertools import pairwise

import pytest

from node.errors import OpenFilesError, StorageError
from node.ids import QueueId, QueueName, SeqId
from node.queues.local_replica import LocalReplica
from node.store.deletions import FILES_PER_STEP, STEPS_TO_NEXT_TRY
from node.store.disk.disk import DiskFile
from node.store.disk.simulated import CrashStyle
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from tests.support.backing_queue_contract import counters
from tests.support.messages import publications
from tests.support.stores import QUEUE_ID, StoreHarness

OTHER_ID, OTHER_NAME = QueueId(8), QueueName("/", "audit")
BIG = b"b" * 90


def make_harness(version: int = 2) -> StoreHarness:
    return StoreHarness(
        StoreConfig(
            queue_version=version,
            embed_below_bytes=60,
            v1_segment_entries=8,
            v1_journal_entries_max=12,
            v2_segment_entries=8,
        )
    )


@pytest.fixture(params=[1, 2])
def harness(request: pytest.FixtureRequest) -> StoreHarness:
    return make_harness(request.param)


def deleting(harness: StoreHarness) -> list[str]:
    """Paths of all files of deleted queues."""
    return [path for path in harness.disk.snapshot() if "/deleting/" in path]


def maintain_until_gone(harness: StoreHarness) -> list[int]:
    """How many files each step removed."""
    removed: list[int] = []
    while harness.disk.list(f"{harness.store.directory}/deleting"):
        before = len(deleting(harness))
        harness.store.maintain(0)
        removed.append(before - len(deleting(harness)))
        assert len(removed) < 1000, "it comes to an end"
    return removed


def fan_out(harness: StoreHarness, count: int) -> tuple[LocalReplica, LocalReplica]:
    """Two queues with the same big messages, of which the first has settled one; all durable but this ack."""
    queue, other = harness.open_queue(), harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    batch = publications(1, count, body=BIG)
    queue.publish(batch)
    other.publish(batch)
    harness.sync()
    queue.ack([queue.fetch(1, ack_required=True)[0].seq_id])
    return queue, other


def test_a_big_queue_is_moved_with_one_operation_and_removed_a_few_files_at_a_time() -> None:
    harness = make_harness()
    queue = harness.open_queue()
    queue.publish(publications(1, 800))
    harness.sync()
    before = harness.disk.operations
    queue.delete()
    assert harness.disk.operations == before + 1
    assert harness.store.queues_on_disk() == []
    assert len(deleting(harness)) == 202
    harness.sync()
    removed = maintain_until_gone(harness)
    assert max(removed) == FILES_PER_STEP
    assert sum(removed) == 202


def test_nothing_is_removed_before_the_move_is_durable(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 20))
    harness.sync()
    queue.delete()
    files = len(deleting(harness))
    harness.store.maintain(0)
    assert len(deleting(harness)) == files > 0
    queue = harness.crash()
    assert queue.ready == 20, "it is back, whole"
    assert not deleting(harness)


@pytest.mark.parametrize("style", CrashStyle)
def test_what_a_crash_left_of_a_deletion_is_removed_in_steps_and_refers_to_nothing(
    harness: StoreHarness, style: CrashStyle
) -> None:
    queue, _ = fan_out(harness, 40)
    queue.publish(publications(41, 40, body=BIG))
    harness.sync()
    queue.delete()
    harness.sync()
    for _ in range(3):
        harness.store.maintain(0)
    harness.disk.crash(style, random.Random(1))
    harness.start()
    assert harness.store.queues_on_disk() == [(OTHER_ID, OTHER_NAME)]
    assert harness.store.store_recovery.messages == 40, "those of the other queue"
    harness.sync()
    assert max(maintain_until_gone(harness), default=0) <= FILES_PER_STEP
    other = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    assert counters(other.fetch(99, True)) == list(range(1, 41))
    harness.store.check_invariants()


def test_what_a_killed_process_moved_is_not_removed_before_the_move_is_durable(harness: StoreHarness) -> None:
    """Its successor sees the new name, which a power failure may still take back: then the queue is whole."""
    harness.open_queue().publish(publications(1, 40))
    harness.sync()
    harness.start()
    harness.store.delete_queue_directory(QUEUE_ID)
    harness.start()
    before = deleting(harness)
    assert before
    for _ in range(10):
        harness.store.maintain(0)
    assert deleting(harness) == before
    survivor = harness.disk.twin()
    survivor.crash(CrashStyle.DROP, random.Random(0))
    harness.sync()
    maintain_until_gone(harness)
    harness.disk = survivor
    harness.start()
    assert counters(harness.open_queue().fetch(99, ack_required=True)) == list(range(1, 41))


def test_references_are_given_back_in_steps_and_once(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ack that is not on disk was given back before."""
    monkeypatch.setattr("node.store.shared.port.REFERENCES_PER_STEP", 4)
    queue, other = fan_out(harness, 16)
    queue.publish(publications(17, 16, body=BIG))
    harness.sync()
    queue.ack([queue.fetch(1, ack_required=True)[0].seq_id])
    queue.delete()
    harness.sync()
    messages = [harness.store.shared_status().messages]
    for _ in range(40):
        harness.store.maintain(0)
        messages.append(harness.store.shared_status().messages)
    assert (messages[0], messages[-1]) == (32, 16)
    assert max(before - after for before, after in pairwise(messages)) == 4
    maintain_until_gone(harness)
    assert counters(other.fetch(99, True)) == list(range(1, 17))
    other.ack([SeqId(seq_id) for seq_id in range(16)])
    assert harness.store.shared_status().messages == 0
    harness.store.check_invariants()


def test_a_clean_stop_in_the_middle_gives_the_rest_back(harness: StoreHarness) -> None:
    queue, _ = fan_out(harness, 16)
    queue.publish(publications(17, 16, body=BIG))
    harness.sync()
    queue.delete()
    harness.store.close()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()
    assert harness.store.store_recovery.clean
    assert harness.store.queues_on_disk() == [(OTHER_ID, OTHER_NAME)], "the stop made the deletion durable"
    assert harness.store.shared_status().messages == 16
    other = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    assert counters(other.fetch(99, True)) == list(range(1, 17))
    harness.sync()
    maintain_until_gone(harness)


def test_a_mirror_that_comes_back_while_its_files_are_removed_begins_anew(harness: StoreHarness) -> None:
    for start in range(3):
        queue = harness.open_queue()
        assert queue.ready == 0
        queue.publish(publications(100 * start + 1, 9))
        harness.sync()
        queue.delete()
        harness.sync()
    assert len(harness.disk.list(f"{harness.store.directory}/deleting")) == 3
    harness.store.check_invariants()
    maintain_until_gone(harness)


@pytest.mark.parametrize("is_at_start", [False, True])
def test_the_directories_above_are_synced_once_for_all_that_are_deleted_in_a_round(
    harness: StoreHarness, *, is_at_start: bool
) -> None:
    queues = [harness.store.open_queue(QueueId(n), QueueName("/", f"q{n}"), durable=True) for n in range(20)]
    harness.sync()
    for queue in queues:
        queue.delete()
    if is_at_start:
        harness.start()
    sync_round = harness.group_commit.begin()
    assert sync_round is not None
    assert len(sync_round.files) == 2


def test_the_directory_of_a_queue_that_is_not_durable_is_removed_in_steps_at_start() -> None:
    harness = make_harness()
    queue = harness.open_queue(durable=False)
    queue.set_lazy(True)
    queue.publish(publications(1, 400))
    harness.sync()
    # The process dies, the machine does not.
    harness.start()
    assert harness.open_queue(durable=False).ready == 0
    assert len(deleting(harness)) == 101
    removed = maintain_until_gone(harness)
    assert max(removed) == FILES_PER_STEP
    assert sum(removed) == 101


def test_files_of_a_closed_queue_give_their_references_back(harness: StoreHarness) -> None:
    fan_out(harness, 16)
    harness.store.close()
    harness.start()
    harness.store.delete_queue_directory(QUEUE_ID)
    harness.sync()
    maintain_until_gone(harness)
    other = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    other.purge()
    harness.sync()
    assert harness.store.shared_status().messages == 0
    harness.store.check_invariants()


def test_files_of_a_closed_queue_are_read_a_segment_at_a_time(harness: StoreHarness) -> None:
    """Also where nothing in them refers to the shared store."""
    harness.open_queue().publish(publications(1, 80))
    harness.store.close()
    harness.start()
    harness.store.delete_queue_directory(QUEUE_ID)
    harness.sync()
    reads: list[int] = []
    while deleting(harness):
        before = harness.disk.reads
        harness.store.maintain(0)
        reads.append(harness.disk.reads - before)
    assert sum(reads) == 10
    assert max(reads) == 1


def test_files_of_a_queue_that_failed_do_not_give_references_back_a_second_time() -> None:
    """The ack of its first message is not on disk, but its reference was given back."""
    harness = make_harness()
    queue, other = fan_out(harness, 4)
    harness.disk.fail_writes = f"/{QUEUE_ID}/"
    harness.store.flush_writes()
    assert queue.engine.has_failed
    harness.disk.fail_writes = None
    queue.terminate()
    harness.store.delete_queue_directory(QUEUE_ID)
    harness.sync()
    maintain_until_gone(harness)
    assert counters(other.fetch(99, True)) == [1, 2, 3, 4]
    assert harness.store.shared_status().messages == 4
    harness.store.check_invariants()


def test_a_directory_that_cannot_be_moved_stays(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 20))
    harness.sync()

    def refuse(_old_path: str, _new_path: str) -> None:
        raise StorageError("rename failed: injected error (errno 5)")

    with monkeypatch.context() as patch:
        patch.setattr(harness.disk, "rename", refuse)
        with pytest.raises(StorageError, match="rename failed"):
            queue.delete()
    with pytest.raises(StorageError, match="out of service"):
        queue.publish(publications(21, 1))
    assert not harness.store.has_unflushed, "nobody is left who would write it"
    assert harness.crash().ready == 20


@pytest.mark.parametrize("count", [10, 40])  # in a journal of version 1, and in segments
def test_a_queue_that_is_deleted_while_there_is_no_descriptor_is_gone_when_there_is_one(
    harness: StoreHarness, count: int
) -> None:
    queue, other = fan_out(harness, count)
    other.delete()
    harness.disk.open_limit = 0
    queue.delete()
    harness.disk.open_limit = None
    harness.sync()
    harness.disk.open_limit = 0
    for tick in range(5):
        harness.store.maintain(tick)
    harness.disk.open_limit = None
    assert deleting(harness)
    maintain_until_gone(harness)
    assert deleting(harness) == []
    assert harness.store.shared_status().messages == 0


def test_for_want_of_a_descriptor_it_waits(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 50))
    harness.sync()
    queue.delete()
    harness.sync()
    before = deleting(harness)
    assert before != []
    harness.disk.open_limit = len(harness.disk.descriptors)
    for _ in range(30):
        harness.store.maintain(0)
    harness.disk.open_limit = None
    assert deleting(harness) == before
    maintain_until_gone(harness)
    assert not harness.store._deletions


@pytest.mark.parametrize("is_same_life", [True, False])
def test_a_file_that_cannot_be_removed_is_tried_again_now_and_then_and_by_the_next_start(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_same_life: bool
) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 20))
    harness.sync()
    queue.delete()
    harness.sync()

    def refuse(path: str) -> None:
        raise StorageError(f"unlink of {path} failed: injected error (errno 5)")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(harness.disk, "unlink", refuse)
        for _ in range(3):
            harness.store.maintain(0)
        assert len(caplog.messages) == 1, "it is not tried again and again"
        for _ in range(2 * STEPS_TO_NEXT_TRY):
            harness.store.maintain(0)
        harness.store.check_invariants()
    assert len(caplog.messages) == 1, "nor told"
    assert deleting(harness)
    if is_same_life:
        for _ in range(STEPS_TO_NEXT_TRY):
            harness.store.maintain(0)
        assert not deleting(harness)
        return
    harness.store.close()
    harness.start()
    harness.sync()
    maintain_until_gone(harness)


def test_of_a_deleted_queue_that_cannot_be_read_it_is_said_and_the_files_go(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    queue, _ = fan_out(harness, 16)
    queue.terminate()
    harness.store.delete_queue_directory(QUEUE_ID)
    harness.sync()
    harness.disk.fail_reads = "/deleting/"
    with caplog.at_level(logging.WARNING):
        maintain_until_gone(harness)
    assert "some references are not given back" in caplog.text


@pytest.mark.parametrize("stops", [False, True])
def test_a_mistake_in_giving_back_is_counted_by_the_next_start_and_the_files_go(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """What is done for all queues, and the stop of the node, goes on."""

    def err(_store: MessageStore, _msg_ids: object) -> None:
        raise KeyError("a mistake of ours")

    queue, _ = fan_out(harness, 16)
    queue.purge()
    queue.delete()
    harness.sync()
    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "release_many", err)
        if not stops:
            maintain_until_gone(harness)
        harness.store.close()
    assert "some references are not given back: KeyError" in caplog.text
    harness.start()
    assert not harness.store.store_recovery.clean, "it was counted anew"


@pytest.mark.parametrize("was_open", [True, False])
def test_a_deleted_queue_that_cannot_be_read_does_not_hinder_a_clean_stop(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture, was_open: bool
) -> None:
    """The next start counts references anew that could not be given back; everything else is saved."""
    queue, _ = fan_out(harness, 16)
    if was_open:
        queue.delete()
    else:
        queue.terminate()
        harness.store.delete_queue_directory(QUEUE_ID)
    harness.sync()
    harness.disk.fail_reads = "/deleting/"
    with caplog.at_level(logging.WARNING):
        harness.store.close()
    assert was_open or "some references are not given back" in caplog.text
    harness.disk.fail_reads = None
    harness.start()
    assert not harness.store.store_recovery.clean
    assert harness.store.shared_status().messages == 16
    other = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    assert counters(other.fetch(99, True)) == list(range(1, 17))


@pytest.mark.parametrize("stops", [True, False], ids=["by a stop", "step by step"])
def test_what_could_not_be_given_back_is_counted_by_the_next_start(harness: StoreHarness, stops: bool) -> None:
    queue, other = fan_out(harness, 16)
    queue.delete()
    other.purge()
    harness.sync()
    harness.disk.fail_reads = "/deleting/"
    if not stops:
        maintain_until_gone(harness)
    harness.store.close()
    harness.disk.fail_reads = None
    harness.start()
    assert harness.store.shared_status().messages == 0


def test_a_slot_that_is_damaged_when_its_queue_is_deleted_has_its_reference_counted_by_the_next_start() -> None:
    harness = make_harness()
    queue, other = fan_out(harness, 16)
    other.purge()
    harness.sync()
    queue.delete()
    path = next(path for path in deleting(harness) if path.endswith("/0.qi"))
    harness.disk.flip_bit(path, 64 + 3 * 32 + 10)
    harness.sync()
    maintain_until_gone(harness)
    harness.store.close()
    harness.start()
    assert harness.store.shared_status().messages == 0


def test_a_journal_that_finds_no_descriptor_has_its_references_given_back_later() -> None:
    harness = make_harness(1)
    queue, other = fan_out(harness, 4)
    other.purge()
    harness.sync()
    wanted = harness.disk.open
    left = 5

    def refuse(path: str) -> DiskFile:
        nonlocal left
        if path.endswith(".jif") and left:
            left -= 1
            raise OpenFilesError(f"open of {path} failed: Too many open files (errno 24)")
        return wanted(path)

    harness.disk.open = refuse  # type: ignore[method-assign]
    queue.delete()
    harness.sync()
    maintain_until_gone(harness)
    assert left == 0
    assert harness.store.shared_status().messages == 0


def test_files_of_a_closed_queue_are_read_in_bounded_pieces(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of version 1 have segments of 16,384 entries, and journals of twice as many."""
    harness = StoreHarness(StoreConfig(queue_version=harness.config.queue_version, embed_below_bytes=60))
    for generation in ("v1", "v2"):
        monkeypatch.setattr(f"node.store.index.{generation}.scan.ENTRIES_PER_PIECE", 10)
    harness.open_queue().publish(publications(1, 100, body=BIG))
    harness.store.close()
    harness.start()
    harness.store.delete_queue_directory(QUEUE_ID)
    harness.sync()
    messages = [100]
    for _ in range(30):
        harness.store.maintain(0)
        messages.append(harness.store.shared_status().messages)
    assert messages[-1] == 0
    assert max(before - after for before, after in pairwise(messages)) == 10
