"""RabbitMQ's ``unit_classic_mirrored_queue_sync_throttling_SUITE``: how a synchronisation is cut into batches, and how
its speed is kept."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.mirroring.ranges import SeqRangeSet
from cluster.mirroring.sync import SyncThrottle, cut_batch
from node.ids import SeqId
from node.queues.replica import SeqRange


class Content:
    """A queue whose messages all have 100 bytes, but for those that are settled."""

    def __init__(self, *settled: int) -> None:
        self._settled = settled

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        return [(seq_id, b"x" * 100) for seq_id in seq_ids if seq_id not in self._settled]


def lacking(number: int) -> SeqRangeSet:
    """The first so many positions."""
    positions = SeqRangeSet()
    positions.append(SeqRange(SeqId(0), SeqId(number)))
    return positions


def test_t1_a_batch_ends_with_its_number_of_messages() -> None:
    rest = lacking(10)
    cut = cut_batch(Content(), rest, messages_max=4, bytes_max=10_000)
    assert cut is not None
    assert cut[0].seq_ids == (0, 1, 2, 3)
    assert list(rest) == [SeqRange(SeqId(4), SeqId(10))]


def test_t1_a_batch_ends_with_its_number_of_bytes() -> None:
    """Reads grow from 1 message to 64, and the last may bring as much again as all before."""
    rest = lacking(1_000)
    cut = cut_batch(Content(), rest, messages_max=1_000, bytes_max=10_000)
    assert cut is not None
    assert len(cut[0].seq_ids) == 127
    assert list(rest) == [SeqRange(SeqId(127), SeqId(1_000))]


def test_t1_a_batch_ends_with_what_is_to_be_sent() -> None:
    rest = lacking(3)
    cut = cut_batch(Content(), rest, messages_max=4, bytes_max=10_000)
    assert cut is not None
    assert cut[0].seq_ids == (0, 1, 2)
    assert cut_batch(Content(), rest, messages_max=4, bytes_max=10_000) is None


def may_send_at(throttle: SyncThrottle, now_ms: int) -> bool:
    throttle.tick(now_ms)
    return throttle.may_send


def test_t2_what_may_be_sent_follows_from_the_time_that_has_passed() -> None:
    throttle = SyncThrottle(1_000)
    assert may_send_at(throttle, 5_000)
    throttle.spend(1_500)
    assert not may_send_at(throttle, 5_400)
    assert may_send_at(throttle, 5_501)
    assert may_send_at(throttle, 60_000)
    throttle.spend(1_000)
    assert not throttle.may_send, "a second's worth at most is saved up"


def test_t2_without_a_limit_everything_may_be_sent_at_once() -> None:
    throttle = SyncThrottle(0)
    throttle.spend(1 << 40)
    assert throttle.may_send


def test_t3_a_batch_keeps_the_order_and_knows_its_size_and_leaves_out_what_is_settled() -> None:
    cut = cut_batch(Content(1, 2), lacking(5), messages_max=10, bytes_max=10_000)
    assert cut is not None
    batch, size_bytes = cut
    assert batch.seq_ids == (0, 3, 4)
    assert size_bytes == len(batch.envelopes) == 300
