"""The entry of sessions without a loop: calls and consumers. The entry node is n1, the queue begins on n2."""

from __future__ import annotations

import pytest

from cluster.sessions.messages import SessionCall, SessionConsumerCancelled, SessionDeliver, SessionReply
from cluster.sessions.ports import CallGoesOn
from cluster.sessions.questions import Answer, Question
from cluster.sessions.routes import Call, CallState, ConsumerKey
from node.errors import ChannelError, StorageError
from node.ids import ChannelKey, NodeName, SeqId
from node.queues.backing_queue import NO_LIMIT_BYTES, Delivery
from node.queues.events import ConsumerSpec
from node.queues.queue_process import QueueProcess
from tests.support.entry_bench import EntryBench, answer
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, message, queue_record, stored

COUNTS = Question("counts")
GET = Question("get")
CONSUMER = ConsumerSpec("tag", no_ack=False, exclusive=False)
CONSUME = Question("consume", consumer=CONSUMER)


def goes_on(bench: EntryBench, call: Call) -> bool:
    """Its caller, and no other, was told to go on."""
    return bench.emitted() == [CallGoesOn(call.call_id)]


def attached(bench: EntryBench) -> SessionCall:
    """The one consumer that was attached again since the last look, as all that there are."""
    call, fence = [each for _, each in bench.sent() if isinstance(each, SessionCall)]
    assert (call.verb, fence.verb) == ("consume", "counts")
    return call


# --- calls ---


def test_a_call_waits_for_the_session_then_for_the_answer(bench: EntryBench) -> None:
    call = bench.asks(COUNTS)
    assert bench.proceeds(call) is None
    assert bench.told() == ["n2 open 1"]

    bench.accepts(1)
    assert goes_on(bench, call)
    assert bench.proceeds(call) is None
    assert bench.told() == ["n2 counts 1"]

    bench.hears(answer(call, 1, number=7))
    assert goes_on(bench, call)
    assert bench.proceeds(call) == Answer(number=7)
    assert call.state is CallState.OVER


def test_a_refusal_of_the_master_is_raised(opened: EntryBench) -> None:
    call = opened.asks(COUNTS)
    opened.proceeds(call)
    opened.hears(answer(call, 1, code=406))
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - no"):
        opened.proceeds(call)
    assert call.state is CallState.OVER


def test_a_call_during_a_move_is_asked_again_at_the_next_master(opened: EntryBench) -> None:
    call = opened.asks(COUNTS)
    opened.proceeds(call)
    opened.link_breaks("n2")
    assert goes_on(opened, call)
    assert opened.proceeds(call) is None

    opened.moves("n3", 2)
    opened.accepts(2)
    assert goes_on(opened, call)
    assert opened.proceeds(call) is None
    opened.hears(answer(call, 1, number=1), node="n2")
    opened.hears(answer(call, 1, number=1), node="n3")
    assert opened.emitted() == [], "an answer of the old session"
    opened.hears(answer(call, 2, number=2))
    assert opened.proceeds(call) == Answer(number=2)
    assert opened.told() == ["n2 counts 1", "n3 open 2", "n3 counts 2"]


def test_a_session_that_is_gone_again_before_the_caller_goes_on_is_waited_for_anew(bench: EntryBench) -> None:
    call = bench.asks(COUNTS)
    bench.proceeds(call)
    bench.accepts(1)
    bench.refuses(1)
    assert bench.emitted()[0] == CallGoesOn(call.call_id)
    assert bench.proceeds(call) is None
    bench.entry.reopen(QUEUE)
    bench.accepts(2)
    assert goes_on(bench, call)


def test_callers_go_on_in_the_order_in_which_they_began_to_wait(bench: EntryBench) -> None:
    first, second = bench.asks(COUNTS), bench.asks(COUNTS)
    bench.proceeds(second)
    bench.proceeds(first)
    bench.accepts(1)
    assert bench.emitted() == [CallGoesOn(second.call_id), CallGoesOn(first.call_id)]
    bench.proceeds(first)
    bench.proceeds(second)
    bench.link_breaks("n2")
    assert bench.emitted() == [CallGoesOn(first.call_id), CallGoesOn(second.call_id)]


