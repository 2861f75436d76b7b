"""What a committed command changed, for the runtime of each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cluster.metadata.records import MastershipRecord, MemberRecord
from node.errors import WarrenError
from node.ids import NodeName, QueueId
from node.topology.records import QueueRecord

#: Why a mastership record changed.
#: ``elected``: another node is to take over; ``in_service``: the master has; ``in_service_lossy``: it has, and its copy
#: was not complete; ``master_down``: nobody can; ``master_returned``: a complete copy of a queue that was down came
#: back; ``master_restarted``: the same node, another process, a new epoch; ``moved``: on request or by policy;
#: ``forced``: an operator gave up waiting; ``mirrors``: only mirrors came, went, caught up or fell behind.
ChangeReason = Literal[
    "elected",
    "in_service",
    "in_service_lossy",
    "master_down",
    "master_returned",
    "master_restarted",
    "moved",
    "forced",
    "mirrors",
]


@dataclass(frozen=True, slots=True)
class QueueCreated:
    queue: QueueRecord
    mastership: MastershipRecord


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class MastershipChanged:
    queue_id: QueueId
    old: MastershipRecord
    new: MastershipRecord
    reason: ChangeReason
    #: Mirrors whose copy the policy no longer wants: they delete it.
    discarded: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Some policy of the vhost was set or cleared: settings of its queues and exchanges may differ now."""

    vhost: str


@dataclass(frozen=True, slots=True)
class MemberChanged:
    """``new`` is ``None`` for a node that was forgotten."""

    node: NodeName
    new: MemberRecord | None
    #: It went down, and had said so before.
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class AccessEnded:
    """A user or a vhost was deleted: whoever is connected as that user, or to that vhost, is so no longer rightly."""


Event = QueueCreated | QueueDeleted | MastershipChanged | PolicyChanged | MemberChanged | AccessEnded


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of one request, the same on every node. Of one that had been applied before it is that nobody knows."""

    #: What the command returns: for a change of the topology what `Topology.apply` returns, else ``None``.
    result: Any = None
    #: Set if the change was refused: `AmqpError`, `RefusedChangeError`, `PolicyError`, `ConfigError` (bad permissions);
    #: or if what became of it is known no longer: `OutcomeUnknownError`.
    error: WarrenError | None = None
    events: tuple[Event, ...] = ()
