"""Masters here whose copy went out of service, as long as they may go on in the same epoch.

A copy that was out of service for want of room is opened again under the same record
(`cluster.runtime.out_of_service`). To the cluster that is the same mastership: what was agreed on in it, said to
mirrors and reported of them, holds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cluster.metadata.records import MastershipRecord
from cluster.runtime.queue_role import MasterRole, Role
from node.ids import Epoch, NodeName, QueueId


class EndedMastership(NamedTuple):
    """What is to be known of one."""

    epoch: Epoch
    #: A deletion was being decided on, under this epoch.
    was_sealed: bool
    #: Mirrors that lacked nothing, as far as the cluster knows, or is about to.
    required_mirrors: Collection[NodeName]


class EndedMasterships:
    """Of one node."""

    def __init__(self) -> None:
        self._ended: dict[QueueId, EndedMastership] = {}

    def keep(self, role: Role) -> None:
        """The copy of this role goes out of service."""
        if isinstance(role, MasterRole):
            record = role.record
            required = role.mirrored.required_mirrors
            self._ended[record.queue_id] = EndedMastership(record.epoch, role.process.is_sealed, required)

    def required_mirrors(self, record: MastershipRecord) -> Collection[NodeName] | None:
        """Of the mastership that goes on under this record; ``None``: this node begins it."""
        ended = self._ended.get(record.queue_id)
        return ended.required_mirrors if ended is not None and ended.epoch == record.epoch else None

    def take_seal(self, record: MastershipRecord) -> bool:
        """The mastership of this record has begun, or goes on, and is noted no more. True if it was sealed."""
        ended = self._ended.pop(record.queue_id, None)
        return ended is not None and ended.was_sealed and ended.epoch == record.epoch

    def forget(self, queue_id: QueueId) -> None:
        """The queue is deleted."""
        self._ended.pop(queue_id, None)
