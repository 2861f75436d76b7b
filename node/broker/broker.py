"""The broker: users enter vhosts, open channels, and reach exchanges and queues.

It knows neither sockets nor disks nor other nodes: the AMQP server calls it through `node.amqp.ports`, the topology
is read and changed through a `Catalogue`, queues are reached through a `QueueGateway`, and users are known to an
`Authenticator`. A broker that is alone and a node of a cluster differ only in what is handed in.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from node.amqp.ports import ConnectionControl, ConnectionInfo
from node.auth import Authenticator, log_in
from node.broker.connection import Connection
from node.broker.deletion import delete_unconditionally
from node.broker.parts import BrokerParts
from node.errors import ConnectionFailure
from node.flow.credit import FlowControl
from node.ids import NodeName
from node.queues.gateway import QueueGateway
from node.routing.router import AlternateExchange, Router, argued_alternate_exchange
from node.topology.catalogue import Catalogue

log = logging.getLogger(__name__)


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
        self.flow = flow or FlowControl()
        self.router = Router(catalogue.topology, alternate_exchange)
        self.parts = BrokerParts(node, catalogue, authenticator, gateway, self.router, self.flow, random_bytes)
        #: Open connections by a number of their own.
        self.connections: dict[int, Connection] = {}
        #: Why publishers are blocked; empty when they are not.
        self.alarm = ""
        self._properties = dict(properties)
        self._numbers = itertools.count(1)

    def authenticate(self, mechanism: str, response: bytes, peer_host: str) -> str:
        return log_in(self.parts.authenticator, mechanism, response, peer_host)

    def open_connection(self, info: ConnectionInfo, control: ConnectionControl) -> Connection:
        if not self.parts.catalogue.topology.has_vhost(info.vhost):
            raise ConnectionFailure(530, f"vhost {info.vhost} not found")
        if not self.parts.authenticator.may_enter(info.user, info.vhost):
            raise ConnectionFailure(530, f"access to vhost '{info.vhost}' refused for user '{info.user}'")
        number = next(self._numbers)
        self.connections[number] = connection = Connection(self, number, info, control)
        return connection

    def objection(self, user: str, vhost: str | None) -> str | None:
        """Why a connection of this user, to this vhost (``None``: to none yet), must end; ``None`` if it need not."""
        if not self.parts.authenticator.knows(user):
            return f"user '{user}' is deleted"
        if vhost is not None and not self.parts.catalogue.topology.has_vhost(vhost):
            return f"vhost '{vhost}' is deleted"
        return None

    def connection_closed(self, connection: Connection) -> None:
        """See `ConnectionOwner`."""
        self.connections.pop(connection.number, None)

    def server_properties(self) -> Mapping[str, Any]:
        return self._properties

    async def delete_abandoned_queues(self) -> None:
        """Delete exclusive queues whose connection ended while the deletion could not be agreed on, or not in time, or
        which were declared later than that: what was proposed may be decided when nobody waits for it any more.

        To be called now and then. Raises `AmqpError` if nothing can be agreed on.
        """
        living = {connection.id for connection in self.connections.values()}
        abandoned = [
            queue
            for queue in self.parts.catalogue.topology.all_queues()
            if (owner := queue.exclusive_owner) is not None
            and owner.startswith(f"{self.parts.node}/")
            and owner not in living
        ]
        if abandoned:
            log.info("%d exclusive queues outlived their connections: they are deleted now", len(abandoned))
        if (refusal := await delete_unconditionally(self.parts.catalogue, abandoned)) is not None:
            raise refusal

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
