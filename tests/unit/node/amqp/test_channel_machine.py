"""The channel machine, driven with items and broker answers; frames are read back with `pamqp`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pamqp import base, commands

from node.amqp.channel import ChannelLimits, ChannelMachine
from node.amqp.channel_events import (
    ChannelEffect,
    CheckPublishes,
    Closed,
    ColdCall,
    Delivered,
    Detach,
    PublishToBroker,
    Settle,
    Settlement,
)
from node.amqp.channel_states import ChannelState
from node.amqp.frames import (
    SETTLE_BY_REJECT,
    SETTLE_MULTIPLE,
    SETTLE_NEGATIVE,
    SETTLE_REQUEUE,
    ContentTooLarge,
    MethodReceived,
    Publishes,
    Settlements,
)
from node.amqp.methods import AccessRequest, decode_method, pack_method
from node.amqp.ports import DeliverySource, Got, QueueDeclared
from node.amqp.settling import SETTLE_LIMIT
from node.errors import ChannelError, ConnectionFailure
from node.ids import MsgId, QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from tests.support.amqp_frames import unmarshal_all

Basic, Channel, Confirm, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Queue,
    commands.Tx,
)
Q = DeliverySource(QueueName("/", "q"), 1)
EMPTY = b"\x00\x00"


def message(body: bytes = b"x") -> Message:
    return Message(MsgId(b""), "", "q", EMPTY, body, False)


def deliveries(*seq_ids: int) -> list[Delivery]:
    return [Delivery(SeqId(seq_id), message(), False) for seq_id in seq_ids]


def settled(settlement: Settlement, seq_ids: list[int]) -> Settle:
    return Settle(settlement, Q, [SeqId(seq_id) for seq_id in seq_ids])


class Driver:
    """A channel machine with its output and effects taken after every step."""

    def __init__(self, *, cancel_notify: bool = True, is_open: bool = True) -> None:
        self.output: list[bytes] = []
        self.machine = ChannelMachine(1, self.output, ChannelLimits(4096, 1000, cancel_notify), random.Random(7))
        if is_open:
            assert self.ask(Channel.Open()) == ["Channel.OpenOk"]

    def receive(self, item: Any) -> list[ChannelEffect]:
        self.machine.receive(item)
        self.machine.check_invariants()
        return self.effects()

    def effects(self) -> list[ChannelEffect]:
        effects = list(self.machine.effects)
        self.machine.effects.clear()
        return effects

    def sent(self) -> list[tuple[Any, ...]]:
        """Methods sent since the last look, as (name, arguments...)."""
        self.machine.flush_confirms()
        frames = [frame for _, frame in unmarshal_all(b"".join(self.output)) if isinstance(frame, base.Frame)]
        self.output.clear()
        return [(frame.name, *(value for _, value in frame)) for frame in frames]

    def names(self) -> list[str]:
        return [name for name, *_ in self.sent()]

    def send(self, method: base.Frame) -> list[ChannelEffect]:
        return self.receive(MethodReceived(1, method))

    def ask(self, method: base.Frame, answer: object = None) -> list[str]:
        """A method whose cold call, if it makes one, is answered at once."""
        for effect in self.send(method):
            if isinstance(effect, ColdCall):
                self.machine.answered(effect, answer)
                self.machine.check_invariants()
        return self.names()

    def consume(self, tag: str = "t", **options: Any) -> None:
        assert self.ask(Basic.Consume(queue="q", consumer_tag=tag, **options)) == ["Basic.ConsumeOk"]

    def deliver(self, *seq_ids: int, tag: str = "t") -> list[int]:
        """Delivery tags that went out."""
        self.machine.deliver(tag, Q, deliveries(*seq_ids))
        self.machine.check_invariants()
        return self.delivered_tags()

    def delivered_tags(self) -> list[int]:
        return [line[2] for line in self.sent() if line[0] == "Basic.Deliver"]

    def settle(self, *settlements: tuple[int, int]) -> list[tuple[Settlement, list[int]]]:
        effects = self.receive(Settlements(1, list(settlements)))
        return [(effect.settlement, list(effect.seq_ids)) for effect in effects if isinstance(effect, Settle)]

    def publish(self, *bodies: bytes) -> list[ChannelEffect]:
        return self.receive(Publishes(1, [message(body) for body in bodies], [False] * len(bodies)))


def channel_error(driver: Driver) -> tuple[int, str, int, int]:
    """Reply code, text and method of the ``channel.close`` that was sent last."""
    name, *arguments = driver.sent()[-1]
    assert name == "Channel.Close"
    assert driver.machine.state is ChannelState.CLOSING_BY_SERVER
    code, text, class_id, method_id = arguments
    return code, text, class_id, method_id


# --- life ---


def cold_call(effects: list[ChannelEffect]) -> ColdCall:
    (call,) = effects
    assert isinstance(call, ColdCall)
    return call


def test_open_and_close_by_the_client() -> None:
    driver = Driver()
    (call,) = driver.send(Channel.Close(200, "bye", 0, 0))
    assert driver.names() == []
    assert isinstance(call, ColdCall)
    driver.machine.answered(call, None)
    assert driver.names() == ["Channel.CloseOk"]
    assert driver.effects() == [Closed()]
    assert driver.machine.state is ChannelState.CLOSED


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_channel_that_is_opened_again_before_its_close_is_answered_is_an_error(is_busy: bool) -> None:
    driver = Driver()
    calls = driver.send(Queue.Declare(queue="q")) if is_busy else []
    calls += driver.send(Channel.Close(200, "bye", 0, 0))
    assert driver.receive(MethodReceived(1, Channel.Open())) == []
    if is_busy:
        driver.machine.answered(cold_call(calls), QueueDeclared("q", 0, 0))
        calls = driver.effects()
    with pytest.raises(ConnectionFailure, match=r"second 'channel\.open' seen"):
        driver.machine.answered(cold_call(calls), None)
    assert driver.names()[-1] == "Channel.CloseOk"
    driver.machine.check_invariants()


def test_only_open_is_expected_first() -> None:
    with pytest.raises(ConnectionFailure, match=r"expected 'channel\.open'"):
        Driver(is_open=False).send(Basic.Qos())


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (Channel.Open(), 504),
        (Channel.Flow(False), 540),
        (Basic.Qos(prefetch_size=1), 540),
        (Basic.Recover(False), 540),
        (Basic.QosOk(), 503),
        (Queue.DeclareOk("q", 0, 0), 503),
    ],
)
def test_connection_errors(method: base.Frame, code: int) -> None:
    driver = Driver()
    with pytest.raises(ConnectionFailure) as failure:
        driver.send(method)
    assert failure.value.reply_code == code
    assert driver.machine.blamed_index == method.index


def test_small_answers() -> None:
    driver = Driver()
    assert driver.ask(Channel.Flow(True)) == ["Channel.FlowOk"]
    access = decode_method(b"\x00\x1e\x00\x0a\x00\x00")
    assert isinstance(access, AccessRequest)
    driver.send(access)
    assert driver.output == [b"\x01\x00\x01\x00\x00\x00\x06\x00\x1e\x00\x0b\x00\x01\xce"]


def test_an_error_closes_the_channel_until_close_ok() -> None:
    driver = Driver()
    effects = driver.receive(Settlements(1, [(5, 0)]))
    (detach,) = effects
    assert isinstance(detach, Detach)
    assert (detach.error.reply_code, detach.method_index) == (406, Basic.Ack.index)
    assert channel_error(driver) == (406, "PRECONDITION_FAILED - unknown delivery tag 5", 60, 80)
    assert driver.publish(b"ignored") == []
    driver.machine.deliver("t", Q, deliveries(1))
    assert driver.names() == []
    assert driver.send(Channel.CloseOk()) == [Closed()]


def test_closes_that_cross_are_both_answered() -> None:
    driver = Driver()
    driver.machine.fail(ChannelError(404, "gone"), 0)
    driver.send(Channel.Close(200, "", 0, 0))
    assert driver.names() == ["Channel.Close", "Channel.CloseOk"]
    assert driver.machine.state is ChannelState.CLOSING_BY_SERVER


def test_too_large_a_message() -> None:
    driver = Driver()
    driver.receive(ContentTooLarge(1, 1001))
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert channel_error(driver) == (406, text, 60, 40)


# --- cold calls ---


def test_items_wait_behind_a_cold_call_in_order() -> None:
    driver = Driver()
    (call,) = driver.send(Queue.Declare(queue="q"))
    assert isinstance(call, ColdCall)
    assert driver.publish(b"1") == []
    assert driver.send(Queue.Purge(queue="q")) == []
    assert driver.publish(b"2") == []
    assert driver.machine.waiting_bytes > 0
    driver.machine.answered(call, QueueDeclared("q", 3, 1))
    assert driver.sent() == [("Queue.DeclareOk", "q", 3, 1)]
    publish, purge = driver.effects()
    assert isinstance(publish, PublishToBroker)
    assert publish.requests[0].message.body == b"1"
    assert isinstance(purge, ColdCall)
    driver.machine.answered(purge, 3)
    assert driver.sent() == [("Queue.PurgeOk", 3)]
    assert len(driver.effects()) == 1
    assert driver.machine.waiting_bytes == 0
    driver.machine.check_invariants()


def test_a_refused_call_closes_the_channel_and_drops_what_waits() -> None:
    driver = Driver()
    (call,) = driver.send(Queue.Declare(queue="q", passive=True))
    assert isinstance(call, ColdCall)
    driver.publish(b"lost")
    error = ChannelError(404, "no queue")
    driver.machine.call_failed(call, error)
    assert channel_error(driver) == (404, "NOT_FOUND - no queue", 50, 10)
    assert driver.effects() == [Detach(error, Queue.Declare.index)]
    driver.machine.check_invariants()


@pytest.mark.parametrize(
    "method",
    [
        Queue.Declare(queue="q", nowait=True),
        Queue.Bind(queue="q", exchange="x", nowait=True),
        Basic.Consume(queue="q", nowait=True),
        Basic.Cancel("t", nowait=True),
        Confirm.Select(nowait=True),
        commands.Exchange.Declare(exchange="x", nowait=True),
        Queue.Delete(queue="q", nowait=True),
    ],
    ids=lambda method: method.name,
)
def test_nowait_has_no_answer(method: base.Frame) -> None:
    assert Driver().ask(method, QueueDeclared("q", 0, 0)) == []


def test_an_empty_queue_name_is_the_last_declared() -> None:
    driver = Driver()
    driver.ask(Queue.Declare(queue=""), QueueDeclared("amq.gen-1", 0, 0))
    for method in (Queue.Bind(exchange="x"), Queue.Purge(), Queue.Delete(), Basic.Get(), Basic.Consume()):
        (call,) = driver.send(method)
        assert isinstance(call, ColdCall)
        resolved: Any = call.method
        assert resolved.queue == "amq.gen-1"
        if isinstance(method, Queue.Bind):
            assert resolved.routing_key == "amq.gen-1"
        counts = isinstance(method, Queue.Purge | Queue.Delete)
        driver.machine.answered(call, 0 if counts else None)
        driver.effects()


def test_without_a_declared_queue_an_empty_name_is_404() -> None:
    driver = Driver()
    driver.send(Queue.Purge())
    assert channel_error(driver)[:2] == (404, "NOT_FOUND - no previously declared queue")


def test_get() -> None:
    driver = Driver()
    assert driver.ask(Basic.Get(queue="q")) == ["Basic.GetEmpty"]
    driver.ask(Basic.Get(queue="q"), Got(Q, deliveries(4)[0], 9))
    driver.ask(Basic.Get(queue="q", no_ack=True), Got(Q, deliveries(5)[0], 8))
    assert driver.settle((1, 0)) == [(Settlement.ACK, [4])]
    driver.settle((2, 0))
    assert channel_error(driver)[0] == 406


# --- publishing ---


def test_publishes_without_confirms_have_no_number() -> None:
    (effect,) = Driver().publish(b"1", b"2")
    assert isinstance(effect, PublishToBroker)
    assert [(request.message.body, request.publish_seq) for request in effect.requests] == [(b"1", 0), (b"2", 0)]


def test_confirms_are_coalesced_at_the_flush() -> None:
    driver = Driver()
    assert driver.ask(Confirm.Select()) == ["Confirm.SelectOk"]
    (effect,) = driver.publish(b"1", b"2", b"3", b"4")
    assert isinstance(effect, PublishToBroker)
    assert [request.publish_seq for request in effect.requests] == [1, 2, 3, 4]
    driver.machine.confirm([2])
    driver.machine.confirm([1])
    driver.machine.confirm([4])
    assert driver.sent() == [("Basic.Ack", 2, True), ("Basic.Ack", 4, False)]
    driver.machine.reject([3])
    assert driver.sent() == [("Basic.Nack", 3, False, False)]


def test_a_return_goes_out_before_its_confirm() -> None:
    driver = Driver()
    driver.ask(Confirm.Select())
    (effect,) = driver.publish(b"1")
    assert isinstance(effect, PublishToBroker)
    driver.machine.returned(effect.requests[0], 312, "NO_ROUTE")
    driver.machine.confirm([1])
    assert driver.names() == ["Basic.Return", "Basic.Ack"]


def test_known_confirms_are_sent_before_the_channel_closes() -> None:
    driver = Driver()
    driver.ask(Confirm.Select())
    driver.publish(b"1", b"2")
    driver.machine.confirm([1])
    driver.machine.fail(ChannelError(404, "x"), 0)
    assert driver.names() == ["Basic.Ack", "Channel.Close"]


# --- settling ---


def test_settlements_are_grouped_by_what_becomes_of_them() -> None:
    driver = Driver()
    driver.consume()
    assert driver.deliver(11, 12, 13, 14, 15, 16, 17) == [1, 2, 3, 4, 5, 6, 7]
    assert driver.settle(
        (1, 0),
        (2, 0),
        (3, SETTLE_NEGATIVE),
        (4, SETTLE_NEGATIVE | SETTLE_REQUEUE),
        (5, SETTLE_NEGATIVE | SETTLE_REQUEUE | SETTLE_BY_REJECT),
        (7, SETTLE_MULTIPLE),
    ) == [
        (Settlement.ACK, [11, 12]),
        (Settlement.DISCARD, [13]),
        (Settlement.REQUEUE, [14, 15]),
        (Settlement.ACK, [16, 17]),
    ]
    assert driver.settle((0, SETTLE_MULTIPLE)) == []


@pytest.mark.parametrize(
    ("bits", "method_id"),
    [(0, 80), (SETTLE_MULTIPLE, 80), (SETTLE_NEGATIVE, 120), (SETTLE_NEGATIVE | SETTLE_BY_REJECT, 90)],
)
def test_an_unknown_tag_is_406_and_those_before_it_count(bits: int, method_id: int) -> None:
    driver = Driver()
    driver.consume()
    driver.deliver(11)
    assert driver.settle((1, 0), (2, bits)) == [(Settlement.ACK, [11])]
    assert channel_error(driver) == (406, "PRECONDITION_FAILED - unknown delivery tag 2", 60, method_id)


@pytest.mark.parametrize(
    ("bits", "settlement", "count"),
    [
        (0, Settlement.ACK, SETTLE_LIMIT),
        (SETTLE_NEGATIVE, Settlement.DISCARD, SETTLE_LIMIT),
        (SETTLE_NEGATIVE | SETTLE_REQUEUE, Settlement.REQUEUE, 1000),
    ],
)
def test_a_settlement_of_many_is_cut_unless_it_requeues(bits: int, settlement: Settlement, count: int) -> None:
    driver = Driver()
    driver.consume()
    driver.deliver(*range(1, 1001))
    effects = driver.settle((1000, bits | SETTLE_MULTIPLE))
    assert {kind for kind, _ in effects} == {settlement}
    assert max(len(seq_ids) for _, seq_ids in effects) == count
    assert len(effects) == -(-1000 // count)
    assert [seq_id for _, seq_ids in effects for seq_id in seq_ids] == list(range(1, 1001))


def test_recover_requeues_everything() -> None:
    driver = Driver()
    driver.consume()
    driver.deliver(1, 2)
    driver.effects()
    (effect,) = driver.send(Basic.Recover(True))
    assert effect == settled(Settlement.REQUEUE, [1, 2])
    assert driver.names() == ["Basic.RecoverOk"]
    method = decode_method(pack_method(1, Basic.RecoverAsync, True)[7:-1])
    assert method is not None
    assert driver.send(method) == []
    assert driver.names() == []


# --- consuming ---


def test_a_consumer_tag_is_made_and_may_not_be_used_twice() -> None:
    driver = Driver()
    (call,) = driver.send(Basic.Consume(queue="q"))
    assert isinstance(call, ColdCall)
    assert call.spec is not None
    tag = call.spec.consumer_tag
    assert tag.startswith("amq.ctag-")
    assert len(tag) == len("amq.ctag-") + 22
    driver.machine.answered(call, None)
    assert driver.sent() == [("Basic.ConsumeOk", tag)]
    with pytest.raises(ConnectionFailure, match="reuse consumer tag") as failure:
        driver.send(Basic.Consume(queue="q", consumer_tag=tag))
    assert failure.value.reply_code == 530


def test_the_specification_of_a_consumer() -> None:
    driver = Driver()
    driver.ask(Basic.Qos(prefetch_count=5))
    arguments: dict[str, Any] = {"x-priority": 7, "x-cancel-on-ha-failover": True}
    (call,) = driver.send(Basic.Consume(queue="q", consumer_tag="t", exclusive=True, arguments=arguments))
    assert isinstance(call, ColdCall)
    assert call.spec is not None
    assert (call.spec.prefetch_count, call.spec.priority, call.spec.exclusive) == (5, 7, True)
    assert call.spec.cancel_on_failover
    driver.machine.answered(call, None)
    driver.send(Basic.Consume(queue="q", arguments={"x-priority": "high"}))
    assert channel_error(driver)[0] == 406


def test_deliveries_come_after_consume_ok_in_any_case() -> None:
    driver = Driver()
    (call,) = driver.send(Basic.Consume(queue="q", consumer_tag="t"))
    assert isinstance(call, ColdCall)
    assert driver.deliver(1) == []
    driver.machine.answered(call, None)
    assert driver.names() == ["Basic.ConsumeOk", "Basic.Deliver"]
    assert driver.effects() == [Delivered(Q, "t", 1)]


def test_deliveries_for_nobody_are_requeued() -> None:
    driver = Driver()
    assert driver.deliver(1, 2, tag="gone") == []
    assert driver.effects() == [settled(Settlement.REQUEUE, [1, 2])]


def test_deliveries_above_the_channel_wide_limit_are_held_in_order() -> None:
    driver = Driver()
    driver.consume("a")
    driver.consume("b")
    assert driver.ask(Basic.Qos(prefetch_count=3, global_=True)) == ["Basic.QosOk"]
    assert driver.deliver(1, 2, tag="a") == [1, 2]
    assert driver.deliver(3, 4, 5, tag="b") == [3]
    assert driver.deliver(6, tag="a") == []
    assert driver.machine.deliveries.held_count == 3
    assert driver.settle((2, SETTLE_MULTIPLE)) == [(Settlement.ACK, [1, 2])]
    assert [(line[1], line[2]) for line in driver.sent() if line[0] == "Basic.Deliver"] == [("b", 4), ("b", 5)]
    driver.ask(Basic.Qos(prefetch_count=0, global_=True))
    assert driver.machine.deliveries.held_count == 0


def test_a_limit_that_is_lifted_releases_what_is_held() -> None:
    driver = Driver()
    driver.consume()
    driver.ask(Basic.Qos(prefetch_count=1, global_=True))
    assert driver.deliver(1, 2) == [1]
    driver.send(Basic.Qos(prefetch_count=9))
    assert driver.delivered_tags() == [2]


def test_cancel_gives_back_what_is_held() -> None:
    driver = Driver()
    driver.consume()
    driver.ask(Basic.Qos(prefetch_count=1, global_=True))
    driver.deliver(1, 2, 3)
    driver.effects()
    (call,) = driver.send(Basic.Cancel("t"))
    assert isinstance(call, ColdCall)
    driver.machine.answered(call, None)
    assert driver.sent() == [("Basic.CancelOk", "t")]
    assert driver.effects() == [settled(Settlement.REQUEUE, [2, 3])]
    assert driver.settle((1, 0)) == [(Settlement.ACK, [1])]


@pytest.mark.parametrize(("notify", "sent"), [(True, [("Basic.Cancel", "t", True)]), (False, [])])
def test_a_consumer_cancelled_by_the_broker(notify: bool, sent: list[tuple[Any, ...]]) -> None:
    driver = Driver(cancel_notify=notify)
    driver.consume()
    driver.machine.consumer_cancelled("t")
    assert driver.sent() == sent
    driver.machine.consumer_cancelled("t")
    assert driver.sent() == []
    assert driver.machine.consumer_count == 0


# --- transactions ---


def test_a_commit_publishes_settles_and_waits_for_the_confirms() -> None:
    driver = Driver()
    driver.consume()
    driver.deliver(11, 12)
    driver.effects()
    assert driver.ask(Tx.Select()) == ["Tx.SelectOk"]
    (check,) = driver.publish(b"1", b"2")
    assert isinstance(check, CheckPublishes)
    assert [request.message.body for request in check.requests] == [b"1", b"2"]
    assert driver.settle((1, 0)) == []
    check, publish, settle = driver.send(Tx.Commit())
    assert isinstance(check, CheckPublishes)
    assert [request.message.body for request in check.requests] == [b"1"], "one for each exchange"
    assert isinstance(publish, PublishToBroker)
    assert [request.publish_seq for request in publish.requests] == [1, 2]
    assert settle == settled(Settlement.ACK, [11])
    driver.machine.confirm([2])
    assert driver.send(Queue.Purge(queue="q")) == []
    assert driver.names() == []
    driver.machine.confirm([1])
    assert driver.names() == ["Tx.CommitOk"]
    (purge,) = driver.effects()
    assert isinstance(purge, ColdCall)
    driver.machine.check_invariants()


def test_an_empty_commit_is_answered_at_once() -> None:
    driver = Driver()
    driver.ask(Tx.Select())
    assert driver.ask(Tx.Commit()) == ["Tx.CommitOk"]


def test_a_refused_publish_fails_the_commit() -> None:
    driver = Driver()
    driver.ask(Tx.Select())
    driver.publish(b"1", b"2")
    driver.send(Tx.Commit())
    driver.machine.reject([1])
    driver.machine.confirm([2])
    assert channel_error(driver) == (406, "PRECONDITION_FAILED - partial tx completion", 90, 20)


def test_a_rollback_forgets_publishes_and_settlements() -> None:
    driver = Driver()
    driver.consume()
    driver.deliver(11, 12)
    driver.effects()
    driver.ask(Tx.Select())
    driver.publish(b"1")
    driver.settle((1, 0))
    assert driver.ask(Tx.Rollback()) == ["Tx.RollbackOk"]
    assert driver.settle((2, SETTLE_MULTIPLE)) == []
    assert driver.send(Tx.Commit()) == [settled(Settlement.ACK, [11, 12])]


def test_a_transaction_is_bounded() -> None:
    driver = Driver()
    driver.ask(Tx.Select())
    with pytest.raises(ConnectionFailure) as failure:
        driver.publish(bytes(1000), bytes(1000))
    assert failure.value.reply_code == 506


@pytest.mark.parametrize("methods", [(Confirm.Select(), Tx.Select()), (Tx.Select(), Confirm.Select()), (Tx.Commit(),)])
def test_modes_exclude_each_other(methods: tuple[base.Frame, ...]) -> None:
    driver = Driver()
    for method in methods:
        driver.send(method)
    assert channel_error(driver)[0] == 406
