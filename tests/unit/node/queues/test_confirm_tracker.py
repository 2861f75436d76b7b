"""Publishes wait for all their queues."""

from __future__ import annotations

from node.queues.confirm_tracker import ConfirmTracker, Resolved


def test_publishes_to_one_queue_resolve_as_they_are_answered() -> None:
    tracker = ConfirmTracker()
    tracker.expect({1: 10, 2: 20, 3: 30})
    assert tracker.confirmed([3, 1]) == Resolved([3, 1], [], 40)
    assert tracker.rejected([2]) == Resolved([], [2], 20)
    assert len(tracker) == 0


def test_a_publish_to_several_queues_waits_for_the_last() -> None:
    tracker = ConfirmTracker()
    tracker.expect({1: 10, 2: 20})
    tracker.expect_fanout(1, 3)
    assert tracker.confirmed([1, 2]) == Resolved([2], [], 20)
    tracker.check_invariants()
    assert tracker.confirmed([1]) == Resolved([], [], 0)
    assert tracker.size_bytes == 10
    assert tracker.confirmed([1]) == Resolved([1], [], 10)
    tracker.check_invariants()


def test_one_refusal_rejects_the_whole_publish_once_all_have_answered() -> None:
    tracker = ConfirmTracker()
    tracker.expect({1: 10})
    tracker.expect_fanout(1, 2)
    assert tracker.rejected([1]) == Resolved([], [], 0)
    assert tracker.confirmed([1]) == Resolved([], [1], 10)


def test_answers_that_nobody_waits_for_are_ignored() -> None:
    tracker = ConfirmTracker()
    tracker.expect({1: 10, 2: 5})
    assert tracker.confirmed([1, 7]) == Resolved([1], [], 10)
    assert tracker.confirmed([1]) == Resolved([], [], 0)
    assert tracker.rejected([1, 2]) == Resolved([], [2], 5)
