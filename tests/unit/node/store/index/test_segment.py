"""Which entries of a segment are live, against plain sets; and what a segment costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.index.live_bits import bits_of, positions
from node.store.index.segment import Segment
from tests.support.amounts import few_examples

ENTRIES, NUMBER = 64, 3
BASE = ENTRIES * NUMBER
MASK = ENTRIES - 1
POSITIONS = st.sets(st.integers(BASE, BASE + ENTRIES - 1))


def bits(members: set[int]) -> int:
    return bits_of(sorted(members), MASK)


def members(found: int) -> set[int]:
    return set(positions(found, BASE))


@few_examples(30, 300, st.lists(st.tuples(POSITIONS, POSITIONS, POSITIONS, POSITIONS), min_size=1, max_size=8))
def test_it_agrees_with_sets(turns: list[tuple[set[int], set[int], set[int], set[int]]]) -> None:
    """Each turn writes something, in part shared and transient, and settles something."""
    segment = Segment(NUMBER, ENTRIES)
    live: set[int] = set()
    shared: set[int] = set()
    transient: set[int] = set()
    for added, in_store, passing, settled in turns:
        added = added - live
        segment.add(bits(added), bits(added & in_store), bits(added & passing))
        live |= added
        shared |= added & in_store
        transient |= added & passing
        settled = settled & live
        halves = {is_persistent: members(half) for is_persistent, half in segment.by_store(bits(settled & shared))}
        assert halves.get(True, set()) == (settled & shared) - transient
        assert halves.get(False, set()) == settled & shared & transient
        assert all(halves.values()), "empty halves are left out"
        segment.settle(bits(settled))
        live -= settled
        shared -= settled
        transient -= settled
        segment.check_invariants()
        assert (members(segment.live_bits), segment.live_count) == (live, len(live))
        assert (members(segment.shared_bits), members(segment.transient_bits)) == (shared, transient)
        for seq_id in range(BASE, BASE + ENTRIES):
            assert segment.has(seq_id) == (seq_id in live)
            assert segment.is_shared(seq_id) == (seq_id in shared)
            assert segment.is_transient(seq_id) == (seq_id in transient)


@given(POSITIONS, st.integers(0, 2 * BASE), st.integers(0, 2 * BASE))
def test_ranges_are_cut_out(live: set[int], first: int, end: int) -> None:
    segment = Segment(NUMBER, ENTRIES)
    segment.add(bits(live), 0, 0)

    chosen = {seq_id for seq_id in live if first <= seq_id < end}

    assert members(segment.live_between(first, end)) == chosen
    assert segment.count(first, end) == len(chosen)


@pytest.mark.parametrize("order", [1, -1])
def test_a_full_segment_shares_its_sets_with_all_others(order: int) -> None:
    """However it became full, and whatever its messages are."""
    segments = [Segment(number, 16_384) for number in range(2)]
    for segment in segments:
        for first in range(0, 16_384, 1024)[::order]:
            piece = (1 << 1024) - 1 << first
            segment.add(piece, piece, piece)
    one, other = segments
    assert one.live_bits is other.live_bits
    assert one.shared_bits is one.live_bits
    assert one.transient_bits is one.live_bits
    assert one.memory_bytes < 300


def test_a_set_costs_an_eighth_of_a_byte_per_entry() -> None:
    segment = Segment(0, 16_384)
    segment.add(1 << 16_383, 0, 0)
    empty_bytes = Segment(0, 16_384).memory_bytes
    assert 2048 <= segment.memory_bytes - empty_bytes < 2048 * 1.2
    segment.settle(1 << 16_383)
    assert segment.memory_bytes == empty_bytes


@pytest.mark.parametrize(("written", "settled"), [({BASE}, {BASE + 1}), (set(), {BASE})])
def test_nothing_is_settled_twice(written: set[int], settled: set[int]) -> None:
    segment = Segment(NUMBER, ENTRIES)
    segment.add(bits(written), 0, 0)
    with pytest.raises(AssertionError, match="only live entries are settled"):
        segment.settle(bits(settled))


def test_nothing_is_written_over_what_is_live() -> None:
    segment = Segment(NUMBER, ENTRIES)
    segment.add(0b11, 0, 0)
    with pytest.raises(AssertionError, match="free or settled"):
        segment.add(0b10, 0, 0)
