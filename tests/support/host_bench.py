"""The master's end of sessions, on its own: the test speaks for the entry nodes and the record."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from cluster.runtime.applier import SLICE_PIECES
from cluster.sessions.host import SessionHost
from cluster.sessions.messages import (
    SessionCall,
    SessionMessage,
    SessionOpen,
    SessionOpened,
    SessionPublish,
    SessionReply,
)
from node.flow.credit import Credit, FlowControl
from node.ids import Epoch, NodeName, QueueId
from node.message import pack_envelopes
from node.queues.events import ConsumerSpec, DeleteUnused
from node.queues.queue_process import QueueProcess
from tests.support.queue_bench import SteeredQueue, queue_record
from tests.support.session_network import QUEUE, message

N1, N3 = NodeName("n1"), NodeName("n3")
EPOCH = Epoch(4)
CONSUMER = ConsumerSpec("tag", no_ack=False, exclusive=False)


class HostBench:
    """Implements `LocalQueues` for the host. After each step the invariants are checked."""

    def __init__(self, *, auto_delete: bool = False) -> None:
        record = queue_record(queue_id=QUEUE, auto_delete=auto_delete)
        flow = FlowControl()
        flow.store = Credit(40, 8)
        self.storage = SteeredQueue(durable=True)
        self.queue: QueueProcess | None = QueueProcess(record, self.storage, flow=flow)
        self.is_in_service = True
        self.settled: list[QueueId] = []
        self.failures: list[Exception] = []
        #: The queue is to be deleted, if it is unused still.
        self.was_offered_for_deletion = False
        self._is_touched = False
        self._sent: list[tuple[NodeName, SessionMessage]] = []
        self._later: list[Callable[[], None]] = []
        #: Nodes with links that are full, and who waits for them.
        self.full: set[NodeName] = set()
        self.line: dict[Hashable, Callable[[], None]] = {}
        self.delivered_bytes = 0
        self.host = SessionHost(
            self,
            self,
            call_soon=self._later.append,
            clock=lambda: 0.0,
            per_turn=SLICE_PIECES,
        )

    # --- MasterLinks ---

    def send(self, node: NodeName, message: SessionMessage) -> None:
        self._sent.append((node, message))

    def deliver(self, node: NodeName, message: SessionMessage, size_bytes: int) -> None:
        self.delivered_bytes += size_bytes
        self.send(node, message)

    def is_full_now(self, node: NodeName) -> bool:
        return node in self.full

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        assert node in self.full, "there is something to wait for"
        self.line[key] = go_on

    def room_comes(self) -> None:
        self.full.clear()
        line, self.line = self.line, {}
        for go_on in line.values():
            go_on()
            self.host.check_invariants()

    # --- LocalQueues ---

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        return self.queue

    def touch(self, queue_id: QueueId) -> None:
        self._is_touched = True

    def run(self, queue_id: QueueId) -> None:
        assert self.queue is not None
        effects = self.queue.drain()
        is_to_be_looked_at = any(isinstance(effect, DeleteUnused) for effect in effects)
        self.was_offered_for_deletion |= is_to_be_looked_at and self.queue.is_unused
        self.host.remote_effects(queue_id, effects)

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None:
        return EPOCH if self.is_in_service else None

    def settle_deletion(self, queue_id: QueueId) -> None:
        self.settled.append(queue_id)

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        self.failures.append(error)
        self.queue = None
        self.host.queue_stopped(queue_id)

    # --- what entry nodes do ---

    def hears(self, said: SessionMessage, node: NodeName = N1) -> None:
        self.host.receive(node, said)
        self.host.check_invariants()

    def opens(self, session: int, node: NodeName = N1, *, has_consumed: bool = False) -> None:
        self.hears(SessionOpen(QUEUE, session, EPOCH, 8, has_consumed), node)
        assert self.told(node) == [SessionOpened(QUEUE, session)]

    def publishes(self, session: int, *counters: int) -> None:
        """On channel 1, for the first time."""
        self.hears(SessionPublish(QUEUE, session, 1, counters, envelopes(*counters)))

    def asks(self, session: int, verb: str, channel: int = 1, consumer: ConsumerSpec | None = None) -> SessionReply:
        self.hears(SessionCall(QUEUE, session, 50, verb, channel, consumer))
        [reply] = [each for each in self.told() if isinstance(each, SessionReply)]
        assert (reply.session, reply.call_id) == (session, 50)
        return reply

    def end_turn(self) -> None:
        """The queue is drained, if it was called."""
        if self._is_touched and self.queue is not None:
            self._is_touched = False
            self.run(QUEUE)

    def told(self, node: NodeName = N1) -> list[SessionMessage]:
        """What this node was told since the last look."""
        told = [each for to, each in self._sent if to == node]
        self._sent = [(to, each) for to, each in self._sent if to != node]
        return told


def envelopes(*counters: int) -> bytes:
    return pack_envelopes([message(counter, b"%d" % counter) for counter in counters])
