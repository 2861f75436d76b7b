"""What this node is to one queue: its master, one of its mirrors, or nothing."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from node.ids import NodeName
from node.queues.local_replica import LocalReplica
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord


class MasterRole:
    """This node masters the queue: clients' operations end here."""

    __slots__ = ("local", "mirrored", "process", "queue", "record")

    def __init__(
        self,
        queue: QueueRecord,
        record: MastershipRecord,
        local: LocalReplica,
        mirrored: MirroredQueue,
        process: QueueProcess,
    ) -> None:
        self.queue = queue
        self.record = record
        self.local = local
        self.mirrored = mirrored
        self.process = process

    @property
    def is_end_known(self) -> bool:
        """The mirrors know how far messages were delivered."""
        return self.mirrored.is_end_known

    def link_changed(self, node: NodeName, *, is_up: bool) -> None:
        """The link to ``node`` came up, or went."""
        if is_up:
            self.mirrored.mirror_link_up(node)
        else:
            self.mirrored.mirror_link_down(node)

    def records_skipped(self, linked_nodes: Iterable[NodeName]) -> None:
        """The record may have changed, and changed back, unheard: a mirror may have been none for a while."""
        for node in linked_nodes:
            self.mirrored.mirror_link_up(node)

    def close_deliveries(self) -> None:
        """The role ends, the copy stays: note how far messages were delivered."""
        self.mirrored.close_deliveries()

    def check_invariants(self) -> None:
        self.mirrored.check_invariants()
        self.process.check_invariants()


class MirrorRole:
    """This node holds a mirror: it applies what the master streams."""

    __slots__ = ("local", "queue", "record", "replica")

    def __init__(
        self, queue: QueueRecord, record: MastershipRecord, local: LocalReplica, replica: MirrorReplica
    ) -> None:
        self.queue = queue
        self.record = record
        self.local = local
        self.replica = replica

    @property
    def is_end_known(self) -> bool:
        """This mirror knows how far its master delivered."""
        return self.replica.end is not None

    def link_changed(self, node: NodeName, *, is_up: bool) -> None:
        """The link to ``node`` came up, or went; the master speaks first."""
        if node == self.record.master and not is_up:
            self.replica.link_lost()

    def records_skipped(self, _linked_nodes: Iterable[NodeName]) -> None:
        """As of a master; this may have been no mirror."""
        self.replica.records_skipped()

    def close_deliveries(self) -> None:
        """As of a master."""
        self.replica.close_deliveries()

    def check_invariants(self) -> None:
        self.replica.check_invariants()


Role = MasterRole | MirrorRole
