"""A queue whose files, or the disk under all queues, have failed: it does nothing any more, whatever is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.errors import StorageError
from node.ids import QueueId, QueueName, SeqId
from node.queues.local_replica import LocalReplica
from node.queues.replica import SeqRange
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import slot_offset
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.stores import DATA_DIRECTORY, QUEUE_ID, StoreHarness


@pytest.fixture
def harness() -> StoreHarness:
    return StoreHarness()


OPERATIONS: dict[str, Callable[[LocalReplica], object]] = {
    "publish": lambda queue: queue.publish(publications(9, 1)),
    "publish_delivered": lambda queue: queue.publish_delivered(publications(9, 1)),
    "discard": lambda queue: queue.discard(publications(9, 1)),
    "fetch": lambda queue: queue.fetch(1, ack_required=True),
    "fetch without ack": lambda queue: queue.fetch(1, ack_required=False),
    "drop": lambda queue: queue.drop(1),
    "ack": lambda queue: queue.ack([SeqId(0)]),
    "requeue": lambda queue: queue.requeue([SeqId(0)]),
    "requeue_all": lambda queue: queue.requeue_all(),
    "purge": lambda queue: queue.purge(),
    "insert": lambda queue: queue.insert([SeqId(50)], [make_message(50)], [make_message(50).envelope()]),
    "remove": lambda queue: queue.remove([SeqRange(SeqId(0), SeqId(9))]),
    "advance_next_seq_id": lambda queue: queue.advance_next_seq_id(SeqId(99)),
    "confirm_when_safe": lambda queue: queue.confirm_when_safe(msg_id_of(1), "again"),
    "drain_confirmed": lambda queue: queue.drain_confirmed(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
@pytest.mark.parametrize("failing", ["its own write", "the disk under all queues"])
def test_out_of_service_every_operation_raises_and_changes_nothing(
    harness: StoreHarness, operation: Callable[[LocalReplica], object], failing: str
) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 4))
    queue.fetch(2, ack_required=True)
    if failing == "its own write":
        harness.disk.fail_writes = ".qs"
        harness.store.flush_writes()
    else:
        harness.disk.fail_syncs = ".qs"
        sync_round = harness.group_commit.begin()
        assert sync_round is not None
        with pytest.raises(StorageError) as caught:
            sync_round.run()
        harness.group_commit.fail(sync_round, caught.value)
    before = (queue.status(), queue.origins(), queue.delivered_below)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"out of service: .* injected"):
            operation(queue)
    assert (queue.status(), queue.origins(), queue.delivered_below) == before
    assert queue.engine.has_failed
    assert not queue.engine.maintain()


def test_what_a_failed_queue_had_no_turn_to_write_is_not_durable_with_the_generation_of_the_others() -> None:
    harness = StoreHarness()
    harness.group_commit = GroupCommit(flushed_max=1)
    harness.store = VhostStore(harness.disk, DATA_DIRECTORY, "/", harness.group_commit, harness.config)
    other = harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=True)
    queue = harness.open_queue()
    for _ in range(2):
        harness.sync()
    other.publish(publications(1, 1))
    queue.publish(publications(1, 1))
    collected_in = harness.group_commit.open_generation
    harness.sync()
    assert queue.durable_generation < collected_in <= harness.group_commit.durable_generation
    harness.disk.fail_writes = f"/{QUEUE_ID}/"
    harness.store.flush_writes()
    assert queue.engine.has_failed
    assert queue.durable_generation < collected_in


def test_nothing_of_a_failed_queue_becomes_durable_by_what_others_write(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    other = harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=True)
    queue.publish(publications(1, 1))
    harness.sync()
    queue.publish(publications(2, 1))
    collected_in = harness.group_commit.open_generation
    harness.disk.fail_writes = f"/{QUEUE_ID}/"
    harness.store.flush_writes()
    before = queue.durable_generation
    assert 0 < before < collected_in
    for counter in (1, 2):
        other.publish(publications(counter, 1))
        harness.sync()
    assert other.durable_generation > collected_in
    assert queue.durable_generation == before


def test_a_requeue_for_which_a_body_cannot_be_read_takes_the_queue_out_of_service(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 4))
    harness.sync()
    queue.fetch(2, ack_required=True)
    queue.engine.paging._page_out_unacked(2)
    harness.disk.fail_reads = ".qs"
    with pytest.raises(StorageError, match="injected"):
        queue.requeue_all()
    harness.disk.fail_reads = None
    before = queue.durable_generation
    other = harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=True)
    other.publish(publications(1, 1))
    harness.sync()
    assert queue.durable_generation == before, "nothing of it becomes durable any more"
    with pytest.raises(StorageError, match="out of service"):
        queue.fetch(1, ack_required=True)


def test_a_queue_that_is_not_durable_goes_on_without_the_disk(harness: StoreHarness) -> None:
    """Nothing that it has need ever be on a disk."""
    durable = harness.open_queue()
    other = harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=False)
    for queue in (durable, other):
        queue.publish(publications(1, 1))
    harness.disk.fail_syncs = ".qs"
    sync_round = harness.group_commit.begin()
    assert sync_round is not None
    with pytest.raises(StorageError) as caught:
        sync_round.run()
    harness.group_commit.fail(sync_round, caught.value)
    with pytest.raises(StorageError, match="out of service"):
        durable.fetch(1, ack_required=True)
    assert len(other.fetch(1, ack_required=True)) == 1


def test_a_deleted_queue_does_nothing_any_more(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    queue.delete()
    with pytest.raises(StorageError, match="out of service: it was deleted"):
        queue.publish(publications(2, 1))


def test_a_queue_whose_write_failed_writes_nothing_any_more(harness: StoreHarness) -> None:
    """What is on the disk may be half of something; a start will see."""
    queue = harness.open_queue()
    queue.publish(publications(1, 4))
    harness.disk.fail_writes = f"/{QUEUE_ID}/"
    harness.store.flush_writes()
    harness.disk.fail_writes = None
    before = harness.disk.snapshot()
    assert not queue.engine.flush_writes()
    assert harness.disk.snapshot() == before


def test_a_damaged_entry_that_a_synchronisation_meets_is_set_aside_by_the_next_opening(harness: StoreHarness) -> None:
    """The copy is not closed in order: its terms would call the entry live, and the next filling of a mirror fail."""
    queue = harness.open_queue()
    queue.publish(publications(1, 6000))
    queue = harness.restart()
    assert queue.engine.stage_counts.delta > 0
    harness.disk.flip_bit(f"{harness.queue_directory}/1.qi", slot_offset(5000, harness.config.v2_segment_entries) + 4)
    with pytest.raises(StorageError, match="damaged"):
        queue.read([SeqId(seq_id) for seq_id in range(4990, 5010)])
    queue.terminate()
    harness.start()
    queue = harness.open_queue()
    assert queue.recovery_report is not None
    assert (queue.ready, queue.recovery_report.corrupt) == (5999, 1)
