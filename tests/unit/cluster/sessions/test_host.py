"""The master's end of sessions: n2 masters the queue, the test speaks for the entry nodes and the record."""

from __future__ import annotations

import pytest

from cluster.sessions.messages import (
    SessionCall,
    SessionChannelClosed,
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionMessage,
    SessionOpen,
    SessionOpened,
    SessionPublish,
    SessionReply,
    SessionSettle,
)
from node.ids import ChannelKey, Epoch, SeqId
from node.message import iter_envelopes
from node.queues.events import CancelConsumer, ConsumerSpec, DeleteUnused
from node.queues.options import queue_options
from node.queues.queue_process import QueueProcess
from node.queues.returns import RETURN_MAX
from tests.support.host_bench import CONSUMER, EPOCH, N1, N3, HostBench, envelopes
from tests.support.queue_bench import SteeredQueue, queue_record
from tests.support.session_network import QUEUE


@pytest.fixture
def bench() -> HostBench:
    return HostBench()


def bodies(told: list[SessionMessage]) -> list[tuple[str, bool]]:
    """Of all deliveries, with the redelivered flag."""
    return [
        (each.body.decode(), flag)
        for delivered in told
        if isinstance(delivered, SessionDeliver)
        for each, flag in zip(iter_envelopes(delivered.envelopes), delivered.redelivered, strict=True)
    ]


# --- the beginning and the end of a session ---


def test_a_node_that_does_not_master_the_queue_refuses_and_hears_nothing(bench: HostBench) -> None:
    bench.queue = None
    bench.hears(SessionOpen(QUEUE, 1, EPOCH, 8))
    assert bench.told() == [SessionOpened(QUEUE, 1, "this node does not master the queue")]
    bench.hears(SessionCall(QUEUE, 1, 50, "counts", 0))
    assert (bench.told(), bench.failures) == ([], [])


def test_words_of_another_session_are_not_heard(bench: HostBench) -> None:
    bench.opens(2)
    bench.publishes(1, 1)
    bench.publishes(3, 1)
    bench.hears(SessionCall(QUEUE, 2, 50, "purge", 0), N3)
    assert bench.queue is not None
    assert bench.queue.ready == 0
    assert bench.told(N3) == []
    bench.publishes(2, 1)
    assert bench.queue.ready == 1


@pytest.mark.parametrize("ending", ["the next session", "the node is lost"])
def test_what_a_session_held_is_ready_again_when_it_ends(bench: HostBench, ending: str) -> None:
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    bench.publishes(1, 1, 2)
    bench.end_turn()
    assert bodies(bench.told()) == [("1", False), ("2", False)]
    bench.opens(1, N3)
    if ending == "the next session":
        bench.opens(2)
    else:
        bench.host.node_lost(N1, is_linked=False)
        assert bench.told() == [SessionOpened(QUEUE, 1, "the session has ended at the master")]
    assert bench.queue is not None
    assert (bench.queue.ready, bench.queue.unacked, bench.queue.consumer_count) == (2, 0, 0)
    bench.hears(SessionCall(QUEUE, 1, 50, "consume", 5, CONSUMER), N3)
    bench.end_turn()
    assert bodies(bench.told(N3)) == [("1", True), ("2", True)], "the other node's session goes on"


def test_a_queue_that_stops_ends_all_its_sessions_and_says_so(bench: HostBench) -> None:
    bench.opens(1)
    bench.opens(7, N3)
    bench.queue = None
    bench.host.queue_stopped(QUEUE)
    for node, session in ((N1, 1), (N3, 7)):
        assert bench.told(node) == [SessionOpened(QUEUE, session, "the session has ended at the master")]
    bench.host.queue_stopped(QUEUE)
    bench.host.node_lost(N1, is_linked=False)
    assert bench.told() == bench.told(N3) == [], "they have ended once"


def test_a_mistake_in_one_queue_takes_it_out_of_service_and_ends_its_sessions(bench: HostBench) -> None:
    bench.opens(1)
    bench.hears(SessionPublish(QUEUE, 1, 1, [1], b"no envelope"))
    assert len(bench.failures) == 1
    assert bench.told() == [SessionOpened(QUEUE, 1, "the session has ended at the master")]


