"""Nodes that talk sessions, joined by hand: nothing moves until `pump` is called.

A harness: gateways, hosts and queue processes are real, and what is between them are lists that a test hands over, so
that one rule of the sessions shows at a time. Whole nodes under faults are the simulator's (`chaos.sim`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from cluster.metadata.records import MastershipRecord
from cluster.runtime.applier import SLICE_PIECES
from cluster.sessions.gateway import ClusterGateway
from cluster.sessions.host import SessionHost
from cluster.sessions.messages import (
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionMessage,
    SessionOpened,
    SessionReply,
)
from node.flow.credit import FlowControl, Hop
from node.ids import ChannelKey, Epoch, Incarnation, NodeName, OriginId, QueueId
from node.message import Message
from node.queues.backing_queue import BackingQueue, Delivery, Publication
from node.queues.events import ConsumerSpec
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord
from tests.support.messages import make_msg_id
from tests.support.queue_bench import SteeredQueue

QUEUE = QueueId(7)
TO_ENTRY = (SessionOpened, SessionDeliver, SessionConfirm, SessionCredit, SessionConsumerCancelled, SessionReply)


def message(counter: int, body: bytes = b"body", origin: bytes = b"origin-1") -> Message:
    return Message(make_msg_id(OriginId(origin), counter), "", "q", b"\0\0", body, persistent=True)


def queue_record(queue_id: QueueId) -> QueueRecord:
    return QueueRecord(queue_id, "/", "q", True, None, False, {})


def record(master: str, epoch: int, *, is_down: bool = False) -> MastershipRecord:
    return MastershipRecord(QUEUE, Epoch(epoch), NodeName(master), is_down=is_down)


class RecordingSink:
    """What one channel was told."""

    def __init__(self) -> None:
        self.delivered: list[tuple[str, bytes, bool]] = []
        self.sources: list[tuple[int, Delivery]] = []
        self.confirmed: list[int] = []
        self.rejected: list[int] = []
        self.cancelled: list[str] = []
        self.sessions_over: list[int] = []
        self.hop: Hop | None = None
        self._waits = False

    def queue_delivered(self, queue_id: int, session: int, consumer_tag: str, deliveries: Sequence[Delivery]) -> None:
        self.delivered += [(consumer_tag, each.message.body, each.redelivered) for each in deliveries]
        self.sources += [(session, each) for each in deliveries]

    def queue_confirmed(self, queue_id: int, publish_seqs: Sequence[int]) -> None:
        assert publish_seqs, "told of nothing"
        self.confirmed += publish_seqs

    def queue_rejected(self, queue_id: int, publish_seqs: Sequence[int]) -> None:
        assert publish_seqs, "told of nothing"
        self.rejected += publish_seqs

    def queue_cancelled_consumer(self, queue_id: int, consumer_tag: str) -> None:
        self.cancelled.append(consumer_tag)

    def queue_session_over(self, queue_id: int, session: int) -> None:
        self.sessions_over.append(session)

    def queue_hop_changed(self, hop: Hop) -> None:
        self.hop = hop
        assert hop.is_blocked is not self._waits, "told of a change that is none"
        self._waits = hop.is_blocked

    def waits(self) -> bool:
        """Its credit towards the queue is used up."""
        return self._waits


def _clock() -> float:
    return 0.0


class SessionNode:
    """One node: gateway, session host and at most one queue process."""

    def __init__(self, name: str, network: SessionNetwork, incarnation: int = 1) -> None:
        self.name = NodeName(name)
        self.incarnation = Incarnation(incarnation)
        self.network = network
        self.queue: QueueProcess | None = None
        #: It was called, and is to be drained at the end of this turn.
        self._is_touched = False
        #: Sealed queues whose deletion was left to this node to decide.
        self.settled: list[QueueId] = []
        loop = asyncio.get_running_loop()
        self.gateway = ClusterGateway(
            self.name,
            self,
            self,
            network.mastership,
            queue_record,
            loop,
            network.flow,
            incarnation=self.incarnation,
            clock=_clock,
            slice_pieces=SLICE_PIECES,
        )
        self.host = SessionHost(self, self, call_soon=loop.call_soon, clock=_clock, per_turn=SLICE_PIECES)

    def master(self, backing_queue: BackingQueue) -> None:
        self.queue = QueueProcess(queue_record(QUEUE), backing_queue, flow=self.network.flow)
        self.touch(QUEUE)

    def end_turn(self) -> None:
        """Drain the queue if it was called, as the shell does."""
        if self._is_touched and self.queue is not None:
            self._is_touched = False
            self.run(QUEUE)
            self._is_touched = self._is_touched or (self.queue is not None and self.queue.has_more)

    def sync(self) -> None:
        """What the queue was given is on disk; the shell looks at it again."""
        assert self.queue is not None
        assert isinstance(self.queue.backing_queue, SteeredQueue)
        self.queue.backing_queue.sync()
        self.touch(QUEUE)

    def unseal(self) -> None:
        """It is known that the queue is not deleted."""
        assert self.queue is not None
        self.queue.unseal()
        self.touch(QUEUE)

    # LocalQueues and Links

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        return self.queue

    def touch(self, queue_id: QueueId) -> None:
        self._is_touched = True

    def run(self, queue_id: QueueId) -> None:
        if self.queue is not None:
            effects = self.queue.drain()
            self.gateway.local_effects(queue_id, [each for each in effects if _node_of(each) == self.name])
            self.host.remote_effects(queue_id, [each for each in effects if _node_of(each) != self.name])

    def deliver(self, node: NodeName, message: SessionMessage, _size_bytes: int) -> None:
        self.send(node, message)

    def is_full_now(self, node: NodeName) -> bool:
        return False

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        raise AssertionError("no link is ever full")

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None:
        return None if self.queue is None or self.network.current is None else self.network.current.epoch

    def settle_deletion(self, queue_id: QueueId) -> None:
        self.settled.append(queue_id)

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        self.queue = None
        self.gateway.queue_stopped(queue_id)
        self.host.queue_stopped(queue_id)

    def send(self, node: NodeName, message: SessionMessage) -> None:
        self.network.send(self.name, node, message)

    def is_up(self, node: NodeName) -> bool:
        return node not in self.network.cut

    def is_congested(self, node: NodeName) -> bool:
        return self.is_congested_now(node)

    def is_congested_now(self, node: NodeName) -> bool:
        return (self.name, node) in self.network.congested


class SessionNetwork:
    """Delivers in order per directed pair; a cut loses what is under way."""

    def __init__(self, *names: str) -> None:
        self.cut: set[NodeName] = set()
        self.current: MastershipRecord | None = None
        self.flow = FlowControl()
        #: Links, by sender and receiver, on which too much waits to be sent.
        self.congested: set[tuple[str, str]] = set()
        self._wires: dict[tuple[NodeName, NodeName], deque[SessionMessage]] = {}
        self.nodes = {NodeName(name): SessionNode(name, self) for name in names}

    def __getitem__(self, name: str) -> SessionNode:
        return self.nodes[NodeName(name)]

    def mastership(self, queue_id: QueueId) -> MastershipRecord | None:
        return self.current

    def send(self, sender: NodeName, receiver: NodeName, message: SessionMessage) -> None:
        if receiver not in self.cut and sender not in self.cut:
            self._wires.setdefault((sender, receiver), deque()).append(message)

    def move(self, to: MastershipRecord) -> None:
        """Every node applies a new mastership record."""
        self.current = to
        for node in self.nodes.values():
            node.gateway.mastership_changed(to)

    def lose(self, name: str) -> None:
        """A node falls silent: what is on its wires is lost, the others see the link break."""
        lost = NodeName(name)
        self.cut.add(lost)
        for pair in [pair for pair in self._wires if lost in pair]:
            del self._wires[pair]
        for node in self.nodes.values():
            if node.name != lost:
                node.gateway.link_down(lost)
                node.host.node_lost(lost, is_linked=False)

    def restart(self, name: str) -> None:
        """A node that fell silent has died, and begins its next life."""
        lost = self[name]
        self.nodes[lost.name] = SessionNode(name, self, lost.incarnation + 1)
        self.cut.discard(lost.name)

    async def pump(self, *, batched: bool = False) -> None:
        """Deliver until nothing is under way, draining the queues as the shell would.

        ``batched``: everything on a wire arrives in one turn of the receiver's loop, otherwise message by message.
        """
        while True:
            for node in self.nodes.values():
                node.end_turn()
            await asyncio.sleep(0)  # coroutines that wait for an answer go on
            busy = [(pair, wire) for pair, wire in self._wires.items() if wire]
            if not busy:
                break
            for (sender, receiver), wire in busy:
                for _ in range(len(wire) if batched else 1):
                    self._hand_over(sender, self.nodes[receiver], wire.popleft())
        for node in self.nodes.values():
            node.gateway.check_invariants()
            node.host.check_invariants()

    def hand_over(self, sender: str, receiver: str) -> None:
        """What is on one wire arrives, and no coroutine runs meanwhile."""
        wire = self._wires.get((NodeName(sender), NodeName(receiver)), deque())
        while wire:
            self._hand_over(NodeName(sender), self[receiver], wire.popleft())

    def _hand_over(self, sender: NodeName, target: SessionNode, message: SessionMessage) -> None:
        if isinstance(message, TO_ENTRY):
            target.gateway.receive(sender, message)
        else:
            target.host.receive(sender, message)


def _node_of(effect: object) -> NodeName:
    channel: ChannelKey = effect.channel  # type: ignore[attr-defined]
    return channel.node


def stored(*messages: Message) -> SteeredQueue:
    """A backing queue that already has these messages, as a promoted mirror would."""
    queue = SteeredQueue()
    queue.publish([Publication(each) for each in messages])
    return queue


async def consume(network: SessionNetwork, entry: str, spec: ConsumerSpec) -> tuple[RecordingSink, ChannelKey]:
    """A new channel of this node consumes from the queue; what it has been sent when that is answered is there."""
    sink = RecordingSink()
    channel = network[entry].gateway.open_channel(sink)
    task = asyncio.ensure_future(network[entry].gateway.consume(channel, QUEUE, spec))
    await network.pump()
    await task
    await network.pump()
    return sink, channel
