"""What the files of an index of version 2 say, read without an index: for recovery, and for the tools that look at a
stopped node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from node.ids import MsgId
from node.store.disk.disk import Disk, read_whole
from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    SLOT_BYTES,
    STATUS_PRESENT,
    ZERO_SLOT,
    Slot,
    is_torn_slot,
    unpack_slot,
)
from node.store.index.held_references import Named
from node.store.index.index import ENTRIES_PER_PIECE


class BadSlot(NamedTuple):
    """A slot that is neither empty nor a present entry: ``torn-ack``, ``torn`` or ``corrupt``."""

    kind: str


def scan_slots(number: int, data: bytes, entries: int) -> Iterator[tuple[int, Slot | BadSlot]]:
    """Everything but empty slots in the content of a ``.qi`` file of ``entries`` slots, ascending."""
    first_seq_id = number * entries
    at = HEADER_BYTES
    for seq_id in range(first_seq_id, first_seq_id + entries):
        piece = data[at : at + SLOT_BYTES]
        at += SLOT_BYTES
        if piece == ZERO_SLOT:
            continue
        if len(piece) < SLOT_BYTES:
            if piece.strip(b"\0"):
                yield seq_id, BadSlot("torn")
            return
        if piece[0] in (0, STATUS_PRESENT):
            # A status of 0 before an intact rest is a flipped bit, or an ack of which one byte was written; either
            # way the message is there and delivering it again is allowed.
            slot = unpack_slot(seq_id, bytes((STATUS_PRESENT,)) + piece[1:])
            if slot is not None:
                yield seq_id, slot
                continue
        if piece[0] == 0:
            yield seq_id, BadSlot("torn-ack")
        else:
            yield seq_id, BadSlot("torn" if is_torn_slot(seq_id, piece) else "corrupt")


def segments_on_disk(disk: Disk, directory: str) -> list[int]:
    """Numbers of the segments with a ``.qi`` file, ascending."""
    names = disk.list(directory)
    suffix = INDEX_FORMAT.suffix
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def references_in_pieces_v2(disk: Disk, directory: str, entries: int) -> Iterator[list[Named]]:
    """What the slots of this queue name of the persistent shared store, once per slot; a bounded piece at a time."""
    for number in segments_on_disk(disk, directory):
        data = read_whole(disk, f"{directory}/{number}{INDEX_FORMAT.suffix}")
        slots = scan_slots(number, data, entries)
        while piece := list(islice(slots, ENTRIES_PER_PIECE)):
            found = [(seq_id, slot) for seq_id, slot in piece if isinstance(slot, Slot)]
            yield [(seq_id, MsgId(slot.msg_id)) for seq_id, slot in found if slot.shared and slot.persistent]
