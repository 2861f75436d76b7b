"""One segment of an index of version 1 in memory, and arithmetic of runs and bits.

Three sets of positions are integers, bit ``seq_id % entries`` each: which entries are live, which of these are in a
shared store, which are transient. A set that has every position is one object for all segments of all queues, so a
full segment costs its counters only; the others cost an eighth of a byte per entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from sys import getsizeof

#: First position and number of positions.
Run = tuple[int, int]


@cache
def full_bits(entries: int) -> int:
    """The set of all positions of a segment."""
    return (1 << entries) - 1


def run_bits(start: int, count: int) -> int:
    """The set of ``count`` positions from ``start`` on."""
    return (1 << count) - 1 << start


def runs_of(seq_ids: Sequence[int], entries: int) -> list[Run]:
    """Ascending seq ids as runs of neighbours, cut where a segment ends."""
    if not seq_ids:
        return []
    runs: list[Run] = []
    first = previous = seq_ids[0]
    mask = entries - 1
    for seq_id in seq_ids[1:]:
        if seq_id != previous + 1 or not seq_id & mask:
            runs.append((first, previous + 1 - first))
            first = seq_id
        previous = seq_id
    runs.append((first, previous + 1 - first))
    return runs


def merge_runs(runs: Sequence[Run], entries: int) -> list[Run]:
    """Runs in ascending order, those that touch joined, cut where a segment ends."""
    merged: list[Run] = []
    mask = entries - 1
    start = end = -1
    for first, count in sorted(runs):
        if first == end and first & mask:
            end += count
            continue
        if end >= 0:
            merged.append((start, end - start))
        start, end = first, first + count
    if end >= 0:
        merged.append((start, end - start))
    return merged


class Segment:
    """Bookkeeping of one segment: what is live in it, be it in its file or in a journal."""

    __slots__ = (
        "entries",
        "file_bytes",
        "file_end",
        "is_written_once",
        "live",
        "live_count",
        "number",
        "owed",
        "shared",
        "transient",
    )

    def __init__(self, number: int, entries: int) -> None:
        self.number = number
        self.entries = entries
        #: Written entries that are not settled.
        self.live = 0
        self.live_count = 0
        #: Of the live ones: in a shared store. Bits of others mean nothing.
        self.shared = 0
        #: Of the live ones: not persistent. Bits of others mean nothing.
        self.transient = 0
        #: Settled ones in the file of which the reference to a shared store is not given back.
        self.owed = 0
        #: Length of the ``.idx`` file; 0 without one.
        self.file_bytes = 0
        #: Behind the highest position with a publish record in the file.
        self.file_end = number * entries
        #: True if no position has two publish records in the file, so that the first found is the one that holds.
        self.is_written_once = True

    @property
    def base(self) -> int:
        """First position."""
        return self.number * self.entries

    def has(self, seq_id: int) -> bool:
        """True if the entry is live."""
        return bool(self.live >> (seq_id & self.entries - 1) & 1)

    def is_shared(self, seq_id: int) -> bool:
        """True if the live entry's message is in a shared store."""
        return bool(self.shared and self.shared >> (seq_id & self.entries - 1) & 1)

    def is_transient(self, seq_id: int) -> bool:
        """True if the live entry's message is not persistent."""
        return bool(self.transient and self.transient >> (seq_id & self.entries - 1) & 1)

    def range_bits(self, first: int, end: int) -> int:
        """The set of positions of [first, end) that lie in this segment."""
        base = self.base
        start, stop = max(first - base, 0), min(end - base, self.entries)
        if start >= stop:
            return 0
        return full_bits(self.entries) if stop - start == self.entries else run_bits(start, stop - start)

    def live_bits(self, first: int, end: int) -> int:
        """Live entries of [first, end)."""
        return self.live & self.range_bits(first, end)

    def count(self, first: int, end: int) -> int:
        """How many entries of [first, end) are live."""
        base = self.base
        if first <= base and base + self.entries <= end:
            return self.live_count
        return self.live_bits(first, end).bit_count()

    def add(self, bits: int, shared: int, transient: int) -> None:
        """These entries are live now."""
        assert not self.live & bits, "a published position is free or settled"
        full = full_bits(self.entries)
        self.live_count += bits.bit_count()
        # Equal sets become one object.
        self.live = full if self.live_count == self.entries else self.live | bits
        if shared or self.shared:
            self.shared = self.shared & ~bits | shared
            if self.shared == full:
                self.shared = full
        if transient or self.transient:
            self.transient = self.transient & ~bits | transient
            if self.transient == full:
                self.transient = full

    def remove(self, bits: int) -> None:
        """These live entries are settled."""
        assert self.live & bits == bits, "only live entries are settled"
        self.live &= ~bits
        self.live_count -= bits.bit_count()
        if not self.live_count:
            self.shared = self.transient = 0

    @property
    def memory_bytes(self) -> int:
        """Estimate of what this segment costs."""
        size = getsizeof(self)
        for bits in (self.live, self.shared, self.transient):
            if bits and bits is not full_bits(self.entries):
                size += getsizeof(bits)
        return size

    def check_invariants(self) -> None:
        assert 0 <= self.live <= full_bits(self.entries), "live entries are entries of this segment"
        assert not self.live & self.owed, "what is live has its reference"
        assert self.live.bit_count() == self.live_count, "the counter counts the live entries"
        assert self.base <= self.file_end <= self.base + self.entries, "the file holds entries of this segment"
