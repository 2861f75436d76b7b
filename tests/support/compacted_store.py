"""Shared stores with small files and much garbage, for the tests of compaction."""

from __future__ import annotations

from node.store.disk.disk import Disk
from node.store.disk.guarded import WRITE_EVERY_MS, GuardedDisk
from node.store.disk.length_file import read_lengths
from node.store.shared.config import StoreConfig
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode

#: One record of a message with a body of 100 bytes.
RECORD_BYTES = 153
#: Files of ten such records.
FILE_BYTES = 64 + 10 * RECORD_BYTES
KINDS = ("holes", "merge")


def node_of(kind: str) -> SharedStoreNode:
    return SharedStoreNode(StoreConfig(file_size_limit_bytes=FILE_BYTES, compaction=kind))


class GuardedNode(SharedStoreNode):
    """The same on a disk that notes durable lengths."""

    guard: GuardedDisk

    def open_disk(self) -> Disk:
        self.guard = GuardedDisk(self.disk, STORE_DIRECTORY.rpartition("/")[0], self.group_commit)
        return self.guard

    def note(self, now_ms: int = WRITE_EVERY_MS) -> dict[str, int]:
        """Write and sync the notes; returns them by file name."""
        self.guard.write_notes(now_ms)
        self.sync()
        lengths = read_lengths(self.disk, STORE_DIRECTORY.rpartition("/")[0]).lengths
        return {path.rpartition("/")[2]: length for path, length in lengths.items()}


def ten_of_forty(kind: str) -> SharedStoreNode:
    """Five files; in the first four every fourth message is alive."""
    node = node_of(kind)
    node.write(*range(1, 42))
    node.sync()
    node.release(*(counter for counter in range(1, 41) if counter % 4))
    return node
