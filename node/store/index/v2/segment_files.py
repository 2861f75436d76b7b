"""The files of the segments of an index of version 2: created, kept open within a bound, closed, deleted.

Acks that come in random order visit every segment of a long queue again and again, and each takes one small write. So
they need the ``.qi`` file alone, do not displace the files that are read and appended to, and a file with nothing but
acks is closed as it is: nobody waits for them, and an fsync for each would keep the disk busier than all the rest. The
system writes them when it likes; a clean stop makes sure of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from node.errors import DiskFullError, StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk.disk import Disk, DiskFile, sync_file
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    QUEUE_STORE_FORMAT,
    READ_GAP_BYTES_MAX,
    RECORD_HEADER_BYTES,
    SLOT_BYTES,
    SLOT_MSG_ID_AT,
    Slot,
    slot_offset,
    unpack_record,
    unpack_slot,
)
from node.store.index.index import IN_SHARED_STORE, PagedMessage
from node.store.index.live_bits import keep_pieces, runs_of_bits
from node.store.index.v2.segment import SegmentV2

#: Segments with open files, per queue: the head that is acked, the tail that is written, one that is read between.
OPEN_SEGMENTS_MAX = 3
_SIZE_MASK = 0xFFFFFFFF
#: More runs of acked slots than this are written as one: read the stretch, clear the slots, write it back.
ACK_RUNS_MAX = 8


class SegmentFilesV2:
    """The files in ``directory``, and which of them are open. Everything that touches them raises `StorageError`."""

    def __init__(self, disk: Disk, directory: str, queue_id: int, group_commit: GroupCommit, entries: int) -> None:
        self.disk = disk
        self.directory = directory
        self.queue_id = queue_id
        self._group_commit = group_commit
        self._entries = entries
        self._index_file_bytes = HEADER_BYTES + entries * SLOT_BYTES
        #: Segments with open files, least recently used first.
        self._open: dict[int, SegmentV2] = {}
        #: Closed files that still wait for a sync.
        self._closing: list[DiskFile] = []
        #: Segments with acks that were left to the system when their file was closed.
        self._left: dict[int, None] = {}

    def path(self, number: int, suffix: str) -> str:
        """Path of a file of segment ``number``."""
        return f"{self.directory}/{number}{suffix}"

    def create(self, number: int) -> SegmentV2:
        """A new segment with empty files; neither is left if one cannot be made."""
        made: list[DiskFile] = []
        try:
            made.append(self.disk.create(self.path(number, QUEUE_STORE_FORMAT.suffix)))
            made.append(self.disk.create(self.path(number, INDEX_FORMAT.suffix)))
            queue_store_file, index_file = made
            queue_store_file.pwrite(QUEUE_STORE_FORMAT.header(number, self.queue_id), 0)
            index_file.pwrite(INDEX_FORMAT.header(number, self.queue_id), 0)
            # The whole length at once: later syncs need not write a new length every time.
            index_file.truncate(self._index_file_bytes)
        except StorageError:
            for file in reversed(made):
                file.abandon()
                with suppress(StorageError):
                    self.disk.unlink(file.path)
            raise
        segment = SegmentV2(number, self._entries, HEADER_BYTES)
        segment.index_file, segment.queue_store_file = index_file, queue_store_file
        self._keep_open(segment)
        self.mark_dirty(segment, index_file, queue_store_file)
        self._group_commit.mark_dirty(self.disk.directory(self.directory))
        return segment

    def mark_dirty(self, segment: SegmentV2, *files: DiskFile) -> None:
        """Somebody waits for what was written to these files of a segment."""
        segment.dirty_generation = self._group_commit.open_generation
        # The sync will cover what was left to the system as well.
        self._left.pop(segment.number, None)
        for file in files:
            self._group_commit.mark_dirty(file)

    def files(self, segment: SegmentV2) -> tuple[DiskFile, DiskFile]:
        """The .qi and the .qs file of a segment, opened if they are not."""
        index_file, queue_store_file = segment.index_file, segment.queue_store_file
        if queue_store_file is None:
            queue_store_file = self.disk.open(self.path(segment.number, QUEUE_STORE_FORMAT.suffix))
        if index_file is None:
            try:
                index_file = self.disk.open(self.path(segment.number, INDEX_FORMAT.suffix))
            except StorageError:
                queue_store_file.close()
                raise
        segment.index_file, segment.queue_store_file = index_file, queue_store_file
        self._keep_open(segment)
        return index_file, queue_store_file

    def index_file(self, segment: SegmentV2) -> DiskFile:
        """The .qi file alone. If it has to be opened it takes the place of the file that was used least recently, and
        is the next to go."""
        file = segment.index_file
        if file is None:
            file = self.disk.open(self.path(segment.number, INDEX_FORMAT.suffix))
            if len(self._open) == OPEN_SEGMENTS_MAX:
                self._close_oldest()
            segment.index_file = file
            self._open = {segment.number: segment, **self._open}
        return file

    def copy_msg_ids(self, segment: SegmentV2, bits: int, target: bytearray, first: int) -> None:
        """Copy the msg_ids of the entries with these bits (not none) to their places in ``target``, whose first place
        is that of seq id ``first``. One read, and no work per entry: the slots are not checked."""
        index_file = self.index_file(segment)
        low = (bits & -bits).bit_length() - 1
        count = bits.bit_length() - low
        # From the first msg_id to a little behind the last: whole words, four to a slot, of which two are the msg_id.
        size = count * SLOT_BYTES - 8
        data = index_file.pread(size, HEADER_BYTES + low * SLOT_BYTES + SLOT_MSG_ID_AT)
        if len(data) < size:
            raise StorageError(f"{index_file.path} is cut off: slot {low + count - 1} is live")
        found = bytearray(count * MSG_ID_BYTES)
        source, copy = memoryview(data).cast("Q"), memoryview(found).cast("Q")
        copy[0::2] = source[0::4]
        copy[1::2] = source[1::4]
        # What is settled may still be in the file.
        keep_pieces(found, bits >> low, MSG_ID_BYTES)
        start = (segment.number * self._entries + low - first) * MSG_ID_BYTES
        target[start : start + len(found)] = found

    def describe(self, segment: SegmentV2, seq_ids: Sequence[int]) -> list[tuple[int, PagedMessage]]:
        """What the slots of these written live entries say; ascending. Raises `StorageError` if one is damaged."""
        index_file, _ = self.files(segment)
        first = seq_ids[0]
        start = slot_offset(first, self._entries)
        data = index_file.pread(slot_offset(seq_ids[-1], self._entries) + SLOT_BYTES - start, start)
        found: list[tuple[int, PagedMessage]] = []
        for seq_id in seq_ids:
            at = (seq_id - first) * SLOT_BYTES
            slot = unpack_slot(seq_id, data[at : at + SLOT_BYTES])
            if slot is None:
                raise StorageError(f"slot of seq id {seq_id} in {index_file.path} is damaged")
            found.append((seq_id, _paged_of(slot)))
        return found

    def read_embedded(self, segment: SegmentV2, wanted: list[tuple[int, int]], found: dict[int, bytes]) -> None:
        """Add envelopes of the .qs file to ``found``, by seq id. ``wanted``: (place, seq id)."""
        _, queue_store_file = self.files(segment)
        wanted.sort()
        for stretch in _stretches(wanted):
            base = stretch[0][0] >> 32
            last = stretch[-1][0]
            size = (last >> 32) + RECORD_HEADER_BYTES + (last & _SIZE_MASK) - base
            data = queue_store_file.pread(size, base)
            for place, seq_id in stretch:
                envelope = unpack_record(data, (place >> 32) - base, seq_id % self._entries)
                if envelope is None:
                    raise StorageError(
                        f"message of seq id {seq_id} in {queue_store_file.path} at {place >> 32} is damaged: "
                        "its checksum does not fit"
                    )
                found[seq_id] = envelope

    def write_zeros(self, segment: SegmentV2, bits: int) -> DiskFile:
        """Zero the slots with these bits, which are in the file. Returns the .qi file."""
        index_file = self.index_file(segment)
        stretches = list(runs_of_bits(bits, 0))
        if len(stretches) > ACK_RUNS_MAX:
            start = HEADER_BYTES + stretches[0][0] * SLOT_BYTES
            last, count = stretches[-1]
            data = bytearray(index_file.pread(HEADER_BYTES + (last + count) * SLOT_BYTES - start, start))
            for first, count in stretches:
                at = HEADER_BYTES + first * SLOT_BYTES - start
                data[at : at + count * SLOT_BYTES] = bytes(count * SLOT_BYTES)
            # Holes between the slots take space when they are written; the slots themselves have theirs.
            with suppress(DiskFullError):
                index_file.pwrite(data, start)
                return index_file
        for first, count in stretches:
            index_file.pwrite(bytes(count * SLOT_BYTES), HEADER_BYTES + first * SLOT_BYTES)
        return index_file

    def _keep_open(self, segment: SegmentV2) -> None:
        self._open.pop(segment.number, None)
        self._open[segment.number] = segment
        if len(self._open) > OPEN_SEGMENTS_MAX:
            self._close_oldest()

    def _is_awaited(self, segment: SegmentV2) -> bool:
        """True if somebody waits for a write to its files that is not durable yet."""
        return segment.dirty_generation > self._group_commit.durable_generation

    def _close_oldest(self) -> None:
        self._close(self._open.pop(next(iter(self._open))))

    def _close(self, segment: SegmentV2) -> None:
        is_awaited = self._is_awaited(segment)
        for file in (segment.index_file, segment.queue_store_file):
            if file is None:
                continue
            if not file.has_unsynced:
                file.close()
            elif is_awaited or file is segment.queue_store_file:
                # The descriptor lives until the sync, so there must be one of this file. Bodies may be awaited though
                # nothing says so: those of which a full disk refused the slots, which will be written some time through
                # handles that know nothing of these bodies.
                self._group_commit.mark_dirty(file)
                self._closing.append(file)
                file.close()
            else:
                self._left[segment.number] = None
                file.abandon()
        segment.index_file = segment.queue_store_file = None
        self._closing = [file for file in self._closing if file.has_unsynced]

    def delete(self, segment: SegmentV2) -> None:
        """Remove both files, .qi first."""
        self._open.pop(segment.number, None)
        self._left.pop(segment.number, None)
        for file in (segment.index_file, segment.queue_store_file):
            if file is not None:
                file.abandon()
        self.disk.unlink(self.path(segment.number, INDEX_FORMAT.suffix))
        self.disk.unlink(self.path(segment.number, QUEUE_STORE_FORMAT.suffix))

    def close_all(self, segments: Iterable[SegmentV2]) -> None:
        """Sync and close everything, on this thread. ``segments``: every one that has files."""
        for segment in self._open.values():
            self._close(segment)
        self._open.clear()
        for file in self._closing:
            file.sync()
        self._closing.clear()
        for segment in segments:
            if self._is_awaited(segment):
                # A round may be syncing its files right now: they say that they owe nothing, but it is not done yet.
                for suffix in (INDEX_FORMAT.suffix, QUEUE_STORE_FORMAT.suffix):
                    sync_file(self.disk, self.path(segment.number, suffix))
            elif segment.number in self._left:
                sync_file(self.disk, self.path(segment.number, INDEX_FORMAT.suffix))
        self.disk.sync_directory(self.directory)

    def abandon(self) -> None:
        """Give up the files as they are."""
        for segment in self._open.values():
            for file in (segment.index_file, segment.queue_store_file):
                if file is not None:
                    file.abandon()
            segment.index_file = segment.queue_store_file = None
        for file in self._closing:
            file.abandon()
        self._open.clear()
        self._closing.clear()
        self._left.clear()

    def check_invariants(self, segments: dict[int, SegmentV2]) -> None:
        """``segments``: every segment that has files."""
        assert len(self._open) <= OPEN_SEGMENTS_MAX, "open files are bounded"
        for number, segment in segments.items():
            assert segment.number == number, "a segment is filed under its number"
            assert (segment.index_file is not None) == (number in self._open), f"segment {number} is counted as open"
            assert segment.index_file or not segment.queue_store_file, f"segment {number}: .qs is open with .qi only"
        assert self._left.keys() <= segments.keys(), "what was left to the system belongs to a segment"


def _stretches(wanted: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Ascending (place, seq id), grouped so that each group is worth one read."""
    stretches = [[wanted[0]]]
    end = (wanted[0][0] >> 32) + (wanted[0][0] & _SIZE_MASK) + RECORD_HEADER_BYTES
    for record in wanted[1:]:
        offset = record[0] >> 32
        if offset - end <= READ_GAP_BYTES_MAX:
            stretches[-1].append(record)
        else:
            stretches.append([record])
        end = offset + (record[0] & _SIZE_MASK) + RECORD_HEADER_BYTES
    return stretches


def _paged_of(slot: Slot) -> PagedMessage:
    """What is known of a written message without reading its body."""
    place = IN_SHARED_STORE if slot.shared else slot.offset << 32 | (slot.overhead_bytes + slot.body_bytes)
    return PagedMessage(MsgId(slot.msg_id), slot.body_bytes, slot.persistent, place)
