"""The rules of the protocol one by one, with a master and mirrors joined by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring import conversations
from cluster.mirroring import master as master_module
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import (
    Attach,
    AttachRefused,
    HorizonOp,
    MirrorMessage,
    Ops,
    OpsAck,
    OriginsOp,
    PublishOp,
    SettleOp,
    SyncBatchOp,
)
from cluster.mirroring.mirror import demote
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.reports import ReportFenced, ReportFollows, ReportSynchronised
from node.ids import Epoch, SeqId
from node.queues.backing_queue import MirrorInFlight
from node.queues.replica import SeqRange
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE, Pair
from tests.support.stores import StoreHarness


def ops_of(messages: list[MirrorMessage]) -> list[object]:
    return [op for message in messages if isinstance(message, Ops) for op in message.ops]


# --- the stream -------------------------------------------------------------------------------------------------------


def test_a_turn_is_one_frame_of_a_few_ops() -> None:
    pair = Pair().up().quiet()
    for counter in range(1, 6):
        pair.master.publish(publications(counter, 1))
    deliveries = pair.master.fetch(4, ack_required=True)
    pair.master.ack([deliveries[0].seq_id])
    pair.master.ack([deliveries[1].seq_id, deliveries[3].seq_id])
    [frame] = pair.to_mirror()
    assert isinstance(frame, Ops)
    publish, settle = frame.ops
    assert isinstance(publish, PublishOp)
    assert publish.message_count == 5
    assert settle == SettleOp((SeqRange(SeqId(0), SeqId(2)), SeqRange(SeqId(3), SeqId(4))))
    assert [message for _, message in pair.master.take_messages()] == []


def test_two_mirrors_get_the_same_ops_object() -> None:
    record = MastershipRecord(QUEUE, Epoch(1), N1, (N2, N3), (N2, N3))
    master = MirroredQueue(N1, StoreHarness().open_queue(), record)
    master.mirror_link_up(N2)
    master.mirror_link_up(N3)
    master.take_messages()
    master.publish(publications(1, 3))
    first, second = (message for _, message in master.take_messages())
    assert isinstance(first, Ops)
    assert isinstance(second, Ops)
    assert first.ops is second.ops


def test_purge_settles_what_was_ready_and_not_what_is_unacked() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 6))
    pair.master.fetch(2, ack_required=True)
    assert pair.master.purge() == 4
    pair.exchange()
    assert pair.mirror_local.digests() == pair.master_local.digests()
    assert pair.mirror_local.ready == 2


def test_a_refused_ack_of_a_ready_message_does_not_settle_it_on_the_mirror() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 3))
    [first] = pair.master.fetch(1, ack_required=True)
    assert pair.master.ack([first.seq_id, SeqId(2), SeqId(99)]) == 1
    pair.exchange()
    assert pair.mirror_local.digests() == pair.master_local.digests()
    assert pair.mirror_local.ready == 2


def test_a_discarded_message_is_known_to_the_mirror_as_a_duplicate() -> None:
    pair = Pair().up().quiet()
    pair.master.discard(publications(1, 1))
    assert any(isinstance(op, OriginsOp) for op in ops_of(pair.to_mirror()))
    assert pair.master.drain_confirmed() == []
    pair.to_master()
    assert pair.master.drain_confirmed() == [1]
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    assert promoted.is_duplicate(msg_id_of(1))
    assert not promoted.is_duplicate(msg_id_of(2))


# --- the horizon ------------------------------------------------------------------------------------------------------


def test_deliveries_stop_at_the_horizon_the_mirror_has_acknowledged() -> None:
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    pair.master.publish(publications(1, step + 100))
    assert len(pair.master.fetch(step + 100, ack_required=True)) == step
    assert pair.master.fetch(1, ack_required=True) == []
    assert any(isinstance(op, HorizonOp) for op in ops_of(pair.to_mirror()))
    assert pair.master.fetch(1, ack_required=True) == [], "promised, but not yet known to be heard"
    pair.to_master()
    assert len(pair.master.fetch(step, ack_required=True)) == 100


@pytest.mark.parametrize("way", ["drop", "purge", "deliver"])
def test_what_has_gone_beyond_the_horizon_does_not_stop_deliveries_for_good(way: str) -> None:
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    match way:
        case "drop":
            pair.master.publish(publications(1, 3 * step))
            pair.master.drop(3 * step)
        case "purge":
            pair.master.publish(publications(1, 3 * step))
            pair.master.purge()
        case "deliver":
            pair.master.publish_delivered(publications(1, 3 * step))
    pair.master.publish(publications(3 * step + 1, step))
    assert pair.master.fetch(1, ack_required=True) == []
    pair.exchange()
    assert len(pair.master.fetch(step, ack_required=True)) == step


def test_a_direct_delivery_beyond_the_horizon_sends_the_promise_first() -> None:
    pair = Pair().up().quiet()
    deliveries = pair.master.publish_delivered(publications(1, master_module.HORIZON_STEP_MIN + 1))
    assert len(deliveries) == master_module.HORIZON_STEP_MIN + 1
    horizon, publish = ops_of(pair.to_mirror())
    assert isinstance(horizon, HorizonOp)
    assert isinstance(publish, PublishOp)
    assert horizon.horizon > deliveries[-1].seq_id


def test_nothing_is_kept_for_a_mirror_without_a_link() -> None:
    """It is told the whole state when it attaches."""
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.master.mirror_link_down(N2)
    pair.check()
    assert pair.master.take_messages() == []


def test_a_mirror_without_a_link_limits_deliveries_by_what_it_last_heard() -> None:
    pair = Pair().up().quiet()
    pair.master.mirror_link_down(N2)
    step = master_module.HORIZON_STEP_MIN
    pair.master.publish(publications(1, 2 * step))
    pair.master.take_messages()
    assert len(pair.master.fetch(2 * step, ack_required=True)) == step
    pair.master.take_messages()
    assert pair.master.fetch(1, ack_required=True) == []
    pair.master.set_record(replace(pair.record, mirrors=(), synchronised=()))
    assert len(pair.master.fetch(2 * step, ack_required=True)) == step


# --- attach, fill, synchronisation ------------------------------------------------------------------------------------


def test_an_unsynchronised_mirror_is_not_filled_unless_asked() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 10))
    pair.up().quiet()
    assert pair.state() is MirrorState.STREAMING
    assert pair.mirror_local.ready == 0
    assert pair.master.take_reports() == [ReportFollows(N2)]
    pair.master.start_sync([N2])
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()
    assert pair.master.take_reports() == [ReportSynchronised(N2)]


def test_automatic_synchronisation_starts_by_itself() -> None:
    pair = Pair(synchronised=False, settings=MirroringSettings(sync_automatically=True))
    pair.master.publish(publications(1, 10))
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED


def test_a_mirror_becomes_synchronised_by_natural_drain() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 10))
    pair.up().quiet()
    pair.master.publish(publications(11, 5))
    pair.master.ack([delivery.seq_id for delivery in pair.master.fetch(10, ack_required=True)])
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.ready == 5


def test_a_cancelled_synchronisation_keeps_what_arrived() -> None:
    settings = MirroringSettings(sync_batch_messages=10)
    pair = Pair(synchronised=False, settings=settings)
    pair.master.publish(publications(1, 100))
    pair.up().quiet()
    pair.master.start_sync()
    pair.to_mirror()
    progress = pair.master.sync_progress()
    assert progress is not None
    assert (progress.synced, progress.total) == (20, 100)
    pair.master.cancel_sync()
    pair.quiet()
    assert pair.master.sync_progress() is None
    assert pair.state() is MirrorState.STREAMING
    assert pair.mirror_local.ready == 20


def test_the_queue_is_used_while_it_is_synchronised() -> None:
    pair = Pair(synchronised=False, settings=MirroringSettings(sync_batch_messages=10))
    pair.master.publish(publications(1, 60))
    pair.up().quiet()
    pair.master.start_sync()
    counter = 60
    for _ in range(12):
        counter += 1
        pair.master.publish(publications(counter, 1))
        pair.master.ack([delivery.seq_id for delivery in pair.master.fetch(2, ack_required=True)])
        pair.exchange(1)
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_the_throttle_limits_bytes_per_second() -> None:
    settings = MirroringSettings(sync_batch_messages=1, sync_throughput_bytes=1000)
    pair = Pair(synchronised=False, settings=settings)
    pair.master.publish(publications(1, 10, body=b"x" * 960))  # with its envelope about 1,000 bytes
    pair.master.tick(0)
    pair.up().quiet()
    pair.master.start_sync()
    pair.exchange(10)
    assert pair.mirror_local.ready == 1
    for second in range(1, 4):
        pair.master.tick(second * 1100)
        pair.exchange(4)
        assert pair.mirror_local.ready == 1 + second
    pair.master.set_settings(replace(settings, sync_throughput_bytes=0))
    pair.exchange(10)
    assert pair.mirror_local.ready == 10


def test_a_link_break_that_loses_a_suffix_is_healed_by_content() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 5))
    pair.quiet()
    pair.master.publish(publications(6, 5))
    pair.master.fetch(3, ack_required=False)
    pair.master.take_messages()  # lost
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()
    assert sorted(pair.master.drain_confirmed()) == list(range(1, 11))  # type: ignore[type-var]


def test_frames_of_an_earlier_attach_are_ignored() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    [(_, straggler)] = pair.master.take_messages()
    pair.master.mirror_link_down(N2)
    pair.up()
    pair.to_mirror()
    before = pair.mirror_local.ready
    pair.mirror.receive(N1, straggler)
    assert pair.mirror_local.ready == before
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED, "the present conversation goes on"
    assert pair.mirror_local.ready == 1


def test_a_mirror_far_behind_is_not_streamed_to_and_attached_again_when_it_has_caught_up() -> None:
    pair = Pair(settings=MirroringSettings(window_bytes=2000)).up().quiet()
    for counter in range(1, 40):
        pair.master.publish(publications(counter, 1))
        pair.master.take_messages()
    assert pair.state() is MirrorState.LAGGING
    assert [each.unapplied for each in pair.master.mirrors_in_flight()] == [39], "sent or not, it has to apply them all"
    # Nothing of it arrived: the link is as good as broken.
    pair.up().quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.master.mirrors_in_flight() == [MirrorInFlight(N2, 0, 0, 0)]
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_lagging_mirror_attaches_again_once_everything_sent_is_applied() -> None:
    pair = Pair(settings=MirroringSettings(window_bytes=2000)).up().quiet()
    sent: list[MirrorMessage] = []
    for counter in range(1, 40):
        pair.master.publish(publications(counter, 1))
        sent += [message for _, message in pair.master.take_messages()]
    for message in sent:
        pair.mirror.receive(N1, message)
    pair.to_master()
    assert pair.state() is MirrorState.PROBING
    pair.quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_an_attach_that_was_lost_is_sent_again() -> None:
    pair = Pair().up()
    pair.master.take_messages()
    pair.master.tick(1000)
    pair.master.tick(1000 + conversations.ATTACH_RETRY_MS)
    assert any(isinstance(message, Attach) for message in pair.to_mirror())


# --- epochs and promotion ---------------------------------------------------------------------------------------------


def test_an_old_master_that_goes_on_with_its_stream_is_told_that_it_is_none_any_more() -> None:
    """It stood still while another was elected, and nothing but its mirrors may be able to tell it."""
    pair = Pair().up().quiet()
    pair.mirror.adopt_epoch(Epoch(2))
    pair.master.publish(publications(1, 1))
    pair.to_mirror()
    assert pair.mirror_local.ready == 0
    pair.quiet()
    assert pair.master.take_reports() == [ReportFenced(Epoch(2))]
    assert pair.master.fetch(1, ack_required=True) == []


def test_a_mirror_refuses_an_older_epoch_and_the_old_master_stops() -> None:
    pair = Pair().up()
    pair.mirror.adopt_epoch(Epoch(2))
    pair.to_mirror()
    [(_, refusal)] = pair.mirror.take_messages()
    assert refusal == AttachRefused(QUEUE, Epoch(1), Epoch(2))
    pair.master.publish(publications(1, 1, persistent=False))
    pair.master.receive(N2, refusal)
    assert pair.master.take_reports() == [ReportFenced(Epoch(2))]
    assert pair.master.fetch(1, ack_required=True) == []
    assert pair.master.drain_confirmed() == []


@pytest.mark.parametrize("is_attached_again", [False, True])
def test_a_stream_ends_when_a_later_master_is_known(is_attached_again: bool) -> None:
    """Whether by the record or by the later master itself, whose conversation may bear the same number."""
    pair = Pair()
    pair.master.mirror_link_up(N2)
    [attach] = pair.to_mirror()
    assert isinstance(attach, Attach)
    pair.to_master()
    pair.master.publish(publications(1, 3))
    stream = [message for _, message in pair.master.take_messages()]
    assert any(isinstance(message, Ops) for message in stream)
    if is_attached_again:
        pair.mirror.receive(N1, replace(attach, epoch=Epoch(2)))
    else:
        pair.mirror.adopt_epoch(Epoch(2))
    for message in stream:
        pair.mirror.receive(N1, message)
    assert pair.mirror_local.next_seq_id == 0


def test_a_commit_that_comes_too_late_may_not_promote() -> None:
    pair = Pair().up().quiet()
    pair.mirror.adopt_epoch(Epoch(3))
    assert not pair.mirror.may_promote(MastershipRecord(QUEUE, Epoch(2), N2))


def test_a_promoted_mirror_flags_below_the_horizon_and_not_above() -> None:
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    pair.master.publish(publications(1, step + 3))
    pair.master.fetch(1, ack_required=True)
    pair.to_mirror()
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    flags = [delivery.redelivered for delivery in promoted.fetch(step + 3, ack_required=True)]
    assert flags == [True] * step + [False] * 3


def test_a_mirror_that_heard_nothing_of_the_last_epoch_flags_everything() -> None:
    pair = Pair().up().quiet()
    count = master_module.HORIZON_STEP_MIN + 3
    pair.master.publish(publications(1, count))
    pair.to_mirror()
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(3), N2))
    assert all(delivery.redelivered for delivery in promoted.fetch(count, ack_required=True))


def test_a_complete_mirror_recognises_what_was_settled_as_a_duplicate() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 2))
    pair.master.fetch(2, ack_required=False)
    pair.quiet()
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    assert promoted.is_duplicate(msg_id_of(2))


def test_a_mirror_that_equals_the_master_at_its_attach_may_vouch_at_once() -> None:
    """Its link was away for a moment and nothing has happened; the master dies before it says anything more."""
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 2))
    pair.master.fetch(2, ack_required=False)
    pair.quiet()
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up()
    [attach] = pair.to_mirror()
    assert isinstance(attach, Attach)
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    assert promoted.is_duplicate(msg_id_of(2)), "settled, so only the counter can tell"


def test_what_a_mirror_dropped_at_its_attach_is_taken_when_it_is_sent_again() -> None:
    pair = Pair()
    pair.mirror_local.publish(publications(1, 2, tokens=False))
    pair.up()
    [attach] = pair.to_mirror()
    assert isinstance(attach, Attach)
    assert pair.mirror_local.ready == 0, "the master has none of it"
    promoted = pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2))
    assert not promoted.is_duplicate(msg_id_of(2)), "its publisher sends it again"


def test_an_old_master_drops_its_diverged_tail_when_the_new_one_attaches() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 3))
    pair.quiet()
    pair.master.publish([*publications(4, 3)])  # never sent
    record = MastershipRecord(QUEUE, Epoch(2), N2, (N1,))
    new_master = pair.mirror.promote(N2, record)
    new_master.publish(publications(10, 1))
    old = demote(pair.master, Epoch(2))
    new_master.mirror_link_up(N1)
    new_master.start_sync()
    for _ in range(6):
        for _, message in new_master.take_messages():
            old.receive(N2, message)
        pair.sync()
        for _, answer in old.take_messages():
            new_master.receive(N1, answer)
    assert pair.master_local.digests() == pair.mirror_local.digests()
    assert new_master.take_reports() == [ReportFollows(N1), ReportSynchronised(N1)]
    old.check_invariants()
    new_master.check_invariants()


def test_tokens_of_an_earlier_life_do_not_come_back() -> None:
    pair = Pair()
    pair.master.publish(publications(1, 1))
    mirror = demote(pair.master, Epoch(2))
    again = mirror.promote(N1, MastershipRecord(QUEUE, Epoch(3), N1))
    again.publish(publications(1, 2))  # the node of the publisher sends again
    pair.master_disk.sync()
    assert sorted(again.drain_confirmed()) == [1, 2]  # type: ignore[type-var]
    assert again.drain_confirmed() == []


def test_an_acknowledgement_of_what_was_never_sent_releases_nothing() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.sync()
    [message] = pair.to_mirror()
    assert isinstance(message, Ops)
    ack = OpsAck(QUEUE, Epoch(1), message.attach_id, 10_000, 10_000, is_disk_full=False, is_describing=False)
    pair.master.receive(N2, ack)
    assert pair.master.drain_confirmed() == []


@pytest.mark.parametrize("missing", [False, True])
def test_the_end_of_the_difference_is_said_once(missing: bool) -> None:
    pair = Pair()
    if missing:
        pair.master.publish(publications(1, 1))
    pair.up()
    said: list[object] = []
    for _ in range(6):
        said += ops_of(pair.to_mirror())
        pair.to_master()
    batches = [op for op in said if isinstance(op, SyncBatchOp)]
    assert [len(batch.seq_ids) for batch in batches] == ([1, 0] if missing else [0])


def test_a_big_turn_goes_out_in_several_frames() -> None:
    pair = Pair().up().quiet()
    pair.master.publish([*publications(1, 6, body=b"x" * 1_500_000)])
    frames = pair.to_mirror()
    assert len(frames) > 1
    pair.quiet()
    assert pair.mirror_local.ready == 6
    assert pair.mirror_local.read([SeqId(5)]) == [
        (SeqId(5), make_message(6, body=b"x" * 1_500_000).envelope()),
    ]


def test_messages_flagged_at_the_master_are_flagged_by_its_successor() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 400))
    pair.master.flag_redelivered()
    pair.quiet()
    promoted = pair.mirror.promote(N2, replace(pair.record, epoch=Epoch(2), master=N2, mirrors=(), synchronised=()))
    assert all(delivery.redelivered for delivery in promoted.fetch(400, ack_required=True))


def test_a_quiet_queue_sleeps_and_one_to_be_filled_does_not() -> None:
    pair = Pair().up().quiet()
    pair.master.tick(1_000)
    assert not pair.master.wants_turn
    lacking = Pair(synchronised=False)
    lacking.master.publish(publications(1, 3))
    lacking.up().quiet()
    lacking.master.take_reports()
    lacking.master.tick(1_000)
    assert not lacking.master.wants_turn, "nobody asked to fill the mirror"
    lacking.master.start_sync()
    lacking.master.tick(2_000)
    assert lacking.master.wants_turn


def test_a_claim_about_a_mirror_is_withdrawn_when_the_mirror_leaves_the_record() -> None:
    """The proposal is stamped when it is made: for a mirror that left and came back, the claim would be a lie."""
    pair = Pair(synchronised=False).up()
    while not pair.master._conversations._reports:
        pair.to_mirror()
        pair.sync()
        pair.to_master()
    pair.master.set_record(replace(pair.record, mirrors=()))
    pair.master.set_record(pair.record)
    assert pair.master.take_reports() == []


def test_a_quiet_queue_wants_no_turn_and_one_that_fills_a_mirror_does() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 3))
    pair.up()
    assert pair.master.wants_turn, "an attach is due"
    pair.quiet()
    pair.master.take_reports()
    pair.master.drain_confirmed()
    assert pair.state() is MirrorState.STREAMING
    before = pair.master.wants_turn
    pair.master.start_sync()
    assert (before, pair.master.wants_turn) == (False, True)


# --- credit flow ------------------------------------------------------------------------------------------------------


def test_what_a_mirror_has_to_apply_and_what_its_disk_has_to_write_are_told_apart() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 3))
    pair.master.publish(publications(4, 2, persistent=False))
    (before,) = pair.master.mirrors_in_flight()
    assert before[:3] == (N2, 5, 0), "it counts from the publish on, sent or not"
    pair.to_mirror()
    (sent,) = pair.master.mirrors_in_flight()
    assert sent.unapplied_bytes > 0
    pair.to_master()
    assert pair.master.mirrors_in_flight() == [MirrorInFlight(N2, 0, 3, 0)], "transient messages need no disk"
    pair.mirror_disk.sync()
    pair.to_master()
    assert pair.master.mirrors_in_flight() == [MirrorInFlight(N2, 0, 0, 0)]


def test_a_synchronised_mirror_that_cannot_be_reached_counts_until_the_record_drops_it() -> None:
    pair = Pair()
    pair.master.publish(publications(1, 3))
    pair.master.take_messages()
    assert pair.master.mirrors_in_flight() == [MirrorInFlight(N2, 3, 0, 0)]
    pair.master.set_record(replace(pair.record, mirrors=(), synchronised=()))
    assert pair.master.mirrors_in_flight() == []


def test_a_mirror_that_holds_no_confirms_slows_nobody() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 3))
    assert pair.master.mirrors_in_flight() == []


def test_the_queue_knows_what_its_own_store_has_to_do() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 3))
    assert pair.master.in_flight_messages == 3
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == [], "the mirror has not heard of them"
    assert pair.master.in_flight_messages == 0
