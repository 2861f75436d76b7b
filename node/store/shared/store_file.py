"""Reading the chain of records in one file of the shared store, by pieces of bounded size.

Two readers, for two questions. `scan_store_file` asks at a start after a crash, and trusts nothing: every checksum is
computed, whatever does not fit is reported as damage or as a write that never finished, and the scan goes on behind it.
`ChainWalk` asks in normal work, of a file known to be whole: it hops from header to header.

**Damage or unfinished?** Appends that a crash interrupted leave one of these, and nothing else is called *torn*:

- zeros, where a write was lost and a later one was not;
- the beginning of a hole's header, and zeros: such zeros were being made a hole when a crash came again;
- at the end of the file, the beginning of a record: fewer bytes than a header, or a header whose check fits and whose
  length leads beyond the end;
- at the end of the file, whatever ends with zeros from the border of a page on: the file system had the length on disk
  before what is there. (A flipped bit in a last message that itself ends so is not told from that.)

Everything else is damage, a single flipped bit included: in a header the check sees it, in an envelope the CRC. What a
crash leaves of a compaction needs no judgement: a note says which ranges to pass over
(`node.store.shared.compaction.hole_filling`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk.disk import DiskFile
from node.store.formats.record import (
    HEADER_BYTES,
    KIND_HOLE,
    KIND_MESSAGE,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    Damage,
    pack_hole,
    unpack_store_record_header,
)
from node.store.shared.location_table import LocationTable

#: A scan reads so much with one call: it runs before anybody waits for answers.
SCAN_PIECE_BYTES = 1 << 20
#: A walk reads so much with one call while records are small; it runs between the messages of clients.
WALK_PIECE_BYTES = 64 * 1024
#: A walk has the system fetch so many steps ahead: some milliseconds, while they go on quickly.
STEPS_AHEAD = 12
#: And asks for no more than so many at a time.
STEPS_ASKED_MAX = 4
#: What a walk looks at of each record: header and msg_id.
HEAD_BYTES = RECORD_HEADER_BYTES + MSG_ID_BYTES
#: No record is shorter, so no smaller room is of use.
RECORD_BYTES_MIN = HEAD_BYTES
#: Where the mark stands in a header; the kind follows it.
_MARK_AT = 10
#: Of the file system.
_PAGE_BYTES = 4096


class StoredRecord(NamedTuple):
    """A readable message found by a scan."""

    offset: int
    #: Of the envelope.
    size: int
    msg_id: MsgId


class PieceReader:
    """Bytes of a file by offset, read ahead in pieces."""

    __slots__ = ("_data", "_file", "_on_read", "_piece_bytes", "_start", "end")

    def __init__(self, file: DiskFile, piece_bytes: int, on_read: Callable[[int], None] = lambda _size: None) -> None:
        self._file = file
        self._piece_bytes = piece_bytes
        self._on_read = on_read
        self._data = b""
        self._start = 0
        #: Size of the file.
        self.end = file.size

    def at(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset``, fewer only at the end of the file."""
        start = offset - self._start
        if not 0 <= start <= len(self._data) - size:
            if offset >= self.end:
                return b""
            self._data = self._file.pread(max(size, self._piece_bytes), offset)
            self._start = offset
            self._on_read(len(self._data))
            start = 0
        return self._data[start : start + size]

    def pieces(self, offset: int, size: int) -> Iterator[bytes]:
        """The same for any size, by pieces."""
        end = min(offset + size, self.end)
        while offset < end:
            piece = self.at(offset, min(end - offset, self._piece_bytes))
            if not piece:
                return
            yield piece
            offset += len(piece)


def scan_store_file(
    file: DiskFile, ignored: Sequence[tuple[int, int]] = (), on_read: Callable[[int], None] = lambda _size: None
) -> Iterator[StoredRecord | Damage]:
    """Every readable message in order, and the damage between and behind them.

    ``ignored`` are ascending (start, end) ranges that hold nothing of use. ``on_read`` hears how many bytes were read.
    Raises `StorageError` if the disk refuses.
    """
    reader = PieceReader(file, SCAN_PIECE_BYTES, on_read)
    position = HEADER_BYTES
    for start, end in ignored:
        yield from _scan_stretch(reader, position, min(start, reader.end))
        position = max(position, end)
    yield from _scan_stretch(reader, position, reader.end)


def _scan_stretch(reader: PieceReader, position: int, end: int) -> Iterator[StoredRecord | Damage]:
    while position < end:
        size = _whole_record(reader, position, end)
        if not size:
            following = _next_record(reader, position + 1, end)
            yield Damage(position, following - position, _is_torn(reader, position, following, end))
            position = following
            continue
        head = reader.at(position, HEAD_BYTES)
        header = unpack_store_record_header(head, 0)
        if header is not None and header.kind == KIND_MESSAGE:
            yield StoredRecord(position, header.length, MsgId(head[RECORD_HEADER_BYTES:]))
        position += size


def _whole_record(reader: PieceReader, position: int, end: int) -> int:
    """Bytes of the record or hole at ``position``, if everything about it fits; else 0."""
    header = unpack_store_record_header(reader.at(position, RECORD_HEADER_BYTES), 0)
    if header is None or position + RECORD_HEADER_BYTES + header.length > end:
        return 0
    if header.kind == KIND_MESSAGE:
        if header.length < MSG_ID_BYTES:
            return 0
        checksum = 0
        for piece in reader.pieces(position + RECORD_HEADER_BYTES, header.length):
            checksum = crc32(piece, checksum)
        if checksum != header.checksum:
            return 0
    return RECORD_HEADER_BYTES + header.length


