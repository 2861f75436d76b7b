"""A master and a mirror joined by hand, without disks, sockets or a clock."""

from __future__ import annotations

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import MirrorMessage
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.progress import MirrorState
from node.ids import Epoch, NodeName, QueueId
from tests.support.memory_replica_queue import MemoryReplicaQueue

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
QUEUE = QueueId(7)


class Pair:
    """A master on n1 and a mirror on n2, with a link that the test pumps."""

    def __init__(self, synchronised: bool = True, settings: MirroringSettings | None = None) -> None:
        self.record = MastershipRecord(QUEUE, Epoch(1), N1, (N2,), (N2,) if synchronised else ())
        self.master_local, self.mirror_local = MemoryReplicaQueue(), MemoryReplicaQueue()
        self.master = MirroredQueue(N1, self.master_local, self.record, settings)
        self.mirror = MirrorReplica(QUEUE, self.mirror_local, Epoch(1))

    def up(self) -> Pair:
        self.master.mirror_link_up(N2)
        return self

    def to_mirror(self) -> list[MirrorMessage]:
        messages = [message for _, message in self.master.take_messages()]
        for message in messages:
            self.mirror.receive(N1, message)
        self.check()
        return messages

    def to_master(self) -> list[MirrorMessage]:
        messages = [message for _, message in self.mirror.take_messages()]
        for message in messages:
            self.master.receive(N2, message)
        self.check()
        return messages

    def exchange(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            self.to_mirror()
            self.to_master()

    def sync(self) -> None:
        self.master_local.sync()
        self.mirror_local.sync()

    def quiet(self) -> Pair:
        """Everything said, applied and durable."""
        for _ in range(3):
            self.exchange()
            self.sync()
        return self

    def state(self) -> MirrorState:
        return self.master.mirror_states()[N2]

    def check(self) -> None:
        self.master.check_invariants()
        self.mirror.check_invariants()
