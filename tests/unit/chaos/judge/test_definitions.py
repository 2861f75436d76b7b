"""Each definition of `chaos.judge` by its smallest histories: what it names, and the nearest that it does not."""

from __future__ import annotations

import pytest

from chaos.judge.findings import Name, Place, QueueFacts, RunFacts
from chaos.judge.reference import Reference
from chaos.record.kinds import Flag, Kind, Stray
from tests.support.told import BROKER, CHANNELS, HARNESS, PUBLISHING, QUEUE, Told, key

DRAINED = QueueFacts(is_drained=True)
EXPIRING = QueueFacts(may_remove=True)


def test_a_settled_message_shows_nothing() -> None:
    assert Told().confirmed(1).settled(1).names() == []


# --- absences


UNKNOWN = QueueFacts(is_drained=False, is_known=False)


def test_of_a_queue_into_which_nobody_looked_nothing_is_missed() -> None:
    assert Told().confirmed(1).names(queue=UNKNOWN) == []
    assert Told().confirmed(1).deliver(1).release(1).names(queue=UNKNOWN) == []
    assert Told().confirmed(1).deliver(1).release(1).names() == [(Name.VANISHED, 1)]
    assert Told().deliver(1).settled(1).names(queue=UNKNOWN)[0] == (Name.PHANTOM, 1)


def test_lost() -> None:
    assert Told().confirmed(1).names() == [(Name.LOST, 1)]
    assert Told().publish(1).answer(Kind.UNRESOLVED, 1).names() == [], "nobody was promised anything"
    assert Told().confirmed(1).left(1).names(queue=QueueFacts(is_drained=False)) == []
    assert Told().confirmed(1).broker(Kind.EXPIRED, 1).names() == []
    assert Told().confirmed(1).names(queue=EXPIRING) == [(Name.REMOVED_UNPROVEN, 1)]


def test_what_was_published_before_its_queue_was_emptied_is_not_missed() -> None:
    assert Told().confirmed(1).add(HARNESS, Kind.EMPTIED, queue=QUEUE).names() == [(Name.REMOVED_UNPROVEN, 1)]
    assert Told().add(HARNESS, Kind.EMPTIED, queue=QUEUE).confirmed(1).names() == [(Name.LOST, 1)]
    assert Told().confirmed(1).add(HARNESS, Kind.EMPTIED, queue=QUEUE + 1).names() == [(Name.LOST, 1)]


def test_where_the_lost_ones_were() -> None:
    told = Told().confirmed(1, 2, 3, 4, 5).settled(2, 4)
    findings = told.judged()
    reference = Reference(told.complete(), RunFacts({PUBLISHING: frozenset()}, [QueueFacts()]))
    places = reference.places(findings)
    assert places == {key(1): Place.PREFIX, key(3): Place.MIDDLE, key(5): Place.POSTFIX}


def test_vanished() -> None:
    assert Told().confirmed(1).deliver(1).release(1).names() == [(Name.VANISHED, 1)]
    assert Told().confirmed(1).deliver(1).end(Kind.REQUEUE, 1).names() == [(Name.VANISHED, 1)]
    assert Told().confirmed(1).deliver(1, flags=Flag.NO_ACK).names() == []
    assert Told().publish(1).deliver(1).release(1).names() == [], "it was never confirmed"


def test_an_acknowledgement_that_may_not_have_arrived_is_counted() -> None:
    """The broker may have lost the message instead of hearing of it: nobody can tell."""
    assert Told().confirmed(1).deliver(1).ack(1).release(1).names() == [(Name.SETTLED_UNPROVEN, 1)]
    assert Told().confirmed(1).deliver(1).ack(1).broker(Kind.SETTLED, 1).names() == []
    assert Told().confirmed(1).deliver(1).end(Kind.DISCARD, 1).prove(1).names() == []
    told = Told().confirmed(1).deliver(1).ack(1).prove(1)
    del told.events[2]
    assert told.names(processes=(77,)) == [], "its delivery is not recorded, and it is acknowledged and proven"


def test_phantom() -> None:
    assert Told().deliver(1).ack(1).prove(1).names() == [(Name.PHANTOM, 1)]


