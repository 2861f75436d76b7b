"""Latencies as counts that can be added up, and what they say.

A latency falls in one of `BINS` bins, each `GROWTH` times as wide as the one before: so a value that is read from them
is wrong by no more than that, whatever it is, and a billion latencies are some dozens of numbers. The first holds all
below `FIRST_US`, the last all above its begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log

FIRST_US = 50
GROWTH = 1.1
#: The last begins at three hours.
BINS = 204


def bin_of(latency_us: int) -> int:
    """The number of its bin, from 0."""
    if latency_us < FIRST_US:
        return 0
    return min(int(log(latency_us / FIRST_US) / log(GROWTH)) + 1, BINS - 1)


def upper_us(number: int) -> int:
    """Where a bin ends; of the last, where it begins."""
    return round(FIRST_US * GROWTH ** min(number, BINS - 2))


def quantile_us(counts: Mapping[int, int], share: float) -> int | None:
    """The end of the bin up to which so large a share of all latencies lies; None if there are none."""
    total = sum(counts.values())
    if not total:
        return None
    wanted = max(ceil(share * total), 1)
    seen = 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= wanted:
            return upper_us(number)
    raise AssertionError("all of them together are as many as there are")