def test_a_queue_that_is_down_refuses_who_asks_now_and_not_who_waits(bench: EntryBench) -> None:
    patient = bench.asks(COUNTS)
    bench.proceeds(patient)
    bench.moves("n2", 1, is_down=True)
    assert bench.emitted() == []
    with pytest.raises(ChannelError, match="home node 'n2' of durable queue 'q' in vhost '/' is down or inaccessible"):
        bench.proceeds(bench.asks(COUNTS))
    bench.moves("n3", 2)
    bench.accepts(2)
    assert goes_on(bench, patient)


def test_down_by_one_record_and_up_by_the_next_refuses_nobody(opened: EntryBench) -> None:
    call = opened.asks(COUNTS)
    opened.proceeds(call)
    opened.moves("n2", 1, is_down=True)
    opened.moves("n3", 2)
    opened.accepts(2)
    assert opened.proceeds(call) is None
    assert opened.told()[-1] == "n3 counts 2"


@pytest.mark.parametrize("was_asked", [True, False])
def test_when_time_is_up_the_caller_learns_what_did_not_come(bench: EntryBench, was_asked: bool) -> None:
    call = bench.asks(COUNTS)
    assert call.deadline_s == bench.now_s + 15.0, "as in the reference"
    bench.proceeds(call)
    if was_asked:
        bench.accepts(1)
        bench.proceeds(call)
    bench.emitted()
    error = bench.entry.calls.time_is_up(call)
    text = "'q' in vhost '/' did not answer in time" if was_asked else "home node 'n2' of durable queue 'q' in vhost"
    assert (error.reply_code, text in error.reply_text) == (404, True)

    bench.hears(answer(call, 1, number=7))
    bench.moves("n3", 2)
    assert bench.emitted() == [], "nobody waits any more"


@pytest.mark.parametrize("was_asked", [True, False])
def test_who_waits_for_a_queue_that_is_deleted_finds_it_gone(bench: EntryBench, was_asked: bool) -> None:
    call = bench.asks(COUNTS)
    bench.proceeds(call)
    if was_asked:
        bench.accepts(1)
        bench.proceeds(call)
    bench.emitted()
    bench.queue_is_deleted()
    assert goes_on(bench, call)
    with pytest.raises(ChannelError, match="NOT_FOUND - the queue has been deleted"):
        bench.proceeds(call)


def test_when_time_is_up_for_a_queue_that_was_deleted_meanwhile_its_name_is_forgotten(bench: EntryBench) -> None:
    call = bench.asks(COUNTS)
    bench.proceeds(call)
    bench.queue_is_deleted()
    assert "a deleted queue did not answer in time" in bench.entry.calls.time_is_up(call).reply_text


def test_a_channel_that_closed_while_it_waited_asks_nothing(bench: EntryBench) -> None:
    call = bench.asks(CONSUME)
    bench.proceeds(call)
    bench.closes()
    bench.accepts(1)
    with pytest.raises(ChannelError, match="the channel was closed meanwhile"):
        bench.proceeds(call)
    assert bench.told() == ["n2 open 1"]


@pytest.mark.parametrize(("question", "is_asked_again"), [(GET, True), (Question("purge"), False)])
def test_an_answer_not_heard_before_its_session_was_replaced(
    opened: EntryBench, question: Question, is_asked_again: bool
) -> None:
    """What `get` was given is back in the queue. What `purge` threw away is not."""
    call = opened.asks(question)
    opened.proceeds(call)
    opened.hears(answer(call, 1, number=3))
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.sent()
    heard = opened.proceeds(call)
    if is_asked_again:
        assert (heard, opened.told()) == (None, ["n3 get 2"])
    else:
        assert (heard, opened.told()) == (Answer(number=3), [])


@pytest.mark.parametrize(("question", "is_heard"), [(GET, False), (Question("purge"), True)])
def test_an_answer_not_heard_before_the_queue_was_deleted(
    opened: EntryBench, question: Question, is_heard: bool
) -> None:
    call = opened.asks(question)
    opened.proceeds(call)
    opened.hears(answer(call, 1, number=3))
    opened.queue_is_deleted()
    if is_heard:
        assert opened.proceeds(call) == Answer(number=3)
    else:
        with pytest.raises(ChannelError, match="the queue has been deleted"):
            opened.proceeds(call)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_nobody_acknowledges_is_heard_though_its_session_was_replaced_or_the_queue_deleted(
    opened: EntryBench, is_deleted: bool
) -> None:
    """Its queue has forgotten it: it would be nowhere."""
    call = opened.asks(Question("get", no_ack=True))
    opened.proceeds(call)
    opened.hears(
        SessionReply(QUEUE, 1, call.call_id, number=3, seq_id=SeqId(5), envelope=message(1, b"got").envelope())
    )
    if is_deleted:
        opened.queue_is_deleted()
    else:
        opened.moves("n3", 2)
        opened.accepts(2)
    opened.sent()
    heard = opened.proceeds(call)
    assert heard is not None
    assert heard.delivery is not None
    assert (heard.number, heard.delivery.message.body, opened.told()) == (3, b"got", [])
    assert call.state is CallState.OVER


