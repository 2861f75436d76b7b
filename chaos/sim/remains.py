"""What a node still has in its memory of clients that are gone, when everything is healed, taken out and still.

Disks and descriptors are for `chaos.sim.leaks`. A channel that is closed, a consumer that is cancelled, a request that
is answered and a message that is settled must not be known to anybody any more: what one of them leaves behind in a
node that runs for months is a leak, and what a queue still holds for it is never delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.insides import broker_of
from cluster.composition import Node
from cluster.sessions.host import SessionHost
from cluster.sessions.routes import Route
from node.queues.queue_process import QueueProcess

#: By this channel a node asks for itself.
NOBODYS = frozenset({0})


def what_remains(cluster: SimulatedCluster) -> Iterator[str]:
    """All of it, in lines that begin with the node."""
    for name, node in cluster.nodes.items():
        for what, of_whom in _remains(node):
            yield f"{name}: {what} of {of_whom}"


def _remains(node: Node) -> Iterator[tuple[str, str]]:
    """What, and whose."""
    runtime = node.runtime
    entry = runtime.gateway._entry
    broker = broker_of(node)
    yield from _left("its clients", {} if broker is None else {"connections": broker.connections})
    of_channels: dict[str, Sized] = {
        "sinks": entry._sinks,
        "queues": [queue for queues in entry._used.values() for queue in queues],
        "early deliveries": entry._early,
        "credit towards links": [hop for hops in entry._credits._link_hops.values() for hop in hops],
    }
    yield from _left("its channels", of_channels)
    for queue_id, route in entry._routes.items():
        yield from _left(f"the route to queue {queue_id}", _of_route(route))
    yield from _of_sessions(runtime.sessions)
    for queue_id, process in runtime.queues._processes.items():
        yield from _left(f"queue {queue_id}", _of_process(process))
    deletions = runtime.deletions
    undecided: dict[str, Sized] = {
        "deletions": deletions._deciding,
        "notes": deletions._noting,
        "looks": deletions._watched,
    }
    yield from _left("auto-delete queues", undecided)


def _of_route(route: Route) -> dict[str, Sized]:
    return {
        "publishes without an answer": [seq for publishes in route.unconfirmed.values() for seq in publishes],
        "channels that have yet to send": route.first_unsent,
        "credit": route.hops,
        "users": route.used_by,
        "consumers": route.consumers,
        "consumers to be attached": route.attaching,
        "requests": route.calls,
        "channels of the session": route.local_channels - NOBODYS,
        "publishes that nobody waits for": route.untracked,
    }


def _of_sessions(host: SessionHost) -> Iterator[tuple[str, str]]:
    for node, sessions in host._sessions.items():
        for queue_id, session in sessions.items():
            of_whom = f"the session of {node} with queue {queue_id}"
            channels = session.channels - NOBODYS
            named = {"publishers": session.publishers, "channels": channels, "consumers": session.to_attach}
            yield from _left(of_whom, named)
            if session.has_sealed:
                yield "a deletion", of_whom
    yield from _left("nodes that were lost", {"sessions": [each for ended in host._ended.values() for each in ended]})


def _of_process(process: QueueProcess) -> dict[str, Sized]:
    return {
        "holdings": process._holdings.by_channel,
        "consumers": list(process._consumers),
        "unacknowledged messages": range(process.unacked),
        "publishes that are held back": range(process.held_back),
        "calls that wait": process._waiting,
        "credit": process.flow._owed,
        "grants": process.flow._due,
    }


def _left(of_whom: str, parts: Mapping[str, Sized]) -> Iterator[tuple[str, str]]:
    for what, part in parts.items():
        if len(part):
            yield f"{len(part)} {what}", of_whom
