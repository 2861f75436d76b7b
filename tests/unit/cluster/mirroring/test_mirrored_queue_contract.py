"""The mirrored queue keeps the contract of every backing queue: alone, and with two mirrors that answer at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from node.ids import Epoch, NodeName, QueueId
from node.queues.backing_queue import BackingQueue
from tests.support.backing_queue_contract import BackingQueueContract, MakeQueue
from tests.support.stores import StoreHarness

QUEUE = QueueId(7)
NODES = (NodeName("n1"), NodeName("n2"), NodeName("n3"))


def alone() -> tuple[BackingQueue, Callable[[], None]]:
    harness = StoreHarness()
    record = MastershipRecord(QUEUE, Epoch(1), NODES[0])
    return MirroredQueue(NODES[0], harness.open_queue(), record), harness.sync


def with_two_mirrors() -> tuple[BackingQueue, Callable[[], None]]:
    harnesses = [StoreHarness() for _ in NODES]
    record = MastershipRecord(QUEUE, Epoch(1), NODES[0], NODES[1:], NODES[1:])
    master = MirroredQueue(NODES[0], harnesses[0].open_queue(), record)
    mirrors = {
        node: MirrorReplica(QUEUE, harness.open_queue(), Epoch(1))
        for node, harness in zip(NODES[1:], harnesses[1:], strict=True)
    }

    def exchange() -> None:
        for _ in range(4):
            for node, message in master.take_messages():
                mirrors[node].receive(NODES[0], message)
            for node, mirror in mirrors.items():
                for _, answer in mirror.take_messages():
                    master.receive(node, answer)

    def settle_disk() -> None:
        exchange()
        for harness in harnesses:
            harness.sync()
        exchange()
        for mirror in mirrors.values():
            mirror.check_invariants()
            assert mirror.local.digests() == master.local.digests(), "a mirror that was heard out holds the same"

    for node in mirrors:
        master.mirror_link_up(node)
    settle_disk()
    return master, settle_disk


class TestAlone(BackingQueueContract):
    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        return alone


class TestWithTwoMirrors(BackingQueueContract):
    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        return with_two_mirrors
