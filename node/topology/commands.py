"""Changes of the topology: vhosts, exchanges, queues, bindings.

A command is a frozen value with a name; `node.topology.topology.Topology.apply` carries it out, the same way on
every node. `Catalogue` is how a broker asks for a change and reads the result: a single node applies at once, a
cluster commits through consensus first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Arguments = Mapping[str, Any]
DestinationKind = Literal["queue", "exchange"]


@dataclass(frozen=True, slots=True)
class CreateVhost:
    """Create a vhost with its predeclared exchanges; existing: no change."""

    vhost: str


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Delete a vhost and all it holds.

    ``as_of_index``: index of the log that who asks for it had applied when it saw the vhost. One that was made after
    that index is not meant. 0: it is not said.
    """

    vhost: str
    as_of_index: int = 0


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    vhost: str
    name: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    vhost: str
    name: str
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Create a queue, or check that the existing one is equivalent."""

    vhost: str
    name: str
    durable: bool = False
    #: Identity of the declaring connection if the queue is exclusive, else ``None``.
    exclusive_owner: str | None = None
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Delete a queue and its bindings.

    Conditions (if unused, if empty) are checked by the master, which seals the queue until the fate of this command is
    known. Who checked is told by ``epoch``.
    """

    vhost: str
    name: str
    #: Delete only this life of the queue (``None``: whichever exists).
    queue_id: int | None = None
    #: Only while the mastership is in this epoch, in which the conditions were checked (``None``: there are none).
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class NoteConsumer:
    """This life of an auto-delete queue is about to have a consumer. Nothing if it is gone."""

    vhost: str
    name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Bind:
    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind
    routing_key: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unbind:
    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind
    routing_key: str
    arguments: Arguments = field(default_factory=dict)


TopologyCommand = (
    CreateVhost
    | DeleteVhost
    | DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | DeleteQueue
    | NoteConsumer
    | Bind
    | Unbind
)
