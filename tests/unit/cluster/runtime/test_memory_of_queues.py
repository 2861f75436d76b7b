"""Queues that are deleted are freed at once, on every node: no cycle of references is left to the garbage collector.

Why that matters: see `tests.support.without_collector`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.queue_sets import N1, N2, QueueSetNetwork, mastership, queue_record
from tests.support.without_collector import alive, without_collector

#: What queues are made of.
PARTS = ("node.queues.", "node.store.index.", "node.store.queue_storage", "node.flow.", "cluster.mirroring.")
#: Ten minutes of housekeeping, for what is removed in steps.
MAINTAINED_MS = range(0, 600_000, 1_000)


@pytest.fixture
def no_collection() -> Iterator[None]:
    with without_collector():
        yield


def live_and_die(network: QueueSetNetwork, number: int, *, durable: bool, moves: bool) -> None:
    queue = queue_record(number, durable=durable)
    network.follow(queue, mastership(queue, N1, N2))
    network.pump()
    network[N1].publish(queue, 1, 3)
    network[N1].consume(queue)
    network.pump()
    if moves:
        network.follow(queue, mastership(queue, N2, N1, epoch=2))
        network.pump()
    for node in network.nodes.values():
        node.queues.queue_deleted(queue)
        for told in (node.effects, node.reports, node.ended, node.began):
            told.clear()
    network.pump()
    for now_ms in MAINTAINED_MS:
        for node in network.nodes.values():
            node.files.maintain(now_ms)
            node.sync()
            node.turn()


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.usefixtures("no_collection")
def test_a_queue_that_is_deleted_is_freed_at_once(durable: bool, moves: bool) -> None:
    network = QueueSetNetwork(N1, N2)
    live_and_die(network, 1, durable=durable, moves=moves)
    gc.collect()
    before = alive(*PARTS)
    live_and_die(network, 2, durable=durable, moves=moves)
    assert alive(*PARTS) - before == Counter()
