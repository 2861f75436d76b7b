"""A purge gives the references to the shared store back in steps, through crashes, stops and everything else."""

from __future__ import annotations

from itertools import count, pairwise

import pytest

from node.ids import QueueId, QueueName, SeqId
from node.queues.local_replica import LocalReplica
from node.store.disk.simulated import CrashStyle
from node.store.formats.record import SLOT_BYTES
from node.store.index.v2.index import QueueIndexV2
from node.store.shared.config import StoreConfig
from tests.support.backing_queue_contract import counters
from tests.support.index_driver import V1, V2, IndexDriver, IndexKind
from tests.support.messages import make_message, publications
from tests.support.stores import StoreHarness

OTHER_ID, OTHER_NAME = QueueId(8), QueueName("/", "audit")
BIG = b"b" * 90
STEP = 4
#: Of these the first 10 are in the other queue as well.
MESSAGES = 100


@pytest.fixture(params=[1, 2])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreHarness:
    monkeypatch.setattr("node.store.index.owed_references.OWED_PER_FLUSH", STEP)
    monkeypatch.setattr("node.store.index.v2.index.ACK_SEGMENTS_MAX", 1)
    config = StoreConfig(
        queue_version=request.param,
        embed_below_bytes=60,
        v1_segment_entries=16,
        v1_journal_entries_max=40,
        v2_segment_entries=16,
    )
    return StoreHarness(config)


def fill(harness: StoreHarness) -> tuple[LocalReplica, LocalReplica]:
    """Big messages in batches, and some of them in another queue; the third is unacked. All is durable."""
    queue, other = harness.open_queue(), harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
    other.publish(publications(1, 10, body=BIG))
    for first in range(1, MESSAGES + 1, 10):
        queue.publish(publications(first, 10, body=BIG))
        harness.sync()
    deliveries = queue.fetch(3, ack_required=True)
    queue.ack([delivery.seq_id for delivery in deliveries[:2]])
    harness.sync()
    return queue, other


def filled(count: int, *, segment_entries: int) -> tuple[StoreHarness, LocalReplica]:
    """A queue of version 2 with so many big messages."""
    harness = StoreHarness(StoreConfig(embed_below_bytes=60, v2_segment_entries=segment_entries))
    queue = harness.open_queue()
    queue.publish(publications(1, count, body=BIG))
    harness.sync()
    return harness, queue


def messages(harness: StoreHarness) -> int:
    return harness.store.shared_status().messages


def flush_all(harness: StoreHarness) -> list[int]:
    """How many messages the store has before, and after each flush."""
    found = [messages(harness)]
    while harness.store.has_unflushed:
        harness.store.flush_writes()
        harness.store.check_invariants()
        found.append(messages(harness))
        assert len(found) < 1000, "it comes to an end"
    return found


def check(harness: StoreHarness, other: LocalReplica, expected: int, counted: int | None = None) -> None:
    """What is left is there, and nothing else, also when the files are counted: so many, or ``counted``."""
    assert messages(harness) == expected
    assert counters(other.fetch(99, True)) == list(range(1, 11))
    other.requeue_all()
    harness.store.check_invariants()
    # The process dies, the machine does not.
    harness.start()
    assert messages(harness) == (expected if counted is None else counted)


def test_a_purge_reads_nothing_and_every_flush_gives_some_back(harness: StoreHarness) -> None:
    queue, other = fill(harness)
    before = harness.disk.reads
    assert queue.purge() == MESSAGES - 3
    assert harness.disk.reads == before
    found = flush_all(harness)
    assert (found[0], found[-1]) == (MESSAGES, 10)
    assert max(before - after for before, after in pairwise(found)) == STEP
    queue.requeue_all()
    assert counters(queue.fetch(9, True)) == [3]
    check(harness, other, 10)


def test_publishing_on_does_not_hurry_it(harness: StoreHarness) -> None:
    """Also when journals fill up meanwhile: then what the older one owes is due, and no more."""
    queue, other = fill(harness)
    queue.purge()
    found = [messages(harness)]
    for first in range(1000, 1200, 10):
        queue.publish(publications(first, 10))
        harness.store.flush_writes()
        harness.store.check_invariants()
        found.append(messages(harness))
    assert max(before - after for before, after in pairwise(found)) <= STEP + harness.config.v1_journal_entries_max
    flush_all(harness)
    assert queue.ready == 200
    queue.purge()
    flush_all(harness)
    check(harness, other, 10)


