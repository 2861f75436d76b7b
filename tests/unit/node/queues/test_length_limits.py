"""What the length limits do to a queue that is above them: how much goes, when, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.messages import Ops, SettleOp
from node.ids import Epoch, SeqId
from node.queues.length_limits import DROP_AT_ONCE, DROP_MAX
from node.queues.options import queue_options
from node.queues.queue_process import DISPATCH_MAX, QueueProcess
from node.queues.stages import LOAD_MESSAGES
from node.store.index.index import QueueIndex
from node.store.shared.config import StoreConfig
from tests.support.amounts import slow
from tests.support.mirror_pair import N2, QUEUE, Pair
from tests.support.queue_bench import QueueBench, channel, message, queue_record
from tests.support.stores import StoreHarness

REJECTS = ("reject-publish", "reject-publish-dlx")


def drain_all(bench: QueueBench) -> int:
    """Turns until there is nothing more to do."""
    turns = 1
    bench.drain()
    while bench.process.has_more:
        bench.drain()
        turns += 1
    return turns


# --- overflow reject-publish: what was accepted stays


@pytest.mark.parametrize("overflow", REJECTS)
def test_a_requeue_above_the_limit_drops_nothing_and_the_next_publish_is_refused(overflow: str) -> None:
    bench = QueueBench(max_length=2, overflow=overflow)
    bench.consume(prefetch_count=2)
    bench.publish(4)
    assert bench.drain() == ["1.t: 1 2", "confirm 1 2 3 4"]
    bench.process.cancel(channel(1), "t")
    bench.requeue(1, 1, 2)
    assert bench.ready == [1, 2, 3, 4]
    bench.publish(1)
    assert bench.drain() == ["reject 5"]
    assert bench.process.get(channel(2), no_ack=True) is not None
    assert bench.process.get(channel(2), no_ack=True) is not None
    bench.publish(1)
    assert bench.drain() == ["reject 6"], "at the limit is full"
    assert bench.process.get(channel(2), no_ack=True) is not None
    bench.publish(1)
    assert bench.drain() == ["confirm 7"]


@pytest.mark.parametrize("overflow", REJECTS)
def test_what_a_dead_channel_held_stays_above_the_limit(overflow: str) -> None:
    bench = QueueBench(max_length=2, overflow=overflow)
    bench.consume(prefetch_count=2)
    bench.publish(4)
    bench.process.channel_down(channel(1))
    assert bench.ready == [1, 2, 3, 4]


@pytest.mark.parametrize("overflow", REJECTS)
@pytest.mark.parametrize("limit", [{"max-length": 1}, {"max-length-bytes": 2}])
def test_a_policy_that_lowers_the_limit_drops_nothing(overflow: str, limit: dict[str, int]) -> None:
    bench = QueueBench(overflow=overflow)
    bench.publish(4)
    bench.process.set_options(queue_options({"x-overflow": overflow}, limit))
    assert bench.ready == [1, 2, 3, 4]
    bench.publish(1)
    assert bench.drain() == ["confirm 1 2 3 4", "reject 5"]
    bench.process.set_options(queue_options({}, {**limit, "overflow": "drop-head"}))
    assert bench.ready == [4] if "max-length" in limit else [3, 4], "as soon as the policy says drop-head it does"


@pytest.mark.parametrize("overflow", REJECTS)
def test_of_one_batch_only_what_fits_is_taken(overflow: str) -> None:
    """By number the first ones; by bytes whatever still has room, as if they had come one by one."""
    bench = QueueBench(max_length=3, overflow=overflow)
    bench.publish(5)
    assert bench.drain() == ["confirm 1 2 3", "reject 4 5"]
    bench = QueueBench(max_length_bytes=10, overflow=overflow)
    bodies = [b"1234", b"1234", b"123", b"12", b"", b"1"]
    messages = [message(number, body) for number, body in enumerate(bodies, 1)]
    bench.process.publish(channel(1), messages, range(1, 7))
    assert bench.drain() == ["confirm 1 2 4 5", "reject 3 6"]
    bench = QueueBench(max_length=3, max_length_bytes=8, overflow=overflow)
    bench.process.publish(channel(1), messages, range(1, 7))
    assert bench.drain() == ["confirm 1 2 5", "reject 3 4 6"], "what one limit refuses takes no room of the other"


@pytest.mark.parametrize("overflow", REJECTS)
def test_a_queue_of_length_zero_refuses_everything_even_if_a_consumer_waits(overflow: str) -> None:
    bench = QueueBench(max_length=0, overflow=overflow)
    bench.consume()
    bench.publish(2)
    assert bench.drain() == ["reject 1 2"]


@pytest.mark.parametrize("overflow", REJECTS)
def test_what_is_sent_again_goes_to_a_waiting_consumer_flagged(overflow: str) -> None:
    """An earlier master may have delivered it."""
    bench = QueueBench(max_length=5, overflow=overflow)
    bench.consume()
    bench.process.publish(channel(1000), [message(1)], [1], is_resent=True)
    assert bench.deliveries() == ["1.t: 1*"]


@pytest.mark.parametrize(
    ("limit", "left"), [({"max_length": 0}, []), ({"max_length": 1}, [5]), ({"max_length_bytes": 1}, [5])]
)
def test_nothing_that_is_sent_again_is_dropped_while_a_consumer_waits(limit: dict[str, Any], left: list[int]) -> None:
    bench = QueueBench(**limit)
    bench.consume(prefetch_count=3)
    bench.process.publish(channel(1000), [message(number) for number in range(1, 6)], range(1, 6), is_resent=True)
    assert bench.drain() == ["1.t: 1* 2* 3*", "confirm 1 2 3 4 5"]
    assert bench.ready == left, "the limit is kept of what nobody can take"


def test_a_promoted_mirror_keeps_what_is_above_the_limit() -> None:
    pair = Pair().up().quiet()
    options = queue_options({"x-max-length": 2, "x-overflow": "reject-publish"})
    process = QueueProcess(queue_record(), pair.master, options)
    process.publish(channel(1), [message(1), message(2)], [0, 0])
    for counter in (3, 4):  # two are held by somebody while two more come
        held = process.get(channel(2), no_ack=False)
        assert held is not None
        process.publish(channel(1), [message(counter)], [0])
    pair.quiet()
    record = MastershipRecord(QUEUE, Epoch(2), N2)
    successor = QueueProcess(queue_record(), pair.mirror.promote(N2, record), options)
    assert successor.ready == 4
    successor.publish(channel(3), [message(1, from_origin=3)], [1])
    successor.requeue(channel(3), [])
    assert successor.ready == 4
    assert not successor.has_more


# --- overflow drop-head: much goes in steps


def test_a_small_excess_goes_at_once() -> None:
    bench = QueueBench()
    bench.publish(DROP_AT_ONCE)
    bench.process.set_options(queue_options({}, {"max-length": 0}))
    assert bench.ready == []
    assert not bench.process.has_more


def test_a_large_excess_goes_with_the_drains_oldest_first() -> None:
    bench = QueueBench()
    bench.publish(10_000)
    bench.process.set_options(queue_options({}, {"max-length": 10}))
    assert bench.process.ready == 10_000 - DROP_AT_ONCE
    assert drain_all(bench) == -(-(9_990 - DROP_AT_ONCE) // DROP_MAX)
    assert bench.ready == list(range(9_991, 10_001))


def test_publishes_meanwhile_are_taken_and_the_excess_shrinks_all_the_same() -> None:
    bench = QueueBench()
    bench.publish(5_000)
    bench.process.drain()
    bench.process.set_options(queue_options({}, {"max-length": 100}))
    before = bench.process.ready
    for _ in range(10):
        bench.publish(200)
        assert bench.process.ready == before - 200, "a publish drops twice what it brings"
        before = bench.process.ready
    drain_all(bench)
    assert bench.ready == list(range(6_901, 7_001))


def test_a_consumer_gets_what_it_can_take_before_anything_is_dropped() -> None:
    bench = QueueBench()
    bench.publish(3_000)
    bench.process.set_options(queue_options({}, {"max-length": 3_000}))
    bench.consume(prefetch_count=1_000)
    bench.process.set_options(queue_options({}, {"max-length": 10}))
    dropped_at_once = bench.process.ready
    assert dropped_at_once == 3_000 - DROP_AT_ONCE, "nothing was under way, and a policy does not wait"
    got = 0
    for _ in range(1_000 // DISPATCH_MAX):
        got += len(bench.deliveries()[0].split()) - 1
        assert bench.process.ready + got == dropped_at_once, "as long as somebody takes messages nothing is dropped"
    drain_all(bench)
    assert bench.storage.unacked == 1_000
    assert bench.ready == list(range(2_991, 3_001))


def test_bytes_are_dropped_in_steps_as_well() -> None:
    bench = QueueBench()
    bench.publish(5_000, body=b"12345678")
    bench.process.drain()
    bench.publish(1, body=b"x" * 100)
    bench.process.set_options(queue_options({}, {"max-length-bytes": 120}))
    assert bench.process.ready == 5_001 - DROP_AT_ONCE
    assert drain_all(bench) == -(-(4_998 - DROP_AT_ONCE) // DROP_MAX)
    assert bench.ready == [4_999, 5_000, 5_001]


class CountedReads:
    """Counts what an index gives out: bodies read, and entries found, with the most in one call."""

    def __init__(self, index: QueueIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies = 0
        self.entries_max = 0
        read, entries = type(index).read, type(index).entries

        def counted_read(of: Any, wanted: Sequence[Any]) -> Any:
            self.bodies += len(wanted)
            return read(of, wanted)

        def counted_entries(of: Any, *arguments: Any) -> Any:
            found = entries(of, *arguments)
            self.entries_max = max(self.entries_max, len(found))
            return found

        monkeypatch.setattr(type(index), "read", counted_read)
        monkeypatch.setattr(type(index), "entries", counted_entries)


def long_paged_process(messages: int) -> tuple[StoreHarness, QueueProcess]:
    harness = StoreHarness(StoreConfig())
    local = harness.open_queue()
    process = QueueProcess(queue_record(), local)
    for first in range(1, messages + 1, 5_000):
        process.publish(channel(1), [message(each) for each in range(first, first + 5_000)], [0] * 5_000)
        local.engine.paging.target_ram_count = 0
        while local.engine.paging.page_out():
            pass
        process.drain()
        harness.sync()
    return harness, process


@pytest.mark.parametrize("total", [25_000, slow(105_000)])
def test_many_paged_messages_are_dropped_unread_in_bounded_turns(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The excess is known by its entries only, and of these a batch at a time."""
    left = 500
    harness, process = long_paged_process(total)
    local = process.backing_queue
    reads = CountedReads(local.engine.content.index, monkeypatch)  # type: ignore[attr-defined]
    process.set_options(queue_options({}, {"max-length": left}))
    turns, in_memory_max, before = 0, 0, process.ready
    while process.has_more:
        process.drain()
        turns += 1
        assert before - process.ready <= DROP_MAX, "one turn drops so many"
        before = process.ready
        stages = local.engine.content.stages  # type: ignore[attr-defined]
        in_memory_max = max(in_memory_max, stages.position_count)
    assert process.ready == left
    assert turns == -(-(total - left - DROP_AT_ONCE) // DROP_MAX)
    assert reads.bodies == 0
    assert reads.entries_max <= LOAD_MESSAGES
    assert in_memory_max <= 3 * LOAD_MESSAGES, "two segments and what is next"
    local.check_invariants()
    successor = harness.restart()
    assert (successor.ready, successor.first_live_seq_id) == (left, total - left)


def test_a_crash_in_the_middle_leaves_a_queue_that_goes_on_dropping() -> None:
    harness, process = long_paged_process(10_000)
    process.set_options(queue_options({}, {"max-length": 10}))
    process.drain()
    harness.sync()
    again = QueueProcess(queue_record(), harness.crash(), queue_options({}, {"max-length": 10}))
    assert again.ready > 10
    again.publish(channel(1), [message(1, from_origin=2)], [0])
    while again.has_more:
        again.drain()
    assert again.ready == 10


def test_mirrors_hear_of_the_drops_in_bounded_frames() -> None:
    pair = Pair().up().quiet()
    process = QueueProcess(queue_record(), pair.master)
    process.publish(channel(1), [message(each) for each in range(1, 4_001)], [0] * 4_000)
    pair.quiet()
    process.set_options(queue_options({}, {"max-length": 5}))
    while process.has_more:
        process.drain()
        frames = pair.to_mirror()
        settled = [
            range_.end - range_.first
            for frame in frames
            if isinstance(frame, Ops)
            for op in frame.ops
            if isinstance(op, SettleOp)
            for range_ in op.ranges
        ]
        assert sum(settled) <= DROP_MAX + DROP_AT_ONCE
        pair.to_master()
    assert pair.mirror.local.ready == 5
    assert pair.mirror.local.first_live_seq_id == SeqId(pair.mirror.local.next_seq_id - 5)
