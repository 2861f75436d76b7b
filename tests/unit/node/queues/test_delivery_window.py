"""How much may be on its way to a consumer that has not said that it was written: messages, and bytes."""

from __future__ import annotations

import pytest

from node.queues.backing_queue import Publication
from node.queues.consumers import Consumer, ConsumerSet, until_bytes
from node.queues.events import DELIVERY_WINDOW_BYTES, ConsumerSpec, Deliver
from node.queues.queue_process import DISPATCH_BYTES_MAX
from tests.support.messages import make_message, publications
from tests.support.queue_bench import QueueBench, channel
from tests.support.stores import StoreHarness

MIB = 1024 * 1024
BODY = bytes(MIB)


@pytest.mark.parametrize(("bytes_max", "count"), [(0, 1), (1, 1), (5, 1), (6, 3), (7, 3), (9, 4), (100, 4)], ids=str)
def test_a_share_ends_with_the_message_that_makes_it_full(bytes_max: int, count: int) -> None:
    bodies = (b"12345", b"", b"67", b"89")
    share = [Publication(make_message(counter, body=body), None) for counter, body in enumerate(bodies, 1)]
    assert until_bytes(share, bytes_max) == share[:count]


def delivered(bench: QueueBench) -> list[tuple[int, int]]:
    """Channel and number of messages of each share of all drains until there is no more."""
    shares: list[tuple[int, int]] = []
    while True:
        effects = [each for each in bench.process.drain() if isinstance(each, Deliver)]
        shares += [(each.channel.channel_id, len(each.deliveries)) for each in effects]
        bench.check()
        if not bench.process.has_more:
            return shares


def sum_to(shares: list[tuple[int, int]], number: int) -> int:
    return sum(count for to, count in shares if to == number)


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_that_does_not_read_is_given_some_megabytes_and_no_more(no_ack: bool) -> None:
    bench = QueueBench()
    bench.publish(20, BODY)
    bench.consume(no_ack=no_ack)
    assert sum_to(delivered(bench), 1) == DELIVERY_WINDOW_BYTES // MIB
    bench.publish(5, BODY)
    assert delivered(bench) == []
    bench.process.grant(channel(1), "t", 1)
    assert delivered(bench) == [], "the bytes of a share are free when all of it was written"
    bench.process.grant(channel(1), "t", 3)
    assert sum_to(delivered(bench), 1) == DELIVERY_WINDOW_BYTES // MIB


@pytest.mark.parametrize("no_ack", [False, True])
def test_past_the_queue_goes_no_more_either(no_ack: bool) -> None:
    bench = QueueBench()
    bench.consume(no_ack=no_ack)
    bench.publish(20, BODY)
    assert sum_to(delivered(bench), 1) == DELIVERY_WINDOW_BYTES // MIB
    assert bench.process.ready == 20 - DELIVERY_WINDOW_BYTES // MIB


def test_one_message_goes_out_however_big_it_is() -> None:
    bench = QueueBench()
    bench.consume()
    bench.publish(2, bytes(2 * DELIVERY_WINDOW_BYTES))
    assert delivered(bench) == [(1, 1)]
    bench.process.grant(channel(1), "t", 1)
    assert delivered(bench) == [(1, 1)]


def test_small_messages_are_bounded_by_their_number_as_before_and_prefetch_still_counts() -> None:
    bench = QueueBench()
    bench.publish(3_000, b"x")
    bench.consume(1)
    bench.consume(2, prefetch_count=7)
    shares = delivered(bench)
    assert (sum_to(shares, 1), sum_to(shares, 2)) == (2_000, 7)


def test_a_prefetch_below_the_window_is_honoured_for_big_messages() -> None:
    bench = QueueBench()
    bench.publish(5, BODY)
    bench.consume(1, prefetch_count=2)
    assert sum_to(delivered(bench), 1) == 2


def test_several_consumers_have_a_window_each_and_get_equal_shares() -> None:
    bench = QueueBench()
    bench.publish(40, BODY)
    for number in (1, 2, 3):
        bench.consume(number)
    shares = delivered(bench)
    window = DELIVERY_WINDOW_BYTES // MIB
    for number in (1, 2, 3):
        assert window <= sum_to(shares, number) <= window + 1
    bench.process.grant(channel(2), "t", sum_to(shares, 2))
    again = delivered(bench)
    assert sum_to(again, 2) >= window
    assert {to for to, _ in again} == {2}


def test_one_drain_takes_a_bounded_number_of_bytes_into_memory() -> None:
    bench = QueueBench()
    bench.publish(40, BODY)
    for number in range(1, 7):
        bench.consume(number)
    while True:
        got = [effect for effect in bench.process.drain() if isinstance(effect, Deliver)]
        size = sum(len(each.message.body) for effect in got for each in effect.deliveries)
        assert size <= DISPATCH_BYTES_MAX
        if not bench.process.has_more:
            break


def test_of_messages_on_disk_no_more_is_read_than_can_be_delivered() -> None:
    harness = StoreHarness()
    queue = harness.open_queue()
    queue.publish(publications(1, 20, body=BODY))
    queue.engine.paging.target_ram_count = 0
    while queue.engine.paging.page_out():
        pass
    harness.sync()
    got = queue.fetch(256, True, 4 * MIB)
    assert len(got) == 4
    assert queue.status().in_ram <= 5, "the four, and what one read brings"


def test_grants_beyond_what_is_under_way_are_worth_nothing() -> None:
    bench = QueueBench()
    bench.consume()
    bench.process.grant(channel(1), "t", 10**9)
    bench.publish(3_000, b"x")
    assert sum_to(delivered(bench), 1) == 2_000


@pytest.mark.parametrize(("in_flight_bytes", "taken_bytes"), [((0, 0), 0), ((7, 5), 7), ((5, 7), 7)])
def test_a_turn_has_what_the_fuller_window_has_left(in_flight_bytes: tuple[int, int], taken_bytes: int) -> None:
    """All of the turn may go to one of its consumers."""
    consumers = ConsumerSet(single_active=False)
    for number, size_bytes in enumerate(in_flight_bytes):
        consumer = Consumer(channel(number), ConsumerSpec("t", no_ack=False, exclusive=False))
        consumer.in_flight_bytes = size_bytes
        consumers.add(consumer)
    turn = consumers.take_turn(2)
    assert turn is not None
    assert turn.bytes_max == DELIVERY_WINDOW_BYTES - taken_bytes