def test_what_is_concluded_from_an_absence_needs_a_complete_record() -> None:
    told = Told().confirmed(1, 2, 3).deliver(2, 3).release(2).ack(3).prove(3).again(3)
    assert told.names() == [(Name.LOST, 1), (Name.RESURRECTED, 3), (Name.VANISHED, 2)]
    assert told.names(processes=(77,)) == [(Name.RESURRECTED, 3)], "what is there proves what it proves"


def test_a_hole_in_the_record_of_a_consumer_hides_no_phantom() -> None:
    assert Told().deliver(1).ack(1).prove(1).names(processes=(77,)) == [(Name.PHANTOM, 1)]


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_a_process_with_a_hole_or_without_an_end_is_incomplete(missing: int) -> None:
    events = Told().confirmed(1, 2).complete()
    assert not Reference(events, RunFacts({PUBLISHING: frozenset()}, [])).incomplete
    del events[missing]
    assert Reference(events, RunFacts({PUBLISHING: frozenset()}, [])).incomplete == {PUBLISHING}


def test_a_replica_that_lacks_what_is_left() -> None:
    told = Told().confirmed(1, 2).left(1, 2)
    told.add(BROKER, Kind.HELD, message=key(1), node=1).add(BROKER, Kind.HELD, message=key(2), node=1)
    told.add(BROKER, Kind.HELD, message=key(1), node=2)
    for node, flags in ((1, Flag.SYNCHRONISED), (2, Flag.SYNCHRONISED), (3, Flag(0))):
        told.add(BROKER, Kind.LISTED, queue=QUEUE, node=node, flags=flags)
    assert told.names(queue=QueueFacts(is_drained=False)) == [(Name.REPLICA_LOST, 2)]


# --- presences


def test_foreign_corrupt_and_misrouted_deliveries() -> None:
    told = Told().add(2, Kind.DELIVER, channel=200, tag=1, queue=QUEUE)
    assert told.names() == [(Name.FOREIGN, 0)]
    told = Told().confirmed(1).deliver(1, flags=Flag.CORRUPT).ack(1).prove(1)
    assert told.names() == [(Name.CORRUPT, 1)]
    told = Told().confirmed(1).settled(1).add(2, Kind.DELIVER, message=key(1), channel=200, tag=9, queue=2)
    assert (Name.MISROUTED, 1) in told.names()


def test_what_was_said_to_the_publisher_and_then_delivered() -> None:
    assert Told().publish(1).answer(Kind.REFUSE, 1).settled(1).names() == [(Name.REFUSED_DELIVERED, 1)]
    assert Told().publish(1).answer(Kind.RETURN, 1).confirm(1).settled(1).names() == [(Name.RETURNED_DELIVERED, 1)]
    assert Told().publish(1).answer(Kind.UNRESOLVED, 1).settled(1).names() == [(Name.RECOVERED, 1)]


@pytest.mark.parametrize(
    ("stray", "name"),
    [
        (Stray.TWICE, Name.CONFIRM_TWICE),
        (Stray.CONTRADICTION, Name.CONFIRM_CONTRADICTION),
        (Stray.UNKNOWN, Name.CONFIRM_UNKNOWN),
    ],
)
def test_answers_that_nothing_waited_for(stray: Stray, name: Name) -> None:
    assert Told().confirmed(1).answer(Kind.STRAY, 1, number=stray).settled(1).names() == [(name, 1)]
    assert Told().add(PUBLISHING, Kind.STRAY, channel=100, tag=5, number=stray).names() == [(name, 0)]


def test_a_confirm_by_a_master_whose_epoch_is_over() -> None:
    told = Told().promote(2).publish(1).broker(Kind.ANSWERED, 1, epoch=1).confirm(1).settled(1)
    assert told.names() == [(Name.FALSE_CONFIRM, 1)]
    told = Told().publish(1).broker(Kind.ANSWERED, 1, epoch=1).confirm(1).promote(2).settled(1)
    assert told.names() == []
    told = Told().promote(2, during=(0, 9)).publish(1).broker(Kind.ANSWERED, 1, epoch=1).confirm(1).settled(1)
    assert told.names() == [], "it may have been promoted later"


def test_what_is_left_behind_waiting_consumers_is_stuck() -> None:
    assert Told().confirmed(1).left(1).names(queue=DRAINED) == [(Name.STUCK, 1)]


# --- deliveries again


def test_only_one_delivery_may_be_without_the_flag() -> None:
    told = Told().confirmed(1).deliver(1).release(1).deliver(1, on="B").ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.UNFLAGGED, 1)]


