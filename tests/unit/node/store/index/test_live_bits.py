"""Sets of positions as bits: whatever a set looks like, its positions and runs come back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.index.live_bits import (
    between,
    bits_between,
    bits_of,
    by_segment,
    full_bits,
    keep_pieces,
    positions,
    runs,
    runs_of_bits,
)

ENTRIES = 4096
#: Of an index 2 segment, by themselves, in runs, and all kinds between.
ENTRY_SETS = st.one_of(
    st.sets(st.integers(0, ENTRIES - 1), max_size=40),
    st.sets(st.integers(0, ENTRIES // 64 - 1)).map(lambda at: {64 * a + b for a in at for b in range(64)}),
    st.sets(st.integers(0, ENTRIES - 1), max_size=200).map(lambda absent: set(range(ENTRIES)) - absent),
)


class Unwalked(list[int]):
    """Single ones may be looked at; there are too many to walk through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("walked through")

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        assert not isinstance(at, slice), "copied"
        return super().__getitem__(at)


class UnwalkedSet(set[int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("walked through")


@given(ENTRY_SETS, st.integers(0, 1 << 40).map(lambda number: number * ENTRIES))
def test_positions_are_those_that_were_put_in(entries: set[int], base: int) -> None:
    bits = sum(1 << entry for entry in entries)

    assert list(positions(bits, base)) == sorted(base + entry for entry in entries)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 511, 512, 513, 4095, 4096])
def test_any_density_is_found(count: int) -> None:
    """One bit in `_SPARSE` decides how they are looked for."""
    entries = [ENTRIES - 1 - at * (ENTRIES // count) for at in reversed(range(count))]

    assert list(positions(sum(1 << entry for entry in entries), 0)) == entries


@given(ENTRY_SETS.filter(bool))
def test_bits_are_the_same_as_the_positions(entries: set[int]) -> None:
    ascending = sorted(entries)

    assert bits_of(ascending, ENTRIES - 1) == sum(1 << entry for entry in entries)


@given(ENTRY_SETS.filter(bool))
def test_runs_cover_the_positions_and_do_not_touch(entries: set[int]) -> None:
    ascending = sorted(entries)

    found = runs(ascending)

    assert [first + at for first, count in found for at in range(count)] == ascending
    assert all(first + count < following for (first, count), (following, _) in pairwise(found))
    assert list(runs_of_bits(bits_of(ascending, ENTRIES - 1), 0)) == found


def test_a_run_costs_the_same_however_long_it_is() -> None:
    run = Unwalked(range(4090, 4096))

    assert runs(run) == [(4090, 6)]
    ((number, same),) = by_segment(run, 12)
    assert (number, same is run) == (0, True)
    assert positions(bits_of(run, ENTRIES - 1), 8192) == range(8192 + 4090, 8192 + 4096)


def test_of_nothing_there_are_no_runs() -> None:
    assert runs([]) == []
    assert list(runs_of_bits(0, 8)) == []


def test_positions_are_cut_at_segment_borders() -> None:
    assert by_segment([], 3) == []
    assert by_segment([6], 3) == [(0, [6])]
    assert by_segment([6, 7], 3) == [(0, [6, 7])]
    assert by_segment([6, 7, 8], 3) == [(0, [6, 7]), (1, [8])]
    assert by_segment([6, 7, 8, 15, 24], 3) == [(0, [6, 7]), (1, [8, 15]), (3, [24])]


@pytest.mark.parametrize(
    ("first", "end", "entries"),
    [
        (0, 8, []),
        (8, 16, range(8)),
        (0, 99, range(8)),
        (9, 16, range(1, 8)),
        (8, 15, range(7)),
        (9, 15, range(1, 7)),
        (0, 9, [0]),
        (15, 99, [7]),
        (11, 11, []),
        (12, 11, []),
        (16, 24, []),
    ],
)
def test_of_a_range_a_segment_has_what_lies_in_it(first: int, end: int, entries: list[int]) -> None:
    """The segment of 8 to 15."""
    assert bits_between(first, end, 8, 8) == sum(1 << entry for entry in entries)


def test_a_whole_segment_is_one_object_for_all() -> None:
    assert bits_between(0, 1 << 40, 1 << 20, ENTRIES) is full_bits(ENTRIES)


def test_pieces_are_kept_or_zeroed() -> None:
    data = bytearray(b"aabbccddee")

    keep_pieces(data, 0b01010, 2)

    assert data == b"\0\0bb\0\0dd\0\0"


def test_of_many_those_in_a_small_range_are_looked_up_and_of_few_those_in_a_large_one() -> None:
    assert between(UnwalkedSet({1, 20, 21, 25, 90}), 20, 24) == [20, 21]
    assert between({90, 1, 25, 20}, 20, 1 << 40) == [20, 25, 90]
    assert between({1, 20, 24}, 20, 24) == [20]
