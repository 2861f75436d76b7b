"""The gateway of a node that is alone: a channel, the queue processes, and the real storage under them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from node.errors import ChannelError
from node.flow.credit import Credit, FlowControl, Hop
from node.ids import QueueId
from node.queues.backing_queue import Delivery
from node.queues.events import ConsumerSpec
from node.queues.queue_process import DISPATCH_MAX
from node.topology.commands import DeclareQueue, DeleteQueue
from node.topology.records import QueueRecord
from tests.support.one_node import OneNode
from tests.support.queue_bench import message

ACKED = ConsumerSpec("t", no_ack=False, exclusive=False)


class Sink:
    """Writes down what queues tell a channel; deliveries are kept to be settled."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.sessions: set[int] = set()
        self.deliveries: list[Delivery] = []

    def queue_delivered(
        self, queue_id: QueueId, session: int, consumer_tag: str, deliveries: Sequence[Delivery]
    ) -> None:
        self.sessions.add(session)
        self.deliveries += deliveries
        self.heard.append(f"{consumer_tag}: " + " ".join(each.message.body.decode() for each in deliveries))

    def queue_confirmed(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self.heard.append("confirm " + " ".join(map(str, publish_seqs)))

    def queue_rejected(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self.heard.append("reject " + " ".join(map(str, publish_seqs)))

    def queue_cancelled_consumer(self, queue_id: QueueId, consumer_tag: str) -> None:
        self.heard.append(f"cancelled {consumer_tag}")

    def queue_session_over(self, queue_id: QueueId, session: int) -> None:
        self.heard.append("session over")

    def queue_hop_changed(self, hop: Hop) -> None:
        self.heard.append("blocked" if hop.is_blocked else "freed")


class Bench:
    """One node and one channel."""

    def __init__(self) -> None:
        self.flow = FlowControl()
        self.node = OneNode(self.flow)
        self.gateway = self.node.gateway
        self.sink = Sink()
        self.channel = self.gateway.open_channel(self.sink)

    def declare(self, name: str = "q", *, auto_delete: bool = False) -> QueueId:
        record: QueueRecord = self.node.catalogue.apply(DeclareQueue("/", name, durable=True, auto_delete=auto_delete))
        return record.queue_id

    def publish(self, queue_id: QueueId, *counters: int, confirm: bool = False) -> None:
        """One batch of persistent messages; with ``confirm`` the counters are the publish sequence numbers."""
        seqs = counters if confirm else [0] * len(counters)
        self.gateway.publish(self.channel, queue_id, [message(each) for each in counters], seqs)

    async def heard(self) -> list[str]:
        """Since the last call, when all has happened that is under way, an fsync included."""
        await self.node.sync()
        heard, self.sink.heard = self.sink.heard, []
        return heard


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_publish_consume_and_settle(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    bench.publish(queue_id, 1, 2, 3, confirm=True)
    await bench.node.run()
    assert bench.sink.heard == ["t: 1 2 3"], "nothing is on disk yet"
    assert await bench.heard() == ["t: 1 2 3", "confirm 1 2 3"]
    first, second, third = [each.seq_id for each in bench.sink.deliveries]
    (session,) = bench.sink.sessions
    bench.gateway.settle_ack(bench.channel, queue_id, session, [first])
    bench.gateway.settle_discard(bench.channel, queue_id, session, [second])
    bench.gateway.settle_requeue(bench.channel, queue_id, session, [third])
    assert await bench.heard() == ["t: 3"]
    assert bench.sink.deliveries[-1].redelivered
    bench.gateway.grant(bench.channel, queue_id, session, "t", 4)
    assert await bench.gateway.counts(queue_id) == (0, 1)
    assert [each.body for each in bench.node.messages("q")] == [b"3"], "the others are settled for good"


async def test_what_was_delivered_in_another_session_settles_nothing(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    bench.publish(queue_id, 1)
    await bench.heard()
    (session,) = bench.sink.sessions
    bench.gateway.settle_ack(bench.channel, queue_id, session + 1, [bench.sink.deliveries[0].seq_id])
    assert bench.node.process("q").unacked == 1


async def test_many_calls_of_one_turn_leave_together(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    await bench.node.run()
    for counter in (1, 2, 3):
        bench.publish(queue_id, counter, confirm=True)
    assert bench.sink.heard == [], "a call only marks the queue"
    assert await bench.heard() == ["t: 1 2 3", "confirm 1 2 3"]


async def test_a_backlog_is_delivered_over_several_turns(bench: Bench) -> None:
    queue_id = bench.declare()
    bench.publish(queue_id, *range(1, DISPATCH_MAX + 2))
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    shares = [len(text.split()) - 1 for text in await bench.heard()]
    assert shares == [DISPATCH_MAX, 1]


async def test_cancel_is_answered_after_the_last_deliveries(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    await bench.node.run()
    bench.publish(queue_id, 1)
    await bench.gateway.cancel(bench.channel, queue_id, "t")
    assert bench.sink.heard == ["t: 1"]
    bench.publish(queue_id, 2)
    assert await bench.heard() == ["t: 1"]


async def test_get_purge_and_close(bench: Bench) -> None:
    queue_id = bench.declare()
    assert await bench.gateway.get(bench.channel, queue_id, no_ack=False) is None
    bench.publish(queue_id, 1, 2, 3)
    got = await bench.gateway.get(bench.channel, queue_id, no_ack=False)
    assert got is not None
    assert (got[1].message.body, got[2]) == (b"1", 2)
    bench.gateway.close_channel(bench.channel)
    await bench.node.run()
    assert await bench.gateway.counts(queue_id) == (3, 0), "what it held is ready again"
    assert await bench.gateway.purge(queue_id) == 3


async def test_a_channel_that_closes_takes_its_consumers_along(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    other = bench.gateway.open_channel(Sink())
    await bench.gateway.consume(other, queue_id, ACKED)
    bench.gateway.close_channel(bench.channel)
    await bench.node.run()
    assert await bench.gateway.counts(queue_id) == (0, 1)


async def test_deletion_cancels_and_later_publishes_count_as_confirmed(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    await bench.node.run()
    assert bench.node.has_files(queue_id)
    assert await bench.gateway.delete_if(queue_id, if_unused=False, if_empty=True) == (0, 1)
    bench.node.catalogue.apply(DeleteQueue("/", "q"))
    bench.publish(queue_id, 5, 6, confirm=True)
    assert await bench.heard() == ["session over", "cancelled t", "confirm 5 6"]
    assert not bench.node.has_files(queue_id)
    with pytest.raises(ChannelError) as caught:
        await bench.gateway.counts(queue_id)
    assert caught.value.reply_code == 404


async def test_a_deletion_that_did_not_come_about_lets_held_publishes_go_on(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.delete_if(queue_id, if_unused=True, if_empty=True)
    bench.publish(queue_id, 1, confirm=True)
    await bench.gateway.delete_abandoned(queue_id)
    assert await bench.heard() == [], "the command may come yet"
    assert bench.node.deletions_open == [bench.node.queue("q")]
    bench.node.process("q").unseal()  # now nothing of it can come any more
    bench.node.queues.touch(queue_id)
    assert await bench.heard() == ["confirm 1"]
    assert await bench.gateway.counts(queue_id) == (1, 0)


async def test_who_wants_to_use_a_sealed_queue_waits_for_its_fate(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.delete_if(queue_id, if_unused=True, if_empty=True)
    consuming = asyncio.ensure_future(bench.gateway.consume(bench.channel, queue_id, ACKED))
    counting = asyncio.ensure_future(bench.gateway.counts(queue_id))
    await bench.node.run()
    assert not consuming.done()
    bench.node.process("q").unseal()
    await consuming
    assert await counting == (0, 1)


async def test_who_waits_for_a_queue_that_is_deleted_finds_it_gone(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.delete_if(queue_id, if_unused=True, if_empty=True)
    counting = asyncio.ensure_future(bench.gateway.counts(queue_id))
    await bench.node.run()
    bench.node.catalogue.apply(DeleteQueue("/", "q"))
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        await counting


async def test_an_auto_delete_queue_goes_with_its_last_consumer(bench: Bench) -> None:
    queue_id = bench.declare(auto_delete=True)
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    bench.gateway.close_channel(bench.channel)
    await bench.node.run()
    assert bench.node.catalogue.topology.queue("/", "q") is None
    assert not bench.node.has_files(queue_id)


async def test_it_is_noted_that_an_auto_delete_queue_has_a_consumer_when_it_has(bench: Bench) -> None:
    """Before, it might be refused, and be none."""
    noted: list[tuple[str, int]] = []
    bench.gateway.note_consumer = lambda queue: noted.append(
        (queue.name, bench.node.process(queue.name).consumer_count)
    )
    for name, auto_delete in (("stays", False), ("goes", True)):
        queue_id = bench.declare(name, auto_delete=auto_delete)
        await bench.gateway.consume(bench.channel, queue_id, replace(ACKED, consumer_tag=name))
    assert noted == [("goes", 1)]


async def test_credit_is_used_up_while_the_disk_is_behind(bench: Bench) -> None:
    bench.flow.in_process, bench.flow.store = Credit(20, 5), Credit(40, 8)
    queue_id = bench.declare()
    for first in range(1, 60, 10):
        assert bench.sink.heard == []
        bench.publish(queue_id, *range(first, first + 10))
        await bench.node.run()
    assert bench.sink.heard == ["blocked"], "the store's 40 are in flight, and then the queue's 20 are used up"
    assert await bench.heard() == ["blocked", "freed"]


async def test_the_busiest_queue_is_the_one_that_owes_most_confirms(bench: Bench) -> None:
    first, second = bench.declare("first"), bench.declare("second")
    bench.publish(first, 1)
    assert bench.gateway.busiest_queue(bench.channel) is None, "nobody waits for a confirm"
    bench.publish(first, 2, confirm=True)
    bench.publish(second, 3, 4, confirm=True)
    assert bench.gateway.busiest_queue(bench.channel) == second
    await bench.heard()
    assert bench.gateway.busiest_queue(bench.channel) is None
