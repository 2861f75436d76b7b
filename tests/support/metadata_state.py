"""A `MetadataState` with short names for what tests do to it; checks the invariants after each step."""

from __future__ import annotations

from typing import Any

from cluster.metadata.commands import (
    ChangeTopology,
    Command,
    MirrorFollows,
    MirrorSynchronised,
    NodeDown,
    NodeUp,
    RaiseProtocol,
    Request,
    RequestId,
    SetPolicy,
    TakeService,
)
from cluster.metadata.events import Applied, MastershipChanged
from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.metadata.mastership import is_settled
from cluster.metadata.records import MastershipRecord, PolicyRecord
from cluster.metadata.state import MetadataState
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.topology.commands import CreateVhost, DeclareQueue

PROPOSER = NodeName("proposer")


class StateUnderTest:
    """The state after a log of commands, one index each.

    The nodes of ``up`` make a cluster of ``protocol``.
    """

    def __init__(self, *up: str, protocol: int = NEWEST_PROTOCOL) -> None:
        self.state = MetadataState()
        self.index = 0
        self.log: list[tuple[int, Request]] = []
        self.last = Applied()
        self.apply(ChangeTopology(CreateVhost("/"), NodeName("n1")))
        for node in up:
            self.up(node)
        if up and protocol > FIRST_PROTOCOL:
            self.raise_protocol()

    def apply(self, command: Command) -> Applied:
        self.index += 1
        request = Request(RequestId(PROPOSER, Incarnation(1), self.index), command)
        self.log.append((self.index, request))
        epochs = {queue_id: record.epoch for queue_id, record in self.state.masterships.items()}
        self.last = self.state.apply(self.index, request)
        self.state.check_invariants()
        for queue_id, record in self.state.masterships.items():
            assert record.epoch >= epochs.get(queue_id, 1), "epochs never fall"
        return self.last

    def up(self, node: str, incarnation: int = 1) -> Applied:
        return self.apply(NodeUp(NodeName(node), Incarnation(incarnation), f"{node}:1", f"{node}:2", NEWEST_PROTOCOL))

    def raise_protocol(self) -> Applied:
        """To what this release speaks; all members have to be up."""
        members = sorted((name, member.incarnation) for name, member in self.state.members.items())
        applied = self.apply(RaiseProtocol(NEWEST_PROTOCOL, tuple(members)))
        assert applied.error is None, applied.error
        return applied

    def down(self, node: str, incarnation: int = 1, reason: Any = "failure") -> Applied:
        return self.apply(NodeDown(NodeName(node), Incarnation(incarnation), reason))

    def serve(self, *nodes: str) -> Applied:
        """The masters on ``nodes`` (all, if none is named) take service where they have to."""
        waiting: dict[NodeName, list[tuple[QueueId, Epoch]]] = {}
        for queue_id, record in sorted(self.state.masterships.items()):
            if not record.is_down and not is_settled(record) and record.master in (nodes or (record.master,)):
                waiting.setdefault(record.master, []).append((queue_id, record.epoch))
        for node, queues in waiting.items():
            self.apply(TakeService(node, tuple(queues)))
        return self.last

    def policy(self, definition: dict[str, Any], name: str = "ha", pattern: str = "^", priority: int = 0) -> Applied:
        return self.apply(SetPolicy(PolicyRecord("/", name, pattern, definition, priority, "all")))

    def declare(self, name: str = "q", origin: str = "n1", **options: Any) -> MastershipRecord:
        options.setdefault("durable", True)
        applied = self.apply(ChangeTopology(DeclareQueue("/", name, **options), NodeName(origin)))
        assert applied.error is None, applied.error
        return self.record(name)

    def record(self, name: str = "q") -> MastershipRecord:
        queue = self.state.topology.queue("/", name)
        assert queue is not None, f"queue {name} exists"
        return self.state.masterships[queue.queue_id]

    def exists(self, name: str = "q") -> bool:
        return self.state.topology.queue("/", name) is not None

    def force(self, record: MastershipRecord) -> None:
        """Put a record in place that would take many steps to reach."""
        self.state._put_record(record)
        self.state.check_invariants()


N1, N2, N3, N4 = (NodeName(f"n{number}") for number in range(1, 5))
ALL = {"ha-mode": "all"}


def reasons(cluster: StateUnderTest) -> list[str]:
    """Reasons of the mastership changes of the last command."""
    return [event.reason for event in cluster.last.events if isinstance(event, MastershipChanged)]


def synchronised(cluster: StateUnderTest, node: NodeName, name: str = "q") -> None:
    record = cluster.record(name)
    cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, node, cluster.index))


def follows(cluster: StateUnderTest, *nodes: NodeName, name: str = "q") -> None:
    for node in nodes:
        record = cluster.record(name)
        cluster.apply(MirrorFollows(record.queue_id, record.epoch, node, cluster.index))


def mirrored(policy: dict[str, Any] | None = None, *up: str, **options: Any) -> StateUnderTest:
    """Master n1 of a new queue on three nodes; by default the others are its mirrors."""
    cluster = StateUnderTest(*(up or ("n1", "n2", "n3")))
    cluster.policy(policy or ALL)
    cluster.declare(**options)
    return cluster


def unsynchronised(**policy: str) -> StateUnderTest:
    """Master n1, mirrors n2 and n3 that follow it, and lack what was there before the policy."""
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy({**ALL, **policy})
    follows(cluster, N2, N3)
    assert show(cluster.record()) == "n1 | n2+ n3+ | epoch 1"
    return cluster


def show(record: MastershipRecord) -> str:
    """``n1 | n2* n3+ n4 | epoch 1``: master, mirrors (``*`` synchronised, ``+`` only following), epoch, and what else
    is remarkable: nobody serves, or the master is only elected; who is complete besides it and the synchronised."""
    marks = {node: "+" for node in record.following} | {node: "*" for node in record.synchronised}
    mirrors = " ".join(f"{node}{marks.get(node, '')}" for node in record.mirrors)
    parts = [str(record.master), mirrors or "-", f"epoch {record.epoch}"]
    if record.is_down:
        parts.append("down")
    elif not record.in_service:
        parts.append("elected")
    if set(record.complete) != {record.master, *record.synchronised}:
        parts.append("complete " + (" ".join(record.complete) or "nobody"))
    if record.lossy_promotions:
        parts.append(f"lossy {record.lossy_promotions}")
    return " | ".join(parts)
