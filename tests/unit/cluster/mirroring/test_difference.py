"""Which part of a difference is the master's to fill."""

from __future__ import annotations

from cluster.mirroring.difference import compare
from cluster.mirroring.messages import SegmentHoldings
from node.ids import SeqId
from node.queues.replica import SeqRange
from tests.support.messages import publications
from tests.support.stores import StoreHarness


def test_what_was_published_since_the_attach_is_not_lacking() -> None:
    """The stream brings it."""
    local = StoreHarness().open_queue()
    local.publish(publications(1, 5))
    lacking, extras = compare(local, SeqId(3), [SegmentHoldings(0, ())])
    assert lacking == [SeqRange(SeqId(0), SeqId(3))]
    assert extras == []


def test_what_the_master_settled_since_the_attach_is_in_excess() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(1, 5))
    mirror = SegmentHoldings(0, tuple(local.holdings(0)))
    local.fetch(2, ack_required=False)
    lacking, extras = compare(local, SeqId(5), [mirror])
    assert lacking == []
    assert extras == [SeqRange(SeqId(0), SeqId(2))]