class MistakenQueue(QueueProcess):
    """Cannot let go of a channel, by a mistake of ours."""

    def channel_down(self, channel: ChannelKey, *, may_return: bool = False) -> None:
        raise TypeError("a mistake of ours")


def test_a_queue_that_fails_when_a_session_ends_is_out_of_service_and_the_node_can_begin_anew(bench: HostBench) -> None:
    bench.queue = MistakenQueue(queue_record(queue_id=QUEUE), bench.storage)
    bench.opens(1)
    bench.opens(7, N3)
    bench.publishes(1, 1)
    bench.host.node_lost(N1, is_linked=False)
    assert len(bench.failures) == 1
    assert bench.told(N3) == [SessionOpened(QUEUE, 7, "the session has ended at the master")]


def test_a_queue_that_fails_when_the_next_session_begins_does_not_begin_it(bench: HostBench) -> None:
    """Or its node would speak to nobody, and a copy that is opened again would hear the rest as if nothing was gone."""
    bench.queue = MistakenQueue(queue_record(queue_id=QUEUE), bench.storage)
    bench.opens(1)
    bench.publishes(1, 1)
    bench.hears(SessionOpen(QUEUE, 2, EPOCH, 8))
    assert len(bench.failures) == 1
    assert bench.told() == [SessionOpened(QUEUE, 2, "this node does not master the queue")]
    bench.queue = QueueProcess(queue_record(queue_id=QUEUE), SteeredQueue())
    bench.publishes(2, 3)
    assert bench.queue.ready == 0


# --- channels ---


def test_a_channel_that_closes_leaves_what_others_hold(bench: HostBench) -> None:
    bench.opens(1)
    for number in (1, 2):
        bench.asks(1, "consume", number, ConsumerSpec("tag", no_ack=False, exclusive=False, prefetch_count=1))
    bench.publishes(1, 1, 2)
    bench.end_turn()
    bench.hears(SessionChannelClosed(QUEUE, 1, 1))
    assert bench.queue is not None
    assert (bench.queue.ready, bench.queue.unacked, bench.queue.consumer_count) == (1, 1, 1)


def test_credit_is_granted_in_the_steps_that_the_entry_node_named_and_anew_after_the_channel_has_closed(
    bench: HostBench,
) -> None:
    def granted(first: int) -> list[int]:
        """For sixteen publishes on channel 1, in two steps."""
        bench.publishes(1, *range(first, first + 7))
        bench.publishes(1, *range(first + 7, first + 16))
        bench.storage.sync()
        bench.end_turn()
        return [each.messages for each in bench.told() if isinstance(each, SessionCredit)]

    bench.opens(1)
    assert granted(1) == [16]
    bench.hears(SessionChannelClosed(QUEUE, 1, 1))
    assert granted(20) == [16]


def test_what_an_earlier_master_may_have_delivered_comes_flagged(bench: HostBench) -> None:
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    bench.hears(SessionPublish(QUEUE, 1, 1, [1], envelopes(1), is_resent=True))
    bench.publishes(1, 2)
    bench.end_turn()
    assert bodies(bench.told()) == [("1", True), ("2", False)]


def test_what_is_given_back_in_one_piece_is_delivered_again_at_once(bench: HostBench) -> None:
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    bench.publishes(1, 1)
    bench.end_turn()
    [delivered] = [each for each in bench.told() if isinstance(each, SessionDeliver)]
    bench.hears(SessionSettle(QUEUE, 1, 1, "requeue", delivered.seq_ids))
    bench.end_turn()
    assert bodies(bench.told()) == [("1", True)]


@pytest.mark.parametrize(
    ("outcome", "ready", "unacked"), [("ack", 0, 1), ("discard", 0, 1), ("requeue", 1, 1), ("nothing", 0, 2)]
)
def test_a_delivery_is_settled_as_its_channel_says(bench: HostBench, outcome: str, ready: int, unacked: int) -> None:
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    bench.publishes(1, 1, 2)
    bench.end_turn()
    [first] = [each for each in bench.told() if isinstance(each, SessionDeliver)]
    if outcome != "nothing":
        bench.hears(SessionSettle(QUEUE, 1, 1, outcome, first.seq_ids[:1]))
    bench.hears(SessionSettle(QUEUE, 1, 9, "ack", first.seq_ids[1:]))
    assert bench.queue is not None
    assert (bench.queue.ready, bench.queue.unacked) == (ready, unacked), "of another channel nothing is settled"


