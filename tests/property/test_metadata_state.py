"""Random histories of the metadata state machine: invariants, determinism, and that no complete copy is thrown away.

The last is checked against a model that follows what each node really holds. A mirrored queue's master confirms one
message after each command (all replicas in the record get it); a node's copy is *complete* while it has every
message confirmed so far. Then: a synchronised mirror and a master must always be complete, unless the record says that
a lossy promotion happened.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.metadata.commands import (
    AddMirror,
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    MirrorSynchronised,
    MirrorUnsynchronised,
    MoveMaster,
    Request,
)
from cluster.metadata.state import MetadataState
from node.ids import Epoch, NodeName, QueueId
from node.topology.commands import DeclareQueue, DeleteQueue
from tests.support.metadata_state import StateUnderTest

NODES = ["n1", "n2", "n3", "n4"]
DEFINITIONS: list[dict[str, Any]] = [
    {"ha-mode": "all"},
    {"ha-mode": "all", "ha-promote-on-failure": "when-synced"},
    {"ha-mode": "exactly", "ha-params": 2},
    {"ha-mode": "exactly", "ha-params": 3, "ha-promote-on-shutdown": "always"},
    {"ha-mode": "nodes", "ha-params": ["n2", "n3"]},
    {"max-length": 3},
]


class Copies:
    """What the nodes really hold of each queue: per node the number of the last message it lacks nothing below."""

    def __init__(self) -> None:
        self.confirmed: dict[QueueId, int] = {}
        self.held: dict[tuple[QueueId, NodeName], int] = {}

    def sync(self, queue_id: QueueId, node: NodeName) -> None:
        self.held[queue_id, node] = self.confirmed.get(queue_id, 0)

    def is_complete(self, queue_id: QueueId, node: NodeName) -> bool:
        return self.held.get((queue_id, node), 0) >= self.confirmed.get(queue_id, 0)

    def confirm_one_each(self, state: MetadataState) -> None:
        for queue_id, record in state.masterships.items():
            if record.is_down:
                continue
            complete = [node for node in (record.master, *record.mirrors) if self.is_complete(queue_id, node)]
            self.confirmed[queue_id] = self.confirmed.get(queue_id, 0) + 1
            for node in complete:
                self.sync(queue_id, node)

    def check(self, state: MetadataState) -> None:
        for queue_id, record in state.masterships.items():
            if record.lossy_promotions:
                continue
            for node in (record.master, *record.synchronised, *record.recoverable):
                assert self.is_complete(queue_id, node), f"{node} lacks something of {record}"


def _report(cluster: StateUnderTest, copies: Copies, rng: Random) -> None:
    """A master says something about one of its mirrors; sometimes about an epoch that is over."""
    records = [record for record in cluster.state.masterships.values() if not record.is_down]
    if not records:
        return
    record = rng.choice(records)
    epoch = Epoch(record.epoch - (rng.random() < 0.1))
    node = NodeName(rng.choice(NODES))
    match rng.randrange(6):
        case 0 | 1:
            if node in record.mirrors:
                copies.sync(record.queue_id, node)
            else:
                node = (
                    record.mirrors[0]
                    if record.mirrors and copies.is_complete(record.queue_id, record.mirrors[0])
                    else node
                )
            cluster.apply(MirrorSynchronised(record.queue_id, epoch, node, cluster.index))
        case 2:
            cluster.apply(MirrorUnsynchronised(record.queue_id, epoch, node))
        case 3:
            cluster.apply(DropMirror(record.queue_id, epoch, node))
        case 4:
            cluster.apply(AddMirror(record.queue_id, epoch, node))
        case _:
            cluster.apply(MoveMaster(record.queue_id, epoch, node))


def _member_step(cluster: StateUnderTest, rng: Random) -> None:
    node = NodeName(rng.choice(NODES))
    member = cluster.state.members.get(node)
    if member is None:
        cluster.up(node)
    elif not member.is_up:
        cluster.up(node, member.incarnation + rng.randrange(2))
    elif rng.random() < 0.2:
        cluster.up(node, member.incarnation + 1)
    else:
        cluster.down(node, member.incarnation, rng.choice(["failure", "failure", "shutdown"]))


def _step(cluster: StateUnderTest, copies: Copies, rng: Random) -> None:
    origin = NodeName(rng.choice(NODES))
    name = rng.choice("abcdef")
    match rng.randrange(10):
        case 0 | 1:
            is_durable, owner = rng.choice([(True, None), (False, None), (False, f"{origin}/1")])
            cluster.apply(ChangeTopology(DeclareQueue("/", name, is_durable, owner), origin))
        case 2:
            cluster.apply(ChangeTopology(DeleteQueue("/", name), origin))
        case 3:
            cluster.policy(
                rng.choice(DEFINITIONS), rng.choice(["p", "q"]), rng.choice(["^", "[abc]"]), rng.randrange(2)
            )
        case 4 if rng.random() < 0.3:
            cluster.apply(ClearPolicy("/", rng.choice(["p", "q"])))
        case 5 | 6 | 7:
            _report(cluster, copies, rng)
        case _:
            _member_step(cluster, rng)


def _history(seed: int, steps: int) -> StateUnderTest:
    rng = Random(seed)
    cluster = StateUnderTest(*NODES[:3])
    copies = Copies()
    for _ in range(steps):
        _step(cluster, copies, rng)
        copies.check(cluster.state)
        copies.confirm_one_each(cluster.state)
    return cluster


@pytest.mark.parametrize("seed", range(40))
def test_no_history_breaks_an_invariant_or_promotes_over_a_better_copy(seed: int) -> None:
    _history(seed, steps=150)


def _replay(log: list[tuple[int, Request]], restore_at: int | None = None) -> bytes:
    state = MetadataState()
    for index, request in log:
        state.apply(index, request)
        if index == restore_at:
            data, state = state.snapshot(), MetadataState()
            state.restore(data)
    return state.snapshot()


@pytest.mark.parametrize("seed", range(10))
def test_the_same_log_gives_the_same_bytes_with_or_without_a_snapshot_on_the_way(seed: int) -> None:
    cluster = _history(seed, steps=120)
    expected = cluster.state.snapshot()
    assert _replay(cluster.log) == expected
    for restore_at in (20, 60, cluster.index):
        assert _replay(cluster.log, restore_at) == expected
