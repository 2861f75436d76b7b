"""What goes on between a master and a mirror that is attached a second time, or by a master that goes on in another
part: with another record, as another's mirror, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring import master as master_module
from cluster.mirroring import progress as progress_module
from cluster.mirroring.master import HORIZON_STEP_MIN, MirroredQueue, MirroringSettings
from cluster.mirroring.messages import Attach, AttachRefused, HorizonOp, Ops
from cluster.mirroring.mirror import MirrorReplica, demote
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.ranges import SeqRangeSet
from cluster.mirroring.reports import ReportFollows, ReportSynchronised
from cluster.mirroring.sync import SYNC_BATCHES_IN_FLIGHT
from node.ids import Epoch, NodeName, OriginId, SeqId
from node.queues.backing_queue import MirrorInFlight, Publication
from node.queues.replica import SeqRange
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE, Pair
from tests.support.stores import StoreHarness


def lacking(messages: int, settings: MirroringSettings | None = None) -> Pair:
    """The mirror hears of everything, but was not given what was there before."""
    pair = Pair(synchronised=False, settings=settings)
    pair.master.publish(publications(1, messages))
    pair.up().quiet()
    assert pair.state() is MirrorState.STREAMING
    return pair


def is_sync_wanted(pair: Pair) -> bool:
    return pair.master.is_sync_wanted


# --- a mirror that is not filled --------------------------------------------------------------------------------------


def test_what_an_unfilled_mirror_was_promised_with_its_attach_is_enough_to_go_on() -> None:
    """Nothing more may come for long, and the consumers would stand still."""
    step = master_module.HORIZON_STEP_MIN
    pair = lacking(3 * step)
    for _ in range(2):
        taken = pair.master.fetch(3 * step, ack_required=True)
        assert 0 < len(taken) < 3 * step
        pair.master.mirror_link_down(N2)
        pair.mirror.link_lost()
        pair.up().to_mirror()
        assert pair.master.fetch(1, ack_required=True) == [], "nobody knows whether it has heard the promise"
        pair.exchange()
    assert len(pair.master.fetch(1, ack_required=True)) == 1


def published_without_a_link() -> Pair:
    """The master has a message on its disk that the mirror, which was attached before, has not heard of."""
    pair = lacking(3)
    pair.master.drain_confirmed()
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.master.publish(publications(4, 1))
    pair.exchange()
    pair.sync()
    assert pair.master.drain_confirmed() == []
    return pair


def test_what_an_unfilled_mirror_without_a_link_holds_back_is_confirmed_when_it_has_answered() -> None:
    pair = published_without_a_link()
    pair.up().to_mirror()
    assert pair.master.drain_confirmed() == [], "the link is there, and nobody knows who is behind it"
    pair.to_master()
    assert pair.master.drain_confirmed() == [4]


def test_what_an_unfilled_mirror_without_a_link_holds_back_is_never_confirmed_if_it_is_the_master_by_now() -> None:
    """It was elected with a loss; what is confirmed after that by its predecessor would be lost, too (seed 12918)."""
    pair = published_without_a_link()
    pair.up()
    [attach] = [message for _, message in pair.master.take_messages()]
    assert isinstance(attach, Attach)
    assert pair.master.drain_confirmed() == []
    pair.master.receive(N2, AttachRefused(QUEUE, Epoch(1), Epoch(2)))
    pair.exchange()
    pair.sync()
    assert pair.master.drain_confirmed() == []


def test_a_mirror_is_filled_as_soon_as_the_record_calls_it_complete() -> None:
    pair = lacking(3)
    pair.master.set_record(replace(pair.record, complete=(N1, N2)))
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_cancelled_synchronisation_does_not_begin_anew_with_the_next_attach() -> None:
    pair = lacking(40, MirroringSettings(sync_batch_messages=10))
    pair.master.start_sync()
    assert is_sync_wanted(pair)
    pair.to_mirror()
    pair.master.cancel_sync()
    assert not is_sync_wanted(pair)
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up().quiet()
    assert pair.state() is MirrorState.STREAMING
    assert pair.mirror_local.ready == 20, "what had arrived is kept"


def test_what_a_mirror_seems_to_lack_and_nobody_has_any_more_is_passed_over() -> None:
    """A set of ranges that may not split any more keeps what is settled."""
    pair = lacking(3)
    lacked = pair.master._mirrors[N2].lacking
    lacked._ranges_max = 1
    first, middle, last = (delivery.seq_id for delivery in pair.master.fetch(3, ack_required=True))
    for settled in (middle, first, last):
        pair.master.ack([settled])
        pair.quiet()
    assert list(lacked) == [SeqRange(middle, SeqId(middle + 1))]
    pair.master.start_sync()
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED


def test_a_mirror_that_lacks_more_ranges_than_are_kept_is_sent_what_it_has_between_them_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Restarted, it lacks every transient message of a queue that has as many persistent ones between."""
    monkeypatch.setattr(progress_module, "SeqRangeSet", lambda: SeqRangeSet(ranges_max=2))
    pair = lacking(8)
    pair.master.start_sync()
    pair.quiet()
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.mirror_local.remove([SeqRange(SeqId(at), SeqId(at + 1)) for at in range(0, 8, 2)])
    pair.up()
    pair.exchange(1)
    lacked = pair.master._mirrors[N2].lacking
    assert len(list(lacked)) <= 2
    pair.master.start_sync()
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()