def test_what_a_queue_says_to_channels_goes_to_their_nodes_in_their_sessions(bench: HostBench) -> None:
    bench.opens(3)
    bench.host.remote_effects(
        QUEUE,
        [
            DeleteUnused(),
            CancelConsumer(ChannelKey(N3, 5), "of a node without a session"),
            CancelConsumer(ChannelKey(N1, 5), "tag"),
        ],
    )
    assert bench.told() == [SessionConsumerCancelled(QUEUE, 3, 5, "tag")]
    assert bench.told(N3) == []
    bench.publishes(3, 1)
    bench.storage.sync()
    bench.end_turn()
    assert SessionConfirm(QUEUE, 3, 1, [1]) in bench.told()


# --- questions ---


def test_get_brings_the_message_and_what_is_left(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1, 2, 3)
    reply = bench.asks(1, "get")
    [got] = iter_envelopes(reply.envelope)
    assert (got.body, reply.number, reply.redelivered, reply.seq_id) == (b"1", 2, False, SeqId(1))
    bench.hears(SessionSettle(QUEUE, 1, 1, "requeue", [reply.seq_id]))
    assert bench.asks(1, "get").redelivered
    assert bench.asks(1, "purge").number == 2
    assert bench.asks(1, "get").envelope == b""


def test_a_get_that_brings_nothing_says_what_may_be_ready_soon(bench: HostBench) -> None:
    """Two messages that were published before it wait for what a channel held that is gone."""
    options = queue_options({}, {"max-length": 10_000, "overflow": "reject-publish"})
    bench.queue = QueueProcess(queue_record(queue_id=QUEUE), bench.storage, options)
    bench.opens(1)
    bench.publishes(1, *range(1, RETURN_MAX + 2))
    for _ in range(RETURN_MAX + 1):
        bench.asks(1, "get", channel=2)
    bench.hears(SessionChannelClosed(QUEUE, 1, 2))
    bench.publishes(1, 5000, 5001)
    reply = bench.asks(1, "get")
    assert (reply.envelope, reply.number) == (b"", RETURN_MAX + 1 + 2)
    bench.end_turn()
    bench.end_turn()
    bench.asks(1, "get")


def test_a_cancel_says_how_many_consumers_are_left(bench: HostBench) -> None:
    bench.opens(1)
    for number in (1, 2):
        bench.asks(1, "consume", number, CONSUMER)
    bench.hears(SessionCall(QUEUE, 1, 50, "cancel", 1, consumer_tag="tag"))
    [reply] = bench.told()
    assert isinstance(reply, SessionReply)
    assert reply.consumers == 1
    assert bench.asks(1, "counts").consumers == 1


# --- deletions ---


@pytest.mark.parametrize("has_consumed", [True, False])
def test_an_auto_delete_queue_goes_if_whoever_consumed_it_before_does_not_come_back(has_consumed: bool) -> None:
    """A master of later knows of earlier consumers by the entry nodes only. One that never had any waits for them."""
    bench = HostBench(auto_delete=True)
    bench.opens(1, has_consumed=has_consumed)
    bench.end_turn()
    assert bench.was_offered_for_deletion is has_consumed


