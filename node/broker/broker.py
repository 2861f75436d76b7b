"""The broker: users enter vhosts, open channels, and reach exchanges and queues.

It knows neither sockets nor disks nor other nodes: the AMQP server calls it through `node.amqp.ports`, the topology
is read and changed through a `Catalogue`, queues are reached through a `QueueGateway`, and users are known to an
`Authenticator`. A broker that is alone and a node of a cluster differ only in what is handed in.

Flow (`node.flow.credit`). A connection has a hop to each of its channels, and one in bytes: what its queues have not
confirmed yet, on whatever channel (`UNCONFIRMED_BYTES`). While one of them is blocked the connection's socket is not
read.

Alarms. While memory or disk runs short anywhere in the cluster (`set_alarm`), nobody may publish. A connection that
has published before is told at once (``connection.blocked``), so that a client that cares can stop; one that has never
published is not told, because consumers are to go on and some clients give up a connection that stays blocked. Both are
``blocking`` until they publish: then the publish and everything behind it waits (`Connection.may_publish`), the socket
is read no more, and the connection is ``blocked``. When the alarm is cleared all go on where they were held up.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from node.amqp.ports import ChannelSink, ConnectionControl, ConnectionInfo
from node.auth import Authenticator, log_in
from node.broker.channel import Channel
from node.errors import AmqpError, ConnectionFailure
from node.flow.credit import Credit, FlowControl, Hop, MeasuredHop
from node.flow.stage import CONNECTION_MEMORY_MS, SlowPath, Stage
from node.ids import NodeName
from node.queues.gateway import QueueGateway
from node.routing.router import AlternateExchange, Router, argued_alternate_exchange
from node.topology.catalogue import Catalogue
from node.topology.commands import DeclareQueue, DeleteQueue
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Body bytes of one connection that may be unconfirmed: what it can make this node hold if its messages are large.
UNCONFIRMED_BYTES = Credit(32 * 1024 * 1024, 16 * 1024 * 1024)
#: Random bytes in a connection's identity: enough that no two connections of a cluster ever share one.
_CONNECTION_ID_BYTES = 8


class Connection:
    """Implements `BrokerConnection`."""

    def __init__(self, broker: Broker, number: int, info: ConnectionInfo, control: ConnectionControl) -> None:
        self.broker = broker
        self.number = number
        self.info = info
        self.control = control
        #: Identity in the cluster: owner of exclusive queues. The part before the slash is the node.
        self.id = f"{broker.node}/{broker.random_bytes(_CONNECTION_ID_BYTES).hex()}"
        #: Exclusive queues of this connection (a dict for its order).
        self.exclusive_queues: dict[str, None] = {}
        self.channels: dict[int, Channel] = {}
        self.unconfirmed_messages = 0
        self.unconfirmed_bytes = 0
        #: Reading is paused while it is blocked.
        self.flow = Stage(broker.flow)
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
        if self.broker.alarm:
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
        self.broker.connections.pop(self.number, None)
        while self.exclusive_queues:
            name = next(iter(self.exclusive_queues))
            del self.exclusive_queues[name]
            await self._delete_exclusive(name)

    async def declare(self, command: DeclareQueue) -> QueueRecord:
        """Declare a new queue; an exclusive one is remembered, to be deleted with this connection."""
        is_exclusive = command.exclusive_owner is not None
        if is_exclusive:
            self.exclusive_queues[command.name] = None
        try:
            queue: QueueRecord = await self.broker.catalogue.submit(command)
        finally:
            if is_exclusive and self._is_closed:
                # The connection ended while the declaration was under way: its clean-up could not see the queue.
                await self._delete_exclusive(command.name)
        return queue

    async def _delete_exclusive(self, name: str) -> None:
        record = self.broker.catalogue.topology.queue(self.info.vhost, name)
        if record is None or record.exclusive_owner != self.id:
            return
        try:
            await self.broker.catalogue.submit(DeleteQueue(self.info.vhost, name, record.queue_id))
        except AmqpError as error:
            log.warning("exclusive %s of a closed connection stays: %s", record.queue_name, error)

    # --- alarms ---

    @property
    def alarmed_ms(self) -> int | None:
        """See `BrokerConnection.alarmed_ms`."""
        return self.broker.flow.now_ms - self._told_ms if self.is_told else None

    def may_publish(self) -> bool:
        """See `BrokerConnection.may_publish`."""
        self.has_published = True
        if not self.broker.alarm:
            return True
        self._tell_blocked(self.broker.alarm)
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
            self._told_ms = self.broker.flow.now_ms
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
        assert self.broker.alarm or not self.is_told, "who was told of an alarm is told of its end"
        for channel in self.channels.values():
            channel.check_invariants()


class Broker:
    """Implements `BrokerPort`. ``random_bytes`` gives unpredictable bytes (message origins, queue names)."""

    def __init__(
        self,
        node: NodeName,
        catalogue: Catalogue,
        authenticator: Authenticator,
        gateway: QueueGateway,
        *,
        random_bytes: Callable[[int], bytes],
        properties: Mapping[str, Any],
        alternate_exchange: AlternateExchange = argued_alternate_exchange,
        flow: FlowControl | None = None,
    ) -> None:
        self.node = node
        self.catalogue = catalogue
        self.authenticator = authenticator
        self.gateway = gateway
        self.random_bytes = random_bytes
        self.flow = flow or FlowControl()
        self.router = Router(catalogue.topology, alternate_exchange)
        #: Open connections by a number of their own.
        self.connections: dict[int, Connection] = {}
        #: Why publishers are blocked; empty when they are not.
        self.alarm = ""
        self._properties = dict(properties)
        self._numbers = itertools.count(1)

    def authenticate(self, mechanism: str, response: bytes, peer_host: str) -> str:
        try:
            return log_in(self.authenticator, mechanism, response, peer_host)
        except ConnectionFailure as error:
            log.warning("login from %s refused: %s", peer_host, error)
            raise

    def open_connection(self, info: ConnectionInfo, control: ConnectionControl) -> Connection:
        if not self.catalogue.topology.has_vhost(info.vhost):
            raise ConnectionFailure(530, f"vhost {info.vhost} not found")
        if not self.authenticator.may_enter(info.user, info.vhost):
            raise ConnectionFailure(530, f"access to vhost '{info.vhost}' refused for user '{info.user}'")
        number = next(self._numbers)
        self.connections[number] = connection = Connection(self, number, info, control)
        return connection

    def server_properties(self) -> Mapping[str, Any]:
        return self._properties

    def close_all(self, reply_code: int, text: str) -> None:
        """Ask every client connection to close (320 when the node must stop serving)."""
        for connection in list(self.connections.values()):
            connection.control.close(reply_code, text)

    async def delete_abandoned_queues(self) -> None:
        """Delete exclusive queues whose connection ended while the deletion could not be agreed on.

        To be called when agreement is possible again. Raises `AmqpError` if it is not.
        """
        living = {connection.id for connection in self.connections.values()}
        for queue in list(self.catalogue.topology.all_queues()):
            owner = queue.exclusive_owner
            if owner is not None and owner.startswith(f"{self.node}/") and owner not in living:
                log.info("exclusive %s outlived its connection: it is deleted now", queue.queue_name)
                await self.catalogue.submit(DeleteQueue(queue.vhost, queue.name, queue.queue_id))

    def set_alarm(self, reason: str) -> None:
        """Publishers must stop (mission F3), for this reason; empty: they may go on.

        Another reason during an alarm is for those who are told from now on.
        """
        has_changed = bool(reason) != bool(self.alarm)
        self.alarm = reason
        if has_changed:
            for connection in list(self.connections.values()):
                connection.alarm_changed(reason)

    def check_invariants(self) -> None:
        self.router.check_invariants()
        for number, connection in self.connections.items():
            assert connection.number == number, "a connection is filed under its number"
            connection.check_invariants()
