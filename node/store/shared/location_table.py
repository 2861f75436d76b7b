"""Where each message of a shared store is: a hash table for millions of entries without an object for each.

An entry takes 32 bytes: msg_id (16), then file, offset, size and references of 4 bytes each. Entries lie in *pages*,
small byte arrays that hold some `PAGE_ENTRIES` of them, in no order and without gaps. The page of a msg_id follows from
its CRC-32; within the page the id is found by `bytearray.find`, which compares at the speed of C. An entry is
deleted by moving the last of its page into its place, so there are no tombstones.

**Growth** is linear hashing (Litwin 1980): whenever the pages hold more than `PAGE_ENTRIES` on average, *one* page is
split in two, in the order of their numbers; page ``n`` is split from page ``n - half``, where ``half`` is the largest
power of two not above ``n``. Shrinking undoes the last split. So no operation ever moves more than the entries of one
page, some tens, and there is no moment at which the whole table is rebuilt.

**Memory**: 32 bytes of entry, some 6 for the page's object and its place in the list, and the spare room that a growing
byte array keeps: 38 to 40 bytes per message as the allocator counts them (a dict of objects took 350). After a purge
the pages are merged again and the memory is given back.

The hash does not depend on the process, so a clean stop saves the pages as they are and the next start reads them
without looking at a single entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import crc32

from node.ids import MSG_ID_BYTES, MsgId

#: Average entries of a page above which one page is split. More would cost time in every search (12 ns per entry),
#: fewer would cost memory (90 bytes per page).
PAGE_ENTRIES = 16
#: Average below which two pages become one: far enough from the above that nothing swings.
PAGE_ENTRIES_MIN = 6
#: Pages written and read with one call of a clean stop: about half a megabyte.
_DUMP_PAGES = 1024

ENTRY_BYTES = 32
_ALIGNED = ENTRY_BYTES - 1
_FIELDS = struct.Struct(">IIII")
_ENTRY = struct.Struct(">16sIIII")
_REFERENCES = struct.Struct(">I")
_REFERENCES_AT = ENTRY_BYTES - 4
_DUMP_HEADER = struct.Struct(">QI")

#: Gives exactly so many of the next bytes, or raises `ValueError`.
Reader = Callable[[int], bytes]


class Location(NamedTuple):
    """Where a message is. ``size`` counts the envelope."""

    file: int
    offset: int
    size: int
    references: int


def _aligned(page: bytearray, msg_id: bytes, at: int) -> int:
    """Where the entry of ``msg_id`` begins, at or behind ``at``, where its bytes were found; -1 if nowhere.

    Bytes that span the fields of two neighbours may look like an id.
    """
    while at >= 0 and at & _ALIGNED:
        at = page.find(msg_id, at + 1)
    return at


class LocationTable:
    """See the module text. Ids are 16 bytes; all fields are below 2**32."""

    __slots__ = ("_count", "_high", "_pages")

    def __init__(self) -> None:
        self._pages: list[bytearray] = [bytearray()]
        #: Addresses are the CRC's bits under this mask; those that are no page yet drop the highest bit.
        self._high = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _page(self, msg_id: bytes) -> bytearray:
        pages = self._pages
        checksum = crc32(msg_id)
        number = checksum & self._high
        return pages[number] if number < len(pages) else pages[checksum & (self._high >> 1)]

    def get(self, msg_id: bytes) -> Location | None:
        """Where a message is; ``None`` if it is unknown."""
        page = self._page(msg_id)
        at = page.find(msg_id)
        if at & _ALIGNED:
            at = _aligned(page, msg_id, at)
        return Location._make(_FIELDS.unpack_from(page, at + MSG_ID_BYTES)) if at >= 0 else None

    def __contains__(self, msg_id: bytes) -> bool:
        page = self._page(msg_id)
        at = page.find(msg_id)
        return (_aligned(page, msg_id, at) if at & _ALIGNED else at) >= 0

    def is_at(self, msg_id: bytes, file: int, offset: int) -> bool:
        """True if the live copy of a message is exactly there."""
        page = self._page(msg_id)
        at = page.find(msg_id)
        if at & _ALIGNED:
            at = _aligned(page, msg_id, at)
        return at >= 0 and _FIELDS.unpack_from(page, at + MSG_ID_BYTES)[:2] == (file, offset)

    def add(self, msg_id: bytes, file: int, offset: int, size: int, references: int) -> None:
        """A message that is not in the table."""
        page = self._page(msg_id)
        page += _ENTRY.pack(msg_id, file, offset, size, references)
        self._count += 1
        if self._count > PAGE_ENTRIES * len(self._pages):
            self._split()

    def retain(self, msg_id: bytes) -> bool:
        """Count one more reference; false if the message is unknown."""
        page = self._page(msg_id)
        at = page.find(msg_id)
        if at & _ALIGNED:
            at = _aligned(page, msg_id, at)
        if at < 0:
            return False
        at += _REFERENCES_AT
        _REFERENCES.pack_into(page, at, _REFERENCES.unpack_from(page, at)[0] + 1)
        return True

    def release(self, msg_id: bytes) -> Location | None:
        """Count one reference less. With the last one the entry goes, and where the message was is returned.

        Raises `KeyError` for an unknown message.
        """
        page = self._page(msg_id)
        at = page.find(msg_id)
        if at & _ALIGNED:
            at = _aligned(page, msg_id, at)
        if at < 0:
            raise KeyError(msg_id)
        location = Location._make(_FIELDS.unpack_from(page, at + MSG_ID_BYTES))
        if location.references > 1:
            _REFERENCES.pack_into(page, at + _REFERENCES_AT, location.references - 1)
            return None
        page[at : at + ENTRY_BYTES] = page[-ENTRY_BYTES:]
        del page[-ENTRY_BYTES:]
        self._count -= 1
        if self._count < PAGE_ENTRIES_MIN * len(self._pages) - PAGE_ENTRIES_MIN:
            self._merge()
        return location

    def move(self, msg_id: bytes, old: tuple[int, int], new: tuple[int, int]) -> int:
        """Let the entry point to another copy, if it points to ``old`` (file, offset). Returns the envelope's size, or
        0 if it did not: the message was settled, or settled and written again."""
        page = self._page(msg_id)
        at = page.find(msg_id)
        if at & _ALIGNED:
            at = _aligned(page, msg_id, at)
        if at < 0:
            return 0
        file, offset, size, references = _FIELDS.unpack_from(page, at + MSG_ID_BYTES)
        if (file, offset) != old:
            return 0
        _FIELDS.pack_into(page, at + MSG_ID_BYTES, *new, size, references)
        return int(size)

    # -- pages

    def _split(self) -> None:
        pages = self._pages
        number = len(pages)
        if number > self._high:
            self._high = self._high * 2 + 1
        high = self._high
        half = (high + 1) >> 1
        page = pages[number - half]
        stay: list[bytes] = []
        go: list[bytes] = []
        content = bytes(page)
        for at in range(0, len(content), ENTRY_BYTES):
            is_leaving = crc32(content[at : at + MSG_ID_BYTES]) & high == number
            (go if is_leaving else stay).append(content[at : at + ENTRY_BYTES])
        # New arrays, since one that shrinks keeps its room.
        pages[number - half] = bytearray(b"".join(stay))
        pages.append(bytearray(b"".join(go)))

    def _merge(self) -> None:
        page = self._pages.pop()
        number = len(self._pages)
        half = (self._high + 1) >> 1
        self._pages[number - half] += page
        if number == half:
            self._high >>= 1

    def items(self) -> Iterator[tuple[MsgId, Location]]:
        """Every entry, in no order. The table must not change meanwhile."""
        for page in self._pages:
            for msg_id, *fields in _ENTRY.iter_unpack(page):
                yield MsgId(msg_id), Location._make(fields)

    # -- clean stop

    def dump(self) -> Iterator[bytes]:
        """The table in pieces, for `load`."""
        pages = self._pages
        yield _DUMP_HEADER.pack(self._count, len(pages))
        for first in range(0, len(pages), _DUMP_PAGES):
            group = pages[first : first + _DUMP_PAGES]
            lengths = struct.pack(f">{len(group)}I", *map(len, group))
            yield lengths + b"".join(group)

    def load(self, read: Reader) -> None:
        """Replace the content by a dump; ``read`` gives the next bytes of it. Raises `ValueError` if it is none."""
        for _ in self.load_in_pieces(read):
            pass

    def load_in_pieces(self, read: Reader) -> Iterator[None]:
        """The same, some thousand entries per item."""
        count, page_count = _DUMP_HEADER.unpack(read(_DUMP_HEADER.size))
        pages: list[bytearray] = []
        while len(pages) < page_count:
            group = min(_DUMP_PAGES, page_count - len(pages))
            lengths = struct.unpack(f">{group}I", read(4 * group))
            content = read(sum(lengths))
            at = 0
            for length in lengths:
                pages.append(bytearray(content[at : at + length]))
                at += length
            yield
        if not pages or sum(map(len, pages)) != count * ENTRY_BYTES:
            raise ValueError(f"a table of {count} entries does not fill its {page_count} pages")
        self._pages = pages
        self._count = count
        self._high = (1 << (page_count - 1).bit_length()) - 1

    def take_over(self, other: LocationTable) -> None:
        """Take the content of another table, which must not be used any more."""
        self._pages, self._high, self._count = other._pages, other._high, other._count

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the table contradicts itself. Visits every entry."""
        seen: set[bytes] = set()
        for number, page in enumerate(self._pages):
            assert len(page) % ENTRY_BYTES == 0, f"page {number} holds whole entries"
            for msg_id, _, _, _, references in _ENTRY.iter_unpack(page):
                assert self._page(msg_id) is page, f"{msg_id.hex()} is in the page where it is looked for"
                assert msg_id not in seen, f"{msg_id.hex()} is in the table once"
                assert references, f"{msg_id.hex()} without references is garbage, not an entry"
                seen.add(msg_id)
        assert len(seen) == self._count, "every entry is counted"
        assert self._high >> 1 < len(self._pages) <= self._high + 1, "the mask reaches every page, and no bit is idle"
