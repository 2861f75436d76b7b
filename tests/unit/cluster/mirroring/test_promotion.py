"""What a promoted replica may believe of what it holds."""

from __future__ import annotations

from cluster.mirroring.promotion import UntrustedOrigins, undelivered_start
from node.ids import OriginId, SeqId
from node.queues.backing_queue import Publication
from node.queues.replica import SeqRange
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.stores import StoreHarness

OTHER = OriginId(b"origin-2")


def test_a_tail_without_holes_is_undelivered_from_the_horizon_on() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(1, 6))
    assert undelivered_start(local, SeqId(2)) == 2
    assert undelivered_start(local, SeqId(6)) == 6, "nothing is left above it"


def test_a_tail_whose_beginning_is_settled_is_undelivered_from_there_on() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(1, 6))
    local.fetch(3, ack_required=False)
    assert undelivered_start(local, SeqId(0)) == 3


def test_a_tail_with_a_hole_counts_as_delivered_whole() -> None:
    """Undelivered messages are counted by subtracting positions, which a hole would make too many."""
    local = StoreHarness().open_queue()
    local.publish(publications(1, 6))
    local.remove([SeqRange(SeqId(3), SeqId(4))])
    assert undelivered_start(local, SeqId(2)) == 6


def test_an_origin_that_is_vouched_for_is_not_looked_up_by_content() -> None:
    """One origin has sent more than the replica can vouch for, another has not; messages of both are live."""
    local = StoreHarness().open_queue()
    local.publish(publications(2, 1))
    local.publish([Publication(make_message(5, origin=OTHER), 5)])
    untrusted = UntrustedOrigins(local, {OTHER: 5})
    assert untrusted.is_duplicate(msg_id_of(2)), "it is here"
    assert not untrusted.is_duplicate(msg_id_of(1)), "its counter is below, and it is not here"
    assert untrusted.is_duplicate(msg_id_of(4, OTHER)), "settled: below what is vouched for"
