"""`InputTurns` alone, with a clock and a loop that the test moves."""

from __future__ import annotations

from collections.abc import Callable

from node.amqp.server.turns import TURN_S, InputTurns


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], None]] = []
        self.may_read = True
        self.turns = InputTurns(self.soon.append, lambda: self.now, lambda: self.may_read)
        self.worked: list[str] = []

    def iterate(self) -> None:
        """One iteration of the loop."""
        calls, self.soon[:] = self.soon[:], []
        for call in calls:
            call()
        self.turns.check_invariants()

    def worker(self, name: str, times: int = 1, cost_s: float = TURN_S) -> Callable[[], None]:
        """Works for ``cost_s`` in each of so many turns."""
        left = times

        def work() -> None:
            nonlocal left
            left -= 1
            self.worked.append(name)
            self.now += cost_s
            if left:
                self.turns.wait(work)

        return work


def test_a_turn_begins_with_the_first_who_asks_and_ends_by_the_clock() -> None:
    world = World()
    world.now += 50
    assert world.turns.may_go_on()
    world.now += TURN_S * 0.9
    assert world.turns.may_go_on()
    world.now += TURN_S * 0.2
    assert not world.turns.may_go_on()
    assert len(world.soon) == 1, "the loop is asked once"


def test_the_next_iteration_begins_anew() -> None:
    world = World()
    world.turns.may_go_on()
    world.now += TURN_S
    assert not world.turns.may_go_on()
    world.iterate()
    assert world.soon == [], "nobody waits, so nothing is to be called"
    assert world.turns.may_go_on()
    world.now += TURN_S * 0.9
    assert world.turns.may_go_on()


def test_who_waits_is_called_once_in_a_later_turn_even_if_there_is_time_now() -> None:
    world = World()
    world.turns.wait(world.worker("a"))
    world.turns.check_invariants()
    assert world.worked == []
    for _ in range(3):
        world.iterate()
    assert world.worked == ["a"]
    assert world.soon == []


def test_they_are_called_in_order_as_long_as_there_is_time() -> None:
    world = World()
    for name in "abcde":
        world.turns.wait(world.worker(name, cost_s=TURN_S * 0.4))
    world.iterate()
    assert world.worked == ["a", "b", "c"], "what is begun is finished"
    world.iterate()
    assert world.worked == ["a", "b", "c", "d", "e"]


def test_who_waits_again_comes_last() -> None:
    world = World()
    world.turns.wait(world.worker("a", times=3))
    world.turns.wait(world.worker("b"))
    world.turns.wait(world.worker("c"))
    for _ in range(5):
        world.iterate()
    assert world.worked == ["a", "b", "c", "a", "a"]
    world.iterate()
    assert world.soon == []


def test_those_who_wait_come_before_those_who_ask_only_then() -> None:
    world = World()
    world.turns.wait(world.worker("a"))
    world.iterate()
    assert world.worked == ["a"]
    assert not world.turns.may_go_on(), "the whole turn is used up"


def test_a_mistake_of_one_is_not_the_end_for_the_others() -> None:
    world = World()

    def fail() -> None:
        raise RuntimeError("a mistake")

    world.turns.wait(fail)
    world.turns.wait(world.worker("b"))
    try:
        world.iterate()
    except RuntimeError:
        world.turns.check_invariants()
    world.iterate()
    assert world.worked == ["b"]


def test_a_turn_has_no_time_while_the_owner_must_not_read() -> None:
    world = World()
    world.may_read = False
    assert not world.turns.may_go_on()
    world.turns.wait(world.worker("a"))
    world.iterate()
    world.iterate()
    assert world.worked == []
    world.may_read = True
    world.iterate()
    assert world.worked == ["a"], "it was not forgotten"
