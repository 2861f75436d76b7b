"""What a conversation between master and mirror leaves behind when it ends: promises, silence, and who was heard of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.mirroring import conversations, turn
from cluster.mirroring import master as master_module
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import AttachRefused, AttachReply, HorizonOp, MirrorMessage, Ops, PublishOp, SyncBatchOp
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.sync import CONGESTED_PARTS, SYNC_BATCH_BYTES
from node.ids import Epoch, NodeName
from tests.support.messages import publications
from tests.support.mirror_pair import N1, N2, QUEUE, Pair
from tests.support.stores import StoreHarness

ALONE: dict[str, Any] = {"mirrors": (), "synchronised": ()}


def test_after_a_gap_nothing_of_that_conversation_is_taken_any_more() -> None:
    """Not even what was missing, should it come yet: the master has begun to make up for it otherwise."""
    pair = Pair().up().quiet()
    frames = []
    for counter in (1, 2):
        pair.master.publish(publications(counter, 1))
        frames += [message for _, message in pair.master.take_messages()]
    first, second = frames
    pair.mirror.receive(pair.master.node, second)
    pair.mirror.receive(pair.master.node, first)
    assert pair.mirror_local.ready == 0
    pair.master.mirror_link_down(N2)
    pair.up().quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_mirror_falls_behind_by_so_many_frames_however_small_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "WINDOW_FRAMES", 3)
    pair = Pair().up().quiet()
    states = []
    for counter in range(1, 5):
        pair.master.publish(publications(counter, 1))
        pair.to_mirror()
        states.append(pair.state())
    assert states == [*[MirrorState.SYNCHRONISED] * 3, MirrorState.LAGGING]
    pair.quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


def bodies_in(messages: list[MirrorMessage]) -> list[int]:
    """About how many kilobytes each op brings."""
    ops = [op for message in messages if isinstance(message, Ops) for op in message.ops]
    return [len(op.envelopes) // 1000 for op in ops if isinstance(op, SyncBatchOp | PublishOp)]


def test_a_mirror_that_falls_behind_within_a_turn_gets_nothing_more_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would have the end without the middle."""
    monkeypatch.setattr(turn, "FRAME_BYTES_MAX", 1)
    pair = Pair(settings=MirroringSettings(window_bytes=2000)).up().quiet()
    for counter, size_bytes in enumerate((1000, 1500, 1), 1):
        pair.master.publish(publications(counter, 1, body=bytes(size_bytes)))
    assert bodies_in(pair.to_mirror()) == [1]
    assert pair.state() is MirrorState.LAGGING
    pair.quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_mirror_that_falls_behind_while_it_is_filled_gets_nothing_more() -> None:
    pair = Pair(synchronised=False, settings=MirroringSettings(window_bytes=3000, sync_batch_messages=1))
    for counter, size_bytes in enumerate((1000, 2500, 1), 1):
        pair.master.publish(publications(counter, 1, body=bytes(size_bytes)))
    pair.master.start_sync()
    pair.up().exchange(1)
    assert pair.state() is MirrorState.FILLING
    assert bodies_in(pair.to_mirror()) == [1]
    assert pair.state() is MirrorState.LAGGING
    pair.quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_the_promise_grows_in_longer_steps_the_faster_the_consumers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time deliveries wait for an answer; but what lies between is flagged after a failover."""
    step, most = 16, 256
    monkeypatch.setattr(master_module, "HORIZON_STEP_MIN", step)
    monkeypatch.setattr(master_module, "HORIZON_STEP_MAX", most)
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 9 * most, persistent=False))
    pair.exchange()
    taken = []
    while pair.master.ready:
        taken.append(len(pair.master.fetch(9 * most, ack_required=False)))
        assert pair.master.fetch(1, ack_required=False) == []
        pair.exchange(1)
    assert taken[:6] == [step, 2 * step, 4 * step, 8 * step, 16 * step, 16 * step]
    assert max(taken) == 16 * step == most


def test_what_was_delivered_before_may_be_delivered_again_whatever_was_promised() -> None:
    """Also while the mirrors have not heard how far the rest may go."""
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    pair.master.publish(publications(1, 4 * step))
    held = [delivery.seq_id for delivery in pair.master.fetch(5, ack_required=True)]
    pair.master.drop(3 * step)
    pair.master.requeue(held)
    assert [delivery.seq_id for delivery in pair.master.fetch(step, ack_required=True)] == held


def test_a_mirror_that_was_sent_away_and_called_back_still_relies_on_what_it_was_promised() -> None:
    """Its copy is still there and may be promoted: it would deliver as new what lies above its horizon."""
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    pair.master.mirror_link_down(N2)
    pair.master.publish(publications(1, 2 * step))
    pair.master.set_record(replace(pair.record, **ALONE))
    pair.master.set_record(pair.record)
    assert len(pair.master.fetch(2 * step, ack_required=True)) == step
    pair.up().quiet()
    assert len(pair.master.fetch(2 * step, ack_required=True)) == step, "it has heard of a higher one"


def test_under_a_later_epoch_nobody_relies_on_what_an_earlier_one_promised() -> None:
    """The copies of the epoch before are taken in anew, each with a horizon of its own."""
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    pair.master.mirror_link_down(N2)
    pair.master.publish(publications(1, 2 * step))
    pair.master.set_record(replace(pair.record, **ALONE))
    pair.master.set_record(replace(pair.record, epoch=Epoch(2)))
    assert len(pair.master.fetch(2 * step, ack_required=True)) == 2 * step


def test_of_two_masters_the_earlier_one_stops() -> None:
    """Neither has heard of the other's record; the one that began last is right."""
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    frames = [message for _, message in pair.master.take_messages()]
    later = MirroredQueue(N2, pair.mirror_local, replace(pair.record, epoch=Epoch(2), master=N2, mirrors=(N1,)))
    for frame in frames:
        later.receive(N1, frame)
    assert later.take_messages() == [(N1, AttachRefused(QUEUE, Epoch(1), Epoch(2)))]
    later.mirror_link_up(N1)
    [(_, attach)] = later.take_messages()
    pair.master.receive(N2, attach)
    assert pair.master.is_fenced
    assert pair.master.take_messages() == []
    assert not later.is_fenced
    later.receive(N1, attach)
    assert (later.take_messages(), later.is_fenced) == ([], False), "of its own epoch there is nothing to refuse"


