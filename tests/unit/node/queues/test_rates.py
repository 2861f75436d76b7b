"""Rates of a queue, how long its messages in memory last, and how many may stay (semantics 3.3)."""

from __future__ import annotations

import math

import pytest

from node.queues.rates import HALF_LIFE_S, QueueRates, Rate
from node.store.shared.config import StoreConfig
from tests.support.messages import publications
from tests.support.stores import StoreHarness


def test_a_rate_forgets_half_in_a_half_life() -> None:
    rate = Rate()
    for _ in range(100):
        rate.add(1000)
        rate.roll(1.0)
    assert rate.per_s == pytest.approx(1000, rel=1e-3)
    rate.roll(HALF_LIFE_S)
    assert rate.per_s == pytest.approx(500, rel=1e-3)


def steady(messages_per_s: int) -> QueueRates:
    """A minute of so many messages in, out and acked."""
    rates = QueueRates()
    rates.duration_s(0, 0, 0)
    for second in range(1, 61):
        for rate in (rates.ingress, rates.egress, rates.ack_in, rates.ack_out):
            rate.add(messages_per_s)
        rates.duration_s(second * 1000, 0, 0)
    return rates


def test_the_duration_is_what_is_in_memory_over_the_rates() -> None:
    """(ready now + before + pending now + before) / (4 x sum of the four rates)."""
    rates = steady(100)
    rates.duration_s(60_001, 3000, 1000)
    assert rates.duration_s(60_001, 3000, 1000) == pytest.approx(8000 / (4 * 400), rel=0.02)


def test_before_the_first_look_nothing_was_in_memory() -> None:
    rates = QueueRates()
    rates.tick(0)
    rates.ingress.add(1000)
    assert rates.duration_s(1000, ram_ready=4, ram_pending=2) == 6 / (4 * rates.sum_per_s)


def test_messages_of_an_idle_queue_last_for_ever() -> None:
    assert QueueRates().duration_s(1000, 500, 0) == math.inf


def test_a_slow_queue_is_not_idle_before_a_message_in_some_minutes() -> None:
    """A message in two minutes is a rate of 0.008; three in five minutes are 0.01."""
    for seconds, is_idle in ((120, True), (25, False)):
        rates = QueueRates()
        rates.duration_s(0, 0, 0)
        for minute in range(1, 61):
            rates.ingress.add(1)
            duration_s = rates.duration_s(minute * seconds * 1000, 10, 0)
        assert math.isinf(duration_s) == is_idle
    assert duration_s == pytest.approx(20 / (4 / 25), rel=0.05)


def test_where_nothing_happened_the_rates_are_zero() -> None:
    rates = QueueRates()
    for second in range(3):
        rates.tick(1000 * second)
    assert rates.sum_per_s == 0.0


def test_rates_are_brought_up_to_date_once_a_second() -> None:
    rates = QueueRates()
    rates.tick(500)
    rates.ingress.add(1000)
    seen = []
    for now_ms in (500, 1000, 1499, 1500, 1501, 2499, 2500):
        rates.tick(now_ms)
        seen.append(rates.ingress.per_s)
    after_a_second = 1000 * (1 - 2 ** (-1 / HALF_LIFE_S))
    assert seen[:3] == [0, 0, 0]
    assert seen[3:6] == pytest.approx([after_a_second] * 3)
    assert seen[6] == pytest.approx(after_a_second * 2 ** (-1 / HALF_LIFE_S))


def test_what_is_asked_twice_in_a_moment_counts_once() -> None:
    rates = QueueRates()
    rates.duration_s(0, 0, 0)
    rates.ingress.add(10)
    assert rates.duration_s(0, 0, 0) == math.inf, "no time has passed: that is no rate"
    rates.duration_s(1000, 0, 0)
    assert rates.ingress.per_s == pytest.approx(10 * (1 - 2 ** (-1 / HALF_LIFE_S)))


def test_a_fast_queue_may_keep_more_than_a_slow_one() -> None:
    assert steady(1000).target_ram_count(2.0) == pytest.approx(8000, rel=0.01)
    assert steady(10).target_ram_count(2.0) == pytest.approx(80, abs=1)
    assert QueueRates().target_ram_count(2.0) == 0
    assert steady(10).target_ram_count(math.inf) is None


@pytest.mark.parametrize(("published", "on_disk_only"), [(19, 52), (20, 72)])
def test_a_target_justifies_more_positions_than_a_segment(published: int, on_disk_only: int) -> None:
    """Of 60 behind it 60 - 60 * 60 // (60 + 40) = 24, and nothing goes down for less than a batch of 4."""
    queue = StoreHarness(StoreConfig(v2_segment_entries=8, io_batch_messages=4)).open_queue()
    for first, count in ((1, 100), (101, published)):
        queue.publish(publications(first, count))
        queue.engine.paging.target_ram_count = 40
        while queue.engine.paging.page_out():
            pass
    assert queue.engine.stage_counts.delta == on_disk_only
