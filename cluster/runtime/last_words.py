"""How far the masters here had delivered that are none any more: said when the record names another.

Not before. A master whose copy went out of service may come back in the same epoch (a full disk has room again), and
would deliver what it had said it does not. So what it has to say is kept until the cluster has gone on without it. It
is said in the conversation that the master had with its mirrors, after everything else (`cluster.mirroring.messages`,
*End*).
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.messages import MirrorMessage
from cluster.runtime.out_of_service import OutOfService
from cluster.runtime.queue_ports import MirrorLinks
from cluster.runtime.queue_role import MasterRole, Role
from node.errors import StorageError
from node.ids import Epoch, NodeName, QueueId


class LastWords:
    """Of one node."""

    def __init__(self, links: MirrorLinks) -> None:
        self._links = links
        #: Of masters whose copy is out of service, with their epoch.
        self._kept: dict[QueueId, tuple[Epoch, Sequence[tuple[NodeName, MirrorMessage]]]] = {}

    def keep(self, role: Role, error: Exception) -> None:
        """The copy of this role went out of service. After a mistake of ours nothing that it says is believed, and who
        has not served has nothing to say."""
        if isinstance(role, MasterRole) and role.record.in_service and isinstance(error, StorageError):
            self._kept[role.record.queue_id] = role.record.epoch, role.mirrored.take_leave()

    def forget(self, queue_id: QueueId) -> None:
        """The copy may be opened again, or the queue is deleted."""
        self._kept.pop(queue_id, None)

    def say(self, role: Role | None, record: MastershipRecord) -> None:
        """By this record, which is new, the node is not the master; ``role``: what it was until now."""
        epoch, words = self._kept.get(record.queue_id, (record.epoch, ()))
        if isinstance(role, MasterRole) and role.record.epoch < record.epoch:
            words = role.mirrored.take_leave()
        elif epoch < record.epoch:
            self.forget(record.queue_id)
        else:
            return
        for node, message in words:
            self._links.send(node, message)

    def check_invariants(self, failed: OutOfService) -> None:
        """``failed``: copies that are out of service."""
        assert all(queue_id in failed for queue_id in self._kept), "what is kept is of masters that may come back"
