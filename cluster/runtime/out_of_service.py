"""Copies of queues that are out of service on this node: why, and whether the cluster knows.

A failing disk or a mistake of ours takes this node's copy of one queue out of service, and nothing else; the cluster is
asked to go on without it. The copy is opened again only after this node has left the record and come back.

A mistake of ours is met like a failing disk: the next start would meet it again. But such a copy is as good as before:
it counts as complete until a master goes on without it, and its files are kept even then, whereas a copy whose disk
failed (*damaged*) is deleted once no other node can need it.

A full disk is the exception: it has damaged nothing, and may have room again. Want of descriptors is another. Copies
that went out of service for want of either (`ShortageError`) are remembered (*starved*); whoever
watches both says when it is worth while to open them again (`OutOfService.forgive`), which is the recovery of a
restart, of this queue alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from cluster.metadata.mastership import heirs
from cluster.metadata.records import MastershipRecord
from node.errors import ShortageError, StorageError
from node.ids import NodeName, QueueId
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: A proposal gives up after half a minute without a quorum: that a copy failed is told again after this.
FAILURE_REPEAT_MS = 35_000


class Failure(NamedTuple):
    """Why this node's copy of a queue is out of service."""

    queue: QueueRecord
    #: The record under which the cluster was told.
    record: MastershipRecord
    #: Its disk failed: what it holds cannot be relied on.
    is_damaged: bool
    #: It waits for room or descriptors, and is opened again by itself.
    is_starved: bool
    #: In words.
    reason: str


class OutOfService:
    """See the top of this module."""

    def __init__(self, node: NodeName) -> None:
        self._node = node
        self._failures: dict[QueueId, Failure] = {}
        self._told_ms = 0
        #: Queues whose copy here went out of service for want of room or descriptors.
        self._starved: set[QueueId] = set()

    def __contains__(self, queue_id: QueueId) -> bool:
        return queue_id in self._failures

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._failures)

    def get(self, queue_id: QueueId) -> Failure | None:
        """``None`` if the copy here is in service, or there is none."""
        return self._failures.get(queue_id)

    def add(self, queue: QueueRecord, record: MastershipRecord, error: Exception) -> Failure:
        """``error`` has put the copy out of service; the operator reads why, the cluster must be told."""
        if isinstance(error, StorageError):
            log.error("%s: this node's copy is out of service: %s", queue.queue_name, error)
        else:
            log.error(
                "%s: this node's copy is out of service: %r, which is a mistake of this program. Its files are kept. "
                "A restart of this node opens it again; deleting the queue gives it up",
                queue.queue_name,
                error,
                exc_info=error,
            )
        is_damaged, is_starved = isinstance(error, StorageError), isinstance(error, ShortageError)
        reason = str(error) if is_damaged else f"{error!r}, which is a mistake of this program"
        failure = Failure(queue, record, is_damaged, is_starved, reason)
        self._failures[queue.queue_id] = failure
        if is_starved:
            self._starved.add(queue.queue_id)
        return failure

    def record_changed(self, record: MastershipRecord) -> Failure | None:
        """The queue has a new record; the failure as it was told before, if there is one."""
        failure = self._failures.get(record.queue_id)
        if failure is not None:
            self._failures[record.queue_id] = failure._replace(record=record)
        return failure

    def queues(self) -> list[QueueRecord]:
        """Of which the copy here is out of service."""
        return [failure.queue for failure in self._failures.values()]

    def starved(self) -> list[QueueId]:
        """Queues whose copy here is out of service for want of room or descriptors."""
        return sorted(self._starved)

    def forgive(self, queue_id: QueueId) -> None:
        """The copy may be opened again."""
        self._starved.discard(queue_id)
        self._failures.pop(queue_id, None)

    def left(self, queue_id: QueueId) -> None:
        """This node is out of the record: what went wrong is over, except that there must be room first."""
        if queue_id not in self._starved:
            self._failures.pop(queue_id, None)

    def deleted(self, queue_id: QueueId) -> None:
        """The queue waits for no room any more."""
        self._starved.discard(queue_id)

    def to_repeat(self, now_ms: int) -> list[Failure]:
        """What the cluster may not have heard of: now and then, where others can go on without this copy."""
        if not self._failures:
            self._told_ms = now_ms  # whatever fails next is told when it does
        if now_ms - self._told_ms < FAILURE_REPEAT_MS:
            return []
        self._told_ms = now_ms
        return [failure for failure in self._failures.values() if self._is_wanted_of(failure.record)]

    def _is_wanted_of(self, record: MastershipRecord) -> bool:
        is_master = record.master == self._node and not record.is_down
        return self._node in record.mirrors or (is_master and bool(heirs(record)))

    def check_invariants(self) -> None:
        for queue_id, failure in self._failures.items():
            assert failure.record.queue_id == queue_id, "a failure is filed under its queue"
