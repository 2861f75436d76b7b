"""What an entry node tells every master of a queue: that its channels have consumed from it.

An auto-delete queue goes with its last consumer, and a master of later has never seen that one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.sessions.messages import SessionOpen, SessionReply
from cluster.sessions.questions import Question
from cluster.sessions.routes import ConsumerKey
from node.errors import ChannelError
from node.queues.events import ConsumerSpec, DeleteUnused
from node.queues.queue_process import QueueProcess
from tests.support.entry_bench import EntryBench
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, queue_record

CONSUMER = ConsumerSpec("tag", no_ack=False, exclusive=False)
CONSUME = Question("consume", consumer=CONSUMER)


def next_master_hears_of_consumers(bench: EntryBench) -> bool:
    bench.sent()
    bench.moves("n3", 2)
    [(_, opening)] = bench.sent()
    assert isinstance(opening, SessionOpen)
    return opening.has_consumed


def test_a_queue_that_was_only_published_to_was_not_consumed(opened: EntryBench) -> None:
    opened.publishes(2)
    assert not next_master_hears_of_consumers(opened)


def test_a_consumer_that_was_refused_was_none(opened: EntryBench) -> None:
    call = opened.asks(CONSUME)
    opened.proceeds(call)
    opened.hears(SessionReply(QUEUE, 1, call.call_id, reply_code=403))
    with pytest.raises(ChannelError):
        opened.proceeds(call)
    assert not next_master_hears_of_consumers(opened)


def test_a_consumer_is_remembered_after_it_is_gone(opened: EntryBench) -> None:
    opened.consumes(1, CONSUMER)
    assert opened.entry.drop_consumer(QUEUE, ConsumerKey(opened.channel, "tag"))
    assert next_master_hears_of_consumers(opened)


@pytest.mark.parametrize("was_consumed", [True, False])
def test_a_queue_that_comes_here_hears_it_too(opened: EntryBench, was_consumed: bool) -> None:
    if was_consumed:
        opened.consumes(1, CONSUMER)
        opened.entry.drop_consumer(QUEUE, ConsumerKey(opened.channel, "tag"))
    opened.queue = QueueProcess(replace(queue_record(QUEUE), auto_delete=True), SteeredQueue())
    opened.moves("n1", 2)
    assert opened.queue.drain() == ([DeleteUnused(may_return=True)] if was_consumed else [])


class GivesBack(RecordingSink):
    """A channel that holds what its prefetch limit keeps back, and returns it with its consumer."""

    def __init__(self, bench: EntryBench) -> None:
        super().__init__()
        self._bench = bench

    def queue_cancelled_consumer(self, queue_id: int, consumer_tag: str) -> None:
        (session, delivery), *_ = self.sources
        self._bench.entry.settle_requeue(self._bench.channel, QUEUE, session, [delivery.seq_id])
        super().queue_cancelled_consumer(queue_id, consumer_tag)


def test_what_a_consumer_gives_back_that_is_cancelled_by_a_move_is_of_a_session_that_is_over() -> None:
    """Its queue moves to this node, where no process is yet."""
    bench = EntryBench()
    sink = GivesBack(bench)
    bench.channel = bench.entry.open_channel(sink)
    bench.publishes(1)
    bench.accepts(1)
    bench.confirms(1, 1)
    bench.consumes(1, replace(CONSUMER, cancel_on_failover=True))
    bench.delivers(1, "tag", b"1", b"2")
    bench.moves("n1", 2)
    assert sink.cancelled == ["tag"]
    assert bench.failures == []
