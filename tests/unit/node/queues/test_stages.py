"""The five stages Q4, Q3, delta, Q2, Q1 by examples, driven through the local queue, with segments of 8 entries."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from node.ids import QueueId, QueueName, SeqId
from node.message import Message
from node.queues.local_replica import LocalReplica
from node.queues.paging import OPERATIONS_PER_LOOK
from node.queues.replica import SeqRange
from node.queues.stages import StageCounts
from node.store.disk.simulated import CrashStyle
from node.store.shared.config import StoreConfig
from tests.support.backing_queue_contract import counters
from tests.support.messages import publications
from tests.support.stores import StoreHarness


@pytest.fixture
def harness() -> StoreHarness:
    return StoreHarness(StoreConfig(v2_segment_entries=8, io_batch_messages=4, embed_below_bytes=100))


@pytest.fixture
def queue(harness: StoreHarness) -> LocalReplica:
    return harness.open_queue()


def want_in_memory(queue: LocalReplica, target: int | None) -> None:
    queue.engine.paging.target_ram_count = target
    while queue.engine.paging.page_out():
        pass
    queue.check_invariants()


def test_a_short_queue_is_all_alpha_in_q4(queue: LocalReplica) -> None:
    queue.publish(publications(1, 20))
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=0, q3=0, q4=20)


def test_what_is_beyond_the_target_goes_down_from_the_back_of_q4(queue: LocalReplica) -> None:
    queue.publish(publications(1, 20))
    want_in_memory(queue, 16)
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=0, q3=4, q4=16)
    want_in_memory(queue, 0)
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=12, q3=8, q4=0)


def test_what_is_beyond_the_target_goes_down_from_q1_first_and_no_more_than_that(queue: LocalReplica) -> None:
    queue.publish(publications(1, 8))
    want_in_memory(queue, 4)
    queue.engine.paging.target_ram_count = None
    queue.publish(publications(9, 3))
    assert queue.engine.stage_counts == StageCounts(q1=3, q2=0, delta=0, q3=4, q4=4)
    want_in_memory(queue, 3)
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=0, q3=8, q4=3)


def test_the_path_of_a_growing_queue_is_q1_q2_delta(queue: LocalReplica) -> None:
    queue.publish(publications(1, 20))
    want_in_memory(queue, 0)
    moved = [queue.engine.paging.moved]
    queue.publish(publications(21, 3))
    assert queue.engine.stage_counts == StageCounts(q1=3, q2=0, delta=12, q3=8, q4=0), "behind Q3 a newcomer enters Q1"
    want_in_memory(queue, 1)
    assert queue.engine.stage_counts == StageCounts(q1=1, q2=2, delta=12, q3=8, q4=0), "the oldest of Q1 go to Q2"
    moved.append(queue.engine.paging.moved)
    queue.publish(publications(24, 5))
    want_in_memory(queue, 0)
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=20, q3=8, q4=0), "and from Q2 to delta"
    moved.append(queue.engine.paging.moved)
    assert moved == [20 + 12, 32 + 2, 34 + 6 + 8], "bodies and positions: each costs time"
    assert counters(queue.fetch(99, ack_required=True)) == list(range(1, 29))


def test_q1_becomes_q4_when_nothing_is_left_before_it(queue: LocalReplica) -> None:
    queue.publish(publications(1, 8))
    want_in_memory(queue, 0)
    queue.engine.paging.target_ram_count = None
    queue.publish(publications(9, 4))
    assert queue.engine.stage_counts == StageCounts(q1=4, q2=0, delta=0, q3=8, q4=0)
    queue.fetch(8, ack_required=False)
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=0, q3=0, q4=4)
    queue.check_invariants()


def test_q2_joins_q3_with_the_last_of_delta(queue: LocalReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", 8)
    queue.publish(publications(1, 20))
    want_in_memory(queue, 0)
    queue.publish(publications(21, 3))
    want_in_memory(queue, 1)
    assert queue.engine.stage_counts == StageCounts(q1=1, q2=2, delta=12, q3=8, q4=0)
    queue.engine.paging.target_ram_count = None
    assert counters(queue.fetch(8, ack_required=False)) == list(range(1, 9))
    assert queue.engine.stage_counts == StageCounts(q1=1, q2=2, delta=4, q3=8, q4=0), (
        "Q3 empty: a batch is loaded from delta"
    )
    assert counters(queue.fetch(8, ack_required=False)) == list(range(9, 17))
    assert queue.engine.stage_counts == StageCounts(q1=1, q2=0, delta=0, q3=6, q4=0), (
        "it was the last of delta: Q2 follows"
    )
    queue.check_invariants()
    assert counters(queue.fetch(9, ack_required=False)) == list(range(17, 24))


def test_a_persistent_message_is_written_at_once_a_transient_one_under_pressure(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    queue.publish(publications(3, 2, persistent=False))
    harness.sync()
    recovered = harness.restart()
    assert counters(recovered.fetch(9, True)) == [1, 2]
    recovered.requeue_all()
    recovered.publish(publications(5, 2, persistent=False))
    want_in_memory(recovered, 0)
    assert recovered.status().in_ram == 0
    assert counters(recovered.fetch(9, True)) == [1, 2, 5, 6], "read back from disk, in order"
    report = harness.restart().recovery_report
    assert report is not None
    assert (report.messages, report.clean) == (2, True), "and gone after a restart"


@pytest.mark.parametrize("body", [b"small", b"big" * 50])
def test_transient_messages_of_a_queue_that_is_not_durable_leave_memory_too(harness: StoreHarness, body: bytes) -> None:
    queue = harness.open_queue(durable=False)
    queue.publish(publications(1, 30, body=body))
    assert not harness.disk.exists(harness.queue_directory), "while memory suffices it has no files"
    want_in_memory(queue, 0)
    harness.sync()
    assert queue.status().in_ram == 0
    assert counters(queue.fetch(30, ack_required=True)) == list(range(1, 31))
    queue.terminate()
    assert not harness.disk.exists(harness.queue_directory)


def test_what_a_crash_left_of_a_queue_that_is_not_durable_goes_when_it_is_opened(harness: StoreHarness) -> None:
    queue = harness.open_queue(durable=False)
    queue.publish(publications(1, 30))
    want_in_memory(queue, 0)
    harness.sync()
    harness.disk.sync_directory(harness.queue_directory.rpartition("/")[0])
    harness.disk.crash(CrashStyle.SUBSET, random.Random(3))
    assert harness.disk.exists(harness.queue_directory)
    harness.start()
    assert harness.open_queue(durable=False).ready == 0
    assert not harness.disk.exists(harness.queue_directory)


def test_nothing_of_a_message_is_in_memory_that_is_in_delta() -> None:
    harness = StoreHarness()
    queue = harness.open_queue()
    queue.set_lazy(True)
    sizes = []
    for first in range(1, 30_001, 1000):
        queue.publish(publications(first, 1000))
        harness.store.flush_writes()
        sizes.append(queue.status().memory_bytes)
    assert queue.engine.stage_counts.delta == 30_000 - 2000
    assert sizes[-1] - sizes[4] < 25_000 / 10, "less than a tenth of a byte for each further message"


# -- read-ahead


def read_all(harness: StoreHarness, per_fetch: int) -> int:
    """Reads that it takes to empty the queue."""
    queue = harness.restart()
    before = harness.disk.reads
    for second in range(100):
        harness.store.maintain(second * 1000)
        queue.fetch(per_fetch, ack_required=False)
    assert queue.ready == 0
    return harness.disk.reads - before


def test_a_fast_consumer_gets_bodies_read_ahead() -> None:
    harness = StoreHarness()
    harness.open_queue().publish(publications(1, 2000))
    assert read_all(harness, per_fetch=20) <= 60, "the rate grows, and with it what is read at a time"


def test_of_what_is_wanted_only_what_is_not_in_memory_is_read(queue: LocalReplica) -> None:
    queue.publish(publications(1, 40))
    want_in_memory(queue, 10)
    assert counters(queue.fetch(15, ack_required=False)) == list(range(1, 16))
    assert queue.engine.stage_counts.q4 == 0, "five bodies were read"


def test_for_a_consumer_that_is_slow_nothing_is_read_ahead(queue: LocalReplica) -> None:
    queue.publish(publications(1, 40))
    want_in_memory(queue, 0)
    queue.engine.paging.target_ram_count = None
    assert counters(queue.fetch(1, ack_required=False)) == [1]
    assert queue.engine.stage_counts.q4 == 0


def test_large_bodies_are_not_read_ahead() -> None:
    harness = StoreHarness()
    harness.open_queue().publish(publications(1, 100, body=bytes(13 * 1024)))
    assert read_all(harness, per_fetch=1) >= 100


# -- lazy


def test_a_lazy_queue_keeps_positions_of_a_batch_and_no_body(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.set_lazy(True)
    for first in range(1, 3001, 100):
        queue.publish(publications(first, 100, persistent=first % 200 == 1))
        harness.store.flush_writes()
    assert queue.status().in_ram == 0
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=1000, q3=2000, q4=0)
    assert counters(queue.fetch(3000, ack_required=True)) == list(range(1, 3001))


def test_a_queue_switches_to_lazy_and_back_without_losing_its_order(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.queues.stages.PAGE_OUT_MESSAGES", 10)
    queue = harness.open_queue()
    queue.publish(publications(1, 4000, persistent=False))
    queue.set_lazy(True)
    assert queue.status().in_ram == 4000, "the switch itself moves nothing"
    queue.publish(publications(4001, 10))
    assert queue.engine.wants_maintenance
    steps = 1
    while queue.engine.maintain():
        steps += 1
        queue.check_invariants()
    assert 190 < steps < 250, "what was read ahead may stay in memory"
    assert queue.status().in_ram <= 2048
    queue.set_lazy(False)
    queue.publish(publications(4011, 10))
    assert counters(queue.fetch(5000, ack_required=True)) == list(range(1, 4021))
    queue.check_invariants()


def test_what_comes_after_the_switch_to_lazy_waits_behind_what_is_still_in_memory(queue: LocalReplica) -> None:
    queue.publish(publications(1, 20))
    want_in_memory(queue, 0)
    queue.publish(publications(21, 3))
    queue.set_lazy(True)
    before = queue.status()
    queue.publish(publications(24, 2, body=b"1234567"))
    queue.check_invariants()
    after = queue.status()
    assert (after.in_ram - before.in_ram, after.ready_bytes - before.ready_bytes) == (2, 14)
    while queue.engine.maintain():
        queue.check_invariants()
    queue.check_invariants()
    assert queue.status().in_ram == 0
    assert counters(queue.fetch(99, ack_required=True)) == list(range(1, 26))


def test_a_queue_that_wakes_up_may_keep_more_though_nobody_sets_its_target_anew(queue: LocalReplica) -> None:
    def target() -> int:
        count = queue.backing_queue_status()["target_ram_count"]
        assert isinstance(count, int)
        return count

    queue.set_ram_duration_target(2.0)
    queue.ram_duration_s(0)
    assert target() == 0, "it is idle: nothing may stay"
    targets = []
    for second in range(1, 31):
        queue.publish(publications(100 * second, 100))
        queue.fetch(100, ack_required=False)
        queue.ram_duration_s(1000 * second)
        targets.append(target())
    assert targets == sorted(targets)
    assert 350 < targets[-1] <= 400, "a hundred came and a hundred went in each second"


def test_what_is_published_after_the_switch_to_lazy_is_on_disk_at_once(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 4, persistent=False))
    harness.store.flush_writes()
    assert queue.status().in_ram == 4
    assert not [name for name in harness.disk.list(harness.queue_directory) if name.endswith(".qi")]
    queue.set_lazy(True)
    queue.publish(publications(5, 4, persistent=False))
    harness.store.flush_writes()
    assert [name for name in harness.disk.list(harness.queue_directory) if name.endswith(".qi")] == ["0.qi"]
    assert queue.status().in_ram == 4, "those before the switch"
    queue.check_invariants()


def test_purged_messages_are_freed_in_steps(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.queues.stages.PAGE_OUT_MESSAGES", 10)
    queue = harness.open_queue()
    queue.publish(publications(1, 40))
    deliveries = queue.fetch(6, ack_required=True)
    queue.requeue([deliveries[0].seq_id])
    assert queue.purge() == 35
    queue.check_invariants()
    freed = [queue.engine.paging.moved]
    while queue.engine.wants_maintenance:
        queue.engine.maintain()
        freed.append(queue.engine.paging.moved)
    assert freed == [0, 10, 20, 30, 35]
    harness.sync()
    assert counters(harness.crash().fetch(99, ack_required=True)) == [2, 3, 4, 5, 6], "what is unacked stays"


# -- old positions


@pytest.mark.parametrize("target", [None, 0, 3])
def test_requeued_messages_return_to_their_places_in_every_stage(harness: StoreHarness, target: int | None) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 40))
    deliveries = queue.fetch(30, ack_required=True)
    queue.requeue([delivery.seq_id for delivery in deliveries[:20:2]])
    want_in_memory(queue, target)
    queue.publish(publications(41, 10))
    want_in_memory(queue, target)
    queue.requeue([delivery.seq_id for delivery in deliveries[1:20:2]])
    queue.check_invariants()
    want_in_memory(queue, target)
    queue.requeue_all()
    queue.check_invariants()
    delivered = queue.fetch(99, ack_required=True)
    assert counters(delivered) == list(range(1, 51))
    assert [delivery.redelivered for delivery in delivered] == [True] * 30 + [False] * 20


def test_many_paged_messages_return_without_their_bodies(queue: LocalReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that held a whole queue goes away: reading everything back would stop the loop and fill the memory."""
    monkeypatch.setattr("node.queues.stages.READ_AHEAD_MESSAGES", 10)
    queue.publish(publications(1, 100))
    deliveries = queue.fetch(90, ack_required=True)
    queue.requeue([delivery.seq_id for delivery in deliveries[:5]])
    queue.set_ram_duration_target(0.0)
    queue.engine.paging.page_out()
    queue.set_ram_duration_target(math.inf)
    queue.requeue([delivery.seq_id for delivery in deliveries[10:20]])
    queue.check_invariants()
    in_ram = queue.status().in_ram
    queue.requeue_all()
    queue.check_invariants()
    assert queue.status().in_ram <= in_ram
    assert counters(queue.fetch(999, ack_required=True)) == list(range(1, 101))


