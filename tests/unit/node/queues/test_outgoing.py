"""What a queue process tells channels: in batches, in this order, and once."""

from __future__ import annotations

import pytest

from node.ids import SeqId
from node.queues.backing_queue import Delivery
from node.queues.consumers import Consumer
from node.queues.events import (
    CancelConsumer,
    ConfirmPublished,
    ConsumerSpec,
    DeleteUnused,
    Deliver,
    GrantCredit,
    RejectPublished,
)
from node.queues.outgoing import Outgoing
from tests.support.queue_bench import channel, message

DELIVERIES = [Delivery(SeqId(counter), message(counter), False) for counter in range(3)]


@pytest.fixture
def outgoing() -> Outgoing:
    return Outgoing()


def consumer(number: int) -> Consumer:
    return Consumer(channel(number), ConsumerSpec("t", no_ack=False, exclusive=False))


def test_deliveries_go_first_then_confirms_refusals_grants_and_the_rest(outgoing: Outgoing) -> None:
    outgoing.others.append(DeleteUnused())
    outgoing.rejected.append((channel(2), 6))
    outgoing.confirmed.append((channel(2), 5))
    outgoing.deliver(consumer(1), DELIVERIES)
    outgoing.check_invariants()
    assert outgoing.take([(channel(2), 4), (channel(3), 1)], [(channel(3), 8)]) == [
        Deliver(channel(1), "t", DELIVERIES),
        ConfirmPublished(channel(2), [5, 4]),
        ConfirmPublished(channel(3), [1]),
        RejectPublished(channel(2), [6]),
        GrantCredit(channel(3), 8),
        DeleteUnused(),
    ]


def test_what_was_taken_is_not_said_again(outgoing: Outgoing) -> None:
    outgoing.others.append(CancelConsumer(channel(1), "t"))
    outgoing.rejected.append((channel(2), 6))
    outgoing.confirmed.append((channel(2), 5))
    served = consumer(1)
    outgoing.deliver(served, DELIVERIES)
    assert len(outgoing.take([(channel(2), 4)], [(channel(3), 8)])) == 5
    assert outgoing.take([], []) == []
    outgoing.deliver(served, DELIVERIES[:1])
    assert outgoing.take([(channel(2), 7)], []) == [
        Deliver(channel(1), "t", DELIVERIES[:1]),
        ConfirmPublished(channel(2), [7]),
    ]


def test_all_that_a_consumer_is_given_until_then_goes_together(outgoing: Outgoing) -> None:
    first, second = consumer(1), consumer(2)
    outgoing.deliver(first, DELIVERIES[:1])
    outgoing.deliver(second, DELIVERIES[1:2])
    outgoing.deliver(first, DELIVERIES[2:])
    outgoing.check_invariants()
    assert outgoing.take([], []) == [
        Deliver(channel(1), "t", DELIVERIES[::2]),
        Deliver(channel(2), "t", DELIVERIES[1:2]),
    ]


def test_a_channel_that_is_gone_is_sent_nothing(outgoing: Outgoing) -> None:
    for number in (1, 2):
        outgoing.deliver(consumer(number), DELIVERIES)
    outgoing.channel_gone(channel(1))
    assert outgoing.take([], []) == [Deliver(channel(2), "t", DELIVERIES)]


def test_a_channel_with_two_consumers_is_given_everything_in_the_order_in_which_it_was_handed_out(
    outgoing: Outgoing,
) -> None:
    one, other = (Consumer(channel(1), ConsumerSpec(tag, no_ack=False, exclusive=False)) for tag in ("a", "b"))
    elsewhere = consumer(2)
    for served, number in ((one, 0), (other, 1), (elsewhere, 1), (other, 2), (elsewhere, 2), (one, 2)):
        outgoing.deliver(served, DELIVERIES[number : number + 1])
        outgoing.check_invariants()
    assert outgoing.take([], []) == [
        Deliver(channel(1), "a", DELIVERIES[:1]),
        Deliver(channel(1), "b", DELIVERIES[1:]),
        Deliver(channel(2), "t", DELIVERIES[1:]),
        Deliver(channel(1), "a", DELIVERIES[2:]),
    ]
