"""The shared message store of one vhost: messages too big for their queues' own files (mission S6-S11).

A key-value store from msg_id to envelope, in two instances per vhost. The *persistent* one survives restarts. The
*transient* one holds what memory had no room for; it is never synced, and wiped when it is opened.

Files ``N.rdq`` are only appended to; one that has reached `StoreConfig.file_size_limit_bytes` is closed and the next
begun. Tables in memory: msg_id -> (file, offset, size, references), `node.store.shared.location_table`; and file ->
(bytes, valid bytes), `node.store.shared.store_files`. A message routed to many queues is written once and counted by
reference; taking a reference away changes the tables only and leaves garbage in the file.

**Nothing on disk counts references.** The queue indexes do: after a crash they are counted (``references``), and a
record that no slot names is garbage. A slot may name a message that no file has, for the power went just then: it has
no reference, also if another queue writes that message later (`StoreRecovery.unfound`). So an ack costs this store no
write, and no order between the index's write and the store's is needed: both belong to one generation of the group
commit. Nobody counts when one queue alone is opened anew, after it was closed with acks that no file has: those of its
entries that had given their reference back take another (`retain`; `node.store.index.held_references` knows which), and
what cannot be told is left to the next start (`count_anew`).

**Garbage** is reclaimed by `maintain`, one bounded step per call: files without valid data are deleted, the others
compacted (`node.store.shared.compaction.compaction`) in one of two ways: `node.store.shared.compaction.merging` copies,
`node.store.shared.compaction.hole_filling` moves in place. Both follow one rule: the tables point to a copy only when
it is durable, and the old one goes only when that is durable too. Reads never wait.

**Clean stop**: `close` leaves the tables in a file (`node.store.shared.clean_tables`); the next start reads and erases
it and looks at no message. **After a crash** all files are scanned (`node.store.shared.recovery`).
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from node.errors import ShortageError, StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.length_file import ShortFile
from node.store.formats.record import (
    KIND_MESSAGE,
    READ_GAP_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    STORE_RECORD_CHECKED,
    STORE_RECORD_HEADER,
    unpack_store_record_header,
)
from node.store.shared.clean_tables import clean_tables_in_steps, remove_clean_tables, write_clean_tables
from node.store.shared.compaction.compaction import Compactor, Reclaimed
from node.store.shared.compaction.hole_filling import erase_noted
from node.store.shared.config import StoreConfig
from node.store.shared.location_table import LocationTable
from node.store.shared.recovery import Progress, StoreRecovery, StoreScan, remove_temporary_files
from node.store.shared.store_files import StoreFiles
from node.store.steps import Steps, run_through

#: Offsets have 32 bits, and a file may exceed its limit by one record.
FILE_SIZE_LIMIT_BYTES_MAX = 1 << 31
#: One call of `MessageStore.read_many` to the disk asks for no more than this, or for one record.
READ_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class MessageStoreStatus:
    """Figures of one store, for tests and measurements."""

    messages: int
    #: Bytes of live messages with their headers.
    valid_bytes: int
    #: Bytes of all files without their headers: live messages and garbage.
    total_bytes: int
    #: Files compacted since the start, and the bytes of live messages moved for it.
    compactions: int
    moved_bytes: int


class MessageStore:
    """One shared store. It is out of service after the first `StorageError` of a write: see ``failure``."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        group_commit: GroupCommit,
        config: StoreConfig,
        references: Mapping[MsgId, int] | Callable[[], Mapping[MsgId, int] | Steps[Mapping[MsgId, int]]],
        *,
        is_transient: bool = False,
        opens_at_once: bool = True,
        may_open_clean: bool = True,
        short_files: Sequence[ShortFile] = (),
        on_loss: Callable[[], Steps[None]] | None = None,
        on_progress: Progress = lambda _done_bytes, _total_bytes: None,
    ) -> None:
        """Open or create the store in ``directory``; unless it ``opens_at_once``, with the steps of ``opening``, and
        nothing may be asked of it before they are at their end.

        ``references`` counts the index slots that name a message (in steps, if that takes long); it is evaluated only
        if the store must be scanned.
        ``may_open_clean`` false asks for a scan even after a clean stop (some queue did not stop cleanly).
        ``short_files`` of this store are known to have lost durable bytes: that is damage.
        ``on_loss`` goes before anything is done that would let a later start forget what this one finds missing.
        ``on_progress`` hears during a scan how many bytes of how many are done. Raises `StorageError`.
        """
        assert config.file_size_limit_bytes <= FILE_SIZE_LIMIT_BYTES_MAX, "an offset in a store file has 32 bits"
        self._directory = directory
        self._table = LocationTable()
        disk.mkdir(directory)
        self._files = StoreFiles(disk, directory, group_commit, config, is_transient)
        self._compactor = Compactor(self._files, self._table, config.compaction)
        #: The first error of a write; afterwards only reads are served.
        self.failure: StorageError | None = None
        #: Some messages have references that nobody will give back.
        self._is_to_be_counted = False
        #: What opening found.
        self.recovery = StoreRecovery()
        if is_transient:
            for name in disk.list(directory):
                disk.unlink(f"{directory}/{name}")
        #: To be gone through by whoever did not want the store to open at once.
        steps = self._open(references, may_open_clean, short_files, on_loss, on_progress)
        self.opening: Steps[None] = self._closed_if_unfinished(steps)
        if opens_at_once:
            run_through(self.opening)

    def _closed_if_unfinished(self, steps: Steps[None]) -> Steps[None]:
        """A scan has all files open."""
        try:
            yield from steps
        except BaseException:
            self.abandon()
            raise

    def _open(
        self,
        references: Mapping[MsgId, int] | Callable[[], Mapping[MsgId, int] | Steps[Mapping[MsgId, int]]],
        may_open_clean: bool,
        short_files: Sequence[ShortFile],
        on_loss: Callable[[], Steps[None]] | None,
        on_progress: Progress,
    ) -> Steps[None]:
        if self._files.is_transient:
            return
        files, table, recovery = self._files, self._table, self.recovery
        found: list[ShortFile] = []
        try:
            problem = "a clean start was not allowed"
            if may_open_clean:
                problem = yield from clean_tables_in_steps(files, table, found)
        except StorageError as error:
            problem = str(error)
        # The notes are the better word; of a file that is gone they say nothing.
        recovery.corrupt += map(str, {short.path: short for short in (*found, *short_files)}.values())
        if recovery.corrupt and on_loss is not None:
            yield from on_loss()
        remove_clean_tables(files.disk, self._directory)
        if problem:
            recovery.dirty_because = problem
            counts = references() if callable(references) else references
            if isinstance(counts, Generator):
                counts = yield from counts
            yield from StoreScan(files, table, counts, recovery, on_progress).run()
        else:
            recovery.clean = True
            recovery.messages = len(table)
            remove_temporary_files(files)
        last = max(files.summaries, default=-1)
        # One that is nothing but garbage is not continued: nobody may write here for long, and it can go.
        is_used = last >= 0 and files.summaries[last].valid_bytes > 0
        if is_used and not files.summaries[last].is_frozen and files.handle(last).size < files.size_limit_bytes:
            files.current = last
        for number in files.summaries:
            files.look_at(number)

    # -- messages

    def write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        """Take one reference for each (msg_id, envelope), and write those that are new with one append (per file).

        Raises `StorageError`; then the store is out of service. A `ShortageError` leaves it as it was: try again
        later.
        """
        if self.failure is not None:
            raise StorageError(f"{self._directory} is out of service: {self.failure}")
        taken: list[MsgId] = []
        try:
            self._write_batch(items, taken)
        except ShortageError:
            self.release_many(taken)
            raise
        except StorageError as error:
            self.failure = error
            raise

    def _write_batch(self, items: Sequence[tuple[MsgId, bytes]], taken: list[MsgId]) -> None:
        """``taken``: filled with what references were taken of, once each."""
        files = self._files
        limit = files.size_limit_bytes
        retain = self._table.retain
        pack, pack_checked = STORE_RECORD_HEADER.pack, STORE_RECORD_CHECKED.pack
        parts: list[bytes] = []
        #: New messages: msg_id -> (offset, size of the envelope, references).
        added: dict[MsgId, tuple[int, int, int]] = {}
        offset = 0
        for msg_id, envelope in items:
            if retain(msg_id):
                taken.append(msg_id)
                continue
            if msg_id in added:
                at, size, references = added[msg_id]
                added[msg_id] = (at, size, references + 1)
                continue
            if not parts:
                offset = files.current_file()[1].size
            size = len(envelope)
            checksum = crc32(envelope)
            check = crc_hqx(pack_checked(size, checksum), KIND_MESSAGE)
            parts += (pack(size, checksum, check, RECORD_MARK, KIND_MESSAGE), envelope)
            added[msg_id] = (offset, size, 1)
            offset += RECORD_HEADER_BYTES + size
            if offset >= limit:
                self._append(parts, added, taken)
                files.roll()
                parts, added = [], {}
        if parts:
            self._append(parts, added, taken)

    def _append(self, parts: list[bytes], added: dict[MsgId, tuple[int, int, int]], taken: list[MsgId]) -> None:
        number, file = self._files.current_file()
        data = b"".join(parts)
        file.pwrite(data, file.size)
        self._files.mark_dirty(file)
        self._files.appended(number, len(data))
        add = self._table.add
        for msg_id, (offset, size, references) in added.items():
            add(msg_id, number, offset, size, references)
            taken += [msg_id] * references

    def retain(self, msg_id: MsgId) -> bool:
        """Take one more reference to a message; false if it is not here."""
        return self._table.retain(msg_id)

    def count_anew(self) -> None:
        """More references were taken than will be given back, so there may be garbage that passes for none: the next
        start shall find out."""
        self._is_to_be_counted = True

    def release(self, msg_id: MsgId) -> None:
        """Give one reference back; with the last one the message is garbage. Raises `KeyError` if it is unknown."""
        location = self._table.release(msg_id)
        if location is not None:
            self._files.discard(location.file, RECORD_HEADER_BYTES + location.size)

    def release_many(self, msg_ids: Iterable[MsgId]) -> None:
        """The same for many."""
        release, discard = self._table.release, self._files.discard
        for msg_id in msg_ids:
            location = release(msg_id)
            if location is not None:
                discard(location.file, RECORD_HEADER_BYTES + location.size)

    def contains(self, msg_id: MsgId) -> bool:
        """True if the message is here and readable as far as the last scan could see."""
        return msg_id in self._table

    def references_of(self, msg_id: MsgId) -> int:
        """References to a message; 0 if it is unknown."""
        location = self._table.get(msg_id)
        return location.references if location is not None else 0

    def read(self, msg_id: MsgId) -> bytes:
        """Envelope of a message. Raises `StorageError` if it cannot be read or its checksum is wrong."""
        return self.read_many((msg_id,))[0]

    def read_many(self, msg_ids: Sequence[MsgId]) -> list[bytes]:
        """Envelopes in the given order, read in the order of the disk with few calls. Raises `StorageError`."""
        wanted: list[tuple[int, int, int, MsgId]] = []
        for msg_id in msg_ids:
            location = self._table.get(msg_id)
            if location is None:
                raise StorageError(f"{self._directory} has no message {msg_id.hex()}")
            wanted.append((location.file, location.offset, RECORD_HEADER_BYTES + location.size, msg_id))
        wanted.sort()
        found: dict[MsgId, bytes] = {}
        at, count = 0, len(wanted)
        while at < count:
            number, start, size, _ = wanted[at]
            stop = start + size
            last = at + 1
            while last < count:
                next_number, offset, size, _ = wanted[last]
                is_near = next_number == number and offset - stop <= READ_GAP_BYTES_MAX
                if not is_near or offset + size - start > READ_BYTES_MAX:
                    break
                stop = max(stop, offset + size)
                last += 1
            data = self._files.handle(number).pread(stop - start, start)
            for _, offset, size, msg_id in wanted[at:last]:
                found[msg_id] = self._envelope(data, offset - start, size, (number, offset, msg_id))
            at = last
        return [found[msg_id] for msg_id in msg_ids]

    def _envelope(self, data: bytes, at: int, size: int, where: tuple[int, int, MsgId]) -> bytes:
        header = unpack_store_record_header(data, at)
        envelope = data[at + RECORD_HEADER_BYTES : at + size]
        number, offset, msg_id = where
        if (
            header is None
            or header.kind != KIND_MESSAGE
            or len(envelope) != header.length
            or len(envelope) != size - RECORD_HEADER_BYTES
            or crc32(envelope) != header.checksum
            or envelope[:MSG_ID_BYTES] != msg_id
        ):
            self._files.summaries[number].is_frozen = True
            raise StorageError(
                f"message {msg_id.hex()} in {self._files.path(number)} at {offset} is damaged: "
                "its checksum does not fit"
            )
        return envelope

    # -- care

    def tick(self) -> None:
        """Some ten times a second."""
        self._compactor.tick()

    def maintain(self) -> Reclaimed:
        """Take one small step of reclaiming garbage. Never waits for the disk, never raises."""
        if self.failure is not None or self._files.has_failed_sync:
            return Reclaimed(has_worked=False, is_urgent=False)
        compactor = self._compactor
        has_worked = compactor.step()
        return Reclaimed(has_worked, compactor.is_urgent and (has_worked or compactor.is_under_way))

    def sync(self) -> None:
        """Make every message here durable, on this thread; next to nothing if it is. Raises `StorageError`."""
        if self.failure is not None:
            raise StorageError(f"{self._directory} is out of service: {self.failure}")
        self._files.sync()

    def status(self) -> MessageStoreStatus:
        """Figures of now; cheap."""
        files = self._files
        return MessageStoreStatus(
            messages=len(self._table),
            valid_bytes=files.valid_bytes,
            total_bytes=files.total_bytes,
            compactions=self._compactor.completed,
            moved_bytes=self._compactor.moved_bytes,
        )

    def close(self) -> None:
        """Make everything durable, leave the tables for a clean start, close the files. The next start scans if this
        raises `StorageError`, and if it is to count anew."""
        files = self._files
        if files.is_transient or files.has_failed_sync:
            self.abandon()
            return
        if self.failure is not None:
            self._compactor.abandon()
            files.close()
            return
        self._compactor.settle()
        for number in list(files.noted):
            erase_noted(files, number)
        files.close()
        while files.delete_one_empty():
            pass
        if not self._is_to_be_counted:
            write_clean_tables(files, self._table)

    def abandon(self) -> None:
        """Close the files as they are: nobody needs them any more, or a sync of them has failed."""
        self._compactor.abandon()
        self._files.abandon()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the tables contradict each other."""
        self._table.check_invariants()
        self._files.check_invariants()
        self._compactor.check_invariants()
        valid = dict.fromkeys(self._files.summaries, 0)
        for msg_id, location in self._table.items():
            assert location.file in valid, f"{msg_id.hex()} points into a file that is gone"
            valid[location.file] += RECORD_HEADER_BYTES + location.size
        for number, summary in self._files.summaries.items():
            assert summary.valid_bytes == valid[number], f"file {number}: valid bytes are those of its live messages"
