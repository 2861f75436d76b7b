"""Converting a queue's index from one version to the other while the queue works (semantics 1.2, in both directions).

`ConvertingIndex` stands in front of two indexes in one directory, *old* and *new*, and is an index itself. New messages
go to new. What is live in old is copied, oldest first, a bounded piece with each `step`; a piece goes through four
states::

    copied into new ----> durable in new ----> cursor durable ----> settled in old
             group commit          group commit

Between the first and the last an entry is *in both*, and is one entry: reading asks new, settling settles both. Big
messages stay where they are in the shared stores; new takes a reference of its own and old gives its back.

**Why a cursor.** Settling in old is not synced, like any ack. Without more, a crash could bring an entry of old back
that was copied, then acked in new, and whose ack was synced there. So a small file remembers how far everything was
copied: what is live in old below the *cursor* does not count. It has two copies in different sectors and overwrites
the lower.

**Crash.** The next start opens both indexes, as their files are there (`versions_on_disk`), and goes on: what is in old
below the cursor is settled, what is in both is not copied again (new wins) and waits for the cursor, the rest is
copied. `conversion_source` tells the direction; a conversion that was begun is finished before one back begins.

**End.** When old has nothing live it is closed, which leaves no files of it, and the cursor is deleted. That syncs the
directory on this thread, once per conversion. From then on everything is passed to new; the object stays in front of
it, because the queue may still hold places in old.

Nothing is assumed of either index but `node.store.index.index.QueueIndex`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from node.errors import DiskFullError, StorageError
from node.message import Message, decode_envelope
from node.store.disk.disk import Disk, read_whole
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import CRC, INDEX_FORMAT, JOURNAL_FORMAT, SEGMENT_FORMAT, FileFormat
from node.store.index.held_references import HeldReferences
from node.store.index.index import IN_SHARED_STORE, UNKNOWN_PLACE, PagedMessage, QueueIndex, Range
from node.store.index.live_bits import between
from node.store.shared.port import Releases

CURSOR_FORMAT = FileFormat(b"WRCC", 1, ".cursor")
CURSOR_NAME = "conversion" + CURSOR_FORMAT.suffix
_CURSOR = struct.Struct(">Q")
#: Of the two copies: different sectors, so that no torn write hits both.
_CURSOR_OFFSETS = (512, 1024)
#: Pieces on their way at once: one is copied while one is synced and one waits for the cursor.
PIECES_MAX = 4
#: Behind every position.
_END = 1 << 62
_TERMS_MAGIC = b"WRCV"
_TERMS_HEAD = struct.Struct(">4sII")


def versions_on_disk(disk: Disk, directory: str) -> set[int]:
    """Versions of which a queue's directory has files; both if a conversion was under way.

    Then both even if new has no file: all that was copied may be acked, and what is in old below the cursor must not
    come back.
    """
    suffixes = {"." + name.rpartition(".")[2] for name in disk.list(directory) if name.rpartition(".")[0].isdigit()}
    found: set[int] = set()
    if suffixes & {JOURNAL_FORMAT.suffix, SEGMENT_FORMAT.suffix}:
        found.add(1)
    if INDEX_FORMAT.suffix in suffixes:
        found.add(2)
    if conversion_source(disk, directory) in found:
        found = {1, 2}
    return found


def conversion_source(disk: Disk, directory: str) -> int | None:
    """The version that a conversion under way leaves; ``None`` if nothing was copied yet: both ways are open."""
    found = max(_read_cursors(disk, directory))
    return None if found < 0 else (found & 1) + 1


def remove_cursor(disk: Disk, directory: str) -> None:
    """Remove what an interrupted end of a conversion left, if there is no more than one version on disk."""
    path = f"{directory}/{CURSOR_NAME}"
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_directory(directory)


def split_terms(terms: bytes) -> tuple[bytes | None, bytes]:
    """Terms of the old index, if a conversion was under way, and of the new or only one."""
    if not terms.startswith(_TERMS_MAGIC):
        return None, terms
    _, old_bytes, new_bytes = _TERMS_HEAD.unpack_from(terms)
    start = _TERMS_HEAD.size
    return terms[start : start + old_bytes], terms[start + old_bytes : start + old_bytes + new_bytes]


def _read_cursors(disk: Disk, directory: str) -> list[int]:
    """Both copies of the cursor; -1 for one that was not (wholly) written.

    A copy is cursor << 1 | (version converted from - 1).
    """
    path = f"{directory}/{CURSOR_NAME}"
    if not disk.exists(path):
        return [-1, -1]
    content = read_whole(disk, path)
    values: list[int] = []
    for offset in _CURSOR_OFFSETS:
        body = content[offset : offset + _CURSOR.size]
        checksum = content[offset + _CURSOR.size : offset + _CURSOR.size + CRC.size]
        is_whole = len(checksum) == CRC.size and CRC.pack(crc32(body)) == checksum
        values.append(_CURSOR.unpack(body)[0] if is_whole else -1)
    return values


class _Piece(NamedTuple):
    """Entries that were copied together."""

    #: Of the group commit: when it is durable, the next state begins.
    generation: int
    #: Everything in old below it was copied.
    end: int
    seq_ids: list[int]


class ConvertingIndex:
    """Implements `QueueIndex`; see the module text."""

    def __init__(
        self,
        old: QueueIndex,
        new: QueueIndex,
        *,
        disk: Disk,
        directory: str,
        queue_id: int,
        group_commit: GroupCommit,
        next_seq_id: int,
    ) -> None:
        """Both indexes are open; ``next_seq_id`` as for `flush`. Raises `StorageError`."""
        assert {old.version, new.version} == {1, 2}, "a conversion is between the two versions"
        self._old: QueueIndex | None = old
        self._new = new
        self._disk = disk
        self._directory = directory
        self._queue_id = queue_id
        self._group_commit = group_commit
        self._source = old.version
        self._next_seq_id = next_seq_id
        #: Live in both: what is known of it.
        self._in_both: dict[int, PagedMessage] = {}
        #: Copied, and waiting for new to be durable; oldest first.
        self._copied: deque[_Piece] = deque()
        #: Generation of the newest copy; 0 as long as there are only those of an earlier process, which are durable.
        self._copy_generation = 0
        #: The cursor is written, and waits to be durable; oldest first.
        self._noted: deque[_Piece] = deque()
        #: The two copies in the cursor file; see `_read_cursors`.
        self._cursors = _read_cursors(disk, directory)
        #: Everything live in old below it is in both, and above it what an interrupted conversion had copied.
        self._position = 0
        self._resume()

    @property
    def version(self) -> int:
        return self._new.version

    @property
    def is_finished(self) -> bool:
        """True if nothing is left in the old index."""
        return self._old is None

    def is_in_both(self, seq_id: int) -> bool:
        """True if an ack of this entry goes to both indexes."""
        return seq_id in self._in_both

    # -- converting

    def _resume(self) -> None:
        """Settle in old what an interrupted conversion had copied."""
        old, new = self._old, self._new
        assert old is not None, "a conversion begins with an old index"
        last = max(self._cursors)
        if last >= 0 and (last & 1) + 1 != self._source:
            # Of an earlier conversion in the other direction, which ended just before a crash.
            remove_cursor(self._disk, self._directory)
            self._cursors = [-1, -1]
        else:
            old.settle_range(0, last >> 1, is_sized=False)
        # What is in both above the cursor is copied already, but must not be settled before the cursor has passed it.
        position = 0
        while new.count_live(0, _END) and old.count_live(position, _END):
            first = next(old.live(position, _END))
            position = old.segment_end(first)
            if new.count_live(first, position):
                self._compare(old, first, position)
        old.flush(old.segment_end(self._next_seq_id))

    def _compare(self, old: QueueIndex, first: int, end: int) -> None:
        """Find out which of these positions are in both. One may have been used again (a mirror whose tail was
        replaced), and its ack in old be lost: then old has another message there, and new is right."""
        in_new = dict(self._new.entries(first, end, end - first))
        replaced: list[tuple[int, PagedMessage]] = []
        for seq_id, paged in old.entries(first, end, end - first):
            if seq_id not in in_new:
                continue
            if in_new[seq_id].msg_id == paged.msg_id:
                self._in_both[seq_id] = paged
            else:
                replaced.append((seq_id, paged))
        if replaced:
            old.settle([seq_id for seq_id, _ in replaced], [paged for _, paged in replaced])

    def step(self, count_max: int) -> bool:
        """Copy up to ``count_max`` entries and settle what is due; false when the conversion is finished.

        Call it after `flush`, when nothing is collected. It writes, and never waits for a sync; its end does, once.
        After a `DiskFullError` nothing is collected either, and the step may be repeated.
        """
        old, new = self._old, self._new
        if old is None:
            return False
        assert count_max > 0, "a step does something"
        assert not new.has_unflushed_publishes, "copies are written at once, so that they are never seen collected"
        self._advance(old)
        if len(self._copied) + len(self._noted) >= PIECES_MAX:
            return True
        entries = old.entries(self._position, _END, count_max)
        if entries:
            self._copy(old, entries)
        elif not (self._copied or self._noted or old.has_unflushed or old.count_live(0, _END)):
            self._finish(old)
        return self._old is not None

    def _copy(self, old: QueueIndex, entries: Sequence[tuple[int, PagedMessage]]) -> None:
        # An interrupted conversion may have copied some.
        due = [entry for entry in entries if entry[0] not in self._in_both]
        if due:
            envelopes = dict(zip([seq_id for seq_id, _ in due], old.read(due), strict=True))
            messages = {seq_id: decode_envelope(envelope)[0] for seq_id, envelope in envelopes.items()}
            self._copy_generation = self._group_commit.open_generation
            self._new.publish(messages, envelopes)
            try:
                self._new.flush(self._next_seq_id)
            except DiskFullError:
                # New keeps what it did not write, and would write it with the next flush: a copy that nobody knows of.
                # Even so a part of it may be on disk, and must not be there when the original is acked.
                missing = {seq_id: message for seq_id, message in messages.items() if self._new.is_unflushed(seq_id)}
                self._new.settle(list(missing), list(missing.values()))
                self._note_copies(old, [entry for entry in due if entry[0] not in missing])
                with suppress(DiskFullError):
                    self._new.flush(self._next_seq_id)
                raise
            self._note_copies(old, due)
        self._position = entries[-1][0] + 1
        persistent = [seq_id for seq_id, paged in entries if paged.persistent]
        if persistent:
            self._copied.append(_Piece(self._copy_generation, self._position, persistent))

    def _note_copies(self, old: QueueIndex, copied: Sequence[tuple[int, PagedMessage]]) -> None:
        """These were written into new."""
        transient = [(seq_id, paged) for seq_id, paged in copied if not paged.persistent]
        # A transient message need not outlive a crash: nobody waits for it.
        if transient:
            old.settle([seq_id for seq_id, _ in transient], [paged for _, paged in transient])
        self._in_both.update({seq_id: paged for seq_id, paged in copied if paged.persistent})

    def _advance(self, old: QueueIndex) -> None:
        """Take every piece on whose generation is durable."""
        durable = self._group_commit.durable_generation
        while self._noted and self._noted[0].generation <= durable:
            piece = self._noted.popleft()
            chosen = [seq_id for seq_id in piece.seq_ids if seq_id in self._in_both]
            old.settle(chosen, [self._in_both.pop(seq_id) for seq_id in chosen])
        due = [piece for piece in self._copied if piece.generation <= durable]
        if due:
            self._write_cursor(due[-1].end)
            # Not before: a full disk may have refused the cursor.
            generation = self._group_commit.open_generation
            self._noted += [self._copied.popleft()._replace(generation=generation) for _ in due]
        if old.has_unflushed:
            old.flush(old.segment_end(self._next_seq_id))

    def _write_cursor(self, cursor: int) -> None:
        path = f"{self._directory}/{CURSOR_NAME}"
        file = self._disk.open(path) if self._disk.exists(path) else self._disk.create(path)
        lower = self._cursors.index(min(self._cursors))
        try:
            if max(self._cursors) < 0:
                file.pwrite(CURSOR_FORMAT.header(self._source, self._queue_id), 0)
            value = cursor << 1 | self._source - 1
            body = _CURSOR.pack(value)
            file.pwrite(body + CRC.pack(crc32(body)), _CURSOR_OFFSETS[lower])
        except StorageError:
            file.abandon()
            raise
        self._cursors[lower] = value
        self._group_commit.mark_dirty(file)
        self._group_commit.mark_dirty(self._disk.directory(self._directory))
        file.close()

    def _finish(self, old: QueueIndex) -> None:
        """Old has nothing live any more: close it, which leaves no file of it, and forget the cursor."""
        old.close(old.segment_end(self._next_seq_id))
        self._old = None
        remove_cursor(self._disk, self._directory)

    # -- collecting

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None = None) -> None:
        self._new.publish(messages, envelopes)

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        old, new = self._old, self._new
        in_old: list[tuple[int, Message | PagedMessage]] = []
        in_new: list[tuple[int, Message | PagedMessage]] = []
        for seq_id, message in zip(seq_ids, messages, strict=True):
            if old is not None and old.is_live(seq_id):
                in_old.append((seq_id, self._in_both.pop(seq_id, message)))
            if new.is_live(seq_id):
                in_new.append((seq_id, message if isinstance(message, Message) else _for_new(message)))
        if old is not None and in_old:
            old.settle([seq_id for seq_id, _ in in_old], [message for _, message in in_old])
        if in_new:
            new.settle([seq_id for seq_id, _ in in_new], [message for _, message in in_new])

    def settle_range(self, first: int, end: int, keep: Collection[int] = (), *, is_sized: bool = True) -> Range:
        old, new = self._old, self._new
        if old is None:
            return new.settle_range(first, end, keep, is_sized=is_sized)
        # What is in both counts once.
        chosen = [seq_id for seq_id in self._in_both if first <= seq_id < end and seq_id not in keep]
        if chosen:
            old.settle(chosen, [self._in_both.pop(seq_id) for seq_id in chosen])
        kept = [*keep, *[seq_id for seq_id in self._in_both if first <= seq_id < end]]
        from_old = old.settle_range(first, end, kept, is_sized=is_sized)
        from_new = new.settle_range(first, end, keep, is_sized=is_sized)
        return Range(*[one + other for one, other in zip(from_old, from_new, strict=True)])

    @property
    def has_unflushed(self) -> bool:
        return self._new.has_unflushed or (self._old is not None and self._old.has_unflushed)

    @property
    def has_unflushed_publishes(self) -> bool:
        return self._new.has_unflushed_publishes

    def is_unflushed(self, seq_id: int) -> bool:
        return self._new.is_unflushed(seq_id)

    def flush(self, next_seq_id: int) -> int:
        self._next_seq_id = next_seq_id
        if self._old is not None and self._old.has_unflushed:
            # Nothing is appended to it any more: every segment is past.
            self._old.flush(self._old.segment_end(next_seq_id))
        return self._new.flush(next_seq_id)

    # -- what is live

    def is_live(self, seq_id: int) -> bool:
        return self._new.is_live(seq_id) or (self._old is not None and self._old.is_live(seq_id))

    def count_live(self, first: int, end: int) -> int:
        count = self._new.count_live(first, end)
        if self._old is not None:
            count += self._old.count_live(first, end)
            count -= len(between(self._in_both, first, end))
        return count

    def live(self, first: int, end: int) -> Iterator[int]:
        if self._old is None:
            return self._new.live(first, end)
        in_both = self._in_both
        only_old = (seq_id for seq_id in self._old.live(first, end) if seq_id not in in_both)
        return merge(only_old, self._new.live(first, end))

    def segment_end(self, seq_id: int) -> int:
        return self._new.segment_end(seq_id)

    # -- reading

    def msg_ids(self, first: int, end: int) -> bytes:
        found = self._new.msg_ids(first, end)
        if self._old is None or not self._old.count_live(first, end):
            return found
        # What is in both has the same msg_id in both, what is in one has zeros in the other.
        both = int.from_bytes(found, "big") | int.from_bytes(self._old.msg_ids(first, end), "big")
        return both.to_bytes(len(found), "big")

    def entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        found = self._new.entries(first, end, count_max)
        if self._old is None:
            return found
        # So many of old that enough are left of those only in it.
        more = self._old.entries(first, end, count_max + len(self._in_both))
        more = [entry for entry in more if entry[0] not in self._in_both]
        return sorted(found + more)[:count_max] if more else found

    def read(self, entries: Sequence[tuple[int, PagedMessage]]) -> list[bytes]:
        old, new = self._old, self._new
        in_new = [(seq_id, _for_new(paged)) for seq_id, paged in entries if new.is_live(seq_id)]
        if old is None or len(in_new) == len(entries):
            return new.read(in_new)
        found = dict(zip([seq_id for seq_id, _ in in_new], new.read(in_new), strict=True)) if in_new else {}
        in_old = [entry for entry in entries if entry[0] not in found]
        found.update(zip([seq_id for seq_id, _ in in_old], old.read(in_old), strict=True))
        return [found[seq_id] for seq_id, _ in entries]

    # -- end

    def drop_transient(self) -> None:
        self._new.drop_transient()
        if self._old is not None:
            self._old.drop_transient()

    def close(self, next_seq_id: int) -> None:
        self._new.close(next_seq_id)
        if self._old is None:
            return
        # All copies are durable now.
        seq_ids = list(self._in_both)
        self._old.settle(seq_ids, [self._in_both.pop(seq_id) for seq_id in seq_ids])
        self._old.close(self._old.segment_end(next_seq_id))

    def terms(self) -> bytes:
        """For `split_terms`."""
        new = self._new.terms()
        if self._old is None:
            return new
        old = self._old.terms()
        return _TERMS_HEAD.pack(_TERMS_MAGIC, len(old), len(new)) + old + new

    def delete(self, directory: str) -> Releases:
        # What is in both has a reference for each.
        pieces = [index.delete(directory) for index in (self._new, self._old) if index is not None]
        self._forget()
        return chain(*pieces)

    def give_up(self, held: HeldReferences) -> Releases:
        pieces = [index.give_up(held) for index in (self._new, self._old) if index is not None]
        self._forget()
        return chain(*pieces)

    def moved_to(self, directory: str) -> None:
        for index in (self._new, self._old):
            if index is not None:
                index.moved_to(directory)

    def abandon(self) -> None:
        self._new.abandon()
        if self._old is not None:
            self._old.abandon()
        self._forget()

    def _forget(self) -> None:
        self._in_both.clear()

    @property
    def memory_bytes(self) -> int:
        old_bytes = 0 if self._old is None else self._old.memory_bytes
        return self._new.memory_bytes + old_bytes + len(self._in_both) * _IN_BOTH_MEMORY_BYTES

    def check_invariants(self) -> None:
        self._new.check_invariants()
        old = self._old
        if old is None:
            assert not self._in_both, "nothing is in both when there is but one"
            return
        old.check_invariants()
        for seq_id in old.live(0, _END):
            assert self._new.is_live(seq_id) == (seq_id in self._in_both), f"{seq_id} is known to be in both"
            assert seq_id in self._in_both or seq_id >= self._position, f"{seq_id} was not passed over"
        for seq_id in self._in_both:
            assert old.is_live(seq_id), f"{seq_id} is in old as well"
        assert len(self._copied) + len(self._noted) <= PIECES_MAX, "what is on its way is bounded"
        waiting = {seq_id for piece in (*self._copied, *self._noted) for seq_id in piece.seq_ids}
        passed = {seq_id for seq_id in self._in_both if seq_id < self._position}
        assert passed <= waiting, "what is in both waits for the cursor"


#: An entry in both: what is known of it, its number in a piece.
_IN_BOTH_MEMORY_BYTES = 300


def _for_new(paged: PagedMessage) -> PagedMessage:
    """The same without a place that may be one in old."""
    return paged if paged.place == IN_SHARED_STORE else paged._replace(place=UNKNOWN_PLACE)
