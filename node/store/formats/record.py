"""Formats of everything the store writes, declared once and used by the writer and by recovery.

All numbers are big-endian, all checksums CRC-32 (`zlib.crc32`). Every file begins with a header of 64 bytes::

    0       4         5      8          16        24                60     64
    +-------+---------+------+----------+---------+-----------------+------+
    | magic | version | zero | file key | owner   | zero            | CRC  |
    +-------+---------+------+----------+---------+-----------------+------+

*file key*: segment number (.qi, .qs) or file number (.rdq), 0 elsewhere. *owner*: queue id, 0 for the shared store.

Index slot (.qi), 32 bytes, slot ``seq_id % entries`` at ``64 + 32 * slot``::

    0        1       2          4        20       24           28     32
    +--------+-------+----------+--------+--------+------------+------+
    | status | flags | overhead | msg_id | offset | body bytes | CRC  |
    +--------+-------+----------+--------+--------+------------+------+

*status* 1 = present; *flags* bit 0 persistent, bit 1 in the shared store; *overhead*: bytes of the envelope beside the
body; *offset* in the .qs file (both 0 in the shared store). The CRC starts from the seq id, so that a slot in the
wrong place or of another segment is seen. An ack writes 32 zeros.

Record of a queue's own store (.qs): 12 bytes, then the envelope (see `node.message`)::

    0        4      8     10     11     12
    +--------+------+-----+------+------+----------+
    | length | CRC  | key | mark | zero | envelope |
    +--------+------+-----+------+------+----------+

*length* of the envelope; *key* the slot number; *mark* `RECORD_MARK`, by which a scan finds the next record behind
damage. The CRC covers the envelope and starts from the key.

Record of the shared store (.rdq): 12 bytes, then the envelope::

    0        4      8       10     11     12
    +--------+------+-------+------+------+----------+
    | length | CRC  | check | mark | kind | envelope |
    +--------+------+-------+------+------+----------+

*check*: CRC-16 (`binascii.crc_hqx`) of the 8 bytes before it, begun from the kind. It makes the length trustworthy
before the envelope is read: a flipped length cannot pass for a record that was cut off, and a walk over a file may hop
from header to header. *kind* 1: a message; 2: a hole, whose length says how many bytes to skip (they may hold anything,
CRC 0). The records of a file form a chain without gaps from byte 64 to its end.

Note of holes (.holes), written beside a .rdq file while its holes are being filled: the header, a count of 4 bytes, as
many pairs of 4-byte offsets (start, end), and a CRC over count and pairs. See
`node.store.shared.compaction.hole_filling`.

Tables of the shared store (clean.tables), left by a clean stop: see `node.store.shared.clean_tables`.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

HEADER_BYTES = 64
#: What `FileFormat.problem` says of a file whose making was interrupted: no damage.
NEVER_WRITTEN = "the header was never written"
_HEADER_BODY = struct.Struct(">4sB3xQQ36x")
CRC = struct.Struct(">I")

SLOT_BYTES = 32
#: Neighbouring records up to this many bytes apart are read with one call (the reference coalesces as well).
READ_GAP_BYTES_MAX = 4096
#: Everything of a slot but its CRC: status, flags, overhead, msg_id, offset, body bytes.
SLOT_BODY = struct.Struct(">BBH16sII")
#: Where the msg_id stands in a slot; it takes half of one.
SLOT_MSG_ID_AT = 4
ZERO_SLOT = bytes(SLOT_BYTES)
STATUS_PRESENT = 1
SLOT_PERSISTENT = 1
SLOT_SHARED = 2
SEQ_ID_CRC_MASK = 0xFFFFFFFF

#: length, CRC, key, mark
RECORD_HEADER = struct.Struct(">IIHBx")
RECORD_HEADER_BYTES = RECORD_HEADER.size
RECORD_MARK = 0xA7
#: Where the mark and the zero after it stand in a record.
_MARK_AT = 10
_MARK_BYTES = bytes((RECORD_MARK, 0))
#: length, CRC, check, mark, kind
STORE_RECORD_HEADER = struct.Struct(">IIHBB")
#: What the check of a store record covers: length and CRC.
STORE_RECORD_CHECKED = struct.Struct(">II")
KIND_MESSAGE = 1
KIND_HOLE = 2
#: A hole that the file system left for a page it never wrote.
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of file."""

    magic: bytes
    version: int
    suffix: str

    def header(self, file_key: int, owner: int) -> bytes:
        """The 64 bytes a file begins with."""
        body = _HEADER_BODY.pack(self.magic, self.version, file_key, owner)
        return body + CRC.pack(crc32(body))

    def _is_torn(self, content: bytes, file_key: int, owner: int) -> bool:
        """True for the beginning of the right header and nothing behind it: the file was being made when all stopped.

        A header is synced with the first thing that is, so such a file holds nothing that anybody was promised.
        """
        return self.header(file_key, owner).startswith(content.rstrip(b"\0"))

    def problem(self, content: bytes, file_key: int, owner: int) -> str:
        """Why ``content`` does not begin with the right header; empty if it does."""
        found = content[:HEADER_BYTES]
        if found == self.header(file_key, owner):
            return ""
        if not found.strip(b"\0") or self._is_torn(content, file_key, owner):
            return NEVER_WRITTEN
        if len(found) < HEADER_BYTES or crc32(found[:-4]) != CRC.unpack(found[-4:])[0]:
            return "the header is damaged"
        magic, version, found_key, found_owner = _HEADER_BODY.unpack_from(found)
        return (
            f"the header is another file's: {magic!r} version {version}, file {found_key}, owner {found_owner}; "
            f"expected {self.magic!r} version {self.version}, file {file_key}, owner {owner}"
        )


