"""Arithmetic of positions: sets of entries of a segment, one bit each, and the runs and groups positions fall into."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import compress

#: First position of neighbours, and how many.
Run = tuple[int, int]

#: Fewer set bits than one in so many are looked for one by one.
_SPARSE = 8
#: For each byte, whether it is the digit of a set bit.
_IS_ONE = bytes(byte == ord("1") for byte in range(256))


@cache
def full_bits(entries: int) -> int:
    """The set of all entries of a segment: one object, so that full sets cost nothing."""
    return (1 << entries) - 1


def run_bits(start: int, count: int) -> int:
    """The set of ``count`` entries from ``start`` on."""
    return (1 << count) - 1 << start


def by_segment(seq_ids: Sequence[int], segment_bits: int) -> list[tuple[int, Sequence[int]]]:
    """Ascending seq ids, cut at segment borders."""
    if not seq_ids:
        return []
    first = seq_ids[0] >> segment_bits
    if seq_ids[-1] >> segment_bits == first:
        return [(first, seq_ids)]
    groups: dict[int, list[int]] = {}
    for seq_id in seq_ids:
        groups.setdefault(seq_id >> segment_bits, []).append(seq_id)
    return list(groups.items())


def runs(seq_ids: Sequence[int]) -> list[Run]:
    """Ascending seq ids as runs of neighbours."""
    if not seq_ids:
        return []
    if seq_ids[-1] - seq_ids[0] == len(seq_ids) - 1:
        return [(seq_ids[0], len(seq_ids))]
    found: list[Run] = []
    first = previous = seq_ids[0]
    for seq_id in seq_ids[1:]:
        if seq_id != previous + 1:
            found.append((first, previous + 1 - first))
            first = seq_id
        previous = seq_id
    found.append((first, previous + 1 - first))
    return found


def between(seq_ids: Collection[int], first: int, end: int) -> list[int]:
    """Those of a set (or the keys of a dict) that lie in [first, end), ascending."""
    if len(seq_ids) > end - first:
        return [seq_id for seq_id in range(first, end) if seq_id in seq_ids]
    return sorted([seq_id for seq_id in seq_ids if first <= seq_id < end])


def keep_pieces(data: bytearray, bits: int, size: int) -> None:
    """Zero the pieces of ``size`` bytes whose bit is not set; bit 0 stands for the first of them."""
    for first, count in runs(positions(~bits & ((1 << len(data) // size) - 1), 0)):
        data[first * size : (first + count) * size] = bytes(count * size)


def bits_of(seq_ids: Sequence[int], slot_mask: int) -> int:
    """The bits of ascending seq ids of one segment."""
    bits = 0
    for first, count in runs(seq_ids):
        bits |= (1 << count) - 1 << (first & slot_mask)
    return bits


def bits_between(first: int, end: int, base: int, entries: int) -> int:
    """The bits of [first, end) in the segment of ``entries`` entries that begins at ``base``."""
    low, high = max(0, first - base), min(entries, end - base)
    if high - low == entries:
        return full_bits(entries)
    return run_bits(low, max(0, high - low))


def positions(bits: int, base: int) -> Sequence[int]:
    """The seq ids whose bits are set, ascending; bit 0 stands for ``base``."""
    if not bits:
        return ()
    low = (bits & -bits).bit_length() - 1
    shifted = bits >> low
    if not shifted & (shifted + 1):
        return range(base + low, base + bits.bit_length())
    digits = bin(bits)[:1:-1]
    if bits.bit_count() * _SPARSE >= len(digits):
        return list(compress(range(base, base + len(digits)), digits.encode().translate(_IS_ONE)))
    found = []
    while low >= 0:
        found.append(base + low)
        low = digits.find("1", low + 1)
    return found


def runs_of_bits(bits: int, base: int) -> Iterator[Run]:
    """The seq ids whose bits are set as ascending runs of neighbours; bit 0 stands for ``base``."""
    at = base
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        at += zeros
        # Adding one carries through the ones at the end.
        above = bits + 1
        if not bits & above:
            yield at, bits.bit_length()
            return
        ones = (above & -above).bit_length() - 1
        yield at, ones
        bits >>= ones
        at += ones
