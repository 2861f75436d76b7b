"""How long each file of a vhost durably is, in a file of its own.

A file that is only appended to cannot say where it should end: cut at the border of two records it looks as if the
last ones had never been written. So whatever was synced is noted here, and at the next start a file that is shorter
than its note has lost durable bytes: damage, not an unfinished write.

One slot of 32 bytes per file, behind the usual header, of which the owner is the number of slots (all numbers
big-endian)::

    0      1      4     8          16       24       32
    +------+------+-----+----------+--------+--------+
    | kind | zero | CRC | queue id | number | length |
    +------+------+-----+----------+--------+--------+

*kind*: position in `SUFFIXES`, from 1; 0 in a free slot. *queue id*: 0 for the shared store. The CRC covers everything
else and starts from the slot's number. Slots are overwritten in place, so the file stays small, and a torn one loses
one note and nothing more.

**A note may say less than the truth, never more.** *Less*: notes are written once a second or so, and a crash may take
the last of them. *More* would be a false alarm. So before a file gets shorter, or one of the same name is begun anew,
its note must be lowered for good (`lower_for_good`); a file that is gone is not missed, so deleting needs no such care.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import NamedTuple
from zlib import crc32

from node.errors import StorageError
from node.pieces import Pieces, at_once
from node.store.disk.disk import Disk, DiskFile, read_whole
from node.store.disk.group_commit import Syncable
from node.store.formats.record import (
    BOUNDS_FORMAT,
    HEADER_BYTES,
    INDEX_FORMAT,
    JOURNAL_FORMAT,
    QUEUE_STORE_FORMAT,
    SEGMENT_FORMAT,
    SHARED_STORE_FORMAT,
    FileFormat,
)

LENGTHS_FORMAT = FileFormat(b"WRDL", 1, ".lengths")
LENGTHS_NAME = "durable.lengths"
#: What is noted; the order is part of the format.
SUFFIXES = (
    INDEX_FORMAT.suffix,
    QUEUE_STORE_FORMAT.suffix,
    JOURNAL_FORMAT.suffix,
    SEGMENT_FORMAT.suffix,
    BOUNDS_FORMAT.suffix,
    SHARED_STORE_FORMAT.suffix,
)
_BOUNDS_KIND = SUFFIXES.index(BOUNDS_FORMAT.suffix) + 1
_SHARED_KIND = SUFFIXES.index(SHARED_STORE_FORMAT.suffix) + 1
_BOUNDS_STEM = "seq"
QUEUES, SHARED_STORE = "queues", "msg_store_persistent"

#: Notes that one call of `LengthFile.write` writes: two milliseconds if no two are neighbours.
NOTES_PER_WRITE = 1024
#: And slots that one step reads: less than a millisecond.
SLOTS_PER_PIECE = 256
_SLOT = struct.Struct(">B3xIQQQ")
_FREE_SLOT = bytes(_SLOT.size)
#: Where the header of a file has its owner (`node.store.formats.record`).
_OWNER = slice(16, 24)
#: `_Note.slot` before the first write.
_NO_SLOT = -1


class FileKey(NamedTuple):
    """A file of which the length is noted."""

    kind: int
    queue_id: int
    #: Of the segment, journal or store file; 0 for the bounds.
    number: int

    @property
    def path(self) -> str:
        """Below the vhost's directory."""
        suffix = SUFFIXES[self.kind - 1]
        if self.kind == _SHARED_KIND:
            return f"{SHARED_STORE}/{self.number}{suffix}"
        stem = _BOUNDS_STEM if self.kind == _BOUNDS_KIND else self.number
        return f"{QUEUES}/{self.queue_id}/{stem}{suffix}"


def file_key(path: str) -> FileKey | None:
    """Of a path below the vhost's directory; ``None`` if the length of such a file is not noted."""
    directory, _, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    parent, _, owner = directory.rpartition("/")
    if dot + suffix not in SUFFIXES:
        return None
    kind = SUFFIXES.index(dot + suffix) + 1
    if kind == _SHARED_KIND:
        return FileKey(kind, 0, int(stem)) if directory == SHARED_STORE and stem.isdigit() else None
    if parent != QUEUES or not owner.isdigit():
        return None
    if kind == _BOUNDS_KIND:
        return FileKey(kind, int(owner), 0) if stem == _BOUNDS_STEM else None
    return FileKey(kind, int(owner), int(stem)) if stem.isdigit() else None


