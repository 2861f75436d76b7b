"""The mastership records of all queues, and what follows: since when who is a mirror, who has how many copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from cluster.metadata.errors import StaleDeletionError
from cluster.metadata.mastership import check_record
from cluster.metadata.records import MastershipRecord
from node.ids import NodeName, QueueId
from node.lazy_list import LazyList
from node.pieces import Pieces
from node.topology.commands import DeleteQueue
from node.topology.records import QueueRecord

#: Records that are made, or let go of, in one piece: a fraction of a millisecond.
RECORDS_PER_PIECE = 200


class RecordTables:
    """What `Masterships` consists of, as it is read from a snapshot piece by piece."""

    __slots__ = ("left", "master_count", "mirror_since", "records", "replica_count")

    def __init__(
        self,
        records: dict[QueueId, MastershipRecord],
        mirror_since: dict[QueueId, dict[NodeName, int]],
        left: dict[QueueId, tuple[NodeName, ...]],
        master_count: Counter[NodeName],
        replica_count: Counter[NodeName],
    ) -> None:
        self.records = records
        self.mirror_since = mirror_since
        self.left = left
        self.master_count = master_count
        self.replica_count = replica_count

    @classmethod
    def read(
        cls,
        records: Sequence[MastershipRecord],
        mirror_since: Sequence[Any],
        left: Sequence[Any],
        upgrade: Callable[[MastershipRecord], MastershipRecord] | None,
    ) -> Pieces[RecordTables]:
        """``mirror_since`` and ``left`` as `Masterships.mirror_since_snapshot` and `left_snapshot` gave them;
        ``upgrade``: what to make of each record."""
        tables = cls({}, {}, {queue_id: tuple(nodes) for queue_id, nodes in left}, Counter(), Counter())
        for number, each in enumerate(records, 1):
            record = each if upgrade is None else upgrade(each)
            tables.records[record.queue_id] = record
            _count(tables.master_count, tables.replica_count, record, 1)
            if number % RECORDS_PER_PIECE == 0:
                yield
        for number, (queue_id, since) in enumerate(mirror_since, 1):
            tables.mirror_since[queue_id] = dict(since)
            if number % RECORDS_PER_PIECE == 0:
                yield
        return tables

    def dissolve(self) -> Pieces[None]:
        """Nobody looks at it any more: let go of it piece by piece, as `TopologyContent.dissolve` does."""
        for table in (self.records, self.mirror_since):
            while table:
                for _ in range(min(RECORDS_PER_PIECE, len(table))):
                    table.popitem()
                yield


class Masterships:
    """Changed only by `put` and `remove`, which keep the counters."""

    def __init__(self) -> None:
        #: Always this object: who reads records may keep it.
        self.records: dict[QueueId, MastershipRecord] = {}
        #: Per queue and mirror: index of the entry that took the mirror into the record. What is in it never changes.
        self._mirror_since: dict[QueueId, dict[NodeName, int]] = {}
        #: Per queue: nodes that stopped being its mirror by themselves (a disk that fails, a link that is cut), in the
        #: order in which they went, and were not its mirror or up anew since. Nobody is replaced by one of them: two
        #: nodes that cannot hold the queue would replace each other for ever.
        self._left: dict[QueueId, tuple[NodeName, ...]] = {}
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
        if queue_id in self._left:
            self._keep_left(queue_id, lambda node: node not in (record.master, *record.mirrors))

    def remove(self, queue_id: QueueId) -> None:
        self._count(self.records.pop(queue_id), -1)
        del self._mirror_since[queue_id]
        self._left.pop(queue_id, None)

    def check_deletion(self, queue: QueueRecord | None, command: DeleteQueue) -> None:
        """Raise `StaleDeletionError` if ``command`` would delete ``queue``, but not any more by what was checked."""
        if queue is None or command.epoch is None or command.queue_id not in (None, queue.queue_id):
            return
        epoch = self.records[queue.queue_id].epoch
        if command.epoch != epoch:
            raise StaleDeletionError(f"{queue.queue_name} is in epoch {epoch}, it was looked at in {command.epoch}")

    def mirror_since(self, queue_id: QueueId, node: NodeName) -> int:
        """What was said of this mirror before that index was said of another copy, or of a life that is over."""
        return self._mirror_since[queue_id][node]

    def mirror_begins_anew(self, queue_id: QueueId, node: NodeName, index: int) -> None:
        """It stays in the record, with another life than before ``index``."""
        self._mirror_since[queue_id] = {**self._mirror_since[queue_id], node: index}

    # --- mirrors that left by themselves ---

    def mirror_left(self, queue_id: QueueId, node: NodeName) -> None:
        """A mirror went although its node is up and its policy wants it; the record is without it already."""
        self._left[queue_id] = (*self.who_left(queue_id), node)

    def who_left(self, queue_id: QueueId) -> tuple[NodeName, ...]:
        return self._left.get(queue_id, ())

    def node_up(self, node: NodeName) -> None:
        """What ``node`` could not do in its life before it may be able to do now."""
        for queue_id in list(self._left):
            self._keep_left(queue_id, lambda other: other != node)

    def _keep_left(self, queue_id: QueueId, is_kept: Callable[[NodeName], bool]) -> None:
        kept = tuple(node for node in self._left[queue_id] if is_kept(node))
        if kept:
            self._left[queue_id] = kept
        else:
            del self._left[queue_id]

    def _count(self, record: MastershipRecord, change: Literal[1, -1]) -> None:
        _count(self.master_count, self.replica_count, record, change)

    def mirror_since_snapshot(self) -> Sequence[Any]:
        """What `restore` needs besides the records."""
        return LazyList(
            [(queue_id, self._mirror_since[queue_id]) for queue_id in sorted(self._mirror_since)], _beginnings
        )

    def left_snapshot(self) -> Sequence[Any]:
        """As `mirror_since_snapshot`."""
        return sorted(self._left.items())

    def adopt(self, tables: RecordTables) -> RecordTables:
        """Replace everything; what it was is the caller's."""
        old = RecordTables(dict(self.records), self._mirror_since, self._left, self.master_count, self.replica_count)
        self.records.clear()
        self.records.update(tables.records)
        self._mirror_since, self._left = tables.mirror_since, tables.left
        self.master_count, self.replica_count = tables.master_count, tables.replica_count
        return old

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
        for queue_id, left in self._left.items():
            record = self.records[queue_id]
            assert left, "a queue that nobody left has no entry"
            assert len(set(left)) == len(left), "who left can leave again only after it was taken back"
            assert not set(left) & {record.master, *record.mirrors}, "who left has no part of the queue"
        assert masters == +self.master_count, "the derived counters agree with the records"
        assert replicas == +self.replica_count, "as above, for all copies"


def _beginnings(entry: tuple[QueueId, dict[NodeName, int]]) -> list[Any]:
    queue_id, since = entry
    return [queue_id, sorted(since.items())]


def _count(masters: Counter[NodeName], replicas: Counter[NodeName], record: MastershipRecord, change: int) -> None:
    masters[record.master] += change
    for node in (record.master, *record.mirrors):
        replicas[node] += change
