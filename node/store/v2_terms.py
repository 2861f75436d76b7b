"""What a clean stop keeps of the segments of an index of version 2. Sets of bits are big-endian, a bit per entry."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from node.store.segment_files import Segment

#: Number of segments; per segment its number, end of the .qs file, live entries, whether sets of bits follow (live,
#: shared).
_TERMS_COUNT = struct.Struct(">I")
_TERMS_SEGMENT = struct.Struct(">QQIBB")


def pack_terms(segments: Sequence[Segment], entries: int) -> bytes:
    """The segments (of ``entries`` entries) as bytes."""
    parts = [_TERMS_COUNT.pack(len(segments))]
    size = entries // 8
    for segment in sorted(segments, key=lambda segment: segment.number):
        is_partial = segment.live != entries
        is_shared = bool(segment.shared_bits)
        head = (segment.number, segment.queue_store_end, segment.live, is_partial, is_shared)
        parts.append(_TERMS_SEGMENT.pack(*head))
        if is_partial:
            parts.append(segment.live_bits.to_bytes(size, "big"))
        if is_shared:
            parts.append(segment.shared_bits.to_bytes(size, "big"))
    return b"".join(parts)


def segments_in_terms(terms: bytes, entries: int) -> Iterator[Segment]:
    """The segments (of ``entries`` entries) in `pack_terms`. Raises `struct.error` if they are cut off."""
    size = entries // 8
    full_bits = (1 << entries) - 1
    (count,) = _TERMS_COUNT.unpack_from(terms)
    at = _TERMS_COUNT.size
    for _ in range(count):
        number, queue_store_end, live, is_partial, is_shared = _TERMS_SEGMENT.unpack_from(terms, at)
        at += _TERMS_SEGMENT.size
        segment = Segment(number, queue_store_end)
        segment.live = live
        segment.live_bits = full_bits
        if is_partial:
            segment.live_bits = int.from_bytes(terms[at : at + size], "big")
            at += size
        if is_shared:
            segment.shared_bits = int.from_bytes(terms[at : at + size], "big")
            at += size
        yield segment
