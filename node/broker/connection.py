"""One authenticated connection on the broker's side: its channels, its credit, and what an alarm makes of it.

Flow (`node.flow.credit`). A connection has a hop to each of its channels, and one in bytes: what its queues have not
confirmed yet, on whatever channel (`UNCONFIRMED_BYTES`). While one of them is blocked the connection's socket is not
read.

Alarms. While memory or disk runs short anywhere in the cluster, nobody may publish. A connection that has published
before is told at once (``connection.blocked``), so that a client that cares can stop; one that has never published is
not told, because consumers are to go on and some clients give up a connection that stays blocked. Both are ``blocking``
until they publish: then the publish and everything behind it waits (`Connection.may_publish`), the socket is read no
more, and the connection is ``blocked``. When the alarm is cleared all go on where they were held up.
"""

from __future__ import annotations

from typing import Protocol

from node.amqp.ports import ChannelSink, ConnectionControl, ConnectionInfo
from node.broker.channel import Channel
from node.broker.definitions import Definitions
from node.broker.nobody import NOBODY
from node.broker.parts import BrokerParts
from node.flow.credit import Credit, Hop, MeasuredHop
from node.flow.stage import CONNECTION_MEMORY_MS, SlowPath, Stage

#: Body bytes of one connection that may be unconfirmed: what it can make this node hold if its messages are large.
UNCONFIRMED_BYTES = Credit(32 * 1024 * 1024, 16 * 1024 * 1024)
#: Random bytes in a connection's identity: enough that no two connections of a cluster ever share one.
_CONNECTION_ID_BYTES = 8


class ConnectionOwner(Protocol):
    """The broker, as far as its connections know it."""

    @property
    def parts(self) -> BrokerParts: ...

    @property
    def alarm(self) -> str:
        """Why publishers are blocked; empty when they are not."""

    def connection_closed(self, connection: Connection) -> None:
        """Forget it. It still has its exclusive queues to delete."""