def _next_record(reader: PieceReader, position: int, end: int) -> int:
    """Offset of the first whole record at or after ``position``, or the end."""
    at = position
    while at < end:
        # Pieces overlap by a header, so that no mark and kind are cut apart.
        piece = reader.at(at, min(SCAN_PIECE_BYTES, end - at))
        mark = piece.find(RECORD_MARK, _MARK_AT)
        while 0 <= mark < len(piece) - 1:
            if KIND_MESSAGE <= piece[mark + 1] <= KIND_HOLE and _whole_record(reader, at + mark - _MARK_AT, end):
                return at + mark - _MARK_AT
            mark = piece.find(RECORD_MARK, mark + 1)
        if at + len(piece) >= end:
            break
        at += max(1, len(piece) - RECORD_HEADER_BYTES)
    return end


def _is_torn(reader: PieceReader, position: int, following: int, end: int) -> bool:
    """Whether unreadable bytes are what a crash leaves of appends; see the module text."""
    first = position
    for piece in reader.pieces(position, following - position):
        rest = piece.lstrip(b"\0")
        if rest:
            first += len(piece) - len(rest)
            break
        first += len(piece)
    if first >= following:
        return True
    size = following - position
    if size >= RECORD_HEADER_BYTES and first < position + RECORD_HEADER_BYTES:
        head = reader.at(position, RECORD_HEADER_BYTES)
        others = reader.pieces(position + RECORD_HEADER_BYTES, size - RECORD_HEADER_BYTES)
        if pack_hole(size).startswith(head.rstrip(b"\0")) and not any(piece.strip(b"\0") for piece in others):
            return True
    if following < end:
        return False
    # A length begins with up to three zeros, which then look like the end of what was lost before it.
    for start in range(max(position, first - 3), first + 1):
        if end - start < RECORD_HEADER_BYTES:
            return True
        header = unpack_store_record_header(reader.at(start, RECORD_HEADER_BYTES), 0)
        if header is not None and start + RECORD_HEADER_BYTES + header.length > end:
            return True
    # Fewer zeros than a header may be the end of any message.
    border = (end - RECORD_HEADER_BYTES) // _PAGE_BYTES * _PAGE_BYTES
    return border > position and not reader.at(border, end - border).strip(b"\0")


class ChainWalk:
    """Which records of a whole file are alive, found in bounded steps. Raises nothing: see ``is_broken``."""

    __slots__ = (
        "_asked_until",
        "_end",
        "_file_number",
        "_last_size",
        "_marks_apart",
        "_next_mark",
        "_position",
        "_table",
        "holes",
        "is_broken",
        "live_bytes",
        "marks",
        "offsets",
        "sizes",
    )

    def __init__(self, table: LocationTable, file_number: int, end: int, marks_apart: int = 0) -> None:
        """Walk file ``file_number`` up to byte ``end``; mark a record every ``marks_apart`` bytes, unless 0."""
        self._table = table
        self._file_number = file_number
        self._end = end
        self._position = self._asked_until = HEADER_BYTES
        self._last_size = 0
        #: Offset and size (header included) of each live record, ascending.
        self.offsets = array("I")
        self.sizes = array("I")
        self.live_bytes = 0
        #: Starts and ends, alternating, of the ranges between them, up to the end of the file.
        self.holes = array("I")
        #: Offsets of some records, whether alive, dead, or of a hole, ascending.
        self.marks = array("I")
        self._marks_apart = marks_apart
        self._next_mark = HEADER_BYTES + marks_apart if marks_apart else end
        #: The chain ended before the file did: there is damage, or a hole that a crash tore.
        self.is_broken = False

    @property
    def is_done(self) -> bool:
        return self.is_broken or self._position >= self._end

    def will_step(self, file: DiskFile, bytes_max: int) -> bool:
        """A step of ``bytes_max`` follows: have the system fetch what is on the disk only, for this one and some after
        it. False if it should not follow before the system had time for that. (Of big records no more than their heads
        are read.)"""
        goal = min(self._position + STEPS_AHEAD * bytes_max, self._end)
        if self._last_size >= WALK_PIECE_BYTES or goal <= self._asked_until:
            return True
        has_asked = self._asked_until > self._position
        asked_from = max(self._asked_until, self._position)
        self._asked_until = min(asked_from + STEPS_ASKED_MAX * bytes_max, goal)
        file.will_read(self._asked_until - asked_from, asked_from)
        return has_asked and self._asked_until == goal

    def step(self, file: DiskFile, bytes_max: int, records_max: int) -> None:
        """Look at so much more. Raises `StorageError` if the disk refuses."""
        position, end = self._position, self._end
        number, is_at, holes = self._file_number, self._table.is_at, self.holes
        reader = PieceReader(file, WALK_PIECE_BYTES if self._last_size < WALK_PIECE_BYTES else HEAD_BYTES)
        stop = position + bytes_max
        for _ in range(records_max):
            if position >= end or position >= stop:
                break
            head = reader.at(position, HEAD_BYTES)
            header = unpack_store_record_header(head, 0)
            if header is None or position + RECORD_HEADER_BYTES + header.length > end:
                self.is_broken = True
                break
            if position >= self._next_mark:
                self.marks.append(position)
                self._next_mark = position + self._marks_apart
            size = self._last_size = RECORD_HEADER_BYTES + header.length
            if header.kind == KIND_MESSAGE and is_at(head[RECORD_HEADER_BYTES:], number, position):
                self.offsets.append(position)
                self.sizes.append(size)
                self.live_bytes += size
            elif holes and holes[-1] == position:
                holes[-1] = position + size
            else:
                holes.extend((position, position + size))
            position += size
        self._position = position