AUTOMATIC = MirroringSettings(sync_batch_messages=10, sync_automatically=True)


def test_where_the_policy_fills_mirrors_one_that_comes_back_is_filled_though_it_was_cancelled() -> None:
    """As in RabbitMQ, where it is a new mirror then."""
    pair = Pair(synchronised=False, settings=AUTOMATIC)
    pair.master.publish(publications(1, 40))
    pair.up()
    while pair.master.sync_progress() is None:
        pair.to_mirror()
        pair.to_master()
    pair.master.cancel_sync()
    pair.quiet()
    assert pair.state() is MirrorState.STREAMING, "as long as the link is up"
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED


def test_where_the_policy_fills_mirrors_one_that_is_away_cannot_be_cancelled() -> None:
    """Nothing is under way (28373, 60 operations)."""
    pair = Pair(synchronised=False, settings=AUTOMATIC)
    pair.master.publish(publications(1, 3))
    pair.master.cancel_sync()
    assert is_sync_wanted(pair)
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED


def test_a_synchronisation_that_is_wanted_before_the_attach_begins_with_it() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 3))
    pair.master.start_sync([N3])
    assert not is_sync_wanted(pair), "nobody is called so"
    pair.master.start_sync([N2])
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert is_sync_wanted(pair), "until the record shows it"
    pair.master.set_record(replace(pair.record, synchronised=(N2,)))
    assert not is_sync_wanted(pair)


def test_settings_hold_from_the_moment_they_change() -> None:
    pair = lacking(40)
    pair.master.set_settings(MirroringSettings(sync_batch_messages=10))
    pair.master.start_sync()
    pair.to_mirror()
    progress = pair.master.sync_progress()
    assert progress is not None
    assert progress.synced == 10 * SYNC_BATCHES_IN_FLIGHT
    pair.master.cancel_sync()
    pair.master.set_settings(MirroringSettings(sync_automatically=True))
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED


# --- a conversation that is over --------------------------------------------------------------------------------------


def test_what_was_in_flight_when_the_link_broke_is_not_counted_any_more() -> None:
    """Neither against the window nor as what the mirror has to do; what it is to be told begins with the attach."""
    settings = MirroringSettings(window_bytes=20_000, sync_batch_messages=10)
    pair = lacking(60, settings)
    pair.master.start_sync()
    pair.master.publish(publications(61, 5, body=b"x" * 2000))
    pair.to_mirror()
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up()
    [attach] = pair.to_mirror()
    assert isinstance(attach, Attach)
    [in_flight] = pair.master.mirrors_in_flight()
    assert in_flight.unapplied_bytes == 0
    pair.quiet()
    assert pair.master.mirrors_in_flight() == [MirrorInFlight(N2, 0, 0, 0)]
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()
    assert pair.master.sync_progress() is None


