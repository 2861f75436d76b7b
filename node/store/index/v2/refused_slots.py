"""Entries of an index of version 2 whose messages are on disk, and whose slots a full disk refused.

A flush writes bodies first and slots last. When there is no room for the slots, the entries stay pending, but not all
is as it was before: bodies take space in a ``.qs`` file or hold a reference in a shared store, and some slots may be in
the file, for the system writes as many as it has room for. Three things follow.

**The bodies stay where they are.** The next flush writes the slots alone: so the attempts of a disk that is full for
hours take space once, and the slots that are there already get the same bytes. Nothing else is ever written where the
bodies are, so that a slot which a crash leaves names its own message and never a piece of another.

**A stray is a slot that may be in the file although its entry is not live.** Which slots are, is found by reading them
back. Writing them again makes them live; when their entries are settled first, the next flush zeroes them like acks
(and asks for a sync, which acks do not, because strays may be durable by accident). That takes no space, for it is
written over what is there; slots that never reached the file are left alone, for filling a hole would take some.

**A settled entry** gives its reference back; its body in the ``.qs`` file is garbage like that of any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from node.ids import MSG_ID_BYTES, MsgId
from node.store.disk.disk import DiskFile
from node.store.formats.record import SLOT_BYTES, SLOT_MSG_ID_AT, SLOT_PERSISTENT, SLOT_SHARED, ZERO_SLOT, slot_offset
from node.store.index.live_bits import bits_of

#: Estimate of the memory of one refused slot: its bytes, its share of a dictionary.
_SLOT_MEMORY_BYTES = 180
_FLAGS_AT = 1


class RefusedSlots:
    """See the module text."""

    __slots__ = ("_entries", "_slot_mask", "slots", "strays")

    def __init__(self, entries: int) -> None:
        """``entries`` of a segment."""
        self._entries = entries
        self._slot_mask = entries - 1
        #: Seq id of a pending entry whose message is in its place -> its slot.
        self.slots: dict[int, bytes] = {}
        #: Segment -> bits of the strays in its file. The entry is pending, or settled since the last flush.
        self.strays: dict[int, int] = {}

    def keep(self, seq_ids: Iterable[int], slots: Mapping[int, bytes]) -> None:
        """The messages of these are in their places."""
        self.slots.update({seq_id: slots[seq_id] for seq_id in seq_ids})

    def find_strays(self, number: int, file: DiskFile, seq_ids: Sequence[int]) -> None:
        """Writing the slots of these ascending entries of one segment was refused. Raises `StorageError`."""
        start = slot_offset(seq_ids[0], self._entries)
        data = file.pread(slot_offset(seq_ids[-1], self._entries) + SLOT_BYTES - start, start)
        found: list[int] = []
        for seq_id in seq_ids:
            at = (seq_id - seq_ids[0]) * SLOT_BYTES
            if data[at : at + SLOT_BYTES] != ZERO_SLOT:
                found.append(seq_id)
        if found:
            self.strays[number] = self.strays.get(number, 0) | bits_of(found, self._slot_mask)

    def written(self, number: int, seq_ids: Sequence[int]) -> None:
        """All slots of these entries of one segment are in the file: they are live."""
        for seq_id in seq_ids:
            self.slots.pop(seq_id, None)
        self._remove(number, bits_of(seq_ids, self._slot_mask))

    def zeroed(self, number: int, bits: int) -> bool:
        """The slots with these bits were zeroed. True if strays were among them."""
        if not self.strays.get(number, 0) & bits:
            return False
        self._remove(number, bits)
        return True

    def _remove(self, number: int, bits: int) -> None:
        left = self.strays.get(number, 0) & ~bits
        if left:
            self.strays[number] = left
        else:
            self.strays.pop(number, None)

    def settle(self, seq_ids: Iterable[int]) -> tuple[dict[int, int], list[tuple[bool, MsgId]]]:
        """Pending entries are settled.

        Returns what is to be zeroed (segment -> bits) and which references are to be given back, each with
        whether the message is persistent.
        """
        zeroed: dict[int, int] = {}
        released: list[tuple[bool, MsgId]] = []
        for seq_id in seq_ids:
            slot = self.slots.pop(seq_id, None)
            if slot is None:
                continue
            number = seq_id // self._entries
            bit = 1 << (seq_id & self._slot_mask)
            if self.strays.get(number, 0) & bit:
                zeroed[number] = zeroed.get(number, 0) | bit
            if is_shared(slot):
                msg_id = MsgId(slot[SLOT_MSG_ID_AT : SLOT_MSG_ID_AT + MSG_ID_BYTES])
                released.append((is_persistent(slot), msg_id))
        return zeroed, released

    def forget_segment(self, number: int) -> None:
        """Its files are deleted; it has no pending entry with a refused slot."""
        self.strays.pop(number, None)

    def clear(self) -> None:
        """Forget everything."""
        self.slots.clear()
        self.strays.clear()

    @property
    def memory_bytes(self) -> int:
        """Estimate of what is held in memory."""
        return len(self.slots) * _SLOT_MEMORY_BYTES

    def check_invariants(self, pending: Mapping[int, object], settled: Mapping[int, int]) -> None:
        """``settled``: segment -> bits that the next flush zeroes."""
        assert self.slots.keys() <= pending.keys(), "a refused slot belongs to a pending entry"
        for number, bits in self.strays.items():
            assert bits, "only segments that have strays are remembered"
            first = number * self._entries
            waiting = [seq_id for seq_id in range(first, first + self._entries) if seq_id in self.slots]
            known = settled.get(number, 0) | (bits_of(waiting, self._slot_mask) if waiting else 0)
            assert not bits & ~known, f"a stray of segment {number} is written again or zeroed"


def by_seq_id(seq_ids: Sequence[int], slots: bytes) -> dict[int, bytes]:
    """The slots of these entries, one behind the other, by entry."""
    return {seq_id: slots[at * SLOT_BYTES : (at + 1) * SLOT_BYTES] for at, seq_id in enumerate(seq_ids)}


def is_shared(slot: bytes) -> bool:
    """True if a slot names a message in a shared store."""
    return bool(slot[_FLAGS_AT] & SLOT_SHARED)


def is_persistent(slot: bytes) -> bool:
    """True if a slot is that of a persistent message."""
    return bool(slot[_FLAGS_AT] & SLOT_PERSISTENT)
