"""How the operations of a turn become ops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.mirroring import progress
from cluster.mirroring import turn as turn_module
from cluster.mirroring.messages import HorizonOp, Ops, OriginsOp, PublishOp
from cluster.mirroring.settings import MirroringSettings
from cluster.mirroring.turn import FRAME_BYTES_MAX, Turn
from node.ids import ChannelKey, Epoch, OriginId, SeqId
from node.queues.events import ConsumerSpec
from node.queues.queue_process import QueueProcess
from node.queues.replica import SeqRange
from tests.support.messages import ORIGIN, make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, Pair
from tests.support.queue_bench import queue_record


def test_publishes_at_successive_positions_are_one_op_and_others_are_not() -> None:
    turn = Turn()
    turn.publish(SeqId(10), [make_message(1), make_message(2)])
    turn.publish(SeqId(12), [make_message(3)])
    turn.publish(SeqId(20), [make_message(4)])
    [(ops, _)], settled = turn.cut()
    assert [(op.first_seq_id, op.message_count) for op in ops if isinstance(op, PublishOp)] == [(10, 3), (20, 1)]
    assert settled == []


def test_every_frame_of_a_turn_is_filled_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those after the first; and none is larger."""
    messages = [make_message(counter) for counter in range(1, 7)]
    monkeypatch.setattr(turn_module, "FRAME_BYTES_MAX", turn_module._OP_BYTES + 2 * len(messages[0].envelope()))
    turn = Turn()
    for seq_id, message in zip(range(0, 60, 10), messages, strict=True):
        turn.publish(SeqId(seq_id), [message])
    frames, _ = turn.cut()
    assert [[op.first_seq_id for op in ops if isinstance(op, PublishOp)] for ops, _ in frames] == [
        [0, 10],
        [20, 30],
        [40, 50],
    ]


def test_a_run_of_messages_is_cut_where_a_frame_is_full_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [make_message(counter) for counter in range(1, 6)]
    monkeypatch.setattr(turn_module, "FRAME_BYTES_MAX", 2 * len(messages[0].envelope()))
    turn = Turn()
    turn.publish(SeqId(10), messages)
    frames, _ = turn.cut()
    publishes = [op for ops, _ in frames for op in ops if isinstance(op, PublishOp)]
    assert [(op.first_seq_id, op.message_count) for op in publishes] == [(10, 2), (12, 2), (14, 1)]
    assert b"".join(op.envelopes for op in publishes) == b"".join(message.envelope() for message in messages)


def test_a_counter_comes_after_everything_that_it_counts() -> None:
    """Message 5 goes to a consumer that acks, 6 to one that does not; 5 alone fills a frame."""
    pair = Pair().up().quiet()
    process = QueueProcess(queue_record(), pair.master)
    client = ChannelKey(N1, 1)
    process.consume(client, ConsumerSpec("acks", no_ack=False, exclusive=False, prefetch_count=1, priority=1))
    process.consume(client, ConsumerSpec("does not", no_ack=True, exclusive=False))
    process.publish(client, [make_message(5, body=bytes(FRAME_BYTES_MAX)), make_message(6)], [5, 6])
    frames = [message for _, message in pair.master.take_messages() if isinstance(message, Ops)]
    pair.mirror.receive(N1, frames[0])  # and then n1 dies
    record = replace(pair.record, epoch=Epoch(2), master=N2, mirrors=(), synchronised=())
    promoted = pair.mirror.promote(N2, record)
    assert promoted.is_duplicate(msg_id_of(5)) is (promoted.ready == 1), "what is taken for a repetition is confirmed"


def test_a_turn_of_which_a_mirror_got_only_the_beginning_does_not_hold_back_the_turn_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk has hung for so long that frames are not told apart any more."""
    monkeypatch.setattr(turn_module, "FRAME_BYTES_MAX", 300)
    monkeypatch.setattr(progress, "UNDURABLE_FRAMES_MAX", 1)
    pair = Pair(settings=MirroringSettings(window_bytes=1000)).up().quiet()
    pair.master.publish(publications(1, 1))
    sent = pair.to_mirror()
    pair.master.publish([*publications(2, 1), *publications(3, 1, body=bytes(1000))])
    sent += pair.to_mirror()
    ops = [op for frame in sent if isinstance(frame, Ops) for op in frame.ops]
    assert [op.first_seq_id for op in ops if isinstance(op, PublishOp)] == [0, 1], "the third did not fit the window"
    pair.sync()
    pair.to_master()
    assert pair.master.drain_confirmed() == [1]
    pair.quiet()
    assert pair.master.drain_confirmed() == [2, 3]


def test_the_counter_of_a_turn_is_the_highest_of_its_origin() -> None:
    """Who was promoted with gaps takes what is sent again in any order."""
    turn = Turn()
    turn.discard([make_message(2), make_message(3), make_message(1)])
    [(ops, _)], _ = turn.cut()
    assert ops == (OriginsOp({ORIGIN: 3}),)


def test_a_promise_alone_counts_against_the_window() -> None:
    turn = Turn()
    turn.horizon = SeqId(7)
    [(ops, size_bytes)], _ = turn.cut()
    assert ops == (HorizonOp(SeqId(7)),)
    assert size_bytes > 0


@pytest.mark.parametrize("what", ["published", "discarded", "settled", "purged"])
def test_whatever_a_turn_consists_of_counts_against_the_window(what: str) -> None:
    """A mirror that is slow with settlements falls behind as well."""

    def size_bytes(count: int) -> int:
        turn = Turn()
        messages = [make_message(1, origin=OriginId(f"origin{at:02}".encode())) for at in range(count)]
        positions = [SeqId(2 * at) for at in range(count)]
        match what:
            case "published":
                turn.publish(SeqId(0), messages)
            case "discarded":
                turn.discard(messages)
            case "settled":
                turn.settle(positions)
            case "purged":
                turn.settle_ranges(SeqRange(at, SeqId(at + 1)) for at in positions)
        [(_, size)], _ = turn.cut()
        return size

    assert size_bytes(10) > size_bytes(1) > 0
    assert size_bytes(90) - size_bytes(10) == 8 * (size_bytes(20) - size_bytes(10))
