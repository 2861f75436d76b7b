"""Entries of an index of version 1 that a purge has settled, and whose references to the shared stores are owed.

A purge settles by range and reads no record. It only marks what it owes: `Segment.owed` are entries in the segment's
file, `Journal.owed` places of publishes that were still in a journal. Every flush gives some references back. Until all
of them are, a segment's file is not deleted, and a journal that was carried over neither; the acks of a purge, though,
are in the journal at once. So a crash brings nothing back, and the start, which counts what the files say of live
entries, counts none of these.

A position that is used again has its reference given back before the new record is written, for then there may be two
records about it in one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from node.store.index.index import PagedMessage
from node.store.index.live_bits import bits_of, by_segment, positions
from node.store.index.v1.journal import Journal
from node.store.index.v1.segment import Segment
from node.store.index.v1.segment_files import SegmentFiles
from node.store.shared.port import SharedStore, release_in_pieces, release_references

#: References given back at a time: three or four milliseconds.
OWED_PER_FLUSH = 1024
#: For giving back everything.
ALL = 1 << 62


class OwedRecords:
    """See the module text. What reads raises `StorageError`."""

    def __init__(self, stores: Mapping[bool, SharedStore], files: SegmentFiles) -> None:
        """``stores``: the shared stores, by whether a message is persistent."""
        self._stores = stores
        self._files = files
        #: Segments that owe something.
        self._segments: dict[int, Segment] = {}
        #: Journals that do.
        self._journals: dict[int, Journal] = {}

    def __bool__(self) -> bool:
        return bool(self._segments or self._journals)

    def owe(self, segment: Segment, bits: int, journals: Iterable[Journal | None]) -> None:
        """These entries of a segment, live until now, are settled."""
        for journal in journals:
            if bits and journal is not None:
                bits &= ~journal.owe(segment.number, bits)
                if journal.owed:
                    self._journals[journal.number] = journal
        if bits:
            segment.owed |= bits
            self._segments[segment.number] = segment

    def give_back(self, count: int) -> None:
        """Give up to ``count`` references back."""
        while self._journals and count > 0:
            journal = next(iter(self._journals.values()))
            places = journal.owed[-count:]
            self._release(journal.describe(places))
            del journal.owed[-count:]
            count -= len(places)
            if not journal.owed:
                del self._journals[journal.number]
        while self._segments and count > 0:
            segment = next(iter(self._segments.values()))
            seq_ids = positions(segment.owed, segment.base)[:count]
            self._give_back_in(segment, seq_ids)
            count -= len(seq_ids)

    def give_back_of(self, journal: Journal) -> None:
        """Give back everything that one journal owes; it holds no more than so many records."""
        self._release(journal.describe(journal.owed))
        journal.owed.clear()
        self._journals.pop(journal.number, None)

    def give_back_at(self, seq_ids: Sequence[int], segment_bits: int) -> None:
        """These positions, ascending, are used again."""
        for number, members in by_segment(seq_ids, segment_bits) if self._segments else ():
            segment = self._segments.get(number)
            if segment is not None:
                again = segment.owed & bits_of(members, segment.entries - 1)
                if again:
                    self._give_back_in(segment, positions(again, segment.base))

    def _give_back_in(self, segment: Segment, seq_ids: Sequence[int]) -> None:
        self._release(self._files.describe(segment, seq_ids))
        segment.owed &= ~bits_of(seq_ids, segment.entries - 1)
        if not segment.owed:
            del self._segments[segment.number]

    def _release(self, found: Iterable[tuple[int, PagedMessage]]) -> None:
        release_references(self._stores, [(paged.persistent, paged.msg_id) for _, paged in found])

    def take_all(self) -> OwedRecords:
        """Another object with all that is here; here is nothing then."""
        taken = OwedRecords(self._stores, self._files)
        taken._segments, taken._journals = self._segments, self._journals
        self._segments, self._journals = {}, {}
        return taken

    def give_back_in_pieces(self) -> Iterator[None]:
        """Give all back, one piece per item. What cannot be read keeps its references until the store counts anew."""
        for journal in self._journals.values():

            def release(places: Sequence[int], journal: Journal = journal) -> None:
                self._release(journal.describe(places))

            yield from release_in_pieces(journal.owed, release)
        for segment in self._segments.values():

            def release_in_file(seq_ids: Sequence[int], segment: Segment = segment) -> None:
                self._release(self._files.describe(segment, seq_ids))

            yield from release_in_pieces(positions(segment.owed, segment.base), release_in_file)

    def check_invariants(self, segments: Mapping[int, Segment]) -> None:
        """Raise `AssertionError` if the state contradicts itself. ``segments``: all there are."""
        owing = {number for number, segment in segments.items() if segment.owed}
        assert owing == self._segments.keys(), "it is known which segments owe references"
        for journal in self._journals.values():
            assert journal.owed, "it is known which journals owe references"
