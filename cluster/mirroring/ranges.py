"""Sets of seq ids kept as ranges, for what was settled in a turn and for what a mirror lacks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from node.ids import SeqId
from node.queues.replica import SeqRange

#: Ranges in one `SeqRangeSet`. A set at the bound splits no range and makes its last one longer, so it is a superset of
#: the truth, which costs time (a mirror is declared synchronised later) and never safety. 65,536 ranges take some 6 MB.
RANGES_MAX = 65_536


def compress(seq_ids: Iterable[int]) -> tuple[SeqRange, ...]:
    """The ids, in any order and with repetitions, as ascending disjoint ranges."""
    ordered = sorted(seq_ids)
    if not ordered:
        return ()
    ranges: list[SeqRange] = []
    first = ordered[0]
    end = first + 1
    for seq_id in ordered:
        if seq_id > end:
            ranges.append(SeqRange(SeqId(first), SeqId(end)))
            first = seq_id
        if seq_id >= end:
            end = seq_id + 1
    ranges.append(SeqRange(SeqId(first), SeqId(end)))
    return tuple(ranges)


def gaps_between(first: int, end: int, seq_ids: Iterable[int]) -> list[SeqRange]:
    """The ranges of ``[first, end)`` that are left when ``seq_ids``, ascending and all within, are taken out."""
    gaps: list[SeqRange] = []
    position = first
    for seq_id in seq_ids:
        if seq_id > position:
            gaps.append(SeqRange(SeqId(position), SeqId(seq_id)))
        position = seq_id + 1
    if position < end:
        gaps.append(SeqRange(SeqId(position), SeqId(end)))
    return gaps


class SeqRangeSet:
    """Disjoint ascending ranges with their total kept up to date."""

    __slots__ = ("_ends", "_firsts", "_ranges_max", "count")

    def __init__(self, ranges_max: int = RANGES_MAX) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._ranges_max = ranges_max
        #: Number of seq ids in the set.
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[SeqRange]:
        return (SeqRange(SeqId(a), SeqId(b)) for a, b in zip(self._firsts, self._ends, strict=True))

    def append(self, seq_range: SeqRange) -> None:
        """Add a range above everything in the set; with what is between, if it would be one range too many."""
        first, end = seq_range
        if first >= end:
            return
        assert not self._ends or first >= self._ends[-1], "ranges are appended in ascending order"
        if self._ends and (first == self._ends[-1] or len(self._ends) >= self._ranges_max):
            self.count += end - self._ends[-1]
            self._ends[-1] = end
        else:
            self.count += end - first
            self._firsts.append(first)
            self._ends.append(end)

    def subtract(self, seq_range: SeqRange) -> None:
        """Take out what the set has of a range; does nothing where that would need one range too many."""
        first, end = seq_range
        if first >= end:
            return
        firsts, ends = self._firsts, self._ends
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end)
        if low >= high:
            return
        kept: list[tuple[int, int]] = []
        if firsts[low] < first:
            kept.append((firsts[low], first))
        if ends[high - 1] > end:
            kept.append((end, ends[high - 1]))
        if len(firsts) - (high - low) + len(kept) > self._ranges_max:
            return
        removed = sum(ends[i] - firsts[i] for i in range(low, high))
        self.count -= removed - sum(b - a for a, b in kept)
        firsts[low:high] = [a for a, _ in kept]
        ends[low:high] = [b for _, b in kept]

    def take_first(self, count_max: int) -> list[SeqId]:
        """Remove and return up to ``count_max`` of the lowest ids."""
        taken: list[SeqId] = []
        used = 0
        while used < len(self._firsts) and len(taken) < count_max:
            first = self._firsts[used]
            end = min(self._ends[used], first + count_max - len(taken))
            taken.extend(map(SeqId, range(first, end)))
            if end < self._ends[used]:
                self._firsts[used] = end
            else:
                used += 1
        del self._firsts[:used]
        del self._ends[:used]
        self.count -= len(taken)
        return taken

    def check_invariants(self) -> None:
        total = 0
        previous_end = -1
        for first, end in zip(self._firsts, self._ends, strict=True):
            assert first < end, "an empty range would make the set look non-empty to a walker"
            assert first > previous_end, "touching or overlapping ranges would be counted or sent twice"
            previous_end = end
            total += end - first
        assert total == self.count, "the count decides whether a mirror lacks anything"
        assert len(self._firsts) <= self._ranges_max, "what is kept is bounded"
