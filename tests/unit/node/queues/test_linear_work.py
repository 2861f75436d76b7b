"""Work grows with the number of messages, not with its square: counted in comparisons and looks, not in time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from node.ids import SeqId
from node.message import Message
from node.queues.local_replica import LocalReplica
from node.queues.replica import SeqRange
from node.queues.sub_queue import TOMBSTONES_MAX, SubQueue
from node.queues.unacked import Unacked
from node.store.index.index import PagedMessage
from node.store.shared.config import StoreConfig
from tests.support.amounts import slow
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.stores import StoreHarness

#: The bounds hold for each by itself; only what is small is fast.
SIZES = (10_000, slow(100_000))
PIECE = 1_000


class Position(int):
    """A position that counts how often positions are compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Position.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Position.compared += 1
        return int(self) > int(other)

    def __le__(self, other: int) -> bool:
        Position.compared += 1
        return int(self) <= int(other)

    def __ge__(self, other: int) -> bool:
        Position.compared += 1
        return int(self) >= int(other)


def comparisons(work: Callable[[], object]) -> int:
    Position.compared = 0
    work()
    return Position.compared


class CountedDict(dict[int, Any]):
    """Counts entries that are looked at, one by one or in passing."""

    looks = 0

    def items(self) -> Any:
        for item in super().items():
            self.looks += 1
            yield item

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.looks += 1
            yield key

    def get(self, key: int, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)


def page_out_all(unacked: Unacked) -> list[int]:
    paged: list[int] = []
    while unacked.ram_count:
        paged += unacked.page_out(PIECE, is_durable=True)
    return paged


