"""Nodes that decide on their links, and three of them that have founded a group."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from cluster.metadata.commands import AdmitNode
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.state import MetadataState
from cluster.raft.config import RaftConfig, founding_state
from cluster.raft.core import RaftCore
from cluster.raft.messages import Voter
from cluster.runtime.admission import Admission
from cluster.runtime.identity import IdentityFile
from node.ids import Incarnation, NodeName
from node.store.disk.simulated import SimulatedDisk

N1, N2, N3, N4, N5 = (NodeName(f"n{number}") for number in range(1, 6))
NAMES = (N1, N2, N3)


def carry_out(work: Coroutine[Any, Any, Any], _what: str) -> None:
    """To its end: nothing in it waits."""
    with suppress(StopIteration):
        work.send(None)


class Node:
    """The part of a node that decides on links, with a log that is durable at once."""

    def __init__(
        self,
        name: NodeName,
        disk: SimulatedDisk | None = None,
        members: tuple[NodeName, ...] = NAMES,
        told_to_join: str = "",
    ) -> None:
        self.name = name
        self.disk = disk or SimulatedDisk()
        self.disk.mkdir("/data")
        self.file = IdentityFile.open(self.disk, "/data", name, Random(str(id(self))))
        self.core = RaftCore(RaftConfig(name), founding_state([]), Random(1), now_ms=0)
        self.begun_again_after: list[Incarnation] = []
        self.let_in: list[AdmitNode] = []
        self.refusals: list[str] = []
        self.incarnation = Incarnation(1)
        self.now_ms = 0
        #: Of the log, with what the test puts into the records itself.
        self.applied_index = 0
        self.state = MetadataState()
        self.told_to_join = told_to_join
        self.gate = self.new_gate(members)
        self.gate.join(self)
        self.gate.start()

    def new_gate(self, members: tuple[NodeName, ...] = NAMES) -> Admission:
        return Admission(
            self.name,
            self.incarnation,
            members,
            self.file,
            f"{self.name}:1",
            self.state,
            NEWEST_PROTOCOL,
            now_ms=lambda: self.now_ms,
            told_to_join=self.told_to_join,
            on_refused=self.refusals.append,
            count_on_from=self.begun_again_after.append,
            begin_again=lambda: self.begun_again_after.append(self.incarnation),
            admit_node=self.admit_node,
            spawn=carry_out,
        )

    @property
    def identity(self) -> str:
        return self.file.current.identity

    def found(self, voters: Sequence[Voter]) -> None:
        self.core.found(0, voters)
        while self.core.has_work:
            self.core.appended(self.core.take_ready())
        self.applied_index = self.core.log.commit

    async def admit_node(self, command: AdmitNode) -> None:
        """It is committed, here, at once."""
        self.let_in.append(command)
        self.applied_index += 1
        self.state.admissions.admit(command, self.state.members.get(command.node))

    def hears(self, peer: Node) -> None:
        """One word of a handshake. Raises `HandshakeError`."""
        credentials = peer.gate.credentials(self.name)
        self.gate.heed(peer.name, credentials)
        self.gate.admit(peer.name, peer.incarnation, credentials)

    def meets(self, peer: Node) -> None:
        """The whole handshake, which the one whose name sorts first begins."""
        first, second = sorted((self, peer), key=lambda node: node.name)
        try:
            second.hears(first)
        finally:  # the answer, whatever it is
            first.gate.heed(second.name, second.gate.credentials(first.name))
        first.hears(second)
        first.gate.linked(second.name, second.identity)
        second.gate.linked(first.name, first.identity)

    def knows_log_of(self, other: Node) -> None:
        self.found(list(other.core.log.configuration))


def founded() -> tuple[Node, Node, Node]:
    n1, n2, n3 = (Node(name) for name in NAMES)
    n1.meets(n2)
    n1.meets(n3)
    for other in (n2, n3):
        other.knows_log_of(n1)
    return n1, n2, n3
