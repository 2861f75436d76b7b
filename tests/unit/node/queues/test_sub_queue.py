"""A sub-queue keeps the order of positions, whatever comes and goes where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.queues.sub_queue import SubQueue
from node.store.index.index import PagedMessage
from tests.support.messages import msg_id_of


def entry(seq_id: int) -> PagedMessage:
    return PagedMessage(msg_id_of(seq_id), seq_id, persistent=True)


def filled(*seq_ids: int) -> SubQueue:
    queue = SubQueue()
    queue.merge({seq_id: entry(seq_id) for seq_id in seq_ids})
    return queue


def test_both_ends() -> None:
    queue = filled(3, 4, 5)
    queue.append([7, 9], [entry(7), entry(9)])
    queue.prepend([1, 2], [entry(1), entry(2)])
    assert queue.take(2)[0] == [1, 2]
    assert queue.take_last(2)[0] == [7, 9]
    assert (queue.first, queue.last, len(queue)) == (3, 5, 3)


def test_what_comes_in_between_is_sorted_in() -> None:
    queue = filled(1, 5, 9)
    queue.merge({7: entry(7), 3: entry(3)})
    assert [seq_id for seq_id, _ in queue.peek(9)] == [1, 3, 5, 7, 9]


def test_a_position_can_be_used_again() -> None:
    queue = filled(1, 2, 3)
    for seq_id in (3, 2):
        del queue.messages[seq_id]
    queue.append([2, 4], [entry(2), entry(4)])
    queue.check_invariants()
    assert queue.take(9)[0] == [1, 2, 4]


def test_a_position_at_the_front_can_be_used_again() -> None:
    queue = filled(3, 4, 5)
    for seq_id in (3, 4):
        del queue.messages[seq_id]
    queue.prepend([2, 3], [entry(2), entry(3)])
    queue.check_invariants()
    assert (queue.first, queue.last) == (2, 5)
    assert queue.take(9)[0] == [2, 3, 5]


def test_to_put_in_nothing_does_nothing() -> None:
    queue = filled(3, 4)
    queue.append([], [])
    queue.prepend([], [])
    queue.merge({})
    assert queue.take(9)[0] == [3, 4]
    assert queue.take(9)[0] == []


@pytest.mark.parametrize("in_between", [False, True])
def test_positions_of_what_was_taken_out_are_not_kept_for_ever(in_between: bool) -> None:
    queue = filled(*range(0, 6000, 2))
    if in_between:
        queue.merge({seq_id: entry(seq_id) for seq_id in range(1, 999, 2)})
    for seq_id in sorted(queue.messages)[1:-1]:
        del queue.messages[seq_id]
    queue.trim()
    assert positions_kept(queue) == 2
    queue.check_invariants()
    assert queue.take(9)[0] == [0, 5998]


def positions_kept(queue: SubQueue) -> int:
    return len(queue._order) + sum(map(len, queue._runs))


def test_absorbing_keeps_the_order_and_empties_the_other() -> None:
    front, back = filled(1, 2), filled(5, 3)
    front.absorb(back)
    assert (front.take(9)[0], len(back)) == ([1, 2, 3, 5], 0)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_it_is_a_sorted_dict(steps: list[tuple[int, bool]]) -> None:
    queue, model = SubQueue(), dict[int, PagedMessage]()
    for seq_id, takes in steps:
        if takes and seq_id % 2:
            assert queue.take(1)[0] == sorted(model)[:1]
            model = {key: model[key] for key in sorted(model)[1:]}
        elif takes:
            assert queue.take_last(1)[0] == sorted(model)[-1:]
            model = {key: model[key] for key in sorted(model)[:-1]}
        elif seq_id in model:
            del model[seq_id], queue.messages[seq_id]
            queue.trim()
        else:
            model[seq_id] = entry(seq_id)
            queue.merge({seq_id: entry(seq_id)})
        queue.check_invariants()
        assert dict(queue.peek(99)) == dict(sorted(model.items()))
