"""What the operator chooses about storage, and the helpers that both stores share."""

from __future__ import annotations

from dataclasses import dataclass

from node.store.disk import Disk

#: Damaged pieces kept for inspection per directory: enough to see a pattern, too few to fill a disk.
QUARANTINE_FILES_MAX = 100


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of storage. Names follow `rabbitmq.conf` where the thing is the same."""

    #: ``queue_index_embed_msgs_below``: a message smaller than this lives in its queue's own file.
    embed_below_bytes: int = 4096
    #: ``msg_store_file_size_limit``: a shared store file that has reached this is closed and the next begun.
    file_size_limit_bytes: int = 16 * 1024 * 1024
    #: Bodies that one queue keeps in memory; persistent messages beyond it are read back from disk.
    ram_limit_bytes: int = 64 * 1024 * 1024
    #: ``durability``: True = ``fsync``, confirms wait for it; False = ``flush``, the operating system has the bytes.
    confirm_after_sync: bool = True

    def __post_init__(self) -> None:
        # 4096 records of this size still have 32-bit offsets in their .qs file.
        assert 0 <= self.embed_below_bytes <= 512 * 1024, "queue_index_embed_msgs_below is at most 512 KiB"
        assert self.file_size_limit_bytes > 0, "a store file holds something"
        assert self.ram_limit_bytes >= 0, "a limit is not negative"


def quarantine(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Keep damaged bytes as ``<directory>/quarantine/<name>`` for the operator; nothing ever reads them again."""
    place = f"{directory}/quarantine"
    disk.mkdir(place)
    if len(disk.list(place)) < QUARANTINE_FILES_MAX:
        file = disk.create(f"{place}/{name}")
        file.pwrite(data, 0)
        file.sync()
        file.close()