def test_what_a_mirror_has_in_excess_is_not_settled_before_all_is_known_nor_when_its_link_is_gone() -> None:
    pair = Pair()
    pair.mirror_local.publish(publications(1, 2, tokens=False))
    pair.master.publish(publications(3, 2))
    pair.up().to_mirror()
    [*replies, last] = [message for _, message in pair.mirror.take_messages()]
    for reply in replies:
        pair.master.receive(N2, reply)
    assert pair.master.take_messages() == []
    pair.master.receive(N2, last)
    pair.master.mirror_link_down(N2)
    assert pair.master.take_messages() == []
    pair.mirror.link_lost()
    pair.up().quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


@pytest.mark.parametrize("how", ["broke", "came up again", "was silent", "left"])
def test_a_turn_is_not_kept_for_a_mirror_that_will_not_hear_it(how: str) -> None:
    """It is told the whole state when it is attached; and who waits for nobody is confirmed."""
    pair = Pair(settings=MirroringSettings(stall_ms=5000)).up().quiet()
    pair.master.publish(publications(1, 1))
    match how:
        case "broke":
            pair.master.mirror_link_down(N2)
        case "came up again":
            pair.master.mirror_link_up(N2)
        case "was silent":
            pair.master.take_messages()
            pair.master.publish(publications(2, 1))
            pair.master.tick(0)
            pair.master.tick(5000)
        case "left":
            pair.master.set_record(replace(pair.record, mirrors=(), synchronised=()))
            pair.master_disk.sync()
            assert pair.master.drain_confirmed() == [1]
    pair.check()
    assert not any(isinstance(message, Ops) for _, message in pair.master.take_messages())


def test_a_link_with_a_node_that_is_no_mirror_is_remembered_for_the_day_it_is_one() -> None:
    pair = Pair()
    pair.master.set_record(replace(pair.record, mirrors=(), synchronised=()))
    pair.up()
    pair.master.mirror_link_up(N3)
    pair.master.mirror_link_down(N3)
    pair.master.set_record(replace(pair.record, mirrors=(N2, N3)))
    assert [(node, type(message)) for node, message in pair.master.take_messages()] == [(N2, Attach)]


def test_in_a_later_epoch_everything_begins_anew() -> None:
    """Whatever the record of the epoch before had the master say or ask."""
    pair = lacking(3)
    pair.master.take_reports()
    pair.master.mirror_link_down(N2)
    pair.up().exchange()
    pair.master.set_record(replace(pair.record, epoch=Epoch(2), synchronised=(N2,), complete=(N1, N2)))
    assert pair.master.take_reports() == [], "said of the epoch before"
    pair.quiet()
    pair.master.publish(publications(4, 1))
    pair.quiet()
    assert sorted(pair.master.drain_confirmed()) == [1, 2, 3, 4]  # type: ignore[type-var]
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_mirror_that_the_next_epoch_does_not_count_holds_back_nothing_of_the_epoch_before() -> None:
    """It is called back from scratch: its copy was thrown away."""
    pair = Pair().up().quiet()
    pair.master.mirror_link_down(N2)
    pair.master.set_record(replace(pair.record, epoch=Epoch(2), synchronised=()))
    pair.master.publish(publications(1, 1))
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == [1]


def test_a_promise_binds_from_the_moment_it_is_made() -> None:
    """The mirror may be elected before it has answered."""
    step = master_module.HORIZON_STEP_MIN
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 3 * step))
    pair.up().to_mirror()
    assert len(pair.master.fetch(3 * step, ack_required=True)) == step


