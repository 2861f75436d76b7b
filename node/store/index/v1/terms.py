"""What an index of version 1 leaves behind at a clean stop, so that the next start scans nothing.

Everything is in the segments then; for each of them the terms say how long its file is and which of its entries are
live::

    entries per segment, next journal number, number of segments,
    for each: number, length of the file, file end, written once?, live, shared, transient
    CRC-32 of all this

A set of positions is one byte, 0 for none, 1 for all, 2 for the bits that follow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

from node.store.index.live_bits import full_bits
from node.store.index.v1.segment import SegmentV1

_HEAD = struct.Struct(">IQI")
_SEGMENT = struct.Struct(">QQQB")
_CRC = struct.Struct(">I")
_NONE, _ALL, _BITS = b"\0", b"\1", b"\2"


def pack_terms(entries: int, next_journal: int, segments: Sequence[SegmentV1]) -> bytes:
    """The terms of an index that was closed."""
    parts = [_HEAD.pack(entries, next_journal, len(segments))]
    for segment in segments:
        parts.append(_SEGMENT.pack(segment.number, segment.file_bytes, segment.file_end, segment.is_written_once))
        parts += [
            _pack_bits(bits, entries) for bits in (segment.live_bits, segment.shared_bits, segment.transient_bits)
        ]
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def unpack_terms(terms: bytes, entries: int) -> tuple[int, list[SegmentV1]] | None:
    """The next journal number and the segments; ``None`` if these terms are damaged or of another segment size."""
    body = terms[: -_CRC.size]
    if len(body) < _HEAD.size or _CRC.pack(crc32(body)) != terms[-_CRC.size :]:
        return None
    found_entries, next_journal, count = _HEAD.unpack_from(body)
    if found_entries != entries:
        return None
    segments: list[SegmentV1] = []
    at = _HEAD.size
    for _ in range(count):
        number, file_bytes, file_end, written_once = _SEGMENT.unpack_from(body, at)
        at += _SEGMENT.size
        segment = SegmentV1(number, entries)
        live, at = _unpack_bits(body, at, entries)
        shared, at = _unpack_bits(body, at, entries)
        transient, at = _unpack_bits(body, at, entries)
        # Earlier versions of this program left bits of settled entries in the last two.
        segment.add(live, live & shared, live & transient)
        segment.file_bytes, segment.file_end = file_bytes, file_end
        segment.is_written_once = bool(written_once)
        segments.append(segment)
    return next_journal, segments


def _pack_bits(bits: int, entries: int) -> bytes:
    if not bits:
        return _NONE
    if bits == full_bits(entries):
        return _ALL
    return _BITS + bits.to_bytes((entries + 7) // 8, "big")


def _unpack_bits(body: bytes, at: int, entries: int) -> tuple[int, int]:
    kind = body[at : at + 1]
    at += 1
    if kind == _NONE:
        return 0, at
    if kind == _ALL:
        return full_bits(entries), at
    size = (entries + 7) // 8
    return int.from_bytes(body[at : at + size], "big"), at + size
