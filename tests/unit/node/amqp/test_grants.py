"""Under a limit of the whole channel: when the queue hears that what it handed out was written, and may go on."""

from __future__ import annotations

import pytest
from pamqp import base

from node.amqp.channel_events import ChannelEffect, Delivered
from node.amqp.ports import DeliverySource
from node.queues.events import DELIVERY_WINDOW_BYTES
from tests.support.messages import make_message
from tests.unit.node.amqp.test_channel_machine import Basic, Driver, Q, Tx, deliveries


class Limited(Driver):
    """Consumers come to know the limit, and with it their window, when they begin."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.kept: list[ChannelEffect] = []
        self.limit(limit)
        self.consume()
        self.effects()

    def limit(self, limit: int) -> int:
        assert "Basic.QosOk" in self.ask_quietly(Basic.Qos(prefetch_count=limit, global_=True))
        return self.granted()

    def ask_quietly(self, method: base.Frame) -> list[str]:
        """The effects are left for `granted`."""
        self.effects()
        self.kept = self.send(method)
        return self.names()

    def granted(self) -> int:
        """Messages that the queue may send more since the last look."""
        return sum([each.count for each in self.kept if isinstance(each, Delivered)])

    def brought(self, *seq_ids: int, source: DeliverySource = Q, tag: str = "t", body: bytes = b"") -> int:
        """These come from the queue; what it may send more at once."""
        several = [each._replace(message=make_message(1, body=body)) for each in deliveries(*seq_ids)]
        self.machine.deliver(tag, source, several)
        self.machine.check_invariants()
        self.output.clear()
        self.kept = self.effects()
        return self.granted()

    def settled(self, *tags: int) -> int:
        """The client acknowledges these; what the queue may send more because of that."""
        self.machine.deliveries.settle([(tag, 0) for tag in tags], self.machine._transaction)
        self.machine.check_invariants()
        self.output.clear()
        self.kept = self.effects()
        return self.granted()


def test_who_has_reached_the_limit_gets_no_more_that_others_could_take() -> None:
    """Two channels with a limit of 1, two messages: each works on one."""
    driver = Limited(1)
    assert driver.brought(1) == 0
    assert driver.settled(1) == 1
    assert driver.brought(2) == 0


def test_a_settlement_makes_room_for_as_many_as_it_settles() -> None:
    driver = Limited(3)
    assert driver.brought(1, 2, 3) == 0
    assert driver.settled(1) == 1
    assert driver.brought(4) == 0
    assert driver.settled(3, 2) == 2


def test_below_the_limit_the_queue_may_send_what_is_missing() -> None:
    driver = Limited(3)
    assert driver.brought(1) == 0, "two more it may send anyway"
    assert driver.brought(2, 3) == 0
    assert driver.settled(1, 2, 3) == 3


def test_a_limit_that_is_raised_or_lifted_holds_at_once() -> None:
    driver = Limited(2)
    assert driver.brought(1, 2) == 0
    assert driver.limit(3) == 1
    assert driver.limit(0) == 1
    assert driver.brought(3, 4) == 2


def test_a_limit_that_is_lowered_holds_for_what_comes_then() -> None:
    driver = Limited(3)
    assert driver.brought(1, 2, 3) == 0
    assert driver.limit(1) == 0
    assert driver.settled(1, 2) == 0
    assert driver.settled(3) == 1


def test_a_consumer_from_before_the_limit_is_brought_below_it_little_by_little() -> None:
    """Its queue may have much on the way. It is not told that any of this was written while that is more than there is
    room for."""
    driver = Limited(0)
    assert driver.brought(1) == 1
    assert driver.limit(2) == 0
    assert driver.brought(2, 3) == 0
    assert driver.settled(1, 2) == 0
    assert driver.limit(0) == 2


def test_a_commit_makes_room_and_a_rollback_does_not() -> None:
    driver = Limited(1)
    driver.ask_quietly(Tx.Select())
    assert driver.brought(1) == 0
    assert driver.settled(1) == 0
    driver.ask_quietly(Tx.Rollback())
    assert driver.granted() == 0
    assert driver.settled(1) == 0
    driver.ask_quietly(Tx.Commit())
    assert driver.granted() == 1


def test_a_recovery_makes_room() -> None:
    driver = Limited(2)
    assert driver.brought(1, 2) == 0
    driver.ask_quietly(Basic.Recover(requeue=True))
    assert driver.granted() == 2


def test_consumers_of_one_channel_leave_room_to_one_another() -> None:
    driver = Limited(2)
    driver.consume("other")
    driver.effects()
    assert driver.brought(1, 2) == 0
    assert driver.brought(3, tag="other") == 0, "it is held"
    assert driver.settled(1) == 0, "what was held takes the room"
    assert driver.settled(2) == 1


def test_what_nobody_acknowledges_is_reported_at_once() -> None:
    driver = Limited(1)
    driver.consume("free", no_ack=True)
    assert driver.brought(1) == 0
    assert driver.brought(2, 3, tag="free") == 2


def test_a_session_that_is_over_is_told_nothing() -> None:
    """Its queue has taken back what it had handed out, and begins with a whole window."""
    driver = Limited(2)
    assert driver.brought(1, 2) == 0
    driver.settled(1)
    later = DeliverySource(Q.queue, Q.session + 1)
    assert driver.brought(1, source=later) == 0
    assert driver.settled(2, 3) == 1
    assert [each.source for each in driver.kept if isinstance(each, Delivered)] == [later]


@pytest.mark.parametrize(("body_bytes", "granted"), [(DELIVERY_WINDOW_BYTES // 8, 0), (DELIVERY_WINDOW_BYTES // 4, 4)])
def test_large_messages_are_reported_at_once(body_bytes: int, granted: int) -> None:
    """What is not reported counts in bytes, too, and the queue would stop below the limit: it has megabytes on the way,
    not the limit's worth of messages."""
    driver = Limited(4)
    assert driver.brought(1, 2, 3, 4, body=bytes(body_bytes)) == granted


def test_nothing_is_reported_of_a_consumer_that_is_gone() -> None:
    driver = Limited(1)
    assert driver.brought(1) == 0
    driver.machine.consumer_cancelled("t")
    driver.machine.check_invariants()
    assert driver.settled(1) == 0
