"""What finds no space in the generation in which it was collected: when it is durable.

A mirror tells its master by the generation in which it has applied something.
"""

from __future__ import annotations

from node.ids import QueueId, QueueName, SeqId
from node.queues.replica import SeqRange
from node.queues.vhost_store import VhostStore
from node.queues.writes import WRITE_BUFFER_BYTES
from node.store.disk.group_commit import GroupCommit
from node.store.index.v2.index import ACK_SEGMENTS_MAX
from node.store.shared.config import StoreConfig
from tests.support.messages import make_message, publications
from tests.support.stores import DATA_DIRECTORY, StoreHarness


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


def test_a_queue_that_wrote_unasked_and_calls_again_is_behind_those_that_have_waited_since() -> None:
    """Holes of the shared store may be filled when what was collected until then is on disk, and not before."""
    harness = StoreHarness(StoreConfig())
    commit = harness.group_commit = GroupCommit(flushed_max=1)
    harness.store = VhostStore(harness.disk, DATA_DIRECTORY, "/", commit, harness.config)
    names = [QueueName("/", f"q{number}") for number in range(4)]
    queues = [harness.store.open_queue(QueueId(number), name, durable=True) for number, name in enumerate(names)]
    for _ in queues:
        harness.sync()
    collected_in = commit.open_generation
    for queue in queues:
        queue.publish(publications(1, 1))
    harness.sync()
    queues[2].publish(publications(2, 1, body=bytes(WRITE_BUFFER_BYTES)))
    queues[2].publish(publications(3, 1))
    completed: list[bool] = []
    while harness.store.has_unflushed:
        harness.sync()
        completed.append(commit.complete_generation >= collected_in)
        is_written = not queues[3].engine.content.index.has_unflushed
        assert completed[-1] <= is_written, "the last has yet to write what it collected then"
    assert completed[-1], "in the end"


def test_settlements_that_wait_for_a_later_flush_hold_up_nothing() -> None:
    """Of more segments than one flush looks at, turn by turn: what was published before is on disk all the same."""
    segments = 3 * ACK_SEGMENTS_MAX
    harness = StoreHarness(StoreConfig(v2_segment_entries=64))
    commit = harness.group_commit
    queue = harness.open_queue()
    messages = [make_message(counter) for counter in range(64 * (segments + 2))]

    def insert(first: int, end: int) -> None:
        seq_ids = [SeqId(number) for number in range(first, end)]
        queue.insert(seq_ids, messages[first:end], [message.envelope() for message in messages[first:end]])

    insert(0, 64 * segments)
    harness.sync()
    for turn in range(1, 33):
        collected_in = commit.open_generation
        queue.remove([SeqRange(SeqId(64 * number + turn), SeqId(64 * number + turn + 1)) for number in range(segments)])
        insert(64 * segments + turn, 64 * segments + turn + 1)
        harness.sync()
        assert queue.engine.content.index.has_unflushed, "there is a rest in each turn"
        # The next are on their way already, as under load.
        insert(64 * (segments + 1) + turn, 64 * (segments + 1) + turn + 1)
        assert queue.durable_generation >= collected_in - 1, "nobody who publishes waits for the end of all acks"
        assert commit.complete_generation >= collected_in - 1, "nor does compaction"
    harness.store.check_invariants()
