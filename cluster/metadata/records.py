"""What the cluster agrees on besides the topology: members, policies, and who masters which queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.topology.records import QueueRecord


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
class AdmittedRecord:
    """A node that was let in after the cluster was founded, with one data directory."""

    node: NodeName
    identity: str
    cluster_address: str
    #: Its starts are counted from here, above those of whoever had the name before.
    after_incarnation: Incarnation


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
    """Who holds a queue. Changed only by the metadata state machine, so the same on every node.

    What the fields promise, and who may change them: `cluster.metadata.mastership`.
    """

    queue_id: QueueId
    epoch: Epoch
    #: Node of the master. While ``is_down`` nobody serves the queue, and this is a complete copy that is waited for.
    master: NodeName
    #: Nodes of the mirrors, oldest first; all of them up, as far as the cluster knows. Never contains the master.
    mirrors: tuple[NodeName, ...] = ()
    #: Those mirrors that hold everything confirmed, transient messages too. Subset of ``mirrors``, same order.
    synchronised: tuple[NodeName, ...] = ()
    #: Nodes, up or down, whose copy holds everything confirmed and unsettled that survives a restart. A master confirms
    #: nothing that one of them lacks. (In records of the first version of the rules: only of queues that are down.)
    complete: tuple[NodeName, ...] = ()
    #: True while no live node may act as master.
    is_down: bool = False
    #: How often in the life of the queue a copy that was not complete took service (each may have lost messages).
    lossy_promotions: int = 0
    #: Those mirrors that hear of every operation of the master that is, or was last, in service. Subset of ``mirrors``,
    #: same order.
    following: tuple[NodeName, ...] = ()
    #: True once the master has said in this epoch that it serves: before that it touches no other copy, and confirms
    #: and delivers nothing.
    in_service: bool = True
    #: Last epoch before this one (while ``is_down``: or this one) in which a master was in service, 0 if there was
    #: none: nobody can have delivered anything since. ``None`` in records of older releases: it is not known.
    served_epoch: Epoch | None = None


def is_owned_by_connection_of(queue: QueueRecord, node: NodeName) -> bool:
    """By convention the ``exclusive_owner`` of a queue is the name of the node that holds the connection, a slash, and
    whatever identifies the connection there. When the node dies its connections are dead, and these queues go."""
    return queue.exclusive_owner is not None and queue.exclusive_owner.startswith(f"{node}/")


def sorted_values(table: Mapping[Any, Any]) -> list[Any]:
    """Of a table, by its keys: the same on every node, however it came to be filled."""
    return [value for _, value in sorted(table.items())]
