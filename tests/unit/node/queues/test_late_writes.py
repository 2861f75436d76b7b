"""What finds no space in the generation in which it was collected: when it is durable.

A mirror tells its master by the generation in which it has applied something.
"""

from __future__ import annotations

from node.ids import SeqId
from node.queues.replica import SeqRange
from node.store.shared.config import StoreConfig
from tests.support.messages import make_message, publications
from tests.support.stores import StoreHarness


def test_what_found_no_space_is_durable_when_it_was_written_and_synced_not_when_its_generation_was() -> None:
    harness = StoreHarness(StoreConfig(embed_below_bytes=0))
    queue = harness.open_queue()
    harness.sync()
    applied_in = harness.group_commit.open_generation
    queue.publish(publications(1, 1))
    harness.disk.full_for = "queues"
    other = harness.disk.create(f"{harness.store.directory}/other")
    for _ in range(2):
        harness.group_commit.mark_dirty(other)
        harness.sync()
    assert harness.group_commit.durable_generation >= applied_in
    assert queue.durable_generation < applied_in
    harness.disk.full_for = None
    queue.engine.maintain()
    sync_round = harness.group_commit.begin()
    assert sync_round is not None
    assert not queue.is_disk_full
    assert queue.durable_generation < applied_in, "it is in the file, and not on the disk"
    sync_round.run()
    harness.group_commit.complete(sync_round)
    assert queue.durable_generation >= applied_in


def test_what_a_full_disk_took_is_durable_when_that_was_synced_whatever_became_of_the_rest() -> None:
    """The rest was acknowledged, or dropped, before there was room for it."""
    harness = StoreHarness(StoreConfig(v2_segment_entries=8))
    queue = harness.open_queue()
    harness.sync()
    applied_in = harness.group_commit.open_generation
    batch = [make_message(counter) for counter in range(16)]
    queue.insert([SeqId(number) for number in range(16)], batch, [message.envelope() for message in batch])
    harness.disk.full_for = "queues"
    harness.store.flush_writes()
    harness.group_commit.mark_dirty(harness.disk.create(f"{harness.store.directory}/other"))
    harness.sync()
    assert harness.group_commit.durable_generation >= applied_in
    harness.disk.full_for = "queues/7/1."
    queue.engine.maintain()
    harness.store.flush_writes()
    assert queue.is_disk_full
    index = queue.engine.content.index
    assert [number for number in range(16) if index.is_unflushed(number)] == list(range(8, 16))
    queue.remove([SeqRange(SeqId(8), SeqId(16))])
    assert queue.durable_generation < applied_in, "the first half is in its file, and not on the disk"
    harness.sync()
    assert queue.durable_generation >= applied_in
    queue = harness.crash()
    assert queue.ready == 8


def test_what_found_no_space_and_was_settled_since_is_waited_for_by_nobody() -> None:
    """Nothing was written: no sync is to come."""
    harness = StoreHarness(StoreConfig())
    queue = harness.open_queue()
    harness.sync()
    applied_in = harness.group_commit.open_generation
    message = make_message(1)
    queue.insert([SeqId(0)], [message], [message.envelope()])
    harness.disk.full_for = "queues"
    harness.store.flush_writes()
    harness.group_commit.mark_dirty(harness.disk.create(f"{harness.store.directory}/other"))
    harness.sync()
    queue.engine.maintain()
    harness.store.flush_writes()
    assert queue.durable_generation < applied_in
    queue.remove([SeqRange(SeqId(0), SeqId(1))])
    assert queue.durable_generation >= applied_in
