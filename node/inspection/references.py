"""Who refers to which message of a shared store: counted from the queues' files, in 40 bytes a message.

The table is a `node.store.shared.location_table.LocationTable` whose fields are used for something else: the number of
the first queue that refers to the message, and the position there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from node.inspection.places import QueuePlace
from node.store.disk.disk import read_whole
from node.store.formats.record import INDEX_FORMAT, Slot
from node.store.index.v1.scan import stored_entries
from node.store.index.v2.scan import scan_slots
from node.store.shared.location_table import LocationTable

#: In the field of the queue: a whole copy of the message was seen.
_SEEN = 1 << 31
_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1


class Referrer(NamedTuple):
    """The first queue that refers to a message, in the order in which queues were counted."""

    #: Directory of the queue.
    directory: str
    seq_id: int
    #: References of all queues.
    references: int


class References:
    """See the module text."""

    def __init__(self) -> None:
        self._table = LocationTable()
        self._directories: list[str] = []

    def __len__(self) -> int:
        return len(self._table)

    def begin_queue(self, directory: str) -> None:
        """What is added from now on is this queue's."""
        self._directories.append(directory)

    def add(self, msg_id: bytes, seq_id: int) -> None:
        """The current queue refers to a message."""
        if not self._table.retain(msg_id):
            queue = len(self._directories) - 1
            self._table.add(msg_id, queue, seq_id >> _LOW_BITS, seq_id & _LOW_MASK, 1)

    def get(self, msg_id: bytes) -> Referrer | None:
        """Who refers to a message."""
        found = self._table.get(msg_id)
        if found is None:
            return None
        directory = self._directories[found.file & ~_SEEN]
        return Referrer(directory, found.offset << _LOW_BITS | found.size, found.references)

    def see(self, msg_id: bytes) -> bool:
        """A whole copy was found. True for the first copy of a message that somebody refers to."""
        found = self._table.get(msg_id)
        if found is None or found.file & _SEEN:
            return False
        self._table.move(msg_id, (found.file, found.offset), (found.file | _SEEN, found.offset))
        return True

    def unseen(self) -> Iterator[tuple[bytes, Referrer]]:
        """Messages of which no copy was found."""
        for msg_id, found in self._table.items():
            if not found.file & _SEEN:
                referrer = self.get(msg_id)
                assert referrer is not None, "an entry of the table is found in it"
                yield msg_id, referrer

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the table contradicts itself."""
        self._table.check_invariants()
        for msg_id, found in self._table.items():
            queue = found.file & ~_SEEN
            assert queue < len(self._directories), f"who refers to {msg_id.hex()} is a queue that was counted"

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Every message and how many references there are."""
        for msg_id, found in self._table.items():
            yield msg_id, found.references


def count_queue(queue: QueuePlace, references: References) -> None:
    """Add what a queue refers to in the persistent shared store. Reads its indexes; raises `StorageError`."""
    references.begin_queue(queue.directory)
    for number in queue.v2_numbers:
        data = read_whole(queue.disk, queue.path(number, INDEX_FORMAT.suffix))
        for seq_id, slot in scan_slots(number, data, queue.v2_segment_entries):
            if not isinstance(slot, Slot) or not slot.shared or not slot.persistent:
                continue
            if not queue.is_converted(2, seq_id):
                references.add(slot.msg_id, seq_id)
    if queue.v1_numbers or queue.journal_numbers:
        for entry in stored_entries(queue.disk, queue.directory, lambda _problem: None):
            if entry.is_shared and entry.persistent and not queue.is_converted(1, entry.seq_id):
                references.add(entry.msg_id, entry.seq_id)
