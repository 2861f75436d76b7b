"""What a target is, in types. See the package's text for what it promises."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chaos.harm.lines import Line
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan

#: Long enough for five interpreters to start on a busy machine with two cores, and to elect a leader.
READY_TIMEOUT_S = 90.0


class TargetError(Exception):
    """The target did not do it, and never will in this run; the text says what to look at."""


class NotNow(Exception):
    """A node cannot be asked now: it is down, paused, cut off, or has no quorum. Another, or later, may do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients reach one node."""

    #: Number of the node, from 1.
    node: int
    #: ``amqp://user:password@host:port/``: the password is in no ``repr``.
    url: str

    def __repr__(self) -> str:
        return f"Endpoint(node={self.node})"


@dataclass(frozen=True, slots=True)
class QueueView:
    """What one node said of one queue at one moment."""

    queue: str
    #: Number of the master's node; None if there is none, or the broker does not tell.
    master: int | None
    #: Oldest first, those with everything among them.
    mirrors: tuple[int, ...] = ()
    synchronised: tuple[int, ...] = ()
    #: Messages; None while nobody can tell, as the master's node is asked, and does not answer.
    ready: int | None = None
    unacked: int | None = None
    #: How often the queue got another master, as the broker counts; None if it does not.
    epoch: int | None = None
    #: Names this life of its master: another one after each promotion, and each time that its node was begun anew.
    #: Empty if there is no master, or the broker does not tell.
    incarnation: str = ""
    #: It answers, though nobody tells who its master is.
    is_answered_for: bool = False

    @property
    def is_served(self) -> bool:
        """Somebody is its master."""
        return self.master is not None or self.is_answered_for


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node for the record of a run."""

    #: From 1.
    number: int
    name: str
    #: Where its log is, if it can be read here: the story of a message quotes it.
    log: str = ""


class Operator(Protocol):
    """An operator's questions and orders to one node. Each raises `NotNow`, or `TargetError` if it was refused."""

    async def queues(self) -> list[QueueView]:
        """Every queue of the default vhost, as this node sees it."""
        ...

    async def running(self) -> list[int]:
        """Numbers of the nodes that it takes for alive, itself among them."""
        ...

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None: ...

    async def clear_policy(self, name: str) -> None: ...

    async def sync(self, queue: str) -> None:
        """Begin to fill mirrors that lack something; does not wait for the end."""
        ...

    async def cancel_sync(self, queue: str) -> None: ...

    async def purge(self, queue: str) -> None: ...

    async def close(self) -> None: ...


class Lines(Protocol):
    """Proxies on the lines between nodes, and from clients, one for each direction (`chaos.harm.lines`).

    A node stands for its number from 1, clients for 0. Lines to a node that does not run refuse connections, as the
    system does for a process that is gone, whatever faults lie on them.
    """

    @property
    def lines(self) -> frozenset[Line]:
        """Those that have a proxy."""
        ...

    def addresses(self) -> Mapping[Line, str]:
        """``host:port`` on which each line's proxy listens."""
        ...

    async def lay(self, number: int, fault: str, on: Iterable[Line], told: Mapping[str, Any]) -> None:
        """Begin the fault ``number`` on lines, see `chaos.harm.lines.LineFaults.lay`. Raises `TargetError`."""
        ...

    async def lift(self, number: int, only: Line | None = None) -> None:
        """End it, or what it has laid on one line. Raises `TargetError`."""
        ...


class Guest(Protocol):
    """What a run makes has names of its own, and is removed behind it."""

    #: Of the policy that the run may set.
    policy: str

    def name(self, queue: str) -> str:
        """On the cluster, of one of the scenario's."""
        ...

    def claim(self, queues: Sequence[str]) -> None:
        """These will be made, by the names that they have on the cluster."""
        ...

    async def clear(self) -> None:
        """Remove them. Raises `TargetError` if something is left: `heal` may try again."""
        ...


class Target(Protocol):
    """One cluster."""

    #: Which kind: "local", "compose", "rabbitmq", ...
    kind: str

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do and tell, on this machine and now."""
        ...

    @property
    def missing(self) -> Mapping[Capability, str]:
        """The others, and for each the reason, for whoever wants to know why a scenario is skipped."""
        ...

    @property
    def nodes_max(self) -> int:
        """So many nodes can be had."""
        ...

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """All of them, running or not."""
        ...

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Of every node, through the proxies of clients if there are any."""
        ...

    def is_running(self, node: int) -> bool:
        """False if the target knows that it is down, or stands still."""
        ...

    async def start(self, plan: ClusterPlan, needs: Collection[Capability] = frozenset()) -> None:
        """Begin a cluster like that, or take the one that is there. Raises `TargetError` if it cannot be like that.

        ``needs``: what will be asked of it. What takes preparation, and is not free (proxies on lines, disks that can
        be full or slow), is there only if it is among these. The policy is not set: that is an order to an operator.
        """
        ...

    async def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until these nodes (else all that run) serve clients and see each other. Raises `TimeoutError`, saying which
        does not and where its log is; `TargetError` at once if one has ended."""
        ...

    async def kill(self, nodes: Sequence[int]) -> None:
        """SIGKILL to all of them at once: none lives long enough to see another one die."""
        ...

    async def stop(self, node: int) -> None:
        """An orderly stop; waits for its end."""
        ...

    async def start_node(self, node: int) -> None:
        """Begin one that was killed or stopped, on the data that it had."""
        ...

    async def pause(self, node: int) -> None: ...

    async def resume(self, node: int) -> None: ...

    async def hurt(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        """Another fault of nodes in `chaos.plan.actions`: "disconnect", "fill disk", "slow disk", "memory alarm".

        Raises `NotNow` if the node must run for it, and does not.
        """
        ...

    async def unhurt(self, name: str, node: int) -> None:
        """End that fault, also of a node that is down. Raises `NotNow` if it runs, and does not listen."""
        ...

    async def wipe(self, node: int) -> None:
        """Kill it, empty its disk, forget it, let it join as a new one: its process exists when this returns.

        Raises `TargetError` if the others do not let it go: then it is down, and its disk is empty.
        """
        ...

    def operator(self, node: int) -> Operator:
        """Of one node; opened when first asked, and closed with the target."""
        ...

    @property
    def lines(self) -> Lines | None:
        """The proxies, if there are any."""
        ...

    @property
    def guest(self) -> Guest | None:
        """How a run behaves on a cluster that others use; None if it is the run's own, and goes with it."""
        ...

    async def close(self) -> None:
        """Leave nothing behind."""
        ...
