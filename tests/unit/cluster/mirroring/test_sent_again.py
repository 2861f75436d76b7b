"""A replica that was promoted with gaps: its publishers send again what nobody has confirmed, some of which is here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring import gap
from cluster.mirroring.master import MirroredQueue, MirroringSettings, recovered
from cluster.mirroring.messages import Attach, Ops, PublishOp
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.promotion import kept_end
from node.ids import Epoch, OriginId, split_msg_id
from node.message import Message, decode_envelope
from node.queues.backing_queue import Publication
from node.queues.events import INTERNAL_SEQ_BASE, ConfirmPublished, ConsumerSpec, Deliver, QueueEffect, RejectPublished
from node.queues.local_replica import LocalReplica
from node.queues.options import queue_options
from node.queues.queue_process import QueueProcess
from tests.support.messages import ORIGIN, make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE, Pair
from tests.support.queue_bench import channel, queue_record
from tests.support.stores import StoreHarness

OTHER = OriginId(b"origin-2")


@pytest.fixture
def pair() -> Pair:
    """Message 3 reached the mirror by the live stream while 1 and 2 were still missing; then the master died."""
    pair = Pair()
    pair.master.publish(publications(1, 2))
    pair.up().to_mirror()
    pair.master.publish(publications(3, 1))
    pair.to_mirror()
    return pair


def promoted(pair: Pair, settings: MirroringSettings | None = None, **policy: object) -> QueueProcess:
    return process_of(pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(2), N2), settings), **policy)


def process_of(queue: MirroredQueue, **policy: object) -> QueueProcess:
    options = queue_options({}, {name.replace("_", "-"): value for name, value in policy.items()})
    return QueueProcess(queue_record(), queue, options)


def send_again(process: QueueProcess) -> None:
    """The first three, and one more."""
    messages = [make_message(counter) for counter in (1, 2, 3, 4)]
    process.publish(channel(1), messages, [1, 2, 3, 4], is_resent=True)


def answers(effects: list[QueueEffect]) -> tuple[list[int], list[int]]:
    """Confirmed and refused."""
    confirmed = [seq for effect in effects if isinstance(effect, ConfirmPublished) for seq in effect.publish_seqs]
    refused = [seq for effect in effects if isinstance(effect, RejectPublished) for seq in effect.publish_seqs]
    return sorted(confirmed), sorted(refused)


def held(pair: Pair) -> list[tuple[int, Message]]:
    """Of the mirror."""
    positions = [
        at for segment, _ in pair.mirror_local.live_counts() for at in pair.mirror_local.live_positions(segment)
    ]
    return [(at, decode_envelope(envelope)[0]) for at, envelope in pair.mirror_local.read(positions)]


def delivered(effects: list[QueueEffect]) -> list[bytes]:
    return [each.message.msg_id for effect in effects if isinstance(effect, Deliver) for each in effect.deliveries]


def test_what_is_missing_is_taken_and_what_is_here_only_confirmed(pair: Pair) -> None:
    process = promoted(pair)
    known = [process.backing_queue.is_duplicate(msg_id_of(counter)) for counter in (1, 2, 3)]
    assert known == [False, False, True]
    send_again(process)
    assert process.ready == 4
    process.drain()
    pair.mirror_disk.sync()
    assert answers(process.drain()) == ([1, 2, 3, 4], [])


#: The mirror's copy has everything that was confirmed.
COMPLETE = MastershipRecord(QUEUE, Epoch(2), N2, complete=(N2,), in_service=False)


def heir_of(pair: Pair, epoch: int = 2, followed: MastershipRecord = COMPLETE) -> QueueProcess:
    """The mirror, elected and in service."""
    elected = replace(COMPLETE, epoch=Epoch(epoch))
    queue = pair.mirror.promote(N2, elected, followed=followed)
    queue.set_record(replace(elected, in_service=True))
    return process_of(queue)


def order_of_first_deliveries(process: QueueProcess) -> list[int]:
    process.consume(channel(2), ConsumerSpec("c", no_ack=True, exclusive=False))
    ids = delivered(process.drain())
    send_again(process)
    ids += delivered(process.drain())
    return [int.from_bytes(msg_id[8:], "big") for msg_id in ids]


def test_what_one_channel_has_published_stays_in_its_order(pair: Pair) -> None:
    """Message 3 is not confirmed, because 1 and 2 were missing in a copy that counts. It is taken with them, again."""
    process = heir_of(pair)
    assert process.ready == 0
    assert order_of_first_deliveries(process) == [1, 2, 3, 4]


def test_also_if_the_master_has_attached_again_and_gone_on_since(pair: Pair) -> None:
    attach_again(pair)
    pair.master.publish(publications(4, 1))
    pair.to_mirror()
    assert ids_held(pair) == [(2, 3), (3, 4)]
    assert order_of_first_deliveries(heir_of(pair)) == [1, 2, 3, 4]


def test_also_if_the_next_master_was_less_far(pair: Pair) -> None:
    """Its positions are others: there the third is what the mirror does not know."""
    pair.master.publish(publications(4, 1))
    pair.to_mirror()
    other = Pair()
    other.master.publish(publications(1, 1))
    other.master.set_record(replace(other.record, epoch=Epoch(2)))
    pair.master = other.master
    pair.up().to_mirror()
    pair.master.publish(publications(2, 1))
    pair.to_mirror()
    assert ids_held(pair) == [(1, 2)]
    assert order_of_first_deliveries(heir_of(pair, epoch=3)) == [1, 2, 3, 4]


def test_a_mirror_that_has_been_filled_keeps_what_came_meanwhile_and_since(pair: Pair) -> None:
    pair.quiet()
    pair.master.publish(publications(4, 1))
    pair.quiet()
    process = heir_of(pair)
    assert process.ready == 4


@pytest.mark.parametrize(
    ("followed", "elected"),
    [
        (None, COMPLETE),
        (replace(COMPLETE, complete=(N1,)), COMPLETE),
        (COMPLETE, replace(COMPLETE, complete=(N1,))),
        (COMPLETE, replace(COMPLETE, lossy_promotions=1)),
        (COMPLETE, replace(COMPLETE, in_service=True)),
    ],
    ids=["unknown", "not counted before", "not counted now", "by an operator's word", "of an older release"],
)
def test_of_a_copy_that_did_not_count_nothing_is_dropped(
    pair: Pair, followed: MastershipRecord | None, elected: MastershipRecord
) -> None:
    """What came to it may be confirmed, and nobody else may have it."""
    assert process_of(pair.mirror.promote(N2, elected, followed=followed)).ready == 1


def test_of_clients_that_ask_for_no_confirms_or_had_not_yet_nothing_is_dropped() -> None:
    """They would not know that something is missing. Their channels number what they publish all the same."""
    pair = Pair()
    pair.master.publish(publications(1, 2))
    pair.up().to_mirror()
    unasked = [(channel(2), INTERNAL_SEQ_BASE + number) for number in (1, 2, 3)]
    pair.master.publish([Publication(make_message(counter, origin=OTHER), unasked[counter - 1]) for counter in (1, 2)])
    pair.master.publish([Publication(make_message(3), (channel(1), INTERNAL_SEQ_BASE + 1))])
    pair.to_mirror()
    asked = [Publication(make_message(counter), (channel(1), counter - 3)) for counter in (4, 5)]
    pair.master.publish([*asked, Publication(make_message(3, origin=OTHER), unasked[2])])
    pair.to_mirror()
    assert ids_held(pair) == [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 3)]
    heir_of(pair)
    assert ids_held(pair) == [(2, 1), (3, 2), (4, 3), (7, 3)]


def test_who_awaits_confirms_is_told_only_to_mirrors_that_lack_something() -> None:
    """And only if confirms wait for them: a mirror that nobody fills may lack something for ever."""
    for is_required in (True, False):
        pair = Pair(synchronised=is_required)
        pair.master.publish(publications(1, 1))
        pair.up().to_mirror()
        pair.master.publish(publications(2, 1))
        assert awaited(pair) == ([{ORIGIN: 2}] if is_required else [{}])
        pair.quiet()
        pair.master.publish(publications(3, 1))
        assert awaited(pair) == [{}]


def test_one_mirror_that_lacks_something_is_enough_for_that() -> None:
    """What lacks nothing hears it as well: all get the same."""
    complete = MirrorReplica(QUEUE, StoreHarness().open_queue(), Epoch(1))
    record = MastershipRecord(QUEUE, Epoch(1), N1, (N2, N3), (N2, N3))
    master = MirroredQueue(N1, StoreHarness().open_queue(), record)
    told = []
    for counter, node in ((1, N3), (2, N2), (3, None)):
        if node is not None:
            master.mirror_link_up(node)
        for _ in range(3):
            for to, message in master.take_messages():
                if isinstance(message, Ops):
                    told += [op for op in message.ops if isinstance(op, PublishOp) and to == N3]
                if to == N3:
                    complete.receive(N1, message)
            for _, answer in complete.take_messages():
                master.receive(N3, answer)
        master.publish(publications(counter, 1))
    assert master.mirror_states()[N3] is MirrorState.SYNCHRONISED
    assert [dict(op.awaited) for op in told] == [{}, {ORIGIN: 2}]


def awaited(pair: Pair) -> list[dict[OriginId, int]]:
    """Of each publish that goes to the mirror now."""
    ops = [op for message in pair.to_mirror() if isinstance(message, Ops) for op in message.ops]
    return [dict(op.awaited) for op in ops if isinstance(op, PublishOp)]


def test_so_many_origins_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others nothing is dropped."""
    monkeypatch.setattr(gap, "ORIGINS_MAX", 2)
    pair = Pair()
    pair.master.publish(publications(1, 1))
    pair.up().to_mirror()
    origins = [OriginId(b"origin-%d" % number) for number in range(4)]
    pair.master.publish([Publication(make_message(7, origin=origin), number) for number, origin in enumerate(origins)])
    pair.to_mirror()
    heir_of(pair)
    assert [at for at, _ in held(pair)] == [1, 2]


