"""Reading a queue's index back: which messages are live, and what became of the rest. See `node.store.index_v2`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from node.errors import StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.message import Message, decode_envelope
from node.store.disk import Disk, read_whole
from node.store.index_v2 import QueueIndex, Segment
from node.store.msg_store import MessageStore
from node.store.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    LOCATION_QUEUE,
    LOCATION_SHARED,
    NEVER_WRITTEN,
    QUEUE_STORE_FORMAT,
    RECORD_HEADER_BYTES,
    SEGMENT_BITS,
    SEGMENT_ENTRIES,
    SLOT_BYTES,
    SLOT_MASK,
    STATUS_PRESENT,
    ZERO_SLOT,
    Slot,
    is_torn_record,
    is_torn_slot,
    pack_slot,
    slot_offset,
    unpack_record,
    unpack_slot,
)
from node.store.store_config import quarantine

#: Problems described in a report; beyond it they are only counted.
PROBLEMS_MAX = 20


class PagedMessage(NamedTuple):
    """A live message whose body is on disk only (beta)."""

    msg_id: MsgId
    body_bytes: int


@dataclass(slots=True)
class RecoveryReport:
    """What opening an existing queue found; for the log."""

    #: True after a clean stop.
    clean: bool
    #: Live messages.
    messages: int = 0
    #: Publishes that were never wholly written, so never confirmed: dropped.
    torn: int = 0
    #: Acks of which only a part was written: they count as acks.
    torn_acks: int = 0
    #: Damaged entries and messages: quarantined.
    corrupt: int = 0
    #: Messages whose next delivery is flagged.
    redelivered: int = 0
    #: Given by the caller, who has a clock.
    seconds: float = 0.0
    #: Descriptions of the first `PROBLEMS_MAX` damaged things.
    problems: list[str] = field(default_factory=list)

    def damaged(self, problem: str) -> None:
        """Count and describe one damaged thing."""
        self.corrupt += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


class BadSlot(NamedTuple):
    """A slot that is neither empty nor a present entry: ``torn-ack``, ``torn`` or ``corrupt``."""

    kind: str


def scan_slots(number: int, data: bytes) -> Iterator[tuple[int, Slot | BadSlot]]:
    """Everything but empty slots in the content of a ``.qi`` file, ascending."""
    first_seq_id = number << SEGMENT_BITS
    at = HEADER_BYTES
    for seq_id in range(first_seq_id, first_seq_id + SEGMENT_ENTRIES):
        piece = data[at : at + SLOT_BYTES]
        at += SLOT_BYTES
        if piece == ZERO_SLOT:
            continue
        if len(piece) < SLOT_BYTES:
            if piece.strip(b"\0"):
                yield seq_id, BadSlot("torn")
            return
        if piece[0] in (0, STATUS_PRESENT):
            # A status of 0 before an intact rest is a flipped bit, or an ack of which one byte was written; either
            # way the message is there and delivering it again is allowed.
            slot = unpack_slot(seq_id, bytes((STATUS_PRESENT,)) + piece[1:])
            if slot is not None:
                yield seq_id, slot
                continue
        if piece[0] == 0:
            yield seq_id, BadSlot("torn-ack")
        else:
            yield seq_id, BadSlot("torn" if is_torn_slot(seq_id, piece) else "corrupt")


def segments_on_disk(disk: Disk, directory: str) -> list[int]:
    """Numbers of the segments with a ``.qi`` file, ascending."""
    names = disk.list(directory)
    suffix = INDEX_FORMAT.suffix
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def count_references(disk: Disk, directory: str) -> Counter[MsgId]:
    """How many slots of this queue name each message of the shared store."""
    references: Counter[MsgId] = Counter()
    for number in segments_on_disk(disk, directory):
        data = read_whole(disk, f"{directory}/{number}{INDEX_FORMAT.suffix}")
        for _, slot in scan_slots(number, data):
            if isinstance(slot, Slot) and slot.location == LOCATION_SHARED:
                references[MsgId(slot.msg_id)] += 1
    return references


class IndexRecovery:
    """One pass over the files of one queue. Fills ``index`` and collects the live messages."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        queue_id: int,
        *,
        index: QueueIndex,
        msg_store: MessageStore,
        report: RecoveryReport,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._queue_id = queue_id
        self._index = index
        self._msg_store = msg_store
        self._report = report
        #: Live messages by seq id, ascending.
        self.live: dict[int, Message | PagedMessage] = {}
        #: First seq id after the last segment that has a file.
        self.end_seq_id = 0

    def run(self, ram_limit_bytes: int) -> None:
        """Read everything. Raises `StorageError` if the disk refuses; damage is reported, not raised."""
        numbers = segments_on_disk(self._disk, self._directory)
        ram_bytes = 0
        for number in numbers:
            for seq_id, envelope in self._segment(number):
                message, _ = decode_envelope(envelope)
                size = len(message.body)
                if ram_bytes + size <= ram_limit_bytes:
                    ram_bytes += size
                    self.live[seq_id] = message
                else:
                    self.live[seq_id] = PagedMessage(message.msg_id, size)
            self.end_seq_id = (number + 1) << SEGMENT_BITS
        self._report.messages = len(self.live)
        for name in self._disk.list(self._directory):
            stem, _, suffix = name.rpartition(".")
            is_orphan = "." + suffix == QUEUE_STORE_FORMAT.suffix and stem.isdigit() and int(stem) not in numbers
            if is_orphan or suffix == "tmp":
                self._disk.unlink(f"{self._directory}/{name}")

    def _segment(self, number: int) -> list[tuple[int, bytes]]:
        index_path = self._index.path(number, INDEX_FORMAT.suffix)
        queue_store_path = self._index.path(number, QUEUE_STORE_FORMAT.suffix)
        slots = read_whole(self._disk, index_path)
        has_store = self._disk.exists(queue_store_path)
        records = read_whole(self._disk, queue_store_path) if has_store else b""
        bad_headers = [self._header_problem(INDEX_FORMAT.problem(slots, number, self._queue_id), slots, index_path)]
        if has_store:
            problem = QUEUE_STORE_FORMAT.problem(records, number, self._queue_id)
            bad_headers.append(self._header_problem(problem, records, queue_store_path))
        found: list[tuple[int, bytes]] = []
        #: What the slots of dropped and mended entries should be.
        patches: dict[int, bytes] = {}
        end = HEADER_BYTES
        for seq_id, slot in scan_slots(number, slots):
            envelope = self._entry(seq_id, slot, slots, records, has_store)
            if envelope is None:
                patches[seq_id] = ZERO_SLOT
                continue
            found.append((seq_id, envelope))
            assert isinstance(slot, Slot), "only a present entry has a message"
            if slots[slot_offset(seq_id)] != STATUS_PRESENT:
                patches[seq_id] = pack_slot(seq_id, slot)
            if slot.location == LOCATION_SHARED:
                self._index.shared[seq_id] = MsgId(slot.msg_id)
            else:
                end = max(end, slot.offset + RECORD_HEADER_BYTES + slot.size)
        segment = Segment(number, len(found), end if not self._report.clean else max(end, len(records)))
        self._index.segments[number] = segment
        if not self._report.clean or patches or any(bad_headers):
            self._repair(segment, patches, len(records), has_store)
        return found

    def _header_problem(self, problem: str, content: bytes, path: str) -> bool:
        if problem == NEVER_WRITTEN:
            self._report.torn += bool(content[:HEADER_BYTES].strip(b"\0"))
        elif problem:
            self._report.damaged(f"{path}: {problem}; its entries are checked one by one")
        return bool(problem)

    def _entry(self, seq_id: int, slot: Slot | BadSlot, slots: bytes, records: bytes, has_store: bool) -> bytes | None:
        """The envelope of an entry, or ``None`` with the reason counted."""
        report = self._report
        at = slot_offset(seq_id)
        piece = slots[at : at + SLOT_BYTES]
        if isinstance(slot, BadSlot):
            if slot.kind == "torn-ack":
                report.torn_acks += 1
            elif slot.kind == "torn":
                report.torn += 1
            else:
                self._corrupt(seq_id, "index slot", piece)
            return None
        if slot.location == LOCATION_SHARED:
            return self._shared_entry(seq_id, slot, piece)
        if slot.location != LOCATION_QUEUE:
            self._corrupt(seq_id, "index slot of an unknown location", piece)
            return None
        envelope = unpack_record(records, slot.offset, seq_id & SLOT_MASK)
        if envelope is not None and len(envelope) == slot.size and envelope[:MSG_ID_BYTES] == slot.msg_id:
            return envelope
        if has_store and is_torn_record(records, slot.offset, slot.size):
            report.torn += 1
        else:
            damaged = records[slot.offset : slot.offset + RECORD_HEADER_BYTES + slot.size]
            self._corrupt(seq_id, "message in the .qs file", piece + damaged)
        return None

    def _shared_entry(self, seq_id: int, slot: Slot, piece: bytes) -> bytes | None:
        msg_id = MsgId(slot.msg_id)
        if not self._msg_store.contains(msg_id):
            if self._msg_store.recovery.corrupt:
                self._corrupt(seq_id, "message in the shared store", piece)
            else:
                self._report.torn += 1
            return None
        try:
            return self._msg_store.read(msg_id)
        except StorageError:
            self._corrupt(seq_id, "message in the shared store", piece)
            self._msg_store.release(msg_id)
            return None

    def _corrupt(self, seq_id: int, what: str, data: bytes) -> None:
        self._report.damaged(f"{self._directory}: seq id {seq_id}: damaged {what}")
        quarantine(self._disk, self._directory, f"{seq_id}.bad", data)

    def _repair(self, segment: Segment, patches: dict[int, bytes], records_bytes: int, has_store: bool) -> None:
        """Clear what was dropped, mend headers and slots, cut the tail; sync what an earlier process may not have."""
        number = segment.number
        index_file = self._disk.open(self._index.path(number, INDEX_FORMAT.suffix))
        path = self._index.path(number, QUEUE_STORE_FORMAT.suffix)
        queue_store_file = self._disk.open(path) if has_store else self._disk.create(path)
        index_file.pwrite(INDEX_FORMAT.header(number, self._queue_id), 0)
        for seq_id, piece in patches.items():
            index_file.pwrite(piece, slot_offset(seq_id))
        queue_store_file.pwrite(QUEUE_STORE_FORMAT.header(number, self._queue_id), 0)
        if segment.queue_store_end < records_bytes:
            queue_store_file.truncate(segment.queue_store_end)
        for file in (queue_store_file, index_file):
            file.sync()
            file.close()
