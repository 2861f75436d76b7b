"""What both kinds of compaction share: reading a live record, copying a big one by pieces, and switching the tables."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from typing import Protocol
from zlib import crc32

from node.errors import StorageError
from node.ids import MSG_ID_BYTES
from node.store.disk.disk import DiskFile
from node.store.formats.record import KIND_MESSAGE, RECORD_HEADER_BYTES, unpack_store_record_header
from node.store.shared.location_table import LocationTable
from node.store.shared.store_file import HEAD_BYTES, ChainWalk
from node.store.shared.store_files import StoreFiles

#: A step of compaction reads or copies so much: a tenth of a millisecond, so that no client notices it even where
#: everything takes ten times as long for a moment. How many steps follow each other, whoever owns the store decides.
STEP_BYTES = 128 * 1024
#: And looks at so many records, at 1 to 2 microseconds each.
STEP_RECORDS = 128


class Compaction(Protocol):
    """One compaction under way, of one or two files."""

    #: Bytes of live records it copied.
    moved_bytes: int
    is_done: bool

    def step(self) -> bool:
        """Do one bounded piece of work; false if it waits for the disk. Raises `StorageError` and
        `BrokenSourceError`: then `fail` is due."""

    def fail(self) -> None:
        """A step raised: leave the store as it was. Does not raise."""

    def settle(self) -> None:
        """The store closes: finish, or leave no trace, and make it durable, on this thread. Raises `StorageError`."""


class BrokenSourceError(Exception):
    """A live record of a file could not be read: the file is left as it is, for a person to look at."""

    def __init__(self, number: int) -> None:
        super().__init__(f"file {number} has a live record that cannot be read")
        self.number = number


class Moves:
    """Records that have a second copy in file ``new_file``, to which the tables shall point."""

    __slots__ = ("_done", "_files", "_msg_ids", "_new_offsets", "_old_files", "_old_offsets", "_table", "new_file")

    def __init__(self, files: StoreFiles, table: LocationTable, new_file: int) -> None:
        self._files = files
        self._table = table
        self.new_file = new_file
        self._msg_ids = bytearray()
        self._old_files = array("I")
        self._old_offsets = array("I")
        self._new_offsets = array("I")
        #: So many of them are switched.
        self._done = 0

    def __len__(self) -> int:
        return len(self._old_offsets)

    def add(self, msg_id: bytes, old_file: int, old_offset: int, new_offset: int) -> None:
        """One more."""
        self._msg_ids += msg_id
        self._old_files.append(old_file)
        self._old_offsets.append(old_offset)
        self._new_offsets.append(new_offset)

    @property
    def are_switched(self) -> bool:
        return self._done == len(self._old_offsets)

    def switch(self, records_max: int) -> None:
        """Let the tables point to the new copies of so many more. Of what was settled meanwhile nothing is left."""
        move, new_file = self._table.move, self.new_file
        end = min(self._done + records_max, len(self._old_offsets))
        for at in range(self._done, end):
            old_file = self._old_files[at]
            msg_id = bytes(self._msg_ids[at * MSG_ID_BYTES : (at + 1) * MSG_ID_BYTES])
            size = move(msg_id, (old_file, self._old_offsets[at]), (new_file, self._new_offsets[at]))
            if size and old_file != new_file:
                self._files.transfer(old_file, new_file, RECORD_HEADER_BYTES + size)
        self._done = end


#: What is done in order: each item ends a step, and is false if the next should come with a later turn, when
#: the disk had time.
Steps = Generator[bool, None, None]


def walk_through(files: StoreFiles, number: int, walk: ChainWalk) -> Steps:
    """Find out what is alive in a file. Raises `StorageError`."""
    while not walk.is_done:
        while not walk.will_step(files.handle(number), STEP_BYTES):
            yield False
        walk.step(files.handle(number), STEP_BYTES, STEP_RECORDS)
        yield True


def read_source(files: StoreFiles, number: int, size: int, offset: int) -> bytes:
    """Bytes of a file that is being compacted. Raises `BrokenSourceError` if the disk refuses."""
    try:
        return files.handle(number).pread(size, offset)
    except StorageError as error:
        raise BrokenSourceError(number) from error


def checked_msg_id(number: int, record: bytes) -> bytes:
    """The msg_id of a whole record. Raises `BrokenSourceError` if a checksum denies it."""
    header = unpack_store_record_header(record, 0)
    if (
        header is None
        or header.kind != KIND_MESSAGE
        or header.length != len(record) - RECORD_HEADER_BYTES
        or crc32(memoryview(record)[RECORD_HEADER_BYTES:]) != header.checksum
    ):
        raise BrokenSourceError(number)
    return record[RECORD_HEADER_BYTES:HEAD_BYTES]


def copy_big_record(
    files: StoreFiles, number: int, offset: int, size: int, target: Callable[[], DiskFile], target_offset: int
) -> Generator[bool, None, bytes]:
    """Copy a record too big for one step, `STEP_BYTES` at a time, and return its msg_id.

    ``target`` gives the file to write to; it may be another object in every step. Raises `StorageError`, and
    `BrokenSourceError` behind the last piece if the checksum denies what was copied.
    """
    head = read_source(files, number, HEAD_BYTES, offset)
    header = unpack_store_record_header(head, 0)
    if header is None or header.kind != KIND_MESSAGE or header.length != size - RECORD_HEADER_BYTES:
        raise BrokenSourceError(number)
    checksum = 0
    for at in range(0, size, STEP_BYTES):
        piece = read_source(files, number, min(STEP_BYTES, size - at), offset + at)
        checksum = crc32(memoryview(piece)[RECORD_HEADER_BYTES:] if not at else piece, checksum)
        target().pwrite(piece, target_offset + at)
        yield True
    if checksum != header.checksum:
        raise BrokenSourceError(number)
    return head[RECORD_HEADER_BYTES:]
