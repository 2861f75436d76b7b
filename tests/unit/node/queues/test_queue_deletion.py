"""Deleting a queue: its conditions, what waits for the decision, and what is told when it is gone."""

from __future__ import annotations

import pytest

from node.errors import ChannelError
from node.queues.events import CancelConsumer, ConfirmPublished
from tests.support.queue_bench import QueueBench, channel


def test_conditions_of_a_deletion() -> None:
    bench = QueueBench()
    bench.publish(1)
    bench.consume(prefetch_count=1)
    bench.publish(1)
    bench.drain()
    for conditions, text in (((True, False), "in use"), ((False, True), "is not empty")):
        with pytest.raises(ChannelError) as caught:
            bench.process.seal_for_delete(*conditions)
        assert caught.value.reply_text == f"PRECONDITION_FAILED - queue 'q' in vhost '/' {text}"


def test_a_sealed_queue_holds_publishes_back_and_a_broken_deletion_loses_none() -> None:
    bench = QueueBench()
    bench.publish(1)
    assert bench.process.seal_for_delete(if_unused=False, if_empty=False) == 1
    seen = [bench.process.is_sealed]
    bench.publish(2)
    assert bench.drain() == ["confirm 1"]
    with pytest.raises(ChannelError):
        bench.consume()
    with pytest.raises(ChannelError):
        bench.process.get(channel(1), no_ack=True)
    bench.process.unseal()
    assert [*seen, bench.process.is_sealed] == [True, False]
    assert bench.drain() == ["confirm 2 3"]
    assert bench.ready == [1, 2, 3]


def test_who_waits_for_a_sealed_queue_goes_on_when_it_is_not_deleted_and_never_if_it_is() -> None:
    went_on: list[str] = []
    for is_deleted in (False, True):
        bench = QueueBench()
        bench.process.seal_for_delete(if_unused=False, if_empty=False)
        bench.publish(1)
        bench.process.when_unsealed(lambda bench=bench: went_on.append(f"behind {bench.process.ready}"))  # type: ignore[misc]
        bench.process.when_unsealed(lambda: went_on.append("the second"))
        if is_deleted:
            bench.process.delete()
        else:
            bench.process.unseal()
            bench.process.unseal()
        assert went_on == ["behind 1", "the second"], "after what was held back, and once"


def test_a_mastership_that_ends_does_not_go_on_because_its_queue_is_not_deleted() -> None:
    """What waits goes to the next master."""
    went_on: list[str] = []
    bench = QueueBench()
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    bench.publish(1)
    bench.process.when_unsealed(lambda: went_on.append("here"))
    bench.process.hold()
    bench.process.unseal()
    bench.check()
    assert (bench.process.is_sealed, bench.process.is_closed) == (False, True)
    assert (bench.drain(), bench.ready, went_on) == ([], [], [])


def test_deletion_confirms_what_is_open_and_cancels_consumers() -> None:
    bench = QueueBench(durable=True)
    bench.consume(1, prefetch_count=1)
    bench.publish(2)
    assert bench.storage.has_files
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    bench.publish(1)
    effects = bench.process.delete()
    confirmed = [seq for each in effects if isinstance(each, ConfirmPublished) for seq in each.publish_seqs]
    assert sorted(confirmed) == [1, 2, 3]
    assert effects[-1] == CancelConsumer(channel(1), "t")
    assert (bench.process.consumer_count, bench.process.unacked) == (0, 0)
    bench.check()
    assert not bench.storage.has_files


def test_who_comes_after_a_deletion_finds_no_queue() -> None:
    bench = QueueBench()
    bench.process.delete()
    with pytest.raises(ChannelError, match="no queue"):
        bench.consume()
    with pytest.raises(ChannelError, match="no queue"):
        bench.process.get(channel(1), no_ack=True)
