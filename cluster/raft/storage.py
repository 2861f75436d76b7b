"""Where a Raft node keeps its log, its vote and its snapshot.

```
<directory>/log         append only; replaced as a whole (temporary file, fsync, rename) when a snapshot is saved
<directory>/snapshot    newest snapshot; replaced in the same way, before the log is
<directory>/snapshot.prepared    the next one, written beside; without meaning until it is renamed

log       batch *
batch     "WRb1"  length u32  crc u32  durable u64  item *     one `append` call; crc over durable and the items
item      1  index u64  term u64  kind u8  length u32  payload       an entry; replaces what is at and above its index
          2  term u64  commit u64  length u16  voted_for             hard state (empty name: no vote)
          3  index u64  term u64                                     first item of a file: the snapshot it continues
snapshot  "WRs1"  crc u32  index u64  term u64  voters u16  (length u16  voter) *  data
          "WRs2"  crc u32  index u64  term u64  index u64  term u64  voters u16  (length u16  voter) *  data
```
All numbers big-endian. A voter is a name, or a name, a zero and an identity (`cluster.raft.messages.Voter`).

The second format of a snapshot says which entry made the configuration, too, and its checksum covers the first four
bytes. Releases of protocol 2 do not read it, so a snapshot says that only if none of them may (`SnapshotTaker`).

**Torn or damaged?** Batches that were written and not yet synced may reach the disk in part and in any order, so a bad
batch near the end is the normal result of a crash and is cut off with everything behind it. ``durable`` tells that
case from damage: it is the length that the last sync of the file covered when the batch was written. A bad batch
below the ``durable`` of any later good batch was once safely on disk; answering from what is left could forget a
vote or a committed entry, so `RaftStorage.open` raises `StorageError` naming file and offset instead.

**Crash between the two renames.** The snapshot is newer than the log. If the log has the snapshot's last entry, the
entries after it still count; if it has not (the snapshot came from the leader), none of them does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from cluster.raft.core import RestoredState, founding_state
from cluster.raft.messages import Entry, EntryKind, HardState, Ready, Snapshot, Voter
from node.errors import ShortageError, StorageError
from node.ids import NodeName
from node.store.disk.disk import Disk, DiskFile, read_whole, write_beside, write_durably

_BATCH_MAGIC = b"WRb1"
_BATCH_HEADER = struct.Struct(">4sIIQ")
_DURABLE = struct.Struct(">Q")
_ENTRY = struct.Struct(">BQQBI")
_HARD_STATE = struct.Struct(">BQQH")
_BASE = struct.Struct(">BQQ")
_ITEM_ENTRY, _ITEM_HARD_STATE, _ITEM_BASE = 1, 2, 3
_SNAPSHOT_HEADER = struct.Struct(">4sI")
#: And (index, term) of the snapshot; in the second format, of the entry that made the configuration; number of voters.
_SNAPSHOT_BODIES = {b"WRs1": struct.Struct(">QQH"), b"WRs2": struct.Struct(">QQQQH")}
#: What every format of a snapshot's file begins with.
_SNAPSHOT_FAMILY = b"WRs"
_NAME_LENGTH = struct.Struct(">H")
#: What says that it is a longer batch is taken for none: no log is so long, and no text says less of itself.
_FORGED_BYTES_MAX = 2**26


@dataclass(slots=True)
class _LogContent:
    """What the batches of a log file add up to."""

    base_index: int
    base_term: int
    entries: list[Entry]
    hard_state: HardState

    def put(self, entry: Entry) -> None:
        """Add an entry; it replaces what is at and above its index."""
        position = entry.index - self.base_index - 1
        assert 0 <= position <= len(self.entries), f"entry {entry.index} leaves a hole in the log"
        del self.entries[position:]
        self.entries.append(entry)

    def continue_from(self, snapshot: Snapshot) -> None:
        """Drop what does not count behind a newer snapshot."""
        position = snapshot.index - self.base_index - 1
        has_it = 0 <= position < len(self.entries) and self.entries[position].term == snapshot.term
        self.entries = self.entries[position + 1 :] if has_it else []
        self.base_index, self.base_term = snapshot.index, snapshot.term
        if self.hard_state.term < snapshot.term:
            # It comes with the snapshot, and is not written yet, or was lost in a crash; so no vote in it was sent.
            self.hard_state = HardState(snapshot.term, None, self.hard_state.commit)


#: A snapshot that is not in force yet.
_PREPARED = "snapshot.prepared"


class RaftStorage:
    """Log, hard state and snapshot of one node. Writes on the loop's thread; `sync` may run on another."""

    def __init__(self, disk: Disk, directory: str, file: DiskFile, content: _LogContent) -> None:
        """Use `open`. ``file`` is durable as it stands."""
        self._disk = disk
        self._directory = directory
        self._content = content
        self._file = file
        #: The file that was synced last, and how much of it is known to be durable. In one: two threads look at it.
        self._durable: tuple[DiskFile, int] = (file, file.size)

    @classmethod
    def open(
        cls, disk: Disk, directory: str, founding_voters: Sequence[NodeName] = ()
    ) -> tuple[RaftStorage, RestoredState]:
        """Open or create the storage, and what `RaftCore` starts from.

        ``founding_voters`` counts only at the very first start, see `founding_state`. Raises `StorageError`.
        """
        disk.mkdir(directory)
        # An earlier process may have made it, and died.
        disk.sync_directory(directory.rpartition("/")[0])
        log_path, snapshot_path = f"{directory}/log", f"{directory}/snapshot"
        disk.unlink(f"{directory}/{_PREPARED}")
        snapshot = _read_snapshot(disk, snapshot_path)
        if not disk.exists(log_path):
            if snapshot is not None:
                raise StorageError(f"{log_path} is missing although {snapshot_path} exists: restore it from a backup")
            state = founding_state(founding_voters)
            content = _LogContent(0, 0, list(state.entries), state.hard_state)
            return cls(disk, directory, _write_log(disk, log_path, content), content), state
        content, good_size = _read_log(read_whole(disk, log_path), log_path)
        if snapshot is None and content.base_index:
            raise StorageError(f"{snapshot_path} is missing although {log_path} continues it: restore it from a backup")
        file = disk.open(log_path)
        if file.size > good_size:
            file.truncate(good_size)  # the remains of writes that were never confirmed
        file.sync()
        storage = cls(disk, directory, file, content)
        if snapshot is not None and snapshot.index > content.base_index:
            storage._continue_from(snapshot)
        snapshot = snapshot or Snapshot(0, 0, ())
        return storage, RestoredState(snapshot, tuple(content.entries), content.hard_state)

    @classmethod
    def read(cls, disk: Disk, directory: str) -> RestoredState | None:
        """What `open` would start from, without a change to anything; ``None`` if nothing is there.

        Raises `StorageError`.
        """
        log_path = f"{directory}/log"
        if not disk.exists(log_path):
            return None
        snapshot = _read_snapshot(disk, f"{directory}/snapshot") or Snapshot(0, 0, ())
        content, _ = _read_log(read_whole(disk, log_path), log_path)
        if snapshot.index < content.base_index:
            raise StorageError(f"{directory}/snapshot is missing although {log_path} continues it: restore it")
        if snapshot.index > content.base_index:
            content.continue_from(snapshot)
        return RestoredState(snapshot, tuple(content.entries), content.hard_state)

    @property
    def log_bytes(self) -> int:
        """Length of the log file; grows until the next `save_snapshot`."""
        return self._file.size

    def append(self, ready: Ready) -> None:
        """Write what ``ready`` asks for (step 2 of its docstring), not yet synced. Raises `StorageError`."""
        if ready.snapshot is not None:
            self.save_snapshot(ready.snapshot)
        items: list[bytes] = []
        if ready.hard_state is not None:
            self._content.hard_state = ready.hard_state
            items.append(_pack_hard_state(ready.hard_state))
        for entry in ready.entries_to_append:
            self._content.put(entry)
            items.append(_pack_entry(entry))
        if items:
            # Of a log that was not synced since it was begun nothing need be claimed: a start refuses damage of its
            # first batch in any case.
            file, durable = self._durable
            self._file.append(_pack_batch(items, durable if file is self._file else 0))

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot and drop the entries it covers. Durable on return. Raises `StorageError`."""
        write_durably(self._disk, f"{self._directory}/snapshot", pack_snapshot(snapshot))
        self._continue_from(snapshot)

    def prepare_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot beside the one in force; durable on return. Any thread. Raises `StorageError`.

        The next start removes it, unless `adopt_snapshot` came before.
        """
        write_durably(self._disk, f"{self._directory}/{_PREPARED}", pack_snapshot(snapshot))

    def adopt_snapshot(self, snapshot: Snapshot) -> None:
        """Drop the entries that the prepared snapshot covers. Durable on return. Raises `StorageError`."""
        assert snapshot.index > self._content.base_index, "a newer one is in force"
        self._disk.rename(f"{self._directory}/{_PREPARED}", f"{self._directory}/snapshot")
        self._disk.sync_directory(self._directory)
        self._continue_from(snapshot)

    def sync(self) -> None:
        """Make all earlier writes durable. Any thread. Raises `StorageError`."""
        file = self._file
        size = file.size
        file.sync()
        self._durable = (file, size)

    def close(self) -> None:
        self._file.close()

    def _continue_from(self, snapshot: Snapshot) -> None:
        """Begin a new log file behind ``snapshot``, which is on disk."""
        self._content.continue_from(snapshot)
        old = self._file
        self._file = _write_log(self._disk, f"{self._directory}/log", self._content)
        old.abandon()


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as in its file."""
    made_by = (snapshot.configuration_index, snapshot.configuration_term) if snapshot.configuration_index else ()
    magic = b"WRs2" if made_by else b"WRs1"
    body = [_SNAPSHOT_BODIES[magic].pack(snapshot.index, snapshot.term, *made_by, len(snapshot.voters))]
    for voter in snapshot.configuration:
        packed_voter = voter.pack()
        body += (_NAME_LENGTH.pack(len(packed_voter)), packed_voter)
    body.append(snapshot.data)
    packed = b"".join(body)
    return _SNAPSHOT_HEADER.pack(magic, _snapshot_crc(magic, packed)) + packed


def _snapshot_crc(magic: bytes, packed: bytes | memoryview) -> int:
    return crc32(packed, 0 if magic == b"WRs1" else crc32(magic))


def _read_snapshot(disk: Disk, path: str) -> Snapshot | None:
    if not disk.exists(path):
        return None
    content = read_whole(disk, path)
    offset = _SNAPSHOT_HEADER.size
    layout = _SNAPSHOT_BODIES.get(content[:4])
    if layout is None and content.startswith(_SNAPSHOT_FAMILY):
        raise StorageError(f"{path} is of a newer release of Warren ({content[:4]!r}): upgrade this node")
    if layout is None or len(content) < offset + layout.size:
        raise StorageError(f"{path} is damaged at offset 0: too short for a snapshot, or none")
    magic, crc = _SNAPSHOT_HEADER.unpack_from(content)
    if crc != _snapshot_crc(magic, memoryview(content)[offset:]):
        raise StorageError(f"{path} is damaged at offset 0: checksum mismatch")
    index, term, *made_by, voter_count = layout.unpack_from(content, offset)
    offset += layout.size
    voters = []
    for _ in range(voter_count):
        (length,) = _NAME_LENGTH.unpack_from(content, offset)
        offset += _NAME_LENGTH.size
        voters.append(Voter.unpack(content[offset : offset + length]))
        offset += length
    names, identities = tuple(voter.name for voter in voters), tuple(voter.identity for voter in voters)
    return Snapshot(index, term, names, content[offset:], identities if any(identities) else (), *made_by)


def _write_log(disk: Disk, path: str, content: _LogContent) -> DiskFile:
    """Put a complete log file in place, durably, and open it.

    Raises `ShortageError` if the one before is in force still, any other `StorageError` if that is not certain: who
    went on with that one might write into a file that has no name any more.
    """
    items = [_BASE.pack(_ITEM_BASE, content.base_index, content.base_term), _pack_hard_state(content.hard_state)]
    items += [_pack_entry(entry) for entry in content.entries]
    disk.rename(write_beside(disk, path, _pack_batch(items, 0)), path)
    try:
        disk.sync_directory(path.rpartition("/")[0])
        return disk.open(path)
    except ShortageError as error:
        raise StorageError(f"the new {path} is in place and cannot be used: {error}") from error


def _pack_entry(entry: Entry) -> bytes:
    return _ENTRY.pack(_ITEM_ENTRY, entry.index, entry.term, entry.kind, len(entry.payload)) + entry.payload


def _pack_hard_state(state: HardState) -> bytes:
    name = (state.voted_for or "").encode()
    return _HARD_STATE.pack(_ITEM_HARD_STATE, state.term, state.commit, len(name)) + name


def _pack_batch(items: Iterable[bytes], durable: int) -> bytes:
    body = b"".join(items)
    crc = crc32(body, crc32(_DURABLE.pack(durable)))
    return _BATCH_HEADER.pack(_BATCH_MAGIC, len(body), crc, durable) + body


def _batch_at(content: bytes, offset: int) -> tuple[int, int, int] | None:
    """(start and end of the body, ``durable``) of the good batch at ``offset``, ``None`` if there is none."""
    start = offset + _BATCH_HEADER.size
    if start > len(content):
        return None
    magic, length, crc, durable = _BATCH_HEADER.unpack_from(content, offset)
    end = start + length
    if magic != _BATCH_MAGIC or end > len(content):
        return None
    if crc32(memoryview(content)[start:end], crc32(_DURABLE.pack(durable))) != crc:
        return None
    return start, end, durable


def passes_for_batch(payload: bytes) -> bool:
    """A part of it may pass for a batch: nobody is to have it in the log. If a crash tears the write, a start finds in
    what is left of it that something was safe that never was, and refuses the log as damaged.

    Whether the checksum is right is not asked: that could take long, and where such a beginning and so small a length
    are there by chance is nothing that anybody writes.
    """
    offset = payload.find(_BATCH_MAGIC)
    while offset >= 0:
        start = offset + len(_BATCH_MAGIC)
        if int.from_bytes(payload[start : start + 4].ljust(4, b"\xff")) <= _FORGED_BYTES_MAX:
            return True
        offset = payload.find(_BATCH_MAGIC, start)
    return False


def _read_log(content: bytes, path: str) -> tuple[_LogContent, int]:
    """Content of a log file and the length of its good part. Raises `StorageError` for damage."""
    log = _LogContent(0, 0, [], HardState())
    offset = 0
    while offset < len(content) and (batch := _batch_at(content, offset)) is not None:
        start, end, _ = batch
        _read_items(content, start, end, log)
        offset = end
    if offset == 0:
        raise StorageError(f"{path} is damaged at offset 0: it was complete when it was put in place")
    if _durable_claim_after(content, offset) > offset:
        raise StorageError(f"{path} is damaged at offset {offset}: what is behind shows that it was once safe")
    return log, offset


def _durable_claim_after(content: bytes, offset: int) -> int:
    """Highest ``durable`` of the good batches behind ``offset``, 0 if there is none.

    What is no batch, but lies in a payload, as clients may write it, is not proposed (`passes_for_batch`). In logs of
    releases before it may claim what cannot be: no sync covers more than what was written before.
    """
    claim = 0
    while (offset := content.find(_BATCH_MAGIC, offset + 1)) >= 0:
        batch = _batch_at(content, offset)
        if batch is not None and batch[2] <= offset:
            claim = max(claim, batch[2])
    return claim


def _read_items(content: bytes, offset: int, end: int, log: _LogContent) -> None:
    while offset < end:
        item = content[offset]
        if item == _ITEM_ENTRY:
            _, index, term, kind, length = _ENTRY.unpack_from(content, offset)
            offset += _ENTRY.size
            log.put(Entry(index, term, EntryKind(kind), content[offset : offset + length]))
            offset += length
        elif item == _ITEM_HARD_STATE:
            _, term, commit, length = _HARD_STATE.unpack_from(content, offset)
            offset += _HARD_STATE.size
            name = content[offset : offset + length].decode()
            log.hard_state = HardState(term, NodeName(name) if name else None, commit)
            offset += length
        else:
            assert item == _ITEM_BASE, f"item {item} passed the checksum, so this code wrote it"
            _, log.base_index, log.base_term = _BASE.unpack_from(content, offset)
            offset += _BASE.size
