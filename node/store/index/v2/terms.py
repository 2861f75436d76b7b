"""What an index of version 2 leaves behind at a clean stop, so that the next start scans nothing.

The number of segments, and for each: its number, the end of its .qs file, how many of its entries are live, and whether
sets of bits follow: the live ones (if not all are) and those in a shared store (if there are any). Sets of bits are
big-endian, a bit per entry. There is no checksum: the file around it has one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from node.store.index.live_bits import full_bits
from node.store.index.v2.segment import SegmentV2

_COUNT = struct.Struct(">I")
_SEGMENT = struct.Struct(">QQIBB")


def pack_terms(segments: Mapping[int, SegmentV2], entries: int) -> bytes:
    """The terms of segments of ``entries`` entries."""
    parts = [_COUNT.pack(len(segments))]
    size = entries // 8
    for number, segment in sorted(segments.items()):
        is_partial = segment.live_count != entries
        has_shared = bool(segment.shared_bits)
        parts.append(_SEGMENT.pack(number, segment.queue_store_end, segment.live_count, is_partial, has_shared))
        if is_partial:
            parts.append(segment.live_bits.to_bytes(size, "big"))
        if has_shared:
            parts.append(segment.shared_bits.to_bytes(size, "big"))
    return b"".join(parts)


def segments_in_terms(terms: bytes, entries: int) -> Iterator[SegmentV2]:
    """The segments (of ``entries`` entries) in terms. Raises `struct.error` if they are cut off."""
    size = entries // 8
    (count,) = _COUNT.unpack_from(terms)
    at = _COUNT.size
    for _ in range(count):
        number, queue_store_end, live, is_partial, has_shared = _SEGMENT.unpack_from(terms, at)
        at += _SEGMENT.size
        segment = SegmentV2(number, entries, queue_store_end)
        segment.live_count = live
        segment.live_bits = full_bits(entries)
        if is_partial:
            segment.live_bits = int.from_bytes(terms[at : at + size], "big")
            at += size
        if has_shared:
            segment.shared_bits = int.from_bytes(terms[at : at + size], "big")
            at += size
        yield segment