def test_a_full_queue_refuses_what_is_missing_and_confirms_what_it_has(pair: Pair) -> None:
    process = promoted(pair, max_length=1, overflow="reject-publish")
    send_again(process)
    assert process.ready == 1
    effects = process.drain()
    pair.mirror_disk.sync()
    assert answers(effects + process.drain()) == ([3], [1, 2, 4])


def test_a_consumer_without_acks_is_not_given_a_second_time_what_was_here(pair: Pair) -> None:
    process = promoted(pair)
    process.consume(channel(2), ConsumerSpec("c", no_ack=True, exclusive=False))
    ids = delivered(process.drain())
    send_again(process)
    ids += delivered(process.drain())
    assert sorted(ids) == [msg_id_of(counter) for counter in (1, 2, 3, 4)]


def test_what_the_last_master_refused_is_not_confirmed_by_the_next() -> None:
    """The mirror is complete, and has accepted message 3 after 2, which nobody has."""
    pair = Pair().up().quiet()
    limits: dict[str, object] = {"max_length": 1, "overflow": "reject-publish"}
    master = process_of(pair.master, **limits)
    master.publish(channel(1), [make_message(1), make_message(2)], [1, 2])
    assert answers(master.drain()) == ([], [2])
    master.purge()
    master.publish(channel(1), [make_message(3)], [3])
    pair.quiet()
    process = promoted(pair, MirroringSettings(refuses_publishes=True), **limits)
    process.publish(channel(1), [make_message(2), make_message(3)], [2, 3], is_resent=True)
    effects = process.drain()
    pair.mirror_disk.sync()
    assert answers(effects + process.drain()) == ([3], [2])


