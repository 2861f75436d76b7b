"""The parts of a running node that its own `check_invariants` does not reach, found from outside.

A node checks what it needs to work; a simulator has the time to look at everything, and may know where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cluster.composition import Node
from cluster.runtime.queue_role import MasterRole, Role
from cluster.sessions.routes import ConsumerKey, Route
from node.broker import Broker
from node.ids import QueueId
from node.queues.vhost_store import VhostStore


def vhost_stores(node: Node) -> Iterator[VhostStore]:
    """Storage of every vhost that the node has opened, and read."""
    return (store for store in node.runtime._files._vhosts.values() if store.is_open)


def consumed_in_secret(node: Node) -> Iterator[str]:
    """Auto-delete queues that had a consumer here, of which the cluster is being told, and has yet to decide to know.
    A node that ends by itself has given up telling, so all count of which it knows by itself."""
    runtime = node.runtime
    known = runtime.gateway._entry.consumed_queues() if runtime.background.is_stopping else runtime.deletions._noting
    for queue_id in known:
        queue = runtime.metadata.topology.queue_by_id(queue_id)
        if queue is not None and queue.auto_delete and queue.exclusive_owner is None and not queue.was_consumed:
            yield queue.name


def broker_of(node: Node) -> Broker | None:
    """``None`` while no clients are served."""
    server: Any = node.clients._server
    broker: Broker | None = None if server is None else server.broker
    return broker


def protocol_machines(node: Node) -> Iterator[Any]:
    """The AMQP machines of the node's connections and channels."""
    server: Any = node.clients._server
    for shell in [] if server is None else list(server._connections):
        machine = getattr(shell, "machine", None)
        if machine is not None and not shell._is_lost:
            yield machine
            yield from (channel.machine for channel in shell._channels.values())


def roles(node: Node, queue_id: QueueId) -> Role | None:
    """What the node is to the queue."""
    return node.runtime.queues.roles.get(queue_id)


def route_to(node: Node, queue_id: QueueId) -> Route | None:
    """What the node knows of a queue that its channels use."""
    return node.runtime.gateway._entry._routes.get(queue_id)


def served_consumers(master: MasterRole) -> set[ConsumerKey]:
    """Those that the master knows."""
    return {ConsumerKey(*key) for key in master.process._consumers._all}


def is_sealed(role: Role) -> bool:
    """A master that waits for the fate of a deletion, or for its end."""
    return isinstance(role, MasterRole) and role.process.is_closed


def contents(role: Role) -> list[tuple[int, bytes]]:
    """Position and envelope of every live message of this copy, in order."""
    local = role.local
    positions = [at for segment, _ in local.live_counts() for at in local.live_positions(segment)]
    return [(int(at), envelope) for at, envelope in local.read(positions)]


def check_deep_invariants(node: Node) -> None:
    """Of stores, broker and protocol machines. Costs more than the node's own. Raises `AssertionError`."""
    for store in vhost_stores(node):
        store._disk.check_invariants()
        for shared in store._stores:
            shared.check_invariants()
        store._deletions.check_invariants()
    broker = broker_of(node)
    if broker is not None:
        broker.check_invariants()
    for machine in protocol_machines(node):
        machine.check_invariants()
