"""When queues are drained: together at the end of a turn, not for too long, and again when they are on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from cluster.runtime.drain_turns import TURN_S, DrainTurns
from node.ids import QueueId
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from tests.support.stores import run_sync_round

A, B, C = QueueId(1), QueueId(2), QueueId(3)


class Bench:
    def __init__(self) -> None:
        self.held = {A, B, C}
        self.pending: deque[Callable[[], None]] = deque()
        self.drained: list[QueueId] = []
        self.syncs_asked = 0
        self.now_s = self.drain_s = 0.0
        self.group_commit = GroupCommit()
        self.directory = SimulatedDisk().directory("/")
        self.turns = DrainTurns(
            self.held, self.drain, self.group_commit, self.ask_sync, self.pending.append, lambda: self.now_s
        )

    def drain(self, queue_id: QueueId) -> None:
        self.drained.append(queue_id)
        self.now_s += self.drain_s

    def ask_sync(self) -> None:
        self.syncs_asked += 1

    def turn(self) -> list[QueueId]:
        """One turn of the loop; what it drained."""
        self.turns.check_invariants()
        before = len(self.drained)
        for _ in range(len(self.pending)):
            self.pending.popleft()()
        self.turns.check_invariants()
        return self.drained[before:]

    def sync(self) -> None:
        """Something else makes a round."""
        self.group_commit.mark_dirty(self.directory)
        assert run_sync_round(self.group_commit)
        self.turns.durable_advanced()


def test_whoever_waits_for_what_needed_no_writing_is_drained_again_once() -> None:
    """A mirror that collected a message, and heard in the same turn that it is settled, has nothing to wait for."""
    bench = Bench()
    bench.turns.touch(A)
    assert bench.turn() == [A]
    bench.turns.nothing_written()
    assert bench.turn() == [A]
    assert bench.syncs_asked == 1, "nobody waits for another"
    bench.turns.nothing_written()
    assert bench.turn() == []
    bench.sync()
    assert bench.turn() == []


def test_calls_of_a_turn_are_drained_once_and_share_a_sync() -> None:
    bench = Bench()
    for queue_id in (A, B, A, A):
        bench.turns.touch(queue_id)
    assert len(bench.pending) == 1
    assert bench.turn() == [A, B]
    assert bench.syncs_asked == 1
    assert bench.turn() == []


def test_what_is_left_of_a_turn_comes_before_what_was_touched_meanwhile() -> None:
    bench = Bench()
    bench.drain_s = TURN_S
    for queue_id in (A, B, C):
        bench.turns.touch(queue_id)
    assert bench.turn() == [A]
    bench.turns.touch(A)
    assert [bench.turn() for _ in range(3)] == [[B], [C], [A]]


def test_a_queue_is_looked_at_again_when_what_it_wrote_is_on_disk() -> None:
    bench = Bench()
    bench.turns.touch(A)
    assert bench.turn() == [A]
    bench.sync()
    assert bench.turn() == [A]
    bench.sync()
    assert bench.turn() == [], "it has written nothing since"


def test_nobody_is_drained_who_has_left() -> None:
    bench = Bench()
    bench.turns.touch(A)
    bench.turns.touch(B)
    bench.held.discard(A)
    bench.turns.forget(B)
    assert bench.turn() == []
    bench.held.discard(B)
    bench.sync()
    assert not bench.pending, "nobody is there to be looked at"


class CountedId(int):
    """A queue's id that counts how often somebody looks it up."""

    looks = 0

    def __hash__(self) -> int:
        CountedId.looks += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) is True


def test_a_turn_looks_only_at_the_queues_that_it_drains() -> None:
    """Ten thousand that wait would take longer to look at than the turn may."""
    bench = Bench()
    queue_ids = [QueueId(CountedId(number)) for number in range(200)]
    bench.held = set(queue_ids)
    bench.turns = DrainTurns(
        bench.held, bench.drain, bench.group_commit, bench.ask_sync, bench.pending.append, lambda: bench.now_s
    )
    for queue_id in queue_ids:
        bench.turns.touch(queue_id)
    bench.drain_s = TURN_S
    drained: list[QueueId] = []
    for _ in queue_ids:
        before = CountedId.looks
        bench.pending.popleft()()
        assert CountedId.looks - before <= 5
        drained.append(bench.drained[-1])
        bench.turns.check_invariants()
    assert drained == queue_ids
    assert not bench.pending


def test_a_mistake_in_one_drain_leaves_the_others_their_turn() -> None:
    """They are marked already: to be touched again would not bring them one."""
    bench = Bench()

    def drain(queue_id: QueueId) -> None:
        bench.drain(queue_id)
        assert queue_id != A, "a mistake"

    bench.turns._drain = drain
    for queue_id in (A, B):
        bench.turns.touch(queue_id)
    with pytest.raises(AssertionError, match="a mistake"):
        bench.turn()
    bench.turns.touch(B)
    assert bench.turn() == [B]


def test_who_waits_for_a_round_and_would_not_be_looked_at_is_found() -> None:
    bench = Bench()
    bench.turns.touch(A)
    bench.turn()
    written = bench.group_commit.open_generation
    bench.turns.check_invariants([(A, written)])
    with pytest.raises(AssertionError, match="looked at"):
        bench.turns.check_invariants([(B, written)])
    bench.sync()
    bench.turn()
    bench.turns.check_invariants([(A, written), (B, written)])
