"""What the operator chooses about storage, and the helpers that both stores share."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from node.errors import StorageError
from node.store.disk.disk import Disk

#: Damaged pieces kept for inspection per directory: enough to see a pattern, too few to fill a disk.
QUARANTINE_FILES_MAX = 100
#: Largest ``queue_index_embed_msgs_below``.
EMBED_BELOW_BYTES_MAX = 48 * 1024
#: Most entries of a segment: a slot or record names its entry in 16 bits.
SEGMENT_ENTRIES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of storage. Names follow `rabbitmq.conf` where the thing is the same."""

    #: ``queue_index_embed_msgs_below``: a message smaller than this lives in its queue's own file.
    embed_below_bytes: int = 4096
    #: ``msg_store_file_size_limit``: a shared store file that has reached this is closed and the next begun.
    file_size_limit_bytes: int = 16 * 1024 * 1024
    #: ``msg_store_compaction``: ``holes`` moves live records into holes near the start of a file (RabbitMQ 3.13);
    #: ``merge`` joins neighbouring files (RabbitMQ up to 3.12).
    compaction: str = "holes"
    #: ``classic_queue.default_version``: generation of the index of a queue that asks for none.
    queue_version: int = 2
    #: ``queue_index_segment_entry_count``: entries of one segment of an index of version 1.
    v1_segment_entries: int = 16_384
    #: ``queue_index_max_journal_entries``: the journal of version 1 goes into the segments when it has so many.
    v1_journal_entries_max: int = 32_768
    #: ``classic_queue_index_v2_segment_entry_count``: entries of one segment of an index of version 2.
    v2_segment_entries: int = 4_096
    #: ``msg_store_io_batch_size``: paging moves positions out of memory when there are so many to move.
    io_batch_messages: int = 4_096
    #: ``durability``: True = ``fsync``, confirms wait for it; False = ``flush``, the operating system has the bytes.
    confirm_after_sync: bool = True

    def __post_init__(self) -> None:
        # What is not body of such a message (properties, exchange, key) is counted in 16 bits in its slot, and all
        # records of a segment have 32-bit offsets in their file.
        assert 0 <= self.embed_below_bytes <= EMBED_BELOW_BYTES_MAX, "queue_index_embed_msgs_below is at most 48 KiB"
        assert self.compaction in ("holes", "merge"), "there are two ways of compaction"
        assert self.queue_version in (1, 2), "there are two generations of the index"
        for entries in (self.v1_segment_entries, self.v2_segment_entries):
            assert 8 <= entries <= SEGMENT_ENTRIES_MAX, "segments are neither tiny nor unbounded"
            assert entries & (entries - 1) == 0, "entries of a segment are a power of two"
        assert self.file_size_limit_bytes > 0, "a store file holds something"


def quarantine(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Keep damaged bytes as ``<directory>/quarantine/<name>`` for the operator; nothing ever reads them again."""
    place = f"{directory}/quarantine"
    disk.mkdir(place)
    if len(disk.list(place)) < QUARANTINE_FILES_MAX:
        file = disk.create(f"{place}/{name}")
        try:
            file.pwrite(data, 0)
            file.sync()
        except StorageError:
            file.abandon()
            # The next attempt keeps it anew, perhaps under the same name.
            with suppress(StorageError):
                disk.unlink(file.path)
            raise
        file.close()
