"""A queue that is about to be deleted, as the nodes meet it that do not master it."""

from __future__ import annotations

import asyncio

import pytest

from cluster.sessions import gateway
from node.errors import ChannelError
from node.queues import queue_process
from node.queues.events import ConsumerSpec
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, SessionNetwork, consume, message, record


@pytest.fixture
async def network() -> SessionNetwork:
    network = SessionNetwork("n1", "n2", "n3")
    network["n2"].master(SteeredQueue())
    network.current = record("n2", 1)
    return network


async def test_a_queue_sealed_by_a_node_that_dies_goes_on_when_its_fate_is_known(network: SessionNetwork) -> None:
    await consume(network, "n1", ConsumerSpec("first", True, False))
    task = asyncio.ensure_future(network["n1"].gateway.delete_if(QUEUE, if_unused=False, if_empty=False))
    await network.pump()
    await task
    sink = RecordingSink()
    entry = network["n3"].gateway
    channel = entry.open_channel(sink)
    entry.publish(channel, QUEUE, [message(1)], [1])
    await network.pump()
    assert sink.confirmed == []

    network.lose("n1")
    await network.pump()
    assert sink.confirmed == [], "its command may be carried out yet"
    assert network["n2"].settled == [QUEUE]
    network["n2"].unseal()
    await network.pump()
    assert sink.confirmed == [1]


async def test_a_channel_gets_what_it_has_published_before_though_some_of_it_is_still_held_back(
    network: SessionNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_process, "LET_IN_MAX", 1)
    monkeypatch.setattr(gateway, "GET_RETRY_S", 0.0)
    process = network["n2"].queue
    assert process is not None
    process.seal_for_delete(if_unused=False, if_empty=False)
    entry = network["n3"].gateway
    channel = entry.open_channel(RecordingSink())
    entry.publish(channel, QUEUE, [message(1), message(2)], [1, 2])
    getting = [asyncio.ensure_future(entry.get(channel, QUEUE, no_ack=True)) for _ in range(2)]
    await network.pump()
    network["n2"].unseal()
    while not all(task.done() for task in getting):
        await network.pump()
    got = [task.result() for task in getting]
    assert [each and each[1].message.msg_id for each in got] == [message(1).msg_id, message(2).msg_id]


async def test_a_question_of_no_channel_waits_on_whatever_channel_closes(network: SessionNetwork) -> None:
    deleting = asyncio.ensure_future(network["n1"].gateway.delete_if(QUEUE, if_unused=False, if_empty=False))
    await network.pump()
    await deleting
    entry = network["n3"].gateway
    channel = entry.open_channel(RecordingSink())
    entry.publish(channel, QUEUE, [message(1)], [0])
    counting = asyncio.ensure_future(entry.counts(QUEUE))
    await network.pump()
    entry.close_channel(channel)
    await network.pump()
    assert not counting.done()
    network["n2"].unseal()
    await network.pump()
    assert await counting == (1, 0)


async def test_a_consumer_at_a_sealed_queue_elsewhere_waits_for_its_fate(network: SessionNetwork) -> None:
    deleting = asyncio.ensure_future(network["n1"].gateway.delete_if(QUEUE, if_unused=True, if_empty=False))
    await network.pump()
    assert await deleting == (0, network.current.epoch if network.current is not None else None)
    entry = network["n3"].gateway
    stays, goes = entry.open_channel(RecordingSink()), entry.open_channel(RecordingSink())
    consuming = [
        asyncio.ensure_future(entry.consume(channel, QUEUE, ConsumerSpec("tag", True, False)))
        for channel in (stays, goes)
    ]
    await network.pump()
    assert not any(task.done() for task in consuming)
    consuming[1].cancel()
    entry.close_channel(goes)
    await network.pump()
    network["n2"].unseal()
    await network.pump()
    await consuming[0]
    process = network["n2"].queue
    assert process is not None
    assert [channel for channel, _, _ in process.consumers()] == [stays], "a channel that closed has no consumer"


