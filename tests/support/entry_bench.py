"""The entry node n1 alone: the test speaks for masters, records, links and the shell, and reads what went out."""

from __future__ import annotations

from cluster.metadata.records import MastershipRecord
from cluster.sessions.entry import Entry
from cluster.sessions.messages import (
    SessionCall,
    SessionConfirm,
    SessionDeliver,
    SessionMessage,
    SessionOpen,
    SessionOpened,
    SessionPublish,
    SessionReply,
)
from cluster.sessions.ports import EntryEffect
from cluster.sessions.questions import Answer, Question
from cluster.sessions.routes import Call, ConsumerKey
from node.ids import ChannelKey, Epoch, Incarnation, NodeName, QueueId, SeqId
from node.message import iter_envelopes, pack_envelopes
from node.queues.backing_queue import BackingQueue
from node.queues.events import ConsumerSpec
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord
from tests.support.session_network import QUEUE, RecordingSink, message, queue_record, record

HERE = NodeName("n1")


def answer(call: Call, session: int, number: int = 0, code: int = 0) -> SessionReply:
    """Of the master, a refusal if it has a ``code``."""
    return SessionReply(QUEUE, session, call.call_id, reply_code=code, reply_text="no" if code else "", number=number)


class EntryBench:
    """Implements `LocalQueues` and `Links` for the entry that it holds. After each step the invariants are checked."""

    def __init__(self, master: str = "n2", *linked: str) -> None:
        self.current: MastershipRecord | None = record(master, 1)
        self.linked = {NodeName(name) for name in linked or (master,)}
        self.queue: QueueProcess | None = None
        #: It was called, and is to be drained at the end of this turn.
        self._is_touched = False
        #: Sealed queues whose deletion was left to this node to decide.
        self.settled: list[QueueId] = []
        #: Why the queue here went out of service, each time that it was said.
        self.failures: list[Exception] = []
        self.effects: list[EntryEffect] = []
        self._sent: list[tuple[NodeName, SessionMessage]] = []
        self._said_bytes: dict[NodeName, int] = {}
        #: Envelopes above which a link is congested.
        self.link_bytes = 8 * 1024 * 1024
        self.entry = Entry(
            HERE,
            self,
            self,
            lambda _: self.current,
            self.queue_record,
            self.effects.append,
            incarnation=Incarnation(0),  # so sessions are numbered from 1
        )
        self.sink = RecordingSink()
        self.channel = self.entry.open_channel(self.sink)
        self.now_s = 100.0

    def queue_record(self, queue_id: QueueId) -> QueueRecord | None:
        return None if self.current is None else queue_record(queue_id)

    # --- LocalQueues and Links ---

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        return self.queue

    def touch(self, queue_id: QueueId) -> None:
        self._is_touched = True

    def run(self, queue_id: QueueId) -> None:
        if self.queue is not None:
            self.entry.local_effects(queue_id, self.queue.drain())
        self.entry.check_invariants()

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None:
        return None if self.queue is None or self.current is None else self.current.epoch

    def settle_deletion(self, queue_id: QueueId) -> None:
        self.settled.append(queue_id)

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        self.queue = None
        self.failures.append(error)
        self.entry.queue_stopped(queue_id)

    def send(self, node: NodeName, message: SessionMessage) -> None:
        self._sent.append((node, message))
        if isinstance(message, SessionPublish):
            self._said_bytes[node] = self._said_bytes.get(node, 0) + len(message.envelopes)

    def is_up(self, node: NodeName) -> bool:
        return node in self.linked

    def is_congested(self, node: NodeName) -> bool:
        return self.is_congested_now(node)

    def is_congested_now(self, node: NodeName) -> bool:
        """What is said counts until the test has looked at it."""
        return self._said_bytes.get(node, 0) > self.link_bytes

    # --- what the cluster does ---

    def masters_here(self, backing_queue: BackingQueue) -> None:
        self.queue = QueueProcess(queue_record(QUEUE), backing_queue)

    def end_turn(self) -> None:
        """The queue here is drained if it was called, as the shell does it."""
        if self._is_touched:
            self._is_touched = False
            self.run(QUEUE)

    def moves(self, master: str, epoch: int, *, is_down: bool = False) -> None:
        self.current = record(master, epoch, is_down=is_down)
        self.entry.mastership_changed(self.current)
        self.entry.check_invariants()

    def link_breaks(self, name: str) -> None:
        self.linked.discard(NodeName(name))
        self.entry.link_down(NodeName(name))
        self.entry.check_invariants()

    def link_comes(self, name: str) -> None:
        self.linked.add(NodeName(name))
        for queue_id in self.entry.waiting_for(NodeName(name)):
            self.entry.reopen(queue_id)
        self.entry.check_invariants()

    def queue_is_deleted(self) -> None:
        self.current = None
        self.entry.queue_deleted(QUEUE)
        self.entry.check_invariants()

    # --- what a master says ---

    def hears(self, message: SessionMessage, node: str = "") -> None:
        """Of the present master, unless another is named."""
        assert node or self.current is not None
        self.entry.receive(NodeName(node) if node or self.current is None else self.current.master, message)
        self.entry.check_invariants()

    def accepts(self, session: int) -> None:
        self.hears(SessionOpened(QUEUE, session))

    def refuses(self, session: int) -> None:
        self.hears(SessionOpened(QUEUE, session, "not the master"))

    def confirms(self, session: int, *publish_seqs: int, node: str = "") -> None:
        self.hears(SessionConfirm(QUEUE, session, self.channel.channel_id, publish_seqs), node)

    def delivers(self, session: int, tag: str, *bodies: bytes) -> None:
        messages = [message(number, body) for number, body in enumerate(bodies, 1)]
        seq_ids = [SeqId(number) for number, _ in enumerate(bodies)]
        flags = [False] * len(bodies)
        envelopes = pack_envelopes(messages)
        self.hears(SessionDeliver(QUEUE, session, self.channel.channel_id, tag, seq_ids, flags, envelopes))

    # --- what the channel does ---

    def publishes(self, *publish_seqs: int, channel: ChannelKey | None = None) -> None:
        """Of ``b"1"`` with publish sequence number 1, and so on."""
        messages = [message(seq, b"%d" % seq) for seq in publish_seqs]
        self.entry.publish(channel or self.channel, QUEUE, messages, publish_seqs)
        self.entry.check_invariants()

    def closes(self) -> None:
        self.entry.close_channel(self.channel)
        self.entry.check_invariants()

    def asks(self, question: Question) -> Call:
        """A call, not carried on with yet."""
        call = self.entry.calls.ask(self.channel, QUEUE, question, self.now_s)
        self.entry.check_invariants()
        return call

    def proceeds(self, call: Call) -> Answer | None:
        try:
            return self.entry.calls.proceed(call)
        finally:
            self.entry.check_invariants()

    def consumes(self, session: int, spec: ConsumerSpec) -> None:
        """From the question to the moment at which the client knows that its consumer exists."""
        call = self.asks(Question("consume", consumer=spec))
        assert self.proceeds(call) is None
        self.hears(SessionReply(QUEUE, session, call.call_id))
        assert self.proceeds(call) is not None
        self.knows(spec.consumer_tag)
        self.sent()
        self.effects.clear()

    def knows(self, tag: str) -> None:
        self.entry.consumer_started(ConsumerKey(self.channel, tag))
        self.entry.check_invariants()

    # --- what went out since the last look ---

    def sent(self) -> list[tuple[str, SessionMessage]]:
        sent, self._sent = self._sent, []
        self._said_bytes.clear()
        return [(str(node), each) for node, each in sent]

    def told(self) -> list[str]:
        """In a line each, such as ``n2 open 1``, ``n2 publish 1: 7 8 resent`` or ``n3 consume 2``."""
        return [f"{node} {_in_words(each)}" for node, each in self.sent()]

    def emitted(self) -> list[EntryEffect]:
        effects = self.effects[:]
        self.effects.clear()
        return effects


def _in_words(message: SessionMessage) -> str:
    if isinstance(message, SessionOpen):
        return f"open {message.session}"
    if isinstance(message, SessionPublish):
        bodies = b" ".join(each.body for each in iter_envelopes(message.envelopes)).decode()
        return f"publish {message.session}: {bodies}{' resent' if message.is_resent else ''}"
    if isinstance(message, SessionCall):
        return f"{message.verb} {message.session}"
    return f"{type(message).__name__.removeprefix('Session').lower()} {message.session}"
