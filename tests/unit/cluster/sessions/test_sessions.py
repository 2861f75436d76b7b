"""Sessions: a channel on n1 or n2 uses a queue whose master is on n2, then n3, over a network that loses suffixes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cluster.sessions import entry as entry_module
from node.errors import ChannelError, StorageError
from node.flow.credit import Credit
from node.ids import NodeName
from node.message import Message
from node.queues.backing_queue import NO_LIMIT_BYTES, Delivery, Publication
from node.queues.events import ConsumerSpec
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, SessionNetwork, consume, message, record, stored


@pytest.fixture
async def network() -> SessionNetwork:
    network = SessionNetwork("n1", "n2", "n3")
    network["n2"].master(SteeredQueue())
    network.current = record("n2", 1)
    return network


@pytest.mark.parametrize("entry", ["n1", "n2"])
async def test_publish_is_confirmed_and_delivered_wherever_the_master_is(network: SessionNetwork, entry: str) -> None:
    sink, _ = await consume(network, entry, ConsumerSpec("tag", no_ack=True, exclusive=False))
    gateway = network[entry].gateway
    publisher = RecordingSink()
    channel = gateway.open_channel(publisher)

    gateway.publish(channel, QUEUE, [message(1, b"a"), message(2, b"b")], [1, 2])
    await network.pump()

    assert publisher.confirmed == [1, 2]
    assert sink.delivered == [("tag", b"a", False), ("tag", b"b", False)]


async def test_unconfirmed_publishes_are_sent_again_to_the_next_master(network: SessionNetwork) -> None:
    gateway = network["n1"].gateway
    sink = RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, [message(1, b"a"), message(2, b"b")], [1, 2])
    network.lose("n2")  # with the publishes on the wire
    gateway.publish(channel, QUEUE, [message(3, b"c")], [3])
    await network.pump()
    assert sink.confirmed == []

    network["n3"].master(stored(message(1, b"a")))  # the mirror had got the first of them
    network.move(record("n3", 2))
    await network.pump()

    assert sorted(sink.confirmed) == [1, 2, 3]
    process = network["n3"].queue
    assert process is not None
    bodies = [each.message.body for each in process.backing_queue.fetch(10, ack_required=False)]
    assert bodies == [b"a", b"b", b"c"]


async def test_consumers_go_on_at_the_next_master_and_old_deliveries_cannot_be_settled(network: SessionNetwork) -> None:
    sink, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=False, exclusive=False))
    network["n1"].gateway.publish(channel, QUEUE, [message(1, b"a")], [1])
    await network.pump()
    old_session, delivery = sink.sources[0]
    network.lose("n2")

    promoted = stored(message(1, b"a"))
    network["n3"].master(promoted)
    network.move(record("n3", 2))
    await network.pump()
    network["n1"].gateway.settle_ack(channel, QUEUE, old_session, [delivery.seq_id])
    await network.pump()

    assert [body for _, body, _ in sink.delivered] == [b"a", b"a"]
    assert promoted.unacked == 1, "the ack named a delivery of the old session"
    new_session, delivery = sink.sources[1]
    network["n1"].gateway.settle_ack(channel, QUEUE, new_session, [delivery.seq_id])
    await network.pump()
    assert promoted.unacked == 0


async def test_a_consumer_that_asked_for_it_is_cancelled_on_failover(network: SessionNetwork) -> None:
    asks, _ = await consume(network, "n1", ConsumerSpec("asks", False, False, cancel_on_failover=True))
    continues, _ = await consume(network, "n1", ConsumerSpec("continues", False, False))
    network.lose("n2")

    network["n3"].master(stored(message(1)))
    network.move(record("n3", 2))
    await network.pump()

    assert asks.cancelled == ["asks"]
    assert asks.delivered == []
    assert continues.cancelled == []
    assert len(continues.delivered) == 1


async def test_a_lost_entry_node_gives_back_what_it_held(network: SessionNetwork) -> None:
    _, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=False, exclusive=False))
    network["n1"].gateway.publish(channel, QUEUE, [message(1), message(2)], [0, 0])
    await network.pump()
    process = network["n2"].queue
    assert process is not None
    assert (process.unacked, process.ready) == (2, 0)

    network.lose("n1")

    assert (process.unacked, process.ready) == (0, 2)
    assert process.consumer_count == 0


async def test_closing_a_channel_releases_only_that_channel(network: SessionNetwork) -> None:
    first, first_channel = await consume(network, "n1", ConsumerSpec("one", False, False, prefetch_count=1))
    second, _ = await consume(network, "n1", ConsumerSpec("two", False, False, prefetch_count=1))
    network["n1"].gateway.publish(first_channel, QUEUE, [message(1, b"a"), message(2, b"b")], [0, 0])
    await network.pump()
    assert len(first.delivered) == len(second.delivered) == 1

    network["n1"].gateway.close_channel(first_channel)
    await network.pump()

    process = network["n2"].queue
    assert process is not None
    assert (process.unacked, process.ready, process.consumer_count) == (1, 1, 1)


async def test_an_answer_of_the_master_reaches_the_caller(network: SessionNetwork) -> None:
    gateway = network["n1"].gateway
    channel = gateway.open_channel(RecordingSink())
    gateway.publish(channel, QUEUE, [message(1, b"a"), message(2, b"b")], [0, 0])

    async def ask() -> tuple[object, ...]:
        counts = await gateway.counts(QUEUE)
        got = await gateway.get(channel, QUEUE, no_ack=True)
        purged = await gateway.purge(QUEUE)
        empty = await gateway.get(channel, QUEUE, no_ack=True)
        return counts, got and (got[1].message.body, got[2]), purged, empty

    task = asyncio.ensure_future(ask())
    while not task.done():
        await network.pump()
    assert task.result() == ((2, 0), (b"a", 1), 1, None)


async def test_a_refusal_of_the_master_is_a_channel_error(network: SessionNetwork) -> None:
    await consume(network, "n1", ConsumerSpec("only", no_ack=False, exclusive=True))
    gateway = network["n3"].gateway
    channel = gateway.open_channel(RecordingSink())

    task = asyncio.ensure_future(gateway.consume(channel, QUEUE, ConsumerSpec("late", False, False)))
    await network.pump()

    with pytest.raises(ChannelError, match="exclusive use") as refused:
        await task
    assert refused.value.reply_code == 403
    assert refused.value.reply_text.count("ACCESS_REFUSED") == 1


async def test_a_queue_that_is_down_is_refused_at_once(network: SessionNetwork) -> None:
    network.current = record("n2", 1, is_down=True)
    gateway = network["n1"].gateway
    channel = gateway.open_channel(RecordingSink())
    with pytest.raises(ChannelError, match="home node 'n2' of durable queue 'q' in vhost '/' is down"):
        await gateway.get(channel, QUEUE, no_ack=True)


async def test_a_call_under_way_is_asked_again_at_the_next_master(network: SessionNetwork) -> None:
    gateway = network["n1"].gateway
    channel = gateway.open_channel(RecordingSink())
    await network.pump()
    task = asyncio.ensure_future(gateway.get(channel, QUEUE, no_ack=True))
    await asyncio.sleep(0)
    network.lose("n2")

    network["n3"].master(stored(message(1, b"kept")))
    network.move(record("n3", 2))
    await network.pump()

    got = await task
    assert got is not None
    assert got[1].message.body == b"kept"


async def test_deletion_confirms_what_is_under_way_and_cancels_consumers(network: SessionNetwork) -> None:
    sink, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=False, exclusive=False))
    network.lose("n2")
    network["n1"].gateway.publish(channel, QUEUE, [message(1)], [1])

    network.current = None
    network["n1"].gateway.queue_deleted(QUEUE)

    assert sink.confirmed == [1]
    assert sink.cancelled == ["tag"]


async def test_publishes_without_confirms_survive_a_move_too(network: SessionNetwork) -> None:
    gateway = network["n1"].gateway
    channel = gateway.open_channel(RecordingSink())
    network.lose("n2")
    gateway.publish(channel, QUEUE, [message(1, b"a"), message(2, b"b")], [0, 0])

    network["n3"].master(SteeredQueue())
    network.move(record("n3", 2))
    await network.pump()

    process = network["n3"].queue
    assert process is not None
    assert process.ready == 2


async def test_deliveries_in_one_frame_with_the_answer_wait_for_the_caller(network: SessionNetwork) -> None:
    """`consume` must have returned (consume-ok is sent then) before the channel sees the first delivery."""
    process = network["n2"].queue
    assert process is not None
    producer = network["n2"].gateway.open_channel(RecordingSink())
    network["n2"].gateway.publish(producer, QUEUE, [message(1, b"a")], [0])
    sink = RecordingSink()
    gateway = network["n1"].gateway
    channel = gateway.open_channel(sink)
    delivered_before_the_answer: list[bool] = []

    async def start() -> None:
        await gateway.consume(channel, QUEUE, ConsumerSpec("tag", False, False))
        delivered_before_the_answer.append(bool(sink.delivered))

    task = asyncio.ensure_future(start())
    await network.pump(batched=True)
    await task
    await network.pump()

    assert delivered_before_the_answer == [False]
    assert sink.delivered == [("tag", b"a", False)]


async def test_only_what_an_earlier_master_may_have_delivered_comes_flagged(network: SessionNetwork) -> None:
    sink, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=True, exclusive=False))
    gateway = network["n1"].gateway
    gateway.publish(channel, QUEUE, [message(1, b"was on its way")], [1])
    network.lose("n2")
    gateway.publish(channel, QUEUE, [message(2, b"no master yet")], [2])

    network["n3"].master(SteeredQueue())
    network.move(record("n3", 2))
    await network.pump()
    assert sink.delivered == [("tag", b"was on its way", True), ("tag", b"no master yet", False)]


# --- ends that no broken link tells of ---


async def test_a_node_declared_down_while_its_link_lives_opens_new_sessions(
    network: SessionNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its publishes would go to a session that nobody has, and its consumers would wait for ever."""
    monkeypatch.setattr(entry_module, "REOPEN_DELAY_S", 0.0)
    sink, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=False, exclusive=False))

    network["n2"].host.node_lost(network["n1"].name, is_linked=False)
    await network.pump()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    network["n1"].gateway.publish(channel, QUEUE, [message(1, b"a")], [1])
    await network.pump()

    assert sink.confirmed == [1]
    assert sink.delivered == [("tag", b"a", False)]


