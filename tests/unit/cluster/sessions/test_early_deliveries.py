"""Deliveries that come before the client can be told of their consumer. The entry node is n1, the queue is on n2."""

from __future__ import annotations

from cluster.sessions.questions import Question
from node.queues.events import ConsumerSpec
from tests.support.entry_bench import EntryBench, answer

CONSUMER = ConsumerSpec("tag", no_ack=False, exclusive=False)
CONSUME = Question("consume", consumer=CONSUMER)


def test_deliveries_that_come_too_early_wait_until_the_client_knows(opened: EntryBench) -> None:
    call = opened.asks(CONSUME)
    opened.proceeds(call)
    opened.hears(answer(call, 1))
    opened.delivers(1, "tag", b"a", b"b")
    assert opened.proceeds(call) is not None
    opened.delivers(1, "tag", b"c")
    assert opened.sink.delivered == []

    opened.knows("tag")
    opened.delivers(1, "tag", b"d")
    assert [body for _, body, _ in opened.sink.delivered] == [b"a", b"b", b"c", b"d"]


def test_early_deliveries_of_a_session_that_ended_are_not_told(opened: EntryBench) -> None:
    """The queue has taken them back, and delivers them in the next session."""
    call = opened.asks(CONSUME)
    opened.proceeds(call)
    opened.hears(answer(call, 1))
    opened.delivers(1, "tag", b"a")
    opened.proceeds(call)
    opened.link_breaks("n2")
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.delivers(2, "tag", b"a")
    opened.knows("tag")
    assert [session for session, _ in opened.sink.sources] == [2]


def test_early_deliveries_without_acks_are_told_though_their_session_ended(bench: EntryBench) -> None:
    """They have left the queue, and do not come again."""
    call = bench.asks(Question("consume", consumer=ConsumerSpec("tag", no_ack=True, exclusive=False)))
    bench.proceeds(call)
    bench.accepts(1)
    bench.proceeds(call)
    bench.hears(answer(call, 1))
    bench.delivers(1, "tag", b"a", b"b")
    bench.link_breaks("n2")
    assert bench.proceeds(call) is not None
    bench.knows("tag")
    assert bench.sink.delivered == [("tag", b"a", False), ("tag", b"b", False)]


def test_deliveries_to_others_do_not_wait(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    opened.asks(Question("consume", consumer=ConsumerSpec("other", False, False)))
    opened.delivers(1, "tag", b"a")
    assert opened.sink.delivered == [("tag", b"a", False)]


def test_what_others_are_delivered_behind_something_early_waits_with_it(opened: EntryBench) -> None:
    """A channel has everything of a queue in the order in which it was handed out."""
    opened.consumes(1, CONSUMER)
    call = opened.asks(Question("consume", consumer=ConsumerSpec("other", False, False)))
    opened.proceeds(call)
    opened.delivers(1, "tag", b"a")
    opened.hears(answer(call, 1))
    opened.delivers(1, "other", b"b")
    opened.delivers(1, "tag", b"c")
    assert opened.proceeds(call) is not None
    assert [body for _, body, _ in opened.sink.delivered] == [b"a"]
    opened.knows("other")
    assert opened.sink.delivered == [("tag", b"a", False), ("other", b"b", False), ("tag", b"c", False)]
    opened.delivers(1, "tag", b"d")
    assert opened.sink.delivered[-1] == ("tag", b"d", False)


def test_what_stood_behind_a_consumer_that_came_to_nothing_is_told(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    call = opened.asks(Question("consume", consumer=ConsumerSpec("other", False, False)))
    opened.proceeds(call)
    opened.delivers(1, "other", b"a")
    opened.delivers(1, "tag", b"b")
    opened.entry.calls.abandon(call)
    opened.entry.check_invariants()
    assert opened.sink.delivered == [("tag", b"b", False)]


def test_what_stood_behind_it_is_not_told_when_the_session_ended_meanwhile(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    call = opened.asks(Question("consume", consumer=ConsumerSpec("other", False, False)))
    opened.proceeds(call)
    opened.hears(answer(call, 1))
    opened.delivers(1, "other", b"a")
    opened.delivers(1, "tag", b"b")
    assert opened.proceeds(call) is not None
    opened.link_breaks("n2")
    opened.knows("other")
    assert opened.sink.delivered == []
