"""Where an index of version 2 owes references (`node.store.index.owed_references`): in copies of slots.

A purge marks what it owes (`Segment.owed_bits`), and the slots are copied just before they are overwritten or their
file is deleted, which is one read per segment. The copies are given back some at a time; no segment waits for it.

A start counts what the slots in the files name, so every message is counted as long as its slot is there, and no
longer. A slot that cannot be read keeps its reference until the store counts anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from node.ids import MsgId
from node.store.disk.disk import DiskFile
from node.store.formats.record import SLOT_BYTES, slot_offset, unpack_slot


class OwedSlots:
    """The slots of some settled entries of one segment; entries are seq ids, ascending."""

    def __init__(self, file: DiskFile, seq_ids: Sequence[int], segment_entries: int) -> None:
        """Copy the slots of these entries (not none) from their file. Raises `StorageError`."""
        self._left = seq_ids
        self._first = seq_ids[0]
        start = slot_offset(seq_ids[0], segment_entries)
        #: The stretch of the file from the slot of the first to that of the last.
        self._slots = file.pread(slot_offset(seq_ids[-1], segment_entries) + SLOT_BYTES - start, start)

    @property
    def memory_bytes(self) -> int:
        return len(self._slots)

    @property
    def has_owed(self) -> bool:
        return len(self._left) > 0

    def owed(self) -> Sequence[int]:
        return self._left

    def read(self, entries: Sequence[int]) -> Iterator[tuple[bool, MsgId]]:
        for seq_id in entries:
            at = (seq_id - self._first) * SLOT_BYTES
            slot = unpack_slot(seq_id, self._slots[at : at + SLOT_BYTES])
            if slot is not None:
                yield slot.persistent, MsgId(slot.msg_id)

    def forget(self, entries: Sequence[int]) -> None:
        self._left = self._left[len(entries) :]
