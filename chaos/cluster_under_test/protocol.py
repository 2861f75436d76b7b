"""What the laboratory needs from a cluster, and nothing else.

A scenario is an outsider: it knows AMQP endpoints, processes it can hurt, and the questions an operator may ask.
`chaos.cluster_under_test.local` answers with processes of this machine; other implementations (containers, a cluster of
another broker) answer the same questions, and every scenario runs on them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Long enough for three interpreters to start on a busy two-core machine and to elect a leader.
DEFAULT_READY_TIMEOUT_S = 60.0


class NodeEndedError(Exception):
    """A node ended while it was starting; the text shows the end of its log."""


class ClusterUnderTest(Protocol):
    """A cluster whose nodes can be reached, killed, paused and restarted by name.

    Every method that changes a node returns when the change has taken place: after `kill` the process is gone and
    reaped, after `restart` it exists (but may still be starting: see `wait_ready`).
    """

    @property
    def nodes(self) -> Sequence[str]:
        """Names of all nodes, running or not, in a fixed order."""
        ...

    async def start(self) -> None:
        """Start every node. Returns when the processes exist; `wait_ready` tells when they serve."""
        ...

    async def wait_ready(self, nodes: Sequence[str] | None = None, timeout_s: float = DEFAULT_READY_TIMEOUT_S) -> None:
        """Wait until these nodes (default: all running ones) accept AMQP connections and agree on a quorum.

        Raises `TimeoutError` with the node's name and the path of its log, `NodeEndedError` at once for one that ended.
        """
        ...

    async def kill(self, node: str) -> None:
        """SIGKILL: the node gets no chance to say or write anything."""
        ...

    async def pause(self, node: str) -> None:
        """SIGSTOP: the node stands still with its sockets open."""
        ...

    async def resume(self, node: str) -> None:
        """SIGCONT after `pause`."""
        ...

    async def stop(self, node: str) -> None:
        """Ask the node to shut down (SIGTERM) and wait for it."""
        ...

    async def restart(self, node: str) -> None:
        """Start a node that was killed or stopped again, on the data directory and the ports it had."""
        ...

    async def close(self) -> None:
        """Stop everything and leave no process behind. Safe to call twice, and after a failure half way through."""
        ...

    def kill_all(self) -> None:
        """SIGKILL every node at once, without waiting: for a way out that has no event loop any more."""
        ...

    def is_running(self, node: str) -> bool:
        """Whether the node's process exists (paused counts as running)."""
        ...

    def amqp_url(self, node: str) -> str:
        """``amqp://user:password@host:port/`` with the default vhost; the port survives a restart."""
        ...

    def admin_address(self, node: str) -> str:
        """``host:port`` of the admin service."""
        ...

    @property
    def cookie(self) -> str:
        """The shared secret that the admin service wants; empty when it wants none."""
        ...


class AdminUnavailable(Exception):
    """The node cannot be asked now, or refused: it may be down, paused or without a quorum."""


@dataclass(frozen=True, slots=True)
class QueueSample:
    """What one node said about one queue at one moment."""

    queue: str
    #: Node of the master; None while there is none.
    master: str | None
    #: Nodes of the mirrors, oldest first.
    mirrors: tuple[str, ...]
    #: Those of `mirrors` that hold everything the master holds, oldest first.
    synchronised: tuple[str, ...]
    messages_ready: int
    messages_unacked: int
    #: Those of `mirrors` that receive what is published now, synchronised or not.
    streaming: tuple[str, ...] = ()


class ClusterAdmin(Protocol):
    """An operator's questions to one node. A node that does not answer, or refuses, raises `AdminUnavailable`."""

    async def list_queues(self) -> list[QueueSample]:
        """Every queue of the default vhost, as this node sees it now."""
        ...

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, object]) -> None:
        """Set a policy on queues of the default vhost."""
        ...

    async def sync_queue(self, queue: str) -> None:
        """Fill the unsynchronised mirrors of a queue; returns when they are synchronised."""
        ...

    async def close(self) -> None:
        """Close the connection to the node."""
        ...
