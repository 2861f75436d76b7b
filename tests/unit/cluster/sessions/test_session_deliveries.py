"""Deliveries over sessions: how much is under way, and what comes back in pieces. The master is on n2."""

from __future__ import annotations

import pytest

from cluster.sessions.messages import SessionOpened
from cluster.sessions.routes import ConsumerKey
from node.queues.events import DELIVERY_WINDOW_BYTES, ConsumerSpec
from tests.support.entry_bench import EntryBench
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, SessionNetwork, consume, message, record


@pytest.fixture
async def network() -> SessionNetwork:
    network = SessionNetwork("n1", "n2", "n3")
    network["n2"].master(SteeredQueue())
    network.current = record("n2", 1)
    return network


@pytest.mark.parametrize("entry", ["n1", "n2"])
async def test_what_is_under_way_to_a_consumer_is_bounded_in_bytes_wherever_it_is(
    network: SessionNetwork, entry: str
) -> None:
    """The entry node says how many messages it has written; the master knows what they weigh."""
    sink, channel = await consume(network, entry, ConsumerSpec("tag", no_ack=True, exclusive=False))
    publisher = network["n2"].gateway.open_channel(RecordingSink())
    body = bytes(DELIVERY_WINDOW_BYTES // 4)
    network["n2"].gateway.publish(publisher, QUEUE, [message(each, body) for each in range(1, 11)], [0] * 10)
    await network.pump()
    assert len(sink.delivered) == 4
    network[entry].gateway.grant(channel, QUEUE, sink.sources[0][0], "tag", 4)
    await network.pump()
    assert len(sink.delivered) == 8


@pytest.mark.parametrize("entry", ["n1", "n2"])
async def test_what_a_channel_gives_back_in_pieces_is_delivered_when_the_last_is_there(
    network: SessionNetwork, entry: str
) -> None:
    sink, channel = await consume(network, entry, ConsumerSpec("tag", False, False, prefetch_count=4))
    publisher = network["n2"].gateway.open_channel(RecordingSink())
    network["n2"].gateway.publish(publisher, QUEUE, [message(each, b"%d" % each) for each in range(1, 6)], [0] * 5)
    await network.pump()
    session = sink.sources[0][0]
    seq_ids = [delivery.seq_id for _, delivery in sink.sources]
    other, _ = await consume(network, "n3", ConsumerSpec("other", False, False, priority=1))
    assert [body for _, body, _ in other.delivered] == [b"5"]
    gateway = network[entry].gateway
    gateway.settle_requeue(channel, QUEUE, session, seq_ids[2:], more_follow=True)
    await network.pump()
    gateway.settle_requeue(channel, QUEUE, session, seq_ids[:2], more_follow=True)
    await network.pump()
    assert len(other.delivered) == 1
    gateway.settle_requeue(channel, QUEUE, session, [])
    await network.pump()
    assert [body for _, body, _ in other.delivered] == [b"5", b"1", b"2", b"3", b"4"]


async def test_a_link_that_breaks_between_two_pieces_holds_nobody_back(network: SessionNetwork) -> None:
    sink, channel = await consume(network, "n1", ConsumerSpec("tag", False, False, prefetch_count=4))
    publisher = network["n2"].gateway.open_channel(RecordingSink())
    network["n2"].gateway.publish(publisher, QUEUE, [message(each, b"%d" % each) for each in range(1, 5)], [0] * 4)
    await network.pump()
    session, delivery = sink.sources[3]
    network["n1"].gateway.settle_requeue(channel, QUEUE, session, [delivery.seq_id], more_follow=True)
    await network.pump()
    other, _ = await consume(network, "n3", ConsumerSpec("other", False, False))
    assert other.delivered == []
    network.lose("n1")
    await network.pump()
    assert [body for _, body, _ in other.delivered] == [b"1", b"2", b"3", b"4"]


ACKED = ConsumerSpec("tag", no_ack=False, exclusive=False)


def test_channels_hear_once_that_a_session_with_their_consumers_is_over(opened: EntryBench) -> None:
    """Also those that are about to have none any more. A session that was refused never began."""
    opened.consumes(1, ACKED)
    opened.link_breaks("n2")
    opened.moves("n3", 2)
    assert opened.sink.sessions_over == [1]
    opened.link_comes("n3")
    opened.hears(SessionOpened(QUEUE, 2, refused="no master"))
    assert opened.sink.sessions_over == [1]
    opened.effects.clear()
    opened.entry.reopen(QUEUE)
    opened.accepts(3)
    opened.entry.drop_consumer(QUEUE, ConsumerKey(opened.channel, "tag"))
    opened.moves("n3", 3, is_down=True)
    assert opened.sink.sessions_over == [1, 3]


def test_who_has_never_consumed_has_nothing_to_hear(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.link_breaks("n2")
    assert opened.sink.sessions_over == []


async def test_a_queue_that_ends_on_this_node_ends_its_session(network: SessionNetwork) -> None:
    sink, channel = await consume(network, "n2", ACKED)
    network["n2"].gateway.publish(channel, QUEUE, [message(1)], [0])
    await network.pump()
    [(session, _)] = sink.sources
    network["n2"].gateway.queue_stopped(QUEUE)
    assert sink.sessions_over == [session]
