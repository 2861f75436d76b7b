"""Random histories of the metadata state machine: invariants, determinism, and that no complete copy is thrown away.

The last is checked against a model that follows what each node really holds. The master in service of a mirrored queue
confirms one message after each command, if it may (`is_settled`); every copy that lacks nothing gets it. Then: whoever
the record calls complete lacks nothing, however stale the news of life and death; only a master that takes service with
a copy that is not complete, which is counted, ends what the others had.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, get_args

import pytest

from cluster.metadata.commands import (
    AddMirror,
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    ForcePromote,
    ForgetNode,
    MirrorFollows,
    MirrorSynchronised,
    MoveMaster,
    Request,
)
from cluster.metadata.events import ChangeReason, MastershipChanged, MemberChanged
from cluster.metadata.mastership import is_settled
from cluster.metadata.state import MetadataState
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.topology.commands import DeclareQueue, DeleteQueue
from tests.support.amounts import few_fast
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

    def __init__(self, state: MetadataState) -> None:
        self.confirmed: dict[QueueId, int] = {}
        self.held: dict[tuple[QueueId, NodeName], int] = {}
        self.losses: dict[QueueId, int] = {}
        self.incarnations: dict[NodeName, Incarnation] = {
            node: member.incarnation for node, member in state.members.items()
        }
        #: How often each case was met: the histories must exercise them.
        self.met: Counter[str] = Counter()

    def sync(self, queue_id: QueueId, node: NodeName) -> None:
        self.held[queue_id, node] = self.confirmed.get(queue_id, 0)

    def is_complete(self, queue_id: QueueId, node: NodeName) -> bool:
        return self.held.get((queue_id, node), 0) >= self.confirmed.get(queue_id, 0)

    def follow(self, cluster: StateUnderTest) -> None:
        """What the last command did to the copies themselves."""
        for event in cluster.last.events:
            if isinstance(event, MastershipChanged):
                self.met[event.reason] += 1
                for node in event.discarded:
                    self.met["discarded"] += 1
                    self.held[event.queue_id, node] = -1
            elif isinstance(event, MemberChanged):
                self._member_changed(cluster.state, event)
        for queue_id, record in cluster.state.masterships.items():
            if record.lossy_promotions > self.losses.get(queue_id, 0):
                self.losses[queue_id] = record.lossy_promotions
                self.held |= {(queue_id, NodeName(name)): -1 for name in NODES}
                self.sync(queue_id, record.master)

    def _member_changed(self, state: MetadataState, event: MemberChanged) -> None:
        """A node that runs in another life than before has lost what was in memory only."""
        if event.new is None:
            del self.incarnations[event.node]
            return
        if event.new.incarnation > self.incarnations.get(event.node, event.new.incarnation):
            for queue in state.topology.all_queues():
                if not queue.durable:
                    self.held[queue.queue_id, event.node] = -1
        self.incarnations[event.node] = event.new.incarnation

    def confirm_one_each(self, state: MetadataState) -> None:
        for queue_id, record in state.masterships.items():
            if not is_settled(record):
                self.met["may not confirm"] += 1
                continue
            complete = [node for node in (record.master, *record.mirrors) if self.is_complete(queue_id, node)]
            self.confirmed[queue_id] = self.confirmed.get(queue_id, 0) + 1
            for node in complete:
                self.sync(queue_id, node)

    def check(self, state: MetadataState) -> None:
        for queue_id, record in state.masterships.items():
            for node in record.complete:
                assert self.is_complete(queue_id, node), f"{node} lacks something of {record}"


def _report(cluster: StateUnderTest, copies: Copies, rng: Random) -> None:
    """A master says something about itself or one of its mirrors; sometimes about an epoch that is over."""
    records = sorted(cluster.state.masterships.values(), key=lambda record: record.queue_id)
    if not records:
        return
    record = rng.choice(records)
    epoch = Epoch(record.epoch - (rng.random() < 0.1))
    node = NodeName(rng.choice(record.mirrors or NODES))
    match rng.randrange(6):
        case 0 | 1:
            if node in record.mirrors and record.in_service:
                copies.sync(record.queue_id, node)
            elif record.is_down:
                return  # true only of what a master said before it died: `test_mastership` has that
            cluster.apply(MirrorSynchronised(record.queue_id, epoch, node, cluster.index))
        case 2:
            cluster.apply(DropMirror(record.queue_id, epoch, node))
        case 3:
            cluster.apply(AddMirror(record.queue_id, epoch, node))
        case 4:
            cluster.apply(MirrorFollows(record.queue_id, epoch, node, cluster.index))
        case _:
            cluster.apply(MoveMaster(record.queue_id, epoch, node, is_old_lost=rng.random() < 0.3))


def _operator_step(cluster: StateUnderTest, rng: Random) -> None:
    node = NodeName(rng.choice(NODES))
    records = sorted(cluster.state.masterships)
    if records and rng.random() < 0.7:
        cluster.apply(ForcePromote(rng.choice(records), node))
    else:
        cluster.apply(ForgetNode(node))


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
    match rng.randrange(13):
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
        case 8 | 9:
            cluster.serve(*rng.sample(NODES, 2))
        case 10 if rng.random() < 0.4:
            _operator_step(cluster, rng)
        case _:
            _member_step(cluster, rng)


def _history(seed: int, steps: int) -> tuple[StateUnderTest, Copies]:
    rng = Random(seed)
    cluster = StateUnderTest(*NODES[:3])
    copies = Copies(cluster.state)
    for _ in range(steps):
        length = len(cluster.log)
        _step(cluster, copies, rng)
        if len(cluster.log) > length:
            copies.follow(cluster)
        copies.check(cluster.state)
        copies.confirm_one_each(cluster.state)
    return cluster, copies


@pytest.mark.parametrize("part", few_fast(range(10), 4))
def test_no_history_breaks_an_invariant_or_calls_a_copy_complete_that_lacks_something(part: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(20 * part, 20 * part + 20):
        try:
            met += _history(seed, steps=150)[1].met
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    unmet = {*get_args(ChangeReason), "discarded", "may not confirm"} - met.keys()
    assert not unmet, f"the histories exercise everything: {met}"


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
    cluster, _ = _history(seed, steps=120)
    expected = cluster.state.snapshot()
    assert _replay(cluster.log) == expected
    for restore_at in (20, 60, cluster.index):
        assert _replay(cluster.log, restore_at) == expected