def test_a_purge_around_unacked_messages_zeroes_few_segments_at_a_time(harness: StoreHarness) -> None:
    """One message is left in each segment, so none of them is deleted."""
    queue, other = fill(harness)
    rest = queue.fetch(MESSAGES, True)
    queue.requeue([each.seq_id for each in rest if each.seq_id % 16 != 5])
    flush_all(harness)
    queue.purge()
    flushes = 0
    while harness.store.has_unflushed:
        before = harness.disk.reads
        harness.store.flush_writes()
        harness.store.check_invariants()
        flushes += 1
        # The journals of version 1 have every ack at once, and its files are read by the references.
        assert harness.disk.reads - before <= STEP
    assert flushes > MESSAGES // 16
    queue.requeue_all()
    left = list(range(6, MESSAGES + 1, 16))
    assert counters(queue.fetch(99, True)) == sorted([3, *left])
    queue.requeue_all()
    found = flush_all(harness)
    assert found[-1] == len({3, *left} | set(range(1, 11)))
    check(harness, other, found[-1])


@pytest.mark.parametrize("style", CrashStyle)
def test_a_crash_in_the_middle_loses_no_reference_and_keeps_none(harness: StoreHarness, style: CrashStyle) -> None:
    for flushes in count():
        harness.__init__(harness.config)  # type: ignore[misc]  # a new disk
        queue, _ = fill(harness)
        queue.purge()
        for _ in range(flushes):
            harness.store.flush_writes()
            if flushes % 3 == 0:
                harness.sync()
        is_through = not harness.store.has_unflushed
        queue = harness.crash(style, seed=flushes)
        found = {each.message.msg_id for each in queue.fetch(999, True)}
        other = harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True)
        found |= {each.message.msg_id for each in other.fetch(99, True)}
        assert messages(harness) == len(found)
        harness.store.check_invariants()
        if is_through:
            return


@pytest.mark.parametrize("flushes", [0, 1, 5, 9])
def test_a_clean_stop_in_the_middle_gives_the_rest_back(harness: StoreHarness, flushes: int) -> None:
    queue, _ = fill(harness)
    queue.purge()
    for _ in range(flushes):
        harness.store.flush_writes()
    queue = harness.restart()
    assert harness.store.store_recovery.clean
    assert messages(harness) == 10
    assert counters(queue.fetch(9, True)) == [3]
    check(harness, harness.store.open_queue(OTHER_ID, OTHER_NAME, durable=True), 10)


@pytest.mark.parametrize("flushes", [0, 1, 5, 9])
def test_a_deletion_takes_over(harness: StoreHarness, flushes: int) -> None:
    queue, other = fill(harness)
    queue.purge()
    for _ in range(flushes):
        harness.store.flush_writes()
    queue.delete()
    harness.sync()
    for _ in range(100):
        harness.store.maintain(0)
    assert not harness.disk.list(f"{harness.store.directory}/deleting")
    check(harness, other, 10)


@pytest.mark.parametrize("flushes", [0, 1, 5, 9])
def test_positions_may_be_used_again_at_once(harness: StoreHarness, flushes: int) -> None:
    """A mirror whose tail is replaced."""
    queue, other = fill(harness)
    queue.purge()
    for _ in range(flushes):
        harness.store.flush_writes()
    again = {SeqId(seq_id): make_message(1000 + seq_id, body=BIG) for seq_id in range(10, MESSAGES + 20, 3)}
    queue.insert(list(again), list(again.values()), [message.envelope() for message in again.values()])
    flush_all(harness)
    for seq_id in range(1, MESSAGES, 4):
        queue.publish(publications(2000 + seq_id, 4, body=BIG))
        harness.sync()
    flush_all(harness)
    assert queue.read(list(again)) == [(seq_id, message.envelope()) for seq_id, message in again.items()]
    assert messages(harness) == 10 + len(again) + MESSAGES
    queue.purge()
    flush_all(harness)
    check(harness, other, 10)


@pytest.mark.parametrize("flushes", [0, 1, 5, 9])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_conversion_goes_its_way(harness: StoreHarness, flushes: int, is_before: bool) -> None:
    queue, other = fill(harness)
    version = 3 - harness.config.queue_version

    def convert(ticks: int) -> None:
        queue.set_index_version(version)
        for tick in range(ticks):
            harness.store.maintain(tick)
            harness.sync()
            queue.check_invariants()

    if is_before:
        convert(2)
    queue.purge()
    for _ in range(flushes):
        harness.store.flush_writes()
    convert(60)
    assert queue.backing_queue_status()["version"] == version
    assert not queue.engine.wants_maintenance
    flush_all(harness)
    check(harness, other, 10)


def test_a_full_disk_hinders_no_reference_from_being_given_back(harness: StoreHarness) -> None:
    queue, other = fill(harness)
    queue.purge()
    harness.disk.capacity_bytes = harness.disk.used_bytes
    for _ in range(3):
        harness.store.flush_writes()
    queue.publish(publications(500, 3, body=BIG))
    for _ in range(50):
        harness.store.flush_writes()
        harness.store.maintain(0)
    harness.store.check_invariants()
    harness.disk.capacity_bytes += 1 << 20
    harness.store.maintain(0)
    flush_all(harness)
    assert queue.ready == 3
    check(harness, other, 13)


