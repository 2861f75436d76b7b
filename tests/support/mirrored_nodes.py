"""Parts of the world of mirroring: nodes with a copy of one queue on a simulated disk, and what they have agreed on."""

from __future__ import annotations

from random import Random
from typing import Any

from cluster.metadata.commands import Command
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.early import EarlyMessages
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from node.ids import Incarnation, MsgId, NodeName
from node.store.disk.simulated import CrashStyle
from node.store.shared.config import StoreConfig
from tests.support.metadata_state import StateUnderTest
from tests.support.stores import StoreHarness

#: Small segments, so that a queue of some dozen messages has several files.
STORE = StoreConfig(v2_segment_entries=16)


class Node:
    """Its copy of the queue, its role, and what it knows."""

    def __init__(self, name: NodeName) -> None:
        self.name = name
        self._disk = StoreHarness(STORE)
        self.local = self._disk.open_queue()
        #: What the last sync or recovery left on the disk (and may have been settled since).
        self.on_disk: set[MsgId] = set()
        self.role: MirroredQueue | MirrorReplica | None = None
        self.is_running = True
        #: Its process has started, and waits for its `NodeUp`.
        self.is_starting = False
        self.incarnation = Incarnation(1)
        #: Commits it has learned.
        self.learned = 0
        self.early = EarlyMessages()

    @property
    def live_ids(self) -> list[MsgId]:
        """Of everything ready and unacked, in no particular order."""
        content = self.local.engine.content
        return [entry.msg_id for entry in (*content.stages.entries(), *content.unacked.messages.values())]

    def write(self) -> None:
        """The end of a turn: what it collected goes to the files, and no further."""
        self._disk.store.flush_writes()

    def sync(self, transient: set[MsgId]) -> None:
        """One round of the group commit. ``transient``: messages that are not meant to be on disk."""
        self._disk.sync()
        self.on_disk = set(self.live_ids) - transient

    def close_copy(self) -> None:
        """It has no role any more: what it has stays on its disk."""
        if self.role is not None:
            self.role.close_deliveries()
        self.role = None
        self.local = self._disk.restart()
        self.on_disk = set(self.live_ids)

    def stop(self) -> None:
        """In an orderly way."""
        self.close_copy()
        self.is_running = False

    def crash(self, chance: Random) -> None:
        """The process dies; what was not synced may or may not be on the disk, or a part of it."""
        self.is_running = False
        self.role = None
        self.local = self._disk.crash(chance.choice(list(CrashStyle)), chance.getrandbits(32))
        self.on_disk = set(self.live_ids)


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
