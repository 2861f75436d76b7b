"""What an index of version 1 leaves behind at a clean stop."""

from __future__ import annotations

import pytest

from node.store.index.live_bits import full_bits
from node.store.index.v1.segment import SegmentV1
from node.store.index.v1.terms import pack_terms, unpack_terms

ENTRIES = 16


def segment(number: int, live: int, shared: int, transient: int) -> SegmentV1:
    made = SegmentV1(number, ENTRIES)
    made.add(live, shared, transient)
    made.file_bytes, made.file_end, made.is_written_once = 1000 + number, made.base + 9, bool(number % 2)
    return made


def test_they_come_back_as_they_were() -> None:
    full = full_bits(ENTRIES)
    segments = [segment(0, full, full, 0), segment(3, 0b1011, 0b1, 0b1010), segment(4, 0, 0, 0)]
    unpacked = unpack_terms(pack_terms(ENTRIES, 7, segments), ENTRIES)
    assert unpacked is not None
    next_journal, found = unpacked
    assert next_journal == 7
    for one, other in zip(found, segments, strict=True):
        one.check_invariants()
        for name in (*SegmentV1.__slots__, *SegmentV1.__mro__[1].__slots__):  # type: ignore[attr-defined]
            assert getattr(one, name) == getattr(other, name), name
    assert found[0].shared_bits is found[0].live_bits, "full sets are one object"


def test_what_an_earlier_version_says_of_settled_entries_means_nothing() -> None:
    """It left their bits among those of shared and transient entries."""
    stale = segment(2, 0b0011, 0, 0)
    stale.shared_bits, stale.transient_bits = 0b0110, 0b1100
    unpacked = unpack_terms(pack_terms(ENTRIES, 0, [stale]), ENTRIES)
    assert unpacked is not None
    (found,) = unpacked[1]
    found.check_invariants()
    assert (found.live_bits, found.shared_bits, found.transient_bits) == (0b0011, 0b0010, 0)


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_damage_is_seen(at: int) -> None:
    terms = bytearray(pack_terms(ENTRIES, 7, [segment(1, 0b11, 0, 0)]))
    terms[at] ^= 4
    assert unpack_terms(bytes(terms), ENTRIES) is None


def test_another_size_of_segments_is_seen() -> None:
    assert unpack_terms(pack_terms(ENTRIES, 7, []), 2 * ENTRIES) is None
