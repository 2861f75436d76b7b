"""What a committed command changed, for the runtime of each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.metadata.records import MastershipRecord, MemberRecord
from node.ids import NodeName, QueueId
from node.topology.records import QueueRecord

#: Why a mastership record changed.
#: ``promoted``: a synchronised mirror took over; ``promoted_lossy``: an unsynchronised one did;
#: ``master_down``: nobody can; ``master_returned``: a replica of a queue that was down came back;
#: ``master_restarted``: the same node, another process, a new epoch; ``moved``: on request or by policy;
#: ``mirrors``: only mirrors came, went or changed between synchronised and not.
ChangeReason = Literal[
    "promoted", "promoted_lossy", "master_down", "master_returned", "master_restarted", "moved", "mirrors"
]


@dataclass(frozen=True, slots=True)
class QueueCreated:
    queue: QueueRecord
    mastership: MastershipRecord


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """``mastership`` is the last record: who has data to remove."""

    queue: QueueRecord
    mastership: MastershipRecord


@dataclass(frozen=True, slots=True)
class MastershipChanged:
    queue_id: QueueId
    old: MastershipRecord
    new: MastershipRecord
    reason: ChangeReason


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Some policy of the vhost was set or cleared: settings of its queues and exchanges may differ now."""

    vhost: str


@dataclass(frozen=True, slots=True)
class MemberChanged:
    """``new`` is ``None`` for a node that was forgotten, ``old`` for one never seen before."""

    node: NodeName
    old: MemberRecord | None
    new: MemberRecord | None


@dataclass(frozen=True, slots=True)
class VhostCreated:
    vhost: str


@dataclass(frozen=True, slots=True)
class VhostDeleted:
    vhost: str


@dataclass(frozen=True, slots=True)
class UsersChanged:
    """Users, tags or permissions of ``user`` differ now."""

    user: str


Event = (
    QueueCreated
    | QueueDeleted
    | MastershipChanged
    | PolicyChanged
    | MemberChanged
    | VhostCreated
    | VhostDeleted
    | UsersChanged
)
