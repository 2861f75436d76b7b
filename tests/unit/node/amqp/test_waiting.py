"""What waits on a channel behind a call that was not answered yet, and what becomes of it."""

from __future__ import annotations

import pytest

from node.amqp.channel_events import ColdCall
from node.amqp.frames import MethodReceived
from node.amqp.ports import QueueDeclared
from node.errors import ConnectionFailure
from tests.unit.node.amqp.test_channel_machine import Channel, Driver, Queue, Tx


def test_a_call_that_ends_the_connection_drops_what_waits() -> None:
    driver = Driver()
    (call,) = driver.send(Queue.Declare(queue="q", passive=True))
    assert isinstance(call, ColdCall)
    driver.publish(b"lost")
    with pytest.raises(ConnectionFailure):
        driver.machine.call_failed(call, ConnectionFailure(320, "the node pauses"))
    driver.machine.check_invariants()


def test_of_what_waits_nothing_is_left_behind_what_ends_the_connection() -> None:
    """Simulated clusters, seed 17682."""
    driver = Driver()
    (call,) = driver.send(Queue.Declare(queue="q"))
    assert isinstance(call, ColdCall)
    driver.send(Channel.Flow(active=False))
    driver.publish(b"lost")
    with pytest.raises(ConnectionFailure, match="active=false"):
        driver.machine.answered(call, QueueDeclared("q", 0, 0))
    driver.machine.check_invariants()


def test_commits_of_a_client_that_waits_for_none_are_handled_one_after_the_other() -> None:
    driver = Driver()
    driver.ask(Tx.Select())
    (call,) = driver.send(Queue.Declare(queue="q"))
    assert isinstance(call, ColdCall)
    for _ in range(2000):
        driver.machine.receive(MethodReceived(1, Tx.Commit()))
    driver.machine.answered(call, QueueDeclared("q", 0, 0))
    assert driver.names() == ["Queue.DeclareOk", *["Tx.CommitOk"] * 2000]
