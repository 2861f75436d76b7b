"""A limit of the whole channel (``basic.qos`` with ``global``): what counts against it, and what does not."""

from __future__ import annotations

from node.amqp.channel_events import ColdCall, Settlement
from node.amqp.cold_methods import consumer_spec
from node.amqp.ports import Got
from tests.unit.node.amqp.test_channel_machine import Basic, Driver, Q, Tx, deliveries, settled


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