def test_a_late_look_into_the_buffer_of_a_dead_channel_is_no_violation() -> None:
    """The first delivery was read when the second had been settled."""
    told = Told().confirmed(1).again(1, on="B").ack(1, on="B").prove(1, on="B")
    told.deliver(1, on="A").release(1, on="A", during=(1, 20))
    assert told.names() == [(Name.CAUSED, 1)]


def test_a_repeat_has_a_cause() -> None:
    def end(told: Told) -> Told:
        return told.ack(1, on="B").prove(1, on="B")

    given_back = Told().confirmed(1).deliver(1).release(1).again(1)
    assert end(given_back).names() == [(Name.CAUSED, 1)]
    requeued = Told().confirmed(1).deliver(1).end(Kind.REQUEUE, 1).again(1)
    assert end(requeued).names() == [(Name.CAUSED, 1)]
    failed_over = Told().confirmed(1).deliver(1).promote(2).again(1).release(1)
    assert end(failed_over).names() == [(Name.CAUSED, 1)]
    promoted_before = Told().confirmed(1).promote(2).deliver(1).again(1).release(1)
    assert end(promoted_before).names() == [(Name.DOUBLE_OWNER, 1)]
    after_an_acknowledgement = Told().confirmed(1).deliver(1).ack(1).release(1).again(1)
    assert end(after_an_acknowledgement).names() == [(Name.AFTER_ACK, 1)]
    perhaps_after = Told().confirmed(1).deliver(1).release(1).end(Kind.ACK, 1, during=(4, 6)).again(1, during=(5, 5))
    assert end(perhaps_after).names() == [(Name.CAUSED, 1)]
    nothing = Told().confirmed(1).deliver(1).ack(1).again(1)
    assert end(nothing).names() == [(Name.SPONTANEOUS, 1)]


def test_a_cause_explains_one_repeat() -> None:
    told = Told().confirmed(1).deliver(1).release(1).again(1).ack(1, on="B").again(1).ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.CAUSED, 1), (Name.SPONTANEOUS, 1)]


def test_lines_that_broke_explain_as_many_repeats_as_there_are() -> None:
    def twice(told: Told) -> Told:
        return told.again(1).ack(1, on="B").again(1).ack(1, on="B").prove(1, on="B")

    disturbed = twice(Told().confirmed(1).deliver(1).disturb())
    assert disturbed.names() == [(Name.AFTER_ACK, 1), (Name.CAUSED, 1)]
    other_causes_come_first = twice(Told().confirmed(1).deliver(1).release(1).disturb(during=(5, 6)))
    assert other_causes_come_first.names() == [(Name.AFTER_ACK, 1), (Name.CAUSED, 1)]
    before = Told().confirmed(1).disturb().deliver(1).again(1).release(1).ack(1, on="B").prove(1, on="B")
    assert before.names() == [(Name.DOUBLE_OWNER, 1)]
    elsewhere = Told().confirmed(1).deliver(1).disturb(queue=QUEUE + 1).again(1).release(1)
    assert elsewhere.ack(1, on="B").prove(1, on="B").names() == [(Name.DOUBLE_OWNER, 1)]


def test_an_acknowledgement_may_be_lost_on_a_line_that_broke() -> None:
    def end(told: Told) -> Told:
        return told.again(1).ack(1, on="B").prove(1, on="B")

    assert end(Told().confirmed(1).settled(1).disturb()).names() == [(Name.AFTER_ACK, 1)]
    assert end(Told().confirmed(1).disturb().settled(1)).names() == [(Name.RESURRECTED, 1)]


def test_a_message_that_another_still_holds() -> None:
    told = Told().confirmed(1).deliver(1).again(1).release(1).ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.DOUBLE_OWNER, 1)]
    told = Told().confirmed(1).deliver(1).again(1).release(1, during=(3, 9)).ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.CAUSED, 1)], "it may have been given back before"


