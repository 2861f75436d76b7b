"""The queue processes of one node, and the gateway of a broker that is alone.

A call into a queue only marks it dirty; `QueueHost.run_dirty`, scheduled once for any number of calls, drains the dirty
queues and hands their effects on. The shell schedules it at the end of the event loop's turn, so whatever
one socket read brought leaves together. A `ChannelKey` may name a channel of any node: the host does not care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from node.errors import ChannelError
from node.flow.credit import FlowControl, Hop
from node.ids import ChannelKey, NodeName, QueueId, SeqId
from node.message import Message
from node.queues.backing_queue import BackingQueue, Delivery
from node.queues.events import (
    CancelConsumer,
    ConfirmPublished,
    ConsumerSpec,
    DeleteUnused,
    Deliver,
    GrantCredit,
    QueueEffect,
    RejectPublished,
)
from node.queues.gateway import QueueChannelSink
from node.queues.options import QueueOptions
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord
from node.topology.topology import TopologyObserver

EffectSink = Callable[[QueueId, list[QueueEffect]], None]
Schedule = Callable[[Callable[[], None]], object]


class QueueHost:
    """Registry of queue processes with the bookkeeping of which of them must be drained."""

    def __init__(self, effect_sink: EffectSink, schedule: Schedule, flow: FlowControl | None = None) -> None:
        self.flow = flow or FlowControl()
        self._effect_sink = effect_sink
        self._schedule = schedule
        self._processes: dict[QueueId, QueueProcess] = {}
        self._dirty: dict[QueueId, None] = {}
        self._is_scheduled = False

    def add(
        self, record: QueueRecord, backing_queue: BackingQueue, options: QueueOptions | None = None
    ) -> QueueProcess:
        """Begin to serve a queue."""
        assert record.queue_id not in self._processes, "a queue has one process on a node"
        process = self._processes[record.queue_id] = QueueProcess(record, backing_queue, options, self.flow)
        self.touch(record.queue_id)
        return process

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        """The process of a queue, to call; follow every call by `touch`."""
        return self._processes.get(queue_id)

    def __iter__(self) -> Iterator[QueueProcess]:
        return iter(self._processes.values())

    def touch(self, queue_id: QueueId) -> None:
        """The queue was called, or its storage made progress: drain it soon."""
        self._dirty[queue_id] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule(self.run_dirty)

    def touch_all(self) -> None:
        """A group commit round is done: any queue may have confirms to give."""
        for queue_id in self._processes:
            self.touch(queue_id)

    def run_dirty(self) -> None:
        """Drain the dirty queues. What their effects touch again waits for the next run."""
        self._is_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for queue_id in dirty:
            self.run(queue_id)

    def run(self, queue_id: QueueId) -> None:
        """Drain one queue now (after a cancel, so that its last deliveries go before the answer)."""
        process = self._processes.get(queue_id)
        if process is None:
            return
        effects = process.drain()
        if process.has_more:
            self.touch(queue_id)
        if effects:
            self._effect_sink(queue_id, effects)

    def remove(self, queue_id: QueueId) -> QueueProcess | None:
        """Stop serving a queue; its backing queue is the caller's to keep, stop or delete."""
        self._dirty.pop(queue_id, None)
        return self._processes.pop(queue_id, None)

    def delete(self, queue_id: QueueId) -> None:
        """The queue is deleted: last effects, then storage and process are gone."""
        process = self.remove(queue_id)
        if process is not None and (effects := process.delete()):
            self._effect_sink(queue_id, effects)

    def node_down(self, node: NodeName) -> None:
        """Every channel of that node is gone."""
        for queue_id, process in self._processes.items():
            for channel in process.channels_of_node(node):
                process.channel_down(channel)
                self.touch(queue_id)

    def check_invariants(self) -> None:
        assert set(self._dirty) <= set(self._processes), "only a queue that is here can be drained"
        assert self._is_scheduled or not self._dirty, "dirty queues have a run to come"
        for queue_id, process in self._processes.items():
            assert process.record.queue_id == queue_id, "a process is filed under its queue"
            process.check_invariants()


#: Session number of the local gateway: a queue here is attached once in its life (`QueueId`s are never reused).
LOCAL_SESSION = 1