def test_a_queue_comes_to_rest_when_a_full_journal_has_dropped_what_was_to_be_deleted() -> None:
    harness = StoreHarness(StoreConfig(queue_version=1, v1_segment_entries=8, v1_journal_entries_max=64))
    queue = harness.open_queue()
    for first in range(1, 161, 8):
        queue.publish(publications(first, 8))
        harness.sync()
    queue = harness.restart()
    queue.purge()
    harness.store.flush_writes()
    assert len(harness.disk.list(harness.queue_directory)) > 2, "more than one flush deletes"
    queue.publish(publications(161, 64))
    harness.store.flush_writes()
    harness.sync()
    flush_all(harness)
    assert harness.restart().ready == 64


def test_what_a_full_disk_has_interrupted_goes_on_when_nothing_is_written_any_more() -> None:
    """A mirror gets an early position again, which keeps segments behind it from being deleted."""
    harness, queue = filled(97, segment_entries=8)
    queue.purge()
    harness.store.flush_writes()
    harness.disk.full_for = ".rdq"
    message = make_message(500, body=BIG)
    queue.insert([SeqId(3)], [message], [message.envelope()])
    harness.store.flush_writes()
    assert queue.is_disk_full
    harness.disk.full_for = None
    queue.ack([delivery.seq_id for delivery in queue.fetch(9, True)])
    flush_all(harness)
    assert messages(harness) == 0
    harness.start()
    assert harness.open_queue().ready == 0


def test_acks_that_wait_go_with_their_segment() -> None:
    """A mirror that was purged gets an early position again in the same turn."""
    harness, queue = filled(97, segment_entries=8)
    queue.purge()
    message = make_message(500, body=BIG)
    queue.insert([SeqId(3)], [message], [message.envelope()])
    flush_all(harness)
    assert [delivery.seq_id for delivery in queue.fetch(9, True)] == [3]
    assert messages(harness) == 1


def test_a_deletion_skips_no_more_than_what_is_damaged() -> None:
    harness, queue = filled(100, segment_entries=128)
    harness.disk.flip_bit(f"{harness.queue_directory}/0.qi", 64 + 32 * 5 + 20, 3)
    queue.delete()
    harness.sync()
    for _ in range(9):
        harness.store.maintain(0)
    assert not harness.disk.list(f"{harness.store.directory}/deleting")
    assert messages(harness) == 1


def test_slots_that_wait_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.index.owed_references.OWED_PER_FLUSH", 1)
    monkeypatch.setattr("node.store.index.v2.index.OWED_BYTES_MAX", 40 * SLOT_BYTES)
    harness = StoreHarness(StoreConfig(embed_below_bytes=60, v2_segment_entries=8))
    queue, _ = fill(harness)
    rest = queue.fetch(MESSAGES, True)
    # Half of the segments go, of the others one message stays.
    queue.requeue([each.seq_id for each in rest if each.seq_id < 48 or each.seq_id % 8 != 5])
    flush_all(harness)
    queue.purge()
    index = queue.engine.content.index
    assert isinstance(index, QueueIndexV2)
    while harness.store.has_unflushed:
        harness.store.flush_writes()
        assert index._owed.memory_bytes <= (40 + 8) * SLOT_BYTES
    left = [name for name in harness.disk.list(harness.queue_directory) if name.endswith(".qi")]
    # Of the first one a delivery is unacked, as of the second half.
    assert sorted(left) == sorted(f"{number}.qi" for number in (0, *range(6, 13)))


def test_what_is_damaged_keeps_its_reference_until_the_store_counts_anew() -> None:
    """(With version 1 it takes the queue out of service, like any damage that is read.)"""
    harness = StoreHarness(StoreConfig(embed_below_bytes=60, v2_segment_entries=16))
    queue, other = fill(harness)
    harness.disk.flip_bit(f"{harness.queue_directory}/2.qi", 64 + 32 * 5 + 20, 3)
    queue.purge()
    flush_all(harness)
    assert not queue.engine.has_failed
    assert messages(harness) == 11
    check(harness, other, 11, counted=10)


@pytest.mark.parametrize("kind", [V1, V2], ids=["v1", "v2"])
def test_an_index_that_is_given_up_in_between_owes_nothing_any_more(
    kind: IndexKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.store.index.owed_references.OWED_PER_FLUSH", STEP)
    driver = IndexDriver(kind)
    driver.publish(60, big=True)
    driver.sync()
    driver.index.settle_range(1, 60, is_sized=False)
    driver.index.flush(driver.next_seq_id)
    given_back = [driver.index.has_unflushed]
    driver.index.abandon()
    assert [*given_back, driver.index.has_unflushed] == [True, False]
    assert driver.index.memory_bytes == IndexDriver(kind).index.memory_bytes
