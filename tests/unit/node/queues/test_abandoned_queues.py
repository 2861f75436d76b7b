"""Copies that are given up in a life of a node: what they held of the shared stores is given back, once, in that life.

`test_reopened_queues` beside this shows that other queues lose nothing by it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from node.errors import DiskFullError, OpenFilesError, StorageError
from node.ids import QueueId, QueueName, SeqId
from node.queues.local_replica import LocalReplica
from node.store.disk.disk import DiskFile
from node.store.index.conversion import ConvertingIndex
from node.store.shared.config import StoreConfig
from tests.support.full_disk import Refusal
from tests.support.messages import publications
from tests.support.stores import StoreHarness

FIRST, SECOND, THIRD = QueueId(7), QueueId(8), QueueId(9)
BODY_BYTES = 5_000
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def open_queue(
    harness: StoreHarness, queue_id: QueueId, version: int | None = None, *, durable: bool = True
) -> LocalReplica:
    return harness.store.open_queue(queue_id, QueueName("/", f"q{queue_id}"), durable, version)


def fan_out(harness: StoreHarness, count: int, version: int) -> tuple[LocalReplica, LocalReplica]:
    """Two queues with the same durable messages."""
    queues = open_queue(harness, FIRST, version), open_queue(harness, SECOND, version)
    for queue in queues:
        queue.publish(publications(1, count, body=bytes(BODY_BYTES)))
    harness.sync()
    return queues


def publish_transient(harness: StoreHarness, queue: LocalReplica, first: int, count: int) -> None:
    """Into the transient shared store, as under pressure."""
    queue.set_lazy(True)
    queue.publish(publications(first, count, persistent=False, body=bytes(BODY_BYTES)))
    care(harness)


def care(harness: StoreHarness, turns: int = 60) -> None:
    for now_s in range(turns):
        harness.store.maintain(now_s * 1000)
        harness.store.reclaim()
        harness.sync()
    harness.store.check_invariants()


def settle_all(queue: LocalReplica) -> None:
    queue.ack([delivery.seq_id for delivery in queue.fetch(10_000, ack_required=True)])


def transient_messages(harness: StoreHarness) -> int:
    return harness.store._stores.transient.status().messages


def persistent_messages(harness: StoreHarness) -> int:
    return harness.store.shared_status().messages


def fail(queue: LocalReplica, error: StorageError | None = None) -> None:
    """The queue's role ends because its storage has failed."""
    queue.engine.writes.fail(error or StorageError("write of 0.qi failed: Input/output error (errno 5)"))
    queue.terminate()


@contextmanager
def no_descriptors(harness: StoreHarness, suffix: str, times: int = 1 << 30) -> Iterator[None]:
    """Files of a kind cannot be opened, so often."""
    wanted, left = harness.disk.open, times

    def refuse(path: str) -> DiskFile:
        nonlocal left
        if path.endswith(suffix) and left:
            left -= 1
            raise OpenFilesError(f"open of {path} failed: Too many open files (errno 24)")
        return wanted(path)

    harness.disk.open = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        harness.disk.open = wanted  # type: ignore[method-assign]


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
        with suppress(StorageError):
            open_in_part(harness, version, suffix, opened)
    settle_all(open_queue(harness, FIRST, version))
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0


def open_in_part(harness: StoreHarness, version: int, suffix: str, opened: int) -> None:
    """There are descriptors for so many files of a kind, and no more."""
    wanted, left = harness.disk.open, opened

    def refuse(path: str) -> DiskFile:
        nonlocal left
        if path.endswith(suffix):
            if not left:
                raise OpenFilesError(f"open of {path} failed: Too many open files (errno 24)")
            left -= 1
        return wanted(path)

    harness.disk.open = refuse  # type: ignore[method-assign]
    try:
        open_queue(harness, FIRST, version)
    finally:
        harness.disk.open = wanted  # type: ignore[method-assign]


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


# -- at random: nothing is lost, and nothing stays


