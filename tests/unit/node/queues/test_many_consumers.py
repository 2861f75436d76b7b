"""Thousands of consumers of one queue leave at once: work grows with their number, not with its square."""

from __future__ import annotations

import pytest

from node.ids import ChannelKey, NodeName
from node.queues.consumers import Consumer, ConsumerSet
from node.queues.events import ConsumerSpec
from tests.support.amounts import slow

HERE, THERE = NodeName("n1"), NodeName("n2")
SIZES = (1_000, slow(20_000))


class Counted(Consumer):
    """Counts how often one is compared with another, or asked what it wants."""

    looks = 0

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return self is other

    @property
    def spec(self) -> ConsumerSpec:
        Counted.looks += 1
        spec: ConsumerSpec = self.__dict__["spec"]
        return spec

    @spec.setter
    def spec(self, spec: ConsumerSpec) -> None:
        self.__dict__["spec"] = spec


def consumer(number: int, node: NodeName = HERE) -> Counted:
    return Counted(ChannelKey(node, 1), ConsumerSpec(f"c{number}", no_ack=False, exclusive=False, priority=number % 3))


def filled(
    count: int, *, single_active: bool = False, is_there_full: bool = False
) -> tuple[ConsumerSet, list[Consumer]]:
    """Half of them have had a turn since they came."""
    consumers = ConsumerSet(single_active, lambda node: is_there_full and node == THERE)
    everybody: list[Consumer] = [consumer(number, THERE if is_there_full else HERE) for number in range(count)]
    for each in everybody:
        consumers.add(each)
    if (turn := consumers.take_turn(count // 2)) is not None:
        for each in turn.consumers:
            each.handed_out(1, 1)
        consumers.end_turn(turn, len(turn.consumers))
    consumers.check_invariants()
    return consumers, everybody


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("leaves", ["oldest first", "newest first"])
@pytest.mark.parametrize("kind", ["all", "single active", "set aside"])
def test_whoever_leaves_is_not_looked_for_among_all(kind: str, leaves: str, count: int) -> None:
    consumers, everybody = filled(count, single_active=kind == "single active", is_there_full=kind == "set aside")
    Counted.looks = 0
    for each in everybody if leaves == "oldest first" else reversed(everybody):
        consumers.remove(each)
    assert Counted.looks <= 12 * count
    consumers.check_invariants()
    assert len(consumers) == 0


def test_the_oldest_of_the_highest_priority_is_active_next() -> None:
    consumers, everybody = filled(9, single_active=True)
    order: list[int] = []
    while consumers.active is not None:
        order.append(everybody.index(consumers.active))
        consumers.remove(consumers.active)
        consumers.check_invariants()
    assert order == [0, 2, 5, 8, 1, 4, 7, 3, 6], "the first to come was active whatever came later"


def test_who_waits_to_be_active_may_leave_before() -> None:
    consumers, everybody = filled(4, single_active=True)
    consumers.remove(everybody[2])
    consumers.remove(everybody[0])
    assert consumers.active is everybody[1]
    consumers.check_invariants()
