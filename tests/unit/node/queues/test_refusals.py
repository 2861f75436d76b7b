"""What a queue refused comes again, because its publisher's node did not hear of it."""

from __future__ import annotations

from node.queues.refusals import REFUSED_MAX, Refusals
from tests.support.messages import msg_id_of
from tests.support.queue_bench import QueueBench, channel, message


def test_what_was_refused_and_comes_again_is_decided_on_anew_though_later_ones_were_accepted() -> None:
    """The link broke before the publisher's node heard any of it."""
    bench = QueueBench(max_length=2, overflow="reject-publish")
    bench.publish(3)
    bench.process.purge()
    bench.publish(1)
    assert bench.drain() == ["confirm 1 2 4", "reject 3"]
    bench.publish_again(1, 2, 3, 4)
    assert bench.drain() == ["confirm 3 1 2 4"], "there is room by now"
    assert [each.body for each in bench.storage.ready_messages()] == [b"4", b"3"]
    bench.publish_again(3)
    assert bench.ready == [3, 4], "now it is known"


def test_what_was_accepted_after_a_refusal_is_known_when_it_comes_a_third_time() -> None:
    bench = QueueBench(max_length=2, overflow="reject-publish")
    bench.publish(3)
    bench.process.purge()
    bench.publish_again(3)
    assert bench.drain() == ["confirm 1 2 3", "reject 3"]
    bench.publish_again(3)
    assert [each.body for each in bench.storage.ready_messages()] == [b"3"]


def test_what_was_refused_and_comes_again_to_a_full_queue_is_refused_again() -> None:
    bench = QueueBench(max_length_bytes=10, overflow="reject-publish")
    bench.publish(1, body=b"x" * 11)
    bench.publish(1, body=b"x" * 10)
    bench.drain()
    bench.process.publish(channel(1), [message(1, b"x" * 11), message(2, b"x" * 10)], [1, 2])
    assert bench.drain() == ["confirm 2", "reject 1"]


def test_only_the_last_refusals_are_remembered() -> None:
    refusals = Refusals()
    refusals.add(msg_id_of(counter) for counter in range(1, REFUSED_MAX + 2))
    refusals.check_invariants()
    assert [refusals.take(msg_id_of(counter)) for counter in (1, 2, REFUSED_MAX + 1)] == [False, True, True]