@pytest.fixture
def twice() -> Pair:
    """Message 3 came from a master that died, and from the next one, to which it was sent again."""
    pair = Pair()
    pair.mirror_local.publish(publications(1, 3))
    pair.master.publish([*publications(1, 2), Publication(make_message(1, origin=OTHER), 3)])
    pair.up().to_mirror()
    pair.master.publish(publications(3, 1))
    pair.to_mirror()
    assert ids_held(pair) == [(0, 1), (1, 2), (2, 3), (3, 3)]
    return pair


def ids_held(pair: Pair) -> list[tuple[int, int]]:
    """Positions and counters of the mirror's messages."""
    return [(at, split_msg_id(message.msg_id)[1]) for at, message in held(pair)]


ONCE = [(0, 1), (1, 2), (2, 3)]


def attach_again(pair: Pair) -> None:
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    pair.up().to_mirror()


def test_what_a_mirror_has_from_two_masters_is_there_once_when_it_is_promoted(twice: Pair) -> None:
    """The second died before it was told what the mirror has otherwise than itself."""
    process = promoted(twice)
    assert ids_held(twice) == ONCE
    assert process.ready == 3


def test_also_if_the_second_master_had_to_attach_again(twice: Pair) -> None:
    attach_again(twice)
    promoted(twice)
    assert ids_held(twice) == ONCE