@pytest.mark.parametrize("ending", ["comes again", "is lost", "queue is elsewhere", "queue is deleted"])
@pytest.mark.parametrize("is_closed_later", [True, False])
def test_who_had_consumers_and_was_sent_away_is_on_its_way(is_closed_later: bool, ending: str) -> None:
    """It hears that late, if the line is slow, and until then does not know that it is to come again."""
    bench = HostBench(auto_delete=True)
    queue, bench.queue = bench.queue, None
    if is_closed_later:
        bench.queue = queue
        bench.opens(1)
        bench.asks(1, "consume", consumer=CONSUMER)
        assert not bench.host.is_attaching(QUEUE)
        bench.out_of_service(QUEUE, OSError())
    else:
        bench.hears(SessionOpen(QUEUE, 1, EPOCH, 8, has_consumed=True))
    assert bench.host.is_attaching(QUEUE)
    assert bench.host.awaited_queues() == {QUEUE}
    bench.queue = HostBench(auto_delete=True).queue
    assert bench.host.is_attaching(QUEUE), "it has not come again"
    bench.told()
    match ending:
        case "comes again":
            bench.opens(2, has_consumed=True)
            bench.asks(2, "consume", consumer=CONSUMER)
            bench.asks(2, "counts")
        case "is lost":
            bench.host.node_lost(N1, is_linked=False)
        case "queue is elsewhere":
            bench.host.queue_elsewhere(QUEUE, EPOCH)
        case _:
            bench.host.queue_deleted(QUEUE)
    assert not bench.host.is_attaching(QUEUE)
    assert bench.host.awaited_queues() == set()


@pytest.mark.parametrize("is_closed_later", [True, False])
def test_who_knows_of_a_later_master_is_on_its_way_though_this_node_follows_older_records(
    is_closed_later: bool,
) -> None:
    """The log reaches this node late: it is yet to hear that it is the master, and who was that before."""
    bench = HostBench(auto_delete=True)
    if is_closed_later:
        bench.opens(1, has_consumed=True)
        bench.out_of_service(QUEUE, OSError())
    else:
        bench.queue = None
        bench.hears(SessionOpen(QUEUE, 1, EPOCH, 8, has_consumed=True))
    bench.host.queue_elsewhere(QUEUE, Epoch(EPOCH - 1))
    assert bench.host.is_attaching(QUEUE)


def test_who_had_consumers_and_was_declared_down_is_on_its_way_as_long_as_it_is_linked() -> None:
    """It lives, or it was a life before that was declared down; that its session is over it may hear late."""
    bench = HostBench(auto_delete=True)
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    bench.opens(1, N3)
    bench.host.node_lost(N1, is_linked=True)
    bench.host.node_lost(N3, is_linked=True)
    bench.end_turn()
    assert bench.host.is_attaching(QUEUE)
    assert bench.told() == [SessionOpened(QUEUE, 1, "the session has ended at the master")]
    bench.host.node_lost(N3, is_linked=False)
    assert bench.host.is_attaching(QUEUE), "it had none"
    bench.opens(2, has_consumed=True)
    bench.asks(2, "counts")
    assert not bench.host.is_attaching(QUEUE), "it has named those that are left"


@pytest.mark.parametrize("is_closed_later", [True, False])
def test_who_had_no_consumers_is_not_waited_for(is_closed_later: bool) -> None:
    bench = HostBench(auto_delete=True)
    if is_closed_later:
        bench.opens(1)
        bench.out_of_service(QUEUE, OSError())
    else:
        bench.queue = None
        bench.hears(SessionOpen(QUEUE, 1, EPOCH, 8, has_consumed=False))
    assert not bench.host.is_attaching(QUEUE)


def test_an_auto_delete_queue_that_is_consumed_now_stays() -> None:
    bench = HostBench(auto_delete=True)
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    bench.opens(1, N3, has_consumed=True)
    bench.end_turn()
    assert not bench.was_offered_for_deletion


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_consumers_that_were_cut_off_may_come_back_and_those_of_a_channel_that_closed_do_not(is_cut_off: bool) -> None:
    bench = HostBench(auto_delete=True)
    bench.opens(1)
    bench.asks(1, "consume", consumer=CONSUMER)
    if is_cut_off:
        bench.host.node_lost(N1, is_linked=False)
    else:
        bench.hears(SessionChannelClosed(QUEUE, 1, 1))
    assert bench.queue is not None
    assert bench.queue.drain() == [DeleteUnused(may_return=is_cut_off)]


def test_who_sealed_a_queue_and_is_lost_leaves_its_deletion_to_be_settled(bench: HostBench) -> None:
    """Whatever else he has asked since, on whatever channel. He named no conditions: it may be used, and not empty."""
    bench.opens(1)
    bench.publishes(1, 1)
    bench.asks(1, "consume", consumer=CONSUMER)
    assert bench.asks(1, "delete_if").epoch == EPOCH
    bench.asks(1, "purge", channel=2)
    bench.host.node_lost(N1, is_linked=False)
    assert bench.settled == [QUEUE]


