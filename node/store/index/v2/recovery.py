"""Reading a queue's index of version 2 back after a crash: which messages are live, and what became of the rest.

See `node.store.index.v2.index`. A scan reads every slot and every record, so it takes time: it is cut into steps
(`node.store.steps`), and `progress` is told of each segment.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from node.ids import MSG_ID_BYTES, ORIGIN_BYTES, MsgId, OriginId
from node.store.disk.disk import DiskFile
from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    NEVER_WRITTEN,
    QUEUE_STORE_FORMAT,
    RECORD_HEADER_BYTES,
    SLOT_BYTES,
    STATUS_PRESENT,
    ZERO_SLOT,
    FileFormat,
    Slot,
    is_torn_record,
    pack_slot,
    slot_offset,
    unpack_record,
)
from node.store.index.held_references import HeldReferences, takes_over
from node.store.index.index import ENTRIES_PER_STEP, Progress, RecoveredIndex, RecoveryReport
from node.store.index.v2.index import QueueIndexV2
from node.store.index.v2.scan import BadSlot, scan_slots, segments_on_disk
from node.store.shared.config import quarantine
from node.store.steps import Steps, fetch_ahead, read_in_steps, sync_job

#: Segments that are synced together.
SYNCED_SEGMENTS = 4


@dataclass(slots=True)
class _SegmentScan:
    """One segment while it is scanned."""

    number: int
    slots: bytes
    records: bytes
    has_store: bool
    #: Where the last record of a live entry ends.
    end: int = HEADER_BYTES


def recover_v2(
    index: QueueIndexV2,
    report: RecoveryReport,
    terms: bytes | None,
    *,
    store_is_damaged: bool,
    held: HeldReferences | None = None,
    unfound: Collection[MsgId] = (),
    progress: Progress = lambda _done, _total: None,
) -> Steps[RecoveredIndex]:
    """Fill a new index from its files.

    ``terms``: what `QueueIndexV2.terms` gave at a clean stop; with them nothing is scanned, the report does not know
    the bytes of the bodies, and the end is 0. ``store_is_damaged``: the shared store lost something, so that a missing
    message is damage. ``held``: the references that what is found still has; the others take one, and are added.
    ``None``: all have theirs, but for messages ``unfound`` when they were counted. ``progress`` is told of each segment
    of a scan. Raises `StorageError` if the disk refuses; damage is reported, not raised.
    """
    if terms is not None:
        index.adopt_terms(terms)
        report.messages += sum([segment.live_count for segment in index.live_entries.segments.values()])
        return RecoveredIndex(0, {})
    report.clean = False
    recovery = _DirtyRecovery(index, report, store_is_damaged, held, unfound)
    end_seq_id = yield from recovery.run(progress)
    return RecoveredIndex(end_seq_id, recovery.origins)


class _DirtyRecovery:
    """One pass over all files of one queue after a crash."""

    def __init__(
        self,
        index: QueueIndexV2,
        report: RecoveryReport,
        store_is_damaged: bool,
        held: HeldReferences | None,
        unfound: Collection[MsgId],
    ) -> None:
        self._index = index
        self._files = index.files
        self._disk = index.files.disk
        self._entries = index.live_entries.segment_entries
        self._store = index.live_entries.stores[True]
        self._held = held
        self._unfound = unfound
        self._report = report
        self._store_is_damaged = store_is_damaged
        #: Highest id of each origin among the live messages.
        self.origins: dict[OriginId, MsgId] = {}
        #: Open files of mended segments, not synced yet.
        self._unsynced: list[DiskFile] = []

    def run(self, progress: Progress) -> Steps[int]:
        """Read everything. Returns the first seq id after the last segment that has a file."""
        numbers = segments_on_disk(self._disk, self._files.directory)
        try:
            for done, number in enumerate(numbers, 1):
                if done < len(numbers):
                    fetch_ahead(self._disk, self._files.path(numbers[done], QUEUE_STORE_FORMAT.suffix))
                yield from self._segment(number)
                if not done % SYNCED_SEGMENTS or done == len(numbers):
                    # An earlier process may have died before its group commit.
                    yield sync_job(self._unsynced)
                    self._close_files()
                progress(done, len(numbers))
        finally:
            self._close_files()
        self._remove_leftovers(set(numbers))
        return (max(numbers, default=-1) + 1) * self._entries

    def _remove_leftovers(self, numbers: set[int]) -> None:
        """Files of interrupted work: ``.qs`` without ``.qi``, and ``.tmp``."""
        directory = self._files.directory
        for name in self._disk.list(directory):
            stem, _, suffix = name.rpartition(".")
            is_orphan = "." + suffix == QUEUE_STORE_FORMAT.suffix and stem.isdigit() and int(stem) not in numbers
            if is_orphan or suffix == "tmp":
                self._disk.unlink(f"{directory}/{name}")

    def _close_files(self) -> None:
        for file in self._unsynced:
            file.abandon()
        self._unsynced.clear()

    def _segment(self, number: int) -> Steps[None]:
        index_path = self._files.path(number, INDEX_FORMAT.suffix)
        queue_store_path = self._files.path(number, QUEUE_STORE_FORMAT.suffix)
        slots = yield from read_in_steps(self._disk, index_path)
        has_store = self._disk.exists(queue_store_path)
        records = (yield from read_in_steps(self._disk, queue_store_path)) if has_store else b""
        scan = _SegmentScan(number, slots, records, has_store)
        queue_id = self._files.queue_id
        self._note_header(INDEX_FORMAT.problem(slots, number, queue_id), slots, index_path)
        if has_store:
            self._note_header(QUEUE_STORE_FORMAT.problem(records, number, queue_id), records, queue_store_path)
        live: list[int] = []
        shared: list[int] = []
        #: What the slots of dropped and mended entries should be.
        patches: dict[int, bytes] = {}
        for done, (seq_id, slot) in enumerate(scan_slots(number, slots, self._entries), 1):
            if not done % ENTRIES_PER_STEP:
                yield None
            msg_id = self._entry(scan, seq_id, slot)
            if msg_id is None:
                patches[seq_id] = ZERO_SLOT
                continue
            assert isinstance(slot, Slot), "only a present entry has a message"
            live.append(seq_id)
            self._report.body_bytes += slot.body_bytes
            origin = OriginId(msg_id[:ORIGIN_BYTES])
            if msg_id > self.origins.get(origin, b""):
                self.origins[origin] = msg_id
            if slots[slot_offset(seq_id, self._entries)] != STATUS_PRESENT:
                patches[seq_id] = pack_slot(seq_id, slot)
            if slot.shared:
                shared.append(seq_id)
        self._report.messages += len(live)
        self._index.adopt_segment(number, scan.end, live, shared)
        self._repair(scan, patches)

    def _note_header(self, problem: str, content: bytes, path: str) -> None:
        if problem == NEVER_WRITTEN:
            # A file that lost its end was reported as such.
            is_torn = bool(content[:HEADER_BYTES].strip(b"\0")) and path not in self._report.short_files
            self._report.torn += is_torn
        elif problem:
            self._report.damaged(f"{path}: {problem}; its entries are checked one by one")

    def _entry(self, scan: _SegmentScan, seq_id: int, slot: Slot | BadSlot) -> MsgId | None:
        """The msg_id of a live persistent entry, or ``None`` with the reason counted."""
        report = self._report
        at = slot_offset(seq_id, self._entries)
        piece = scan.slots[at : at + SLOT_BYTES]
        if isinstance(slot, BadSlot):
            if slot.kind == "torn-ack":
                report.torn_acks += 1
            elif slot.kind == "torn" and not self._is_short(scan.number, INDEX_FORMAT):
                report.torn += 1
            else:
                self._corrupt(seq_id, "index slot", piece)
            return None
        if not slot.persistent:
            report.transient += 1
            return None
        if slot.shared:
            return self._shared_entry(seq_id, slot, piece)
        size = slot.overhead_bytes + slot.body_bytes
        envelope = unpack_record(scan.records, slot.offset, seq_id % self._entries)
        if envelope is not None and len(envelope) == size and envelope[:MSG_ID_BYTES] == slot.msg_id:
            scan.end = max(scan.end, slot.offset + RECORD_HEADER_BYTES + size)
            return MsgId(slot.msg_id)
        is_short = self._is_short(scan.number, QUEUE_STORE_FORMAT)
        if scan.has_store and not is_short and is_torn_record(scan.records, slot.offset, size):
            report.torn += 1
        else:
            damaged = scan.records[slot.offset : slot.offset + RECORD_HEADER_BYTES + size]
            self._corrupt(seq_id, "message in the .qs file", piece + damaged)
        return None

    def _is_short(self, number: int, file_format: FileFormat) -> bool:
        """True if a file has lost durable bytes: what is unfinished there was whole once."""
        return self._files.path(number, file_format.suffix) in self._report.short_files

    def _shared_entry(self, seq_id: int, slot: Slot, piece: bytes) -> MsgId | None:
        msg_id = MsgId(slot.msg_id)
        if takes_over(self._held, self._unfound, self._index.version, seq_id, msg_id, self._store):
            return msg_id
        if self._store_is_damaged:
            self._corrupt(seq_id, "message in the shared store", piece)
        else:
            self._report.torn += 1
        return None

    def _corrupt(self, seq_id: int, what: str, data: bytes) -> None:
        directory = self._files.directory
        self._report.damaged(f"{directory}: seq id {seq_id}: damaged {what}")
        quarantine(self._disk, directory, f"{seq_id}.bad", data)

    def _repair(self, scan: _SegmentScan, patches: dict[int, bytes]) -> None:
        """Clear what was dropped, mend headers and slots, cut the tail. The files are to be synced."""
        number, queue_id = scan.number, self._files.queue_id
        index_file = self._disk.open(self._files.path(number, INDEX_FORMAT.suffix))
        self._unsynced.append(index_file)
        path = self._files.path(number, QUEUE_STORE_FORMAT.suffix)
        queue_store_file = self._disk.open(path) if scan.has_store else self._disk.create(path)
        self._unsynced.append(queue_store_file)
        index_file.pwrite(INDEX_FORMAT.header(number, queue_id), 0)
        for seq_id, piece in patches.items():
            index_file.pwrite(piece, slot_offset(seq_id, self._entries))
        queue_store_file.pwrite(QUEUE_STORE_FORMAT.header(number, queue_id), 0)
        if scan.end < len(scan.records):
            queue_store_file.truncate(scan.end)
