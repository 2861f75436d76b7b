"""A mirrored queue that has no mirror: what passes through, what is remembered, and how it gets its first one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import demote
from node.ids import Epoch
from node.queues.backing_queue import Publication
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE, Pair
from tests.support.stores import StoreHarness

Taking = Callable[[MirroredQueue, list[Publication]], None]

ALONE = MastershipRecord(QUEUE, Epoch(1), N1, complete=(N1,))


def delivered_at_once(queue: MirroredQueue, taken: list[Publication]) -> None:
    queue.ack([delivery.seq_id for delivery in queue.publish_delivered(taken)])


#: The ways by which a queue takes a message.
TAKINGS: list[Taking] = [MirroredQueue.publish, delivered_at_once, MirroredQueue.discard]
each_taking = pytest.mark.parametrize("take", TAKINGS, ids=["stored", "delivered at once", "discarded"])


def promoted_with_gaps(record: MastershipRecord) -> tuple[MirroredQueue, Pair]:
    """It has message 3 of an origin, whose messages 1 and 2 nobody has: their publisher sends them again."""
    pair = Pair()
    pair.master.publish(publications(1, 2))
    pair.up().to_mirror()
    pair.master.publish(publications(3, 1))
    pair.to_mirror()
    return pair.mirror.promote(N2, record), pair


def recovered_with_gaps(record: MastershipRecord) -> tuple[MirroredQueue, Pair]:
    """As above, started again: its tokens are its own."""
    queue, pair = promoted_with_gaps(replace(record, epoch=Epoch(2)))
    return MirroredQueue(N2, queue.local, record, trusted_origins={}), pair


@each_taking
@pytest.mark.parametrize("make", [promoted_with_gaps, recovered_with_gaps])
def test_what_was_taken_is_no_news_after_it_has_left_the_queue(
    take: Taking, make: Callable[[MastershipRecord], tuple[MirroredQueue, Pair]]
) -> None:
    queue, _ = make(MastershipRecord(QUEUE, Epoch(3), N2, complete=(N2,)))
    queue.purge()
    assert not queue.is_duplicate(msg_id_of(1))
    assert queue.knows_out_of_order
    take(queue, publications(2, 1))
    queue.purge()
    assert queue.is_duplicate(msg_id_of(1)), "its publisher has gone past it"
    assert queue.is_duplicate(msg_id_of(2))
    take(queue, publications(3, 1))
    assert not queue.knows_out_of_order, "everything that storage claims is accounted for"


@each_taking
@pytest.mark.parametrize("has_old_tokens", [False, True])
def test_confirms_need_only_this_node(take: Taking, has_old_tokens: bool) -> None:
    disk = StoreHarness()
    queue = MirroredQueue(N1, disk.open_queue(), ALONE, has_old_tokens=has_old_tokens)
    for counter in (1, 2):
        take(queue, publications(counter, 1))
        disk.sync()
        assert queue.drain_confirmed() == [counter]
    queue.check_invariants()


@each_taking
def test_what_is_taken_passes_through_as_it_is(take: Taking) -> None:
    """Most queues have no mirror, and nothing is to be kept for each of their messages."""
    disk = StoreHarness()
    queue = MirroredQueue(N1, disk.open_queue(), ALONE)
    take(queue, publications(1, 2))
    disk.sync()
    assert queue.local.drain_confirmed() == [1, 2], "the tokens of the publisher, not of the queue"


@each_taking
def test_the_first_mirror_owes_nothing_of_what_was_taken_before(take: Taking) -> None:
    """Nobody is slowed down for what no mirror was told."""
    queue = MirroredQueue(N1, StoreHarness().open_queue(), ALONE)
    take(queue, publications(1, 5))
    queue.set_record(replace(ALONE, mirrors=(N2,), complete=(N1, N2)))
    assert [each.unapplied for each in queue.mirrors_in_flight()] == [0]


def test_what_is_not_yet_confirmed_waits_for_the_first_mirror_and_for_nothing_else() -> None:
    pair = Pair(synchronised=False)
    pair.master = MirroredQueue(N1, pair.master_local, ALONE)
    pair.master.publish(publications(1, 1))
    pair.master.set_record(replace(ALONE, mirrors=(N2,), complete=(N1, N2)))
    pair.master_disk.sync()
    pair.exchange()
    assert pair.master.drain_confirmed() == []
    pair.up().quiet()
    assert pair.master.drain_confirmed() == [1], "nothing more has to be published for it"


@pytest.mark.parametrize("first_has", ["heard", "applied"])
def test_what_waits_for_a_second_mirror_is_not_kept_waiting_by_the_first(first_has: str) -> None:
    """Nothing is published meanwhile, so there is nothing to tell the first."""
    pair = Pair(synchronised=False)
    pair.master = MirroredQueue(N1, pair.master_local, ALONE)
    pair.master.publish(publications(1, 1))
    pair.master.set_record(replace(ALONE, mirrors=(N2,)))
    pair.up().exchange()
    pair.mirror_disk.sync()
    pair.exchange()
    pair.master.publish(publications(2, 1))
    pair.to_mirror()
    if first_has == "applied":
        pair.to_master()
    pair.master.set_record(replace(ALONE, mirrors=(N2, N3), complete=(N1, N3)))
    assert pair.master.drain_confirmed() == []
    pair.to_mirror()
    pair.sync()
    pair.to_master()
    assert pair.master.drain_confirmed() == [], "n3 is said to be complete, and nobody has asked it"
    pair.master.set_record(replace(ALONE, mirrors=(N2,)))
    assert sorted(pair.master.drain_confirmed()) == [1, 2]  # type: ignore[type-var]


def test_a_second_mirror_may_come_in_the_midst_of_a_turn() -> None:
    pair = Pair(synchronised=False)
    pair.master = MirroredQueue(N1, pair.master_local, ALONE)
    pair.master.publish(publications(1, 1))
    pair.master.set_record(replace(ALONE, mirrors=(N2,)))
    pair.up().exchange()
    pair.master.publish(publications(2, 1))
    pair.master.set_record(replace(ALONE, mirrors=(N2, N3), complete=(N1, N3)))
    pair.master.publish(publications(3, 1))
    pair.check()
    pair.quiet()
    assert pair.master.drain_confirmed() == []
    pair.master.set_record(replace(ALONE, mirrors=(N2,)))
    assert sorted(pair.master.drain_confirmed()) == [1, 2, 3]  # type: ignore[type-var]


def test_what_is_published_after_a_mirror_came_waits_for_it_though_the_turn_began_without() -> None:
    """A message that is sent again has the confirms looked at in the midst of a turn."""
    disk = StoreHarness()
    queue = MirroredQueue(N1, disk.open_queue(), ALONE, has_old_tokens=True)
    queue.publish(publications(1, 1))
    queue.confirm_when_safe(msg_id_of(1), "again")
    queue.set_record(replace(ALONE, mirrors=(N2,), complete=(N1, N2)))
    queue.publish(publications(2, 1))
    disk.sync()
    assert 2 not in queue.drain_confirmed(), "n2 lacks it"
    queue.check_invariants()


def test_tokens_from_before_it_was_a_mirror_are_not_its_own() -> None:
    """Its publisher has sent again, and is to hear when everybody has the message."""
    disk = StoreHarness()
    before = MirroredQueue(N1, disk.open_queue(), ALONE)
    before.publish(publications(1, 1))
    record = MastershipRecord(QUEUE, Epoch(3), N1, (N2,), complete=(N1, N2))
    queue = demote(before, Epoch(2)).promote(N1, record)
    queue.confirm_when_safe(msg_id_of(1), 1)
    disk.sync()
    assert queue.drain_confirmed() == [], "n2 was asked nothing"


def test_tokens_from_before_it_was_a_mirror_do_not_come_back_when_it_is_alone() -> None:
    """Whoever had them may be gone, and another channel of the same name have taken his place."""
    disk = StoreHarness()
    before = MirroredQueue(N1, disk.open_queue(), ALONE)
    before.publish(publications(1, 1))
    queue = demote(before, Epoch(2)).promote(N1, replace(ALONE, epoch=Epoch(3)))
    queue.publish(publications(2, 1))
    disk.sync()
    assert queue.drain_confirmed() == [2]


def test_a_message_without_token_is_taken_as_well() -> None:
    queue = MirroredQueue(N1, StoreHarness().open_queue(), ALONE, has_old_tokens=True)
    queue.publish([Publication(make_message(1), None)])
    assert queue.ready == 1
    assert queue.drain_confirmed() == []


@pytest.mark.parametrize("is_promoted_at_once", [False, True])
def test_tokens_that_became_safe_before_it_was_a_mirror_belong_to_nobody(is_promoted_at_once: bool) -> None:
    disk = StoreHarness()
    before = MirroredQueue(N1, disk.open_queue(), ALONE)
    before.publish(publications(1, 1))
    disk.sync()
    mirror = demote(before, Epoch(2))
    if is_promoted_at_once:
        assert mirror.promote(N1, replace(ALONE, epoch=Epoch(3))).drain_confirmed() == []
    else:
        mirror.take_messages()
        assert mirror.local.drain_confirmed() == [], "nor are they kept"
