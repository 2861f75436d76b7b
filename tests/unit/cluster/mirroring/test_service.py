"""What a master does before it is in service, and while a complete copy is not among its mirrors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.reports import ReportFollows, ReportMirrorStalled, ReportTakesService
from cluster.mirroring.service import REPORT_REPEAT_MS
from node.ids import Epoch
from node.queues.events import ConsumerSpec, Deliver
from node.queues.queue_process import QueueProcess
from tests.support.messages import publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE, Pair
from tests.support.queue_bench import channel, message, queue_record
from tests.support.stores import StoreHarness

SERVED = MastershipRecord(QUEUE, Epoch(1), N1, (N2,), (N2,), complete=(N1, N2), following=(N2,))
ELECTED = replace(SERVED, in_service=False, complete=(N3, N1, N2))


def master(record: MastershipRecord, *, messages: int = 0) -> MirroredQueue:
    """With so many messages that are on its disk."""
    disk = StoreHarness()
    queue = MirroredQueue(N1, disk.open_queue(), record, MirroringSettings())
    queue.mirror_link_up(N2)
    if messages:
        queue.publish(publications(1, messages))
        disk.sync()
    return queue


def test_an_elected_master_touches_no_mirror_delivers_nothing_and_confirms_nothing() -> None:
    queue = master(ELECTED, messages=2)
    assert queue.take_messages() == []
    assert queue.fetch(9, ack_required=True) == []
    alone = master(replace(ELECTED, mirrors=(), synchronised=(), complete=(N1, N3), following=()), messages=2)
    assert alone.drain_confirmed() == []
    assert alone.fetch(9, ack_required=True) == []


@pytest.mark.parametrize("no_ack", [True, False])
def test_what_is_published_is_not_handed_past_the_store_before_the_service(no_ack: bool) -> None:
    queue = master(ELECTED)
    process = QueueProcess(queue_record(), queue)
    process.consume(channel(1), ConsumerSpec("t", no_ack=no_ack, exclusive=False))
    process.publish(channel(2), [message(1), message(2)], [1, 2])
    assert process.drain() == []
    assert process.ready == 2
    queue.set_record(replace(SERVED, mirrors=(), synchronised=(), complete=(N1,), following=()))
    [delivered] = [effect for effect in process.drain() if isinstance(effect, Deliver)]
    assert [each.message.body for each in delivered.deliveries] == [b"1", b"2"]


def test_a_fenced_master_hands_nothing_past_the_store() -> None:
    pair = Pair().up().quiet()
    process = QueueProcess(queue_record(), pair.master)
    process.consume(channel(1), ConsumerSpec("t", no_ack=True, exclusive=False))
    pair.mirror.adopt_epoch(Epoch(2))
    process.publish(channel(2), [message(1)], [1])
    pair.exchange()
    assert pair.master.is_fenced
    process.drain()
    process.publish(channel(2), [message(2)], [2])
    assert process.drain() == []


def test_it_asks_to_take_service_until_the_record_shows_it() -> None:
    queue = master(ELECTED)
    assert queue.take_reports() == [ReportTakesService()]
    assert queue.take_reports() == [], "once is enough for a while"
    assert queue.wants_turn
    queue.tick(0)
    queue.tick(REPORT_REPEAT_MS - 1)
    assert queue.take_reports() == [], "it may be on its way"
    queue.tick(REPORT_REPEAT_MS)
    assert queue.take_reports() == [ReportTakesService()], "the proposal may have got lost"
    queue.tick(2 * REPORT_REPEAT_MS - 1)
    assert queue.take_reports() == [], "the second may be on its way"
    queue.tick(2 * REPORT_REPEAT_MS)
    assert queue.take_reports() == [ReportTakesService()]
    queue.set_record(SERVED)
    queue.tick(3 * REPORT_REPEAT_MS)
    assert queue.take_reports() == []


def test_with_every_record_it_asks_anew() -> None:
    """What was asked under the one before may have been refused for that."""
    queue = master(ELECTED)
    assert queue.take_reports() == [ReportTakesService()]
    queue.tick(0)
    queue.set_record(replace(ELECTED, epoch=Epoch(2)))
    assert queue.take_reports() == [ReportTakesService()]
    queue.tick(REPORT_REPEAT_MS)
    assert queue.take_reports() == [], "a second has not passed since"
    queue.tick(2 * REPORT_REPEAT_MS)
    assert queue.take_reports() == [ReportTakesService()]


def test_in_service_it_delivers_and_confirms_what_has_waited() -> None:
    alone = replace(SERVED, mirrors=(), synchronised=(), complete=(N1,), following=())
    queue = master(replace(alone, in_service=False, complete=(N1, N3)), messages=2)
    queue.set_record(alone)
    assert queue.drain_confirmed() == [1, 2]
    assert len(queue.fetch(9, ack_required=True)) == 2


def test_a_fenced_master_does_not_ask() -> None:
    queue = master(ELECTED)
    pair = Pair()
    pair.master = queue
    pair.mirror.adopt_epoch(Epoch(2))
    queue.set_record(SERVED)
    pair.exchange()
    assert queue.is_fenced
    queue.take_reports()
    queue.set_record(replace(SERVED, complete=(N1, N2, N3)))
    assert queue.take_reports() == []


def test_while_a_complete_copy_is_gone_it_delivers_but_confirms_nothing() -> None:
    """It may come back, and would be promoted for what it has."""
    pair = Pair().up().quiet()
    record = replace(SERVED, complete=(N1, N2, N3))
    pair.master.set_record(record)
    assert pair.master.take_reports() == [ReportTakesService()]
    pair.master.publish(publications(1, 2))
    pair.quiet()
    assert pair.master.drain_confirmed() == []
    assert len(pair.master.fetch(1, ack_required=True)) == 1
    pair.master.set_record(SERVED)
    assert pair.master.drain_confirmed() == [1, 2]


def test_what_was_confirmable_without_it_waits_again_when_it_is_a_mirror_again() -> None:
    pair = Pair().up().quiet()
    pair.master.set_record(replace(SERVED, complete=(N1, N2, N3)))
    pair.master.publish(publications(1, 2))
    pair.quiet()
    pair.master.set_record(replace(SERVED, mirrors=(N2, N3), complete=(N1, N2, N3)))
    pair.quiet()
    assert pair.master.drain_confirmed() == [], "n3 lacks them"
    assert pair.master.streaming_mirrors() == [N2]


def test_a_complete_mirror_is_filled_without_being_asked() -> None:
    pair = Pair(synchronised=False)
    pair.master.set_record(replace(SERVED, synchronised=(), following=()))
    pair.master.publish(publications(1, 3))
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.master.drain_confirmed() == [1, 2, 3]


def test_a_mirror_that_is_not_to_be_filled_is_said_to_follow_until_the_record_shows_it() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 3))
    pair.up().quiet()
    assert pair.master.take_reports() == [ReportFollows(N2)]
    pair.master.tick(0)
    pair.master.tick(REPORT_REPEAT_MS)
    assert pair.master.take_reports() == [ReportFollows(N2)]
    pair.master.tick(2 * REPORT_REPEAT_MS - 1)
    assert pair.master.take_reports() == [], "it may be on its way"
    pair.master.set_record(replace(SERVED, synchronised=(), complete=(N1,)))
    pair.master.tick(3 * REPORT_REPEAT_MS)
    assert pair.master.take_reports() == []
    pair.master.set_record(replace(SERVED, synchronised=(), complete=(N1,), following=()))
    pair.master.tick(5 * REPORT_REPEAT_MS)
    assert pair.master.take_reports() == [], "it may be on its way again"
    pair.master.tick(6 * REPORT_REPEAT_MS)
    assert pair.master.take_reports() == [ReportFollows(N2)]


def test_a_mirror_is_not_blamed_for_the_silence_of_a_master_that_is_not_in_service() -> None:
    """Without a quorum nobody takes service, for however long; the mirrors were never spoken to meanwhile."""
    queue = master(ELECTED)
    for now_ms in (0, 20_000, 40_000):
        queue.tick(now_ms)
        queue.take_messages()
        assert queue.take_reports() in ([], [ReportTakesService()])
    queue.set_record(SERVED)
    queue.take_messages()
    queue.tick(50_000)
    assert queue.take_reports() == []
    queue.tick(50_000 + MirroringSettings().stall_ms)
    assert [type(report) for report in queue.take_reports()] == [ReportMirrorStalled], "now it is its turn to answer"
