"""The two tables of a channel."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st

from node.amqp.confirms import Confirm, ConfirmNumbers
from node.amqp.ports import DeliverySource
from node.amqp.unacked import Unacked, UnackedTable, group_by_source
from node.ids import MsgId, QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from tests.support.amounts import few_examples

Q1 = DeliverySource(QueueName("/", "q1"), 1)
Q2 = DeliverySource(QueueName("/", "q2"), 1)


@pytest.mark.parametrize(
    ("acked", "nacked", "expected"),
    [
        ([1], [], [Confirm(1, False, True)]),
        ([3, 1, 2], [], [Confirm(3, True, True)]),
        ([1, 2, 3, 4, 5], [], [Confirm(5, True, True)]),
        ([1, 2, 4], [], [Confirm(2, True, True), Confirm(4, False, True)]),
        ([2, 3], [], [Confirm(2, False, True), Confirm(3, False, True)]),
        ([], [1, 2], [Confirm(2, True, False)]),
        ([1, 2, 4], [3], [Confirm(3, False, False), Confirm(2, True, True), Confirm(4, False, True)]),
        ([3], [1, 2], [Confirm(2, True, False), Confirm(3, False, True)]),
        ([9], [], []),
    ],
)
def test_five_publishes_answered(acked: list[int], nacked: list[int], expected: list[Confirm]) -> None:
    tracker = ConfirmNumbers()
    assert list(tracker.issue(5)) == [1, 2, 3, 4, 5]
    tracker.confirm(acked)
    tracker.reject(nacked)
    tracker.check_invariants()
    assert tracker.flush() == expected
    assert tracker.flush() == []
    tracker.check_invariants()


def test_whatever_the_order_each_publish_is_answered_once_with_its_sign() -> None:
    """A publisher that reads the confirms ends with the truth about every publish."""
    chance = random.Random(5)
    for _ in range(50):
        tracker = ConfirmNumbers()
        open_numbers = set(tracker.issue(60))
        truth = {number: chance.random() < 0.8 for number in open_numbers}
        learned: dict[int, bool] = {}
        order = list(truth)
        chance.shuffle(order)
        while order:
            batch = [order.pop() for _ in range(min(len(order), chance.randrange(1, 9)))]
            tracker.confirm([number for number in batch if truth[number]])
            tracker.reject([number for number in batch if not truth[number]])
            tracker.check_invariants()
            for number, multiple, positive in tracker.flush():
                answered = [n for n in open_numbers if n <= number] if multiple else [number]
                assert number in open_numbers
                open_numbers.difference_update(answered)
                learned.update(dict.fromkeys(answered, positive))
        assert learned == truth


def deliveries(*seq_ids: int) -> list[Delivery]:
    message = Message(MsgId(b""), "", "q", b"\x00\x00", b"x", False)
    return [Delivery(SeqId(seq_id), message, False) for seq_id in seq_ids]


def filled() -> UnackedTable:
    table = UnackedTable()
    table.add(1, Q1, "a", deliveries(10, 11))
    table.add(3, Q2, "b", deliveries(5))
    table.add(4, Q1, "a", deliveries(12, 13))
    return table


def test_take_one() -> None:
    table = filled()
    assert table.take(3) == Unacked(Q2, SeqId(5), "b")
    assert table.take(3) is None
    assert len(table) == 4
    table.check_invariants()


@pytest.mark.parametrize(("tag", "taken"), [(0, 5), (1, 1), (3, 3), (5, 5)])
def test_take_through(tag: int, taken: int) -> None:
    table = filled()
    entries = table.take_through(tag)
    assert entries is not None
    assert list(entries) == list(filled())[:taken]
    assert len(table) == 5 - taken
    table.check_invariants()


def test_take_through_needs_the_tag_itself() -> None:
    table = filled()
    assert table.take(2) is not None
    assert table.take_through(2) is None
    assert table.take_through(6) is None
    assert table.take_through(0) is not None
    assert list(table.take_through(0) or ()) == []
    assert table.take_through(5) is None


def test_put_back_restores_the_order() -> None:
    table = filled()
    entries = table.take_through(3)
    assert entries is not None
    assert group_by_source(entries) == {Q1: [10, 11], Q2: [5]}
    table.put_back(entries)
    table.check_invariants()
    assert list(filled()) == list(table)


@few_examples(
    25,
    250,
    count=st.integers(1, 12_000),
    singly=st.lists(st.integers(1, 12_000), max_size=20),
    through=st.lists(st.integers(0, 12_000), max_size=5),
)
def test_a_table_of_many_chunks_is_like_one_dict(count: int, singly: list[int], through: list[int]) -> None:
    """Whatever is taken, some of it put back in the end."""
    table, model = UnackedTable(), dict(enumerate(range(count), 1))
    for first in range(1, count + 1, 1_000):
        table.add(first, Q1, "a", deliveries(*range(first - 1, min(count, first + 999))))
    taken, back = UnackedTable(), dict[int, int]()
    for tag in singly:
        entry = table.take(tag)
        assert (entry is None) == (tag not in model)
        if entry is not None:
            taken.put(tag, entry)
            back[tag] = model.pop(tag)
    for tag in through:
        entries = table.take_through(tag)
        assert (entries is None) == (tag != 0 and tag not in model)
        if entries is not None:
            gone = [known for known in model if not tag or known <= tag]
            assert [each.seq_id for each in entries] == [model[known] for known in gone]
            taken.absorb(entries)
            back.update({known: model.pop(known) for known in gone})
        table.check_invariants()
    some = [each.seq_id for each in table.take_some(300)]
    assert sorted(some) == some
    assert len(some) == min(300, len(model))
    model = {tag: seq_id for tag, seq_id in model.items() if seq_id not in set(some)}
    assert len(taken) == len(back)
    table.put_back(taken)
    table.check_invariants()
    assert [each.seq_id for each in table] == [seq_id for _, seq_id in sorted({**model, **back}.items())]