async def test_a_master_that_goes_down_here_closes_the_local_route(network: SessionNetwork) -> None:
    gateway = network["n2"].gateway
    sink = RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, [message(1)], [1])
    await network.pump()

    network["n2"].queue = None  # as the role that the record takes away
    network.move(record("n2", 1, is_down=True))
    gateway.publish(channel, QUEUE, [message(2)], [2])
    await network.pump()
    assert sink.confirmed == [1]

    network["n2"].master(stored(message(1)))
    network.move(record("n2", 2))
    await network.pump()
    assert sink.confirmed == [1, 2]


async def test_a_consumer_whose_answer_comes_with_the_move_of_the_queue_is_attached_at_the_new_master(
    network: SessionNetwork,
) -> None:
    gateway = network["n1"].gateway
    sink = RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, [message(1, b"a")], [0])
    await network.pump()
    task = asyncio.ensure_future(gateway.consume(channel, QUEUE, ConsumerSpec("tag", False, False)))
    await asyncio.sleep(0)
    network.hand_over("n1", "n2")
    network.hand_over("n2", "n1")  # the answer is here, the coroutine has not run
    network["n1"].master(stored(message(1, b"a")))
    network.move(record("n1", 2))
    await network.pump()
    await task
    await network.pump()

    process = network["n1"].queue
    assert process is not None
    assert process.consumer_count == 1
    assert [body for _, body, _ in sink.delivered] == [b"a"]