def test_what_was_written_for_an_earlier_master_is_not_counted_for_the_next() -> None:
    """Whose conversation begins with small numbers again."""
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.exchange()
    written_late = pair.mirror_disk.group_commit.begin()
    assert written_late is not None
    pair.master.publish(publications(2, 1))
    pair.exchange()
    pair.master = MirroredQueue(N1, pair.master_local, replace(pair.record, epoch=Epoch(2)))
    pair.up().to_mirror()
    written_late.run()
    pair.mirror_disk.group_commit.complete(written_late)
    pair.to_master()
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED


# --- another part -----------------------------------------------------------------------------------------------------


def test_nothing_of_an_old_master_is_held_for_its_consumers() -> None:
    queue = MirroredQueue(N1, StoreHarness().open_queue(), MastershipRecord(QUEUE, Epoch(1), N1))
    queue.publish(publications(1, 3))
    queue.fetch(2, ack_required=True)
    mirror = demote(queue, Epoch(2))
    assert (mirror.local.ready, mirror.local.unacked) == (3, 0)


def test_a_mirror_that_was_filled_knows_what_was_settled_before_it_came() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 2))
    pair.master.publish([Publication(make_message(1, origin=OriginId(b"origin-2")), None)])
    pair.master.fetch(2, ack_required=False)
    pair.up().quiet()
    pair.master.start_sync()
    pair.quiet()
    assert pair.master.take_reports() == [ReportFollows(N2), ReportSynchronised(N2)]
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    assert promoted.is_duplicate(msg_id_of(2))


def test_a_promoted_mirror_goes_on_where_its_master_was() -> None:
    """Positions are not given twice, even if nothing is left of those before."""
    pair = Pair()
    pair.master.publish(publications(1, 5))
    pair.master.fetch(5, ack_required=False)
    pair.up().quiet()
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    promoted.publish(publications(6, 1))
    assert [delivery.seq_id for delivery in promoted.fetch(1, ack_required=True)] == [5]


def test_a_mirror_does_not_listen_to_what_is_said_to_a_master() -> None:
    """It was one a moment ago, and the answer was on its way."""
    pair = Pair().up()
    pair.to_mirror()
    [*_, answer] = pair.mirror.take_messages()
    demote(pair.master, Epoch(2)).receive(*answer)
    pair.mirror.receive(*answer)
    assert pair.mirror.take_messages() == []


def test_an_attach_waits_for_nobody_unless_its_master_says_how_far_the_log_is() -> None:
    [(_, ignorant)] = Pair().up().master.take_messages()
    [(_, knowing)] = Pair().up().master.take_messages(7)
    assert isinstance(ignorant, Attach)
    assert isinstance(knowing, Attach)
    assert (ignorant.as_of_index, knowing.as_of_index) == (0, 7)


@pytest.mark.parametrize("is_whole", [False, True])
def test_few_that_a_consumer_gives_back_are_read_at_once_and_a_piece_of_many_is_not(is_whole: bool) -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 40))
    held = [delivery.seq_id for delivery in pair.master.fetch(20, ack_required=True)]
    pair.master_local.set_ram_duration_target(0.0)
    pair.master_local.engine.paging.page_out()
    pair.master_local.set_ram_duration_target(float("inf"))
    assert pair.master.status().in_ram == 0
    if is_whole:
        pair.master.requeue(held)
    else:
        pair.master.requeue(held, more_follow=True)
    assert pair.master.status().in_ram == (20 if is_whole else 0)


# --- two mirrors, and the end -----------------------------------------------------------------------------------------