def test_a_mirror_is_filled_beside_whatever_else_is_on_its_way_to_it() -> None:
    """What is bounded are batches of the fill."""
    pair = Pair().up().quiet()
    for counter in range(1, 20):
        pair.master.publish(publications(counter, 1))
        pair.master.take_messages()
    [progress] = pair.master._conversations.mirrors.values()
    assert (progress.in_flight_frames, progress.in_flight_sync_batches) == (19, 0)


def test_the_link_is_looked_at_only_for_what_is_missing() -> None:
    """Nor for what a mirror has too much, which may be left of a conversation that is about to begin anew."""
    asked: list[NodeName] = []

    def is_full(node: NodeName) -> bool:
        asked.append(node)
        return False

    pair = Pair()
    pair.master.publish(publications(1, 2))
    pair.mirror_local.publish(publications(1, 2))
    pair.master.drop(1)
    pair.master.publish(publications(3, 1))
    pair.up()
    for _, message in pair.master.take_messages(is_full=is_full):
        pair.mirror.receive(N1, message)
    for _, answer in pair.mirror.take_messages():
        if isinstance(answer, AttachReply):
            pair.master.receive(N2, answer)
    pair.up()
    [progress] = pair.master._conversations.mirrors.values()
    assert (progress.state, bool(progress.extras)) == (MirrorState.PROBING, True)
    for _, message in pair.master.take_messages(is_full=is_full):
        pair.mirror.receive(N1, message)
    assert asked == []
    pair.to_master()
    assert (progress.state, bool(progress.lacking)) == (MirrorState.FILLING, True)
    for _ in range(2):
        pair.master.take_messages(is_full=is_full)
    assert asked == [N2], "all of it was sent"


def test_a_required_mirror_is_filled_in_small_pieces_while_the_link_is_congested() -> None:
    """So may be those of all other queues, which share the link."""
    pair = Pair()
    pair.master.publish(publications(1, 300, body=bytes(16 * 1024)))
    pair.up().exchange(1)
    sizes: list[list[int]] = []

    def is_full(_node: NodeName) -> bool:
        return len(sizes) < 5

    while pair.state() is MirrorState.FILLING:
        messages = pair.master.take_messages(is_full=is_full)
        assert pair.master.take_messages(is_full=is_full) == [], "one is on its way"
        ops = [op for _, message in messages if isinstance(message, Ops) for op in message.ops]
        sizes.append([len(op.envelopes) for op in ops if isinstance(op, SyncBatchOp) and op.seq_ids])
        for _, message in messages:
            pair.mirror.receive(N1, message)
        pair.to_master()
        pair.sync()
    assert [len(batches) for batches in sizes[:6]] == [1, 1, 1, 1, 1, 2]
    assert max(size for batches in sizes[:5] for size in batches) <= 2 * SYNC_BATCH_BYTES // CONGESTED_PARTS
    assert sizes[5][0] >= SYNC_BATCH_BYTES
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_turn_in_which_nothing_happened_is_none() -> None:
    """A node has thousands of queues that are looked at whenever anything happens to them."""
    pair = Pair().up().quiet()
    cut = pair.master._cut_turn
    pair.exchange(3)
    pair.master.set_record(replace(pair.record, synchronised=(N2,)))
    pair.exchange(3)
    assert pair.master._cut_turn == cut, "nor does a record that asks for no more"