async def test_a_consumer_of_a_channel_that_closed_while_the_queue_had_no_master_is_never_attached(
    network: SessionNetwork,
) -> None:
    network.lose("n2")
    gateway = network["n1"].gateway
    channel = gateway.open_channel(RecordingSink())
    task = asyncio.ensure_future(gateway.consume(channel, QUEUE, ConsumerSpec("tag", False, False)))
    await asyncio.sleep(0)
    gateway.close_channel(channel)
    network["n1"].master(stored(message(1)))
    network.move(record("n1", 2))
    await network.pump()

    with pytest.raises(ChannelError, match="closed"):
        await task
    process = network["n1"].queue
    assert process is not None
    assert (process.consumer_count, process.unacked) == (0, 0)


# --- failing storage, and mistakes of ours ---

FAILURES = [StorageError, TypeError]


class FailingBackingQueue(SteeredQueue):
    """Fails at publishes, fetches and requeues once told how."""

    failure: type[Exception] | None = None

    def publish(self, publications: Sequence[Publication]) -> None:
        if self.failure is not None:
            raise self.failure("no space left on device, or a mistake of ours")
        super().publish(publications)

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        if self.failure is not None:
            raise self.failure("no space left on device, or a mistake of ours")
        return super().fetch(count_max, ack_required, bytes_max)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("entry", ["n1", "n2"])
