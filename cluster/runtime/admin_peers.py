"""Asking the admin service of other nodes: listings of the whole cluster, commands that only a master can carry out."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from cluster.transport import admin_codec as codec
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, Table
from cluster.wire import admin_pb2 as pb
from cluster.wire.admin_pb2_grpc import AdminStub
from node.ids import NodeName

log = logging.getLogger(__name__)

#: A listing must not hang on one node: its rows stay empty instead.
PEER_TIMEOUT_S = 5.0
#: Who asks for the status of a cluster wants to know which nodes run: a frozen one must not keep him from it.
STATUS_TIMEOUT_S = 1.0


class AdminPeers:
    """Open channels to the admin services of the peers."""

    def __init__(self, address_of: Callable[[NodeName], str], cookie: str) -> None:
        self._address_of = address_of
        self._metadata = ((codec.COOKIE_METADATA_KEY, cookie.encode()),)
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()

    async def rows(
        self, listing: str, nodes: Sequence[NodeName], vhost: str, columns: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Rows about what is on those nodes themselves; a node that does not answer contributes none."""
        request = codec.listing_to_wire(vhost, columns, QueueSelection(local=True))
        tables = await asyncio.gather(*(self._table(node, listing, request) for node in nodes))
        return [row for each in tables for row in each.as_dicts()]

    async def _table(self, node: NodeName, listing: str, request: pb.Listing) -> Table:
        method = getattr(self._stub(node), listing)
        try:
            answer = await method(request, timeout=PEER_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            log.info("%s did not answer %s: %s", node, listing, error.details())
            return Table((), ())
        return codec.table_from_wire(answer)

    async def statuses(self, nodes: Sequence[NodeName]) -> dict[NodeName, dict[str, Any]]:
        """What those nodes say about themselves; one that does not answer is left out."""
        documents = await asyncio.gather(*(self._status(node) for node in nodes))
        return {node: document for node, document in zip(nodes, documents, strict=True) if document is not None}

    async def _status(self, node: NodeName) -> dict[str, Any] | None:
        try:
            answer = await self._stub(node).Status(pb.Nothing(), timeout=STATUS_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            log.debug("%s did not answer Status: %s", node, error.details())
            return None
        document: dict[str, Any] = json.loads(answer.json)
        return document

    async def sync_queue(self, node: NodeName, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        call = self._stub(node).SyncQueue(pb.QueueRef(vhost=vhost, name=name), metadata=self._metadata)
        try:
            async for progress in call:
                yield codec.progress_from_wire(progress)
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None

    async def cancel_sync_queue(self, node: NodeName, vhost: str, name: str) -> None:
        request = pb.QueueRef(vhost=vhost, name=name)
        try:
            await self._stub(node).CancelSyncQueue(request, timeout=PEER_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None

    def _stub(self, node: NodeName) -> Any:
        address = self._address_of(node)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, codec.CHANNEL_OPTIONS)
        return AdminStub(channel)


def _refused(error: grpc.aio.AioRpcError) -> AdminRefused:
    code = ExitCode.UNAVAILABLE
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == codec.EXIT_CODE_METADATA_KEY:
            code = ExitCode(int(value))
    return AdminRefused(code, error.details() or str(error.code()))