def test_an_answer_after_the_end_of_its_session_is_none(opened: EntryBench) -> None:
    call = opened.asks(COUNTS)
    opened.proceeds(call)
    opened.refuses(1)
    opened.emitted()
    opened.hears(answer(call, 1, number=3))
    assert opened.emitted() == []
    assert opened.proceeds(call) is None
    assert call.state is CallState.WAITING


def test_get_brings_the_message_and_the_session_to_settle_it_in(opened: EntryBench) -> None:
    call = opened.asks(GET)
    opened.proceeds(call)
    got = message(9, b"body")
    opened.hears(SessionReply(QUEUE, 1, call.call_id, 0, "", 4, 0, SeqId(17), True, got.envelope()))
    heard = opened.proceeds(call)
    assert heard is not None
    assert heard.delivery is not None
    assert (heard.number, heard.delivery.seq_id, heard.delivery.redelivered) == (4, 17, True)
    assert heard.delivery.message.body == b"body"
    assert call.session == 1


def test_an_abandoned_call_is_answered_to_nobody(opened: EntryBench) -> None:
    call = opened.asks(COUNTS)
    opened.proceeds(call)
    opened.entry.calls.abandon(call)
    opened.hears(answer(call, 1))
    opened.link_breaks("n2")
    assert opened.emitted() == []


# --- calls of a queue on this node ---


def test_a_queue_here_answers_at_once() -> None:
    bench = EntryBench("n1")
    bench.masters_here(stored(message(1), message(2)))
    assert bench.proceeds(bench.asks(COUNTS)) == Answer(number=2)
    assert bench.proceeds(bench.asks(CONSUME)) == Answer()
    for conditions in (Question("delete_if", if_empty=True), Question("delete_if", if_unused=True)):
        with pytest.raises(ChannelError, match="PRECONDITION_FAILED"):
            bench.proceeds(bench.asks(conditions))
    assert bench.proceeds(bench.asks(Question("delete_if"))) == Answer(number=2, epoch=1)
    assert (bench.told(), bench.emitted()) == ([], [])


class BrokenDisk(SteeredQueue):
    """Gives nothing."""

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        raise StorageError("unreadable")


def test_a_queue_here_that_fails_under_a_call_leaves_it_to_the_next_master() -> None:
    bench = EntryBench("n1", "n2")
    bench.masters_here(BrokenDisk())
    bench.publishes(1)
    call = bench.asks(GET)
    states = []
    for _ in range(2):
        assert bench.proceeds(call) is None
        states.append(call.state)
    assert states == [CallState.READY, CallState.WAITING], "READY: try in the next turn, nobody will tell"
    bench.moves("n2", 2)
    bench.accepts(2)
    assert goes_on(bench, call)
    bench.proceeds(call)
    assert bench.told()[-1] == "n2 get 2"


# --- consumers ---


def test_of_deliveries_that_do_not_fit_together_none_is_told(opened: EntryBench) -> None:
    """Or a message would be settled under the position of another."""
    opened.consumes(1, CONSUMER)
    envelope = message(1, b"a").envelope()
    for seq_ids, flags in (([SeqId(1), SeqId(2)], [False]), ([SeqId(1)], [False, True])):
        with pytest.raises(ValueError, match="zip"):
            opened.hears(SessionDeliver(QUEUE, 1, opened.channel.channel_id, "tag", seq_ids, flags, envelope))
    assert opened.sink.delivered == []


def test_a_refused_consumer_leaves_nothing_behind(opened: EntryBench) -> None:
    call = opened.asks(CONSUME)
    opened.proceeds(call)
    opened.delivers(1, "tag", b"a")
    opened.hears(answer(call, 1, code=403))
    with pytest.raises(ChannelError, match="ACCESS_REFUSED"):
        opened.proceeds(call)
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.delivers(2, "tag", b"b")
    assert opened.told() == ["n2 consume 1", "n3 open 2"], "it is not attached again"
    assert opened.sink.delivered == [("tag", b"b", False)], "nothing is kept for it: its channel sends it back"


