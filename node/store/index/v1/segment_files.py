"""The ``.idx`` files of one queue: appended to when a journal is carried over, read by a bounded cache.

Reading. The last `PARSED_SEGMENTS_MAX` segments used are kept *parsed*: for each position the place of its record, its
msg_id and the size of its body, in flat arrays of 28 bytes an entry. A file is parsed from its beginning in pieces and
only as far as somebody asked, because consumers walk through it in the same direction. Which entries are live is not
the file's business: the owner's bits say so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress

from node.errors import StorageError
from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk.disk import Disk, DiskFile
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import HEADER_BYTES, SEGMENT_FORMAT
from node.store.index.index import PagedMessage
from node.store.index.live_bits import Run, keep_pieces
from node.store.index.v1.format import (
    KIND_ACK,
    PLACE_OFFSET_BITS,
    Publish,
    Record,
    checksum_seed,
    describe,
    intact_records,
    pack_acks,
    pack_publishes,
    paged_of,
    scan_records,
)
from node.store.index.v1.segment import SegmentV1

#: Segments kept parsed: the reference remembers two as well, the one that is read and the one that is acked.
PARSED_SEGMENTS_MAX = 2
#: Bytes of a file parsed at once: more than the largest record, little enough not to hold the loop up.
PARSE_BYTES = 256 * 1024
#: Arrays of a parsed segment: place, msg_id, size of the body.
_PARSED_ENTRY_BYTES = 8 + MSG_ID_BYTES + 4


class ParsedSegment:
    """What the publish records of a segment file say, as far as it was parsed."""

    __slots__ = ("body_bytes", "file", "mask", "msg_ids", "parsed_bytes", "places", "seed")

    def __init__(self, file: DiskFile, number: int, entries: int) -> None:
        #: Open for reading.
        self.file = file
        self.seed = checksum_seed(SEGMENT_FORMAT, number)
        self.mask = entries - 1
        self.parsed_bytes = HEADER_BYTES
        #: By position in the segment; 0 = no publish record seen.
        self.places = array("Q", bytes(8 * entries))
        self.body_bytes = array("I", bytes(4 * entries))
        self.msg_ids = bytearray(MSG_ID_BYTES * entries)

    def place(self, seq_id: int) -> int:
        return self.places[seq_id & self.mask]

    def msg_id(self, seq_id: int) -> MsgId:
        at = (seq_id & self.mask) * MSG_ID_BYTES
        return MsgId(bytes(self.msg_ids[at : at + MSG_ID_BYTES]))

    def size(self, seq_id: int) -> int:
        """Bytes of the body."""
        return self.body_bytes[seq_id & self.mask]

    def parse_more(self, size: int, file_bytes: int) -> None:
        """Parse the next ``size`` bytes of a file of ``file_bytes``."""
        start = self.parsed_bytes
        data = self.file.pread(min(size, file_bytes - start), start)
        for record in intact_records(data, self.seed, start, start):
            self._note(record, data, start)
            self.parsed_bytes = record.end
        if self.parsed_bytes == start:
            # Every piece begins with a record and is longer than one: this one is damaged. Take what is behind it.
            data = self.file.pread(file_bytes - start, start)
            for found in scan_records(data, self.seed, start, start):
                if isinstance(found, Record):
                    self._note(found, data, start)
            self.parsed_bytes = file_bytes

    def _note(self, record: Record, data: bytes, origin: int) -> None:
        if record.kind == KIND_ACK:
            return
        place = record.place
        msg_id, body_bytes = describe(data, record.offset - origin, bool(place & 2))
        at = record.seq_id & self.mask
        self.places[at] = place
        self.body_bytes[at] = body_bytes
        self.msg_ids[at * MSG_ID_BYTES : (at + 1) * MSG_ID_BYTES] = msg_id


class SegmentFilesV1:
    """See the module text. Everything that touches files raises `StorageError`."""

    def __init__(
        self, disk: Disk, directory: str, queue_id: int, group_commit: GroupCommit, *, is_durable: bool
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.queue_id = queue_id
        self.group_commit = group_commit
        self.is_durable = is_durable
        self.parse_bytes = PARSE_BYTES
        #: Least recently used first.
        self._parsed: dict[int, ParsedSegment] = {}
        #: Closed files that may wait for a sync, with the generation of their last write, oldest first.
        self._unsynced: list[tuple[int, DiskFile]] = []

    def path(self, number: int) -> str:
        """Path of a segment's file."""
        return f"{self.directory}/{number}{SEGMENT_FORMAT.suffix}"

    def mark_directory(self) -> None:
        """Names of files were made or removed."""
        if self.is_durable:
            self.group_commit.mark_dirty(self.disk.directory(self.directory))

    # -- writing

    def append(self, segment: SegmentV1, runs: Sequence[Run], publishes: Sequence[Publish]) -> None:
        """Write acks, then publishes, with one write, into the open generation.

        Makes the file if there is none; its name is the caller's to sync.
        """
        number = segment.number
        path = self.path(number)
        parts: list[bytes] = []
        offset = start = segment.file_bytes
        if not start:
            file = self.disk.create(path)
            parts.append(SEGMENT_FORMAT.header(number, self.queue_id))
            offset = HEADER_BYTES
        else:
            file = self.disk.open(path)
        seed = checksum_seed(SEGMENT_FORMAT, number)
        offset = pack_acks(runs, seed, offset, parts)
        pack_publishes(publishes, seed, offset, parts)
        data = b"".join(parts)
        try:
            file.pwrite(data, start)
        except StorageError:
            file.abandon()
            if not start:
                # Nobody would know of it.
                with suppress(StorageError):
                    self.disk.unlink(path)
            raise
        segment.file_bytes = start + len(data)
        for publish in publishes:
            if publish.seq_id < segment.file_end:
                # Late, or again: parsing must go to the end to know.
                segment.is_written_once = False
            else:
                segment.file_end = publish.seq_id + 1
        if not self.is_durable:
            file.abandon()
            return
        self.group_commit.mark_dirty(file)
        # Keeps what is not synced yet due for the round.
        file.close()
        self._unsynced.append((self.group_commit.open_generation, file))

    def delete(self, segment: SegmentV1) -> None:
        """Remove the file of a segment in which everything is settled, if it has one."""
        number = segment.number
        parsed = self._parsed.pop(number, None)
        if parsed is not None:
            parsed.file.abandon()
        if segment.file_bytes:
            self.disk.unlink(self.path(number))
            segment.file_bytes = 0

    def sync_all(self) -> None:
        """Make durable, on this thread, what no finished round of the group commit has; the directory too."""
        self.forget_synced()
        for _, file in self._unsynced:
            file.sync()
        self._unsynced.clear()
        self.disk.sync_directory(self.directory)

    def forget_synced(self) -> None:
        """Forget files of generations that are durable now."""
        durable = self.group_commit.durable_generation
        self._unsynced = [(generation, file) for generation, file in self._unsynced if generation > durable]

    # -- reading

    def find(self, segment: SegmentV1, seq_ids: Iterable[int]) -> ParsedSegment:
        """The segment, parsed at least as far as these ascending positions."""
        number = segment.number
        parsed = self._parsed.pop(number, None)
        if parsed is None:
            if not segment.file_bytes:
                raise StorageError(f"{self.path(number)} is missing: segment {number} has live entries")
            parsed = ParsedSegment(self.disk.open(self.path(number)), number, segment.entries)
            if len(self._parsed) >= PARSED_SEGMENTS_MAX:
                self._parsed.pop(next(iter(self._parsed))).file.close()
        self._parsed[number] = parsed
        file_bytes = segment.file_bytes
        if not segment.is_written_once:
            while parsed.parsed_bytes < file_bytes:
                parsed.parse_more(self.parse_bytes, file_bytes)
        places, mask = parsed.places, parsed.mask
        for seq_id in seq_ids:
            while not places[seq_id & mask]:
                if parsed.parsed_bytes >= file_bytes:
                    raise StorageError(f"the entry of seq id {seq_id} in {self.path(number)} is damaged or missing")
                parsed.parse_more(self.parse_bytes, file_bytes)
        return parsed

    def describe(self, segment: SegmentV1, seq_ids: Sequence[int]) -> list[tuple[int, PagedMessage]]:
        """What the records of these ascending positions say."""
        parsed = self.find(segment, seq_ids)
        return [(s, paged_of(parsed.place(s), parsed.msg_id(s), parsed.size(s))) for s in seq_ids]

    def copy_msg_ids(self, segment: SegmentV1, bits: int, target: bytearray, first: int) -> None:
        """Copy the msg_ids of the entries with these bits (not none) to their places in ``target``, whose first place
        is that of seq id ``first``. One whose record cannot be read is zeros; if it is the last, this raises."""
        low = (bits & -bits).bit_length() - 1
        end = bits.bit_length()
        # Positions ascend in a file that is not parsed wholly, so those before the last are parsed with it.
        parsed = self.find(segment, [segment.base + end - 1])
        found = parsed.msg_ids[low * MSG_ID_BYTES : end * MSG_ID_BYTES]
        keep_pieces(found, bits >> low, MSG_ID_BYTES)
        start = (segment.base + low - first) * MSG_ID_BYTES
        target[start : start + len(found)] = found

    def close(self) -> None:
        """Close what is open for reading."""
        for parsed in self._parsed.values():
            parsed.file.close()
        self._parsed.clear()

    def abandon(self) -> None:
        """Give up the files as they are."""
        self.close()
        while self._unsynced:
            self._unsynced.pop()[1].abandon()

    @property
    def memory_bytes(self) -> int:
        """Estimate of what the parsed segments cost."""
        return sum(_PARSED_ENTRY_BYTES * len(parsed.places) for parsed in self._parsed.values())

    def check_invariants(self) -> None:
        assert len(self._parsed) <= PARSED_SEGMENTS_MAX, "parsed segments are bounded"
        for parsed in self._parsed.values():
            end = max((place >> PLACE_OFFSET_BITS for place in parsed.places), default=0)
            assert end < max(parsed.parsed_bytes, HEADER_BYTES + 1), "places are in what was parsed"
