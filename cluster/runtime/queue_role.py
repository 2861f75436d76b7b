"""What this node is to one queue: its master, one of its mirrors, or nothing."""

from __future__ import annotations

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
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


Role = MasterRole | MirrorRole