def test_who_has_said_what_became_of_the_deletion_leaves_nothing_to_be_settled(bench: HostBench) -> None:
    bench.opens(1)
    bench.asks(1, "delete_if")
    bench.asks(1, "unseal")
    assert bench.settled == [QUEUE], "by whoever decides it"
    bench.host.node_lost(N1, is_linked=False)
    assert bench.settled == [QUEUE]


def test_who_never_wanted_to_delete_a_queue_leaves_the_deletion_to_whom_it_concerns(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1)
    bench.opens(1, N3)
    bench.hears(SessionCall(QUEUE, 1, 60, "delete_if", 0), N3)
    bench.host.node_lost(N1, is_linked=False)
    assert bench.settled == []


def test_a_master_that_is_not_in_service_yet_seals_nothing(bench: HostBench) -> None:
    bench.is_in_service = False
    bench.opens(1)
    assert bench.asks(1, "delete_if").epoch == 0
    assert bench.queue is not None
    assert not bench.queue.is_sealed
    bench.host.node_lost(N1, is_linked=False)
    assert bench.settled == []


def test_a_question_that_waits_for_the_fate_of_a_queue_is_of_its_session_only(bench: HostBench) -> None:
    bench.opens(1, N3)
    bench.hears(SessionCall(QUEUE, 1, 60, "delete_if", 0), N3)
    bench.opens(1)
    bench.hears(SessionCall(QUEUE, 1, 50, "counts", 1))
    assert bench.told() == []
    bench.opens(2)
    bench.hears(SessionCall(QUEUE, 2, 51, "counts", 1))
    assert bench.queue is not None
    bench.queue.unseal()
    assert bench.told() == [SessionReply(QUEUE, 2, 51)]


# --- links that are full ---


def get(call_id: int, session: int = 1, channel: int = 1) -> SessionCall:
    return SessionCall(QUEUE, session, call_id, "get", channel)


def test_a_get_waits_until_the_link_has_room_for_what_it_brings(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1)
    bench.full = {N1}
    bench.hears(get(50))
    bench.hears(get(51, channel=2))
    assert bench.told() == []
    bench.room_comes()
    [first, second] = [reply for reply in bench.told() if isinstance(reply, SessionReply)]
    assert (first.call_id, first.envelope) == (50, envelopes(1))
    assert (second.call_id, second.envelope) == (51, b""), "somebody else got the message meanwhile"
    assert bench.delivered_bytes == len(envelopes(1)), "who asks the link for room is told what went there"


def test_who_gets_nothing_from_an_empty_queue_does_not_wait_to_hear_that(bench: HostBench) -> None:
    bench.opens(1)
    bench.full = {N1}
    assert bench.asks(1, "get").envelope == b""


def test_other_questions_wait_for_no_room(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1)
    bench.full = {N1}
    assert bench.asks(1, "counts").number == 1


def test_a_get_that_waited_takes_nothing_for_a_channel_that_is_closed(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1)
    bench.full = {N1}
    bench.hears(get(50, channel=2))
    bench.hears(SessionChannelClosed(QUEUE, 1, 2))
    bench.room_comes()
    assert bench.told() == []
    assert bench.asks(1, "counts").number == 1


def test_a_get_that_waited_takes_nothing_for_a_session_that_is_over(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1)
    bench.full = {N1}
    bench.hears(get(50))
    bench.opens(2)
    bench.hears(get(52, session=2))
    bench.room_comes()
    assert [reply.call_id for reply in bench.told() if isinstance(reply, SessionReply)] == [52]


def test_a_get_that_waited_for_a_queue_that_is_gone_is_forgotten(bench: HostBench) -> None:
    bench.opens(1)
    bench.publishes(1, 1)
    bench.full = {N1}
    bench.hears(get(50))
    bench.out_of_service(QUEUE, OSError())
    bench.told()
    bench.room_comes()
    assert bench.told() == []
