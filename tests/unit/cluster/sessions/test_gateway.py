"""The gateway's own part: futures and timers. What is asked and answered is in `test_entry_calls.py`."""

from __future__ import annotations

import asyncio

import pytest

from cluster.sessions import calls, gateway
from node.errors import ChannelError
from node.queues.backing_queue import NO_LIMIT_BYTES, Delivery
from node.queues.events import ConsumerSpec
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, SessionNetwork, consume, message, record


@pytest.fixture
async def network() -> SessionNetwork:
    network = SessionNetwork("n1", "n2")
    network["n2"].master(SteeredQueue())
    network.current = record("n2", 1)
    return network


@pytest.mark.parametrize("is_master_silent", [True, False])
async def test_a_caller_is_refused_when_its_time_is_up(
    network: SessionNetwork, is_master_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_node = network["n1"].gateway
    if is_master_silent:
        entry_node.publish(entry_node.open_channel(RecordingSink()), QUEUE, [message(1)], [0])
        await network.pump()
    else:
        network.lose("n2")
    monkeypatch.setattr(calls, "OPERATION_TIMEOUT_S", 0.0)
    text = "did not answer in time" if is_master_silent else "home node 'n2' of durable queue 'q' in vhost '/' is inacc"
    with pytest.raises(ChannelError, match=text):
        await entry_node.purge(QUEUE)
    channel = entry_node.open_channel(RecordingSink())
    with pytest.raises(ChannelError, match=text):
        await entry_node.consume(channel, QUEUE, ConsumerSpec("tag", False, False))
    await network.pump()  # the answers find nobody


async def test_a_consumer_whose_time_is_up_is_refused(network: SessionNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_node = network["n1"].gateway
    channel = entry_node.open_channel(RecordingSink())
    network.lose("n2")
    monkeypatch.setattr(calls, "OPERATION_TIMEOUT_S", 0.0)
    with pytest.raises(ChannelError, match="home node 'n2' of durable queue 'q' in vhost '/' is inaccessible"):
        await entry_node.consume(channel, QUEUE, ConsumerSpec("tag", False, False))
    entry_node.check_invariants()


async def test_a_caller_that_is_cancelled_leaves_nothing_waiting(network: SessionNetwork) -> None:
    """Neither its call nor early deliveries: what comes for a consumer unknown to the channel goes to the channel."""
    entry_node, sink = network["n1"].gateway, RecordingSink()
    channel = entry_node.open_channel(sink)
    starting = asyncio.ensure_future(entry_node.consume(channel, QUEUE, ConsumerSpec("tag", False, False)))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await network.pump()
    process = network["n2"].queue
    assert process is not None
    assert process.consumer_count == 0

    asking = asyncio.ensure_future(entry_node.consume(channel, QUEUE, ConsumerSpec("tag", False, False)))
    await asyncio.sleep(0)
    network.hand_over("n1", "n2")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    entry_node.publish(channel, QUEUE, [message(1, b"a")], [1])
    await network.pump()
    assert sink.delivered == [("tag", b"a", False)]


class HesitantQueue(SteeredQueue):
    """Its messages are ready, and not to be delivered before the mirrors know: that is at the third try."""

    tries = 0

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        self.tries += 1
        return super().fetch(count_max, ack_required, bytes_max) if self.tries >= 3 else []


async def test_get_tries_again_while_messages_are_ready_and_not_deliverable(
    network: SessionNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "GET_RETRY_S", 0.0)
    network["n2"].master(HesitantQueue())
    here = network["n2"].gateway
    channel = here.open_channel(RecordingSink())
    here.publish(channel, QUEUE, [message(1, b"a")], [0])
    got = await here.get(channel, QUEUE, no_ack=True)
    assert got is not None
    assert got[1].message.body == b"a"
    assert await here.get(channel, QUEUE, no_ack=True) is None


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_cancel_is_answered_though_the_queue_goes_away_meanwhile(
    network: SessionNetwork, is_deleted: bool
) -> None:
    """Another client deletes it, or its only node dies: the consumer is gone, and that is all its client wants."""
    _, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=False, exclusive=False))
    cancelling = asyncio.ensure_future(network["n1"].gateway.cancel(channel, QUEUE, "tag"))
    await asyncio.sleep(0)  # the master has been asked
    if is_deleted:
        network.current = None
        network["n2"].out_of_service(QUEUE, AssertionError())
        network["n1"].gateway.queue_deleted(QUEUE)
    else:
        network.lose("n2")
        network.move(record("n2", 1, is_down=True))
    await network.pump()
    await cancelling


async def test_a_cancel_that_the_master_does_not_answer_is_refused(
    network: SessionNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer is there still: with its channel it ends."""
    _, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack=False, exclusive=False))
    monkeypatch.setattr(calls, "OPERATION_TIMEOUT_S", 0.0)
    with pytest.raises(ChannelError, match="did not answer in time"):
        await network["n1"].gateway.cancel(channel, QUEUE, "tag")