def test_settled_and_delivered_again() -> None:
    def end(told: Told) -> Told:
        return told.ack(1, on="B").prove(1, on="B")

    assert end(Told().confirmed(1).settled(1).release(1).again(1)).names() == [(Name.RESURRECTED, 1)]
    over = Told().confirmed(1).settled(1).promote(2).again(1)
    assert end(over).names() == [(Name.AFTER_ACK, 1)], "who follows may not have heard of it"
    late = Told().confirmed(1).deliver(1).promote(2).ack(1).prove(1).again(1)
    assert end(late).names() == [(Name.AFTER_ACK, 1)], "it acknowledged what the new master had not delivered"
    everywhere = Told().confirmed(1).settled(1).broker(Kind.SETTLED, 1, flags=Flag.EVERYWHERE).promote(2).again(1)
    assert end(everywhere).names() == [(Name.RESURRECTED, 1)]


def test_removed_and_delivered() -> None:
    told = Told().confirmed(1).broker(Kind.EXPIRED, 1)
    told.publish(2, 3).settled(1)
    assert told.names() == [(Name.RESURRECTED, 1)]
    assert told.names(slack_us=None) == [], "it may have been on its way"


def test_every_delivery_has_the_flag() -> None:
    told = Told().confirmed(1).again(1).ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.FLAGGED_FIRST, 1)]


def test_copies_that_a_publisher_made() -> None:
    told = Told().publish(1).answer(Kind.UNRESOLVED, 1).publish(1, attempt=2).confirm(1, attempt=2)
    told.settled(1).deliver(1, attempt=2).end(Kind.ACK, 1, attempt=2).end(Kind.ACK_PROVEN, 1, attempt=2)
    assert told.names() == [(Name.COPIES, 1), (Name.RECOVERED, 1)]


# --- order


def test_order_in_one_channel() -> None:
    assert Told().confirmed(1, 2, 3).settled(2).settled(1).settled(3).names() == [(Name.MISORDERED, 1)]
    flagged = Told().confirmed(1, 2).settled(2).again(1, on="A").ack(1).prove(1)
    assert flagged.names() == [(Name.FLAGGED_FIRST, 1)], "its first delivery was not seen"
    other_channel = Told().publish(1).publish(2, channel=101).confirm(1, 2).settled(2).settled(1)
    assert other_channel.names() == [], "nothing is promised across channels"


def test_order_across_a_failover_is_excused() -> None:
    told = Told().confirmed(1, 2).settled(2).promote(2).settled(1)
    assert told.names() == [(Name.MISORDERED_EXCUSED, 1)]


def test_order_across_consumers() -> None:
    told = Told().confirmed(1, 2).deliver(2, on="B").deliver(1)
    told.ack(2, on="B").prove(2, on="B").ack(1).prove(1)
    assert told.names() == [], "the first may have waited in a buffer"
    told = Told().confirmed(1, 2).settled(2, on="B").settled(1)
    assert told.names() == [(Name.OVERTAKEN, 1)]
    assert told.names(slack_us=None) == []
    told = Told().confirmed(1, 2).settled(2, on="B").promote(2).settled(1)
    assert told.names() == [(Name.OVERTAKEN_EXCUSED, 1)]


def test_a_requeued_message_comes_first_again() -> None:
    def history(*, wait: int) -> Told:
        told = Told().confirmed(1, 2).deliver(1).end(Kind.REQUEUE, 1).prove(1)
        for _ in range(wait):
            told.add(HARNESS, Kind.PHASE, detail="nothing happens")
        told.deliver(2, on="B")
        for _ in range(wait):
            told.add(HARNESS, Kind.PHASE, detail="nothing happens")
        return told.again(1, on="A").ack(1).prove(1).ack(2, on="B").prove(2, on="B")

    assert history(wait=2).names() == [(Name.CAUSED, 1), (Name.REQUEUE_OVERTAKEN, 1)]
    assert history(wait=1).names() == [(Name.CAUSED, 1)], "the other may have been sent before"
    assert CHANNELS["A"] != CHANNELS["B"]


def test_every_one_that_comes_late_is_named() -> None:
    told = Told().confirmed(1, 2, 3, 4, 5).settled(2).settled(1).settled(5).settled(3).settled(4)
    assert told.names() == [(Name.MISORDERED, 1), (Name.MISORDERED, 3), (Name.MISORDERED, 4)]
    backwards = Reference(reversed(told.complete()), RunFacts({}, [QueueFacts()]))
    assert [finding.name for finding in backwards.findings()] == [Name.MISORDERED] * 3, "wherever the files begin"
    assert backwards.pairs_compared == 4