def test_what_returns_with_its_body_before_many_without_stays_in_memory(
    queue: LocalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.queues.stages.READ_AHEAD_MESSAGES", 10)
    queue.publish(publications(1, 40))
    first = [delivery.seq_id for delivery in queue.fetch(5, ack_required=True)]
    queue.fetch(20, ack_required=True)
    queue.requeue(first)
    queue.fetch(5, ack_required=True)
    queue.engine.paging._page_out_unacked(20)
    assert queue.requeue_all() == 25
    queue.check_invariants()
    assert queue.engine.stage_counts == StageCounts(q1=0, q2=0, delta=0, q3=35, q4=5)
    assert counters(queue.fetch(99, ack_required=True)) == list(range(1, 41))


def test_what_is_unacked_is_not_loaded_from_delta(queue: LocalReplica) -> None:
    """Requeued messages before them were paged out so far that delta reaches over them."""
    queue.publish(publications(1, 40))
    deliveries = queue.fetch(30, ack_required=True)
    queue.requeue([delivery.seq_id for delivery in deliveries[:20]])
    want_in_memory(queue, 0)
    assert queue.engine.stage_counts.delta > 10
    assert counters(queue.fetch(99, ack_required=True)) == [*range(1, 21), *range(31, 41)]
    queue.check_invariants()


@pytest.mark.parametrize("target", [None, 10, 0])
@pytest.mark.parametrize(("first", "end"), [(0, 60), (5, 25), (30, 55), (58, 99)])
def test_the_figures_after_a_removal_are_those_of_what_is_left(
    harness: StoreHarness, target: int | None, first: int, end: int
) -> None:
    """Wherever it was: the sizes of what is on disk only are read as it goes."""
    queue = harness.open_queue()
    alive: dict[int, Message] = {}
    for start in range(0, 60, 10):
        batch = publications(start + 1, 10, persistent=start % 20 == 0, body=bytes(start))
        alive |= {start + at: each.message for at, each in enumerate(batch)}
        queue.publish(batch)
        want_in_memory(queue, target)
    unacked = {delivery.seq_id for delivery in queue.fetch(8, ack_required=True)}
    gone = {seq_id: alive.pop(seq_id) for seq_id in range(first, min(end, 60))}
    assert queue.remove([SeqRange(SeqId(first), SeqId(end))]) == len(gone)
    queue.check_invariants()
    persistent = [message for message in alive.values() if message.persistent]
    status = queue.status()
    assert (status.ready, status.unacked) == (len(alive.keys() - unacked), len(alive.keys() & unacked))
    assert status.ready_bytes + status.unacked_bytes == sum(len(message.body) for message in alive.values())
    assert status.persistent == len(persistent)
    report = harness.restart().recovery_report
    assert report is not None
    assert (report.messages, report.body_bytes) == (len(persistent), sum(len(each.body) for each in persistent))


@pytest.mark.parametrize("how", ["publish", "publish delivered", "insert"])
def test_what_comes_takes_page_outs_along_and_nobody_else_is_needed(queue: LocalReplica, how: str) -> None:
    queue.engine.paging.target_ram_count = 100
    for first in range(1, 5001, 250):
        batch = publications(first, 250)
        if how == "publish":
            queue.publish(batch)
        elif how == "publish delivered":
            queue.publish_delivered(batch)
        else:
            messages = [each.message for each in batch]
            seq_ids = [SeqId(first - 1 + at) for at in range(250)]
            queue.insert(seq_ids, messages, [message.envelope() for message in messages])
        assert queue.status().in_ram <= 100 + OPERATIONS_PER_LOOK
    queue.check_invariants()


def test_whether_there_is_too_much_is_looked_at_once_in_so_many_operations(queue: LocalReplica) -> None:
    queue.engine.paging.target_ram_count = 0
    for first in (1, 1 + OPERATIONS_PER_LOOK):
        queue.publish(publications(first, OPERATIONS_PER_LOOK - 1))
        assert queue.status().in_ram == OPERATIONS_PER_LOOK - 1
        queue.publish(publications(first + OPERATIONS_PER_LOOK - 1, 1))
        assert queue.status().in_ram == 0


def test_what_is_fetched_takes_page_outs_along_as_well(queue: LocalReplica) -> None:
    """It is still in memory, unacked."""
    queue.publish(publications(1, 2 * OPERATIONS_PER_LOOK))
    queue.engine.paging.target_ram_count = 0
    queue.fetch(OPERATIONS_PER_LOOK - 1, ack_required=True)
    assert queue.status().in_ram == 2 * OPERATIONS_PER_LOOK
    queue.fetch(1, ack_required=True)
    assert queue.status().in_ram == 0
    queue.check_invariants()


def test_to_page_out_what_is_written_already_asks_for_no_write(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 40))
    harness.sync()
    want_in_memory(queue, 10)
    assert not harness.store.has_unflushed
    queue.publish(publications(41, 10, persistent=False))
    want_in_memory(queue, 0)
    assert harness.store.has_unflushed, "transient ones are written now"


