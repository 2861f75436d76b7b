"""Two small files beside a queue's index.

`Terms` is what a clean stop leaves behind: positions and origins, so that the next start neither guesses nor flags
everything as redelivered. It is erased as soon as it was read, so a crash afterwards is never taken for a clean stop.

`SeqBounds` promises that no position at or above `reserved` was ever used. Positions are used in memory first (and by
transient messages never on disk at all); after a crash the queue goes on at the bound, so that a position is never
used twice. The bound moves on in large steps, half a step before it is reached: one small write per half a
million messages. The file keeps two copies in different sectors and overwrites the older.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from node.errors import StorageError
from node.ids import MSG_ID_BYTES, MsgId, OriginId, split_msg_id
from node.store.disk.disk import Disk, read_whole, sync_file, write_durably
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import BOUNDS_FORMAT, CRC, HEADER_BYTES, TERMS_FORMAT

#: How far ahead positions are reserved.
RESERVE_STEP = 1 << 20

#: Next seq id, next delivered seq id, body bytes, origins, bytes of the index's own terms, version of the index.
_TERMS_BODY = struct.Struct(">QQQIIB")
#: Epoch of the deliveries; behind everything else, and missing in files of older releases.
_TERMS_EPOCH = struct.Struct(">Q")
_BOUND = struct.Struct(">Q")
_BOUND_OFFSETS = (512, 1024)


@dataclass(frozen=True, slots=True)
class Terms:
    """State of a queue at a clean stop."""

    next_seq_id: int
    #: Every live message below it may have been delivered.
    next_deliver_seq_id: int
    #: Bodies of the live messages.
    body_bytes: int
    #: Last accepted id of each origin, least recently used first.
    origins: Mapping[OriginId, MsgId]
    #: Generation of the index, and what `QueueIndex.terms` said.
    index_version: int
    index_terms: bytes
    #: No master up to this epoch delivers anything at or above `next_deliver_seq_id`, now or later. 0: not known.
    delivered_epoch: int = 0

    def write(self, disk: Disk, path: str, queue_id: int) -> None:
        """Durably, as a whole."""
        body = _TERMS_BODY.pack(
            self.next_seq_id,
            self.next_deliver_seq_id,
            self.body_bytes,
            len(self.origins),
            len(self.index_terms),
            self.index_version,
        )
        body += b"".join(self.origins.values()) + self.index_terms + _TERMS_EPOCH.pack(self.delivered_epoch)
        write_durably(disk, path, TERMS_FORMAT.header(0, queue_id) + body + CRC.pack(crc32(body)))


def read_terms(disk: Disk, path: str, queue_id: int) -> Terms | None:
    """The terms in a file; ``None`` if there are none that can be trusted."""
    if not disk.exists(path):
        return None
    content = read_whole(disk, path)
    body = content[HEADER_BYTES:-4]
    if TERMS_FORMAT.problem(content, 0, queue_id) or crc32(body) != CRC.unpack(content[-4:])[0]:
        return None
    next_seq_id, next_deliver_seq_id, body_bytes, count, index_bytes, version = _TERMS_BODY.unpack_from(body)
    origins: dict[OriginId, MsgId] = {}
    end = _TERMS_BODY.size + count * MSG_ID_BYTES
    for at in range(_TERMS_BODY.size, end, MSG_ID_BYTES):
        msg_id = MsgId(body[at : at + MSG_ID_BYTES])
        origins[split_msg_id(msg_id)[0]] = msg_id
    index_terms = body[end : end + index_bytes]
    rest = body[end + index_bytes :]
    delivered_epoch = _TERMS_EPOCH.unpack(rest)[0] if len(rest) == _TERMS_EPOCH.size else 0
    return Terms(next_seq_id, next_deliver_seq_id, body_bytes, origins, version, index_terms, delivered_epoch)


class SeqBounds:
    """See the module text."""

    __slots__ = ("_copies", "_disk", "_group_commit", "_path", "_queue_id", "renew_at", "reserved")

    def __init__(self, disk: Disk, path: str, queue_id: int, group_commit: GroupCommit) -> None:
        self._disk = disk
        self._path = path
        self._queue_id = queue_id
        self._group_commit = group_commit
        self._copies = [0, 0]
        if disk.exists(path):
            content = read_whole(disk, path)
            self._copies = [_read_copy(content, offset) for offset in _BOUND_OFFSETS]
        #: No position at or above this was used.
        self.reserved = max(self._copies)
        #: When the next position reaches this, `renew` is due.
        self.renew_at = self.reserved

    def renew(self, next_seq_id: int) -> None:
        """Move the bound a step beyond ``next_seq_id``; durable with the group commit. Raises `StorageError`; after a
        `DiskFullError` it is still due."""
        reserved = next_seq_id + RESERVE_STEP
        exists = self._disk.exists(self._path)
        file = self._disk.open(self._path) if exists else self._disk.create(self._path)
        try:
            # An earlier attempt may have made the file and no more.
            if not any(self._copies):
                file.pwrite(BOUNDS_FORMAT.header(0, self._queue_id), 0)
                directory, _, _ = self._path.rpartition("/")
                self._group_commit.mark_dirty(self._disk.directory(directory))
            older = self._copies.index(min(self._copies))
            body = _BOUND.pack(reserved)
            file.pwrite(body + CRC.pack(crc32(body)), _BOUND_OFFSETS[older])
            self._copies[older] = reserved
        except StorageError:
            file.abandon()
            raise
        self.reserved = reserved
        self.renew_at = next_seq_id + RESERVE_STEP // 2
        self._group_commit.mark_dirty(file)
        file.close()

    def sync(self) -> None:
        """Make the bound durable on this thread; the directory is the caller's to sync. Raises `StorageError`."""
        if self._disk.exists(self._path):
            sync_file(self._disk, self._path)


def _read_copy(content: bytes, offset: int) -> int:
    body = content[offset : offset + _BOUND.size]
    checksum = content[offset + _BOUND.size : offset + _BOUND.size + CRC.size]
    if len(checksum) < CRC.size or crc32(body) != CRC.unpack(checksum)[0]:
        return 0
    value: int = _BOUND.unpack(body)[0]
    return value
