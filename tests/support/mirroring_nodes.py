"""The nodes of `tests.support.mirroring_world`, and what their metadata group has committed about the one queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cluster.metadata.commands import Command
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.early import EarlyMessages
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from node.ids import Incarnation, NodeName
from tests.support.memory_replica_queue import MemoryReplicaQueue
from tests.support.metadata_state import StateUnderTest

FIRST_LIFE = Incarnation(1)


@dataclass
class Node:
    name: NodeName
    local: MemoryReplicaQueue
    role: MirroredQueue | MirrorReplica | None = None
    is_running: bool = True
    #: Its process has started, and waits for its `NodeUp`.
    is_starting: bool = False
    incarnation: Incarnation = FIRST_LIFE
    #: Commits it has learned.
    learned: int = 0
    early: EarlyMessages = field(default_factory=EarlyMessages)


class Metadata:
    """The record of the queue after each commit of the real state machine."""

    def __init__(self, nodes: tuple[NodeName, ...], policy: dict[str, Any]) -> None:
        self.cluster = StateUnderTest(*nodes)
        self.cluster.policy(policy)
        first = self.cluster.declare()
        self.queue_id = first.queue_id
        #: With the index of the log up to which it holds.
        self.log: list[tuple[MastershipRecord, int]] = [(first, self.cluster.index)]

    @property
    def record(self) -> MastershipRecord:
        return self.log[-1][0]

    def is_up(self, node: NodeName) -> bool:
        return self.cluster.state.members[node].is_up

    def node_down(self, node: NodeName) -> None:
        self.cluster.down(node, self.cluster.state.members[node].incarnation)
        self._note()

    def node_up(self, node: NodeName, incarnation: Incarnation) -> None:
        self.cluster.up(node, incarnation)
        self._note()

    def propose(self, proposer: NodeName, incarnation: Incarnation, command: Command) -> None:
        """Carried out unless the proposer lives another life meanwhile."""
        if self.cluster.state.members[proposer].incarnation == incarnation:
            self.cluster.apply(command)
            self._note()

    def _note(self) -> None:
        self.log.append((self.cluster.state.masterships[self.queue_id], self.cluster.index))