def test_to_give_back_asks_for_a_write_only_if_something_returns_into_delta(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 40, persistent=False))
    harness.sync()
    seq_ids = [delivery.seq_id for delivery in queue.fetch(30, ack_required=True)]
    queue.requeue(seq_ids[:20])
    assert not harness.store.has_unflushed, "it is in memory again"
    want_in_memory(queue, 10)
    harness.sync()
    assert not harness.store.has_unflushed
    queue.requeue(seq_ids[20:])
    queue.check_invariants()
    assert harness.store.has_unflushed


@pytest.mark.parametrize("unacked", [10, 20])
def test_the_unacked_may_take_all_the_memory_there_is(queue: LocalReplica, unacked: int) -> None:
    """As many of them as may be in memory stay there, and of what is ready nothing does."""
    queue.publish(publications(1, unacked + 30))
    queue.fetch(unacked, ack_required=True)
    want_in_memory(queue, 10)
    assert queue.engine.stage_counts.q4 == 0
    assert queue.status().in_ram == 10


def test_a_transient_message_that_returns_into_delta_goes_to_disk(queue: LocalReplica) -> None:
    queue.publish(publications(1, 40, persistent=False))
    deliveries = queue.fetch(30, ack_required=True)
    queue.requeue([delivery.seq_id for delivery in deliveries[:20]])
    queue.engine.paging.target_ram_count = 10
    while queue.engine.paging.page_out():
        pass
    queue.set_ram_duration_target(math.inf)
    queue.publish(publications(41, 1))
    before = queue.status().in_ram
    queue.requeue([delivery.seq_id for delivery in deliveries[20:]])
    assert queue.status().in_ram <= before
    queue.check_invariants()
    assert counters(queue.fetch(99, ack_required=True)) == list(range(1, 42))