JOURNAL_FORMAT = FileFormat(b"WRIJ", 1, ".jif")
SEGMENT_FORMAT = FileFormat(b"WRIS", 1, ".idx")
INDEX_FORMAT = FileFormat(b"WRQI", 2, ".qi")
QUEUE_STORE_FORMAT = FileFormat(b"WRQS", 1, ".qs")
SHARED_STORE_FORMAT = FileFormat(b"WRDQ", 2, ".rdq")
HOLES_FORMAT = FileFormat(b"WRHL", 1, ".holes")
TABLES_FORMAT = FileFormat(b"WRCT", 1, ".tables")
TERMS_FORMAT = FileFormat(b"WRTM", 2, ".terms")
BOUNDS_FORMAT = FileFormat(b"WRSB", 1, ".bounds")


class Slot(NamedTuple):
    """One present index entry."""

    persistent: bool
    #: True if the message is in the shared store.
    shared: bool
    msg_id: bytes
    #: In the .qs file; 0 for the shared store.
    offset: int
    #: Bytes of the envelope in the .qs file beside the body; 0 for the shared store.
    overhead_bytes: int
    body_bytes: int


def slot_offset(seq_id: int, entries: int) -> int:
    """Where the slot of ``seq_id`` stands in the .qi file of its segment of ``entries`` entries."""
    return HEADER_BYTES + seq_id % entries * SLOT_BYTES


def pack_slot(seq_id: int, slot: Slot) -> bytes:
    """The 32 bytes of an entry. (`node.store.index.v2.index` does the same inline, for speed.)"""
    flags = slot.persistent * SLOT_PERSISTENT | slot.shared * SLOT_SHARED
    body = SLOT_BODY.pack(STATUS_PRESENT, flags, slot.overhead_bytes, slot.msg_id, slot.offset, slot.body_bytes)
    return body + CRC.pack(crc32(body, seq_id & SEQ_ID_CRC_MASK))


def unpack_slot(seq_id: int, data: bytes) -> Slot | None:
    """The entry in 32 bytes of status present; ``None`` if the checksum denies it."""
    body = data[:-4]
    if crc32(body, seq_id & SEQ_ID_CRC_MASK) != CRC.unpack(data[-4:])[0]:
        return None
    _, flags, overhead_bytes, msg_id, offset, body_bytes = SLOT_BODY.unpack(body)
    return Slot(bool(flags & SLOT_PERSISTENT), bool(flags & SLOT_SHARED), msg_id, offset, overhead_bytes, body_bytes)


def is_torn_slot(seq_id: int, data: bytes) -> bool:
    """True if 32 bytes with a wrong checksum look like a write cut short over zeros: (the end of) the checksum is
    missing."""
    written = data[-4:].rstrip(b"\0")
    return not written or CRC.pack(crc32(data[:-4], seq_id & SEQ_ID_CRC_MASK)).startswith(written)


def pack_record(key: int, envelope: bytes) -> bytes:
    """Header and envelope. (The hot writers do the same inline.)"""
    return RECORD_HEADER.pack(len(envelope), crc32(envelope, key), key, RECORD_MARK) + envelope


def unpack_record(data: bytes, offset: int, key: int) -> bytes | None:
    """The envelope of the record at ``offset``; ``None`` if there is none, or the checksum denies it."""
    start = offset + RECORD_HEADER_BYTES
    if start > len(data):
        return None
    length, checksum, found_key, mark = RECORD_HEADER.unpack_from(data, offset)
    if mark != RECORD_MARK or found_key != key or start + length > len(data):
        return None
    envelope = data[start : start + length]
    return envelope if crc32(envelope, key) == checksum else None


