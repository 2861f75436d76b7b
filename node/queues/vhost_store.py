"""All storage of one vhost on this node: its queues' directories and its shared message store.

Layout below the node's data directory::

    vhosts/<directory of the vhost>/vhost.json                  the vhost's name, for people
                                   /msg_store_persistent/N.rdq  node.store.msg_store
                                   /queues/<queue id>/          node.store.queue_storage
                                       queue.json  N.qi  N.qs  seq.bounds  clean.terms

A vhost's directory is named by a hash of the vhost's name, since a name may hold any character.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable

from node.errors import StorageError
from node.ids import MsgId, QueueId, QueueName
from node.queues.variable_queue import VariableQueue
from node.store.disk import Disk, write_durably
from node.store.group_commit import GroupCommit
from node.store.index_recovery import count_references
from node.store.msg_store import MessageStore
from node.store.queue_storage import QueueStorage, Stub, read_stub
from node.store.store_config import StoreConfig
from node.store.store_recovery import StoreRecovery

#: Characters of the hash in a directory's name: 96 bits, no two vhosts of one node will ever share them.
_HASH_CHARACTERS = 24


def vhost_directory(data_directory: str, vhost: str) -> str:
    """Where a vhost lives."""
    digest = hashlib.sha256(vhost.encode()).hexdigest()
    return f"{data_directory}/vhosts/{digest[:_HASH_CHARACTERS]}"


class VhostStore:
    """See the module text. Opening it scans the shared store; raises `StorageError` if the disk refuses.

    One `GroupCommit` serves all vhosts of a node. `flush_writes` is due once per turn of the loop, before
    `GroupCommit.begin` (which also calls it).
    """

    def __init__(
        self,
        disk: Disk,
        data_directory: str,
        vhost: str,
        group_commit: GroupCommit,
        config: StoreConfig,
        on_queue_failed: Callable[[QueueId], None] = lambda _queue_id: None,
    ) -> None:
        """``on_queue_failed`` hears of a queue whose collected writes failed: nobody was calling it just then."""
        self._disk = disk
        self._vhost = vhost
        self._group_commit = group_commit
        self._config = config
        self._on_queue_failed = on_queue_failed
        #: Directory of this vhost.
        self.directory = vhost_directory(data_directory, vhost)
        self._queues_directory = f"{self.directory}/queues"
        #: Open durable queues.
        self._open: dict[QueueId, VariableQueue] = {}
        #: Open durable queues that called for a flush.
        self._unflushed: dict[QueueId, None] = {}
        store_directory = f"{self.directory}/msg_store_persistent"
        disk.mkdir(self._queues_directory)
        disk.mkdir(store_directory)
        stub_path = f"{self.directory}/vhost.json"
        if not disk.exists(stub_path):
            write_durably(disk, stub_path, json.dumps({"vhost": vhost}).encode() + b"\n")
            # The names of the directories above, up to the node's own.
            for above in (f"{data_directory}/vhosts", data_directory):
                disk.sync_directory(above)
        references: Counter[MsgId] = Counter()
        for queue_id in self._queue_ids():
            references.update(count_references(disk, self._queue_directory(queue_id)))
        # Whether every queue stopped cleanly is not known here, so the store is scanned.
        self._msg_store = MessageStore(disk, store_directory, group_commit, config, references, may_open_clean=False)
        group_commit.add_buffer(self)

    @property
    def store_recovery(self) -> StoreRecovery:
        """What the scan of the shared store found."""
        return self._msg_store.recovery

    def _queue_directory(self, queue_id: QueueId) -> str:
        return f"{self._queues_directory}/{queue_id}"

    def _queue_ids(self) -> list[QueueId]:
        return sorted(QueueId(int(name)) for name in self._disk.list(self._queues_directory) if name.isdigit())

    def open_queue(
        self, queue_id: QueueId, queue_name: QueueName, durable: bool, config: StoreConfig | None = None
    ) -> VariableQueue:
        """Create the queue's storage, or recover it (`VariableQueue.recovery_report` says what was found).

        A queue that is not durable has no storage. Raises `StorageError`; the files stay as they are then.
        """
        assert queue_name.vhost == self._vhost, f"{queue_name} belongs to another vhost than {self._vhost}"
        assert queue_id not in self._open, f"queue {queue_id} is open already"
        config = config or self._config
        if not durable:
            return VariableQueue(None, self._group_commit, config)
        storage = QueueStorage(
            self._disk,
            self._queue_directory(queue_id),
            Stub(queue_id, queue_name, durable),
            group_commit=self._group_commit,
            msg_store=self._msg_store,
            config=config,
            on_unflushed=lambda: self._unflushed.__setitem__(queue_id, None),
            on_closed=lambda: self._closed(queue_id),
        )
        queue = self._open[queue_id] = VariableQueue(storage, self._group_commit, config)
        return queue

    def _closed(self, queue_id: QueueId) -> None:
        self._open.pop(queue_id, None)
        self._unflushed.pop(queue_id, None)

    def queues_on_disk(self) -> list[tuple[QueueId, QueueName]]:
        """Every queue that has a directory. Its name is empty if the crash came before the stub was durable."""
        found: list[tuple[QueueId, QueueName]] = []
        for queue_id in self._queue_ids():
            stub = read_stub(self._disk, self._queue_directory(queue_id))
            found.append((queue_id, stub.queue_name if stub else QueueName(self._vhost, "")))
        return found

    def delete_queue_directory(self, queue_id: QueueId) -> None:
        """Remove what a queue left that no longer exists (and is not open). Raises `StorageError`."""
        assert queue_id not in self._open, f"queue {queue_id} is open: delete it through its object"
        directory = self._queue_directory(queue_id)
        if not self._disk.exists(directory):
            return
        for msg_id, count in count_references(self._disk, directory).items():
            for _ in range(count if self._msg_store.contains(msg_id) else 0):
                self._msg_store.release(msg_id)
        self._disk.remove_directory(directory)
        self._group_commit.mark_dirty(self._disk.directory(self._queues_directory))

    @property
    def has_unflushed(self) -> bool:
        """True if a queue collected something since the last `flush_writes`."""
        return bool(self._unflushed)

    def flush_writes(self) -> None:
        """Push what all queues collected into their files, with few writes. Never raises: a failure takes the queue
        concerned out of service, which shows in its next operation; its owner is told that there should be one."""
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, {}
            for queue_id in unflushed:
                queue = self._open[queue_id]
                queue.flush_writes()
                if queue.has_failed:
                    self._on_queue_failed(queue_id)
        try:
            self._msg_store.maintain()
        except StorageError as error:
            self._msg_store.failure = error

    def close(self) -> None:
        """Clean stop of the queues that are still open, then of the shared store. Raises `StorageError`."""
        for queue in list(self._open.values()):
            queue.terminate()
        self._group_commit.remove_buffer(self)
        self._msg_store.close()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the stores contradict each other."""
        self._msg_store.check_invariants()
        for queue in self._open.values():
            queue.check_invariants()
