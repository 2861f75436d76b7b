"""A scenario, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.plan.actions import Action, Capability
from chaos.plan.words import OF_A_QUEUE, Condition, Lines, Nodes

#: Seconds that a condition may take to come to pass.
DEFAULT_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What cluster is wanted."""

    nodes: int = 3
    #: Mirroring of the scenario's queues, with the keys of RabbitMQ's policies.
    policy: Mapping[str, Any] = field(default_factory=dict)
    #: Settings of the broker beyond the usual: passed to targets that know them, refused by others.
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """One queue, and who uses it."""

    name: str
    #: As in ``queue.declare``.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_durable: bool = True
    publishers: int = 1
    consumers: int = 2
    #: Number of the node on which it is declared, from 1.
    declared_at: int = 1

    @property
    def may_remove(self) -> bool:
        """True if the queue removes messages by itself."""
        removing = {"x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires"}
        drops = self.arguments.get("x-overflow", "drop-head") == "drop-head"
        limits = {"x-max-length", "x-max-length-bytes"}
        return any(name in self.arguments and (name not in limits or drops) for name in removing)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How clients use each queue."""

    #: Messages a second, each publisher. Below what the cluster can do: otherwise its own queueing is measured.
    rate: float = 500.0
    #: Publishes that wait for an answer, each publisher.
    window: int = 1000
    body_bytes: int = 256
    prefetch: int = 200
    #: Deliveries that one acknowledgement covers.
    acked_together: int = 16
    #: Of the deliveries, so many are given back once.
    requeued_share: float = 0.0
    is_mandatory: bool = False
    is_persistent: bool = True
    #: Seconds under load before the first round, and behind the last.
    warm_s: float = 3.0
    calm_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done."""

    action: Action
    nodes: Nodes | None = None
    lines: Lines | None = None
    queue: str | None = None
    when: Condition | None = None
    within_s: float = DEFAULT_WITHIN_S
    after_s: float = 0.0
    #: Seconds until a fault ends by itself.
    for_s: float | None = None
    #: By which ``heal`` knows a fault.
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def named_nodes(self) -> list[Nodes]:
        """All that it speaks of."""
        sides = [self.nodes] if self.lines is None else [self.lines.sources, self.lines.destinations]
        return [nodes for nodes in sides if nodes is not None]

    def needs(self) -> set[Capability]:
        """What a target must be able to do for it."""
        needed = set(self.action.needs)
        if any(nodes.role is not None for nodes in self.named_nodes()):
            needed.add(Capability.MASTER)
        if self.lines is not None:
            is_of_clients = self.lines.sources is None or self.lines.destinations is None
            needed.add(Capability.CLIENT_LINES if is_of_clients else Capability.NODE_LINES)
        if self.when is not None and self.when.quantity in OF_A_QUEUE:
            needed.add(Capability.MASTER)
        for drawn in self.arguments.get("faults", ()):
            needed |= drawn.needs()
        return needed


@dataclass(frozen=True, slots=True)
class Round:
    """Steps that are taken so many times."""

    steps: Sequence[Step]
    times: int = 1


@dataclass(frozen=True, slots=True)
class Expectation:
    """What makes a run of it a proof."""

    #: Why messages may be lost; empty if none may.
    loss_permitted: str = ""
    #: What must have been at risk at least, over the whole run, see `chaos.plan.reading.RISKS`.
    at_risk: Mapping[str, int] = field(default_factory=dict)
    #: No publish may wait longer, seconds, while a client wanted service; None: it is only measured.
    publish_gap_max_s: float | None = None
    consume_gap_max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A file, read and checked."""

    id: str
    title: str
    holds: str
    cluster: ClusterPlan
    queues: Sequence[QueuePlan]
    load: LoadPlan
    rounds: Sequence[Round]
    expectation: Expectation
    #: Where the idea comes from.
    anchor: str = ""
    tags: Sequence[str] = ()
    #: Needed beyond what the steps say.
    extra_needs: frozenset[Capability] = frozenset()

    @property
    def steps(self) -> list[Step]:
        """Of all rounds, each once."""
        return [step for each in self.rounds for step in each.steps]

    def needs(self) -> set[Capability]:
        """What a target must be able to do."""
        needed = set(self.extra_needs)
        for step in self.steps:
            needed |= step.needs()
        if self.cluster.policy:
            needed.add(Capability.POLICY)
        if any("x-message-ttl" in queue.arguments for queue in self.queues):
            needed.add(Capability.EXPIRY)
        return needed

    def lacks(self, able: frozenset[Capability], nodes: int, why: Mapping[Capability, str] | None = None) -> str:
        """Why a target that is able to do that, of at most so many nodes, cannot run it; empty if it can.

        ``why``: what the target says of what it cannot do.
        """
        missing = sorted(self.needs() - able)
        explained = {name: why[name] for name in missing if why and name in why}
        unexplained = [name for name in missing if name not in explained]
        reasons = [f"{name}: {reason}" for name, reason in explained.items()]
        if unexplained:
            reasons.append(f"the target cannot do: {', '.join(unexplained)}")
        if nodes < self.cluster.nodes:
            reasons.append(f"it needs {self.cluster.nodes} nodes, and there are {nodes}")
        return "; ".join(reasons)