def is_torn_record(data: bytes, offset: int, size: int) -> bool:
    """True if the unreadable record at ``offset``, with an envelope of ``size`` bytes, looks never (wholly) written.

    It ends behind the end of the file, or one of the pages it lies in (its share of it) is a hole of zeros.
    """
    end = offset + RECORD_HEADER_BYTES + size
    if end > len(data):
        return True
    if not data[offset : offset + RECORD_HEADER_BYTES].strip(b"\0"):
        return True
    page_start = offset
    while page_start < end:
        page_end = min(end, (page_start // _PAGE_BYTES + 1) * _PAGE_BYTES)
        if page_end - page_start >= RECORD_HEADER_BYTES and not data[page_start:page_end].strip(b"\0"):
            return True
        page_start = page_end
    return False


class ScannedRecord(NamedTuple):
    """One readable record found by `scan_records`."""

    offset: int
    envelope: bytes


class Damage(NamedTuple):
    """A run of bytes that holds no readable record."""

    offset: int
    size: int
    #: True if it is an unfinished record at the end of the file, or nothing but zeros: a write that never finished.
    torn: bool


def scan_records(data: bytes, start: int, key: int = 0) -> Iterator[ScannedRecord | Damage]:
    """Every readable record in order, and the damage between and behind them."""
    position = start
    end = len(data)
    while position < end:
        envelope = unpack_record(data, position, key)
        if envelope is not None:
            yield ScannedRecord(position, envelope)
            position += RECORD_HEADER_BYTES + len(envelope)
            continue
        following = _next_record(data, position + 1, key)
        torn = not data[position:following].strip(b"\0") or (following == end and _is_torn_tail(data, position))
        yield Damage(position, following - position, torn)
        position = following


def _is_torn_tail(data: bytes, position: int) -> bool:
    """True unless a whole record stands there, of which only the checksum is wrong."""
    if len(data) - position < RECORD_HEADER_BYTES:
        return True
    length, _, _, mark = RECORD_HEADER.unpack_from(data, position)
    return mark != RECORD_MARK or is_torn_record(data, position, length)


def _next_record(data: bytes, position: int, key: int) -> int:
    """Offset of the first readable record at or after ``position``, or the end of the data."""
    mark = data.find(_MARK_BYTES, position + _MARK_AT)
    while mark >= 0:
        if unpack_record(data, mark - _MARK_AT, key) is not None:
            return mark - _MARK_AT
        mark = data.find(_MARK_BYTES, mark + 1)
    return len(data)


class StoreRecordHeader(NamedTuple):
    """Header of a record in a .rdq file, its check passed."""

    kind: int
    #: Bytes behind the header.
    length: int
    #: Of the envelope; 0 for a hole.
    checksum: int


def pack_store_record_header(kind: int, length: int, checksum: int) -> bytes:
    """Header of a record in a .rdq file. (`node.store.shared.msg_store` does the same inline, for speed.)"""
    check = crc_hqx(STORE_RECORD_CHECKED.pack(length, checksum), kind)
    return STORE_RECORD_HEADER.pack(length, checksum, check, RECORD_MARK, kind)


def pack_hole(size: int) -> bytes:
    """Header of a hole that takes ``size`` bytes of a .rdq file, header included."""
    return pack_store_record_header(KIND_HOLE, size - RECORD_HEADER_BYTES, 0)


def unpack_store_record_header(data: bytes, offset: int) -> StoreRecordHeader | None:
    """The header at ``offset``; ``None`` if it is cut off or its check denies it."""
    if offset + RECORD_HEADER_BYTES > len(data):
        return None
    length, checksum, check, mark, kind = STORE_RECORD_HEADER.unpack_from(data, offset)
    if mark != RECORD_MARK or not KIND_MESSAGE <= kind <= KIND_HOLE:
        return None
    if crc_hqx(data[offset : offset + 8], kind) != check:
        return None
    return StoreRecordHeader(kind, length, checksum)


def pack_holes_note(number: int, ranges: Sequence[int]) -> bytes:
    """Content of a note of holes for file ``number``; ``ranges`` alternates starts and ends, ascending."""
    body = struct.pack(f">{len(ranges) + 1}I", len(ranges) // 2, *ranges)
    return HOLES_FORMAT.header(number, 0) + body + CRC.pack(crc32(body))


def unpack_holes_note(number: int, content: bytes) -> list[tuple[int, int]] | None:
    """The (start, end) pairs of a note; ``None`` if it is not whole."""
    if HOLES_FORMAT.problem(content, number, 0) or len(content) < HEADER_BYTES + 8:
        return None
    body = content[HEADER_BYTES:-4]
    (count,) = CRC.unpack_from(body)
    if len(body) != 4 + 8 * count or crc32(body) != CRC.unpack(content[-4:])[0]:
        return None
    ranges = struct.unpack_from(f">{2 * count}I", body, 4)
    return list(zip(ranges[::2], ranges[1::2], strict=True))
