"""The shared message store of one vhost: messages too big for their queues' own files (mission S6-S9).

A key-value store from msg_id to envelope. Files ``N.rdq`` are only appended to; one that has reached
`StoreConfig.file_size_limit_bytes` is closed and the next begun. Tables in memory: msg_id -> (file, offset, size,
references) and file -> (size, valid bytes). A message routed to many queues is written once and counted by
reference; taking a reference away changes the tables only and leaves garbage in the file.

**Nothing on disk counts references.** The queue indexes do: at start their slots are walked, and a record that no
slot names is garbage (`MessageStore` gets the counts handed in). So an ack costs this store no write, and no order
between the index's write and the store's is needed: both belong to one generation of the group commit.

**Garbage.** A file without valid data is deleted. When more than `GARBAGE_FRACTION` of all bytes in at least
`COMPACTION_FILES_MIN` files is garbage, two neighbours whose valid data fit in one file become one, in three steps
that wait for the group commit and never for the disk::

    copy      live records of left and right -> left.rdq.tmp        | generation g1
    switch    rename left.rdq.tmp to left.rdq, update the tables    | when g1 is durable; generation g2
    delete    unlink right.rdq                                      | when g2 is durable

A crash before the switch leaves both files and a ``.tmp`` that is removed at start; a crash after it leaves the
records of right twice, and the scan keeps the first copy of each. Reads never wait: until the switch they use the
old files.

**Recovery** is a scan of all files. A damaged record is skipped (the scan finds the next one by its mark), copied to
``quarantine/`` and reported; an unfinished write at the end of a file is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from node.errors import DiskFullError, StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk import Disk, DiskFile, read_whole
from node.store.group_commit import GroupCommit
from node.store.record import (
    HEADER_BYTES,
    NEVER_WRITTEN,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    SHARED_STORE_FORMAT,
    Damage,
    scan_records,
    unpack_record,
)
from node.store.store_config import StoreConfig, quarantine

#: Share of garbage above which files are merged (mission S9).
GARBAGE_FRACTION = 0.5
#: Fewer files are not worth merging, and the current one takes no part (mission S9).
COMPACTION_FILES_MIN = 3
#: Files kept open for reading. Consumers read near the head of few queues; this is below any descriptor limit.
OPEN_FILES_MAX = 32

_SUFFIX = SHARED_STORE_FORMAT.suffix


class _Location:
    """Where one message is. ``size`` counts the envelope."""

    __slots__ = ("file", "offset", "references", "size")

    def __init__(self, file: int, offset: int, size: int, references: int) -> None:
        self.file = file
        self.offset = offset
        self.size = size
        self.references = references


class _FileSummary:
    """Bytes of one file, headers of records included, the header of the file not."""

    __slots__ = ("is_damaged", "record_bytes", "valid_bytes")

    def __init__(self, record_bytes: int, valid_bytes: int) -> None:
        self.record_bytes = record_bytes
        self.valid_bytes = valid_bytes
        #: A live record could not be read: the file is never merged, so that the evidence stays.
        self.is_damaged = False


class _Compaction:
    """A merge of two files under way; see the module text for the steps."""

    __slots__ = ("file", "is_switched", "left", "moves", "record_bytes", "right", "wait_generation")

    def __init__(self, left: int, right: int, file: DiskFile, wait_generation: int) -> None:
        self.left = left
        self.right = right
        #: The merged file.
        self.file = file
        #: msg_id -> (old file, old offset, new offset)
        self.moves: dict[bytes, tuple[int, int, int]] = {}
        self.record_bytes = 0
        #: The next step waits until this generation is durable.
        self.wait_generation = wait_generation
        self.is_switched = False


@dataclass(slots=True)
class StoreRecovery:
    """What a scan found."""

    messages: int = 0
    #: Unfinished writes cut off.
    torn: int = 0
    #: ``file: offset, size`` of each damaged place.
    corrupt: list[str] = field(default_factory=list)


class MessageStore:
    """One shared store. The object is out of service after the first `StorageError` of a write."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        group_commit: GroupCommit,
        config: StoreConfig,
        references: Mapping[MsgId, int],
    ) -> None:
        """Open or create the store in ``directory``; ``references`` counts the index slots that name a message."""
        self._disk = disk
        self._directory = directory
        self._group_commit = group_commit
        self._config = config
        self._index: dict[bytes, _Location] = {}
        self._files: dict[int, _FileSummary] = {}
        #: Open files, least recently used first; the current one is always among them once it exists.
        self._handles: dict[int, DiskFile] = {}
        #: Number of the file that takes writes; it exists once something was written to it.
        self._current = 0
        self._total_bytes = 0
        self._valid_bytes = 0
        #: Garbage made since the last look for something to merge.
        self._garbage_since_look = 0
        self._compaction: _Compaction | None = None
        self.failure: StorageError | None = None
        self.recovery = StoreRecovery()
        disk.mkdir(directory)
        self._recover(references)

    # -- messages

    def write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        """Take one reference to each message, and write those that are new with one append. Raises `StorageError`."""
        self._require_service()
        try:
            self._write_batch(items)
        except DiskFullError:
            for msg_id, _ in items:
                location = self._index.get(msg_id)
                if location is not None:
                    location.references -= 1
                    if not location.references:
                        del self._index[msg_id]
            raise
        except StorageError as error:
            self.failure = error
            raise

    def _write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        index = self._index
        file = self._current_file()
        start = offset = file.size
        parts: list[bytes] = []
        for msg_id, envelope in items:
            location = index.get(msg_id)
            if location is not None:
                location.references += 1
                continue
            size = len(envelope)
            parts += (RECORD_HEADER.pack(size, crc32(envelope), 0, RECORD_MARK), envelope)
            index[msg_id] = _Location(self._current, offset, size, 1)
            offset += RECORD_HEADER_BYTES + size
        if not parts:
            return
        file.pwrite(b"".join(parts), start)
        self._group_commit.mark_dirty(file)
        summary = self._files[self._current]
        summary.record_bytes += offset - start
        summary.valid_bytes += offset - start
        self._total_bytes += offset - start
        self._valid_bytes += offset - start
        if file.size >= self._config.file_size_limit_bytes:
            self._current += 1

    def release(self, msg_id: MsgId) -> None:
        """Give one reference back; with the last one the message is garbage. Unknown ids are a mistake."""
        location = self._index[msg_id]
        location.references -= 1
        if location.references:
            return
        del self._index[msg_id]
        size = RECORD_HEADER_BYTES + location.size
        summary = self._files[location.file]
        summary.valid_bytes -= size
        self._valid_bytes -= size
        self._garbage_since_look += size
        if not summary.valid_bytes:
            self._delete_if_empty(location.file)

    def release_many(self, msg_ids: Sequence[MsgId]) -> None:
        for msg_id in msg_ids:
            self.release(msg_id)

    def read_many(self, msg_ids: Sequence[MsgId]) -> list[bytes]:
        return [self.read(msg_id) for msg_id in msg_ids]

    def read(self, msg_id: MsgId) -> bytes:
        """Envelope of a message. Raises `StorageError` if it cannot be read or its checksum is wrong."""
        location = self._index.get(msg_id)
        if location is None:
            raise StorageError(f"{self._directory} has no message {msg_id.hex()}")
        data = self._handle(location.file).pread(RECORD_HEADER_BYTES + location.size, location.offset)
        envelope = unpack_record(data, 0, 0)
        if envelope is None or envelope[:MSG_ID_BYTES] != msg_id:
            self._files[location.file].is_damaged = True
            raise StorageError(
                f"message {msg_id.hex()} in {self._path(location.file)} at {location.offset} is damaged: "
                "its checksum does not fit"
            )
        return envelope

    def contains(self, msg_id: MsgId) -> bool:
        """True if the message is here and readable as far as the last scan could see."""
        return msg_id in self._index

    def close(self) -> None:
        """Make everything durable and close the files. Raises `StorageError`."""
        compaction, self._compaction = self._compaction, None
        if compaction is not None and not compaction.is_switched:
            compaction.file.abandon()
            self._disk.unlink(compaction.file.path)
        for file in self._handles.values():
            if file.has_unsynced:
                file.sync()
            file.close()
        self._handles.clear()
        self._disk.sync_directory(self._directory)

    # -- files

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number}{_SUFFIX}"

    def _require_service(self) -> None:
        if self.failure is not None:
            raise StorageError(f"{self._directory} is out of service: {self.failure}")

    def _current_file(self) -> DiskFile:
        number = self._current
        if number in self._files:
            return self._handle(number)
        file = self._disk.create(self._path(number))
        file.pwrite(SHARED_STORE_FORMAT.header(number, 0), 0)
        self._files[number] = _FileSummary(0, 0)
        self._remember(number, file)
        self._group_commit.mark_dirty(file)
        self._group_commit.mark_dirty(self._disk.directory(self._directory))
        return file

    def _handle(self, number: int) -> DiskFile:
        file = self._handles.pop(number, None)
        if file is None:
            file = self._disk.open(self._path(number))
        self._remember(number, file)
        return file

    def _remember(self, number: int, file: DiskFile) -> None:
        self._handles[number] = file
        if len(self._handles) > OPEN_FILES_MAX:
            self._handles.pop(next(iter(self._handles))).close()

    def _delete_if_empty(self, number: int) -> None:
        summary = self._files[number]
        compaction = self._compaction
        is_merging = compaction is not None and number in (compaction.left, compaction.right)
        if summary.valid_bytes or number == self._current or is_merging:
            return
        del self._files[number]
        self._total_bytes -= summary.record_bytes
        handle = self._handles.pop(number, None)
        if handle is not None:
            handle.abandon()
        self._disk.unlink(self._path(number))

    # -- merging

    def maintain(self) -> None:
        """Begin or continue merging, one step, never waiting for the disk. Raises `StorageError`."""
        compaction = self._compaction
        if compaction is None:
            # A look visits every file, so it waits until there is something new to find.
            if self._garbage_since_look * 16 < self._config.file_size_limit_bytes:
                return
            self._garbage_since_look = 0
            pair = self._choose_pair()
            if pair is not None:
                self._require_service()
                self._copy(*pair)
            return
        if self._config.confirm_after_sync and self._group_commit.durable_generation < compaction.wait_generation:
            return
        if compaction.is_switched:
            self._compaction = None
            self._delete_if_empty(compaction.right)
            self._delete_if_empty(compaction.left)
        else:
            self._switch(compaction)

    def _choose_pair(self) -> tuple[int, int] | None:
        if len(self._files) < COMPACTION_FILES_MIN:
            return None
        if self._total_bytes - self._valid_bytes <= GARBAGE_FRACTION * self._total_bytes:
            return None
        limit = self._config.file_size_limit_bytes - HEADER_BYTES
        left = -1
        for number in sorted(self._files):
            summary = self._files[number]
            if number == self._current or summary.is_damaged:
                left = -1
                continue
            if left >= 0 and self._files[left].valid_bytes + summary.valid_bytes <= limit:
                return left, number
            left = number
        return None

    def _copy(self, left: int, right: int) -> None:
        """First step: the live records of both files into a new one."""
        parts: list[bytes] = [SHARED_STORE_FORMAT.header(left, 0)]
        moves: dict[bytes, tuple[int, int, int]] = {}
        position = HEADER_BYTES
        for number in (left, right):
            data = self._handle(number)
            for record in scan_records(data.pread(data.size, 0), HEADER_BYTES):
                if isinstance(record, Damage):
                    continue
                msg_id = record.envelope[:MSG_ID_BYTES]
                location = self._index.get(msg_id)
                if location is None or location.file != number or location.offset != record.offset:
                    continue
                moves[msg_id] = (number, record.offset, position)
                size = len(record.envelope)
                parts += (RECORD_HEADER.pack(size, crc32(record.envelope), 0, RECORD_MARK), record.envelope)
                position += RECORD_HEADER_BYTES + size
        if position - HEADER_BYTES != self._files[left].valid_bytes + self._files[right].valid_bytes:
            self._files[left].is_damaged = self._files[right].is_damaged = True
            return
        file = self._disk.create(self._path(left) + ".tmp")
        try:
            file.pwrite(b"".join(parts), 0)
        except StorageError:
            # Merging is a convenience: a full disk must not take the store out of service.
            file.abandon()
            self._disk.unlink(file.path)
            return
        self._group_commit.mark_dirty(file)
        self._compaction = _Compaction(left, right, file, self._group_commit.open_generation)
        self._compaction.moves = moves
        self._compaction.record_bytes = position - HEADER_BYTES

    def _switch(self, compaction: _Compaction) -> None:
        """Second step: the new file takes the place of the left one, and the tables point into it."""
        left, right = compaction.left, compaction.right
        self._disk.rename(compaction.file.path, self._path(left))
        self._group_commit.mark_dirty(self._disk.directory(self._directory))
        for number in (left, right):
            handle = self._handles.pop(number, None)
            if handle is not None:
                handle.abandon()
        self._remember(left, compaction.file)
        valid = 0
        for msg_id, (number, old_offset, new_offset) in compaction.moves.items():
            location = self._index.get(msg_id)
            if location is not None and location.file == number and location.offset == old_offset:
                location.file = left
                location.offset = new_offset
                valid += RECORD_HEADER_BYTES + location.size
        assert valid == self._files[left].valid_bytes + self._files[right].valid_bytes, "merging loses no message"
        self._total_bytes += compaction.record_bytes - self._files[left].record_bytes
        self._files[left] = _FileSummary(compaction.record_bytes, valid)
        self._files[right].valid_bytes = 0
        compaction.is_switched = True
        compaction.wait_generation = self._group_commit.open_generation

    # -- recovery

    def _recover(self, references: Mapping[MsgId, int]) -> None:
        numbers: list[int] = []
        for name in self._disk.list(self._directory):
            stem, dot, suffix = name.rpartition(".")
            if suffix == "tmp":
                self._disk.unlink(f"{self._directory}/{name}")
            elif dot + suffix == _SUFFIX and stem.isdigit():
                numbers.append(int(stem))
        numbers.sort()
        for number in numbers:
            self._recover_file(number, references)
        self._current = numbers[-1] if numbers else 0
        for number in numbers:
            self._delete_if_empty(number)
        last = self._files.get(self._current)
        if last is not None and HEADER_BYTES + last.record_bytes >= self._config.file_size_limit_bytes:
            self._current += 1
        if numbers:
            self._disk.sync_directory(self._directory)

    def _recover_file(self, number: int, references: Mapping[MsgId, int]) -> None:
        path = self._path(number)
        data = read_whole(self._disk, path)
        problem = SHARED_STORE_FORMAT.problem(data, number, 0)
        if problem and problem != NEVER_WRITTEN:
            self.recovery.corrupt.append(f"{path}: {problem}; its records are checked one by one")
        end = max(len(data), HEADER_BYTES)
        valid = 0
        for record in scan_records(data, HEADER_BYTES):
            if isinstance(record, Damage):
                at_end = record.offset + record.size == len(data)
                if at_end:
                    end = record.offset
                if record.torn:
                    self.recovery.torn += 1
                    if not at_end or not data[record.offset :].strip(b"\0"):
                        continue
                else:
                    self.recovery.corrupt.append(f"{path}: damaged at {record.offset}, {record.size} bytes")
                self._quarantine(number, record, data)
                continue
            msg_id = record.envelope[:MSG_ID_BYTES]
            count = references.get(MsgId(msg_id), 0)
            if count and msg_id not in self._index:
                size = len(record.envelope)
                self._index[msg_id] = _Location(number, record.offset, size, count)
                valid += RECORD_HEADER_BYTES + size
                self.recovery.messages += 1
        self._adopt(number, data, end, bool(problem))
        self._files[number] = _FileSummary(end - HEADER_BYTES, valid)
        self._total_bytes += end - HEADER_BYTES
        self._valid_bytes += valid

    def _quarantine(self, number: int, damage: Damage, data: bytes) -> None:
        piece = data[damage.offset : damage.offset + damage.size]
        quarantine(self._disk, self._directory, f"{number}.{damage.offset}.bad", piece)

    def _adopt(self, number: int, data: bytes, end: int, header_is_bad: bool) -> None:
        """Cut the torn tail, mend the header, and make durable what an earlier process may not have synced."""
        file = self._handle(number)
        if header_is_bad:
            file.pwrite(SHARED_STORE_FORMAT.header(number, 0), 0)
        if end < len(data):
            file.truncate(end)
        file.sync()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the tables contradict each other."""
        valid = dict.fromkeys(self._files, 0)
        for msg_id, location in self._index.items():
            assert location.references > 0, f"{msg_id.hex()} without references is garbage, not an entry"
            assert location.file in self._files, f"{msg_id.hex()} points into a file that is gone"
            valid[location.file] += RECORD_HEADER_BYTES + location.size
        for number, summary in self._files.items():
            assert summary.valid_bytes == valid[number], f"file {number}: valid bytes are those of its live messages"
            assert summary.valid_bytes <= summary.record_bytes, f"file {number}: no more valid bytes than bytes"
        assert self._valid_bytes == sum(valid.values()), "the total of valid bytes is the sum over the files"
        assert self._total_bytes == sum(f.record_bytes for f in self._files.values()), "and so is the total"
        assert len(self._handles) <= OPEN_FILES_MAX, "open files are bounded"