def _pack_slot(slot: int, key: FileKey, length: int) -> bytes:
    body = _SLOT.pack(key.kind, 0, key.queue_id, key.number, length)
    return _SLOT.pack(key.kind, crc32(body, slot), key.queue_id, key.number, length)


class _Content:
    """What a file of notes says."""

    def __init__(self, content: bytes) -> None:
        """Nothing of it is read before `reading`."""
        self._content = content
        #: Slots that cannot be read, or are missing at the end.
        self.bad_slots: list[int] = []
        self.slots: dict[FileKey, tuple[int, int]] = {}
        slot_count = int.from_bytes(content[_OWNER], "big")
        #: Why the header cannot be believed; empty if it can.
        self.problem = LENGTHS_FORMAT.problem(content, 0, slot_count)
        if self.problem:
            slot_count = 0
        self.header_slot_count = slot_count
        slot_bytes = max(0, len(content) - HEADER_BYTES)
        self.slot_count = max(slot_count, -(-slot_bytes // _SLOT.size))

    def reading(self) -> Pieces[_Content]:
        for slot in range(self.slot_count):
            at = HEADER_BYTES + slot * _SLOT.size
            piece = self._content[at : at + _SLOT.size]
            if piece != _FREE_SLOT:
                self._read(slot, piece)
            if slot % SLOTS_PER_PIECE == SLOTS_PER_PIECE - 1:
                yield
        return self

    def _read(self, slot: int, piece: bytes) -> None:
        if len(piece) == _SLOT.size:
            kind, _, queue_id, number, length = _SLOT.unpack(piece)
            key = FileKey(kind, queue_id, number)
            if 1 <= kind <= len(SUFFIXES) and _pack_slot(slot, key, length) == piece and key not in self.slots:
                self.slots[key] = (slot, length)
                return
        self.bad_slots.append(slot)


class Lengths(NamedTuple):
    """The notes of a vhost, for who only looks."""

    #: By path.
    lengths: Mapping[str, int]
    #: Offset and description of what cannot be read.
    problems: Sequence[tuple[int, str]]


def read_lengths(disk: Disk, directory: str) -> Lengths:
    """What is noted below a vhost's directory. Raises `StorageError`."""
    path = f"{directory}/{LENGTHS_NAME}"
    if not disk.exists(path):
        return Lengths({}, ())
    content = at_once(_Content(read_whole(disk, path)).reading())
    problems = [(0, content.problem)] if content.problem else []
    problems += [(HEADER_BYTES + slot * _SLOT.size, "the slot is damaged or missing") for slot in content.bad_slots]
    return Lengths({f"{directory}/{key.path}": length for key, (_, length) in content.slots.items()}, problems)


class ShortFile(NamedTuple):
    """A file that has lost durable bytes."""

    path: str
    noted_bytes: int
    found_bytes: int

    @property
    def problem(self) -> str:
        """Without the path."""
        lost_bytes = self.noted_bytes - self.found_bytes
        return f"{lost_bytes} durable bytes are missing at the end, {self.found_bytes} of {self.noted_bytes} are left"

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def short_files(disk: Disk, lengths: Mapping[str, int]) -> Iterator[ShortFile]:
    """The files that are shorter than what is noted of them. Raises `StorageError`."""
    for path, noted_bytes in lengths.items():
        if disk.exists(path) and (short := short_file(disk, path, noted_bytes)) is not None:
            yield short


def short_file(disk: Disk, path: str, noted_bytes: int) -> ShortFile | None:
    """Of a file that exists, if it is shorter than what is noted of it. Raises `StorageError`."""
    file = disk.open(path)
    found_bytes = file.size
    file.close()
    return ShortFile(path, noted_bytes, found_bytes) if found_bytes < noted_bytes else None


class _Note:
    """What is known of one slot."""

    __slots__ = ("highest", "length", "slot", "write", "written")

    def __init__(self, slot: int, length: int) -> None:
        self.slot = slot
        #: What it should say; 0: the file is gone.
        self.length = length
        #: What was last written into it, and by which `LengthFile.write`.
        self.written = length
        self.write = 0
        #: The most that it may say after a crash, until that write is durable.
        self.highest = length


class LengthFile:
    """The notes of one vhost. See the module text; what touches the disk raises `StorageError`.

    Everything is called on the loop's thread but `sync`.
    """

    def __init__(self, disk: Disk, directory: str, *, reads_at_once: bool = True) -> None:
        """Read what is there; unless it ``reads_at_once``, the steps of ``reading`` do, and nothing is noted before."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{LENGTHS_NAME}"
        self._file: DiskFile | None = None
        self._is_name_durable = False
        self._notes: dict[FileKey, _Note] = {}
        #: In the order in which they became free; the last is taken first.
        self._free: dict[int, None] = {}
        #: Slots there are, free ones included.
        self._slot_count = 0
        #: Notes to be written.
        self._changed: dict[FileKey, None] = {}
        #: Notes of files that are gone: their slots are free when that is durable.
        self._leaving: dict[FileKey, None] = {}
        #: Number of the last write, of the last one that is wholly in the file, and of the last one that is durable.
        self._write = 0
        self._complete_write = 0
        self._synced_write = 0
        #: Slots that the header speaks of.
        self._header_slot_count = 0
        #: Slots, or the header, that could not be read; they are written anew.
        self.unreadable = 0
        #: To be gone through by whoever did not want it to be read at once.
        self.reading: Pieces[None] | tuple[()] = ()
        if disk.exists(self._path):
            self._file = disk.open(self._path)
            self.reading = self._read(self._file)
            if reads_at_once:
                at_once(self.reading)

    def _read(self, file: DiskFile) -> Pieces[None]:
        content = yield from _Content(file.pread(file.size, 0)).reading()
        self._slot_count = content.slot_count
        self._header_slot_count = content.header_slot_count
        self._notes = {key: _Note(slot, length) for key, (slot, length) in content.slots.items()}
        used = {note.slot for note in self._notes.values()}
        self._free = {slot: None for slot in reversed(range(self._slot_count)) if slot not in used}
        self.unreadable = len(content.bad_slots) + bool(content.problem)
        for slot in content.bad_slots:
            file.pwrite(_FREE_SLOT, HEADER_BYTES + slot * _SLOT.size)
        if content.problem:
            self._write_header(file)
        # An earlier process may have died before it synced what was just read.
        file.sync()

    def noted(self) -> list[tuple[FileKey, int]]:
        """Lengths of all files."""
        return [(key, note.length) for key, note in self._notes.items()]

    @property
    def lengths(self) -> dict[str, int]:
        """What is noted, by path."""
        return {f"{self._directory}/{key.path}": note.length for key, note in self._notes.items()}

    @property
    def is_missing(self) -> bool:
        """True if there is no file yet."""
        return self._file is None

    def make(self) -> None:
        """Make the file, without a note and durable on return, so that a later start can tell if it is missing."""
        self._open_file()
        self.sync()

    def raise_to(self, key: FileKey, length: int) -> None:
        """At least so many bytes of a file are durable."""
        note = self._notes.get(key)
        if note is None:
            note = self._notes[key] = _Note(_NO_SLOT, 0)
        if note.length < length:
            note.length = length
            self._changed[key] = None

    def forget(self, key: FileKey) -> None:
        """The file is gone, or will be."""
        note = self._notes.get(key)
        if note is not None and note.length:
            note.length = 0
            self._changed[key] = None

    def lower(self, key: FileKey, length: int) -> None:
        """Note no more than ``length`` for a file; at once, and durable with the next sync of this object."""
        note = self._notes.get(key)
        if note is not None:
            if note.length > length:
                note.length = length
                self._changed[key] = None
            if note.written > length:
                self._write += 1
                self._write_slots([(note.slot, key)])
                self._complete_write = self._write

    def lower_for_good(self, key: FileKey, length: int) -> None:
        """The same, and durable on return: on this thread, if an earlier `lower` is not durable already."""
        self.lower(key, length)
        note = self._notes.get(key)
        if note is not None and self._most_after_crash(note) > length:
            self.sync()

    def _most_after_crash(self, note: _Note) -> int:
        return note.written if note.write <= self._synced_write else note.highest

    @property
    def has_changes(self) -> bool:
        """True if `write` has something to do."""
        return bool(self._changed)

    def write(self) -> Syncable | None:
        """Write what changed, `NOTES_PER_WRITE` at most: what is left is for the next call.

        Returns what is to be synced some time, ``None`` if nothing was written.
        """
        if not self._changed:
            return None
        self._forget_gone()
        self._write += 1
        batch: list[tuple[int, FileKey]] = []
        # Taken when they are written.
        unused = chain(reversed(self._free), count(self._slot_count))
        for key in list(islice(self._changed, NOTES_PER_WRITE)):
            note = self._notes[key]
            slot = note.slot
            if slot == _NO_SLOT:
                if not note.length:
                    # It came and went between two writes.
                    del self._notes[key], self._changed[key]
                    continue
                slot = next(unused)
            batch.append((slot, key))
        batch.sort()
        at = 0
        while at < len(batch):
            # Neighbours in the file with one write.
            behind = at + 1
            while behind < len(batch) and batch[behind][0] == batch[behind - 1][0] + 1:
                behind += 1
            self._write_slots(batch[at:behind])
            at = behind
        if self._slot_count != self._header_slot_count:
            self._write_header(self._open_file())
        self._complete_write = self._write
        return self

    def _forget_gone(self) -> None:
        """Slots of files that are gone for good are free."""
        for key in list(islice(self._leaving, NOTES_PER_WRITE)):
            note = self._notes.get(key)
            if note is None or note.length or note.written:
                del self._leaving[key]
            elif note.write <= self._synced_write:
                del self._leaving[key], self._notes[key]
                self._changed.pop(key, None)
                self._free[note.slot] = None

    def _write_slots(self, batch: Sequence[tuple[int, FileKey]]) -> None:
        """Write notes into neighbouring slots. The caller has counted the write."""
        notes = self._notes
        lengths = [notes[key].length for _, key in batch]
        pieces = [
            _pack_slot(slot, key, length) if length else _FREE_SLOT
            for (slot, key), length in zip(batch, lengths, strict=True)
        ]
        self._open_file().pwrite(b"".join(pieces), HEADER_BYTES + batch[0][0] * _SLOT.size)
        for slot, key in batch:
            note = notes[key]
            if note.slot == _NO_SLOT:
                note.slot = slot
                self._free.pop(slot, None)
                self._slot_count = max(self._slot_count, slot + 1)
            note.highest = max(self._most_after_crash(note), note.length)
            note.written = note.length
            note.write = self._write
            self._changed.pop(key, None)
            if not note.length:
                self._leaving[key] = None

    def _open_file(self) -> DiskFile:
        if self._file is None:
            file = self._disk.create(self._path)
            try:
                self._write_header(file)
            except StorageError:
                file.abandon()
                raise
            self._file = file
        return self._file

    def _write_header(self, file: DiskFile) -> None:
        file.pwrite(LENGTHS_FORMAT.header(0, self._slot_count), 0)
        self._header_slot_count = self._slot_count

    def sync(self) -> None:
        """Make what was written durable. Any thread."""
        write, file = self._complete_write, self._file
        if file is None:
            return
        file.sync()
        if not self._is_name_durable:
            self._disk.sync_directory(self._directory)
            self._is_name_durable = True
        self._synced_write = max(self._synced_write, write)

    def close(self) -> None:
        """Write and sync everything, on this thread."""
        while self._changed:
            self.write()
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def abandon(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        slots = [note.slot for note in self._notes.values() if note.slot != _NO_SLOT]
        assert len(set(slots)) == len(slots), "a slot speaks of one file"
        assert not set(slots) & set(self._free), "a slot is in use or free"
        assert sorted([*slots, *self._free]) == list(range(self._slot_count)), "every slot is in use or free"
        assert self._changed.keys() <= self._notes.keys(), "what changed is known"
        for key, note in self._notes.items():
            assert note.length == note.written or key in self._changed, "a change is not forgotten"
            assert note.written <= note.highest or note.write <= self._synced_write, "the highest is the highest"