def test_also_if_that_one_has_gone_on_since(twice: Pair) -> None:
    attach_again(twice)
    twice.master.publish(publications(4, 1))
    twice.to_mirror()
    promoted(twice)
    assert ids_held(twice) == [*ONCE, (4, 4)]


def test_also_if_the_mirror_lost_its_power_before_it_is_promoted(twice: Pair) -> None:
    twice.mirror_disk.sync()
    twice.mirror_local = twice.mirror_disk.crash()
    twice.mirror = MirrorReplica(QUEUE, twice.mirror_local, Epoch(1), end=kept_end(twice.mirror_local))
    promoted(twice)
    assert ids_held(twice) == ONCE


def test_also_if_it_is_the_master_when_its_power_is_back(twice: Pair) -> None:
    twice.mirror_disk.sync()
    twice.mirror_local = twice.mirror_disk.crash()
    process = process_of(recovered(N2, twice.mirror_local, MastershipRecord(QUEUE, Epoch(2), N2)))
    assert ids_held(twice) == ONCE
    assert process.ready == 3


def test_also_if_it_was_stopped_in_order_and_knows_how_far_its_master_had_delivered(twice: Pair) -> None:
    twice.master.end()
    twice.to_mirror()
    twice.mirror.close_deliveries()
    twice.mirror_local = twice.mirror_disk.restart()
    recovered(N2, twice.mirror_local, MastershipRecord(QUEUE, Epoch(2), N2))
    assert ids_held(twice) == ONCE


