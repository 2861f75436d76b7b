"""What an index of version 1 knows of one segment: which entries are live, be they in its file or in a journal, and how
far the file goes."""

from __future__ import annotations

from node.store.index.segment import Segment


class SegmentV1(Segment):
    """See the module text. What is owed stands in the file: it is not deleted before."""

    __slots__ = ("file_bytes", "file_end", "is_written_once")

    def __init__(self, number: int, entries: int) -> None:
        super().__init__(number, entries)
        #: Length of the ``.idx`` file; 0 without one.
        self.file_bytes = 0
        #: Behind the highest position with a publish record in the file.
        self.file_end = number * entries
        #: True if no position has two publish records in the file, so that the first found is the one that holds.
        self.is_written_once = True

    def check_invariants(self) -> None:
        super().check_invariants()
        assert self.base <= self.file_end <= self.base + self.entries, "the file holds entries of this segment"
        assert not self.owed_bits or self.file_bytes, "what is owed is read from the file"
