"""The mastership records of all queues, and what follows: since when who is a mirror, who has how many copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from cluster.metadata.commands import ForcePromote
from cluster.metadata.errors import (
    CompleteMasterError,
    NodeNotUpError,
    NoSuchNodeError,
    StaleDeletionError,
    StillServedError,
)
from cluster.metadata.mastership import check_record
from cluster.metadata.records import MastershipRecord, MemberRecord
from node.ids import NodeName, QueueId
from node.lazy_list import LazyList
from node.topology.commands import DeleteQueue
from node.topology.records import QueueRecord


class Masterships:
    """Changed only by `put` and `remove`, which keep the counters."""

    def __init__(self) -> None:
        #: Always this object: who reads records may keep it.
        self.records: dict[QueueId, MastershipRecord] = {}
        #: Per queue and mirror: index of the entry that took the mirror into the record. What is in it never changes.
        self._mirror_since: dict[QueueId, dict[NodeName, int]] = {}
        #: Queues per node: as master, and as master or mirror. Derived from `records`.
        self.master_count: Counter[NodeName] = Counter()
        self.replica_count: Counter[NodeName] = Counter()

    def put(self, record: MastershipRecord, index: int) -> None:
        """The entry at ``index`` made this record."""
        queue_id = record.queue_id
        old = self.records.get(queue_id)
        if old is not None:
            self._count(old, -1)
        self._count(record, 1)
        self.records[queue_id] = record
        since = self._mirror_since.get(queue_id, {})
        self._mirror_since[queue_id] = {node: since.get(node, index) for node in record.mirrors}

    def remove(self, queue_id: QueueId) -> None:
        self._count(self.records.pop(queue_id), -1)
        del self._mirror_since[queue_id]

    def check_deletion(self, queue: QueueRecord | None, command: DeleteQueue) -> None:
        """Raise `StaleDeletionError` if ``command`` would delete ``queue``, but not any more by what was checked."""
        if queue is None or command.epoch is None or command.queue_id not in (None, queue.queue_id):
            return
        epoch = self.records[queue.queue_id].epoch
        if command.epoch != epoch:
            raise StaleDeletionError(f"{queue.queue_name} is in epoch {epoch}, it was looked at in {command.epoch}")

    def check_force(self, queue: QueueRecord, command: ForcePromote, member: MemberRecord | None) -> None:
        """Raise if ``queue`` must not be served by the node that ``command`` names, of which ``member`` is known."""
        record = self.records[queue.queue_id]
        if record.in_service:
            raise StillServedError(queue.name, record.master)
        if member is None:
            raise NoSuchNodeError(command.node)
        if not member.is_up:
            raise NodeNotUpError(command.node)
        if not record.is_down and record.master in record.complete and command.node not in record.complete:
            raise CompleteMasterError(queue.name, record.master)

    def mirror_since(self, queue_id: QueueId, node: NodeName) -> int:
        """What was said of this mirror before that index was said of another copy, or of a life that is over."""
        return self._mirror_since[queue_id][node]

    def mirror_begins_anew(self, queue_id: QueueId, node: NodeName, index: int) -> None:
        """It stays in the record, with another life than before ``index``."""
        self._mirror_since[queue_id] = {**self._mirror_since[queue_id], node: index}

    def _count(self, record: MastershipRecord, change: Literal[1, -1]) -> None:
        self.master_count[record.master] += change
        for node in (record.master, *record.mirrors):
            self.replica_count[node] += change

    def mirror_since_snapshot(self) -> Sequence[Any]:
        """What `restore` needs besides the records."""
        return LazyList(
            [(queue_id, self._mirror_since[queue_id]) for queue_id in sorted(self._mirror_since)], _beginnings
        )

    def restore(self, records: Iterable[MastershipRecord], mirror_since: Sequence[Any]) -> None:
        self.records.clear()
        self.records.update((record.queue_id, record) for record in records)
        self._mirror_since = {queue_id: dict(since) for queue_id, since in mirror_since}
        self.master_count.clear()
        self.replica_count.clear()
        for record in self.records.values():
            self._count(record, 1)

    def check_invariants(self) -> None:
        assert set(self.records) == set(self._mirror_since), "every queue has a record, and no other"
        masters: Counter[NodeName] = Counter()
        replicas: Counter[NodeName] = Counter()
        for queue_id, record in self.records.items():
            check_record(record)
            masters[record.master] += 1
            replicas.update((record.master, *record.mirrors))
            assert record.queue_id == queue_id, "a record is kept under its queue"
            assert set(self._mirror_since[queue_id]) == set(record.mirrors), "every mirror has a beginning"
        assert masters == +self.master_count, "the derived counters agree with the records"
        assert replicas == +self.replica_count, "as above, for all copies"


def _beginnings(entry: tuple[QueueId, dict[NodeName, int]]) -> list[Any]:
    queue_id, since = entry
    return [queue_id, sorted(since.items())]
