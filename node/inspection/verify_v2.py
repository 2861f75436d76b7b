"""Verification of an index of version 2: every header, slot and record, and whether they agree.

What is *expected* is known after a clean stop: the terms say which entries are live. One segment is in memory at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from node.ids import MSG_ID_BYTES, MsgId, split_msg_id
from node.inspection.findings import Findings
from node.inspection.places import QueuePlace
from node.inspection.references import References
from node.store.disk.disk import read_whole
from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    NEVER_WRITTEN,
    QUEUE_STORE_FORMAT,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    SLOT_BYTES,
    STATUS_PRESENT,
    FileFormat,
    Slot,
    is_torn_record,
    slot_offset,
    unpack_record,
)
from node.store.index.live_bits import bits_of, positions
from node.store.index.v2.scan import BadSlot, scan_slots
from node.store.index.v2.segment import SegmentV2
from node.store.queue_storage import TERMS_NAME

#: In a record: behind the mark.
_PADDING_AT = 11
_DROPPED = "dropped at the next start, a copy goes to quarantine/"
_DROPPED_TORN = "dropped at the next start, counted as torn"
_FAILS_WHEN_READ = "a clean start does not look at it: the queue fails when it comes to it, and drops it when recovered"
_GONE = "the queue fails when it comes to it, perhaps at the start; the one after that does without, and names nothing"
_BAD_SLOTS = {
    "torn-ack": "the slot is neither empty nor an entry: its status is 0, as a torn ack leaves it",
    "torn": "the slot is an unfinished write",
    "corrupt": "the checksum of the slot is wrong",
}


class SegmentData(NamedTuple):
    """The files of a segment, in memory."""

    number: int
    slots_path: str
    slots: bytes
    records_path: str
    #: ``None`` without a .qs file.
    records: bytes | None


def read_segment(queue: QueuePlace, number: int) -> SegmentData:
    """Both files of a segment. Raises `StorageError`."""
    slots_path = queue.path(number, INDEX_FORMAT.suffix)
    records_path = queue.path(number, QUEUE_STORE_FORMAT.suffix)
    has_records = records_path.rpartition("/")[2] in queue.names
    records = read_whole(queue.disk, records_path) if has_records else None
    return SegmentData(number, slots_path, read_whole(queue.disk, slots_path), records_path, records)


class V2Check:
    """One pass over the files of one queue."""

    def __init__(
        self, queue: QueuePlace, expected: Mapping[int, SegmentV2] | None, references: References, findings: Findings
    ) -> None:
        """``expected``: the segments of a clean stop, ``None`` after a crash."""
        self._queue = queue
        self._expected = expected
        self._was_clean = expected is not None
        self._references = references
        self._findings = findings
        self._entries = queue.v2_segment_entries
        #: Behind the last position with an entry.
        self.end_seq_id = 0
        #: Bodies of the live persistent messages.
        self.body_bytes = 0

    def run(self) -> None:
        """Check everything. Raises `StorageError` if the disk refuses."""
        numbers = self._queue.v2_numbers
        for number in numbers:
            self._segment(read_segment(self._queue, number))
        for number in sorted((self._expected or {}).keys() - set(numbers)):
            path = self._queue.path(number, INDEX_FORMAT.suffix)
            self._findings.damage(path, None, "is missing: the terms count on it", _GONE)

    def _slot_at(self, seq_id: int) -> int:
        return slot_offset(seq_id, self._entries)

    def _segment(self, data: SegmentData) -> None:
        self._header(INDEX_FORMAT, data.slots_path, data.slots, data.number)
        if data.records is not None:
            self._header(QUEUE_STORE_FORMAT, data.records_path, data.records, data.number)
        self._length(data)
        live: list[int] = []
        shared: list[int] = []
        #: (start, end, seq id) of the records that live entries name.
        places: list[tuple[int, int, int]] = []
        msg_ids: dict[bytes, int] = {}
        for seq_id, slot in scan_slots(data.number, data.slots, self._entries):
            self.end_seq_id = max(self.end_seq_id, seq_id + 1)
            if isinstance(slot, BadSlot):
                self._bad_slot(data, seq_id, slot)
                continue
            live.append(seq_id)
            if not slot.persistent:
                continue
            self.body_bytes += slot.body_bytes
            self._status(data, seq_id)
            self._identity(data, seq_id, slot, msg_ids)
            if slot.shared:
                shared.append(seq_id)
                if not self._queue.is_converted(2, seq_id):
                    self._references.add(slot.msg_id, seq_id)
            else:
                size = RECORD_HEADER_BYTES + slot.overhead_bytes + slot.body_bytes
                places.append((slot.offset, slot.offset + size, seq_id))
                self._record(data, seq_id, slot)
        places.sort()
        self._overlaps(data, places)
        if data.records is not None:
            self._garbage(data, data.records, places)
        if self._expected is not None:
            self._compare(data, live, shared, self._expected.get(data.number))

    def _header(self, file_format: FileFormat, path: str, content: bytes, number: int) -> None:
        owner = self._queue.queue_id
        if owner is None:
            owner = int.from_bytes(content[16:24], "big")
        problem = file_format.problem(content, number, owner)
        if problem:
            was_synced = self._was_clean or problem != NEVER_WRITTEN
            consequence = "written again by the next recovery; the entries are checked one by one"
            self._findings.unfinished(was_synced, path, 0, problem, consequence)

    def _length(self, data: SegmentData) -> None:
        expected = HEADER_BYTES + self._entries * SLOT_BYTES
        size = len(data.slots)
        if size < expected:
            what = f"has {size} bytes instead of {expected}"
            self._findings.unfinished(self._was_clean, data.slots_path, size, what, "the missing slots count as empty")
        elif size > expected:
            what = f"has {size} bytes instead of {expected}"
            self._findings.damage(data.slots_path, expected, what, "none: nobody reads what is too much")

    def _bad_slot(self, data: SegmentData, seq_id: int, slot: BadSlot) -> None:
        at = self._slot_at(seq_id)
        was_live = True
        if self._expected is not None:
            segment = self._expected.get(data.number)
            was_live = segment is not None and bool(segment.live_bits >> seq_id % self._entries & 1)
        if self._was_clean:
            consequence = _FAILS_WHEN_READ if was_live else "none: the entry was settled"
        else:
            consequence = _DROPPED if slot.kind == "corrupt" else _DROPPED_TORN
        was_synced = self._was_clean or slot.kind == "corrupt"
        what = f"position {seq_id}: {_BAD_SLOTS[slot.kind]}"
        self._findings.unfinished(was_synced, data.slots_path, at, what, consequence)

    def _status(self, data: SegmentData, seq_id: int) -> None:
        at = self._slot_at(seq_id)
        if data.slots[at] != STATUS_PRESENT:
            what = f"position {seq_id}: an intact entry with status 0: a flipped bit, or a byte of an ack"
            consequence = _FAILS_WHEN_READ if self._was_clean else "mended at the next start, the message is there"
            self._findings.unfinished(self._was_clean, data.slots_path, at, what, consequence)

    def _identity(self, data: SegmentData, seq_id: int, slot: Slot, msg_ids: dict[bytes, int]) -> None:
        msg_id = slot.msg_id
        other = msg_ids.setdefault(msg_id, seq_id)
        if other != seq_id:
            what = f"positions {other} and {seq_id} have the same message {msg_id.hex()}"
            self._findings.damage(data.slots_path, self._slot_at(seq_id), what, "the message is delivered twice")
        terms = self._queue.terms
        last = terms.origins.get(split_msg_id(MsgId(msg_id))[0]) if terms is not None else None
        if last is not None and msg_id > last:
            what = f"position {seq_id}: message {msg_id.hex()} is newer than the last of its origin in the terms"
            path = f"{self._queue.directory}/{TERMS_NAME}"
            self._findings.damage(path, None, what, "a publish that is repeated may be taken for a new one")

    def _record(self, data: SegmentData, seq_id: int, slot: Slot) -> None:
        """The record that a live entry names."""
        size = slot.overhead_bytes + slot.body_bytes
        records = data.records
        if records is None:
            what = f"is missing: position {seq_id} has its message there"
            consequence = _FAILS_WHEN_READ if self._was_clean else _DROPPED
            self._findings.damage(data.records_path, None, what, consequence)
            return
        envelope = unpack_record(records, slot.offset, seq_id % self._entries)
        if envelope is not None and len(envelope) == size and envelope[:MSG_ID_BYTES] == slot.msg_id:
            self._padding(data, records, slot.offset)
            return
        if envelope is not None:
            what = f"position {seq_id}: the record is whole but another message's than the slot says"
        else:
            what = f"position {seq_id}: the record is damaged or cut off"
        is_torn = is_torn_record(records, slot.offset, size)
        consequence = _FAILS_WHEN_READ if self._was_clean else _DROPPED_TORN if is_torn else _DROPPED
        self._findings.unfinished(self._was_clean or not is_torn, data.records_path, slot.offset, what, consequence)

    def _padding(self, data: SegmentData, records: bytes, offset: int) -> None:
        """The one byte of a whole record that no checksum covers."""
        if records[offset + _PADDING_AT]:
            what = "the byte behind the mark of a record is not zero"
            self._findings.damage(data.records_path, offset + _PADDING_AT, what, "none: nobody reads it")

    def _overlaps(self, data: SegmentData, places: list[tuple[int, int, int]]) -> None:
        end, owner = HEADER_BYTES, -1
        for start, stop, seq_id in places:
            if start < end:
                what = f"positions {owner} and {seq_id} name the same bytes" if owner >= 0 else "a record in the header"
                self._findings.damage(data.records_path, start, what, _FAILS_WHEN_READ if self._was_clean else _DROPPED)
            end, owner = max(end, stop), seq_id

    def _garbage(self, data: SegmentData, records: bytes, places: list[tuple[int, int, int]]) -> None:
        """What stands between and behind the records of live entries: whole records of settled ones, as a rule."""
        position = HEADER_BYTES
        for start, end, _ in [*places, (len(records), len(records), -1)]:
            self._garbage_between(data, records, position, min(start, len(records)))
            position = max(position, end)

    def _garbage_between(self, data: SegmentData, records: bytes, position: int, end: int) -> None:
        while position + RECORD_HEADER_BYTES <= end:
            length, _, key, mark = RECORD_HEADER.unpack_from(records, position)
            following = position + RECORD_HEADER_BYTES + length
            if mark != RECORD_MARK or following > end or unpack_record(records, position, key) is None:
                break
            self._padding(data, records, position)
            position = following
        if position >= end:
            return
        what = f"{end - position} bytes that no entry names, and that are no whole record"
        if end == len(records) and not self._was_clean:
            self._findings.unfinished(False, data.records_path, position, what, "cut off at the next start")
        else:
            self._findings.leftover(data.records_path, position, what, "none: they go with the file")

    def _compare(self, data: SegmentData, live: list[int], shared: list[int], segment: SegmentV2 | None) -> None:
        """What the files say, against the terms."""
        path = f"{self._queue.directory}/{TERMS_NAME}"
        findings = self._findings
        if segment is None:
            findings.damage(data.slots_path, None, "is not in the terms", "its messages are not delivered")
            return
        mask = self._entries - 1
        base = data.number * self._entries
        found = bits_of(live, mask) if live else 0
        lost, extra = segment.live_bits & ~found, found & ~segment.live_bits
        if lost:
            what = f"segment {data.number}: {_list(positions(lost, base))} should be live, but have no readable entry"
            findings.damage(data.slots_path, self._slot_at(positions(lost, base)[0]), what, _FAILS_WHEN_READ)
        if extra:
            what = f"segment {data.number}: {_list(positions(extra, base))} have entries, but the terms say settled"
            findings.damage(data.slots_path, self._slot_at(positions(extra, base)[0]), what, "not delivered")
        found_shared = bits_of(shared, mask) if shared else 0
        if (found_shared ^ segment.shared_bits) & found & segment.live_bits:
            what = f"segment {data.number}: slots and terms differ on which messages are in the shared store"
            findings.damage(path, None, what, _FAILS_WHEN_READ)
        if segment.live_count != segment.live_bits.bit_count():
            what = f"segment {data.number}: {segment.live_count} live entries, but {segment.live_bits.bit_count()} bits"
            findings.damage(path, None, what, "the segment is deleted too early, or never")
        size = len(data.records or b"")
        if size < segment.queue_store_end:
            what = f"has {size} bytes, the terms say {segment.queue_store_end}"
            findings.damage(data.records_path, size, what, _FAILS_WHEN_READ)


def _list(seq_ids: Sequence[int]) -> str:
    """The first of some positions, in words."""
    text = ", ".join(map(str, seq_ids[:5]))
    return f"{len(seq_ids)} positions ({text}{', ...' if len(seq_ids) > 5 else ''})"
