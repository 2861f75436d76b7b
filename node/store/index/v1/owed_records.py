"""Where an index of version 1 owes references (`node.store.index.owed_references`): in files that are kept for it.

A purge only marks what it owes: `Segment.owed_bits` are entries in the segment's file, `Journal.owed` places of
publishes that were still in a journal. Until they are given back a segment's file is not deleted, and a journal that
was carried over neither; the acks of a purge, though, are in the journal at once. So a crash brings nothing back, and
the start, which counts what the files say of live entries, counts none of these.

A position that is used again has its reference given back before the new record is written, for then there may be two
records about it in one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from node.ids import MsgId
from node.store.index.live_bits import bits_of, positions
from node.store.index.v1.journal import Journal
from node.store.index.v1.segment import SegmentV1
from node.store.index.v1.segment_files import SegmentFilesV1


@dataclass(frozen=True, slots=True)
class OwedInFile:
    """What is owed of a segment's file; entries are seq ids, ascending. It can forget any."""

    files: SegmentFilesV1
    segment: SegmentV1
    memory_bytes: ClassVar[int] = 0

    @property
    def has_owed(self) -> bool:
        return self.segment.owed_bits != 0

    def owed(self) -> Sequence[int]:
        return positions(self.segment.owed_bits, self.segment.base)

    def read(self, entries: Sequence[int]) -> Iterator[tuple[bool, MsgId]]:
        return ((paged.persistent, paged.msg_id) for _, paged in self.files.describe(self.segment, entries))

    def forget(self, entries: Sequence[int]) -> None:
        self.segment.owed_bits &= ~bits_of(entries, self.segment.entries - 1)


@dataclass(frozen=True, slots=True)
class OwedInJournal:
    """What is owed of a journal; entries are places of records."""

    journal: Journal
    memory_bytes: ClassVar[int] = 0

    @property
    def has_owed(self) -> bool:
        return bool(self.journal.owed)

    def owed(self) -> Sequence[int]:
        return self.journal.owed

    def read(self, entries: Sequence[int]) -> Iterator[tuple[bool, MsgId]]:
        return ((paged.persistent, paged.msg_id) for _, paged in self.journal.describe(entries))

    def forget(self, entries: Sequence[int]) -> None:
        del self.journal.owed[: len(entries)]
