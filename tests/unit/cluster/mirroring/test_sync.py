"""Cutting what a mirror lacks into batches, and how fast they may go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.mirroring import sync
from cluster.mirroring.ranges import SeqRangeSet
from cluster.mirroring.settings import MirroringSettings
from cluster.mirroring.sync import SyncThrottle, cut_batch
from node.ids import SeqId
from node.queues.replica import SeqRange


class Reader:
    """A queue with messages of 100 bytes, of which every fifth is settled."""

    def __init__(self) -> None:
        #: How many were asked for at a time.
        self.asked: list[int] = []

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        self.asked.append(len(seq_ids))
        return [(seq_id, bytes(100)) for seq_id in seq_ids if seq_id % 5]


def lacking(first: int, end: int) -> SeqRangeSet:
    ranges = SeqRangeSet()
    ranges.append(SeqRange(SeqId(first), SeqId(end)))
    return ranges


def test_a_batch_has_so_many_messages_that_are_still_there() -> None:
    rest = lacking(0, 20)
    batch = cut_batch(Reader(), rest, 6, 10**6)
    assert batch is not None
    op, size_bytes = batch
    assert op.seq_ids == (1, 2, 3, 4, 6, 7)
    assert len(op.envelopes) == size_bytes == 600
    assert list(rest) == [SeqRange(SeqId(8), SeqId(20))]


def test_a_batch_ends_with_the_read_that_makes_up_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "SYNC_READ_MESSAGES", 4)
    reader = Reader()
    batch = cut_batch(reader, lacking(1, 50), 99, 600)
    assert batch is not None
    assert batch[1] == 600
    assert reader.asked == [1, 2, 4]
    batch = cut_batch(reader, lacking(1, 50), 99, 601)
    assert batch is not None
    assert batch[1] == 900
    assert reader.asked[3:] == [1, 2, 4, 4]


def test_a_batch_of_large_messages_is_not_much_larger_than_it_should_be() -> None:
    """Each read takes about as many as those before it together."""
    for bytes_max in (1, 100, 250, 1000, 3000):
        batch = cut_batch(Reader(), lacking(1, 99), 99, bytes_max)
        assert batch is not None
        assert bytes_max <= batch[1] < 2 * bytes_max + 100


def test_of_what_is_settled_there_is_no_batch() -> None:
    rest = lacking(5, 6)
    assert cut_batch(Reader(), rest, 9, 10**6) is None
    assert not rest


def test_a_batch_has_as_many_messages_as_one_of_rabbitmq_unless_a_policy_says_otherwise() -> None:
    assert MirroringSettings().sync_batch_messages == 4096


def test_who_has_overdrawn_waits_until_it_is_earned() -> None:
    throttle = SyncThrottle(1000)
    throttle.tick(5)
    assert throttle.may_send, "a second's worth at first"
    throttle.spend(3000)
    for now_ms, is_earned in ((5, False), (1005, False), (2005, False), (2006, True)):
        throttle.tick(now_ms)
        assert throttle.may_send is is_earned
    throttle.tick(60_000)
    throttle.spend(1000)
    assert not throttle.may_send, "no more than a second's worth is saved"


def test_without_a_limit_nobody_waits() -> None:
    throttle = SyncThrottle(0)
    throttle.spend(10**12)
    throttle.tick(1)
    assert throttle.may_send