class Three:
    """A master and two mirrors, each of which hears and answers when it is told to."""

    def __init__(self) -> None:
        self.record = MastershipRecord(QUEUE, Epoch(1), N1, (N2, N3), (N2, N3))
        self.master = MirroredQueue(N1, StoreHarness().open_queue(), self.record)
        self.mirrors = {node: MirrorReplica(QUEUE, StoreHarness().open_queue(), Epoch(1)) for node in (N2, N3)}
        self.said = {node: list[Attach | Ops]() for node in (N2, N3)}
        for node in (N2, N3):
            self.master.mirror_link_up(node)
        for _ in range(4):
            self.hear(N2, N3)

    def hear(self, *nodes: NodeName) -> None:
        for node, message in self.master.take_messages():
            assert isinstance(message, Attach | Ops)
            self.said[node].append(message)
        for node in nodes:
            for message in self.said[node]:
                self.mirrors[node].receive(N1, message)
            self.said[node].clear()
            for _, answer in self.mirrors[node].take_messages():
                self.master.receive(node, answer)

    def is_end_known(self) -> bool:
        return self.master.is_end_known


def test_the_end_is_known_when_every_mirror_has_heard_it() -> None:
    three = Three()
    three.master.publish(publications(1, 9))
    three.master.fetch(4, ack_required=True)
    assert not three.is_end_known(), "it is still delivering"
    three.master.end()
    assert three.master.fetch(1, ack_required=False) == []
    assert not three.is_end_known()
    three.hear(N3)
    assert not three.is_end_known()
    three.hear(N2)
    assert three.is_end_known()
    for copy in (three.master, three.mirrors[N3]):
        copy.close_deliveries()
        assert (copy.local.delivered_epoch, copy.local.delivered_below) == (1, 4), "their files will say so"
    promoted = three.mirrors[N2].promote(N2, replace(three.record, epoch=Epoch(2), master=N2, mirrors=()))
    assert [delivery.redelivered for delivery in promoted.fetch(9, ack_required=True)] == [True] * 4 + [False] * 5


def test_the_end_is_not_known_to_a_mirror_that_is_far_behind() -> None:
    three = Three()
    three.master.set_settings(MirroringSettings(window_bytes=2000))
    for counter in range(1, 40):
        three.master.publish(publications(counter, 1))
        three.hear(N3)
    assert three.master.mirror_states() == {N2: MirrorState.LAGGING, N3: MirrorState.SYNCHRONISED}
    three.master.end()
    three.hear(N3)
    assert not three.is_end_known()
    three.hear(N2)
    assert three.mirrors[N2].end is None, "it lacks much, and will be told the end when it has that"
    assert 39 not in three.master.drain_confirmed()


def test_what_was_said_to_be_the_end_is_none_for_a_mirror_that_came_after_it() -> None:
    three = Three()
    three.master.publish(publications(1, 9))
    three.master.end()
    three.hear(N2, N3)
    assert three.is_end_known()
    three.master.mirror_link_up(N2)
    three.mirrors[N2].link_lost()
    three.hear(N2)
    assert not three.is_end_known(), "it was attached, with a horizon"
    for _ in range(3):
        three.hear(N2, N3)
    assert three.is_end_known()


def test_without_mirrors_the_end_is_known_at_once() -> None:
    queue = MirroredQueue(N1, StoreHarness().open_queue(), MastershipRecord(QUEUE, Epoch(1), N1))
    queue.end()
    assert queue.is_end_known


def test_confirms_wait_for_the_slowest_mirror_and_deliveries_for_the_least_informed() -> None:
    three = Three()
    step = master_module.HORIZON_STEP_MIN
    three.master.publish(publications(1, 2 * step, persistent=False))
    three.hear(N3)
    assert three.master.drain_confirmed() == []
    taken = three.master.fetch(2 * step, ack_required=True)
    assert len(taken) == step
    three.hear(N3)
    assert three.master.fetch(1, ack_required=True) == []
    three.hear(N2)
    assert len(three.master.drain_confirmed()) == 2 * step
    assert len(three.master.fetch(1, ack_required=True)) == 1


def test_a_mirror_that_lacks_something_trusts_the_horizon_more_than_the_end() -> None:
    """What it has in the gaps may be of an earlier master, that had come further."""
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 3))
    pair.up().quiet()
    assert pair.state() is MirrorState.STREAMING
    pair.master.end()
    pair.to_mirror()
    assert pair.mirror.end == (Epoch(1), HORIZON_STEP_MIN)
    pair.master.start_sync()
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up().quiet()
    assert pair.mirror.end == (Epoch(1), 0), "it lacks nothing when it hears it"


