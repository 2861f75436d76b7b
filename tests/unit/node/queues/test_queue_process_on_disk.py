"""The queue process over the real storage engine on the simulated disk: the two halves of a queue together."""

from __future__ import annotations

import random

from node.ids import SeqId
from node.queues.events import ConfirmPublished, ConsumerSpec, Deliver
from node.queues.queue_process import QueueProcess
from tests.support.queue_bench import channel, message, queue_record
from tests.support.stores import StoreHarness

PUBLISHER = channel(99)


def confirmed(process: QueueProcess) -> list[int]:
    return [seq for each in process.drain() if isinstance(each, ConfirmPublished) for seq in each.publish_seqs]


def test_persistent_messages_are_confirmed_after_the_sync_only() -> None:
    harness = StoreHarness()
    process = QueueProcess(queue_record(), harness.open_queue())
    process.publish(PUBLISHER, [message(1), message(2)], [1, 2])
    assert confirmed(process) == []
    harness.sync()
    assert sorted(confirmed(process)) == [1, 2]
    process.check_invariants()


def test_after_a_crash_confirmed_messages_come_again_in_order() -> None:
    harness = StoreHarness()
    process = QueueProcess(queue_record(), harness.open_queue())
    process.consume(channel(1), ConsumerSpec("t", no_ack=False, exclusive=False, prefetch_count=2))
    process.publish(PUBLISHER, [message(counter) for counter in (1, 2, 3)], [1, 2, 3])
    (deliver,) = [each for each in process.drain() if isinstance(each, Deliver)]
    process.ack(channel(1), [deliver.deliveries[0].seq_id])
    harness.sync()
    assert sorted(confirmed(process)) == [1, 2, 3]
    harness.sync()
    successor = QueueProcess(queue_record(), harness.crash())
    delivery = successor.get(channel(2), no_ack=True)
    assert delivery is not None
    assert delivery.message.body == b"2"
    assert successor.ready == 1
    successor.check_invariants()


def test_random_operations_conserve_every_message() -> None:
    """Published = settled + unacked + ready, whatever happens, with the invariants of both halves."""
    for seed in range(8):
        chance = random.Random(seed)
        harness = StoreHarness()
        storage = harness.open_queue()
        process = QueueProcess(queue_record(), storage)
        published, settled = 0, 0
        held: dict[int, list[SeqId]] = {1: [], 2: []}
        for number in held:
            process.consume(channel(number), ConsumerSpec("t", no_ack=False, exclusive=False, prefetch_count=20))
        for _ in range(120):
            number = chance.choice([1, 2])
            step = chance.randrange(6)
            if step <= 2:
                counters = range(published + 1, published + chance.randrange(2, 12))
                process.publish(PUBLISHER, [message(each) for each in counters], list(counters))
                published += len(counters)
            elif step == 3:
                done = held[number][: chance.randrange(8)]
                held[number] = held[number][len(done) :]
                process.ack(channel(number), done)
                settled += len(done)
            elif step == 4:
                process.requeue(channel(number), held[number])
                held[number] = []
            else:
                harness.sync()
            for effect in process.drain():
                if isinstance(effect, Deliver):
                    held[effect.channel.channel_id].extend(each.seq_id for each in effect.deliveries)
            process.check_invariants()
            storage.check_invariants()
            assert published == settled + process.unacked + process.ready