class Connection:
    """Implements `BrokerConnection`."""

    def __init__(self, owner: ConnectionOwner, number: int, info: ConnectionInfo, control: ConnectionControl) -> None:
        self._owner = owner
        self.parts = parts = owner.parts
        self.number = number
        self.info = info
        self.control = control
        #: Identity in the cluster: owner of exclusive queues. The part before the slash is the node.
        self.id = f"{parts.node}/{parts.random_bytes(_CONNECTION_ID_BYTES).hex()}"
        self.definitions = Definitions(parts, info.vhost, info.user, self.id)
        self.channels: dict[int, Channel] = {}
        self.unconfirmed_messages = 0
        self.unconfirmed_bytes = 0
        #: Reading is paused while it is blocked.
        self.flow = Stage(parts.flow)
        self._bytes_hop = MeasuredHop("unconfirmed bytes", UNCONFIRMED_BYTES)
        #: It is a publisher: it has published something.
        self.has_published = False
        #: It was told that publishers are blocked, and not yet that they no longer are.
        self.is_told = False
        #: When it was told last.
        self._told_ms = 0
        #: Reading is paused because it published while an alarm was raised.
        self.is_blocked = False
        self._is_closed = False

    @property
    def state(self) -> str:
        """``running``, ``flow``, ``blocking`` or ``blocked``, as listings show it."""
        if self.is_blocked:
            return "blocked"
        if self._owner.alarm:
            return "blocking"
        return self.flow_state

    @property
    def flow_state(self) -> str:
        """``flow`` if the socket is not read for want of credit, or was not of late; else ``running``."""
        return self.flow.state(CONNECTION_MEMORY_MS)

    def slow_paths(self) -> list[SlowPath]:
        """Where its credit went: the blocked hops down to queues, or those that were blocked of late."""
        paths: list[SlowPath] = []
        by_hop = {channel.hop: channel for channel in self.channels.values()}
        for hop in self.flow.slow_hops(CONNECTION_MEMORY_MS):
            view, channel = self.flow.view(hop, CONNECTION_MEMORY_MS), by_hop.get(hop)
            if hop is self._bytes_hop:
                channel = max(self.channels.values(), key=lambda each: each.unconfirmed, default=None)
                paths.append(SlowPath(0, (view,), None if channel is None else channel.busiest_queue()))
            elif channel is not None:
                paths += channel.slow_paths(view)
        return paths

    def open_channel(self, number: int, sink: ChannelSink) -> Channel:
        assert number not in self.channels, "the server closes a channel before it opens the number again"
        channel = self.channels[number] = Channel(self, number, sink)
        return channel

    def channel_closed(self, channel: Channel, unconfirmed_messages: int, unconfirmed_bytes: int) -> None:
        """A channel shut with so many publishes under way: nobody waits for them any more."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
        self.publishes_ended(unconfirmed_messages, unconfirmed_bytes)

    async def close(self) -> None:
        """Close what is left open, delete the exclusive queues. Closing twice is no error."""
        if self._is_closed:
            return
        self._is_closed = True
        for channel in list(self.channels.values()):
            channel.shut()
        self._owner.connection_closed(self)
        self.control = NOBODY
        await self.definitions.close()

    # --- alarms ---

    @property
    def alarmed_ms(self) -> int | None:
        """See `BrokerConnection.alarmed_ms`."""
        return self.parts.flow.now_ms - self._told_ms if self.is_told else None

    def may_publish(self) -> bool:
        """See `BrokerConnection.may_publish`."""
        self.has_published = True
        if not self._owner.alarm:
            return True
        self._tell_blocked(self._owner.alarm)
        if not self.is_blocked:
            self.is_blocked = True
            self.control.pause_reading()
        return False

    def alarm_changed(self, reason: str) -> None:
        """The first alarm was raised (``reason`` not empty), or the last one cleared."""
        if reason:
            if self.has_published:
                self._tell_blocked(reason)
            return
        if self.is_told:
            self.is_told = False
            self.control.unblocked()
        if self.is_blocked:
            self.is_blocked = False
            self.control.resume_reading()

    def _tell_blocked(self, reason: str) -> None:
        if not self.is_told:
            self.is_told = True
            self._told_ms = self.parts.flow.now_ms
            self.control.blocked(reason)

    # --- flow ---

    def publishes_begun(self, messages: int, size_bytes: int) -> None:
        """Publishes are on their way to queues."""
        self.unconfirmed_messages += messages
        self.unconfirmed_bytes += size_bytes
        if self._bytes_hop.measure(self.unconfirmed_bytes):
            self.hop_changed(self._bytes_hop)

    def publishes_ended(self, messages: int, size_bytes: int) -> None:
        """Queues answered for publishes, or their channel is gone."""
        self.unconfirmed_messages -= messages
        self.unconfirmed_bytes -= size_bytes
        if self._bytes_hop.measure(self.unconfirmed_bytes):
            self.hop_changed(self._bytes_hop)

    def hop_changed(self, hop: Hop) -> None:
        """A hop of this connection was blocked or freed."""
        if self.flow.note(hop):
            if self.flow.is_blocked:
                self.control.pause_reading()
            else:
                self.control.resume_reading()

    def check_invariants(self) -> None:
        assert self.unconfirmed_messages == sum(each.unconfirmed for each in self.channels.values()), (
            "the connection counts what its channels have under way"
        )
        assert self.unconfirmed_bytes >= 0, "nothing ends twice"
        self.flow.check_invariants()
        self._bytes_hop.check_invariants()
        blocked = any(channel.hop.is_blocked for channel in self.channels.values()) or self._bytes_hop.is_blocked
        assert self.flow.is_blocked == blocked, "a connection is blocked exactly while one of its hops is"
        assert self.is_told or not self.is_blocked, "nobody is held up without being told"
        assert self._owner.alarm or not self.is_told, "who was told of an alarm is told of its end"
        for channel in self.channels.values():
            channel.check_invariants()
