"""Asks the admin service of nodes on the network in memory, see `tests.support.memory_carrier`."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from cluster.transport import admin_codec as codec
from cluster.transport.admin_port import (
    AdminPort,
    AdminRefused,
    ExitCode,
    QueueSelection,
    SyncProgress,
    Table,
    exit_code_of,
)
from cluster.transport.probe import split_address
from node.errors import WarrenError
from node.pieces import at_once
from tests.support.memory_carrier import MemoryNetwork
from tests.support.memory_connection import Listener

_Answer = TypeVar("_Answer")


class MemoryAdminCaller:
    """Implements `cluster.transport.admin_caller.AdminCaller` for the process on ``host``.

    A question is answered by the `AdminPort` that the node asked gave to its carrier, and takes the way there and back.
    """

    def __init__(self, network: MemoryNetwork, host: str, cookie: str) -> None:
        self._network = network
        self._host = host
        self._cookie = cookie

    async def close(self) -> None:
        """There is nothing to hang up."""

    async def listing(
        self, address: str, listing: str, vhost: str, columns: Sequence[str], *, timeout_s: float
    ) -> Table:
        questions: dict[str, Callable[[AdminPort], Awaitable[Table]]] = {
            "ListQueues": lambda port: port.list_queues(vhost, columns, QueueSelection(local=True)),
            "ListConnections": lambda port: port.list_connections(columns, local=True),
            "ListChannels": lambda port: port.list_channels(columns, local=True),
            "ListFlow": lambda port: port.list_flow(columns, local=True),
            "ListConsumers": lambda port: port.list_consumers(vhost, columns, local=True),
        }
        table = await self._ask(address, questions[listing], timeout_s)
        return at_once(codec.table_from_wire(at_once(codec.table_to_wire(table))))

    async def status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        status = await self._ask(address, lambda port: port.status(), timeout_s)
        document: dict[str, Any] = json.loads(json.dumps(dict(status)))
        return document

    async def cluster_status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        status = await self._ask(address, lambda port: port.cluster_status(), timeout_s)
        document: dict[str, Any] = json.loads(json.dumps(dict(status)))
        return document

    async def sync_queue(self, address: str, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        listener = await self._reach(address)
        try:
            async for progress in _port_of(listener).sync_queue(vhost, name):
                await self._return_from(address, listener)
                yield progress
        except WarrenError as error:
            raise _refusal(error) from None

    async def cancel_sync_queue(self, address: str, vhost: str, name: str, *, timeout_s: float) -> None:
        await self._ask(address, lambda port: port.cancel_sync_queue(vhost, name), timeout_s)

    async def _ask(
        self, address: str, question: Callable[[AdminPort], Awaitable[_Answer]], timeout_s: float
    ) -> _Answer:
        try:
            async with asyncio.timeout(timeout_s):
                listener = await self._reach(address)
                refusal: AdminRefused | None = None
                try:
                    answer = await question(_port_of(listener))
                except WarrenError as error:
                    refusal = _refusal(error)
                await self._return_from(address, listener)
        except TimeoutError:
            raise AdminRefused(ExitCode.UNAVAILABLE, "Deadline Exceeded") from None
        if refusal is not None:
            raise refusal
        return answer

    async def _reach(self, address: str) -> Listener:
        """Who listens there and accepts our cookie."""
        target = split_address(address)[0]
        path = self._network.path(self._host, target)
        await path.cross()
        if not self._network.has_power(target):
            await asyncio.Event().wait()
        listener = self._network.listeners.get(address)
        if path.is_refusing or listener is None or listener.admin is None:
            await self._network.path(target, self._host).cross()
            raise AdminRefused(ExitCode.UNAVAILABLE, f"failed to connect to {address}: connection refused")
        if not hmac.compare_digest(listener.admin.cookie.encode(), self._cookie.encode()):
            await self._network.path(target, self._host).cross()
            raise AdminRefused(ExitCode.UNAVAILABLE, "wrong cookie: the node belongs to another cluster")
        return listener

    async def _return_from(self, address: str, listener: Listener) -> None:
        if self._network.listeners.get(address) is not listener:
            raise AdminRefused(ExitCode.UNAVAILABLE, f"the process at {address} is gone")
        await self._network.path(split_address(address)[0], self._host).cross()


def _port_of(listener: Listener) -> AdminPort:
    assert listener.admin is not None, "checked when it was reached"
    return listener.admin.port


def _refusal(error: WarrenError) -> AdminRefused:
    message = error.message if isinstance(error, AdminRefused) else str(error)
    return AdminRefused(exit_code_of(error), message)