async def test_a_get_that_failed_is_answered_by_the_next_master(
    network: SessionNetwork, entry: str, failure: type[Exception]
) -> None:
    backing_queue = FailingBackingQueue()
    network["n2"].master(backing_queue)
    gateway = network[entry].gateway
    channel = gateway.open_channel(RecordingSink())
    gateway.publish(channel, QUEUE, [message(1, b"a")], [1])
    await network.pump()
    backing_queue.failure = failure
    getting = asyncio.create_task(gateway.get(channel, QUEUE, no_ack=True))
    await network.pump()
    assert network["n2"].queue is None
    network["n3"].master(stored(message(1, b"a")))
    network.move(record("n3", 2))
    await network.pump()
    got = await getting
    assert got is not None
    assert got[1].message.body == b"a"


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("entry", ["n1", "n2"])
async def test_publishes_that_a_failing_queue_refused_go_to_the_next_master(
    network: SessionNetwork, entry: str, failure: type[Exception]
) -> None:
    backing_queue = FailingBackingQueue()
    network["n2"].master(backing_queue)
    gateway = network[entry].gateway
    sink = RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, [message(1, b"a")], [1])
    await network.pump()
    backing_queue.failure = failure
    gateway.publish(channel, QUEUE, [message(2, b"b")], [2])
    gateway.publish(channel, QUEUE, [message(3, b"c")], [3])
    await network.pump()
    assert network["n2"].queue is None
    assert sink.confirmed == [1]

    network["n3"].master(stored(message(1, b"a")))
    network.move(record("n3", 2))
    await network.pump()
    assert sink.confirmed == [1, 2, 3]


# --- credit flow ---


def batch(first: int, count: int) -> tuple[list[Message], list[int]]:
    counters = list(range(first, first + count))
    return [message(counter) for counter in counters], counters


@pytest.fixture
def slow(network: SessionNetwork) -> SteeredQueue:
    """The queue on n2, with a disk that waits to be told. Credit: {20, 5} on a node, {40, 8} to a store and a node."""
    network.flow.in_process = Credit(20, 5)
    network.flow.store = network.flow.between_nodes = Credit(40, 8)
    slow = SteeredQueue(durable=True)
    network["n2"].master(slow)
    return slow


@pytest.mark.parametrize(("entry", "credit"), [("n1", 40), ("n2", 20)])
async def test_credit_is_used_up_by_a_slow_master_and_given_back(
    network: SessionNetwork, slow: SteeredQueue, entry: str, credit: int
) -> None:
    gateway, sink = network[entry].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, *batch(1, 39))
    await network.pump()
    assert not sink.waits(), "the store has room"
    gateway.publish(channel, QUEUE, *batch(40, 1))
    await network.pump()
    gateway.publish(channel, QUEUE, *batch(41, credit))
    await network.pump()
    assert sink.waits()
    assert gateway.busiest_queue(channel) == QUEUE
    network["n2"].sync()
    await network.pump()
    assert not sink.waits()
    assert len(sink.confirmed) == 40 + credit
    assert gateway.busiest_queue(channel) is None


async def test_a_batch_beyond_the_credit_of_a_local_queue_is_not_noticed(
    network: SessionNetwork, slow: SteeredQueue
) -> None:
    network["n2"].master(SteeredQueue())
    gateway, sink = network["n2"].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, *batch(1, 500))
    assert sink.hop is None
    await network.pump()
    assert sink.hop is None


async def test_credit_towards_a_queue_without_master_is_used_up_and_begins_anew_with_the_next(
    network: SessionNetwork, slow: SteeredQueue
) -> None:
    gateway, sink = network["n1"].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, *batch(1, 35))
    await network.pump()
    network.lose("n2")
    assert not sink.waits()
    gateway.publish(channel, QUEUE, *batch(36, 5))
    gateway.publish(channel, QUEUE, *batch(41, 35))
    assert sink.waits(), "nobody grants anything"
    network["n3"].master(SteeredQueue())
    network.move(record("n3", 2))
    await network.pump()
    assert not sink.waits()
    assert sorted(sink.confirmed) == list(range(1, 76))
    assert sink.hop is not None
    assert sink.hop.balance >= 40 - 8 + 1, "all of it was paid for once and granted once"


async def test_credit_changes_with_a_queue_that_moves_to_this_node(network: SessionNetwork, slow: SteeredQueue) -> None:
    gateway, sink = network["n1"].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, *batch(1, 80))
    await network.pump()
    assert sink.waits()
    network.lose("n2")
    network["n1"].master(SteeredQueue())
    network.move(record("n1", 2))
    await network.pump()
    assert not sink.waits()
    assert sink.hop is not None
    assert sink.hop.credit == (20, 5)


