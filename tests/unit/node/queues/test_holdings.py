"""What each channel holds of a queue, and that it can settle nothing else."""

from __future__ import annotations

import pytest

from node.ids import SeqId
from node.queues.consumers import Consumer, ConsumerSet
from node.queues.events import ConsumerSpec
from node.queues.holdings import Holdings
from tests.support.queue_bench import channel

HOLDER, OTHER = channel(1), channel(2)
ONE_AT_A_TIME = ConsumerSpec("t", no_ack=False, exclusive=False, prefetch_count=1)


@pytest.fixture
def consumers() -> ConsumerSet:
    return ConsumerSet(single_active=False)


@pytest.fixture
def holdings(consumers: ConsumerSet) -> Holdings:
    """A channel has fetched the messages at 1, 2 and 3."""
    holdings = Holdings(consumers)
    holdings.of(HOLDER).held.update({SeqId(seq_id): None for seq_id in (1, 2, 3)})
    return holdings


def test_a_channel_settles_what_it_holds_and_that_once(holdings: Holdings) -> None:
    assert holdings.release(HOLDER, [SeqId(9), SeqId(3), SeqId(1)]) == [3, 1]
    assert holdings.release(HOLDER, [SeqId(1), SeqId(2)]) == [2]


def test_a_channel_that_has_nothing_settles_nothing(holdings: Holdings) -> None:
    assert holdings.release(OTHER, [SeqId(1)]) == []
    holdings.check_invariants(unacked=3)


def test_a_channel_is_forgotten_with_the_last_that_it_has(holdings: Holdings) -> None:
    holdings.release(HOLDER, [SeqId(1), SeqId(2)])
    assert HOLDER in holdings.by_channel
    holdings.release(HOLDER, [SeqId(3)])
    assert holdings.by_channel == {}


def test_a_consumer_whose_delivery_is_settled_has_its_turn_again(holdings: Holdings, consumers: ConsumerSet) -> None:
    consumer = Consumer(OTHER, ONE_AT_A_TIME)
    consumers.add(consumer)
    of_channel = holdings.of(OTHER)
    of_channel.consumers["t"] = consumer
    turn = consumers.take_turn(1)
    assert turn is not None
    consumer.unacked += 1
    of_channel.held[SeqId(4)] = consumer
    consumers.end_turn(turn, served=1)
    assert consumers.take_turn(1) is None, "it has as many as it may have"
    holdings.check_invariants(unacked=4)
    assert holdings.release(OTHER, [SeqId(4)]) == [4]
    holdings.check_invariants(unacked=3)
    assert consumers.take_turn(1) is not None


def test_a_channel_whose_consumer_is_gone_keeps_what_it_holds(holdings: Holdings, consumers: ConsumerSet) -> None:
    consumer = Consumer(HOLDER, ONE_AT_A_TIME)
    consumers.add(consumer)
    holdings.of(HOLDER).consumers["t"] = consumer
    holdings.check_invariants(unacked=3)
    consumers.remove(consumer)
    holdings.remove_consumer(consumer)
    holdings.forget_if_idle(HOLDER)
    holdings.check_invariants(unacked=3)
    assert holdings.release(HOLDER, [SeqId(1)]) == [1]
