"""`SeqRangeSet` against a plain set, and the helpers."""

from __future__ import annotations

from random import Random

from cluster.mirroring.ranges import SeqRangeSet, compress, gaps_between
from node.ids import SeqId
from node.queues.replica import SeqRange


def span(first: int, end: int) -> SeqRange:
    return SeqRange(SeqId(first), SeqId(end))


def members(ranges: SeqRangeSet) -> set[int]:
    return {seq_id for first, end in ranges for seq_id in range(first, end)}


def test_compress_takes_any_order_and_repetitions() -> None:
    assert compress([5, 1, 2, 2, 6, 9]) == (span(1, 3), span(5, 7), span(9, 10))
    assert compress([]) == ()


def test_gaps_are_what_is_left() -> None:
    assert gaps_between(0, 10, [0, 3, 4, 9]) == [span(1, 3), span(5, 9)]
    assert gaps_between(2, 4, []) == [span(2, 4)]


def test_an_empty_range_adds_nothing() -> None:
    ranges = SeqRangeSet()
    ranges.append(span(3, 3))
    ranges.check_invariants()
    assert list(ranges) == []


def test_subtract_and_take_agree_with_a_set() -> None:
    chance = Random(7)
    for _ in range(200):
        ranges, model = SeqRangeSet(), set[int]()
        position = 0
        for _ in range(chance.randint(0, 8)):
            first = position + chance.randint(0, 3)
            position = first + chance.randint(1, 6)
            ranges.append(span(first, position))
            model |= set(range(first, position))
        for _ in range(10):
            if chance.random() < 0.3:
                count = chance.randint(1, 5)
                taken = ranges.take_first(count)
                assert list(taken) == sorted(model)[:count]
                model -= set(taken)
            else:
                first = chance.randint(0, 50)
                end = first + chance.randint(0, 10)
                ranges.subtract(span(first, end))
                model -= set(range(first, end))
            ranges.check_invariants()
            assert members(ranges) == model


def test_a_full_set_stays_a_superset() -> None:
    ranges = SeqRangeSet(ranges_max=2)
    ranges.append(span(0, 10))
    ranges.subtract(span(2, 3))
    ranges.subtract(span(5, 6))
    ranges.check_invariants()
    assert members(ranges) == set(range(10)) - {2}


def test_a_set_at_its_bound_takes_what_is_between_its_last_ranges_and_grows_smaller_as_any_other() -> None:
    """A mirror that restarted lacks every transient message of a queue: as many ranges as messages."""
    ranges = SeqRangeSet(ranges_max=3)
    for first in range(0, 12, 2):
        ranges.append(span(first, first + 1))
        ranges.check_invariants()
    assert list(ranges) == [span(0, 1), span(2, 3), span(4, 11)]
    for first in range(0, 12, 2):
        ranges.subtract(span(first, first + 1))
        ranges.check_invariants()
    assert members(ranges) == {5, 7, 9}
    assert list(ranges.take_first(9)) == [5, 7, 9]
    assert not ranges
