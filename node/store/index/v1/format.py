"""Formats of an index of version 1: the journal (``N.jif``) and its segments (``N.idx``).

Both begin with the header of `node.store.formats.record` and go on with records of one kind, appended and never
changed::

    0     4        8        16     18     19      20
    +-----+--------+--------+------+------+-------+---------+
    | CRC | length | seq_id | mark | kind | flags | payload |
    +-----+--------+--------+------+------+-------+---------+

*length* of the payload; *mark* `RECORD_MARK`, by which a scan finds the next record behind damage; *flags* bit 0
persistent. By *kind* the payload is

1. publish, message embedded: its envelope (see `node.message`);
2. publish, message in a shared store: msg_id (16 bytes), bytes of the body (4);
3. ack: how many positions, ``seq_id`` the first of them (4), all of one segment.

The CRC covers everything behind itself and starts from a number made of the file's magic, its number and the offset of
the record, so that a record of another file or in another place is seen. Records apply in the order of the file: what
was settled may be published again, and the last record about a position is the one that holds.

**End and damage.** Appends are synced together, so what a crash leaves is: whole records, then perhaps a piece of one;
or, if the file system wrote a later page and not an earlier one, a hole of zeros. Both are *torn*: nobody was promised
anything. Zeros up to the end are the end. Everything else that is unreadable is *damage*.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from node.errors import StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk.disk import DiskFile
from node.store.formats.record import HEADER_BYTES, READ_GAP_BYTES_MAX, FileFormat
from node.store.index.index import IN_SHARED_STORE, UNKNOWN_PLACE, PagedMessage

KIND_EMBEDDED = 1
KIND_SHARED = 2
KIND_ACK = 3
RECORD_PERSISTENT = 1
#: Not zero, not text, not the marks of the other formats.
RECORD_MARK = 0xA7E1
#: What the CRC covers of a record, but its payload: length, seq_id, mark, kind, flags.
RECORD_BODY = struct.Struct(">IQHBB")
CRC_BYTES = 4
RECORD_BYTES = CRC_BYTES + RECORD_BODY.size
#: CRC and body at once.
_RECORD = struct.Struct(">IIQHBB")
SHARED_PAYLOAD = struct.Struct(">16sI")
ACK_PAYLOAD = struct.Struct(">I")
_MARK_AT = 16
_MARK_PIECE = RECORD_MARK.to_bytes(2, "big")
#: Where an envelope has the size of its body (`node.message`).
_ENVELOPE_BODY_BYTES_AT = 23
_U32 = struct.Struct(">I")
_CRC_MASK = 0xFFFFFFFF
#: A hole that the file system left for a page it never wrote.
_PAGE_BYTES = 4096

#: A place: offset << 24 | size << 2 | is shared << 1 | is persistent. A record is smaller than 4 MiB: an embedded
#: message has at most `EMBED_BELOW_BYTES_MAX` bytes and two names of 255.
PLACE_OFFSET_BITS = 24
PLACE_SHARED = 2
PLACE_PERSISTENT = 1
_PLACE_SIZE_MASK = 0x3FFFFF


class Record(NamedTuple):
    """One readable record of a file."""

    offset: int
    end: int
    seq_id: int
    kind: int
    persistent: bool

    @property
    def place(self) -> int:
        """Where a publish record is, in one number."""
        return make_place(self.offset, self.end - self.offset, self.kind == KIND_SHARED, self.persistent)


class BadPiece(NamedTuple):
    """A run of bytes that holds no readable record."""

    offset: int
    end: int
    #: True if a write never finished.
    torn: bool


def make_place(offset: int, size: int, is_shared: bool, persistent: bool) -> int:
    """The number described at `PLACE_OFFSET_BITS`."""
    return offset << PLACE_OFFSET_BITS | size << 2 | is_shared << 1 | persistent


def place_offset(place: int) -> int:
    """Where the record begins in its file."""
    return place >> PLACE_OFFSET_BITS


def place_size(place: int) -> int:
    """Bytes of the record, its header included."""
    return place >> 2 & _PLACE_SIZE_MASK


def checksum_seed(file_format: FileFormat, number: int) -> int:
    """What the checksums of one file start from, before the offset is added."""
    return crc32(file_format.magic + number.to_bytes(8, "big"))


def pack_record(kind: int, persistent: bool, seq_id: int, payload: bytes, seed: int, offset: int) -> bytes:
    """One record. (`pack_publishes` does the same for many.)"""
    body = RECORD_BODY.pack(len(payload), seq_id, RECORD_MARK, kind, persistent)
    return (crc32(payload, crc32(body, (seed + offset) & _CRC_MASK))).to_bytes(4, "big") + body + payload


class Publish(NamedTuple):
    """What a publish record is made of."""

    seq_id: int
    kind: int
    persistent: bool
    payload: bytes


def pack_publishes(publishes: Iterable[Publish], seed: int, offset: int, parts: list[bytes]) -> list[int]:
    """Append the records to ``parts``; the first will stand at ``offset``. Returns their places."""
    pack_body, pack_crc = RECORD_BODY.pack, _U32.pack
    places: list[int] = []
    for seq_id, kind, persistent, payload in publishes:
        body = pack_body(len(payload), seq_id, RECORD_MARK, kind, persistent)
        parts += (pack_crc(crc32(payload, crc32(body, (seed + offset) & _CRC_MASK))), body, payload)
        size = RECORD_BYTES + len(payload)
        places.append(offset << PLACE_OFFSET_BITS | size << 2 | (kind == KIND_SHARED) << 1 | persistent)
        offset += size
    return places


def pack_acks(runs: Iterable[tuple[int, int]], seed: int, offset: int, parts: list[bytes]) -> int:
    """Append ack records of (first, count) runs to ``parts``; returns the offset behind the last."""
    for first, count in runs:
        parts.append(pack_record(KIND_ACK, False, first, ACK_PAYLOAD.pack(count), seed, offset))
        offset += RECORD_BYTES + ACK_PAYLOAD.size
    return offset


def intact_records(data: bytes, seed: int, origin: int, start: int) -> Iterator[Record]:
    """Records from ``start`` up to the first that is not readable; ``data`` begins at offset ``origin`` of its file."""
    unpack = _RECORD.unpack_from
    view = memoryview(data)
    at = start - origin
    end = len(data)
    while at + RECORD_BYTES <= end:
        checksum, length, seq_id, mark, kind, flags = unpack(data, at)
        following = at + RECORD_BYTES + length
        if mark != RECORD_MARK or following > end:
            return
        if crc32(view[at + CRC_BYTES : following], (seed + origin + at) & _CRC_MASK) != checksum:
            return
        yield Record(origin + at, origin + following, seq_id, kind, bool(flags & RECORD_PERSISTENT))
        at = following


def scan_records(data: bytes, seed: int, origin: int = 0, start: int = HEADER_BYTES) -> Iterator[Record | BadPiece]:
    """Every readable record from ``start`` on, and what is between and behind them."""
    position = start
    end = origin + len(data)
    while position < end:
        for record in intact_records(data, seed, origin, position):
            yield record
            position = record.end
        if position < end:
            following = _next_record(data, seed, origin, position + 1)
            torn = _is_torn(data, position - origin, following - origin)
            yield BadPiece(position, following, torn)
            position = following


def _next_record(data: bytes, seed: int, origin: int, position: int) -> int:
    """Offset of the first readable record at or after ``position``, or the end of the data."""
    mark = data.find(_MARK_PIECE, position - origin + _MARK_AT)
    while mark >= 0:
        for record in intact_records(data, seed, origin, origin + mark - _MARK_AT):
            return record.offset
        mark = data.find(_MARK_PIECE, mark + 1)
    return origin + len(data)


def _is_torn(data: bytes, start: int, end: int) -> bool:
    """True if the unreadable bytes look like a write that never finished; see the module text."""
    piece = data[start:end]
    if not piece[:RECORD_BYTES].strip(b"\0"):
        # A hole of zeros, perhaps with a piece of a record behind it; a hole is never in front of anything else.
        return not piece.strip(b"\0") or end == len(data)
    if end == len(data):
        if len(piece) < RECORD_BYTES:
            return True
        _, length, _, mark, _, _ = _RECORD.unpack_from(piece)
        if mark == RECORD_MARK and RECORD_BYTES + length > len(piece):
            return True
    return _has_page_hole(data, start, end)


def _has_page_hole(data: bytes, start: int, end: int) -> bool:
    """True if a page (its share of the piece) is nothing but zeros."""
    while start < end:
        page_end = min(end, (start // _PAGE_BYTES + 1) * _PAGE_BYTES)
        if page_end - start >= RECORD_BYTES and not data[start:page_end].strip(b"\0"):
            return True
        start = page_end
    return False


def describe(data: bytes, at: int, is_shared: bool) -> tuple[MsgId, int]:
    """msg_id and bytes of the body of a publish record that begins at index ``at`` of ``data``."""
    at += RECORD_BYTES
    msg_id = MsgId(data[at : at + MSG_ID_BYTES])
    at += MSG_ID_BYTES if is_shared else _ENVELOPE_BODY_BYTES_AT
    return msg_id, _U32.unpack_from(data, at)[0]


def ack_count(data: bytes, at: int) -> int:
    """Positions that the ack record at index ``at`` of ``data`` covers."""
    count: int = ACK_PAYLOAD.unpack_from(data, at + RECORD_BYTES)[0]
    return count


def read_places(file: DiskFile, seed: int, places: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
    """Each place with its record, in ascending order of offset; ``None`` for one whose checksum does not fit."""
    for stretch in _stretches(sorted(places)):
        base = stretch[0] >> PLACE_OFFSET_BITS
        end = (stretch[-1] >> PLACE_OFFSET_BITS) + place_size(stretch[-1])
        data = file.pread(end - base, base)
        for place in stretch:
            offset = place >> PLACE_OFFSET_BITS
            piece = data[offset - base : offset - base + place_size(place)]
            whole = len(piece) >= RECORD_BYTES and piece[:CRC_BYTES] == _U32.pack(
                crc32(piece[CRC_BYTES:], (seed + offset) & _CRC_MASK)
            )
            yield place, piece if whole else None


def record_seq_id(piece: bytes) -> int:
    """The position that a record is about."""
    seq_id: int = _RECORD.unpack_from(piece)[2]
    return seq_id


def _stretches(places: Sequence[int]) -> list[list[int]]:
    """Ascending places, grouped so that each group is worth one read."""
    stretches: list[list[int]] = []
    end = -READ_GAP_BYTES_MAX
    for place in places:
        offset = place >> PLACE_OFFSET_BITS
        if stretches and offset - end <= READ_GAP_BYTES_MAX:
            stretches[-1].append(place)
        else:
            stretches.append([place])
        end = offset + place_size(place)
    return stretches


def files_of(names: Iterable[str], file_format: FileFormat) -> list[int]:
    """Numbers of the files of one format among the names of a directory, ascending."""
    suffix = file_format.suffix
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def checked_record(piece: bytes | None, seq_id: int, path: str) -> bytes:
    """A record that `read_places` found. Raises `StorageError` if it is not whole or not about this position."""
    if piece is None or record_seq_id(piece) != seq_id:
        raise StorageError(f"the entry of seq id {seq_id} in {path} is damaged: its checksum does not fit")
    return piece


def paged_of(place: int, msg_id: MsgId, body_bytes: int) -> PagedMessage:
    """A live entry with its record at ``place``."""
    # The place of an embedded message changes when its journal is moved, so that nobody is told of it.
    where = IN_SHARED_STORE if place & PLACE_SHARED else UNKNOWN_PLACE
    return PagedMessage(msg_id, body_bytes, place & PLACE_PERSISTENT > 0, where)
