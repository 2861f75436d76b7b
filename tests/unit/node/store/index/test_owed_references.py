"""The account of what settled entries owe: the pace, the order, and what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from node.errors import StorageError
from node.ids import MsgId
from node.store.disk.group_commit import GroupCommit
from node.store.index.owed_references import OwedReferences
from tests.support.index_driver import MemorySharedStore
from tests.support.messages import msg_id_of

PACE = 4


class Source:
    """Numbers of messages, of which the even ones are persistent; the damaged ones cannot be read."""

    memory_bytes = 10

    def __init__(self, counters: Sequence[int], damaged: Sequence[int] = ()) -> None:
        self._counters = list(counters)
        self._damaged = damaged

    @property
    def has_owed(self) -> bool:
        return bool(self._counters)

    def owed(self) -> Sequence[int]:
        return self._counters

    def read(self, entries: Sequence[int]) -> Iterator[tuple[bool, MsgId]]:
        for counter in entries:
            if counter in self._damaged:
                raise StorageError("damaged")
            yield counter % 2 == 0, msg_id_of(counter)

    def forget(self, entries: Sequence[int]) -> None:
        self._counters = [counter for counter in self._counters if counter not in entries]


class Bench:
    """Two stores with a reference for each of thirty messages, and an account."""

    def __init__(self) -> None:
        group_commit = GroupCommit()
        self._stores = {True: MemorySharedStore(group_commit), False: MemorySharedStore(group_commit)}
        for counter in range(30):
            self._stores[counter % 2 == 0].write_batch([(msg_id_of(counter), b"")])
        self.owed = OwedReferences(self._stores)

    @property
    def referenced(self) -> list[int]:
        kept = self._stores[True].messages.keys() | self._stores[False].messages.keys()
        return [counter for counter in range(30) if msg_id_of(counter) in kept]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("node.store.index.owed_references.OWED_PER_FLUSH", PACE)
    return Bench()


def test_each_time_so_many_are_given_back_the_oldest_source_first(bench: Bench) -> None:
    bench.owed.owe(Source(range(10, 13)))
    bench.owed.owe(Source(range(6)))
    left = []
    while bench.owed:
        bench.owed.check_invariants()
        bench.owed.give_back()
        left.append([counter for counter in bench.referenced if counter < 13])
    assert left == [[1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [6, 7, 8, 9]]
    assert bench.owed.memory_bytes == 0


def test_one_that_is_next_comes_before_the_others(bench: Bench) -> None:
    for source, is_next in ((Source(range(10, 13)), False), (Source(range(3)), True)):
        bench.owed.owe(source, is_next=is_next)
    assert bench.owed.memory_bytes == 20
    bench.owed.give_back(3)
    assert bench.referenced == list(range(3, 30))


def test_one_that_is_known_keeps_its_turn(bench: Bench) -> None:
    source = Source(range(3))
    bench.owed.owe(source)
    bench.owed.owe(Source([20]))
    bench.owed.owe(source, is_next=True)
    assert bench.owed.memory_bytes == 20
    bench.owed.give_back(3)
    assert bench.referenced == list(range(3, 30))


def test_some_may_be_due_before_their_turn(bench: Bench) -> None:
    first, second = Source(range(3)), Source(range(5, 8))
    bench.owed.owe(first)
    bench.owed.owe(second)
    bench.owed.give_back_from(second, [6])
    assert 6 not in bench.referenced
    assert list(second.owed()) == [5, 7]
    bench.owed.give_back_from(second, [5, 7])
    bench.owed.check_invariants()
    bench.owed.give_back()
    assert not bench.owed
    assert bench.referenced == [3, 4, *range(8, 30)]


def test_damage_is_told_and_what_is_damaged_is_owed_still(bench: Bench) -> None:
    source = Source(range(3), damaged=[1])
    bench.owed.owe(source)
    with pytest.raises(StorageError):
        bench.owed.give_back()
    assert bench.referenced == list(range(30))
    assert list(source.owed()) == [0, 1, 2]


def test_the_end_takes_all_and_leaves_what_is_damaged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.shared.port.REFERENCES_PER_STEP", 5)
    bench.owed.owe(Source(range(12), damaged=[7]))
    bench.owed.owe(Source(range(20, 23)))
    taken = bench.owed.take_all()
    assert not bench.owed
    assert bench.owed.memory_bytes == 0
    pieces = [len(bench.referenced) for _ in taken.give_back_in_pieces()]
    assert pieces == [25, 25, 23, 20]
    assert bench.referenced == [5, 6, 7, 8, 9, *range(12, 20), *range(23, 30)]