def test_a_start_that_is_answered_after_the_channel_closed_attaches_nothing(bench: EntryBench) -> None:
    call = bench.asks(CONSUME)
    bench.proceeds(call)
    bench.accepts(1)
    bench.proceeds(call)
    bench.closes()
    assert bench.told() == ["n2 open 1", "n2 consume 1", "n2 channelclosed 1"]
    bench.hears(answer(call, 1))
    bench.delivers(1, "tag", b"a")
    assert bench.proceeds(call) is not None
    bench.knows("tag")
    bench.moves("n3", 2)
    bench.accepts(2)
    assert bench.told() == ["n3 open 2"]
    assert bench.sink.delivered == []


def test_consumers_of_a_closed_channel_are_not_attached_again_and_those_of_others_are(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    first = opened.channel
    opened.channel = opened.entry.open_channel(opened.sink)
    opened.consumes(1, ConsumerSpec("other", False, False))
    opened.entry.close_channel(first)
    opened.sent()
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.moves("n2", 3)
    opened.entry.check_invariants()
    opened.accepts(3)
    asked, _ = [each for _, each in opened.sent() if isinstance(each, SessionCall) and each.session == 3]
    assert asked.consumer == ConsumerSpec("other", False, False)


def test_a_start_whose_answer_came_with_the_move_is_asked_of_the_new_master_once(opened: EntryBench) -> None:
    call = opened.asks(CONSUME)
    opened.proceeds(call)
    opened.hears(answer(call, 1))
    opened.moves("n3", 2)
    opened.accepts(2)
    assert opened.proceeds(call) is None
    assert opened.told() == ["n2 consume 1", "n3 open 2", "n3 consume 2"]
    opened.hears(answer(call, 2))
    assert opened.proceeds(call) is not None


def test_consumers_are_attached_at_every_master_before_the_publishes(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.publishes(2)
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.link_breaks("n3")
    opened.link_comes("n3")
    opened.accepts(3)
    assert opened.told() == [
        "n2 publish 1: 2",
        "n3 open 2",
        "n3 consume 2",
        "n3 counts 2",
        "n3 publish 2: 2 resent",
        "n3 open 3",
        "n3 consume 3",
        "n3 counts 3",
        "n3 publish 3: 2 resent",
    ]
    assert opened.sink.cancelled == []


def test_only_a_move_cancels_a_consumer_that_asked_for_it(opened: EntryBench) -> None:
    opened.consumes(1, ConsumerSpec("asked", False, False, cancel_on_failover=True))
    opened.consumes(1, CONSUMER)
    opened.link_breaks("n2")
    opened.link_comes("n2")
    opened.accepts(2)
    assert opened.sink.cancelled == []
    opened.moves("n3", 2)
    assert opened.sink.cancelled == ["asked"]
    opened.sent()
    opened.accepts(3)
    assert opened.told() == ["n3 consume 3", "n3 counts 3"]


def test_a_consumer_that_the_next_master_will_not_have_is_cancelled(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.moves("n3", 2)
    opened.accepts(2)
    attach = attached(opened)
    opened.hears(SessionReply(QUEUE, 2, attach.call_id, reply_code=403))
    opened.hears(SessionReply(QUEUE, 2, attach.call_id, reply_code=403))
    assert opened.sink.cancelled == ["tag"]
    opened.moves("n2", 3)
    opened.accepts(3)
    assert opened.told() == ["n2 open 3", "n2 counts 3"]


def test_a_consumer_that_the_next_master_takes_goes_on(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.hears(SessionReply(QUEUE, 2, attached(opened).call_id))
    opened.delivers(2, "tag", b"a")
    assert (opened.sink.cancelled, opened.sink.delivered) == ([], [("tag", b"a", False)])


def test_a_channel_of_which_the_next_master_knows_only_the_consumer_is_closed_there(opened: EntryBench) -> None:
    """Or the consumer would outlive it, with everything that was delivered to nobody."""
    opened.consumes(1, CONSUMER)
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.sent()
    opened.closes()
    assert opened.told() == ["n3 channelclosed 2"]


def test_the_attach_of_an_old_session_cancels_nothing_in_the_next(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.moves("n3", 2)
    opened.accepts(2)
    attach = attached(opened)
    opened.moves("n2", 3)
    opened.accepts(3)
    opened.hears(SessionReply(QUEUE, 2, attach.call_id, reply_code=403), node="n3")
    opened.hears(SessionReply(QUEUE, 3, attach.call_id, reply_code=403))
    assert opened.sink.cancelled == []


def test_a_consumer_cancelled_between_sessions_is_just_not_attached_again(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    key = ConsumerKey(opened.channel, "tag")
    assert opened.entry.drop_consumer(QUEUE, key), "with a session its queue has to be told"
    assert not opened.entry.drop_consumer(QUEUE, key), "there is none any more"

    opened.consumes(1, CONSUMER)
    opened.link_breaks("n2")
    assert not opened.entry.drop_consumer(QUEUE, key)
    opened.link_comes("n2")
    opened.accepts(2)
    assert opened.told() == ["n2 open 2", "n2 counts 2"], "it had some, and says that these are all: none"


def test_a_consumer_that_its_queue_or_the_deletion_ends_is_told_once(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.consumes(1, ConsumerSpec("other", False, False))
    ended = SessionConsumerCancelled(QUEUE, 1, opened.channel.channel_id, "tag")
    opened.hears(ended)
    opened.hears(ended)
    assert opened.sink.cancelled == ["tag"]
    opened.queue_is_deleted()
    assert opened.sink.cancelled == ["tag", "other"]


def test_the_last_words_of_a_queue_here_reach_its_publishers_and_consumers() -> None:
    bench = EntryBench("n1")
    bench.masters_here(SteeredQueue(durable=True))
    assert bench.proceeds(bench.asks(CONSUME)) is not None
    bench.knows("tag")
    bench.publishes(1)
    assert bench.queue is not None
    bench.entry.local_effects(QUEUE, bench.queue.delete())
    assert (bench.sink.confirmed, bench.sink.cancelled) == ([1], ["tag"])
    bench.queue_is_deleted()
    assert (bench.sink.confirmed, bench.sink.cancelled) == ([1], ["tag"]), "once"


def test_consumers_of_a_queue_that_comes_here_are_attached_without_a_message(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.masters_here(stored(message(1, b"a")))
    opened.moves("n1", 2)
    opened.end_turn()
    assert opened.sink.delivered == [("tag", b"a", False)]
    assert opened.told() == []


def test_a_consumer_of_a_sealed_queue_here_is_served_when_the_queue_goes_on(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.masters_here(stored(message(1, b"a")))
    assert opened.queue is not None
    opened.queue.seal_for_delete(if_unused=False, if_empty=False)
    opened.moves("n1", 2)
    opened.end_turn()
    assert opened.sink.delivered == []
    opened.queue.unseal()
    opened.end_turn()
    assert opened.sink.delivered == [("tag", b"a", False)]


def test_the_last_deliveries_of_a_consumer_here_come_before_the_answer_to_its_cancel() -> None:
    bench = EntryBench("n1")
    bench.masters_here(stored(message(1, b"a")))
    assert bench.proceeds(bench.asks(CONSUME)) is not None
    bench.knows("tag")
    assert bench.entry.drop_consumer(QUEUE, ConsumerKey(bench.channel, "tag"))
    bench.publishes(2)
    assert bench.sink.delivered == []
    assert bench.proceeds(bench.asks(Question("cancel", consumer_tag="tag"))) is not None
    assert bench.sink.confirmed == [2], "the queue was drained"


def test_a_consumer_that_a_queue_here_will_not_have_is_cancelled(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.masters_here(SteeredQueue())
    assert opened.queue is not None
    opened.queue.consume(ChannelKey(NodeName("n3"), 1), ConsumerSpec("only", no_ack=False, exclusive=True))
    opened.moves("n1", 2)
    assert opened.sink.cancelled == ["tag"]


class MistakenQueue(QueueProcess):
    """Has no consumers, by a mistake of ours."""

    def consume(self, channel: ChannelKey, spec: ConsumerSpec) -> None:
        raise TypeError("a mistake of ours")


def test_a_queue_here_that_fails_while_consumers_come_back_leaves_them_to_the_next_master(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.consumes(1, ConsumerSpec("other", False, False))
    opened.queue = MistakenQueue(queue_record(QUEUE), SteeredQueue())
    opened.moves("n1", 2)
    assert len(opened.failures) == 1, "it is left alone after the first"
    opened.moves("n3", 3)
    opened.accepts(3)
    assert opened.told() == ["n3 open 3", "n3 consume 3", "n3 consume 3", "n3 counts 3"]
