"""A master and a mirror on simulated disks joined by hand, without sockets or a clock.

A harness: both are real, and their messages move when the test says so. Who is master or dead, and what a failover
brings, is seen in the simulator (`chaos.sim`).
"""

from __future__ import annotations

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import MirrorMessage
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.progress import MirrorState
from node.ids import Epoch, NodeName, QueueId
from tests.support.messages import publications
from tests.support.stores import StoreHarness

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
QUEUE = QueueId(7)


class Pair:
    """A master on n1 and a mirror on n2, with a link that the test pumps."""

    def __init__(self, synchronised: bool = True, settings: MirroringSettings | None = None) -> None:
        self.record = MastershipRecord(QUEUE, Epoch(1), N1, (N2,), (N2,) if synchronised else ())
        self.master_disk, self.mirror_disk = StoreHarness(), StoreHarness()
        self.master_local, self.mirror_local = self.master_disk.open_queue(), self.mirror_disk.open_queue()
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
        self.master_disk.sync()
        self.mirror_disk.sync()

    def quiet(self) -> Pair:
        """Everything said, applied and durable."""
        for _ in range(3):
            self.exchange()
            self.sync()
        return self

    def fill_mirror_disk(self, counter: int) -> None:
        """The mirror finds no space for the ``counter``-th message, which it has acknowledged as applied."""
        self.mirror_disk.disk.full_for = self.mirror_disk.queue_directory
        self.master.publish(publications(counter, 1))
        self.to_mirror()
        self.to_master()
        self.mirror_disk.store.flush_writes()
        assert self.mirror_local.is_disk_full

    def free_mirror_disk(self) -> None:
        self.mirror_disk.disk.full_for = None
        self.mirror_disk.store.maintain(0)
        self.mirror_disk.store.flush_writes()
        assert not self.mirror_local.is_disk_full

    def state(self) -> MirrorState:
        return self.master.mirror_states()[N2]

    def check(self) -> None:
        self.master.check_invariants()
        self.mirror.check_invariants()
