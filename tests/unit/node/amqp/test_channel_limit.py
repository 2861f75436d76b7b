"""A limit of the whole channel (``basic.qos`` with ``global``): what counts against it, and what does not."""

from __future__ import annotations

import pytest

from node.amqp.channel_events import ColdCall, Delivered, Settle, Settlement
from node.amqp.cold_methods import consumer_spec
from node.amqp.frames import Settlements
from node.amqp.ports import DeliverySource, Got
from node.ids import QueueName, SeqId
from tests.unit.node.amqp.test_channel_machine import Basic, Channel, Driver, Q, Tx, deliveries, settled


def limited(limit: int = 1) -> Driver:
    driver = Driver()
    driver.consume()
    driver.ask(Basic.Qos(prefetch_count=limit, global_=True))
    return driver


def get(driver: Driver) -> None:
    driver.effects()
    (call,) = driver.send(Basic.Get(queue="q"))
    assert isinstance(call, ColdCall)
    driver.machine.answered(call, Got(Q, deliveries(9)[0], 0))
    driver.sent()


def test_what_nobody_acknowledges_is_not_held_and_so_not_lost() -> None:
    """It has left its queue: if its consumer were cancelled it could not go back."""
    driver = limited()
    driver.consume("free", no_ack=True)
    assert driver.deliver(1, 2) == [1]
    assert driver.deliver(3, 4, tag="free") == [2, 3]
    driver.effects()
    (call,) = driver.send(Basic.Cancel("free"))
    assert isinstance(call, ColdCall)
    driver.machine.answered(call, None)
    assert driver.effects() == []


def test_the_queue_is_told_to_have_no_more_on_their_way_than_the_limit() -> None:
    """Or they wait here while another channel could take them."""
    specs = [consumer_spec(Basic.Consume(queue="q", no_ack=no_ack), 0, 3) for no_ack in (False, True)]
    assert [spec.window for spec in specs] == [3, 0]


def test_what_was_got_does_not_count() -> None:
    driver = limited()
    get(driver)
    assert driver.deliver(1, 2) == [2]
    driver.settle((1, 0))
    assert driver.delivered_tags() == [], "that was the one that was got"
    driver.settle((2, 0))
    assert driver.delivered_tags() == [3]


def test_of_many_that_are_settled_at_once_those_that_were_got_do_not_count() -> None:
    driver = limited(2)
    assert driver.deliver(1) == [1]
    get(driver)
    assert driver.deliver(2, 3, 4, 5) == [3]
    driver.settle((2, 1))
    assert driver.delivered_tags() == [4], "one of the two"


def test_an_acknowledgement_makes_room_when_it_is_committed() -> None:
    driver = limited()
    driver.ask(Tx.Select())
    assert driver.deliver(1, 2) == [1]
    driver.settle((1, 0))
    assert driver.delivered_tags() == []
    driver.ask(Tx.Rollback())
    assert driver.delivered_tags() == []
    driver.settle((1, 0))
    assert driver.send(Tx.Commit())[0] == settled(Settlement.ACK, [1])
    assert driver.delivered_tags() == [2]


def test_what_is_recovered_makes_room() -> None:
    driver = limited()
    assert driver.deliver(1, 2) == [1]
    get(driver)
    driver.send(Basic.Recover(requeue=True))
    assert [line[0] for line in driver.sent()] == ["Basic.RecoverOk", "Basic.Deliver"]
    driver.settle((3, 0))
    assert driver.deliver(3, 4) == [4]


def test_what_is_held_when_its_session_ends_comes_again_and_not_twice() -> None:
    """The queue has taken it back. What comes in the next session, or from another queue, is held as ever."""
    driver = limited()
    driver.consume("other")
    other, later = DeliverySource(QueueName("/", "other"), 1), DeliverySource(Q.queue, Q.session + 1)
    assert driver.deliver(1, 2) == [1]
    driver.machine.deliver("other", other, deliveries(7))
    driver.machine.deliver("t", later, deliveries(2))
    driver.effects()
    driver.machine.source_over(Q)
    driver.machine.check_invariants()
    assert driver.effects() == [], "nothing goes back to a queue that has it"
    assert driver.machine.deliveries.held_count == 2
    driver.settle((1, 0))
    assert driver.settle((2, 0)) == [(Settlement.ACK, [7])]
    assert driver.receive(Settlements(1, [(3, 0)]))[0] == Settle(Settlement.ACK, later, [SeqId(2)])


class CountedSource(DeliverySource):
    """Counts how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedSource.compared += 1
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = DeliverySource.__hash__


def test_the_end_of_many_sessions_is_not_looked_for_in_all_that_is_held_each_time() -> None:
    """A channel may consume from thousands of queues, and lose their node."""
    driver, count = limited(), 100
    sources = [CountedSource(QueueName("/", f"q{number}"), 1) for number in range(count)]
    for source in sources:
        driver.machine.deliver("t", source, deliveries(1))
    CountedSource.compared = 0
    for source in reversed(sources):
        driver.machine.source_over(source)
    assert driver.machine.deliveries.held_count == 0
    driver.settle((1, 0))
    assert driver.delivered_tags() == [1], "the one that was sent before"
    assert CountedSource.compared < 10 * count


@pytest.mark.parametrize(("no_ack", "arrive"), [(False, [2]), (True, [1, 2])])
def test_what_came_before_its_consumer_was_known_to_the_client_comes_again_likewise(
    no_ack: bool, arrive: list[int]
) -> None:
    """But for what nobody acknowledges, which its queue has not taken back."""
    driver = Driver()
    (call,) = driver.send(Basic.Consume(queue="q", consumer_tag="t", no_ack=no_ack))
    assert isinstance(call, ColdCall)
    driver.deliver(1)
    driver.machine.source_over(Q)
    driver.machine.deliver("t", DeliverySource(Q.queue, Q.session + 1), deliveries(2))
    driver.machine.answered(call, None)
    assert len(driver.delivered_tags()) == len(arrive)
    assert [each.source.session for each in driver.effects() if isinstance(each, Delivered)] == arrive


def test_a_channel_that_is_closing_need_not_hear_that_a_session_ends() -> None:
    driver = limited()
    driver.deliver(1, 2)
    driver.send(Channel.Close())
    driver.machine.source_over(Q)
    assert driver.machine.deliveries.held_count == 1, "which goes with the channel"
