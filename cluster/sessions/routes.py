"""The entry node's view of one queue: where its master is and what is under way to it.

A `Route` exists as soon as a channel of this node uses a queue. Its state::

    WAITING --(master known, reachable)--> OPENING --(SessionOpened)--> OPEN
       ^                                      |                           |
       +------- link lost, refused, mastership moved, node stopped -------+

Everything a client may not lose is kept on the route until the master has answered for it:

- ``unconfirmed``: publishes whose confirm somebody waits for. They are sent again, in order, on the next session;
  the master recognises by message id those that it has (`BackingQueue.is_duplicate`).
- ``untracked``: publishes that found no open session and whose confirms nobody waits for: those of closed channels, and
  while the queue ``is_down``, maybe for days, those of channels that number their publishes for themselves
  (`INTERNAL_SEQ_BASE`). They are told that these are confirmed, and so a queue that is down stops nobody who asked for
  no confirms. Bounded: such a publisher asked for no promise, and the oldest go first. The newest one stays, though it
  alone may be larger than the bound. Those of an open channel are older than what it has unconfirmed, so they are sent
  before that.
- ``backlog``: what is said in the present session when the link has room (`cluster.sessions.backlog`).
- ``hops``: the credit that channels have left towards the queue (`node.flow.credit`). It begins anew with every
  session, at whose opening what is unconfirmed is sent again and paid for again. To a queue that is down it is what
  is kept for that queue of one channel at most (`cluster.sessions.credits`).
- ``consumers``: attached again on every session, or cancelled if they asked for it and the mastership moved.
- ``calls``: what callers wait for an answer to. The state of a `Call`::

                 +--------- session over, queue deleted ---------+------------- session replaced ----------+
                 v                                               |             (consume and get only)      |
    --ask--> READY --(proceed, session open)-----------------> ASKED --(SessionReply)--> ANSWERED ---------+
               |  ^                                                                        |
               |  +--(route opened, queue deleted)-- WAITING                               |
               |                                       ^                                   |
               +--(proceed, no session)----------------+                                   |
               |                                                                           |
               +--(proceed, the queue here is sealed)--> HELD --(unsealed, session over)--> READY
               |                                                                           |
               +--(proceed, the master is this node: at once)--> OVER <--(proceed)---------+

  Whatever brings a call into READY or ANSWERED tells its caller to proceed (`CallGoesOn`). A refusal, and the end of
  the caller's patience, lead from everywhere to OVER.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from cluster.metadata.records import MastershipRecord
from cluster.sessions.backlog import Backlog
from cluster.sessions.questions import Answer, Question
from node.flow.credit import Hop
from node.ids import ChannelKey, Epoch, NodeName, QueueId
from node.message import Message
from node.queues.events import INTERNAL_SEQ_BASE, ConsumerSpec

#: Publishes without confirms kept for one queue while it has no master: about a tenth of a second of traffic. And their
#: bytes: whoever is given up leaves what he has published, and comes back to publish it again.
UNTRACKED_MESSAGES_MAX = 10_000
UNTRACKED_BYTES_MAX = 32 * 1024 * 1024
#: Of these so many are sent together: one by one they would take ten times as long, most of a second in one turn.
UNTRACKED_AT_ONCE = 256


class RouteState(enum.Enum):
    WAITING = "waiting"
    OPENING = "opening"
    OPEN = "open"


class ConsumerKey(NamedTuple):
    channel: ChannelKey
    consumer_tag: str


class CallState(enum.Enum):
    READY = "ready"
    WAITING = "waiting"
    ASKED = "asked"
    HELD = "held"
    ANSWERED = "answered"
    OVER = "over"


class Call:
    """One question of one caller. Only `ChannelCalls` changes it."""

    __slots__ = ("answer", "call_id", "channel", "deadline_s", "question", "queue_id", "route", "session", "state")

    def __init__(
        self, call_id: int, channel: ChannelKey | None, queue_id: QueueId, question: Question, deadline_s: float
    ) -> None:
        self.call_id = call_id
        #: ``None``: the question is not of a channel.
        self.channel = channel
        self.queue_id = queue_id
        self.question = question
        #: By the shell's clock. After this it is `ChannelCalls.time_is_up`.
        self.deadline_s = deadline_s
        self.state = CallState.READY
        #: Whose ``calls`` this is among, once it has proceeded, until it is over.
        self.route: Route | None = None
        #: The session in which it was asked last.
        self.session = 0
        #: Of the master, in state ANSWERED.
        self.answer: Answer | None = None


class Untracked:
    """Publishes that nobody waits for, of channels that may be closed; the first go when there are too many, or when
    they are too large together. One message alone is never too large."""

    __slots__ = ("_messages", "size_bytes")

    def __init__(self) -> None:
        #: Channel, message, and whether a session has carried it.
        self._messages: deque[tuple[int, Message, bool]] = deque()
        #: Of their bodies and properties.
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, channel_id: int, messages: Iterable[Message], *, is_resent: bool) -> None:
        """Of one channel, in order."""
        for message in messages:
            self._messages.append((channel_id, message, is_resent))
            self.size_bytes += message.size_bytes
        while len(self._messages) > 1 and (
            len(self._messages) > UNTRACKED_MESSAGES_MAX or self.size_bytes > UNTRACKED_BYTES_MAX
        ):
            self._take()

    def take_some(self) -> tuple[int, list[Message], bool]:
        """The first of them, with their channel, and whether a session has carried them: as far as both are the same,
        and so many at most."""
        channel_id, _, is_resent = self._messages[0]
        some: list[Message] = []
        while self._messages and self._messages[0][::2] == (channel_id, is_resent) and len(some) < UNTRACKED_AT_ONCE:
            some.append(self._take())
        return channel_id, some, is_resent

    def _take(self) -> Message:
        """The first of them."""
        _, message, _ = self._messages.popleft()
        self.size_bytes -= message.size_bytes
        return message

    def check_invariants(self) -> None:
        assert len(self._messages) <= UNTRACKED_MESSAGES_MAX, "what nobody waits for is bounded"
        assert self.size_bytes <= UNTRACKED_BYTES_MAX or len(self._messages) == 1, "in bytes, too, but for the newest"
        assert self.size_bytes == sum([message.size_bytes for _, message, _ in self._messages]), "which are counted"


class Route:
    """State of one queue on its entry node. Only `Entry` and its parts change it."""

    __slots__ = (
        "attaching",
        "backlog",
        "calls",
        "consumers",
        "epoch",
        "first_unsent",
        "has_consumed",
        "hops",
        "is_down",
        "local_channels",
        "master",
        "queue_id",
        "reopen_delay_s",
        "session",
        "state",
        "unconfirmed",
        "untracked",
        "used_by",
    )

    def __init__(self, queue_id: QueueId, record: MastershipRecord) -> None:
        self.queue_id = queue_id
        self.master: NodeName = record.master
        self.epoch: Epoch = record.epoch
        #: No live node may act as master at present.
        self.is_down = record.is_down
        self.state = RouteState.WAITING
        #: Number of the current (or last) session; grows per entry node.
        self.session = 0
        #: Pause before the next session if that one is refused as well as the last; 0: the last one was not.
        self.reopen_delay_s = 0.0
        #: channel id -> publish sequence number -> message, in publish order.
        self.unconfirmed: dict[int, dict[int, Message]] = {}
        #: channel id -> first publish sequence number that no session has carried yet.
        self.first_unsent: dict[int, int] = {}
        #: channel id -> its credit towards the queue, of channels that have published to it.
        self.hops: dict[int, Hop] = {}
        #: Open channels that have used the queue, by id (a dict for their order).
        self.used_by: dict[int, None] = {}
        self.untracked = Untracked()
        #: What the master of this session, on another node, is told as soon as the link to it has room.
        self.backlog = Backlog()
        self.consumers: dict[ConsumerKey, ConsumerSpec] = {}
        #: Some channel had a consumer of this queue, and may have lost it while nobody could be told.
        self.has_consumed = False
        #: Open channels that have said anything to the current session.
        self.local_channels: set[int] = set()
        #: Consumers that the master of this session was asked to attach again, by the id of that call.
        self.attaching: dict[int, ConsumerKey] = {}
        #: By call id, in the order in which their callers last proceeded: they go on in the same order.
        self.calls: dict[int, Call] = {}

    def is_live(self, session: int) -> bool:
        """What was delivered in this session can still be settled."""
        return self.session == session and self.state is RouteState.OPEN

    def adopt(self, record: MastershipRecord) -> bool:
        """Take over a new mastership record; true if the master or its epoch changed."""
        moved = (record.master, record.epoch) != (self.master, self.epoch)
        self.master, self.epoch, self.is_down = record.master, record.epoch, record.is_down
        if moved:
            self.reopen_delay_s = 0.0
        return moved

    def begin(self, session: int) -> None:
        """A session is being opened."""
        self.session = session
        self.state = RouteState.OPENING
        self.local_channels.clear()

    def open(self) -> None:
        """The master accepted the session."""
        assert self.state is RouteState.OPENING, "only a session that was begun can open"
        self.state = RouteState.OPEN
        self.reopen_delay_s = 0.0

    def lose(self) -> None:
        """The session is over; what is unanswered waits for the next one. What this one has not carried is not sent
        *again* by the next, unless an earlier one carried it."""
        self.state = RouteState.WAITING
        self.attaching.clear()
        for publishes in self.backlog.clear():
            channel_id, seqs = publishes.channel_id, publishes.publish_seqs
            if not seqs[0] or channel_id not in self.unconfirmed:
                self.untracked.add(channel_id, publishes.messages, is_resent=publishes.is_resent)
            elif not publishes.is_resent:
                self.first_unsent.setdefault(channel_id, seqs[0])

    def check_invariants(self) -> None:
        is_open = self.state is RouteState.OPEN
        self.untracked.check_invariants()
        assert self.state is RouteState.WAITING or self.session > 0, "a session has a number before it is used"
        assert all(self.unconfirmed.values()), "a channel without unconfirmed publishes leaves no empty table behind"
        assert not (is_open and (self.first_unsent or self.untracked)), "an open session has been given everything"
        assert not (is_open and self.is_down), "nobody serves a queue that is down"
        if self.is_down:
            kept = [seq for publishes in self.unconfirmed.values() for seq in publishes]
            assert all(seq < INTERNAL_SEQ_BASE for seq in kept), "whoever waits for no confirm does not wait for it"
        assert is_open or not self.backlog, "nothing waits for a link but what belongs to a session"
        self._check_backlog()
        assert is_open or not self.attaching, "what was asked in a session that is over is asked again in the next"
        assert self.attaching.keys().isdisjoint(self.calls), "call ids are used once"
        for call_id, call in self.calls.items():
            assert (call.call_id, call.route) == (call_id, self), "a call is kept on one route"
            assert call.state is not CallState.OVER, "nobody waits for a call that is over"
            assert (call.state is CallState.ANSWERED) == (call.answer is not None), "answered is who has an answer"
            if call.state is CallState.WAITING:
                assert not is_open, "whoever waited for the session has been told that it is open"
            elif call.state is CallState.HELD:
                assert is_open, "whoever waits for the fate of a queue on this node has a session with it"
            elif call.state is CallState.ASKED:
                assert is_open, "whoever was asked in a session that is over has been told"
                assert call.session == self.session, "a question is open in the session it was asked in, no other"

    def _check_backlog(self) -> None:
        """What waits of a channel is the end of what it has unconfirmed, in the same order."""
        waiting: dict[int, list[int]] = {}
        for publishes in self.backlog.publishes():
            assert publishes.publish_seqs, "what has gone out does not wait"
            if publishes.publish_seqs[0] and publishes.channel_id in self.used_by:
                waiting.setdefault(publishes.channel_id, []).extend(publishes.publish_seqs)
        for channel_id, seqs in waiting.items():
            kept = list(self.unconfirmed.get(channel_id, ()))
            assert kept[-len(seqs) :] == seqs, "nothing of a channel overtakes what waits"