def test_each_requeue_is_looked_at() -> None:
    told = Told().confirmed(1, 2)
    told.deliver(1).end(Kind.REQUEUE, 1).again(1, on="A").end(Kind.REQUEUE, 1).prove(1)
    told.again(1, on="B").end(Kind.REQUEUE, 1, on="B").prove(1, on="B")
    told.add(HARNESS, Kind.PHASE).add(HARNESS, Kind.PHASE).deliver(2).add(HARNESS, Kind.PHASE).add(HARNESS, Kind.PHASE)
    told.again(1, on="B").ack(1, on="B").prove(1, on="B").ack(2).prove(2)
    assert told.names() == [*[(Name.CAUSED, 1)] * 3, (Name.REQUEUE_OVERTAKEN, 1)]
    backwards = Reference(reversed(told.complete()), RunFacts({}, [QueueFacts()], slack_us=0))
    assert Name.REQUEUE_OVERTAKEN in {finding.name for finding in backwards.findings()}, "wherever the files begin"


def test_a_delivery_that_wants_no_acknowledgement_settles_by_itself() -> None:
    told = Told().confirmed(1).deliver(1, flags=Flag.NO_ACK).again(1, on="B").ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.RESURRECTED, 1)]


def test_who_acknowledged_before_its_channel_went_holds_nothing() -> None:
    told = Told().confirmed(1).deliver(1).ack(1).again(1).release(1).ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.SPONTANEOUS, 1)]


def test_what_expired_after_it_was_given_back_and_comes_again() -> None:
    told = Told().confirmed(1).deliver(1).release(1).broker(Kind.EXPIRED, 1)
    told.add(HARNESS, Kind.PHASE).add(HARNESS, Kind.PHASE).again(1).ack(1, on="B").prove(1, on="B")
    assert told.names() == [(Name.RESURRECTED, 1)]


def test_a_confirm_is_false_as_soon_as_one_later_epoch_has_begun() -> None:
    told = Told().promote(2).publish(1).broker(Kind.ANSWERED, 1, epoch=1).confirm(1).promote(3).settled(1)
    assert told.names() == [(Name.FALSE_CONFIRM, 1)]
    told = Told().promote(2).publish(1).broker(Kind.ANSWERED, 1, epoch=2).confirm(1).settled(1)
    assert told.names() == [], "it is the master's own epoch"


def test_each_synchronised_replica_answers_for_itself() -> None:
    told = Told().confirmed(1, 2).left(1, 2)
    told.add(BROKER, Kind.HELD, message=key(1), node=2).add(BROKER, Kind.HELD, message=key(2), node=3)
    told.add(BROKER, Kind.LISTED, queue=QUEUE, node=4)
    for node in (2, 3):
        told.add(BROKER, Kind.LISTED, queue=QUEUE, node=node, flags=Flag.SYNCHRONISED)
    told.add(BROKER, Kind.LISTED, queue=QUEUE + 1, node=3, flags=Flag.SYNCHRONISED)
    findings = told.judged(queue=QueueFacts(is_drained=False))
    assert [(each.message, each.event) for each in findings] == [(key(1), 5), (key(2), 4)]


@pytest.mark.parametrize(
    ("told", "kind", "position"),
    [
        (Told().confirmed(1), Kind.PUBLISH, 0),
        (Told().confirmed(1).left(1), Kind.LEFT, 0),
        (Told().deliver(1).ack(1).prove(1), Kind.DELIVER, 0),
        (Told().publish(1).answer(Kind.REFUSE, 1).settled(1), Kind.DELIVER, 0),
        (Told().confirmed(1).settled(1).deliver(1, on="B"), Kind.DELIVER, 1),
        (Told().confirmed(1, 2).settled(2).settled(1), Kind.DELIVER, 1),
        (Told().confirmed(1).answer(Kind.STRAY, 1, number=Stray.TWICE).settled(1), Kind.STRAY, 0),
        (Told().add(PUBLISHING, Kind.STRAY, number=Stray.UNKNOWN), Kind.STRAY, 0),
        (Told().add(2, Kind.DELIVER, queue=QUEUE, flags=Flag.CORRUPT), Kind.DELIVER, 0),
    ],
)
def test_the_row_that_shows_it(told: Told, kind: Kind, position: int) -> None:
    shown = [event for event in told.events if event.kind == kind][position]
    assert told.judged()[0][1:] == (shown.message, shown.process, shown.event)
