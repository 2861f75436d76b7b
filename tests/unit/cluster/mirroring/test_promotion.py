"""What a promoted replica may believe of what it holds."""

from __future__ import annotations

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring import promotion
from cluster.mirroring.master import recovered
from cluster.mirroring.promotion import UntrustedOrigins, held_again, kept_end, knows_deliveries, undelivered_start
from node.ids import Epoch, OriginId, SeqId
from node.queues import digests, local_replica
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.replica import SeqRange
from tests.support.messages import ORIGIN, make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, QUEUE, Pair
from tests.support.stores import StoreHarness

OTHER = OriginId(b"origin-2")


def segments_asked(monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """Filled with the segment of each call of a method of replicas."""
    asked: list[int] = []
    original = getattr(LocalReplica, method)

    def noted(replica: LocalReplica, segment: int) -> object:
        asked.append(segment)
        return original(replica, segment)

    monkeypatch.setattr(LocalReplica, method, noted)
    return asked


def test_a_tail_without_holes_is_undelivered_from_the_horizon_on() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(1, 6))
    assert undelivered_start(local, SeqId(2)) == 2
    assert undelivered_start(local, SeqId(6)) == 6, "nothing is left above it"


def test_a_long_tail_is_undelivered_from_the_horizon_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several segments; those above the horizon are counted only."""
    for module in (promotion, local_replica, digests):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", 4)
    local = StoreHarness().open_queue()
    local.publish(publications(1, 18))
    listed = segments_asked(monkeypatch, "live_positions")
    assert [undelivered_start(local, SeqId(at)) for at in (0, 6, 8, 17)] == [0, 6, 8, 17]
    assert listed == [0, 1, 2, 4]
    local.remove([SeqRange(SeqId(9), SeqId(10))])
    assert [undelivered_start(local, SeqId(at)) for at in (6, 9, 10, 12)] == [18, 10, 10, 12]


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


def test_what_its_publishers_send_again_is_vouched_for() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(3, 1))
    untrusted = UntrustedOrigins(local, {})
    for counter in (1, 2):
        untrusted.published([make_message(counter), make_message(7, origin=OTHER)])
        assert untrusted.vouched({ORIGIN: 3}) == {ORIGIN: counter}
    untrusted.published([make_message(4)])
    assert untrusted.vouched({ORIGIN: 4}) == {ORIGIN: 4}


def test_what_was_here_and_is_settled_since_is_no_new_message() -> None:
    """Its publisher may return later than its consumers."""
    local = StoreHarness().open_queue()
    local.publish(publications(1, 3))
    untrusted = UntrustedOrigins(local, {})
    [first] = local.fetch(1, ack_required=True)
    untrusted.delivered([first.message])
    local.ack([first.seq_id])
    assert untrusted.is_duplicate(msg_id_of(1))
    assert untrusted.is_duplicate(msg_id_of(2))


def test_only_so_many_deliveries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "TAKEN_MAX", 4)
    local = StoreHarness().open_queue()
    local.publish(publications(1, 10))
    untrusted = UntrustedOrigins(local, {})
    for _ in range(5):
        deliveries = local.fetch(2, ack_required=True)
        untrusted.delivered([delivery.message for delivery in deliveries])
        local.ack([delivery.seq_id for delivery in deliveries])
    assert [untrusted.is_duplicate(msg_id_of(counter)) for counter in range(1, 11)] == [True] * 4 + [False] * 6


def test_only_the_end_of_a_long_queue_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never confirmed is among the last that came, and nobody waits for millions to be read."""
    for module in (promotion, local_replica, digests):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", 4)
    monkeypatch.setattr(promotion, "SCANNED_POSITIONS", 7)
    local = StoreHarness().open_queue()
    local.publish(publications(1, 100))
    untrusted = UntrustedOrigins(local, {})
    read = segments_asked(monkeypatch, "holdings")
    assert untrusted.is_duplicate(msg_id_of(93))
    assert not untrusted.is_duplicate(msg_id_of(92))
    assert read == [23, 24]


@pytest.fixture
def again() -> LocalReplica:
    """The first two of six messages came again, as the last two."""
    local = StoreHarness().open_queue()
    local.publish(publications(1, 6))
    messages = [make_message(1), make_message(2)]
    local.insert([SeqId(6), SeqId(7)], messages, [message.envelope() for message in messages])
    return local