async def test_a_channel_that_closes_leaves_no_credit_behind(network: SessionNetwork, slow: SteeredQueue) -> None:
    gateway, sink = network["n1"].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, *batch(1, 80))
    await network.pump()
    gateway.close_channel(channel)
    network["n2"].sync()
    await network.pump()
    assert sink.waits(), "nobody is told any more"
    process = network["n2"].queue
    assert process is not None
    assert process.flow.take_all() == []


async def test_what_a_queue_takes_later_of_a_session_that_is_over_is_not_granted_to_the_next(
    network: SessionNetwork, slow: SteeredQueue
) -> None:
    """It is paid for again where it is sent again. The queue is sealed while the link breaks."""
    network["n2"].master(SteeredQueue())
    process = network["n2"].queue
    assert process is not None
    process.seal_for_delete(if_unused=False, if_empty=False)
    gateway, sink = network["n1"].gateway, RecordingSink()
    gateway.publish(gateway.open_channel(sink), QUEUE, *batch(1, 40))
    await network.pump()
    network.lose("n2")
    network.cut.clear()
    gateway.link_up(NodeName("n2"))
    await network.pump()
    network["n2"].unseal()
    await network.pump()
    assert sink.hop is not None
    assert sink.hop.balance == 40, "nothing is in flight"


async def test_a_deleted_queue_frees_who_waited_for_it(network: SessionNetwork, slow: SteeredQueue) -> None:
    gateway, sink = network["n1"].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    gateway.publish(channel, QUEUE, *batch(1, 40))
    assert sink.waits()
    gateway.queue_deleted(QUEUE)
    assert not sink.waits()


async def test_who_publishes_over_a_congested_link_waits_for_it(network: SessionNetwork) -> None:
    gateway, sink, other = network["n1"].gateway, RecordingSink(), RecordingSink()
    channel, reader = gateway.open_channel(sink), gateway.open_channel(other)
    gateway.publish(channel, QUEUE, *batch(1, 1))
    await network.pump()
    assert not sink.waits()
    network.congested.add(("n1", "n2"))
    gateway.publish(channel, QUEUE, *batch(2, 1))
    gateway.publish(channel, QUEUE, *batch(3, 1))
    assert sink.hop is not None
    assert (sink.waits(), sink.hop.receiver, other.waits()) == (True, "link to n2", False)
    gateway.close_channel(reader)
    network.congested.clear()
    gateway.link_free(NodeName("n2"))
    assert not sink.waits()
    await network.pump()
    assert sink.confirmed == [1, 2, 3]


@pytest.mark.parametrize("ending", ["broken", "closed"])
async def test_a_link_that_breaks_or_a_channel_that_closes_ends_the_wait(network: SessionNetwork, ending: str) -> None:
    gateway, sink = network["n1"].gateway, RecordingSink()
    channel = gateway.open_channel(sink)
    network.congested.add(("n1", "n2"))
    gateway.publish(channel, QUEUE, *batch(1, 1))
    assert sink.waits()
    if ending == "broken":
        network.lose("n2")
        assert not sink.waits()
    else:
        gateway.close_channel(channel)
        gateway.link_free(NodeName("n2"))
        assert sink.waits(), "nobody is told any more"
    gateway.check_invariants()


async def test_a_confirm_that_is_owed_to_an_earlier_life_of_a_node_is_none_for_its_channels(
    network: SessionNetwork,
) -> None:
    """The channels of both lives are the first there, and both publishes the first on them."""
    network["n2"].master(SteeredQueue(durable=True))
    gateway = network["n1"].gateway
    gateway.publish(gateway.open_channel(RecordingSink()), QUEUE, [message(1, b"a")], [1])
    await network.pump()
    network.lose("n1")
    await network.pump()
    network.restart("n1")
    sink, gateway = RecordingSink(), network["n1"].gateway
    gateway.publish(gateway.open_channel(sink), QUEUE, [message(2, b"b")], [1])
    network.hand_over("n1", "n2")
    network.hand_over("n2", "n1")
    network["n2"].sync()
    network["n2"].end_turn()
    network.hand_over("n2", "n1")
    assert sink.confirmed == [], "it is on its way to the master"
    await network.pump()
    network["n2"].sync()
    await network.pump()
    assert sink.confirmed == [1]
