"""Queues are drained once per turn, and a lone broker's channels reach them through the local gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from node.errors import ChannelError
from node.flow.credit import Hop
from node.ids import ChannelKey, NodeName, QueueId, SeqId
from node.queues.backing_queue import Delivery
from node.queues.events import ConsumerSpec, Deliver, QueueEffect
from node.queues.queue_host import LOCAL_SESSION, LocalQueueGateway, QueueHost
from node.queues.queue_process import DISPATCH_MAX
from node.topology.commands import DeclareQueue, DeleteQueue
from node.topology.local_catalogue import LocalCatalogue
from node.topology.records import QueueRecord
from tests.support.memory_backing_queue import MemoryBackingQueue
from tests.support.queue_bench import channel, message, queue_record

ACKED = ConsumerSpec("t", no_ack=False, exclusive=False)


class Turns:
    """Collects callbacks as a loop's ``call_soon`` does, and runs them when told."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def schedule(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def run(self) -> int:
        """Run what waits until nothing does; how many callbacks ran."""
        count = 0
        while self.waiting:
            count += 1
            self.waiting.pop(0)()
        return count


class Sink:
    """Writes down what queues tell a channel."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def queue_delivered(
        self, queue_id: QueueId, session: int, consumer_tag: str, deliveries: Sequence[Delivery]
    ) -> None:
        assert session == LOCAL_SESSION
        self.heard.append(f"{queue_id}.{consumer_tag}: " + " ".join(each.message.body.decode() for each in deliveries))

    def queue_confirmed(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self.heard.append(f"{queue_id} confirm {' '.join(map(str, publish_seqs))}")

    def queue_rejected(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self.heard.append(f"{queue_id} reject {' '.join(map(str, publish_seqs))}")

    def queue_cancelled_consumer(self, queue_id: QueueId, consumer_tag: str) -> None:
        self.heard.append(f"{queue_id} cancelled {consumer_tag}")

    def queue_hop_changed(self, hop: Hop) -> None:
        self.heard.append(f"{hop.receiver} {'blocked' if hop.is_blocked else 'freed'}")


def test_many_calls_make_one_drain() -> None:
    turns = Turns()
    effects: list[tuple[QueueId, list[QueueEffect]]] = []
    host = QueueHost(lambda queue_id, each: effects.append((queue_id, each)), turns.schedule)
    for number in (1, 2):
        host.add(queue_record(queue_id=QueueId(number)), MemoryBackingQueue())
    for counter in (1, 2, 3):
        process = host.process(QueueId(1))
        assert process is not None
        process.publish(channel(1), [message(counter)], [counter])
        host.touch(QueueId(1))
        host.check_invariants()
    assert turns.run() == 1
    assert [(queue_id, len(each)) for queue_id, each in effects] == [(1, 1)]
    host.touch_all()
    assert turns.run() == 1
    assert len(effects) == 1, "nothing to tell"


def test_a_backlog_is_delivered_over_several_turns() -> None:
    turns = Turns()
    shares: list[int] = []

    def note(_queue_id: QueueId, effects: list[QueueEffect]) -> None:
        shares.extend(len(each.deliveries) for each in effects if isinstance(each, Deliver))

    host = QueueHost(note, turns.schedule)
    process = host.add(queue_record(), MemoryBackingQueue())
    process.publish(channel(1), [message(counter) for counter in range(1, DISPATCH_MAX + 2)], [0] * (DISPATCH_MAX + 1))
    process.consume(channel(1), ACKED)
    host.touch(process.record.queue_id)
    assert turns.run() == 2
    assert shares == [DISPATCH_MAX, 1]


def test_a_node_that_is_down_gives_back_what_its_channels_held() -> None:
    turns = Turns()
    host = QueueHost(lambda queue_id, effects: None, turns.schedule)
    process = host.add(queue_record(), MemoryBackingQueue())
    process.consume(ChannelKey(NodeName("n2"), 1), ACKED)
    process.publish(channel(1), [message(1)], [0])
    host.node_down(NodeName("n1"))
    assert process.unacked == 1
    host.node_down(NodeName("n2"))
    assert (process.ready, process.consumer_count) == (1, 0)
    assert host.remove(process.record.queue_id) is process
    host.check_invariants()


class Bench:
    """A local gateway under a local catalogue."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.catalogue = LocalCatalogue()
        self.storages: dict[QueueId, MemoryBackingQueue] = {}
        self.gateway = LocalQueueGateway(
            NodeName("n1"), self.turns.schedule, self.make_storage, delete_unused=self.delete_unused
        )
        self.catalogue.topology.observe(self.gateway)
        self.sink = Sink()
        self.channel = self.gateway.open_channel(self.sink)

    def make_storage(self, queue: QueueRecord) -> MemoryBackingQueue:
        storage = self.storages[queue.queue_id] = MemoryBackingQueue()
        return storage

    def delete_unused(self, queue: QueueRecord) -> None:
        self.catalogue.apply(DeleteQueue(queue.vhost, queue.name, queue.queue_id))

    def declare(self, name: str = "q", auto_delete: bool = False) -> QueueId:
        record: QueueRecord = self.catalogue.apply(DeclareQueue("/", name, auto_delete=auto_delete))
        return record.queue_id

    def heard(self) -> list[str]:
        self.turns.run()
        self.gateway.check_invariants()
        heard, self.sink.heard = self.sink.heard, []
        return heard


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_publish_consume_and_settle(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    bench.gateway.publish(bench.channel, queue_id, [message(1), message(2), message(3)], [1, 2, 3])
    assert bench.heard() == ["1.t: 1 2 3", "1 confirm 1 2 3"]
    bench.gateway.settle_ack(bench.channel, queue_id, LOCAL_SESSION, [SeqId(1)])
    bench.gateway.settle_discard(bench.channel, queue_id, LOCAL_SESSION, [SeqId(2)])
    bench.gateway.settle_requeue(bench.channel, queue_id, LOCAL_SESSION, [SeqId(3)])
    assert bench.heard() == ["1.t: 3"]
    bench.gateway.grant(bench.channel, queue_id, LOCAL_SESSION, "t", 4)
    assert await bench.gateway.counts(queue_id) == (0, 1)


async def test_cancel_is_answered_after_the_last_deliveries(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    bench.gateway.publish(bench.channel, queue_id, [message(1)], [0])
    await bench.gateway.cancel(bench.channel, queue_id, "t")
    assert bench.sink.heard == ["1.t: 1"]
    bench.gateway.publish(bench.channel, queue_id, [message(2)], [0])
    assert bench.heard() == ["1.t: 1"]


async def test_get_purge_and_close(bench: Bench) -> None:
    queue_id = bench.declare()
    assert await bench.gateway.get(bench.channel, queue_id, no_ack=False) is None
    bench.gateway.publish(bench.channel, queue_id, [message(1), message(2), message(3)], [0, 0, 0])
    got = await bench.gateway.get(bench.channel, queue_id, no_ack=False)
    assert got is not None
    assert (got[0], got[1].seq_id, got[2]) == (LOCAL_SESSION, 1, 2)
    bench.gateway.close_channel(bench.channel)
    assert await bench.gateway.counts(queue_id) == (3, 0)
    assert await bench.gateway.purge(queue_id) == 3


async def test_deletion_cancels_and_later_publishes_count_as_confirmed(bench: Bench) -> None:
    queue_id = bench.declare()
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    assert await bench.gateway.delete_if(queue_id, if_unused=False, if_empty=True) == 0
    bench.catalogue.apply(DeleteQueue("/", "q"))
    bench.gateway.publish(bench.channel, queue_id, [message(1), message(2)], [0, 5])
    assert bench.heard() == ["1 cancelled t", "1 confirm 5"]
    assert bench.storages[queue_id].is_deleted
    assert await bench.gateway.delete_if(queue_id, if_unused=False, if_empty=False) == 0
    with pytest.raises(ChannelError) as caught:
        await bench.gateway.counts(queue_id)
    assert caught.value.reply_code == 404


async def test_an_auto_delete_queue_goes_with_its_last_consumer(bench: Bench) -> None:
    queue_id = bench.declare(auto_delete=True)
    await bench.gateway.consume(bench.channel, queue_id, ACKED)
    bench.gateway.close_channel(bench.channel)
    bench.turns.run()
    assert bench.catalogue.topology.queue("/", "q") is None
    assert bench.storages[queue_id].is_deleted