def test_of_what_is_here_twice_the_first_stays(again: LocalReplica) -> None:
    assert held_again(again) == [SeqRange(SeqId(6), SeqId(7)), SeqRange(SeqId(7), SeqId(8))]
    again.remove(held_again(again))
    assert held_again(again) == []
    assert [delivery.seq_id for delivery in again.fetch(9, ack_required=False)] == [0, 1, 2, 3, 4, 5]


def test_what_is_unacked_is_here_and_what_is_settled_is_not(again: LocalReplica) -> None:
    again.fetch(2, ack_required=True)
    again.ack([SeqId(0)])
    assert held_again(again) == [SeqRange(SeqId(7), SeqId(8))]


def test_entries_are_read_only_where_something_is_here_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only at the end of a long queue, however it came to be here."""
    for module in (promotion, local_replica, digests):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", 4)
    monkeypatch.setattr(promotion, "SCANNED_POSITIONS", 7)
    monkeypatch.setattr(LocalReplica, "holdings", None)
    looked_at = segments_asked(monkeypatch, "msg_ids")
    local = StoreHarness().open_queue()
    local.publish(publications(1, 99))
    first = make_message(1)
    local.insert([SeqId(99)], [first], [first.envelope()])
    assert held_again(local) == [], "the other is too far back"
    assert looked_at == [23, 24]


def test_a_tail_of_which_nothing_is_left_counts_as_delivered_whole() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(1, 6))
    local.remove([SeqRange(SeqId(3), SeqId(6))])
    assert undelivered_start(local, SeqId(3)) == 6


def test_deliveries_that_can_be_told_by_their_counter_need_not_be_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take the place of those that cannot."""
    monkeypatch.setattr(promotion, "TAKEN_MAX", 1)
    local = StoreHarness().open_queue()
    local.publish([Publication(make_message(5, origin=OTHER), 5)])
    local.publish(publications(3, 1))
    untrusted = UntrustedOrigins(local, {OTHER: 5})
    for _ in range(2):
        [delivery] = local.fetch(1, ack_required=True)
        untrusted.delivered([delivery.message])
        local.ack([delivery.seq_id])
    assert untrusted.is_duplicate(msg_id_of(3))


def test_what_was_delivered_is_remembered_as_long_as_any_origin_may_send_again() -> None:
    local = StoreHarness().open_queue()
    local.publish(publications(3, 1))
    local.publish([Publication(make_message(2, origin=OTHER), 2)])
    untrusted = UntrustedOrigins(local, {})
    [delivery] = local.fetch(1, ack_required=True)
    untrusted.delivered([delivery.message])
    local.ack([delivery.seq_id])
    untrusted.published([make_message(3, origin=OTHER)])
    assert untrusted
    assert untrusted.is_duplicate(msg_id_of(3))
    assert not untrusted.is_duplicate(msg_id_of(2))
    untrusted.published([make_message(4)])
    assert not untrusted, "nobody has anything to send again"
    assert (untrusted._live, untrusted._taken) == (None, set()), "and nothing is kept for it"


def test_a_copy_knows_its_deliveries_if_it_heard_the_end_of_all_that_were_in_service() -> None:
    record = MastershipRecord(QUEUE, Epoch(5), N1, complete=(N1,), served_epoch=Epoch(3), in_service=False)
    local = StoreHarness().open_queue()
    assert kept_end(local) is None
    assert knows_deliveries(local, N1, record), "as an older release left it: a complete copy was the master's"
    assert knows_deliveries(local, N2, record) is False
    local.close_deliveries(Epoch(2), SeqId(7))
    assert kept_end(local) == (2, 7)
    assert not knows_deliveries(local, N1, record)
    local.close_deliveries(Epoch(3), SeqId(9))
    assert knows_deliveries(local, N2, record)


@pytest.mark.parametrize(("served_epoch", "is_flagged"), [(1, False), (2, True)])
def test_a_copy_that_was_closed_flags_everything_if_others_have_served_since(
    served_epoch: int, is_flagged: bool
) -> None:
    """What they have delivered is on none of its files."""
    pair = Pair()
    pair.master.publish(publications(1, 2))
    pair.master.close_deliveries()
    record = MastershipRecord(QUEUE, Epoch(3), N1, complete=(N1,), served_epoch=Epoch(served_epoch))
    queue = recovered(N1, pair.master_disk.restart(), record)
    assert [delivery.redelivered for delivery in queue.fetch(2, ack_required=True)] == [is_flagged] * 2