@pytest.mark.parametrize("count", SIZES)
def test_paging_out_the_unacked_looks_at_each_a_few_times(count: int) -> None:
    unacked = Unacked()
    looked_at = unacked.messages = CountedDict()
    one = make_message(1)
    messages = [one] * count
    unacked.add(range(count), messages, count * len(one.body))
    assert page_out_all(unacked) == list(range(count)), "the oldest first"
    assert looked_at.looks <= 3 * count
    unacked.add(range(count, 2 * count), messages, count * len(one.body))
    unacked.take(range(count // 2, 3 * count // 2))
    assert page_out_all(unacked) == list(range(3 * count // 2, 2 * count))
    assert looked_at.looks <= 9 * count


def test_the_unacked_do_not_remember_for_ever_what_was_acked() -> None:
    unacked = Unacked()
    one = make_message(1)
    unacked.page_out(1, is_durable=True)
    for first in range(0, 100_000, 100):
        unacked.add(range(first, first + 100), [one] * 100, 100 * len(one.body))
        unacked.take(range(first, first + 100))
    assert len(unacked._oldest or ()) < 3_000
    unacked.check_invariants()


def pieces(positions: list[int], order: str) -> list[list[int]]:
    """The positions in pieces: from the front, from the back, or interleaved."""
    cut = [positions[at : at + PIECE] for at in range(0, len(positions), PIECE)]
    if order == "from the back":
        cut.reverse()
    elif order == "interleaved":
        cut = [positions[at :: len(cut)] for at in range(len(cut))]
    elif order == "shuffled":
        mixed = list(positions)
        random.Random(1).shuffle(mixed)
        cut = [mixed[at : at + PIECE] for at in range(0, len(mixed), PIECE)]
    return cut


@pytest.mark.parametrize(
    ("order", "count"),
    [
        *((order, 10_000) for order in ("from the front", "from the back", "interleaved", "shuffled")),
        slow(("interleaved", 100_000)),
    ],
)
def test_pieces_that_come_in_between_cost_a_logarithm_each(order: str, count: int) -> None:
    """Half of the positions are here, the other half comes back in pieces, and the head is asked for in between."""
    queue = SubQueue()
    entry = PagedMessage(msg_id_of(1), 1, persistent=True)
    here = [Position(each) for each in range(0, 2 * count, 2)]
    queue.append(here, [entry] * count)
    back = pieces([Position(each) for each in range(1, 2 * count, 2)], order)

    def merge() -> None:
        for piece in back:
            queue.merge(dict.fromkeys(piece, entry))
            assert queue.first == 0

    assert comparisons(merge) <= 3 * count * math.log2(count)
    taken: list[int] = []

    def take() -> None:
        while queue:
            taken.extend(queue.take(100)[0])

    assert comparisons(take) <= 4 * count * math.log2(count)
    assert taken == list(range(2 * count))


class SoughtPosition(int):
    """A position that counts how often one is looked up."""

    sought = 0

    def __hash__(self) -> int:
        SoughtPosition.sought += 1
        return int(self)


def test_the_first_message_after_a_purge_passes_over_none_of_those_that_went() -> None:
    queue = SubQueue()
    entry = PagedMessage(msg_id_of(1), 1, persistent=True)
    queue.append([SoughtPosition(each) for each in range(0, 20_000, 2)], [entry] * 10_000)
    queue.merge({SoughtPosition(each): entry for each in range(1, 999, 2)})
    queue.clear()
    queue.append([20_000], [entry])
    SoughtPosition.sought = 0
    assert queue.take(1)[0] == [20_000]
    assert SoughtPosition.sought == 0


@pytest.fixture
def queue() -> LocalReplica:
    return StoreHarness(StoreConfig()).open_queue()


@pytest.mark.parametrize("count", SIZES)
def test_what_returns_to_q1_is_sorted_in_once(queue: LocalReplica, count: int) -> None:
    """Q1 holds what came last while there is something on disk only; half of it was a mirror's gap, and is filled."""
    stages = queue.engine.content.stages
    queue.publish(publications(1, 5_000, persistent=False, tokens=False))
    queue.engine.paging.target_ram_count = 0
    while queue.engine.paging.page_out():
        pass
    queue.engine.paging.target_ram_count = None
    one = make_message(1, persistent=False)
    evens = [Position(each) for each in range(10_000, 10_000 + 2 * count, 2)]
    stages.append(evens, [one] * count, count * len(one.body))
    assert len(stages.q1) == count
    odds: dict[int, Message | PagedMessage] = {Position(each + 1): one for each in evens}
    assert comparisons(lambda: stages.merge(odds)) <= 4 * count * math.log2(count)
    assert len(stages.q1) == 2 * count
    stages.q1.check_invariants()


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("order", ["from the front", "from the back", "interleaved"])
def test_returning_in_pieces_ends_where_returning_at_once_does(order: str, paged: bool) -> None:
    """And reads no body for it."""
    count = 3_000
    found = []
    for at_once in (True, False):
        queue = StoreHarness(StoreConfig()).open_queue()
        queue.publish(publications(1, count + 500, tokens=False))
        taken = [delivery.seq_id for delivery in queue.fetch(count, ack_required=True)]
        if paged:
            queue.engine.paging._page_out_unacked(count)
        back = [taken] if at_once else pieces(taken, order)  # type: ignore[arg-type]
        for number, piece in enumerate(back, 1):
            queue.requeue(piece, more_follow=number < len(back))  # type: ignore[arg-type]
            queue.check_invariants()
        if paged:
            assert queue.engine.content.stages.ram_count <= 500 + PIECE
        found.append([(each.seq_id, each.message.body, each.redelivered) for each in queue.fetch(9_999, False)])
        queue.check_invariants()
    assert found[0] == found[1]


def test_positions_that_were_removed_are_not_kept_for_ever() -> None:
    """On a mirror every settlement is a removal, and the first message may stay long."""
    queue = StoreHarness().open_queue()
    queue.publish(publications(1, 2 * TOMBSTONES_MAX))
    for first in range(1, 2 * TOMBSTONES_MAX - 1):
        queue.remove([SeqRange(SeqId(first), SeqId(first + 1))])
    assert len(queue.engine.content.stages.q4._order) <= 2 * len(queue.engine.content.stages.q4) + TOMBSTONES_MAX
