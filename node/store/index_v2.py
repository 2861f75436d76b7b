"""Index of one queue, second generation, with the queue's own store for small messages (mission S4, S13).

A queue's seq ids are cut into segments of 4096. A segment is a pair of files: ``N.qi`` with a slot of 32 bytes for
every seq id, and ``N.qs`` with the envelopes of the messages smaller than `StoreConfig.embed_below_bytes` (formats:
`node.store.record`). Bigger messages live in the vhost's `MessageStore`; their slot names them by msg_id.

**Publish** writes a slot, **ack** overwrites it with zeros; there is no journal. A pair of files is deleted when every
entry in it is acked and the queue's positions have moved on to a later segment.

**Write buffer.** `publish` and `settle` only collect. `flush` writes everything collected in a turn: one append to
``.qs`` and one pwrite to ``.qi`` per segment (more only if the slots are not neighbours). A message that is settled
before the flush is forgotten and never touches the disk.

**What is synced.** Publishes mark both files for the group commit. Acks do not: AMQP promises nothing about an ack
that is followed by a crash but redelivery, so acks ride along with the next round of a file or with the
system's own write-back. A recovered message may therefore have been acked shortly before the crash, never the
other way round.

**Order of names.** ``.qs`` is created before ``.qi`` and deleted after it. So a ``.qi`` without a ``.qs`` it needs is
damage, and a ``.qs`` alone is a leftover.

**Crash.** A slot stands alone: a torn ack has status 0 and old bytes behind it (the ack counts); a torn publish has
status 1 and no checksum (it was never confirmed: dropped and counted). A slot or record that is whole but
whose checksum is wrong is corruption: copied to ``quarantine/``, reported, never served. Recovery is in
`node.store.index_recovery`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from node.errors import StorageError
from node.ids import MsgId
from node.message import Message
from node.store.disk import Disk, DiskFile
from node.store.group_commit import GroupCommit
from node.store.msg_store import MessageStore
from node.store.record import (
    CRC,
    HEADER_BYTES,
    INDEX_FILE_BYTES,
    INDEX_FORMAT,
    LOCATION_QUEUE,
    LOCATION_SHARED,
    QUEUE_STORE_FORMAT,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    SEGMENT_BITS,
    SEGMENT_ENTRIES,
    SEQ_ID_CRC_MASK,
    SLOT_BODY,
    SLOT_BYTES,
    SLOT_MASK,
    SLOT_PERSISTENT,
    STATUS_PRESENT,
    ZERO_SLOT,
    slot_offset,
    unpack_record,
    unpack_slot,
)
from node.store.store_config import StoreConfig

#: Segments with open files, per queue: the head that is acked, the tail that is written, one that is read between.
OPEN_SEGMENTS_MAX = 3
#: More runs of acked slots than this are written as one: read the stretch, clear the slots, write it back.
ACK_RUNS_MAX = 8
#: Neighbouring records up to this many bytes apart are read with one call (the reference coalesces as well).
READ_GAP_BYTES_MAX = 4096


class Segment:
    """Bookkeeping of one pair of files."""

    __slots__ = ("index_file", "live", "number", "queue_store_end", "queue_store_file")

    def __init__(self, number: int, live: int, queue_store_end: int) -> None:
        self.number = number
        #: Entries on disk that are not settled.
        self.live = live
        #: Where the next record of the .qs file goes.
        self.queue_store_end = queue_store_end
        #: Open files, or ``None``; both or neither.
        self.index_file: DiskFile | None = None
        self.queue_store_file: DiskFile | None = None


class QueueIndex:
    """See the module text. `flush` and `read` raise `StorageError`; the owner then takes the queue out of service."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        queue_id: int,
        *,
        group_commit: GroupCommit,
        msg_store: MessageStore,
        config: StoreConfig,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._queue_id = queue_id
        self._group_commit = group_commit
        self._msg_store = msg_store
        self._embed_below_bytes = config.embed_below_bytes
        #: Every segment that has files.
        self.segments: dict[int, Segment] = {}
        #: seq id -> msg_id of live entries whose message is in the shared store.
        self.shared: dict[int, MsgId] = {}
        #: Published since the last flush.
        self._pending: dict[int, Message] = {}
        #: Envelopes of pending messages, where the publisher had them at hand.
        self._envelopes: dict[int, bytes] = {}
        #: Settled since the last flush, of those that are on disk.
        self._settled: list[int] = []
        #: Segments with open files, least recently used first.
        self._open: dict[int, Segment] = {}
        #: Closed files that still wait for a sync.
        self._closing: list[DiskFile] = []

    # -- collecting

    @property
    def has_unflushed(self) -> bool:
        """True if `flush` would write something."""
        return bool(self._pending or self._settled)

    @property
    def has_unflushed_publishes(self) -> bool:
        """True if a message waits for `flush`."""
        return bool(self._pending)

    def is_unflushed(self, seq_id: int) -> bool:
        """True if this message is not in a file yet."""
        return seq_id in self._pending

    def unflushed(self) -> list[int]:
        """Seq ids of the messages that wait for `flush`, in the order they came."""
        return list(self._pending)

    def publish(self, messages: Mapping[int, Message]) -> None:
        """Collect messages by seq id; a seq id is free or settled."""
        self._pending.update(messages)

    def publish_envelopes(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes]) -> None:
        """The same, with the encoded form at hand."""
        self._pending.update(messages)
        self._envelopes.update(envelopes)

    def settle(self, seq_ids: Sequence[int]) -> None:
        """Collect acks. Every id was published here and not settled since."""
        pending = self._pending
        if pending:
            settled = self._settled
            for seq_id in seq_ids:
                if pending.pop(seq_id, None) is None:
                    settled.append(seq_id)
            if self._envelopes:
                for seq_id in seq_ids:
                    self._envelopes.pop(seq_id, None)
        else:
            self._settled += seq_ids
        shared = self.shared
        if shared:
            for seq_id in seq_ids:
                msg_id = shared.pop(seq_id, None)
                if msg_id is not None:
                    self._msg_store.release(msg_id)

    # -- writing

    def flush(self, next_seq_id: int) -> int:
        """Write what was collected; ``next_seq_id`` tells which segments are past. Returns how many messages were
        written."""
        # Acks first: a position may be settled and filled again within one turn (a mirror whose tail was replaced).
        if self._settled:
            settled, self._settled = self._settled, []
            settled.sort()
            # A segment below both is deleted as a whole once its last entry is settled.
            in_use = min(next_seq_id, min(self._pending, default=next_seq_id)) >> SEGMENT_BITS
            for number, seq_ids in _by_segment(settled):
                segment = self.segments[number]
                segment.live -= len(seq_ids)
                if segment.live or number >= in_use:
                    self._write_acks(segment, seq_ids)
        written = len(self._pending)
        if written:
            pending, self._pending = self._pending, {}
            envelopes, self._envelopes = self._envelopes, {}
            for number, seq_ids in _by_segment(sorted(pending)):
                self._write_publishes(self._segment(number), seq_ids, pending, envelopes)
        self._delete_finished(next_seq_id)
        return written

    def _write_publishes(
        self, segment: Segment, seq_ids: Sequence[int], pending: Mapping[int, Message], envelopes: Mapping[int, bytes]
    ) -> None:
        index_file, queue_store_file = self._files(segment)
        embed_below_bytes = self._embed_below_bytes
        start = offset = segment.queue_store_end
        records: list[bytes] = []
        slots: list[bytes] = []
        shared: list[tuple[MsgId, bytes]] = []
        pack_record_header, pack_body, pack_crc = RECORD_HEADER.pack, SLOT_BODY.pack, CRC.pack
        for seq_id in seq_ids:
            message = pending[seq_id]
            envelope = envelopes.get(seq_id) if envelopes else None
            if envelope is None:
                envelope = message.envelope()
            size = len(envelope)
            if len(message.body) + len(message.properties) < embed_below_bytes:
                key = seq_id & SLOT_MASK
                records += (pack_record_header(size, crc32(envelope, key), key, RECORD_MARK), envelope)
                body = pack_body(STATUS_PRESENT, SLOT_PERSISTENT, LOCATION_QUEUE, message.msg_id, offset, size)
                offset += RECORD_HEADER_BYTES + size
            else:
                shared.append((message.msg_id, envelope))
                self.shared[seq_id] = message.msg_id
                body = pack_body(STATUS_PRESENT, SLOT_PERSISTENT, LOCATION_SHARED, message.msg_id, 0, size)
            slots += (body, pack_crc(crc32(body, seq_id & SEQ_ID_CRC_MASK)))
        if shared:
            self._msg_store.write_batch(shared)
        if records:
            queue_store_file.pwrite(b"".join(records), start)
            segment.queue_store_end = offset
            self._group_commit.mark_dirty(queue_store_file)
        data = b"".join(slots)
        at = 0
        for first, count in _runs(seq_ids):
            end = at + count * SLOT_BYTES
            index_file.pwrite(data[at:end], slot_offset(first))
            at = end
        self._group_commit.mark_dirty(index_file)
        segment.live += len(seq_ids)

    def _write_acks(self, segment: Segment, seq_ids: Sequence[int]) -> None:
        index_file, _ = self._files(segment)
        runs = _runs(seq_ids)
        if len(runs) <= ACK_RUNS_MAX:
            for first, count in runs:
                index_file.pwrite(bytes(count * SLOT_BYTES), slot_offset(first))
            return
        start = slot_offset(seq_ids[0])
        data = bytearray(index_file.pread(slot_offset(seq_ids[-1]) + SLOT_BYTES - start, start))
        for seq_id in seq_ids:
            at = slot_offset(seq_id) - start
            data[at : at + SLOT_BYTES] = ZERO_SLOT
        index_file.pwrite(data, start)

    def _delete_finished(self, next_seq_id: int) -> None:
        """Delete the files of segments in which everything is settled and nothing more will be appended."""
        tail = next_seq_id >> SEGMENT_BITS
        finished = [number for number, segment in self.segments.items() if not segment.live and number < tail]
        for number in finished:
            segment = self.segments.pop(number)
            self._open.pop(number, None)
            if segment.index_file is not None and segment.queue_store_file is not None:
                segment.index_file.abandon()
                segment.queue_store_file.abandon()
            self._disk.unlink(self.path(number, INDEX_FORMAT.suffix))
            self._disk.unlink(self.path(number, QUEUE_STORE_FORMAT.suffix))
        if finished:
            # Not a promise, but once per segment it is cheap: without it a crash could bring thousands of acked back.
            self._group_commit.mark_dirty(self._disk.directory(self._directory))

    # -- reading

    def read(self, seq_ids: Sequence[int]) -> list[tuple[int, bytes]]:
        """Envelopes of live entries that are flushed, in the given order. Raises `StorageError` if one is damaged."""
        found: dict[int, bytes] = {}
        embedded: list[int] = []
        for seq_id in seq_ids:
            msg_id = self.shared.get(seq_id)
            if msg_id is None:
                embedded.append(seq_id)
            else:
                found[seq_id] = self._msg_store.read(msg_id)
        embedded.sort()
        for number, members in _by_segment(embedded):
            self._read_embedded(self.segments[number], members, found)
        return [(seq_id, found[seq_id]) for seq_id in seq_ids]

    def _read_embedded(self, segment: Segment, seq_ids: Sequence[int], found: dict[int, bytes]) -> None:
        index_file, queue_store_file = self._files(segment)
        start = slot_offset(seq_ids[0])
        slots = index_file.pread(slot_offset(seq_ids[-1]) + SLOT_BYTES - start, start)
        wanted: list[tuple[int, int, int]] = []
        for seq_id in seq_ids:
            at = slot_offset(seq_id) - start
            slot = unpack_slot(seq_id, slots[at : at + SLOT_BYTES])
            if slot is None or slot.location != LOCATION_QUEUE:
                raise StorageError(f"slot of seq id {seq_id} in {index_file.path} is damaged")
            wanted.append((slot.offset, RECORD_HEADER_BYTES + slot.size, seq_id))
        wanted.sort()
        for stretch in _stretches(wanted):
            base = stretch[0][0]
            data = queue_store_file.pread(stretch[-1][0] + stretch[-1][1] - base, base)
            for offset, _, seq_id in stretch:
                envelope = unpack_record(data, offset - base, seq_id & SLOT_MASK)
                if envelope is None:
                    raise StorageError(
                        f"message of seq id {seq_id} in {queue_store_file.path} at {offset} is damaged: "
                        "its checksum does not fit"
                    )
                found[seq_id] = envelope

    # -- files

    def path(self, number: int, suffix: str) -> str:
        """Path of a file of segment ``number``."""
        return f"{self._directory}/{number}{suffix}"

    def _segment(self, number: int) -> Segment:
        """The segment, with files made if it has none."""
        segment = self.segments.get(number)
        if segment is not None:
            return segment
        queue_store_file = self._disk.create(self.path(number, QUEUE_STORE_FORMAT.suffix))
        queue_store_file.pwrite(QUEUE_STORE_FORMAT.header(number, self._queue_id), 0)
        index_file = self._disk.create(self.path(number, INDEX_FORMAT.suffix))
        index_file.pwrite(INDEX_FORMAT.header(number, self._queue_id), 0)
        # The whole length at once: later syncs need not write a new length every time.
        index_file.truncate(INDEX_FILE_BYTES)
        segment = Segment(number, 0, HEADER_BYTES)
        segment.index_file, segment.queue_store_file = index_file, queue_store_file
        self.segments[number] = segment
        self._keep_open(segment)
        for file in (index_file, queue_store_file):
            self._group_commit.mark_dirty(file)
        self._group_commit.mark_dirty(self._disk.directory(self._directory))
        return segment

    def _files(self, segment: Segment) -> tuple[DiskFile, DiskFile]:
        index_file, queue_store_file = segment.index_file, segment.queue_store_file
        if index_file is None or queue_store_file is None:
            index_file = self._disk.open(self.path(segment.number, INDEX_FORMAT.suffix))
            queue_store_file = self._disk.open(self.path(segment.number, QUEUE_STORE_FORMAT.suffix))
            segment.index_file, segment.queue_store_file = index_file, queue_store_file
        self._keep_open(segment)
        return index_file, queue_store_file

    def _keep_open(self, segment: Segment) -> None:
        self._open.pop(segment.number, None)
        self._open[segment.number] = segment
        if len(self._open) > OPEN_SEGMENTS_MAX:
            self._close_segment(self._open.pop(next(iter(self._open))))

    def _close_segment(self, segment: Segment) -> None:
        for file in (segment.index_file, segment.queue_store_file):
            if file is not None:
                if file.has_unsynced:
                    # Acks alone do not ask for a sync, but the descriptor lives until there is one.
                    self._group_commit.mark_dirty(file)
                    self._closing.append(file)
                file.close()
        segment.index_file = segment.queue_store_file = None
        self._closing = [file for file in self._closing if file.has_unsynced]

    def close(self, next_seq_id: int) -> None:
        """Write and sync everything, on this thread. Raises `StorageError`."""
        self.flush(next_seq_id)
        for segment in self._open.values():
            self._close_segment(segment)
        self._open.clear()
        for file in self._closing:
            file.sync()
        self._closing.clear()
        self._disk.sync_directory(self._directory)

    def delete(self) -> None:
        """Forget everything and give the references back; the owner removes the directory."""
        for msg_id in self.shared.values():
            self._msg_store.release(msg_id)
        self.abandon()

    def abandon(self) -> None:
        """Give up the files as they are."""
        self.shared.clear()
        for segment in self.segments.values():
            for file in (segment.index_file, segment.queue_store_file):
                if file is not None:
                    file.abandon()
        for file in self._closing:
            file.abandon()
        self.segments.clear()
        self._open.clear()
        self._pending.clear()
        self._envelopes.clear()
        self._settled.clear()
        self._closing.clear()

    def check_invariants(self, live_on_disk: int) -> None:
        """``live_on_disk``: how many live messages the owner stored here."""
        live = sum(segment.live for segment in self.segments.values())
        assert live + len(self._pending) - len(self._settled) == live_on_disk, (
            "every stored message is pending or in a segment: "
            f"{live} in segments, {len(self._pending)} pending, {len(self._settled)} acks to write, {live_on_disk} live"
        )
        assert not self._envelopes.keys() - self._pending.keys(), "encoded forms belong to pending messages"
        assert not self.shared.keys() & self._pending.keys(), "a message takes its reference when it is written"
        assert len(self._open) <= OPEN_SEGMENTS_MAX, "open files are bounded"
        for number, segment in self.segments.items():
            assert 0 <= segment.live <= SEGMENT_ENTRIES, f"segment {number} has a slot for every live entry"
            assert (segment.index_file is not None) == (number in self._open), f"segment {number} is counted as open"


