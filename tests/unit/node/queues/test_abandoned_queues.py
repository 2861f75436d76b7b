"""Copies that are given up in a life of a node: what they held of the shared stores is given back, once, in that life.

`test_reopened_queues` beside this shows that other queues lose nothing by it.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from node.errors import DiskFullError, OpenFilesError, StorageError
from node.store.index.conversion import ConvertingIndex
from node.store.index.v2.index import QueueIndexV2
from node.store.index.v2.segment_files import OPEN_SEGMENTS_MAX
from node.store.shared.config import StoreConfig
from tests.support.full_disk import Refusal
from tests.support.given_up import (
    BODY_BYTES,
    FIRST,
    care,
    fail,
    fan_out,
    no_descriptors,
    open_queue,
    persistent_messages,
    publish_transient,
    settle_all,
    transient_messages,
)
from tests.support.messages import publications
from tests.support.stores import StoreHarness

VERSIONS = pytest.mark.parametrize("version", [1, 2])


# -- the transient store


@VERSIONS
def test_transient_messages_of_a_copy_that_failed_leave_the_transient_store(version: int) -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v2_segment_entries=16))
    queue = open_queue(harness, FIRST, version)
    publish_transient(harness, queue, 1, 100)
    assert transient_messages(harness) == 100
    fail(queue)
    care(harness)
    assert transient_messages(harness) == 0
    assert harness.disk.open_handles <= 3, "the stores' own"
    assert open_queue(harness, FIRST, version).ready == 0


@VERSIONS
def test_transient_messages_are_gone_before_a_copy_that_failed_is_opened_again(version: int) -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version)
    queue.publish(publications(1, 10, body=bytes(BODY_BYTES)))
    publish_transient(harness, queue, 11, 90)
    fail(queue)
    queue = open_queue(harness, FIRST, version)
    assert queue.ready == 10
    assert transient_messages(harness) == 0


@VERSIONS
def test_a_purge_that_had_begun_is_given_back_when_the_copy_fails(version: int) -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v2_segment_entries=16))
    queue = open_queue(harness, FIRST, version)
    queue.publish(publications(1, 100, body=bytes(BODY_BYTES)))
    publish_transient(harness, queue, 101, 100)
    queue.purge()
    fail(queue)
    care(harness)
    assert transient_messages(harness) == 0
    assert persistent_messages(harness) == 0


@VERSIONS
def test_a_queue_that_is_not_durable_leaves_nothing_when_it_fails(version: int) -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version, durable=False)
    publish_transient(harness, queue, 1, 100)
    assert transient_messages(harness) == 100
    fail(queue)
    care(harness)
    assert transient_messages(harness) == 0
    assert not [path for path in harness.disk.snapshot() if f"/{FIRST}" in path], "nor any file"


@VERSIONS
def test_a_queue_that_is_not_durable_gives_back_even_if_its_files_cannot_be_moved(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version, durable=False)
    publish_transient(harness, queue, 1, 100)

    def refuse(_old_path: str, _new_path: str) -> None:
        raise DiskFullError("rename failed: No space left on device (errno 28)")

    with monkeypatch.context() as patch:
        patch.setattr(harness.disk, "rename", refuse)
        with pytest.raises(DiskFullError):
            queue.terminate()
    care(harness)
    assert transient_messages(harness) == 0


@VERSIONS
def test_what_waits_for_a_descriptor_is_given_back_when_there_is_one(version: int) -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version)
    publish_transient(harness, queue, 1, 100)
    with no_descriptors(harness, ".jif" if version == 1 else ".qi"):
        fail(queue, OpenFilesError("open of 0.qi failed: Too many open files (errno 24)"))
        care(harness)
    assert transient_messages(harness) == 100
    care(harness)
    assert transient_messages(harness) == 0


def test_a_segment_that_cannot_be_opened_is_given_nothing() -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=16))
    queue = open_queue(harness, FIRST, 2)
    queue.publish(publications(1, 100, body=bytes(BODY_BYTES)))
    harness.sync()
    queue.terminate()
    queue = open_queue(harness, FIRST, 2)
    index = queue.engine.content.index
    assert isinstance(index, QueueIndexV2)
    for _ in range(OPEN_SEGMENTS_MAX):
        index.files._close_oldest()  # as one after the other is read
    queue.publish(publications(101, 5, body=bytes(BODY_BYTES)))
    with no_descriptors(harness, ".qi"):
        harness.store.flush_writes()
    assert queue.engine.has_failed
    fail(queue)
    queue = open_queue(harness, FIRST, 2)
    assert queue.ready == 100
    settle_all(queue)
    care(harness)
    assert persistent_messages(harness) == 0


@VERSIONS
def test_what_a_deleted_copy_held_is_given_back_when_there_is_a_descriptor_again(version: int) -> None:
    """In its second segment there is none: what was given back of the first is not given back again."""
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v2_segment_entries=16))
    first, second = fan_out(harness, 40, version)
    harness.sync()
    fail(first)
    with no_descriptors(harness, "1.idx" if version == 1 else "1.qi"):
        harness.store.delete_queue_directory(FIRST)
        harness.sync()
        care(harness)
    care(harness)
    assert persistent_messages(harness) == 40, "those of the other queue"
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0


def test_a_slot_write_that_fails_gives_back_what_its_messages_took() -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, 2)
    publish_transient(harness, queue, 1, 1)
    harness.disk.fail_writes = ".qi"
    queue.publish(publications(2, 5, body=bytes(BODY_BYTES)))
    queue.publish(publications(7, 5, persistent=False, body=bytes(BODY_BYTES)))
    harness.store.flush_writes()
    care(harness)
    harness.disk.fail_writes = None
    assert queue.engine.has_failed
    with suppress(StorageError):
        queue.terminate()
    settle_all(open_queue(harness, FIRST, 2))
    care(harness)
    assert (transient_messages(harness), persistent_messages(harness)) == (0, 0)


@VERSIONS
def test_an_opening_that_finds_no_descriptor_leaves_what_is_to_be_given_back_to_the_next(version: int) -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version)
    publish_transient(harness, queue, 1, 100)
    fail(queue)
    with no_descriptors(harness, ".jif" if version == 1 else ".qi"), pytest.raises(OpenFilesError):
        open_queue(harness, FIRST, version)
    open_queue(harness, FIRST, version)
    assert transient_messages(harness) == 0


def test_a_write_into_a_shared_store_that_fails_gives_back_what_the_other_took() -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, 2)
    publish_transient(harness, queue, 1, 1)
    harness.disk.fail_writes = "msg_store_transient"
    queue.publish(publications(2, 5, body=bytes(BODY_BYTES)))
    queue.publish(publications(7, 5, persistent=False, body=bytes(BODY_BYTES)))
    care(harness)
    harness.disk.fail_writes = None
    assert queue.engine.has_failed
    queue.terminate()
    settle_all(open_queue(harness, FIRST, 2))
    care(harness)
    assert persistent_messages(harness) == 0


def test_a_journal_write_that_fails_gives_back_what_its_messages_took() -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, 1)
    publish_transient(harness, queue, 1, 1)
    harness.disk.fail_writes = ".jif"
    queue.publish(publications(2, 5, body=bytes(BODY_BYTES)))
    care(harness)
    harness.disk.fail_writes = None
    assert queue.engine.has_failed
    queue.terminate()
    settle_all(open_queue(harness, FIRST, 1))
    care(harness)
    assert (transient_messages(harness), persistent_messages(harness)) == (0, 0)


# -- the persistent store


@VERSIONS
def test_a_copy_that_failed_and_is_opened_again_keeps_nothing_that_it_settles(version: int) -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 20, version)
    first.ack([delivery.seq_id for delivery in first.fetch(5, ack_required=True)])
    fail(first)
    settle_all(open_queue(harness, FIRST, version))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0
    assert harness.store.shared_status().valid_bytes == 0


@VERSIONS
def test_it_may_fail_again_and_again(version: int) -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v1_journal_entries_max=32, v2_segment_entries=16))
    first, second = fan_out(harness, 100, version)
    for _ in range(5):
        first.ack([delivery.seq_id for delivery in first.fetch(7, ack_required=True)])
        harness.sync()
        first.ack([delivery.seq_id for delivery in first.fetch(7, ack_required=True)])
        fail(first)
        first = open_queue(harness, FIRST, version)
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == first.ready
    settle_all(first)
    care(harness)
    assert persistent_messages(harness) == 0


@pytest.mark.parametrize(("version", "refused"), [(1, ".jif"), (2, ".qs"), (2, ".qi")])
def test_a_copy_that_was_closed_on_a_full_disk_keeps_nothing_that_it_settles(version: int, refused: str) -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=32))
    first, second = fan_out(harness, 320, version)
    with Refusal(harness.disk, refused, 1, 0.5):
        deliveries = first.fetch(320, True)
        first.publish(publications(1001, 5, body=bytes(10)))
        first.publish(publications(1006, 5, body=bytes(BODY_BYTES)))
        first.ack([delivery.seq_id for delivery in deliveries if delivery.seq_id % 32 < 20])  # in many segments
        harness.store.flush_writes()
        with suppress(DiskFullError):
            first.terminate()
    settle_all(open_queue(harness, FIRST, version))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0


@VERSIONS
def test_openings_that_fail_keep_nothing(version: int) -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v1_journal_entries_max=32, v2_segment_entries=16))
    first, second = fan_out(harness, 100, version)
    first.terminate()
    suffix = ".idx" if version == 1 else ".qi"
    for _ in range(3):
        with no_descriptors(harness, suffix), pytest.raises(OpenFilesError):
            open_queue(harness, FIRST, version)
    first = open_queue(harness, FIRST, version)
    first.ack([delivery.seq_id for delivery in first.fetch(30, ack_required=True)])
    fail(first)
    for opened in range(6):
        with suppress(StorageError), no_descriptors(harness, suffix, after=opened):
            open_queue(harness, FIRST, version)
    settle_all(open_queue(harness, FIRST, version))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0


@VERSIONS
def test_what_a_copy_held_is_of_no_account_any_more_once_it_was_closed_cleanly(version: int) -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 20, version)
    fail(first)
    first = open_queue(harness, FIRST, version)
    for queue in (first, second):
        queue.publish(publications(101, 20, body=bytes(BODY_BYTES)))
    harness.sync()
    first.terminate()
    suffix = ".idx" if version == 1 else ".qi"
    if version == 2:
        # The terms are believed without a look into any file.
        harness.disk.unlink(f"{harness.store.directory}/queues/{FIRST}/clean.terms")
    with no_descriptors(harness, suffix), pytest.raises(OpenFilesError):
        open_queue(harness, FIRST, version)
    settle_all(open_queue(harness, FIRST, version))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0


def test_of_damaged_files_nothing_is_taken_over() -> None:
    """A record that follows upon a damaged one may be older than what is known: if in doubt the references stay."""
    harness = StoreHarness()
    first, second = fan_out(harness, 20, 1)
    fail(first)
    journal = f"{harness.store.directory}/queues/{FIRST}/0.jif"
    harness.disk.flip_bit(journal, 64 + 20)
    first = open_queue(harness, FIRST, 1)
    assert first.ready == 19
    settle_all(first)
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 20
    harness.store.close()
    harness.start()
    assert persistent_messages(harness) == 0


@VERSIONS
def test_a_copy_that_cannot_be_read_keeps_nothing_once_it_can(version: int) -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 50, version)
    first.ack([delivery.seq_id for delivery in first.fetch(10, ack_required=True)])
    harness.disk.fail_reads = f"/{FIRST}/"
    fail(first)
    with pytest.raises(StorageError):
        open_queue(harness, FIRST, version)
    harness.disk.fail_reads = None
    settle_all(open_queue(harness, FIRST, version))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0


@VERSIONS
def test_a_failed_copy_that_is_deleted_gives_back_what_it_held_and_no_more(version: int) -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v1_journal_entries_max=32, v2_segment_entries=16))
    first, second = fan_out(harness, 100, version)
    first.ack([delivery.seq_id for delivery in first.fetch(30, ack_required=True)])
    second.ack([delivery.seq_id for delivery in second.fetch(60, ack_required=True)])
    fail(first)
    assert persistent_messages(harness) == 100 - 30
    harness.store.delete_queue_directory(FIRST)
    care(harness)
    assert persistent_messages(harness) == 40, "those of the second"
    assert [len(delivery.message.body) for delivery in second.fetch(99, True)] == [BODY_BYTES] * 40


@VERSIONS
@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("converts", [False, True])
def test_a_failed_copy_that_is_deleted_gives_all_back_in_steps(version: int, has_begun: bool, converts: bool) -> None:
    """No turn of the loop reads all transient messages that it had."""
    harness = StoreHarness(StoreConfig(v1_segment_entries=16, v1_journal_entries_max=32, v2_segment_entries=16))
    first, second = fan_out(harness, 20, version)
    publish_transient(harness, first, 100, 100)
    if converts:
        first.set_index_version(3 - version)
        harness.store.maintain(0)
        assert first.engine.is_converting
    fail(first)
    if has_begun:
        harness.store.maintain(0)
    before = transient_messages(harness)
    harness.store.delete_queue_directory(FIRST)
    assert transient_messages(harness) == before > 0
    harness.sync()
    care(harness)
    assert (transient_messages(harness), persistent_messages(harness)) == (0, 20)
    assert not [path for path in harness.disk.snapshot() if f"/{FIRST}/" in path or "/deleting/" in path]
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0
    assert harness.disk.open_handles <= 8, "the stores' own, and the second queue's"


@VERSIONS
def test_a_copy_whose_directory_cannot_be_moved_is_deleted_with_what_it_held(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 20, version)
    publish_transient(harness, first, 100, 20)
    first.ack([delivery.seq_id for delivery in first.fetch(5, ack_required=True)])

    def refuse(_old_path: str, _new_path: str) -> None:
        raise DiskFullError("rename failed: No space left on device (errno 28)")

    with monkeypatch.context() as patch:
        patch.setattr(harness.disk, "rename", refuse)
        with pytest.raises(DiskFullError):
            first.delete()
    harness.store.delete_queue_directory(FIRST)
    settle_all(second)
    care(harness)
    assert (transient_messages(harness), persistent_messages(harness)) == (0, 0)


@pytest.mark.parametrize(("version", "other"), [(1, 2), (2, 1)])
def test_a_conversion_that_fails_keeps_nothing(version: int, other: int) -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=256, v2_segment_entries=256))
    first, second = fan_out(harness, 1500, version)
    publish_transient(harness, first, 2000, 20)
    first.set_index_version(other)
    for turn in range(3):
        harness.store.maintain(turn * 1000)
        harness.sync()
    index = first.engine.content.index
    assert isinstance(index, ConvertingIndex)
    assert not index.is_finished
    first.ack([delivery.seq_id for delivery in first.fetch(100, ack_required=True)])
    fail(first)
    assert transient_messages(harness) <= 20
    refused = ".jif" if version == 1 else ".qi"
    with Refusal(harness.disk, refused, 1, 0.0), suppress(DiskFullError):
        fail(open_queue(harness, FIRST, other))
    first = open_queue(harness, FIRST, other)
    settle_all(first)
    settle_all(second)
    care(harness)
    assert (transient_messages(harness), persistent_messages(harness)) == (0, 0)


def test_a_conversion_that_fails_again_and_again_keeps_nothing_that_found_no_room() -> None:
    harness = StoreHarness(StoreConfig(v1_segment_entries=256, v2_segment_entries=256))
    first, second = fan_out(harness, 1500, 1)
    first.set_index_version(2)
    for turn in range(3):
        harness.store.maintain(turn * 1000)
        harness.sync()
    assert first.engine.is_converting
    with Refusal(harness.disk, ".qi", 2, 0.0):
        first.publish(publications(2000, 600, body=bytes(BODY_BYTES)))
        harness.store.flush_writes()
        fail(first)
    with Refusal(harness.disk, ".jif", 1, 0.0), pytest.raises(DiskFullError):
        open_queue(harness, FIRST, 2)
    settle_all(open_queue(harness, FIRST, 2))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0
