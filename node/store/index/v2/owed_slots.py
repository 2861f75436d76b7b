"""Slots of an index of version 2 that a purge has settled, and whose references to the shared stores are owed.

A purge settles by range and looks at nothing, for reading the slots of a million messages and giving as many references
back takes seconds. So the index marks what it owes, copies the slots here just before they are overwritten or their
file is deleted, which is one read per segment, and has some references given back with every flush.

A crash loses the copies together with all references: a start counts what the slots name, so every message is counted
as long as its slot is there, and no longer. A clean stop gives back all that is left; the deletion of a queue takes
over what is here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from node.ids import MsgId
from node.store.disk.disk import DiskFile
from node.store.formats.record import SLOT_BYTES, slot_offset, unpack_slot
from node.store.shared.port import SharedStore, release_references

#: References given back at a time: three or four milliseconds.
OWED_PER_FLUSH = 1024
#: Bytes of slots (of a million entries) beyond which the index deletes no further segment, so that no more are copied.
OWED_BYTES_MAX = 32 * 1024 * 1024


class OwedSlots:
    """See the module text. ``stores``: the shared stores, by whether a message is persistent."""

    def __init__(self, stores: Mapping[bool, SharedStore], entries: int) -> None:
        """``entries`` of a segment."""
        self._stores = stores
        self._entries = entries
        #: Seq ids (ascending), and the stretch of the file from the slot of the first of them to that of the last.
        self._stretches: deque[tuple[Sequence[int], bytes]] = deque()
        self.memory_bytes = 0

    def __len__(self) -> int:
        """Stretches that are left."""
        return len(self._stretches)

    @property
    def is_full(self) -> bool:
        """True if no more should be added for now."""
        return self.memory_bytes > OWED_BYTES_MAX

    def copy(self, file: DiskFile, seq_ids: Sequence[int]) -> None:
        """Copy the slots of these ascending entries of one segment from its file. Raises `StorageError`."""
        start = slot_offset(seq_ids[0], self._entries)
        data = file.pread(slot_offset(seq_ids[-1], self._entries) + SLOT_BYTES - start, start)
        for at in range(0, len(seq_ids), OWED_PER_FLUSH):
            members = seq_ids[at : at + OWED_PER_FLUSH]
            start, last = members[0] - seq_ids[0], members[-1] - seq_ids[0]
            piece = data[start * SLOT_BYTES : (last + 1) * SLOT_BYTES]
            self._stretches.append((members, piece))
            self.memory_bytes += len(piece)

    def give_back(self) -> None:
        """Give back some references. What cannot be read keeps its own until the store counts anew."""
        count = OWED_PER_FLUSH
        stretches = self._stretches
        while stretches and count >= len(stretches[0][0]):
            seq_ids, data = stretches.popleft()
            self.memory_bytes -= len(data)
            count -= len(seq_ids)
            first = seq_ids[0]
            offsets = [(seq_id - first) * SLOT_BYTES for seq_id in seq_ids]
            slots = [unpack_slot(s, data[at : at + SLOT_BYTES]) for s, at in zip(seq_ids, offsets, strict=True)]
            release_references(
                self._stores, [(slot.persistent, MsgId(slot.msg_id)) for slot in slots if slot is not None]
            )

    def give_back_in_pieces(self) -> Iterator[None]:
        """Give all back, one piece per item."""
        while self._stretches:
            self.give_back()
            yield

    def take_all(self) -> OwedSlots:
        """Another object with all that is here; here is nothing then."""
        taken = OwedSlots(self._stores, self._entries)
        taken._stretches, taken.memory_bytes = self._stretches, self.memory_bytes
        self._stretches, self.memory_bytes = deque(), 0
        return taken

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert self.memory_bytes == sum([len(data) for _, data in self._stretches]), "bytes are counted"
        for seq_ids, data in self._stretches:
            assert len(data) == (seq_ids[-1] - seq_ids[0] + 1) * SLOT_BYTES, "a stretch has a slot for each"
