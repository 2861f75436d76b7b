"""Latencies in bins: what is read from them is near what was put in."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.judge.latency import BINS, FIRST_US, GROWTH, bin_of, quantile_us, upper_us

LATENCIES = st.integers(0, 3 * 3_600_000_000)


@given(LATENCIES)
def test_a_latency_is_below_the_end_of_its_bin_and_above_that_of_the_one_before(latency_us: int) -> None:
    number = bin_of(latency_us)
    assert 0 <= number < BINS
    assert latency_us <= upper_us(number) + 1 or number == BINS - 1
    assert number == 0 or latency_us >= upper_us(number - 1) - 1


@given(st.lists(LATENCIES, min_size=1, max_size=50), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_wrong_by_the_width_of_a_bin(latencies: list[int], share: float) -> None:
    read_us = quantile_us(Counter(map(bin_of, latencies)), share)
    exact_us = sorted(latencies)[max(int(-(-share * len(latencies) // 1)) - 1, 0)]
    assert read_us is not None
    assert exact_us / GROWTH - 2 <= read_us <= max(exact_us * GROWTH, FIRST_US) + 2


def test_counts_of_two_places_add_up() -> None:
    here, there = Counter(map(bin_of, [100, 200, 300])), Counter(map(bin_of, [400, 500]))
    assert quantile_us(here + there, 0.5) == upper_us(bin_of(300))


def test_without_any_there_is_none() -> None:
    assert quantile_us({}, 0.5) is None
    assert quantile_us({7: 0}, 0.5) is None


@pytest.mark.parametrize(("latency_us", "number"), [(0, 0), (FIRST_US - 1, 0), (FIRST_US, 1), (10**15, BINS - 1)])
def test_the_first_and_the_last_bin_have_one_end(latency_us: int, number: int) -> None:
    assert bin_of(latency_us) == number
