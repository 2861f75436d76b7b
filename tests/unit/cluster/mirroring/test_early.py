"""What waits because its master is ahead in the log, and when it need not wait any longer."""

from __future__ import annotations

import pytest

from cluster.mirroring import early
from cluster.mirroring.early import EarlyMessages
from cluster.mirroring.messages import Attach, Ops
from node.ids import Epoch, QueueId, SeqId
from tests.support.mirror_pair import N1, N2, QUEUE


def attach(as_of_index: int, attach_id: int = 1, queue_id: QueueId = QUEUE) -> Attach:
    return Attach(
        queue_id,
        Epoch(1),
        attach_id,
        1,
        SeqId(0),
        SeqId(0),
        {},
        (),
        as_of_index,
        hears_between=True,
        may_lack_refused=False,
    )


def ops(first_index: int, attach_id: int = 1, queue_id: QueueId = QUEUE) -> Ops:
    return Ops(queue_id, Epoch(1), attach_id, first_index, ())


def test_an_attach_waits_until_the_log_is_as_far_and_what_follows_it_waits_with_it() -> None:
    messages = EarlyMessages()
    assert messages.is_early(attach(5), 4)
    assert not messages.is_early(attach(5), 5)
    assert not messages.is_early(ops(2), 4), "it belongs to what this node knows"
    messages.keep(N1, attach(5))
    assert messages.is_early(ops(2), 4)
    messages.keep(N1, ops(2))
    messages.check_invariants()
    assert messages.due(lambda _queue_id: 4) == []
    assert messages.take(QUEUE, 4) == []
    assert messages.due(lambda _queue_id: 5) == [QUEUE]
    assert messages.take(QUEUE, 5) == [(N1, attach(5)), (N1, ops(2))]
    assert not messages.is_early(ops(3), 4)


def test_a_later_attach_takes_the_place_of_the_one_before_and_of_what_followed_it() -> None:
    messages = EarlyMessages()
    for message in (attach(5), ops(2), attach(6, 2), ops(3, 2)):
        messages.keep(N1, message)
    messages.check_invariants()
    assert messages.take(QUEUE, 5) == []
    assert messages.take(QUEUE, 6) == [(N1, attach(6, 2)), (N1, ops(3, 2))]


def test_operations_without_an_attach_are_of_no_use() -> None:
    messages = EarlyMessages()
    messages.keep(N1, ops(2))
    messages.check_invariants()
    assert messages.due(lambda _queue_id: 9) == []


def test_a_broken_link_and_a_deleted_queue_end_the_wait() -> None:
    messages = EarlyMessages()
    other, third = QueueId(8), QueueId(9)
    messages.keep(N1, attach(5))
    messages.keep(N2, attach(5, queue_id=other))
    messages.keep(N2, attach(5, queue_id=third))
    messages.forget_node(N1)
    messages.forget_queue(third)
    assert messages.due(lambda _queue_id: 5) == [other]


def test_the_queues_that_wait_are_bounded_and_the_longest_waiting_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "EARLY_QUEUES_MAX", 2)
    messages = EarlyMessages()
    for number in (1, 2, 1, 3):
        messages.keep(N1, attach(5, queue_id=QueueId(number)))
        messages.check_invariants()
    assert messages.due(lambda _queue_id: 5) == [1, 3], "queue 1 began anew after queue 2"
