"""Everything one queue has on disk: its directory, index, terms and bounds, opened and recovered together.

A durable queue has its directory from the beginning. One that is not durable gets it when messages are first paged out,
and loses it when it is closed: what is found of it at start is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from node.ids import MsgId, OriginId, QueueId, QueueName
from node.store.disk import Disk, read_whole, sync_file
from node.store.group_commit import GroupCommit
from node.store.index import QueueIndex, RecoveryReport
from node.store.index_recovery import IndexRecovery, Progress
from node.store.index_v2 import QueueIndexV2
from node.store.msg_store import MessageStore
from node.store.queue_terms import SeqBounds, Terms, read_terms
from node.store.store_config import StoreConfig

STUB_NAME = "queue.json"
TERMS_NAME = "clean.terms"
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


class SharedStores(NamedTuple):
    """The two shared stores of a vhost."""

    persistent: MessageStore
    transient: MessageStore


class QueueStorage:
    """Storage of one queue. Opening it creates or recovers; raises `StorageError` if the disk refuses."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        stub: Stub,
        *,
        group_commit: GroupCommit,
        stores: SharedStores,
        config: StoreConfig,
        on_unflushed: Callable[[], None],
        on_closed: Callable[[], None],
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._stub = stub
        self.is_durable = stub.durable
        self.group_commit = group_commit
        self.config = config
        #: Called when the first write of a turn is collected.
        self.on_unflushed = on_unflushed
        #: Called when nothing will be written any more.
        self._on_closed = on_closed
        self._progress = progress
        index = QueueIndexV2(
            disk,
            directory,
            stub.queue_id,
            is_durable=stub.durable,
            group_commit=group_commit,
            persistent_store=stores.persistent,
            transient_store=stores.transient,
            config=config,
        )
        self.index: QueueIndex = index
        #: What a clean stop left; ``None`` for a new queue and after a crash.
        self.terms: Terms | None = None
        #: ``None`` for a new queue.
        self.report: RecoveryReport | None = None
        #: Highest id of each origin among what was recovered.
        self.origins: Mapping[OriginId, MsgId] = {}
        #: No position at or above it was ever used.
        self.first_free_seq_id = 0
        self._bounds: SeqBounds | None = None
        self._has_directory = False
        is_new = not disk.exists(directory)
        if not stub.durable:
            if not is_new:
                disk.remove_directory(directory)
            return
        self._make_directory()
        self._bounds = SeqBounds(disk, f"{directory}/{_BOUNDS_NAME}", stub.queue_id, group_commit)
        if not is_new:
            self._recover(index, stores.persistent, self._bounds)

    def _make_directory(self) -> None:
        self._disk.mkdir(self._directory)
        if read_stub(self._disk, self._directory) is None:
            self._write_stub()
        self._has_directory = True

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
        if self.is_durable:
            for dirty in (file, self._disk.directory(self._directory), self._disk.directory(parent)):
                self.group_commit.mark_dirty(dirty)
        file.close()

    def _recover(self, index: QueueIndexV2, persistent_store: MessageStore, bounds: SeqBounds) -> None:
        terms_path = f"{self._directory}/{TERMS_NAME}"
        self.terms = read_terms(self._disk, terms_path, self._stub.queue_id)
        if self._disk.exists(terms_path):
            # Erased for good before anything changes: a later crash must not look like a clean stop.
            self._disk.unlink(terms_path)
            self._disk.sync_directory(self._directory)
        report = self.report = RecoveryReport(clean=self.terms is not None)
        if self.terms is not None:
            index.adopt_terms(self.terms.index_terms)
            report.messages = index.count_live(0, self.terms.next_seq_id)
            report.body_bytes = self.terms.body_bytes
            self.origins = self.terms.origins
            self.first_free_seq_id = self.terms.next_seq_id
            return
        recovery = IndexRecovery(self._disk, index, persistent_store, report, self._progress)
        recovery.run()
        # An earlier process may have died before its group commit: what we now call recovered must be safe.
        sync_file(self._disk, f"{self._directory}/{STUB_NAME}")
        bounds.sync()
        parent, _, _ = self._directory.rpartition("/")
        self._disk.sync_directory(parent)
        self._disk.sync_directory(self._directory)
        self.origins = recovery.origins
        self.first_free_seq_id = max(bounds.reserved, recovery.end_seq_id)

    def flush(self, next_seq_id: int) -> int:
        """Write what the index collected. Returns how many persistent messages were written. Raises `StorageError`."""
        if self._bounds is not None:
            if next_seq_id >= self._bounds.renew_at:
                self._bounds.renew(next_seq_id)
        elif not self._has_directory and self.index.has_unflushed:
            self._make_directory()
        return self.index.flush(next_seq_id)

    @property
    def renew_at(self) -> int | float:
        """When the next position reaches this, `flush` is due even if nothing is collected."""
        return self._bounds.renew_at if self._bounds is not None else float("inf")

    def terminate(
        self,
        next_seq_id: int,
        next_deliver_seq_id: int,
        persistent_body_bytes: int,
        origins: Mapping[OriginId, MsgId],
    ) -> None:
        """Write, sync and close everything, and leave the terms for the next start. Raises `StorageError`."""
        if self._bounds is None:
            self.delete()
            return
        self._on_closed()
        # The next start takes the bound for durable, and the group commit may never come to it.
        if next_seq_id >= self._bounds.renew_at:
            self._bounds.renew(next_seq_id)
        self._bounds.sync()
        index = self.index
        index.drop_transient()
        index.close(next_seq_id)
        terms = Terms(next_seq_id, next_deliver_seq_id, persistent_body_bytes, origins, index.version, index.terms())
        terms.write(self._disk, f"{self._directory}/{TERMS_NAME}", self._stub.queue_id)

    def abandon(self) -> None:
        """Close after a failure: the next start recovers what is on disk."""
        self._on_closed()
        self.index.abandon()

    def delete(self) -> None:
        """Remove the directory and give all references back. Raises `StorageError`."""
        self._on_closed()
        self.index.delete()
        if self._has_directory:
            self._disk.remove_directory(self._directory)
            if self.is_durable:
                parent, _, _ = self._directory.rpartition("/")
                self.group_commit.mark_dirty(self._disk.directory(parent))
