"""What an index of version 2 knows of one segment: which entries are live, and how far its pair of files is."""

from __future__ import annotations

from node.store.disk.disk import DiskFile
from node.store.index.segment import Segment


class SegmentV2(Segment):
    """See the module text. What is owed stands in slots that were not overwritten yet."""

    __slots__ = ("dirty_generation", "index_file", "is_finished", "queue_store_end", "queue_store_file")

    def __init__(self, number: int, entries: int, queue_store_end: int) -> None:
        super().__init__(number, entries)
        #: Everything is settled and the files will be deleted: the last acks were not written.
        self.is_finished = False
        #: Where the next record of the .qs file goes.
        self.queue_store_end = queue_store_end
        #: Generation of the last write that somebody waits for, 0 if none; see `SegmentFilesV2.mark_dirty`.
        self.dirty_generation = 0
        #: Open files, or ``None``; the second only with the first.
        self.index_file: DiskFile | None = None
        self.queue_store_file: DiskFile | None = None
