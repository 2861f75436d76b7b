"""Publishes that a queue holds back: how it takes them, and what a purge and a deletion make of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from node.errors import ChannelError
from node.ids import ORIGIN_BYTES, SeqId
from node.queues import queue_process
from node.queues.events import ConfirmPublished
from node.queues.queue_process import LET_IN_MAX
from tests.support.queue_bench import QueueBench, channel, message

HOLDER, PUBLISHER = channel(1), channel(1000)


def sealed(**arguments: Any) -> QueueBench:
    """An empty queue about which a deletion is being decided."""
    bench = QueueBench(**arguments)
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    return bench


def full_and_returning(count: int = 3_000, *, room: int = 0) -> QueueBench:
    """A queue that refuses what is above its limit, whose messages are on their way back from a dead channel."""
    bench = QueueBench(max_length=count + room, overflow="reject-publish")
    bench.publish(count, confirm=False)
    while bench.process.unacked < count:
        bench.process.get(HOLDER, no_ack=False)
    bench.process.channel_down(HOLDER)
    assert bench.process.ready == count
    return bench


def hold_back(bench: QueueBench, batches: int, messages: int) -> None:
    """Batches of three channels in turn, each of an origin of its own, and one that is very large."""
    for number in range(batches):
        of, nth = 10 + number % 3, number // 3
        counters = range(1 + nth * messages, 1 + (nth + 1) * messages)
        bench.process.publish(channel(of), [message(each, from_origin=of) for each in counters], list(counters))
    bench.publish(3 * LET_IN_MAX)
    bench.check()


def drained(bench: QueueBench) -> list[str]:
    """What is said until there is nothing left to do."""
    said = bench.drain()
    while bench.process.has_more:
        said += bench.drain()
    return said


def bodies(bench: QueueBench) -> list[bytes]:
    return [each.body for each in bench.storage.ready_messages()]


def answered(said: list[str], word: str) -> int:
    """How many were."""
    return sum(len(text.split()) - 1 for text in said if text.startswith(word))


# --- pieces ---


def test_what_a_seal_held_back_is_taken_in_bounded_turns_and_in_order() -> None:
    at_once, bench = QueueBench(), sealed()
    for each in (at_once, bench):
        hold_back(each, 60, 64)
    bench.process.unseal()
    taken = [bench.process.ready]
    said = []
    while bench.process.has_more:
        said += bench.drain()
        taken.append(bench.process.ready - sum(taken))
    assert max(taken) <= LET_IN_MAX, "in one turn"
    assert bodies(bench) == bodies(at_once)
    assert answered(said, "confirm") == answered(at_once.drain(), "confirm") == 60 * 64 + 3 * LET_IN_MAX


def test_what_is_refused_is_refused_in_bounded_turns() -> None:
    bench = full_and_returning()
    hold_back(bench, 60, 64)
    refused = []
    while bench.process.has_more:
        refused.append(answered(bench.drain(), "reject"))
    assert max(refused) <= LET_IN_MAX
    assert sum(refused) == 60 * 64 + 3 * LET_IN_MAX
    assert bench.process.ready == 3_000


def test_a_publish_that_comes_meanwhile_goes_behind_what_is_held() -> None:
    bench = sealed()
    bench.publish(LET_IN_MAX + 1)
    bench.process.unseal()
    bench.publish(1)
    assert bench.process.ready == LET_IN_MAX
    assert answered(drained(bench), "confirm") == LET_IN_MAX + 2
    assert bodies(bench) == [str(each).encode() for each in range(1, LET_IN_MAX + 3)]


def test_publishers_are_granted_more_as_theirs_are_taken() -> None:
    bench = sealed()
    bench.process.flow.begin(PUBLISHER, LET_IN_MAX)
    bench.publish(2 * LET_IN_MAX)
    assert bench.process.flow.take(PUBLISHER) == 0
    bench.process.unseal()
    assert bench.process.flow.take(PUBLISHER) == LET_IN_MAX


def test_a_queue_that_is_sealed_again_holds_back_what_it_had_not_taken() -> None:
    bench = sealed()
    bench.publish(LET_IN_MAX + 1)
    bench.process.unseal()
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    assert not drained(bench)[1:], "the confirms of what was taken"
    assert bench.process.ready == LET_IN_MAX
    assert not bench.process.has_more
    bench.process.unseal()
    drained(bench)
    assert bench.process.ready == LET_IN_MAX + 1


# --- more than a turn has time for ---


def test_what_a_hundred_channels_send_a_new_master_in_one_turn_is_taken_in_many() -> None:
    bench = QueueBench()
    for of in range(1, 101):
        messages = [message(each, from_origin=of) for each in range(1, 401)]
        bench.process.publish(channel(of), messages, range(1, 401), is_resent=True)
    bench.check()
    taken = [bench.process.ready]
    assert taken[0] < 5 * LET_IN_MAX
    said = bench.drain()
    while bench.process.has_more:
        taken.append(bench.process.ready)
        said += bench.drain()
    assert max(after - before for before, after in pairwise(taken)) <= LET_IN_MAX
    assert answered(said, "confirm") == len(bodies(bench)) == 100 * 400
    counters: dict[bytes, list[int]] = {}
    for each in bench.storage.ready_messages():
        counters.setdefault(each.msg_id[:ORIGIN_BYTES], []).append(int(each.body))
    assert all(each == list(range(1, 401)) for each in counters.values()), "each channel's in order"


def test_the_next_turn_has_time_for_as_many_more() -> None:
    bench = QueueBench()
    for _ in range(3):
        for _ in range(4):
            bench.publish(LET_IN_MAX)
        assert bench.process.held_back == 0
        bench.drain()
    assert bench.process.ready == 12 * LET_IN_MAX


# --- purge ---


def test_a_purge_takes_along_what_was_published_before() -> None:
    bench = full_and_returning(room=10)
    bench.publish(1)
    assert bench.process.purge() == 3_001
    bench.publish(1)
    assert bench.process.ready == 0
    assert drained(bench) == ["confirm 3001 3002"]
    assert bodies(bench) == [b"3002"]


def test_what_a_purge_takes_along_goes_in_bounded_turns() -> None:
    bench = full_and_returning(room=10)
    hold_back(bench, 60, 64)
    held = 60 * 64 + 3 * LET_IN_MAX
    assert bench.process.purge() == 3_000 + held
    assert bench.process.purge() == 0
    confirmed = []
    while bench.process.has_more:
        confirmed.append(answered(bench.drain(), "confirm"))
    assert max(confirmed) <= LET_IN_MAX
    assert sum(confirmed) == held
    assert bodies(bench) == []


def test_what_returns_after_a_purge_stays_though_some_of_it_is_still_to_be_purged() -> None:
    bench = QueueBench(max_length=4_000, overflow="reject-publish")
    bench.publish(3_001, confirm=False)
    for _ in range(3_000):
        bench.process.get(HOLDER, no_ack=False)
    bench.process.get(channel(2), no_ack=False)
    bench.process.channel_down(HOLDER)
    bench.publish(1)
    bench.process.purge()
    bench.requeue(2, SeqId(3_001))
    assert drained(bench) == ["confirm 3002"]
    assert bodies(bench) == [b"3001"]


def test_what_was_purged_before_it_was_taken_is_known_when_it_is_sent_again() -> None:
    bench = full_and_returning(room=10)
    bench.publish(1)
    bench.process.purge()
    drained(bench)
    bench.publish_again(3_001)
    assert bench.drain() == ["confirm 3001"]
    assert bodies(bench) == []


def test_a_repetition_that_is_purged_before_it_is_looked_at_is_confirmed() -> None:
    bench = full_and_returning(room=10)
    bench.publish_again(3_000)
    bench.process.purge()
    assert drained(bench) == ["confirm 3000"]


def test_what_can_never_fit_is_refused_though_it_is_purged() -> None:
    bench = QueueBench(max_length_bytes=3_000, overflow="reject-publish")
    bench.publish(3_000, body=b"x", confirm=False)
    for _ in range(3_000):
        bench.process.get(HOLDER, no_ack=False)
    bench.process.channel_down(HOLDER)
    bench.publish(1, body=b"x" * 3_001)
    bench.publish(1, body=b"x")
    bench.process.purge()
    assert drained(bench) == ["confirm 3002", "reject 3001"]


def test_a_purge_of_a_queue_that_may_be_deleted_takes_along_what_waits_for_that() -> None:
    bench = sealed()
    bench.publish(1)
    assert bench.process.purge() == 1
    bench.publish(1)
    assert bench.drain() == []
    bench.process.unseal()
    assert drained(bench) == ["confirm 1 2"]
    assert bodies(bench) == [b"2"]


def test_what_was_purged_before_it_was_taken_is_gone_before_an_orderly_stop() -> None:
    """Its publisher hears so, and does not send it to the next master."""
    bench = full_and_returning(room=10)
    hold_back(bench, 60, 64)
    bench.process.purge()
    bench.publish(1)
    bench.process.hold()
    assert answered(bench.drain(), "confirm") == 60 * 64 + 3 * LET_IN_MAX
    assert bench.storage.live == []


def test_what_is_purged_waits_as_long_as_the_master_may_hand_out_nothing() -> None:
    bench = full_and_returning(room=10)
    bench.publish(1)
    bench.process.purge()
    bench.storage.is_fenced = True
    assert drained(bench) == []
    bench.process.hold()
    bench.storage.is_fenced = False
    assert bench.drain() == [], "the next master is told"


def test_a_purge_does_not_count_what_is_sent_to_the_next_master() -> None:
    bench = QueueBench()
    bench.publish(1)
    bench.process.hold()
    bench.publish(1)
    assert bench.process.purge() == 1


# --- deletion ---


def test_a_queue_is_not_empty_while_it_has_not_taken_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_process, "LET_IN_MAX", 1)
    bench = sealed()
    bench.publish(2)
    bench.process.unseal()
    assert bench.process.get(HOLDER, no_ack=True) is not None
    assert bench.process.ready == 0
    with pytest.raises(ChannelError, match="not empty"):
        bench.process.seal_for_delete(if_unused=False, if_empty=True)
    assert not bench.process.is_closed
    assert bench.process.seal_for_delete(if_unused=False, if_empty=False) == 1
    with pytest.raises(ChannelError, match="not empty"):
        bench.process.seal_for_delete(if_unused=False, if_empty=True)


def test_a_queue_is_empty_after_a_purge_though_some_of_it_is_still_to_be_purged() -> None:
    bench = full_and_returning(room=10)
    bench.publish(1)
    bench.process.purge()
    assert bench.process.seal_for_delete(if_unused=False, if_empty=True) == 0


def test_what_came_after_the_seal_does_not_count_when_the_deletion_is_asked_for_again() -> None:
    bench = sealed()
    bench.publish(1)
    assert bench.process.seal_for_delete(if_unused=False, if_empty=True) == 0
    bench.process.purge()
    assert bench.process.seal_for_delete(if_unused=False, if_empty=True) == 0


def test_a_deletion_confirms_what_was_not_taken() -> None:
    bench = sealed()
    bench.publish(2 * LET_IN_MAX)
    bench.process.unseal()
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    effects = bench.process.delete()
    assert sum(len(each.publish_seqs) for each in effects if isinstance(each, ConfirmPublished)) == 2 * LET_IN_MAX
    assert not bench.process.has_more
    bench.process.check_invariants()


# --- what is sent again while it waits ---


def test_what_is_sent_again_while_it_waits_is_refused_or_taken_and_not_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publisher's node was cut off for a moment, and there is room in the queue between the first copy and the
    second."""
    monkeypatch.setattr(queue_process, "LET_IN_MAX", 3)
    bench = sealed(max_length=1, overflow="reject-publish")
    flow = bench.process.flow
    flow.begin(PUBLISHER, 10)
    bench.publish(3)
    bench.process.channel_down(PUBLISHER, may_return=True)
    flow.begin(PUBLISHER, 10)
    bench.publish_again(1, 2, 3)
    bench.process.unseal()
    assert bench.process.get(HOLDER, no_ack=True) is not None
    assert sorted(drained(bench)) == ["confirm 1 2 1", "reject 3"]
    assert bodies(bench) == [b"2"]
