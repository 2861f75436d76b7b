"""What channels do while they are told of something: what they had no time for before. The entry node is n1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cluster.sessions.messages import SessionOpened
from cluster.sessions.questions import Question
from node.ids import ChannelKey, NodeName, QueueId, SeqId
from node.message import decode_envelope
from node.queues.backing_queue import Delivery
from node.queues.events import INTERNAL_SEQ_BASE, ConsumerSpec, Deliver, GrantCredit
from tests.support.entry_bench import EntryBench
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, message

N2 = NodeName("n2")
OTHER = QueueId(QUEUE + 1)
CONSUMER = ConsumerSpec("tag", no_ack=False, exclusive=False)


class BusySink(RecordingSink):
    """A channel with something left to do, which it does when it hears that a session is over."""

    def __init__(self) -> None:
        super().__init__()
        self.left: Callable[[], None] = lambda: None

    def queue_session_over(self, queue_id: int, session: int) -> None:
        super().queue_session_over(queue_id, session)
        left, self.left = self.left, lambda: None
        left()


@pytest.fixture
def busy(bench: EntryBench) -> EntryBench:
    """Session 1 with n2 stands; the channel consumes from its queue."""
    bench.sink = BusySink()
    bench.channel = bench.entry.open_channel(bench.sink)
    bench.publishes(1)
    bench.accepts(1)
    bench.confirms(1, 1)
    bench.consumes(1, CONSUMER)
    return bench


def publishes_to_other(bench: EntryBench, seq: int) -> None:
    bench.entry.publish(bench.channel, OTHER, [message(seq, b"%d" % seq)], [seq])


def has_left(bench: EntryBench, left: Callable[[], None]) -> None:
    assert isinstance(bench.sink, BusySink)
    bench.sink.left = left


def opens_other(bench: EntryBench, session: int) -> None:
    bench.entry.receive(N2, SessionOpened(OTHER, session))


def test_nobody_waits_for_a_link_that_is_gone(busy: EntryBench) -> None:
    """Something waited for it, and the channel publishes behind that when it hears of the end of another session."""
    publishes_to_other(busy, 2)
    opens_other(busy, 2)
    busy.link_bytes = -1
    publishes_to_other(busy, 3)
    assert busy.sink.waits()
    has_left(busy, lambda: publishes_to_other(busy, 4))
    busy.link_bytes = 0
    busy.sent()
    busy.link_breaks("n2")
    assert not busy.sink.waits()


def test_what_is_published_while_a_link_goes_was_not_sent_over_it(busy: EntryBench) -> None:
    publishes_to_other(busy, 2)
    opens_other(busy, 2)
    has_left(busy, lambda: publishes_to_other(busy, 3))
    busy.link_breaks("n2")
    busy.sent()
    busy.link_comes("n2")
    opens_other(busy, 4)
    assert [each for each in busy.told() if "publish" in each] == ["n2 publish 4: 2 resent", "n2 publish 4: 3"]


def test_what_is_published_while_a_queue_goes_down_stays_behind_what_was_published_before(busy: EntryBench) -> None:
    first, second = INTERNAL_SEQ_BASE + 2, INTERNAL_SEQ_BASE + 3
    busy.publishes(first)
    has_left(busy, lambda: busy.entry.publish(busy.channel, QUEUE, [message(second, b"%d" % second)], [second]))
    busy.moves("n2", 1, is_down=True)
    busy.sent()
    busy.moves("n2", 2)
    busy.accepts(2)
    published = [each for each in busy.told() if "publish" in each]
    assert published == [f"n2 publish 2: {first} resent", f"n2 publish 2: {second}"]


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_comes_of_a_session_that_is_over_is_delivered_only_if_its_queue_has_forgotten_it(
    opened: EntryBench, no_ack: bool
) -> None:
    """The queue is declared down, of which its master, to which there is a link, has yet to hear."""
    opened.consumes(1, ConsumerSpec("tag", no_ack=no_ack, exclusive=False))
    opened.moves("n2", 1, is_down=True)
    opened.delivers(1, "tag", b"1")
    assert opened.sink.delivered == ([("tag", b"1", False)] if no_ack else [])


class FailingSink(RecordingSink):
    """A channel that settles at once what it is delivered, at which the queue on this node fails."""

    def __init__(self, bench: EntryBench) -> None:
        super().__init__()
        self._bench = bench

    def queue_delivered(self, queue_id: int, session: int, consumer_tag: str, deliveries: Sequence[Delivery]) -> None:
        super().queue_delivered(queue_id, session, consumer_tag, deliveries)
        self._bench.out_of_service(QUEUE, OSError("disk"))


def consumes_here(bench: EntryBench, sink: RecordingSink) -> None:
    bench.sink, bench.channel = sink, bench.entry.open_channel(sink)
    assert bench.proceeds(bench.asks(Question("consume", consumer=CONSUMER))) is not None
    bench.knows("tag")


def test_a_queue_that_fails_in_the_hands_of_one_channel_delivers_nothing_to_the_next() -> None:
    bench = EntryBench("n1")
    bench.masters_here(SteeredQueue())
    first, second = FailingSink(bench), RecordingSink()
    consumes_here(bench, first)
    consumes_here(bench, second)
    bench.publishes(1, 2)
    bench.run(QUEUE)
    assert len(first.delivered) == 1
    assert second.sessions_over == [1]
    assert second.delivered == []


class CancelledSink(RecordingSink):
    """A channel that publishes at once when its consumer is cancelled."""

    def __init__(self, publish: Callable[[], None]) -> None:
        super().__init__()
        self._publish = publish

    def queue_cancelled_consumer(self, queue_id: int, consumer_tag: str) -> None:
        super().queue_cancelled_consumer(queue_id, consumer_tag)
        self._publish()


def test_what_is_published_while_a_queue_here_refuses_a_consumer_stays_behind_what_is_sent_again() -> None:
    """Behind a later one of the same origin it would pass for a repetition, and be confirmed without being there."""
    bench = EntryBench("n2")
    bench.sink = CancelledSink(lambda: bench.entry.publish(bench.channel, QUEUE, [message(2, b"2")], [2]))
    bench.channel = bench.entry.open_channel(bench.sink)
    bench.publishes(1)
    bench.accepts(1)
    bench.consumes(1, CONSUMER)
    stored = SteeredQueue()
    bench.masters_here(stored)
    assert bench.queue is not None
    bench.queue.consume(ChannelKey(NodeName("n3"), 1), ConsumerSpec("other", no_ack=False, exclusive=True))
    bench.moves("n1", 2)
    assert bench.sink.cancelled == ["tag"]
    bench.run(QUEUE)
    held = [decode_envelope(envelope)[0].body for _, envelope in stored.stored.read(stored.live)]
    assert held == [b"1", b"2"]


def test_a_queue_that_fails_in_the_hands_of_a_channel_grants_nothing_any_more() -> None:
    """What it was given before counts no more, and its successor is given all that is unconfirmed anew."""
    bench = EntryBench("n1")
    bench.masters_here(SteeredQueue())
    consumes_here(bench, FailingSink(bench))
    bench.publishes(1)
    delivered = Deliver(bench.channel, "tag", [Delivery(SeqId(0), message(1, b"1"), False)])
    bench.entry.local_effects(QUEUE, [delivered, GrantCredit(bench.channel, 50)])
    bench.entry.check_invariants()
