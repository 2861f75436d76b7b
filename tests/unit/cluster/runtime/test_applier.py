"""Slices of what is committed: how much of it one turn of the loop does, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.raft.messages import Entry, EntryKind, Snapshot
from cluster.runtime.applier import SLICE_S, Applied, Applier
from node.ids import NodeName
from node.pieces import Pieces


class Machine:
    """Each command has as many pieces as its payload says."""

    def __init__(self) -> None:
        #: What was done, piece by piece.
        self.done: list[str] = []

    def apply_in_pieces(self, index: int, payload: bytes) -> Pieces[Applied]:
        for piece in range(int(payload)):
            self.done.append(f"{index}.{piece}")
            yield
        self.done.append(f"{index} applied")
        return Applied(f"request {index}", index)

    def restore_in_pieces(self, data: bytes) -> Pieces[None]:
        for piece in range(int(data)):
            self.done.append(f"snapshot.{piece}")
            yield
        self.done.append("restored")

    def restore(self, data: bytes) -> None: ...

    protocol = NEWEST_PROTOCOL

    wants_snapshot = is_declared_down = False

    def snapshot_pieces(self) -> Iterator[bytes]:
        return iter(())

    def snapshot_taken(self, index: int, data: bytes) -> None: ...


class Bench:
    """An applier, the turns of its loop, and what it says."""

    def __init__(self, slice_pieces: int = 3) -> None:
        self.turns: deque[Callable[[], None]] = deque()
        self.now_s = self.piece_s = 0.0
        self.machine = Machine()
        self.applied: list[object] = []
        self.slices: list[tuple[int, bool]] = []
        self.errors: list[Exception] = []
        self.applier = Applier(
            self.machine,
            0,
            call_soon=self.turns.append,
            clock=self.clock,
            slice_pieces=slice_pieces,
            on_applied=lambda applied: self.applied.append(applied.outcome),
            on_slice=lambda count, has_restored: self.slices.append((count, has_restored)),
            on_failed=self.errors.append,
        )

    def clock(self) -> float:
        self.now_s += self.piece_s
        return self.now_s

    def turn(self) -> list[str]:
        """One turn of the loop; what it did."""
        before = len(self.machine.done)
        self.turns.popleft()()
        self.applier.check_invariants()
        return self.machine.done[before:]


def commands(first: int, *pieces: int) -> list[Entry]:
    return [Entry(index, 1, EntryKind.COMMAND, str(count).encode()) for index, count in enumerate(pieces, first)]


def snapshot(index: int, pieces: int) -> Snapshot:
    return Snapshot(index, 1, (NodeName("n1"),), str(pieces).encode())


def test_what_is_small_is_done_at_once() -> None:
    bench = Bench()
    bench.applier.add(commands(1, 0, 0, 0))
    assert bench.machine.done == ["1 applied", "2 applied", "3 applied"]
    assert bench.slices == [(3, False)]
    assert not bench.turns


def test_a_turn_does_so_many_pieces_and_the_next_goes_on_there() -> None:
    bench = Bench(slice_pieces=3)
    bench.applier.add(commands(1, 4, 1))
    assert bench.machine.done == ["1.0", "1.1", "1.2"]
    assert (bench.applier.applied_index, bench.applier.is_amid) == (0, True)
    assert bench.turn() == ["1.3", "1 applied", "2.0"]
    assert (bench.applier.applied_index, bench.applied) == (1, [1])
    assert bench.turn() == ["2 applied"]
    assert (bench.applier.applied_index, bench.applier.is_amid) == (2, False)
    assert bench.slices == [(1, False), (1, False)]


def test_a_long_log_is_done_in_turns() -> None:
    bench = Bench(slice_pieces=100)
    bench.applier.add(commands(1, *[0] * 1000))
    turns = 1
    while bench.turns:
        assert len(bench.turn()) <= 100
        turns += 1
    assert (turns, bench.applier.applied_index) == (10, 1000)


def test_a_turn_ends_by_time_too() -> None:
    bench = Bench(slice_pieces=1000)
    bench.piece_s = SLICE_S / 2
    bench.applier.add(commands(1, 5))
    assert len(bench.machine.done) == 2
    assert len(bench.turn()) == 2


def test_what_comes_while_something_waits_waits_behind_it() -> None:
    bench = Bench(slice_pieces=2)
    bench.applier.add(commands(1, 3))
    bench.applier.add([*commands(2, 0), Entry(3, 1, EntryKind.NOOP, b""), *commands(4, 0)])
    assert bench.machine.done == ["1.0", "1.1"]
    while bench.turns:
        bench.turn()
    assert bench.machine.done[2:] == ["1.2", "1 applied", "2 applied", "4 applied"]
    assert bench.applier.applied_index == 4


def test_a_snapshot_takes_the_place_of_entries_that_wait_and_not_of_the_one_that_was_begun() -> None:
    bench = Bench(slice_pieces=1)
    bench.applier.add(commands(1, 2, 0, 0))
    bench.applier.install(snapshot(9, 1))
    bench.applier.add(commands(10, 0))
    while bench.turns:
        bench.turn()
    assert bench.machine.done == ["1.0", "1.1", "1 applied", "snapshot.0", "restored", "10 applied"]
    assert bench.applier.applied_index == 10
    assert bench.slices == [(1, False), (0, True), (1, False)]


def test_nothing_is_done_after_the_end() -> None:
    bench = Bench(slice_pieces=1)
    bench.applier.add(commands(1, 2))
    bench.applier.stop()
    assert bench.turn() == []
    bench.applier.add(commands(2, 0))
    assert bench.machine.done == ["1.0"]
    assert not bench.turns


def test_a_mistake_is_told_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def fail(_index: int, _payload: bytes) -> Pieces[Applied]:
        yield
        raise AssertionError("a mistake")

    monkeypatch.setattr(bench.machine, "apply_in_pieces", fail)
    bench.applier.add(commands(1, 0, 0))
    assert [str(error) for error in bench.errors] == ["a mistake"]
    assert bench.applier.applied_index == 0
    assert not bench.turns