def test_what_every_mirror_has_is_not_counted_any_more() -> None:
    """A queue may live for years, and take a turn every millisecond."""
    pair = Pair().up().quiet()
    for counter in range(1, 30):
        pair.master.publish(publications(counter, 1))
        pair.exchange(1)
    assert len(pair.master._published) == 30
    pair.quiet()
    assert len(pair.master._published) == 1


def test_a_fenced_master_serves_again_only_in_the_epoch_that_fenced_it() -> None:
    """Between its own epoch and that one others may have served of whom it knows nothing."""
    pair = Pair(synchronised=False)
    alone = replace(pair.record, **ALONE)
    pair.master.set_record(alone)
    pair.master.publish(publications(1, 2))
    pair.master.receive(N2, AttachRefused(QUEUE, Epoch(1), Epoch(3)))
    assert pair.master.fetch(1, ack_required=True) == []
    pair.master.set_record(replace(alone, epoch=Epoch(2)))
    assert pair.master.fetch(1, ack_required=True) == []
    pair.master.set_record(replace(alone, epoch=Epoch(3)))
    assert len(pair.master.fetch(1, ack_required=True)) == 1


def test_a_mirror_that_the_record_does_not_count_holds_confirms_from_its_attach_on() -> None:
    """Whoever sees it follow may take it for a copy of all that is published since."""
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 1))
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == [1], "it was never spoken to"
    pair.up().exchange()
    pair.master.publish(publications(2, 1))
    pair.master.take_messages()  # lost
    pair.master_disk.sync()
    assert [each.unapplied for each in pair.master.mirrors_in_flight()] == [1]
    pair.master.mirror_link_down(N2)
    pair.master.set_record(pair.record)
    assert pair.master.drain_confirmed() == [], "nor because nobody can ask it"
    pair.up().quiet()
    assert pair.master.drain_confirmed() == [2]


def test_what_was_to_be_reported_of_a_mirror_is_not_once_its_link_is_broken() -> None:
    """Its node may be in another life before it is said, as whose state it would be committed then."""
    pair = Pair(synchronised=False).up().quiet()
    pair.master.mirror_link_down(N2)
    assert pair.master.take_reports() == []


def test_a_mirror_that_begins_anew_in_the_same_epoch_is_filled_only_if_that_is_wanted() -> None:
    """As one whose end was noticed: its memory was its copy. Nor does any publish wait for what it lacks."""
    pair = Pair(synchronised=False)
    pair.up().quiet()
    pair.master.start_sync()
    pair.quiet()
    synchronised = replace(pair.record, synchronised=(N2,), complete=(N1, N2))
    pair.master.set_record(synchronised)
    pair.master.publish(publications(1, 3))
    pair.quiet()
    assert len(pair.master.drain_confirmed()) == 3

    pair.master.mirror_link_down(N2)
    pair.master.publish(publications(4, 1))
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == []
    pair.master.set_record(replace(synchronised, synchronised=(), following=(), complete=(N1,)))
    assert pair.master.drain_confirmed() == [4]
    pair.mirror_disk = StoreHarness()
    pair.mirror_local = pair.mirror_disk.open_queue()
    pair.mirror = MirrorReplica(QUEUE, pair.mirror_local, Epoch(1))
    pair.up().quiet()
    assert pair.state() is MirrorState.STREAMING
    pair.master.publish(publications(5, 1))
    pair.quiet()
    assert pair.master.drain_confirmed() == [5]


def test_who_finds_nothing_to_take_does_not_make_the_promise_grow() -> None:
    """All that was promised is taken, and there is no more of it."""
    pair = Pair().up().quiet()
    step = master_module.HORIZON_STEP_MIN
    pair.master.publish(publications(1, step))
    pair.quiet()
    pair.master.fetch(step, ack_required=True)
    for _ in range(5):
        assert pair.master.fetch(1, ack_required=True) == []
    frames = [message for message in pair.to_mirror() if isinstance(message, Ops)]
    promised = [op.horizon for frame in frames for op in frame.ops if isinstance(op, HorizonOp)]
    assert promised == [2 * step]
