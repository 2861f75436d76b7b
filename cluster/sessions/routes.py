"""The entry node's view of one queue: where its master is and what is under way to it.

A `Route` exists as soon as a channel of this node uses a queue. Its state::

    WAITING --(master known, reachable)--> OPENING --(SessionOpened)--> OPEN
       ^                                      |                           |
       +------- link lost, refused, mastership moved, node stopped -------+

Everything a client may not lose is kept on the route until the master has answered for it:

- ``unconfirmed``: publishes whose confirm somebody waits for. They are sent again, in order, on the next session;
  the master recognises by message id those that it has (`BackingQueue.is_duplicate`).
- ``untracked``: publishes without confirms that found no open session. Bounded: such a publisher asked for no
  promise, and the oldest go first.
- ``hops``: the credit that channels have left towards the queue (`node.flow.credit`). It begins anew with every
  session, at whose opening what is unconfirmed is sent again and paid for again.
- ``consumers``: attached again on every session, or cancelled if they asked for it and the mastership moved.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import NamedTuple

from cluster.metadata.records import MastershipRecord
from node.flow.credit import Hop
from node.ids import ChannelKey, Epoch, NodeName, QueueId
from node.message import Message
from node.queues.events import ConsumerSpec

#: Publishes without confirms kept for one queue while it has no master: about a tenth of a second of traffic.
UNTRACKED_MESSAGES_MAX = 10_000


class RouteState(enum.Enum):
    WAITING = "waiting"
    OPENING = "opening"
    OPEN = "open"


class ConsumerKey(NamedTuple):
    channel: ChannelKey
    consumer_tag: str


class Route:
    """State of one queue on its entry node. Only `ClusterGateway` changes it."""

    __slots__ = (
        "consumers",
        "epoch",
        "first_unsent",
        "hops",
        "is_down",
        "local_channels",
        "master",
        "opened",
        "queue_id",
        "session",
        "state",
        "unconfirmed",
        "untracked",
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
        #: channel id -> publish sequence number -> message, in publish order.
        self.unconfirmed: dict[int, dict[int, Message]] = {}
        #: channel id -> first publish sequence number that no session has carried yet.
        self.first_unsent: dict[int, int] = {}
        #: channel id -> its credit towards the queue, of channels that have published to it.
        self.hops: dict[int, Hop] = {}
        self.untracked: deque[tuple[int, Message]] = deque(maxlen=UNTRACKED_MESSAGES_MAX)
        self.consumers: dict[ConsumerKey, ConsumerSpec] = {}
        #: Channels that have said anything to the current session.
        self.local_channels: set[int] = set()
        #: Set while the route is OPEN.
        self.opened = asyncio.Event()

    def adopt(self, record: MastershipRecord) -> bool:
        """Take over a new mastership record; true if the master or its epoch changed."""
        moved = (record.master, record.epoch) != (self.master, self.epoch)
        self.master, self.epoch, self.is_down = record.master, record.epoch, record.is_down
        return moved

    def begin(self, session: int) -> None:
        """A session is being opened."""
        self.session = session
        self.state = RouteState.OPENING
        self.opened.clear()
        self.local_channels.clear()

    def open(self) -> None:
        """The master accepted the session."""
        assert self.state is RouteState.OPENING, "only a session that was begun can open"
        self.state = RouteState.OPEN
        self.opened.set()

    def lose(self) -> None:
        """The session is over; what is unanswered waits for the next one."""
        self.state = RouteState.WAITING
        self.opened.clear()

    def check_invariants(self) -> None:
        assert self.opened.is_set() == (self.state is RouteState.OPEN), "waiters are released exactly while open"
        assert self.state is RouteState.WAITING or self.session > 0, "a session has a number before it is used"
        assert all(self.unconfirmed.values()), "a channel without unconfirmed publishes leaves no empty table behind"
