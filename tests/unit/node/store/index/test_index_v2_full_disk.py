"""What a full disk leaves of the index of version 2: slots that were refused, or written in part."""

from __future__ import annotations

import pytest

from node.errors import DiskFullError
from node.store.disk.simulated import CrashStyle
from node.store.formats.record import HEADER_BYTES, SLOT_BYTES, ZERO_SLOT
from node.store.index.v2.index import QueueIndexV2
from node.store.index.v2.segment_files import ACK_RUNS_MAX
from node.store.shared.config import StoreConfig
from tests.support.converting_driver import ConvertingDriver
from tests.support.full_disk import Refusal
from tests.support.index_driver import DIRECTORY, V1, V2, IndexDriver
from tests.support.messages import publications
from tests.support.stores import StoreHarness, run_sync_round


def refuse_slots(driver: IndexDriver, slots: int) -> None:
    """A flush that gets so many slots, and a piece of one, into the file."""
    with Refusal(driver.disk, ".qi", 1 if driver.disk.exists(f"{DIRECTORY}/0.qi") else 2, 1.0):
        driver.disk.prefix_of = lambda _longest: slots * SLOT_BYTES + 5
        with pytest.raises(DiskFullError):
            driver.index.flush(driver.next_seq_id)
    driver.index.check_invariants()


@pytest.fixture
def driver() -> IndexDriver:
    driver = IndexDriver(V2)
    driver.publish(1)
    driver.sync()
    driver.settle([0])
    driver.sync()
    return driver


def index_of(driver: IndexDriver) -> QueueIndexV2:
    assert isinstance(driver.index, QueueIndexV2)
    return driver.index


