"""Everything one durable queue has on disk: its directory, index, terms and bounds, opened and recovered together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from node.ids import QueueId, QueueName
from node.message import Message
from node.store.disk import Disk, read_whole, sync_file
from node.store.group_commit import GroupCommit
from node.store.index_recovery import IndexRecovery, PagedMessage, RecoveryReport
from node.store.index_v2 import QueueIndex
from node.store.msg_store import MessageStore
from node.store.queue_terms import SeqBounds, Terms, read_terms
from node.store.store_config import StoreConfig

STUB_NAME = "queue.json"
_TERMS_NAME = "clean.terms"
_BOUNDS_NAME = "seq.bounds"


class Stub(NamedTuple):
    """What the readable file in a queue's directory says."""

    queue_id: QueueId
    queue_name: QueueName
    durable: bool


def read_stub(disk: Disk, directory: str) -> Stub | None:
    """The stub of a queue's directory; ``None`` if it was never wholly written."""
    path = f"{directory}/{STUB_NAME}"
    if not disk.exists(path):
        return None
    try:
        fields = json.loads(read_whole(disk, path))
        name = QueueName(str(fields["vhost"]), str(fields["queue"]))
        return Stub(QueueId(int(fields["queue_id"])), name, bool(fields["durable"]))
    except (ValueError, KeyError, TypeError):
        return None


class QueueStorage:
    """Storage of one durable queue. Opening it creates or recovers; raises `StorageError` if the disk refuses."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        stub: Stub,
        *,
        group_commit: GroupCommit,
        msg_store: MessageStore,
        config: StoreConfig,
        on_unflushed: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._stub = stub
        self.group_commit = group_commit
        self.config = config
        #: Called when the first write of a turn is collected.
        self.on_unflushed = on_unflushed
        #: Called when nothing will be written any more.
        self._on_closed = on_closed
        self.index = QueueIndex(
            disk, directory, stub.queue_id, group_commit=group_commit, msg_store=msg_store, config=config
        )
        #: What a clean stop left; ``None`` for a new queue and after a crash.
        self.terms: Terms | None = None
        #: ``None`` for a new queue.
        self.report: RecoveryReport | None = None
        #: Live messages found, ascending; the owner takes them over.
        self.recovered: dict[int, Message | PagedMessage] = {}
        #: No position at or above it was ever used.
        self.first_free_seq_id = 0
        is_new = not disk.exists(directory)
        disk.mkdir(directory)
        if read_stub(disk, directory) is None:
            self._write_stub()
        self._bounds = SeqBounds(disk, f"{directory}/{_BOUNDS_NAME}", stub.queue_id, group_commit)
        if not is_new:
            self._recover(msg_store)

    def _write_stub(self) -> None:
        fields = {
            "vhost": self._stub.queue_name.vhost,
            "queue": self._stub.queue_name.name,
            "durable": self._stub.durable,
            "queue_id": self._stub.queue_id,
        }
        file = self._disk.create(f"{self._directory}/{STUB_NAME}")
        file.pwrite(json.dumps(fields, indent=2).encode() + b"\n", 0)
        parent, _, _ = self._directory.rpartition("/")
        for dirty in (file, self._disk.directory(self._directory), self._disk.directory(parent)):
            self.group_commit.mark_dirty(dirty)
        file.close()

    def _recover(self, msg_store: MessageStore) -> None:
        terms_path = f"{self._directory}/{_TERMS_NAME}"
        self.terms = read_terms(self._disk, terms_path, self._stub.queue_id)
        if self._disk.exists(terms_path):
            # Erased for good before anything changes: a later crash must not look like a clean stop.
            self._disk.unlink(terms_path)
            self._disk.sync_directory(self._directory)
        self.report = RecoveryReport(clean=self.terms is not None)
        recovery = IndexRecovery(
            self._disk,
            self._directory,
            self._stub.queue_id,
            index=self.index,
            msg_store=msg_store,
            report=self.report,
        )
        recovery.run(self.config.ram_limit_bytes)
        if self.terms is None:
            # An earlier process may have died before its group commit: what we now call recovered must be safe.
            sync_file(self._disk, f"{self._directory}/{STUB_NAME}")
            self._bounds.sync()
            parent, _, _ = self._directory.rpartition("/")
            self._disk.sync_directory(parent)
        self._disk.sync_directory(self._directory)
        self.recovered = recovery.live
        if self.terms is not None:
            self.first_free_seq_id = max(self.terms.next_seq_id, max(recovery.live, default=-1) + 1)
        else:
            self.first_free_seq_id = max(self._bounds.reserved, recovery.end_seq_id)

    def flush(self, next_seq_id: int) -> int:
        """Write what the index collected. Returns how many messages were written. Raises `StorageError`."""
        self._renew_bounds(next_seq_id)
        return self.index.flush(next_seq_id)

    def _renew_bounds(self, next_seq_id: int) -> None:
        if next_seq_id >= self._bounds.renew_at:
            self._bounds.renew(next_seq_id)

    @property
    def renew_at(self) -> int:
        """When the next position reaches this, `flush` is due even if nothing is collected."""
        return self._bounds.renew_at

    def terminate(self, terms: Terms) -> None:
        """Write, sync and close everything, and leave the terms for the next start. Raises `StorageError`."""
        self._on_closed()
        # The next start takes the bound for durable, and the group commit may never come to it.
        self._renew_bounds(terms.next_seq_id)
        self._bounds.sync()
        self.index.close(terms.next_seq_id)
        terms.write(self._disk, f"{self._directory}/{_TERMS_NAME}", self._stub.queue_id)

    def abandon(self) -> None:
        """Close after a failure: the next start recovers what is on disk."""
        self._on_closed()
        self.index.abandon()

    def delete(self) -> None:
        """Remove the directory and give all references back. Raises `StorageError`."""
        self._on_closed()
        self.index.delete()
        self._disk.remove_directory(self._directory)
        parent, _, _ = self._directory.rpartition("/")
        self.group_commit.mark_dirty(self._disk.directory(parent))
