"""What takes longer than a turn of the loop: large commits, settlements of thousands. Others go on; nothing is half
done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from node.amqp.channel_events import Settlement
from node.amqp.ports import BrokerChannel, DeliverySource
from node.amqp.server.turns import TURN_S
from node.amqp.settling import LONG_SETTLEMENT, SETTLE_LIMIT, SettleWork
from node.amqp.transaction import PUBLISH_LIMIT
from node.amqp.unacked import UnackedTable
from node.ids import QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from tests.support.amounts import few_fast
from tests.support.amqp_frames import method_bytes, publish_bytes
from tests.support.messages import make_message
from tests.support.observed_broker import ObservedBroker
from tests.support.server_client import Basic, Channel, Client, Confirm, Connection, Queue, Tx, calls

DELIVERED = LONG_SETTLEMENT + 476
#: Their positions.
ALL_DELIVERED = list(range(DELIVERED))
STEPS = -(-DELIVERED // SETTLE_LIMIT)


@pytest.fixture
async def consumer(client: Client, broker: ObservedBroker) -> Client:
    """A client that has been sent `DELIVERED` messages; from now on its broker needs a whole turn for each call."""
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q"))
    await client.send(data=publish_bytes(1) * DELIVERED)
    await client.send(Channel.Open(), channel=2)
    await client.settle()
    client.transport.written.clear()
    broker.calls.clear()
    client.server.clock = lambda: len(broker.calls) * TURN_S
    return client


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def finish(client: Client) -> None:
    for _ in range(10):
        await client.settle()


def settled(broker: ObservedBroker, name: str) -> list[SeqId]:
    return [seq_id for seq_ids in calls(broker, name) for seq_id in seq_ids]


ALL = method_bytes(1, Basic.Ack(0, True))
ALL_BACK = method_bytes(1, Basic.Nack(0, True, True))


@pytest.mark.parametrize(("data", "name"), [(ALL, "ack"), (ALL_BACK, "requeue")])
async def test_a_settlement_of_thousands_is_a_step_a_turn_and_other_channels_go_on(
    data: bytes, name: str, consumer: Client, broker: ObservedBroker
) -> None:
    consumer.shell.data_received(data + publish_bytes(2, routing_key="other"))
    await turns(3)
    assert calls(broker, "publish"), "the other channel did not wait"
    assert 0 < len(calls(broker, name)) < STEPS
    assert max(map(len, calls(broker, name))) <= SETTLE_LIMIT
    assert not consumer.is_held_back()
    await finish(consumer)
    assert sorted(settled(broker, name)) == ALL_DELIVERED


async def test_the_channel_itself_goes_on_only_when_it_is_done(consumer: Client, broker: ObservedBroker) -> None:
    consumer.shell.data_received(
        ALL
        + publish_bytes(1, routing_key="other")
        + method_bytes(1, Basic.Qos(0, 7))
        + method_bytes(1, Basic.Ack(9999))
    )
    await turns(3)
    assert not calls(broker, "publish")
    assert consumer.names() == []
    await finish(consumer)
    assert [name for name, _ in broker.calls][: STEPS + 1] == ["ack"] * STEPS + ["publish"]
    assert consumer.names() == ["Basic.QosOk", "Channel.Close"], "answers come in the order of the questions"


async def test_settlements_behind_a_long_one_in_one_read_come_after_it(
    consumer: Client, broker: ObservedBroker
) -> None:
    most = method_bytes(1, Basic.Nack(DELIVERED - 2, True, False))
    rest = [method_bytes(1, Basic.Ack(tag)) for tag in (DELIVERED, DELIVERED - 1)]
    consumer.shell.data_received(most + b"".join(rest))
    await finish(consumer)
    assert sorted(settled(broker, "discard")) == ALL_DELIVERED[:-2]
    assert settled(broker, "ack") == ALL_DELIVERED[:-3:-1]
    assert calls(broker, "discard"), "and that was the longer part"


async def test_recover_is_answered_and_gives_all_back(consumer: Client, broker: ObservedBroker) -> None:
    assert "Basic.RecoverOk" in await consumer.send(Basic.Recover(True))
    await finish(consumer)
    assert sorted(set(settled(broker, "requeue"))) == ALL_DELIVERED


class SlowWork:
    """Work of so many turns."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, _broker: BrokerChannel) -> bool:
        self.left -= 1
        return self.left == 0