def slots_on_disk(driver: IndexDriver) -> list[int]:
    data = driver.disk.snapshot()[f"{DIRECTORY}/0.qi"][HEADER_BYTES:]
    return [n for n in range(len(data) // SLOT_BYTES) if data[n * SLOT_BYTES : (n + 1) * SLOT_BYTES] != ZERO_SLOT]


def test_the_next_flush_writes_the_slots_and_no_body_again(driver: IndexDriver) -> None:
    driver.publish(3)
    driver.publish(2, big=True)
    before = driver.disk.used_bytes
    refuse_slots(driver, 2)
    size = len(driver.disk.snapshot()[f"{DIRECTORY}/0.qs"])
    for _ in range(3):
        refuse_slots(driver, 2)
    assert len(driver.disk.snapshot()[f"{DIRECTORY}/0.qs"]) == size
    assert list(driver.persistent_store.references.values()) == [1, 1]
    assert driver.disk.used_bytes < before + size + 3 * SLOT_BYTES
    driver.sync()
    assert len(driver.disk.snapshot()[f"{DIRECTORY}/0.qs"]) == size
    assert list(driver.persistent_store.references.values()) == [1, 1]
    assert slots_on_disk(driver) == [1, 2, 3, 4, 5]
    driver.check()
    driver.crash(CrashStyle.DROP, 0)
    assert sorted(driver.verify_crash()) == [1, 2, 3, 4, 5]


def test_nothing_is_left_of_an_index_that_is_given_up_while_the_disk_is_full(driver: IndexDriver) -> None:
    driver.publish(3)
    driver.publish(2, big=True)
    refuse_slots(driver, 1)
    index = index_of(driver)
    seen = [index.has_unflushed]
    index.abandon()
    assert [*seen, index.has_unflushed] == [True, False]
    assert index.memory_bytes == IndexDriver(V2).index.memory_bytes
    index.check_invariants()


def test_only_what_reached_the_file_is_zeroed(driver: IndexDriver) -> None:
    driver.publish(3)
    driver.publish(2, big=True)
    refuse_slots(driver, 1)
    assert slots_on_disk(driver) == [1, 2], "one, and a piece of one"
    run_sync_round(driver.group_commit)
    driver.settle([1, 2, 3, 4, 5])
    assert not +driver.persistent_store.references
    driver.disk.capacity_bytes = driver.disk.used_bytes
    driver.flush()
    assert slots_on_disk(driver) == []
    assert driver.group_commit.has_dirty, "strays may be durable by accident: their zeros are synced"
    driver.die()
    assert driver.verify_crash() == {}


def test_a_position_whose_slot_was_refused_is_used_again(driver: IndexDriver) -> None:
    """A mirror whose tail is replaced before its disk has space."""
    seq_ids = driver.publish(3)
    refuse_slots(driver, 3)
    driver.settle_range(0, 9)
    driver.publish_at({seq_id: driver.message(big=seq_id == 2) for seq_id in seq_ids[:2]})
    driver.sync()
    driver.check()
    driver.die()
    assert sorted(driver.verify_crash()) == [1, 2]


def test_transient_messages_that_were_refused_are_dropped(driver: IndexDriver) -> None:
    driver.publish(2, persistent=False)
    driver.publish(1)
    refuse_slots(driver, 3)
    driver.index.drop_transient()
    driver.index.check_invariants()
    driver.index.flush(driver.next_seq_id)
    assert slots_on_disk(driver) == [3]


def test_a_deleted_index_gives_the_references_of_refused_slots_back(driver: IndexDriver) -> None:
    driver.publish(2, big=True)
    refuse_slots(driver, 1)
    assert len(+driver.persistent_store.references) == 2
    list(driver.index.delete(DIRECTORY))
    assert not +driver.persistent_store.references
    assert not driver.index.has_unflushed


def test_if_one_store_is_full_what_the_other_has_stays_there(driver: IndexDriver) -> None:
    driver.publish(1)
    driver.publish(2, big=True)
    driver.publish(1, big=True, persistent=False)
    index, write_batch = index_of(driver), driver.transient_store.write_batch

    def refuse(_items: object) -> None:
        raise DiskFullError("the disk is full")

    driver.transient_store.write_batch = refuse  # type: ignore[method-assign, assignment]
    for _ in range(2):
        with pytest.raises(DiskFullError):
            index.flush(driver.next_seq_id)
        index.check_invariants()
        assert list(driver.persistent_store.references.values()) == [1, 1]
    assert slots_on_disk(driver) == []
    driver.transient_store.write_batch = write_batch  # type: ignore[method-assign]
    driver.flush()
    driver.check()


def test_acks_need_no_space_even_if_there_are_holes_between_them() -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=64))
    queue = harness.open_queue()
    for number in range(1, 2 * ACK_RUNS_MAX + 4, 2):
        queue.publish(publications(number, 1))
        queue.publish(publications(number + 1, 1, persistent=False))
    harness.sync()
    # So many that nothing of what is in the file can be overwritten but at its place.
    harness.disk.capacity_bytes = harness.disk.used_bytes
    queue.purge()
    harness.store.flush_writes()
    assert not queue.is_disk_full
    harness.start()
    assert harness.open_queue().ready == 0


def test_what_is_finished_is_deleted_while_publishes_are_refused() -> None:
    """Else nothing would ever make room, and a kill would bring back what was acked."""
    harness = StoreHarness(StoreConfig(v2_segment_entries=8))
    queue = harness.open_queue()
    queue.publish(publications(1, 24))
    harness.sync()
    harness.disk.capacity_bytes = harness.disk.used_bytes
    queue.publish(publications(25, 40, body=bytes(100)))
    queue.ack([delivery.seq_id for delivery in queue.fetch(16, ack_required=True)])
    harness.store.flush_writes()
    assert queue.is_disk_full
    names = harness.disk.list(harness.queue_directory)
    assert "0.qi" not in names
    assert "1.qi" not in names
    harness.disk.capacity_bytes = 1 << 40
    harness.start()
    assert harness.open_queue().ready == 8


def test_a_refused_copy_leaves_no_slot_behind() -> None:
    """The original may be acked, and that ack synced, before anybody flushes the new index again."""
    driver = ConvertingDriver(V1, V2)
    driver.publish(6)
    driver.sync()
    driver.begin()
    with Refusal(driver.disk, ".qi", 2, 0.5) as refusal, pytest.raises(DiskFullError):
        driver.converting.step(20)
    assert refusal.has_come
    assert slots_on_disk(driver) == []
    driver.check()
