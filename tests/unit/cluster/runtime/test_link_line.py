"""Who waits for a link that is full, and who goes on when it has room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.runtime.link_line import LinkLine
from node.ids import NodeName

N1, N2 = NodeName("n1"), NodeName("n2")


class Bench:
    """Links that have room for so many shares; who goes on takes one, and waits again if he wants more."""

    def __init__(self, per_turn: int = 100) -> None:
        self.room = {N1: 0, N2: 0}
        self.gone_on: list[str] = []
        self.later: list[Callable[[], None]] = []
        self.line = LinkLine(self.is_full, self.later.append, lambda: 0.0, per_turn)

    def is_full(self, node: NodeName) -> bool:
        return self.room[node] <= 0

    def waits(self, key: str, node: NodeName = N1, *, shares: int = 1) -> None:
        def go_on() -> None:
            assert not self.line.has_others(node), "it is his turn, whoever waits behind him"
            self.room[node] -= 1
            self.gone_on.append(key)
            if shares > 1:
                self.waits(key, node, shares=shares - 1)

        self.line.wait(node, key, go_on)

    def room_comes(self, shares: int, node: NodeName = N1) -> list[str]:
        """Returns who has gone on."""
        self.room[node] += shares
        self.line.room_came(node)
        assert self.gone_on == [], "not at once: who says so is in the midst of something"
        while self.later:
            self.turn()
        return self.take_gone_on()

    def turn(self) -> None:
        """Of the loop."""
        later, self.later[:] = self.later[:], []
        for call in later:
            self.line.check_invariants(self.is_full)
            call()
        self.line.check_invariants(self.is_full)

    def take_gone_on(self) -> list[str]:
        gone_on, self.gone_on = self.gone_on, []
        return gone_on


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.line.check_invariants(bench.is_full)


def test_they_go_on_in_the_order_in_which_they_came_while_there_is_room(bench: Bench) -> None:
    for key in "abc":
        bench.waits(key)
    assert bench.room_comes(2) == ["a", "b"]
    assert bench.room_comes(2) == ["c"]
    assert bench.room_comes(1) == []


def test_who_says_again_that_he_waits_keeps_his_place(bench: Bench) -> None:
    for key in "aba":
        bench.waits(key)
    assert bench.room_comes(5) == ["a", "b"]


def test_who_wants_more_than_his_share_comes_behind_the_others(bench: Bench) -> None:
    bench.waits("greedy", shares=3)
    bench.waits("modest")
    assert bench.room_comes(1) == ["greedy"]
    assert bench.room_comes(3) == ["modest", "greedy", "greedy"]


def test_who_comes_while_others_wait_has_no_turn_before_them(bench: Bench) -> None:
    assert not bench.line.has_others(N1)
    bench.waits("a")
    bench.room[N1] = 1
    assert bench.line.has_others(N1)
    assert not bench.line.has_others(N2)
    bench.line.room_came(N1)
    bench.turn()
    assert not bench.line.has_others(N1)


def test_one_link_that_is_full_holds_up_nobody_who_waits_for_another(bench: Bench) -> None:
    bench.waits("a", N1)
    bench.waits("b", N2)
    assert bench.room_comes(1, N2) == ["b"]
    assert bench.room_comes(1, N1) == ["a"]


def test_a_line_that_never_ends_holds_up_nobody_who_waits_for_another_link() -> None:
    """Its link is so fast that it is not full again, and those who wait there always want more."""
    bench = Bench(per_turn=1)
    for key, node in (("a", N1), ("b", N1), ("c", N2), ("d", N2)):
        bench.waits(key, node, shares=100)
    bench.room = {N1: 100, N2: 100}
    bench.line.room_came(N1)
    for _ in range(6):
        bench.turn()
    assert bench.take_gone_on() == ["a", "c", "b", "d", "a", "c"]


def test_who_waits_for_a_link_that_has_room_has_a_turn_coming(bench: Bench) -> None:
    """Nobody will say of it that there is room."""
    bench.room[N1] = 1
    bench.waits("a")
    assert bench.gone_on == []
    bench.turn()
    assert bench.gone_on == ["a"]


def test_many_go_on_in_many_turns() -> None:
    bench = Bench(per_turn=2)
    for key in "abcde":
        bench.waits(key)
    bench.room[N1] = 5
    bench.line.room_came(N1)
    turns = []
    while bench.later:
        bench.turn()
        turns.append(len(bench.take_gone_on()))
    assert turns == [2, 2, 1]


def test_room_for_which_nobody_waits_is_no_news(bench: Bench) -> None:
    bench.line.room_came(N1)
    assert bench.later == []


def test_a_mistake_of_who_goes_on_stops_nobody_else(bench: Bench) -> None:
    def mistaken() -> None:
        raise TypeError("a mistake of ours")

    bench.line.wait(N1, "mistaken", mistaken)
    bench.waits("second")
    bench.room[N1] = 2
    bench.line.room_came(N1)
    with pytest.raises(TypeError):
        bench.turn()
    assert bench.line.has_others(N1), "nobody goes on just now"
    bench.turn()
    assert bench.take_gone_on() == ["second"]