async def test_consumers_of_a_session_that_begins_while_the_queue_here_is_sealed_wait_for_its_fate(
    network: SessionNetwork,
) -> None:
    """As those of other nodes do: a new master takes up the seal of the one before."""
    master = network["n2"]
    sinks = {tag: RecordingSink() for tag in ("stays", "goes")}
    channels = {tag: master.gateway.open_channel(sink) for tag, sink in sinks.items()}
    for tag, channel in channels.items():
        consuming = asyncio.ensure_future(master.gateway.consume(channel, QUEUE, ConsumerSpec(tag, True, False)))
        await network.pump()
        await consuming
    master.gateway.queue_stopped(QUEUE)
    master.master(SteeredQueue())
    process = master.queue
    assert process is not None
    process.seal_for_delete(if_unused=False, if_empty=False)
    master.gateway.mastership_changed(record("n2", 1))
    await network.pump()
    assert sinks["stays"].cancelled == sinks["goes"].cancelled == []
    master.gateway.close_channel(channels["goes"])
    master.unseal()
    await network.pump()
    assert [spec.consumer_tag for _, spec, _ in process.consumers()] == ["stays"]


async def test_what_an_earlier_life_of_a_node_has_asked_is_not_answered_to_its_next_life(
    network: SessionNetwork,
) -> None:
    """Both lives begin with a purge, and ask about the queue then."""
    await consume(network, "n3", ConsumerSpec("alone", True, exclusive=True))
    process = network["n2"].queue
    assert process is not None
    purging = asyncio.ensure_future(network["n1"].gateway.purge(QUEUE))
    await network.pump()
    await purging
    process.seal_for_delete(if_unused=False, if_empty=False)
    counting = asyncio.ensure_future(network["n1"].gateway.counts(QUEUE))
    await network.pump()
    network.lose("n1")
    counting.cancel()
    await network.pump()
    network.restart("n1")

    gateway = network["n1"].gateway
    purging = asyncio.ensure_future(gateway.purge(QUEUE))
    await network.pump()
    await purging
    channel = gateway.open_channel(RecordingSink())
    consuming = asyncio.ensure_future(gateway.consume(channel, QUEUE, ConsumerSpec("tag", True, False)))
    await asyncio.sleep(0)
    network["n2"].unseal()
    network.hand_over("n2", "n1")
    await network.pump()
    with pytest.raises(ChannelError, match="exclusive use"):
        await consuming


@pytest.mark.parametrize("no_ack", [True, False])
async def test_a_consumer_that_is_cancelled_before_it_is_attached_again_is_not(
    network: SessionNetwork, no_ack: bool
) -> None:
    """Its queue has moved, and is sealed there: its attach waits for the fate of the queue, its end does not. Else what
    it were given would belong to nobody, and one of the same tag would be the second."""
    _, channel = await consume(network, "n1", ConsumerSpec("tag", no_ack, False))
    network.lose("n2")
    network["n3"].master(SteeredQueue())
    process = network["n3"].queue
    assert process is not None
    process.seal_for_delete(if_unused=False, if_empty=True)
    network.move(record("n3", 2))
    await network.pump()
    entry = network["n1"].gateway
    cancelling = asyncio.ensure_future(entry.cancel(channel, QUEUE, "tag"))
    await network.pump()
    assert cancelling.done()
    consuming = asyncio.ensure_future(entry.consume(channel, QUEUE, ConsumerSpec("tag", False, False)))
    await network.pump()
    network["n3"].unseal()
    await network.pump()
    await consuming
    assert [spec.no_ack for _, spec, _ in process.consumers()] == [False], "its tag may be used again"
    entry.publish(channel, QUEUE, [message(1)], [1])
    await network.pump()
    assert (process.ready, process.unacked) == (0, 1)