def test_the_oldest_pending_acks_lose_their_bodies_when_they_grow_faster(queue: LocalReplica) -> None:
    queue.publish(publications(1, 100))
    queue.ram_duration_s(0)
    queue.fetch(60, ack_required=True)
    queue.ram_duration_s(1000)
    want_in_memory(queue, 50)
    assert queue.status().in_ram <= 50
    assert queue.engine.stage_counts.q4 >= 32, "the ready ones were left alone as far as possible"
    assert queue.ack([SeqId(seq_id) for seq_id in range(60)]) == 60


@pytest.mark.parametrize(("acks_per_s", "ready_stay"), [(0, True), (100, False)])
def test_what_grows_faster_gives_way_first(queue: LocalReplica, acks_per_s: int, ready_stay: bool) -> None:
    """A hundred messages come in a second and as many go out; ready and unacked take as much memory."""
    queue.publish(publications(1, 200))
    queue.fetch(100, ack_required=True)
    for second in range(1, 20):
        queue.publish(publications(100 * second + 101, 100))
        queue.fetch(100, ack_required=True)
        unacked = list(queue.engine.content.unacked.messages)
        queue.ack([SeqId(seq_id) for seq_id in unacked[:acks_per_s]])
        queue.ram_duration_s(1000 * second)
    before = queue.engine.content.unacked.ram_count
    want_in_memory(queue, before + 60)
    given_up = before - queue.engine.content.unacked.ram_count
    assert given_up == (40 if ready_stay else 0)
    assert queue.engine.stage_counts.q4 == (100 if ready_stay else 60)


