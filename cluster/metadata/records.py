"""What the cluster agrees on besides the topology: members, policies, and who masters which queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.ids import Epoch, Incarnation, NodeName, QueueId


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One node of the cluster."""

    node: NodeName
    #: ``host:port`` of its gRPC listener.
    cluster_address: str
    #: ``host:port`` where clients connect.
    amqp_address: str
    #: 0 until the node has started once.
    incarnation: Incarnation
    #: True between `NodeUp` and `NodeDown`.
    is_up: bool


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy as `set_policy` gave it; ``definition`` is validated before it is committed."""

    vhost: str
    name: str
    pattern: str
    definition: Mapping[str, Any]
    priority: int
    #: ``queues``, ``exchanges`` or ``all``.
    apply_to: str


@dataclass(frozen=True, slots=True)
class MastershipRecord:
    """Who holds a queue. Changed only by the metadata state machine, so the same on every node."""

    queue_id: QueueId
    epoch: Epoch
    #: Node of the master. It may be down: then the queue is down until that node, or a recoverable one, returns.
    master: NodeName
    #: Nodes of the mirrors, oldest first; all of them up, as far as the cluster knows. Never contains the master.
    mirrors: tuple[NodeName, ...] = ()
    #: Those mirrors that hold everything confirmed. Subset of ``mirrors``, same order.
    synchronised: tuple[NodeName, ...] = ()
    #: Down nodes whose copy holds everything that was ever confirmed in this queue and is unsettled.
    recoverable: tuple[NodeName, ...] = ()
    #: True while no live node may act as master.
    is_down: bool = False
    #: Number of promotions of an unsynchronised mirror in the life of the queue (each may have lost messages).
    lossy_promotions: int = 0
