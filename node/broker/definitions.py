"""Exchanges, queues and bindings, as one connection may see and change them.

Everything here is asked for by a client and may be refused: the user lacks a permission, the name is reserved, the
queue belongs to another connection. What is allowed and changes something is submitted to the `Catalogue`; a
declaration that repeats an earlier one, or only asks, is answered without it, when all nodes know what it found.

Exclusive queues belong to their connection and are deleted with it. Those that could not be deleted because no
agreement was possible, or not in time, are found later by `Broker.delete_abandoned_queues`.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from node.amqp.ports import QueueDeclared
from node.amqp.values import SHORT_STRING_BYTES_MAX
from node.auth import Action
from node.broker.deletion import delete_queue, delete_unconditionally
from node.broker.parts import BrokerParts
from node.errors import ChannelError
from node.routing.properties import plain_table
from node.topology.arguments import check_carried_out, check_queue_arguments, describe_exchange
from node.topology.commands import Bind, DeclareExchange, DeclareQueue, DeleteExchange, Unbind
from node.topology.names import (
    DEFAULT_EXCHANGE,
    EXCHANGE_TYPES,
    RESERVED_PREFIX,
    SERVER_NAMED_PREFIX,
    locked_queue,
    missing_exchange,
    missing_queue,
)
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Random bytes of a server-made queue name: 22 characters of base64, as in the reference.
_SERVER_NAME_BYTES = 16
#: Exclusive queues of one connection, some of which may be gone, before that is looked at.
EXCLUSIVE_QUEUES_UNLOOKED = 256
_STRIP_LINE_ENDS = str.maketrans("", "", "\r\n")


class Definitions:
    """Implements `node.amqp.ports.BrokerDefinitions`. ``owner`` is the connection's identity in the cluster."""

    def __init__(self, parts: BrokerParts, vhost: str, user: str, owner: str) -> None:
        self._parts = parts
        self._vhost = vhost
        self._user = user
        self._owner = owner
        self._catalogue = parts.catalogue
        self._topology = parts.catalogue.topology
        #: Exclusive queues of the connection (a dict for its order).
        self._exclusive_queues: dict[str, None] = {}
        #: It is looked which of these still exist when there are so many.
        self._looked_at_next = EXCLUSIVE_QUEUES_UNLOOKED
        self._is_closed = False

    # --- exchanges ---

    async def declare_exchange(
        self,
        name: str,
        type: str,
        *,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
    ) -> None:
        name = name.translate(_STRIP_LINE_ENDS)
        if passive:
            if name == DEFAULT_EXCHANGE:
                raise ChannelError(403, "operation not permitted on the default exchange")
            if self._topology.exchange(self._vhost, name) is None:
                raise missing_exchange(self._vhost, name)
            await self._catalogue.wait_known()
            return
        self.require("configure", "exchange", name)
        plain = plain_table(arguments)
        command = DeclareExchange(self._vhost, name, type, durable, auto_delete, internal, plain)
        alternate = plain.get("alternate-exchange")
        if isinstance(alternate, str):
            if len(alternate.encode()) > SHORT_STRING_BYTES_MAX:
                what = describe_exchange(self._vhost, name)
                raise ChannelError(
                    406,
                    f"invalid arg 'alternate-exchange' for {what}: a name has {SHORT_STRING_BYTES_MAX} bytes at most",
                )
            self.require("read", "exchange", name)
            self.require("write", "exchange", alternate)
        # Most declarations repeat an earlier one: those need no agreement with anybody.
        is_plain_case = name != DEFAULT_EXCHANGE and type in EXCHANGE_TYPES
        if not is_plain_case or self._topology.equivalent_exchange(command) is None:
            await self._catalogue.submit(command)
        else:
            await self._catalogue.wait_known()

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        name = name.translate(_STRIP_LINE_ENDS)
        self.require("configure", "exchange", name)
        await self._catalogue.submit(DeleteExchange(self._vhost, name, if_unused))

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> None:
        destination, source = destination.translate(_STRIP_LINE_ENDS), source.translate(_STRIP_LINE_ENDS)
        self.require("write", "exchange", destination)
        self.require("read", "exchange", source)
        plain = plain_table(arguments)
        await self._catalogue.submit(Bind(self._vhost, source, destination, "exchange", routing_key, plain))

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any]
    ) -> None:
        destination, source = destination.translate(_STRIP_LINE_ENDS), source.translate(_STRIP_LINE_ENDS)
        self.require("write", "exchange", destination)
        self.require("read", "exchange", source)
        plain = plain_table(arguments)
        await self._catalogue.submit(Unbind(self._vhost, source, destination, "exchange", routing_key, plain))

    # --- queues ---

    async def declare_queue(
        self,
        name: str,
        *,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
    ) -> QueueDeclared:
        name = name.translate(_STRIP_LINE_ENDS)
        if passive:
            return await self._declared(self.queue(name))
        owner = self._owner if exclusive else None
        plain = plain_table(arguments)
        if not name:
            encoded = base64.urlsafe_b64encode(self._parts.random_bytes(_SERVER_NAME_BYTES))
            name = SERVER_NAMED_PREFIX + encoded.decode().rstrip("=")
        elif name.startswith(RESERVED_PREFIX) and self._topology.queue(self._vhost, name) is None:
            raise ChannelError(403, f"queue name '{name}' contains reserved prefix 'amq.*'")
        self.require("configure", "queue", name)
        command = DeclareQueue(self._vhost, name, durable, owner, auto_delete, plain)
        while (existing := self._topology.equivalent_queue(command)) is not None:
            try:
                return await self._declared(existing)
            except ChannelError:
                if self._topology.queue_by_id(existing.queue_id) is not None:
                    raise
                # It was about to be deleted, and is: this declares its successor.
        check_queue_arguments(self._vhost, name, plain)
        check_carried_out(self._vhost, name, plain)
        await self._declare_new(command)
        return QueueDeclared(name, 0, 0)

    async def _declared(self, queue: QueueRecord) -> QueueDeclared:
        await self._catalogue.wait_known()
        ready, consumers = await self._parts.gateway.counts(queue.queue_id)
        return QueueDeclared(queue.name, ready, consumers)

    async def bind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
        queue, exchange = queue.translate(_STRIP_LINE_ENDS), exchange.translate(_STRIP_LINE_ENDS)
        self._check_binding(queue, exchange)
        plain = plain_table(arguments)
        await self._catalogue.submit(Bind(self._vhost, exchange, queue, "queue", routing_key, plain))

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
        queue, exchange = queue.translate(_STRIP_LINE_ENDS), exchange.translate(_STRIP_LINE_ENDS)
        self._check_binding(queue, exchange, is_unbind=True)
        plain = plain_table(arguments)
        await self._catalogue.submit(Unbind(self._vhost, exchange, queue, "queue", routing_key, plain))

    def _check_binding(self, queue: str, exchange: str, is_unbind: bool = False) -> None:
        self.require("write", "queue", queue)
        self.require("read", "exchange", exchange)
        # Unbinding what is not there is no error; everything else is told by the topology.
        if not is_unbind or self._topology.queue(self._vhost, queue) is not None:
            self.queue(queue)

    async def purge_queue(self, queue: str) -> int:
        self.require("read", "queue", queue)
        return await self._parts.gateway.purge(self.queue(queue).queue_id)

    async def delete_queue(self, queue: str, *, if_unused: bool, if_empty: bool) -> int:
        queue = queue.translate(_STRIP_LINE_ENDS)
        self.require("configure", "queue", queue)
        if self._topology.queue(self._vhost, queue) is None:
            return 0
        record = self.queue(queue)
        try:
            ready = await delete_queue(
                self._parts.gateway, self._catalogue.submit, record, if_unused=if_unused, if_empty=if_empty
            )
        except ChannelError:
            if self._topology.queue_by_id(record.queue_id) is not None:
                raise
            ready = 0  # it was deleted while this asked, perhaps by its master for us: it is gone, as was wanted
        if not self._is_ours(queue):  # another channel may have declared its successor by now
            self._exclusive_queues.pop(queue, None)
        return ready

    # --- checks ---

    def queue(self, name: str) -> QueueRecord:
        """The queue, for use by this connection. Raises `ChannelError` 404 or 405."""
        record = self._topology.queue(self._vhost, name)
        if record is None:
            raise missing_queue(self._vhost, name)
        if record.exclusive_owner is not None and record.exclusive_owner != self._owner:
            raise locked_queue(record)
        return record

    def require(self, action: Action, kind: str, name: str) -> None:
        if not self._parts.authenticator.may(self._user, self._vhost, action, name):
            raise ChannelError(
                403,
                f"{action} access to {kind} '{name}' in vhost '{self._vhost}' refused for user '{self._user}'",
            )

    # --- exclusive queues ---

    async def _declare_new(self, command: DeclareQueue) -> None:
        """Declare a new queue; an exclusive one is remembered, to be deleted with the connection."""
        is_exclusive = command.exclusive_owner is not None
        if is_exclusive:
            self._forget_gone()
            self._exclusive_queues[command.name] = None
        try:
            await self._catalogue.submit(command)
            if is_exclusive:
                self._exclusive_queues[command.name] = None  # while it was none yet it may have been forgotten
        finally:
            if is_exclusive and self._is_closed:
                # The connection ended while the declaration was under way: its clean-up could not see the queue.
                await self._delete_exclusive([command.name])

    def _forget_gone(self) -> None:
        """Many a queue goes before its connection, with its last consumer, or was refused: now and then these are not
        remembered any more."""
        if len(self._exclusive_queues) >= self._looked_at_next:
            self._exclusive_queues = {name: None for name in self._exclusive_queues if self._is_ours(name)}
            self._looked_at_next = EXCLUSIVE_QUEUES_UNLOOKED + 2 * len(self._exclusive_queues)

    def _is_ours(self, name: str) -> bool:
        queue = self._topology.queue(self._vhost, name)
        return queue is not None and queue.exclusive_owner == self._owner

    async def close(self) -> None:
        """The connection is gone: delete its exclusive queues."""
        self._is_closed = True
        names, self._exclusive_queues = list(self._exclusive_queues), {}
        await self._delete_exclusive(names)

    async def _delete_exclusive(self, names: Sequence[str]) -> None:
        """What is left, also when this is cancelled, is looked for by `Broker.delete_abandoned_queues`."""
        found = [self._topology.queue(self._vhost, name) for name in names]
        ours = [queue for queue in found if queue is not None and queue.exclusive_owner == self._owner]
        if (refusal := await delete_unconditionally(self._catalogue, ours)) is not None:
            log.warning("exclusive queues of a closed connection stay for now: %s", refusal)