def test_nobody_looks_for_what_is_there_twice_once_the_difference_is_settled(
    twice: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs reading. What the mirror has then is what the master has."""
    monkeypatch.setattr(LocalReplica, "msg_ids", None)
    twice.quiet()
    promoted(twice)
    assert [at for at, _ in ids_held(twice)] == [0, 1, 2, 3]


def test_nor_over_a_copy_that_a_master_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalReplica, "msg_ids", None)
    pair = Pair()
    pair.master.publish(publications(1, 3))
    pair.master.close_deliveries()
    assert recovered(N1, pair.master_disk.restart(), pair.record).ready == 3


def test_what_the_last_master_refused_under_an_earlier_policy_is_not_confirmed_by_the_next() -> None:
    """The publisher's node has not heard of the refusal when the operator lifts the limit and the master dies."""
    pair = Pair(settings=REFUSES).up().quiet()
    pair.mirror.set_settings(REFUSES)
    master = process_of(pair.master, max_length=1, overflow="reject-publish")
    refuse_the_second(master)
    master.set_options(queue_options({}))
    pair.master.set_settings(MirroringSettings())
    pair.mirror.set_settings(MirroringSettings())
    pair.quiet()
    assert answers_to_the_second(pair, promoted(pair, MirroringSettings())) == ([2, 3], [])


def test_a_mirror_whose_node_never_saw_that_policy_is_told_by_its_master() -> None:
    """A snapshot of the metadata skipped its coming and going, while the two went on talking."""
    pair = Pair().up().quiet()
    master = process_of(pair.master, max_length=1, overflow="reject-publish")
    pair.master.set_settings(REFUSES)
    refuse_the_second(master)
    master.set_options(queue_options({}))
    pair.master.set_settings(MirroringSettings())
    pair.quiet()
    assert answers_to_the_second(pair, promoted(pair, MirroringSettings())) == ([2, 3], [])


def test_a_mirror_that_comes_after_that_does_not_vouch_for_what_was_refused_either() -> None:
    pair = Pair(settings=REFUSES)
    master = process_of(pair.master, max_length=1, overflow="reject-publish")
    refuse_the_second(master)
    master.set_options(queue_options({}))
    pair.master.set_settings(MirroringSettings())
    pair.up().quiet()
    assert answers_to_the_second(pair, promoted(pair, MirroringSettings())) == ([2, 3], [])


def test_nor_does_one_that_lacked_nothing_and_was_told_of_nothing_else() -> None:
    pair = Pair(settings=REFUSES)
    master = process_of(pair.master, max_length=1, overflow="reject-publish")
    refuse_the_second(master)
    master.purge()
    master.set_options(queue_options({}))
    pair.master.set_settings(MirroringSettings())
    pair.master.take_messages()
    [attach] = pair.up().to_mirror()
    assert isinstance(attach, Attach)
    process = promoted(pair, MirroringSettings())
    process.publish(channel(1), [make_message(2)], [2], is_resent=True)
    assert process.ready == 1


REFUSES = MirroringSettings(refuses_publishes=True)


def refuse_the_second(master: QueueProcess) -> None:
    """Of three; the first is gone, the third is here."""
    master.publish(channel(1), [make_message(1), make_message(2)], [1, 2])
    assert answers(master.drain())[1] == [2]
    master.purge()
    master.publish(channel(1), [make_message(3)], [3])


def answers_to_the_second(pair: Pair, process: QueueProcess) -> tuple[list[int], list[int]]:
    """Sent again with the third. Whatever is confirmed must be here."""
    process.publish(channel(1), [make_message(2), make_message(3)], [2, 3], is_resent=True)
    assert process.ready == 2
    effects = process.drain()
    pair.mirror_disk.sync()
    return answers(effects + process.drain())


def test_what_was_taken_is_known_when_it_has_left_the_queue(pair: Pair) -> None:
    process = promoted(pair)
    send_again(process)
    assert process.purge() == 4
    assert all(process.backing_queue.is_duplicate(msg_id_of(counter)) for counter in (1, 2, 3, 4))


def test_what_a_master_before_has_streamed_is_known_no_more_if_its_successor_lacks_it() -> None:
    """The copy gave it up to be like the successor's, and its publisher sends it again."""
    pair = Pair()
    pair.up().quiet()
    pair.master.publish(publications(1, 3))
    pair.quiet()
    successor = MirroredQueue(N3, StoreHarness().open_queue(), MastershipRecord(QUEUE, Epoch(2), N3, (N2,)))
    successor.mirror_link_up(N2)
    for _ in range(3):
        for _, message in successor.take_messages():
            pair.mirror.receive(N3, message)
        for _, message in pair.mirror.take_messages():
            successor.receive(N2, message)
    assert successor.mirror_states()[N2] is MirrorState.SYNCHRONISED
    process = process_of(pair.mirror.promote(N2, MastershipRecord(QUEUE, Epoch(3), N2)))
    send_again(process)
    assert process.ready == 4
