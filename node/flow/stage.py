"""One sender of the chain (a connection, a channel, a queue) with all its hops: blocked while one of them is."""

from __future__ import annotations

from typing import NamedTuple

from node.flow.credit import FlowControl, Hop
from node.ids import QueueId

#: A connection that was blocked within this time still shows the state ``flow``, so that people can see what comes
#: and goes (RabbitMQ's figures).
CONNECTION_MEMORY_MS = 5_000
#: The same for channels and queues.
STAGE_MEMORY_MS = 1_000


class HopView(NamedTuple):
    """A hop as people see it."""

    receiver: str | QueueId
    balance: int
    #: For how long it has been blocked; 0 if it is not at the moment.
    blocked_ms: int
    #: ``blocked``, ``freed`` (it was blocked of late), or ``open``.
    state: str


class SlowPath(NamedTuple):
    """A way down from a connection over hops that are blocked, or were of late."""

    #: 0 if the connection itself is the sender: too many bytes are unconfirmed.
    channel: int
    hops: tuple[HopView, ...]
    #: The queue it leads to, for whoever knows how things go on there.
    queue_id: QueueId | None


class Stage:
    """See the top of this module."""

    __slots__ = ("_blocked", "_flow", "_last_hop", "freed_ms")

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        #: Hops that are blocked, the first to be so first.
        self._blocked: dict[Hop, None] = {}
        #: The hop that was blocked last, free or not.
        self._last_hop: Hop | None = None
        #: When the last of the blocked hops was freed; ``None``: never.
        self.freed_ms: int | None = None

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    def note(self, hop: Hop) -> bool:
        """One of its hops was blocked or freed. True if the whole stage was by that."""
        was_blocked = bool(self._blocked)
        now_ms = self._flow.now_ms
        if hop.is_blocked:
            hop.blocked_since_ms = now_ms
            self._blocked[hop] = None
            self._last_hop = hop
        else:
            hop.freed_ms = now_ms
            self._blocked.pop(hop, None)
            if not self._blocked:
                self.freed_ms = now_ms
        return was_blocked is not bool(self._blocked)

    def state(self, memory_ms: int) -> str:
        """``flow`` if it is blocked or was within the last ``memory_ms``, else ``running``."""
        if self._blocked:
            return "flow"
        is_recent = self.freed_ms is not None and self._flow.now_ms - self.freed_ms <= memory_ms
        return "flow" if is_recent else "running"

    def slow_hops(self, memory_ms: int) -> list[Hop]:
        """The hops that are blocked; if none is, the one that was last within ``memory_ms``."""
        if self._blocked:
            return list(self._blocked)
        if self._last_hop is not None and self.state(memory_ms) == "flow":
            return [self._last_hop]
        return []

    def view(self, hop: Hop, memory_ms: int) -> HopView:
        """One of its hops, for a listing."""
        now_ms = self._flow.now_ms
        if hop.is_blocked and hop.blocked_since_ms is not None:
            return HopView(hop.receiver, hop.balance, now_ms - hop.blocked_since_ms, "blocked")
        is_recent = hop.freed_ms is not None and now_ms - hop.freed_ms <= memory_ms
        return HopView(hop.receiver, hop.balance, 0, "freed" if is_recent else "open")

    def check_invariants(self) -> None:
        for hop in self._blocked:
            assert hop.is_blocked, "a hop that was freed does not block its sender any more"
            assert hop.blocked_since_ms is not None, "whoever is blocked can say since when"