class Fates:
    """Queues with the same messages, which are acked, closed, failed, opened and deleted as chance has it."""

    def __init__(self, seed: int, version: int) -> None:
        self.chance = random.Random(seed)
        self.version = version
        config = StoreConfig(
            v1_segment_entries=16, v1_journal_entries_max=24, v2_segment_entries=16, file_size_limit_bytes=30_000
        )
        self.harness = StoreHarness(config)
        self.queues: dict[QueueId, LocalReplica] = {}
        #: What each must have, by counter.
        self.live: dict[QueueId, set[int]] = {}
        self.counter = 0
        for queue_id in (FIRST, SECOND, THIRD):
            self.open(queue_id)
            self.live[queue_id] = set()

    def open(self, queue_id: QueueId) -> None:
        version = self.chance.choice((1, 2)) if self.version == 0 else self.version
        self.queues[queue_id] = open_queue(self.harness, queue_id, version)

    def publish(self) -> None:
        count = self.chance.randrange(1, 20)
        size = self.chance.choice((10, BODY_BYTES))
        persistent = self.chance.random() < 0.8
        for queue_id, queue in self.queues.items():
            if self.chance.random() < 0.8:
                queue.publish(publications(self.counter + 1, count, persistent=persistent, body=bytes(size)))
                if persistent:
                    self.live[queue_id] |= set(range(self.counter + 1, self.counter + count + 1))
        self.counter += count
        self.harness.sync()

    def settle(self, queue_id: QueueId) -> None:
        queue = self.queues[queue_id]
        deliveries = queue.fetch(self.chance.randrange(1, 20), True)
        chosen = [delivery for delivery in deliveries if self.chance.random() < 0.7]
        self.live[queue_id] -= {counter_of(delivery.message.msg_id) for delivery in chosen}
        queue.ack([delivery.seq_id for delivery in chosen])
        queue.requeue([SeqId(delivery.seq_id) for delivery in deliveries if delivery not in chosen])

    def abandon(self, queue_id: QueueId) -> None:
        fail(self.queues.pop(queue_id))
        if self.chance.random() < 0.3:
            suffix = self.chance.choice((".qi", ".idx", ".jif"))
            for opened in range(self.chance.randrange(3)):
                with suppress(StorageError):
                    self.open_in_part(queue_id, suffix, opened)
        if queue_id not in self.queues:
            self.open(queue_id)
        self.came_again(queue_id)

    def open_in_part(self, queue_id: QueueId, suffix: str, opened: int) -> None:
        wanted, left = self.harness.disk.open, opened

        def refuse(path: str) -> DiskFile:
            nonlocal left
            if path.endswith(suffix):
                if not left:
                    raise OpenFilesError(f"open of {path} failed: Too many open files (errno 24)")
                left -= 1
            return wanted(path)

        if queue_id in self.queues:
            return
        self.harness.disk.open = refuse  # type: ignore[method-assign]
        try:
            self.open(queue_id)
        finally:
            self.harness.disk.open = wanted  # type: ignore[method-assign]

    def refuse_writes(self) -> None:
        """The disk fails, or is full, for files of some kind, and roles end by that."""
        disk = self.harness.disk
        suffix = self.chance.choice((".qi", ".qs", ".jif", ".idx", "seq.bounds"))
        if self.chance.random() < 0.5:
            disk.fail_writes = suffix
            self.end_roles()
            disk.fail_writes = None
        else:
            with Refusal(disk, suffix, self.chance.randrange(1, 5), self.chance.random()):
                self.end_roles()
        for queue_id in (FIRST, SECOND, THIRD):
            if queue_id not in self.queues:
                self.open(queue_id)
                self.came_again(queue_id)

    def end_roles(self) -> None:
        confirmed = {queue_id: set(live) for queue_id, live in self.live.items()}
        with suppress(StorageError):
            self.publish()
        for queue_id in list(self.queues):
            with suppress(StorageError):
                self.settle(queue_id)
                confirmed[queue_id] &= self.live[queue_id]
        # What is published now may find no room, and is not confirmed then.
        self.live = confirmed
        self.harness.store.flush_writes()
        for queue_id, queue in list(self.queues.items()):
            if queue.engine.has_failed or self.chance.random() < 0.5:
                del self.queues[queue_id]
                with suppress(StorageError):
                    queue.terminate()
                with suppress(StorageError):
                    self.open(queue_id)
                    self.came_again(queue_id)

    def came_again(self, queue_id: QueueId) -> None:
        """Acks that were in no file are forgotten; nothing that is live may be."""
        found = {counter_of(msg_id) for msg_id in msg_ids_of(self.queues[queue_id])}
        assert self.live[queue_id] <= found, "nothing is lost"
        self.live[queue_id] = found

    def delete(self, queue_id: QueueId) -> None:
        fail(self.queues.pop(queue_id))
        self.harness.store.delete_queue_directory(queue_id)
        self.live[queue_id] = set()
        self.open(queue_id)

    def step(self) -> None:
        queue_id = self.chance.choice(list(self.queues))
        what = self.chance.randrange(14)
        if what < 4:
            self.publish()
        elif what < 7:
            self.settle(queue_id)
        elif what == 7:
            self.abandon(queue_id)
        elif what == 8:
            self.queues.pop(queue_id).terminate()
            self.open(queue_id)
            self.came_again(queue_id)
        elif what == 12:
            self.refuse_writes()
        elif what == 13:
            self.queues[queue_id].set_index_version(self.chance.choice((1, 2)) if self.version == 0 else self.version)
            care(self.harness, 2)
        elif what == 9 and self.chance.random() < 0.3:
            self.delete(queue_id)
        elif what == 10 and self.chance.random() < 0.3:
            self.queues[queue_id].purge()
            self.live[queue_id] = set()
        else:
            self.queues[queue_id].set_lazy(self.chance.random() < 0.5)
            care(self.harness, 1)

    def end(self) -> None:
        for queue_id, queue in self.queues.items():
            deliveries = queue.fetch(10_000, True)
            found = {counter_of(delivery.message.msg_id) for delivery in deliveries}
            assert self.live[queue_id] <= found, "nothing is lost"
            queue.ack([delivery.seq_id for delivery in deliveries])
        care(self.harness, 200)
        assert (transient_messages(self.harness), persistent_messages(self.harness)) == (0, 0)


def counter_of(msg_id: bytes) -> int:
    return int.from_bytes(msg_id[8:], "big")


def msg_ids_of(queue: LocalReplica) -> list[bytes]:
    return [holding.msg_id for segment, _ in queue.live_counts() for holding in queue.holdings(segment)]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_becomes_of_copies_nothing_is_lost_and_nothing_stays(seed: int, version: int) -> None:
    fates = Fates(seed, version)
    for _ in range(60):
        fates.step()
    fates.end()