# -- a static queue beside a fast one


def test_a_static_queue_is_never_written_again(harness: StoreHarness) -> None:
    static = harness.open_queue()
    static.publish(publications(1, 100, body=b"static" * 3))
    fast = harness.store.open_queue(QueueId(8), QueueName("/", "fast"), True)
    harness.sync()
    before = {path: data for path, data in harness.disk.snapshot().items() if f"/{QueueId(7)}/" in path}
    for first in range(1001, 3001, 10):
        fast.publish(publications(first, 10))
        fast.ack([delivery.seq_id for delivery in fast.fetch(10, ack_required=True)])
        harness.sync()
    after = harness.disk.snapshot()
    assert {path: after[path] for path in before} == before
    assert sum("/8/" in path for path in after) < 10, "and the fast one keeps nothing that is settled"


@pytest.mark.parametrize("target", [None, 20, 0])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_removal_that_leaves_little_is_a_purge_that_reads_nothing_of_what_goes(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, target: int | None, is_restarted: bool
) -> None:
    """What a mirror does when its master purges: all but what is unacked there."""
    monkeypatch.setattr("node.queues.content.LEFT_MAX", 5)
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", 8)
    queue = harness.open_queue()
    for first in range(1, 400, 20):
        queue.publish(publications(first, 15, body=bytes(first % 50)))
        queue.publish(publications(first + 15, 5, body=b"transient", persistent=False))
        want_in_memory(queue, target)
    if is_restarted:
        queue = harness.restart()
    messages: dict[int, Message] = {each.seq_id: each.message for each in queue.fetch(400, ack_required=True)}
    queue.requeue_all()
    want_in_memory(queue, target)
    harness.sync()
    unacked = [each.seq_id for each in queue.fetch(3, ack_required=True)]
    kept = [unacked[1], 5, 60, 61, 380]
    ranges = [SeqRange(SeqId(low + 1), SeqId(high)) for low, high in pairwise([-1, *kept, 400])]
    kept = [seq_id for seq_id in kept if seq_id in messages]
    before = harness.disk.reads
    assert queue.remove(reversed(ranges)) == len(messages) - len(kept)
    assert harness.disk.reads - before <= 2 * len(kept), "no more than where something is left"
    queue.check_invariants()
    left = [messages[seq_id] for seq_id in kept]
    status = queue.status()
    assert (status.ready, status.unacked) == (len(left) - 1, 1)
    assert status.ready_bytes + status.unacked_bytes == sum(len(message.body) for message in left)
    assert status.persistent == sum(message.persistent for message in left)
    queue.requeue_all()
    assert [each.message for each in queue.fetch(400, ack_required=True)] == left
    harness.store.check_invariants()


@pytest.mark.parametrize("kept", [20, 21, 22])
def test_what_a_removal_leaves_behind_delta_comes_next_when_delta_is_gone(
    queue: LocalReplica, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Q2 and Q1 wait for what is on disk only; when that was removed nothing else would ever call for them."""
    monkeypatch.setattr("node.queues.content.LEFT_MAX", 5)
    queue.publish(publications(1, 20))
    want_in_memory(queue, 0)
    queue.publish(publications(21, 3))
    want_in_memory(queue, 1)
    assert queue.engine.stage_counts == StageCounts(q1=1, q2=2, delta=12, q3=8, q4=0)
    assert queue.remove([SeqRange(SeqId(0), SeqId(kept)), SeqRange(SeqId(kept + 1), SeqId(23))]) == 22
    queue.check_invariants()
    assert counters(queue.fetch(9, ack_required=False)) == [kept + 1]
