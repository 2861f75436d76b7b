"""Which copies are out of service here, and what the cluster is told again of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.runtime.out_of_service import FAILURE_REPEAT_MS, OutOfService
from node.errors import DiskFullError, OpenFilesError, StorageError
from tests.support.queue_sets import N1, N2, N3, mastership, queue_record

Q = queue_record(7)
BROKEN, FULL, MISTAKE = StorageError("input/output error"), DiskFullError("no space"), TypeError("of ours")
TOO_MANY_FILES = OpenFilesError("too many open files")


def test_a_broken_disk_damages_and_a_mistake_does_not() -> None:
    failed = OutOfService(N1)
    record = mastership(Q, N1, N2)
    assert failed.add(Q, record, BROKEN).is_damaged
    assert not failed.add(Q, record, MISTAKE).is_damaged
    assert Q.queue_id in failed
    failed.left(Q.queue_id)
    assert Q.queue_id not in failed


@pytest.mark.parametrize("want", [FULL, TOO_MANY_FILES], ids=["room", "descriptors"])
def test_for_want_of_something_a_copy_waits_even_when_this_node_has_left_the_record(want: StorageError) -> None:
    failed = OutOfService(N1)
    failed.add(Q, mastership(Q, N1, N2), want)
    failed.left(Q.queue_id)
    assert failed.starved() == [Q.queue_id]
    assert Q.queue_id in failed
    failed.forgive(Q.queue_id)
    assert (failed.starved(), failed.get(Q.queue_id)) == ([], None)


def test_a_deleted_queue_waits_for_no_room() -> None:
    failed = OutOfService(N1)
    failed.add(Q, mastership(Q, N1), FULL)
    failed.deleted(Q.queue_id)
    failed.left(Q.queue_id)
    assert (failed.starved(), list(failed)) == ([], [])


def test_the_failure_goes_by_the_newest_record() -> None:
    failed = OutOfService(N1)
    old, new = mastership(Q, N1, N2), mastership(Q, N2, N1, epoch=2)
    failed.add(Q, old, BROKEN)
    told = failed.record_changed(new)
    assert told is not None
    assert told.record == old, "under which the cluster was told"
    now = failed.get(Q.queue_id)
    assert now is not None
    assert (now.record, now.is_damaged) == (new, True)
    failed.check_invariants()
    assert failed.record_changed(mastership(queue_record(8), N1)) is None


def test_what_others_can_go_on_without_is_told_again_after_a_while() -> None:
    failed = OutOfService(N1)
    served_by_others, mine, alone, left = (queue_record(number) for number in (1, 2, 3, 4))
    failed.add(served_by_others, mastership(served_by_others, N2, N1), BROKEN)
    failed.add(mine, mastership(mine, N1, N2), BROKEN)
    failed.add(alone, mastership(alone, N1), BROKEN)
    failed.add(left, mastership(left, N2, N3), BROKEN)
    assert failed.to_repeat(FAILURE_REPEAT_MS - 1) == []
    assert [each.record.queue_id for each in failed.to_repeat(FAILURE_REPEAT_MS)] == [1, 2]
    assert failed.to_repeat(FAILURE_REPEAT_MS + 1) == [], "that was just said"
    failed.record_changed(replace(mastership(mine, N1, N2), is_down=True))
    assert [each.record.queue_id for each in failed.to_repeat(2 * FAILURE_REPEAT_MS)] == [1]


def test_what_fails_after_a_long_time_is_not_told_twice_at_once() -> None:
    failed = OutOfService(N1)
    queue = queue_record(1)
    assert failed.to_repeat(10 * FAILURE_REPEAT_MS) == []
    failed.add(queue, mastership(queue, N2, N1), BROKEN)
    assert failed.to_repeat(10 * FAILURE_REPEAT_MS + 100) == [], "it was told when it failed"
    assert len(failed.to_repeat(11 * FAILURE_REPEAT_MS)) == 1