async def test_a_channel_that_fails_behind_long_work_can_be_opened_again(
    client: Client, broker: ObservedBroker
) -> None:
    """Its client is told when the work is done: what answers that, and what follows, is not looked at before."""
    work = SlowWork(20)
    broker.connections[0].channels[0].publish = lambda _requests: work
    broker.hold_calls = asyncio.Event()
    bad_ack = method_bytes(1, Basic.Ack(99))
    await client.send(Queue.Declare(queue="q"), data=publish_bytes(1) + bad_ack)
    client.server.clock = lambda: -work.left * TURN_S
    broker.hold_calls.set()
    told = []
    for _ in range(100):
        await asyncio.sleep(0)
        told += (names := client.names())
        if "Channel.Close" in names:
            assert work.left == 0
            client.shell.data_received(method_bytes(1, Channel.CloseOk()) + method_bytes(1, Channel.Open()))
    assert told == ["Queue.DeclareOk", "Channel.Close", "Channel.OpenOk"]


async def test_nothing_is_confirmed_behind_the_end_of_a_connection(client: Client, broker: ObservedBroker) -> None:
    """Work goes on meanwhile: what a node that pauses finds unroutable may be so by its old metadata only."""
    await client.send(Confirm.Select())
    work = SlowWork(20)
    broker.connections[0].channels[0].publish = lambda _requests: work
    client.server.clock = lambda: -work.left * TURN_S
    client.shell.data_received(publish_bytes(1))
    broker.controls[0].close(320, "the node pauses")
    await turns(5)
    sink = broker.bench.broker.connections[broker.connections[0].number].channels[1]._sink
    sink.confirm([1])
    assert work.left > 0
    await finish(client)
    assert client.names() == ["Connection.Close"]


async def test_nor_if_its_client_is_closing_it_when_the_node_pauses(client: Client, broker: ObservedBroker) -> None:
    await client.send(Confirm.Select())
    work = SlowWork(20)
    broker.connections[0].channels[0].publish = lambda _requests: work
    client.server.clock = lambda: -work.left * TURN_S
    client.shell.data_received(publish_bytes(1) + method_bytes(0, Connection.Close(200, "", 0, 0)))
    await turns(5)
    broker.controls[0].close(320, "the node pauses")
    sink = broker.bench.broker.connections[broker.connections[0].number].channels[1]._sink
    sink.confirm([1])
    assert work.left > 0
    await finish(client)
    assert client.names() == ["Connection.CloseOk"]