@pytest.mark.parametrize("is_settled", [False, True])
def test_what_a_mirror_has_of_an_earlier_master_is_flagged_until_the_difference_is_settled(is_settled: bool) -> None:
    """That one had delivered it directly, far beyond what the next has promised by now to have delivered."""
    pair = Pair()
    count = HORIZON_STEP_MIN + 10
    pair.mirror_local.publish(publications(1, count))
    pair.master.publish(publications(10_001, count))
    pair.up().to_mirror()
    if is_settled:
        pair.quiet()
    record = replace(pair.record, epoch=Epoch(2), master=N2, mirrors=(), synchronised=(), served_epoch=Epoch(1))
    promoted = pair.mirror.promote(N2, record)
    delivered = promoted.fetch(count, ack_required=True)
    assert [delivery.redelivered for delivery in delivered].count(False) == (10 if is_settled else 0)
    assert len(delivered) == count


def test_what_a_mirror_has_of_an_earlier_master_is_flagged_by_its_next_life_as_well() -> None:
    """It was closed behind the end of its master, which goes on all the same, and attaches again in that epoch."""
    pair = Pair()
    count = HORIZON_STEP_MIN + 10
    pair.mirror_local.publish(publications(1, count))
    pair.master.publish(publications(10_001, count))
    pair.mirror = MirrorReplica(QUEUE, pair.mirror_local, Epoch(1), True, (Epoch(1), SeqId(count)))
    pair.up().to_mirror()
    record = replace(pair.record, epoch=Epoch(2), master=N2, mirrors=(), synchronised=(), served_epoch=Epoch(1))
    delivered = pair.mirror.promote(N2, record).fetch(count, ack_required=True)
    assert [delivery.redelivered for delivery in delivered] == [True] * count


def test_a_master_that_attaches_goes_on_whatever_end_was_said_before() -> None:
    pair = Pair().up().quiet()
    pair.master.end()
    pair.quiet()
    assert pair.mirror.end == (Epoch(1), 0)
    pair.master.set_record(replace(pair.record, epoch=Epoch(2)))
    pair.up()
    attach = next(message for _, message in pair.master.take_messages() if isinstance(message, Attach))
    pair.mirror.receive(N1, attach)
    assert pair.mirror.end is None


def test_a_master_that_promises_more_goes_on_whatever_end_was_said_before() -> None:
    pair = Pair().up().quiet()
    pair.master.end()
    pair.quiet()
    record = pair.record
    horizon = Ops(QUEUE, record.epoch, pair.mirror._attach_id, pair.mirror._applied_index + 1, (HorizonOp(SeqId(9)),))
    pair.mirror.receive(N1, horizon)
    assert pair.mirror.end is None


@pytest.mark.parametrize(
    ("is_complete", "served_epoch", "flagged"),
    [(True, 1, 0), (False, 1, 3), (True, 2, 3)],
    ids=["followed it", "lacks something", "followed an earlier one"],
)
def test_who_is_promoted_believes_the_end_if_he_had_everything_of_the_master_before(
    is_complete: bool, served_epoch: int, flagged: int
) -> None:
    """That one has delivered nothing; to whoever does not know that, it may have delivered all three."""
    pair = Pair(synchronised=is_complete)
    pair.master.publish(publications(1, 3))
    pair.up().quiet()
    [(_, said)] = pair.master.take_leave()
    assert isinstance(said, Ops)
    record = replace(pair.record, epoch=Epoch(3), master=N2, mirrors=(N1,), synchronised=(), in_service=False)
    promoted = pair.mirror.promote(N2, replace(record, served_epoch=Epoch(served_epoch)))
    assert promoted.local.delivered_below == 3
    promoted.receive(N1, replace(said, epoch=Epoch(served_epoch)))
    assert promoted.local.delivered_below == flagged