class LocalQueueGateway(TopologyObserver):
    """Implements `QueueGateway` for a broker that is alone; follows the topology it is registered with.

    ``make_backing_queue`` opens the storage of a queue; ``delete_unused`` is asked to delete an auto-delete queue
    that lost its last consumer.
    """

    def __init__(
        self,
        node: NodeName,
        schedule: Schedule,
        make_backing_queue: Callable[[QueueRecord], BackingQueue],
        delete_unused: Callable[[QueueRecord], None],
        flow: FlowControl | None = None,
    ) -> None:
        self._node = node
        self._make_backing_queue = make_backing_queue
        self._delete_unused = delete_unused
        self.host = QueueHost(self._dispatch_effects, schedule, flow)
        self._sinks: dict[ChannelKey, QueueChannelSink] = {}
        #: Credit of each channel towards the queues it publishes to.
        self._hops: dict[ChannelKey, dict[QueueId, Hop]] = {}
        #: Queues that a channel consumes from, fetched from or publishes to: where it may hold or be owed something.
        self._used: dict[ChannelKey, set[QueueId]] = {}
        self._last_channel_id = 0

    # --- the topology ---

    def queue_added(self, queue: QueueRecord) -> None:
        self.host.add(queue, self._make_backing_queue(queue))

    def queue_removed(self, queue: QueueRecord) -> None:
        self.host.delete(queue.queue_id)
        for used in self._used.values():
            used.discard(queue.queue_id)
        for channel, hops in self._hops.items():
            hop = hops.pop(queue.queue_id, None)
            if hop is not None and hop.reset():
                self._sinks[channel].queue_hop_changed(hop)

    # --- QueueGateway ---

    def open_channel(self, sink: QueueChannelSink) -> ChannelKey:
        self._last_channel_id += 1
        channel = ChannelKey(self._node, self._last_channel_id)
        self._sinks[channel] = sink
        self._used[channel] = set()
        self._hops[channel] = {}
        return channel

    def publish(
        self, channel: ChannelKey, queue_id: QueueId, messages: Sequence[Message], publish_seqs: Sequence[int]
    ) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            hop = self._hop(channel, queue_id, process)
            process.publish(channel, messages, publish_seqs)
            if hop.change(process.flow.take(channel) - len(messages)):
                self._sinks[channel].queue_hop_changed(hop)
            self.host.touch(queue_id)
        elif waiting := [seq for seq in publish_seqs if seq]:
            self._sinks[channel].queue_confirmed(queue_id, waiting)

    def _hop(self, channel: ChannelKey, queue_id: QueueId, process: QueueProcess) -> Hop:
        hops = self._hops[channel]
        hop = hops.get(queue_id)
        if hop is None:
            credit = self.host.flow.in_process
            hop = hops[queue_id] = Hop(queue_id, credit)
            process.flow.begin(channel, credit.more_after)
            self._used[channel].add(queue_id)
        return hop

    def settle_ack(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            process.ack(channel, seq_ids)
            self.host.touch(queue_id)

    def settle_requeue(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            process.requeue(channel, seq_ids)
            self.host.touch(queue_id)

    def settle_discard(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            process.discard(channel, seq_ids)
            self.host.touch(queue_id)

    def grant(self, channel: ChannelKey, queue_id: QueueId, session: int, consumer_tag: str, count: int) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            process.grant(channel, consumer_tag, count)
            self.host.touch(queue_id)

    async def consume(self, channel: ChannelKey, queue_id: QueueId, spec: ConsumerSpec) -> None:
        self._existing(queue_id).consume(channel, spec)
        self._used[channel].add(queue_id)
        self.host.touch(queue_id)

    async def cancel(self, channel: ChannelKey, queue_id: QueueId, consumer_tag: str) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            process.cancel(channel, consumer_tag)
            self.host.run(queue_id)

    async def get(self, channel: ChannelKey, queue_id: QueueId, no_ack: bool) -> tuple[int, Delivery, int] | None:
        process = self._existing(queue_id)
        delivery = process.get(channel, no_ack)
        self._used[channel].add(queue_id)
        self.host.touch(queue_id)
        return None if delivery is None else (LOCAL_SESSION, delivery, process.ready)

    async def purge(self, queue_id: QueueId) -> int:
        purged = self._existing(queue_id).purge()
        self.host.touch(queue_id)
        return purged

    async def counts(self, queue_id: QueueId) -> tuple[int, int]:
        process = self._existing(queue_id)
        return process.ready, process.consumer_count

    async def delete_if(self, queue_id: QueueId, if_unused: bool, if_empty: bool) -> int:
        process = self.host.process(queue_id)
        return process.seal_for_delete(if_unused, if_empty) if process is not None else 0

    async def delete_abandoned(self, queue_id: QueueId) -> None:
        process = self.host.process(queue_id)
        if process is not None:
            process.unseal()
            self.host.touch(queue_id)

    def busiest_queue(self, channel: ChannelKey) -> QueueId | None:
        hops = self._hops.get(channel)
        return min(hops, key=lambda queue_id: hops[queue_id].balance) if hops else None

    def close_channel(self, channel: ChannelKey) -> None:
        self._sinks.pop(channel, None)
        self._hops.pop(channel, None)
        for queue_id in self._used.pop(channel, ()):
            process = self.host.process(queue_id)
            if process is not None:
                process.channel_down(channel)
                self.host.touch(queue_id)

    # --- effects ---

    def _existing(self, queue_id: QueueId) -> QueueProcess:
        process = self.host.process(queue_id)
        if process is None:
            raise ChannelError(404, f"the queue with identity {queue_id} no longer exists")
        return process

    def _dispatch_effects(self, queue_id: QueueId, effects: list[QueueEffect]) -> None:
        for effect in effects:
            if isinstance(effect, DeleteUnused):
                process = self.host.process(queue_id)
                if process is not None:
                    self._delete_unused(process.record)
                continue
            sink = self._sinks.get(effect.channel)
            if sink is None:
                continue  # the channel closed in the meantime; what it held was requeued by that
            match effect:
                case Deliver():
                    sink.queue_delivered(queue_id, LOCAL_SESSION, effect.consumer_tag, effect.deliveries)
                case ConfirmPublished():
                    sink.queue_confirmed(queue_id, effect.publish_seqs)
                case GrantCredit():
                    hop = self._hops[effect.channel][queue_id]
                    if hop.change(effect.messages):
                        sink.queue_hop_changed(hop)
                case RejectPublished():
                    sink.queue_rejected(queue_id, effect.publish_seqs)
                case CancelConsumer():
                    sink.queue_cancelled_consumer(queue_id, effect.consumer_tag)

    def check_invariants(self) -> None:
        self.host.check_invariants()
        assert set(self._used) == set(self._sinks), "a channel is open in both tables or in none"