class Recorder:
    """Writes down what is requeued, and how."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, list[SeqId], bool]] = []

    def requeue(self, source: DeliverySource, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> None:
        self.pieces.append((source.queue.name, list(seq_ids), more_follow))


def test_every_queue_is_told_that_more_follows_until_it_has_all() -> None:
    table = UnackedTable()
    message: Message = make_message(1)
    a, b = (DeliverySource(QueueName("/", name), 1) for name in "ab")
    table.add(1, a, "t", [Delivery(SeqId(each), message, False) for each in range(1, 401)])
    table.add(401, b, "t", [Delivery(SeqId(each), message, False) for each in range(1, 201)])
    work, broker = SettleWork(Settlement.REQUEUE, table), Recorder()
    steps = 1
    while not work.step(cast(BrokerChannel, broker)):
        steps += 1
    assert steps == -(-600 // SETTLE_LIMIT)
    assert all(more for _, seq_ids, more in broker.pieces if seq_ids)
    assert sorted(broker.pieces[-2:]) == [("a", [], False), ("b", [], False)]
    for name, count in (("a", 400), ("b", 200)):
        returned = [seq_id for queue, seq_ids, _ in broker.pieces if queue == name for seq_id in seq_ids]
        assert sorted(returned) == list(range(1, count + 1))


# --- commits


PUBLISHES = 3 * PUBLISH_LIMIT + 5


async def begin(consumer: Client, broker: ObservedBroker, *, publishes: int = PUBLISHES) -> None:
    """A transaction with many publishes, in which everything is acked."""
    await consumer.send(Tx.Select())
    data = b"".join([publish_bytes(1, routing_key="out", payload=b"%d" % each) for each in range(publishes)])
    await consumer.send(data=data + ALL)
    await finish(consumer)
    assert broker.calls == []
    consumer.transport.written.clear()


COMMIT = method_bytes(1, Tx.Commit())


def published(broker: ObservedBroker) -> list[int]:
    return [int(request.message.body) for requests in calls(broker, "publish") for request in requests]


async def test_a_large_commit_is_worked_off_in_steps_and_answered_at_the_end(
    consumer: Client, broker: ObservedBroker
) -> None:
    await begin(consumer, broker)
    consumer.shell.data_received(COMMIT + publish_bytes(1, payload=b"-1") + COMMIT)
    commits = 0
    for _ in range(4 + STEPS):
        commits += consumer.names().count("Tx.CommitOk")
        if len(published(broker)) < PUBLISHES:
            assert settled(broker, "ack") == [], "publishes come first"
        assert commits == 0 or len(settled(broker, "ack")) == DELIVERED
        await asyncio.sleep(0)
    await finish(consumer)
    assert published(broker) == [*range(PUBLISHES), -1]
    assert max(map(len, calls(broker, "publish"))) <= PUBLISH_LIMIT
    assert sorted(settled(broker, "ack")) == ALL_DELIVERED
    assert commits + consumer.names().count("Tx.CommitOk") == 2


async def test_a_large_commit_behind_other_long_work_is_not_answered_when_that_is_done(
    client: Client, broker: ObservedBroker
) -> None:
    """All of it waited behind one call, so the commit is known before the first publish turns out to be long."""
    channel = broker.connections[0].channels[0]
    publish, channel.publish = channel.publish, lambda _requests: works.pop() or publish(_requests)
    works: list[SlowWork | None] = [None] * PUBLISHES + [SlowWork(2)]
    broker.hold_calls = asyncio.Event()
    transaction = method_bytes(1, Tx.Select()) + publish_bytes(1) * PUBLISHES + COMMIT
    await client.send(Queue.Declare(queue="q"), data=publish_bytes(1) + transaction)
    client.server.clock = lambda: len(broker.calls) * TURN_S
    broker.hold_calls.set()
    told: list[str] = []
    while "Tx.CommitOk" not in told:
        await asyncio.sleep(0)
        told += client.names()
    assert len([request for requests in calls(broker, "publish") for request in requests]) == PUBLISHES
    assert told == ["Queue.DeclareOk", "Tx.SelectOk", "Tx.CommitOk"]


@pytest.mark.parametrize(
    ("how", "after"),
    few_fast(
        (
            (how, after)
            for how in ("lost", "connection closed", "channel closed", "protocol error")
            for after in range(1, 9)
        ),
        7,
    ),
)
async def test_a_commit_that_was_begun_is_carried_out_whatever_becomes_of_its_client(
    how: str, after: int, consumer: Client, broker: ObservedBroker
) -> None:
    await begin(consumer, broker)
    consumer.shell.data_received(COMMIT)
    await turns(after)
    if how == "lost":
        consumer.transport.close()
    elif how == "connection closed":
        consumer.shell.data_received(method_bytes(0, Connection.Close(200, "", 0, 0)))
    elif how == "channel closed":
        consumer.shell.data_received(method_bytes(1, Channel.Close(200, "", 0, 0)))
    else:
        consumer.shell.data_received(publish_bytes(77))
    await finish(consumer)
    assert published(broker) == list(range(PUBLISHES))
    assert sorted(settled(broker, "ack")) == ALL_DELIVERED
    ends = [name for name, _ in broker.calls]
    assert ends.index("close") > max(at for at, name in enumerate(ends) if name == "ack")
    if how != "channel closed":
        assert broker.connections[0].is_closed
    answers = {"lost": "", "connection closed": "Connection.CloseOk", "channel closed": "Channel.CloseOk"}
    if answer := answers.get(how, "Connection.Close"):
        assert answer in consumer.names()


async def test_a_commit_is_not_answered_behind_the_end_of_a_connection(
    consumer: Client, broker: ObservedBroker
) -> None:
    await begin(consumer, broker)
    consumer.shell.data_received(COMMIT)
    await turns(2)
    broker.controls[0].close(320, "the node pauses")
    await finish(consumer)
    assert published(broker) == list(range(PUBLISHES))
    assert consumer.names() == ["Connection.Close"]


async def test_a_commit_whose_exchange_is_gone_fails_before_anything_of_it_happens(
    consumer: Client, broker: ObservedBroker
) -> None:
    await broker.admin.exchange("going", "fanout")
    await begin(consumer, broker)
    await consumer.send(data=publish_bytes(1, exchange="going"))
    assert consumer.names() == []
    await broker.admin.definitions.delete_exchange("going", if_unused=False)
    assert await consumer.send(Tx.Commit()) == ["Channel.Close"]
    assert [name for name, _ in broker.calls] == ["close"]


async def test_a_small_commit_whose_exchange_is_gone_settles_nothing_either(
    client: Client, broker: ObservedBroker
) -> None:
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q"), data=publish_bytes(1))
    await broker.admin.exchange("going", "fanout")
    await client.send(Tx.Select(), Basic.Ack(1), data=publish_bytes(1) + publish_bytes(1, exchange="going"))
    await broker.admin.definitions.delete_exchange("going", if_unused=False)
    client.transport.written.clear()
    broker.calls.clear()
    assert await client.send(Tx.Commit()) == ["Channel.Close"]
    assert [name for name, _ in broker.calls] == ["close"]


async def test_a_publish_to_a_missing_exchange_fails_when_it_is_made(client: Client, broker: ObservedBroker) -> None:
    await client.send(Tx.Select())
    assert await client.send(data=publish_bytes(1, exchange="missing")) == ["Channel.Close"]
    assert calls(broker, "publish") == []


async def test_a_rollback_of_thousands_gives_their_tags_back(consumer: Client, broker: ObservedBroker) -> None:
    await begin(consumer, broker)
    assert await consumer.send(Tx.Rollback()) == ["Tx.RollbackOk"]
    consumer.shell.data_received(ALL + COMMIT)
    await finish(consumer)
    assert published(broker) == []
    assert sorted(settled(broker, "ack")) == ALL_DELIVERED


async def test_a_rollback_puts_back_once_what_was_acked_and_rejected_by_turns(
    consumer: Client, broker: ObservedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags are sorted each time: put back one by one, some thousands would keep the loop for seconds."""
    sizes: list[int] = []
    put_back = UnackedTable.put_back

    def note(table: UnackedTable, other: UnackedTable) -> None:
        sizes.append(len(other))
        put_back(table, other)

    monkeypatch.setattr(UnackedTable, "put_back", note)
    by_turns = b"".join([method_bytes(1, (Basic.Ack, Basic.Reject)[tag % 2](tag)) for tag in range(60, 0, -1)])
    await consumer.send(Tx.Select(), data=by_turns)
    await finish(consumer)
    assert await consumer.send(Tx.Rollback()) == ["Tx.RollbackOk"]
    assert sizes == [60]
    consumer.shell.data_received(ALL + COMMIT)
    await finish(consumer)
    assert sorted(settled(broker, "ack")) == ALL_DELIVERED
