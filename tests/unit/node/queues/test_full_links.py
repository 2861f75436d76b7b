"""Consumers on a node to which nothing can be sent now: others are served, and they have their turn later."""

from __future__ import annotations

from typing import Any

from node.ids import NodeName
from node.queues.events import ConsumerSpec
from node.queues.queue_process import DISPATCH_BYTES_MAX
from node.queues.returns import RETURN_MAX
from tests.support.queue_bench import QueueBench, channel

N2 = NodeName("n2")
#: Of consumer 2.
THERE = channel(2, N2)


def consume_at_n2(bench: QueueBench, number: int, **fields: Any) -> None:
    """Those of `QueueBench.consume` are on n1, where the queue is."""
    bench.process.consume(channel(number, N2), ConsumerSpec("t", no_ack=False, exclusive=False, **fields))
    bench.check()


def bench_with_two(**arguments: Any) -> QueueBench:
    """Consumer 1 is here, consumer 2 on n2, which is full."""
    bench = QueueBench(**arguments)
    consume_at_n2(bench, 2)
    bench.consume(1)
    bench.full.add(N2)
    return bench


def drain_all(bench: QueueBench) -> None:
    while bench.drain() or bench.process.has_more:
        pass


def test_others_get_everything_as_long_as_it_is_full() -> None:
    bench = bench_with_two()
    bench.publish(4)
    assert bench.deliveries() == ["1.t: 1 2 3 4"]
    assert list(bench.process.waits_for) == [], "nothing is left for whoever waits"
    bench.full.clear()
    bench.publish(2)
    assert bench.deliveries() == ["2.t: 5", "1.t: 6"]


def test_what_only_they_can_take_waits_for_the_link_and_is_delivered_in_order() -> None:
    bench = bench_with_two()
    bench.process.cancel(channel(1), "t")
    bench.publish(2)
    assert bench.deliveries() == []
    assert list(bench.process.waits_for) == [N2]
    assert not bench.process.has_more, "to drain again and again would be in vain"
    bench.full.clear()
    bench.publish(1)
    assert bench.deliveries() == ["2.t: 1 2 3"]
    assert list(bench.process.waits_for) == []


def test_they_come_back_in_front_of_those_who_were_served_meanwhile() -> None:
    bench = bench_with_two()
    consume_at_n2(bench, 3)
    bench.publish(3)
    assert bench.deliveries() == ["1.t: 1 2 3"]
    bench.full.clear()
    bench.publish(3)
    assert bench.deliveries() == ["2.t: 4", "3.t: 5", "1.t: 6"]


def test_nobody_behind_the_first_of_a_turn_is_sent_anything_either() -> None:
    bench = QueueBench()
    bench.consume(1)
    consume_at_n2(bench, 2)
    bench.consume(3)
    bench.full.add(N2)
    bench.publish(4)
    assert bench.deliveries() == ["1.t: 1 3", "3.t: 2 4"]


def test_a_consumer_of_a_lower_priority_is_served_meanwhile() -> None:
    bench = QueueBench()
    consume_at_n2(bench, 2, priority=5)
    bench.consume(1)
    bench.full.add(N2)
    bench.publish(1)
    assert bench.deliveries() == ["1.t: 1"]
    bench.full.clear()
    bench.publish(2)
    assert bench.deliveries() == ["2.t: 2 3"]


def test_in_place_of_a_single_active_one_nobody_is_served() -> None:
    bench = bench_with_two(single_active_consumer=True)
    bench.publish(2)
    assert bench.deliveries() == []
    assert list(bench.process.waits_for) == [N2]
    bench.process.cancel(THERE, "t")
    assert bench.deliveries() == ["1.t: 1 2"], "the next one is active now"


def test_who_has_gone_is_waited_for_no_longer() -> None:
    bench = bench_with_two()
    bench.process.cancel(channel(1), "t")
    bench.publish(1)
    assert bench.deliveries() == []
    bench.process.channel_down(THERE)
    bench.check()
    assert list(bench.process.waits_for) == []
    bench.consume(1)
    assert bench.deliveries() == ["1.t: 1"]


def test_who_is_told_of_room_or_acknowledges_meanwhile_stands_once() -> None:
    bench = QueueBench()
    consume_at_n2(bench, 2, prefetch_count=2)
    bench.publish(1)
    assert bench.deliveries() == ["2.t: 1"]
    bench.full.add(N2)
    bench.publish(3)
    assert bench.deliveries() == []
    bench.process.ack(THERE, bench.storage.live[:1])
    bench.process.grant(THERE, "t", 1)
    bench.check()
    bench.full.clear()
    assert bench.deliveries() == ["2.t: 2 3"]


def test_a_queue_that_gives_nothing_to_anybody_waits_for_no_link() -> None:
    """Or it would be drained again and again for the room that it does not use."""
    bench = bench_with_two()
    bench.process.cancel(channel(1), "t")
    bench.publish(1)
    assert bench.deliveries() == []
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    assert bench.deliveries() == []
    assert list(bench.process.waits_for) == []
    bench.process.unseal()
    assert bench.deliveries() == []
    assert list(bench.process.waits_for) == [N2]


def test_nor_does_one_to_which_much_returns_in_steps() -> None:
    bench = bench_with_two()
    for _ in range(2):
        bench.publish(RETURN_MAX + 1, b"x")
        drain_all(bench)
        bench.process.grant(channel(1), "t", RETURN_MAX + 1)
    bench.publish(1)
    bench.process.channel_down(channel(1))
    bench.drain()
    assert bench.process.has_more
    assert list(bench.process.waits_for) == []
    drain_all(bench)
    assert list(bench.process.waits_for) == [N2]


def test_what_waits_for_a_link_counts_as_ready() -> None:
    bench = bench_with_two(max_length=2, overflow="drop-head")
    bench.process.cancel(channel(1), "t")
    bench.publish(3)
    bench.full.clear()
    assert bench.deliveries() == ["2.t: 2 3"]


def test_a_large_batch_goes_past_the_queue_until_it_is_enough_for_one_drain() -> None:
    """So the link is asked before more of it goes."""
    bench = QueueBench()
    for number in range(6):
        consume_at_n2(bench, number)
    bench.publish(6, bytes(DISPATCH_BYTES_MAX // 2))
    assert bench.process.has_more
    assert [len(bench.deliveries()), len(bench.deliveries()), len(bench.deliveries())] == [4, 2, 0]
