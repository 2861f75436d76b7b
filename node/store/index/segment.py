"""One segment of a queue's index in memory: which of its entries are live, and what is known of them as sets.

Four sets of entries are integers, bit ``seq_id % entries`` each. The *live* ones; of these the *shared* ones (message
in a shared store) and the *transient* ones (not persistent); and the *owed* ones, which are settled but whose reference
to a shared store is not given back::

    free --- add --> live --- settle --> free          embedded
                      |
                      +------ settle --> owed --> free  in a shared store, settled without being read

A set that has every entry is one object for all segments of all queues, so a full segment costs its numbers only; any
other set costs an eighth of a byte per entry.

Each generation adds what it must know of the segment's files (`v1.segment`, `v2.segment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof

from node.store.index.live_bits import bits_between, bits_of, full_bits

#: Estimate of the memory of the numbers in a segment that are objects of their own.
_NUMBERS_MEMORY_BYTES = 96


class Segment:
    """See the module text. Sets are changed by the methods; `owed_bits` by who keeps account of what is owed."""

    __slots__ = ("entries", "live_bits", "live_count", "number", "owed_bits", "shared_bits", "transient_bits")

    def __init__(self, number: int, entries: int) -> None:
        self.number = number
        #: Positions of a segment, a power of two.
        self.entries = entries
        #: Written entries that are not settled.
        self.live_bits = 0
        #: How many these are.
        self.live_count = 0
        #: Of the live ones: message in a shared store, of which the entry holds a reference.
        self.shared_bits = 0
        #: Of the live ones: not persistent.
        self.transient_bits = 0
        #: Settled ones that still hold their reference; what names their messages is still to be read.
        self.owed_bits = 0

    @property
    def base(self) -> int:
        """First position."""
        return self.number * self.entries

    # -- asking

    def has(self, seq_id: int) -> bool:
        """True if the entry is live."""
        return bool(self.live_bits >> (seq_id & self.entries - 1) & 1)

    def is_shared(self, seq_id: int) -> bool:
        """True if the entry is live and its message in a shared store."""
        return bool(self.shared_bits and self.shared_bits >> (seq_id & self.entries - 1) & 1)

    def is_transient(self, seq_id: int) -> bool:
        """True if the entry is live and its message not persistent."""
        return bool(self.transient_bits and self.transient_bits >> (seq_id & self.entries - 1) & 1)

    def live_between(self, first: int, end: int) -> int:
        """The set of live entries in [first, end)."""
        return self.live_bits & bits_between(first, end, self.number * self.entries, self.entries)

    def count(self, first: int, end: int) -> int:
        """How many entries of [first, end) are live."""
        base = self.number * self.entries
        if first <= base and base + self.entries <= end:
            return self.live_count
        return self.live_between(first, end).bit_count()

    def by_store(self, bits: int) -> list[tuple[bool, int]]:
        """A set of live entries, cut by whether they are persistent, which says in which shared store they would be."""
        transient = bits & self.transient_bits
        if not transient:
            return [(True, bits)] if bits else []
        persistent = bits ^ transient
        return [(True, persistent), (False, transient)] if persistent else [(False, transient)]

    # -- changing

    def add(self, bits: int, shared: int, transient: int) -> None:
        """These entries were written; ``shared`` and ``transient`` are subsets of ``bits``."""
        assert not self.live_bits & bits, "a published position is free or settled"
        self.live_bits |= bits
        self.live_count += bits.bit_count()
        if shared:
            self.shared_bits |= shared
        if transient:
            self.transient_bits |= transient
        if self.live_count == self.entries:
            # Equal sets become one object.
            full = self.live_bits = full_bits(self.entries)
            if self.shared_bits == full:
                self.shared_bits = full
            if self.transient_bits == full:
                self.transient_bits = full

    def add_members(self, seq_ids: Sequence[int], shared: Sequence[int], transient: Sequence[int]) -> None:
        """The same with ascending positions of this segment."""
        mask = self.entries - 1
        self.add(
            bits_of(seq_ids, mask),
            bits_of(shared, mask) if shared else 0,
            bits_of(transient, mask) if transient else 0,
        )

    def settle(self, bits: int) -> None:
        """These live entries are settled."""
        left = self.live_bits ^ bits
        assert not left & bits, "only live entries are settled"
        self.live_bits = left
        self.live_count -= bits.bit_count()
        if self.shared_bits:
            self.shared_bits &= left
        if self.transient_bits:
            self.transient_bits &= left

    # -- looking at it

    @property
    def memory_bytes(self) -> int:
        """Estimate of what this segment costs."""
        size = getsizeof(self) + _NUMBERS_MEMORY_BYTES
        full = full_bits(self.entries)
        for bits in (self.live_bits, self.shared_bits, self.transient_bits, self.owed_bits):
            if bits and bits is not full:
                size += getsizeof(bits)
        return size

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the sets contradict each other."""
        number, live = self.number, self.live_bits
        assert 0 <= live <= full_bits(self.entries), f"segment {number}: live entries are entries of this segment"
        assert live.bit_count() == self.live_count, f"segment {number} counts its live entries"
        assert not self.shared_bits & ~live, f"segment {number}: what is settled is in no shared store"
        assert not self.transient_bits & ~live, f"segment {number}: what is settled is not transient either"
        assert not self.owed_bits & live, f"segment {number}: what is live has its reference"
        assert 0 <= self.owed_bits <= full_bits(self.entries), f"segment {number}: what is owed are entries of it"
