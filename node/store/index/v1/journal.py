"""The journal of an index of version 1: where everything is written first.

A journal is a file that is only appended to, and what this process must remember of it: where in it the publishes are
that are still live, and which entries of segment files it acks. A message that is acked while its publish is in a
journal never reaches a segment.

Journals are numbered. When one is full the next begins at once, and the full one is carried into the segments
(`node.store.index.v1.journals`), so that nobody waits for a journal of 32,768 entries to be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from sys import getsizeof

from node.errors import StorageError
from node.store.disk.disk import Disk, DiskFile
from node.store.formats.record import HEADER_BYTES, JOURNAL_FORMAT
from node.store.index.index import PagedMessage
from node.store.index.live_bits import Run, bits_of, run_bits, runs_of_bits
from node.store.index.v1.format import (
    PLACE_OFFSET_BITS,
    PLACE_SHARED,
    Publish,
    checksum_seed,
    describe,
    pack_acks,
    pack_publishes,
    paged_of,
    read_places,
    record_seq_id,
)

#: What one publish costs in memory: its place in two objects of 32 bytes and its share of a dictionary.
ENTRY_MEMORY_BYTES = 110
#: What the acks of one segment cost beside their bits: a share of a dictionary.
ACKS_MEMORY_BYTES = 100


class Journal:
    """See the module text. `write` raises `StorageError`."""

    __slots__ = ("_bits", "acks", "file", "number", "owed", "path", "places", "records", "seed", "size")

    def __init__(self, disk: Disk, directory: str, queue_id: int, number: int, entries: int) -> None:
        self.number = number
        self.path = f"{directory}/{number}{JOURNAL_FORMAT.suffix}"
        self.seed = checksum_seed(JOURNAL_FORMAT, number)
        self._bits = entries.bit_length() - 1
        #: Segment -> live seq id -> place of its publish record here.
        self.places: dict[int, dict[int, int]] = {}
        #: Segment -> set of settled entries whose publish is in the segment's file.
        self.acks: dict[int, int] = {}
        #: Places of settled publishes of which the reference to a shared store is not given back.
        self.owed: list[int] = []
        #: Records written: the journal's fullness.
        self.records = 0
        self.file: DiskFile = disk.create(self.path)
        try:
            self.file.pwrite(JOURNAL_FORMAT.header(number, queue_id), 0)
        except StorageError:
            # After a clean stop there are no journals: an empty one would be taken for a crash.
            self.file.abandon()
            with suppress(StorageError):
                disk.unlink(self.path)
            raise
        #: Where the next record goes.
        self.size = HEADER_BYTES

    def reopen(self, disk: Disk, directory: str) -> None:
        """The file was moved to ``directory``, and is only read from now on."""
        self.path = f"{directory}/{self.number}{JOURNAL_FORMAT.suffix}"
        self.file = disk.open(self.path)

    def write(self, runs: Sequence[Run], publishes: Sequence[Publish]) -> list[int]:
        """Append acks, then publishes, with one write; returns the places of the publishes, for `note`.

        After a `DiskFullError` nothing was written.
        """
        parts: list[bytes] = []
        offset = pack_acks(runs, self.seed, self.size, parts)
        places = pack_publishes(publishes, self.seed, offset, parts)
        data = b"".join(parts)
        self.file.pwrite(data, self.size)
        self.size += len(data)
        self.records += len(runs) + len(publishes)
        return places

    def note(self, publishes: Sequence[Publish], places: Sequence[int]) -> None:
        """Remember publishes that were written."""
        bits = self._bits
        by_segment = self.places
        for publish, place in zip(publishes, places, strict=True):
            seq_id = publish[0]
            number = seq_id >> bits
            members = by_segment.get(number)
            if members is None:
                members = by_segment[number] = {}
            members[seq_id] = place

    def forget(self, number: int, settled: Sequence[Run]) -> list[int]:
        """Settle entries of a segment; returns those that had a publish here."""
        members = self.places.get(number)
        if not members:
            return []
        found: list[int] = []
        for first, count in settled:
            found += [seq_id for seq_id in range(first, first + count) if members.pop(seq_id, None) is not None]
        if not members:
            del self.places[number]
        return found

    def ack(self, number: int, settled: int) -> None:
        """These entries (a set) of a segment are settled, and their publishes are in the segment's file."""
        self.acks[number] = self.acks.get(number, 0) | settled

    def find(self, seq_id: int) -> int | None:
        """Place of a live publish."""
        members = self.places.get(seq_id >> self._bits)
        return None if members is None else members.get(seq_id)

    def owe(self, number: int, chosen: int) -> int:
        """Note as owed those of these entries of a segment (a set of positions) that are here; returns these."""
        mask = (1 << self._bits) - 1
        members = self.places.get(number)
        if not members:
            return 0
        first, end = min(members), max(members) + 1
        bits = run_bits(first & mask, end - first)
        if end - first == len(members) and chosen & bits == bits:
            self.owed += members.values()
            return bits
        found = 0
        for low, count in runs_of_bits(chosen, number << self._bits):
            there = [seq_id for seq_id in range(low, low + count) if seq_id in members]
            if there:
                self.owed += [members[seq_id] for seq_id in there]
                found |= bits_of(there, mask)
        return found

    def describe(self, places: Sequence[int]) -> Iterator[tuple[int, PagedMessage]]:
        """What the publish records at these places say, by position. Raises `StorageError` if one is damaged."""
        for place, piece in read_places(self.file, self.seed, places):
            if piece is None:
                raise StorageError(f"{self.path} is damaged at {place >> PLACE_OFFSET_BITS}: its checksum does not fit")
            msg_id, body_bytes = describe(piece, 0, place & PLACE_SHARED > 0)
            yield record_seq_id(piece), paged_of(place, msg_id, body_bytes)

    def forget_segment(self, number: int) -> None:
        """Everything in this segment is settled and its file is gone."""
        assert number not in self.places, "a segment without live entries has no live publish"
        self.acks.pop(number, None)

    @property
    def is_moved(self) -> bool:
        """True if nothing of it is missing in the segments."""
        return not self.places and not self.acks

    @property
    def memory_bytes(self) -> int:
        """Estimate of what this journal costs."""
        publishes = len(self.owed) + sum(map(len, self.places.values()))
        acks = sum([getsizeof(bits) + ACKS_MEMORY_BYTES for bits in self.acks.values()])
        return publishes * ENTRY_MEMORY_BYTES + acks
