"""Sets of positions as bits: whatever a set looks like, its positions and runs come back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.index.live_bits import bits_of, positions, runs, runs_of_bits

ENTRIES = 4096
#: Of an index 2 segment, by themselves, in runs, and all kinds between.
ENTRY_SETS = st.one_of(
    st.sets(st.integers(0, ENTRIES - 1), max_size=40),
    st.sets(st.integers(0, ENTRIES // 64 - 1)).map(lambda at: {64 * a + b for a in at for b in range(64)}),
    st.sets(st.integers(0, ENTRIES - 1), max_size=200).map(lambda absent: set(range(ENTRIES)) - absent),
)


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