def _by_segment(seq_ids: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
    """Ascending seq ids, cut at segment borders."""
    if not seq_ids:
        return []
    first = seq_ids[0] >> SEGMENT_BITS
    if seq_ids[-1] >> SEGMENT_BITS == first:
        return [(first, seq_ids)]
    groups: dict[int, list[int]] = {}
    for seq_id in seq_ids:
        groups.setdefault(seq_id >> SEGMENT_BITS, []).append(seq_id)
    return list(groups.items())


def _runs(seq_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending seq ids as (first, count) of neighbours."""
    if seq_ids[-1] - seq_ids[0] == len(seq_ids) - 1:
        return [(seq_ids[0], len(seq_ids))]
    runs: list[tuple[int, int]] = []
    first = previous = seq_ids[0]
    for seq_id in seq_ids[1:]:
        if seq_id != previous + 1:
            runs.append((first, previous + 1 - first))
            first = seq_id
        previous = seq_id
    runs.append((first, previous + 1 - first))
    return runs


def _stretches(wanted: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Ascending (offset, size, ...) records, grouped so that each group is worth one read."""
    stretches = [[wanted[0]]]
    for record in wanted[1:]:
        offset, size, _ = stretches[-1][-1]
        if record[0] - (offset + size) <= READ_GAP_BYTES_MAX:
            stretches[-1].append(record)
        else:
            stretches.append([record])
    return stretches
