"""Asking the admin service of other nodes: listings of the whole cluster, commands that only a master can carry out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from cluster.transport.admin_caller import AdminCaller
from cluster.transport.admin_port import AdminRefused, ExitCode, SyncProgress, Table
from node.ids import NodeName, QueueId
from node.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

#: A listing must not hang on one node: its rows stay empty instead.
PEER_TIMEOUT_S = 5.0
#: Who asks for the status of a cluster wants to know which nodes run: a frozen one must not keep him from it.
STATUS_TIMEOUT_S = 1.0


class AdminPeers:
    """The admin services of the peers, by the names of the nodes."""

    def __init__(self, places: Callable[[NodeName], str], caller: AdminCaller) -> None:
        """``places``: where a peer is; raises `KeyError` if it is none."""
        self._places = places
        self._caller = caller
        self._refusals = ThrottledLog(log)

    async def close(self) -> None:
        await self._caller.close()

    def _address_of(self, node: NodeName) -> str:
        """Raises `AdminRefused` if the node was removed a moment ago."""
        try:
            return self._places(node)
        except KeyError:
            raise AdminRefused(ExitCode.UNAVAILABLE, f"{node} is no member of the cluster any more") from None

    async def rows(
        self, listing: str, nodes: Sequence[NodeName], vhost: str, columns: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Rows about what is on those nodes themselves; a node that does not answer contributes none."""
        tables = await asyncio.gather(*(self._table(node, listing, vhost, columns) for node in nodes))
        return [row for each in tables for row in each.as_dicts()]

    async def _table(self, node: NodeName, listing: str, vhost: str, columns: Sequence[str]) -> Table:
        try:
            address = self._address_of(node)
            return await self._caller.listing(address, listing, vhost, columns, timeout_s=PEER_TIMEOUT_S)
        except AdminRefused as refusal:
            text = f"{node} did not answer {listing}: {refusal.message}"
            self._refusals.write(f"{node} {listing}", text, logging.INFO)
            return Table((), ())

    async def statuses(self, nodes: Sequence[NodeName]) -> dict[NodeName, dict[str, Any]]:
        """What those nodes say about themselves; one that does not answer is left out."""
        documents = await asyncio.gather(*(self._status(node) for node in nodes))
        return {node: document for node, document in zip(nodes, documents, strict=True) if document is not None}

    async def _status(self, node: NodeName) -> dict[str, Any] | None:
        try:
            return await self._caller.status(self._address_of(node), timeout_s=STATUS_TIMEOUT_S)
        except AdminRefused as refusal:
            log.debug("%s did not answer Status: %s", node, refusal.message)
            return None

    async def held_copies(
        self, nodes: Sequence[NodeName], queue_ids: Sequence[QueueId]
    ) -> dict[NodeName, Mapping[QueueId, int]]:
        """What those nodes have of these queues; one that does not answer is left out."""
        answers = await asyncio.gather(*(self._held_copies(node, queue_ids) for node in nodes))
        return {node: copies for node, copies in zip(nodes, answers, strict=True) if copies is not None}

    async def _held_copies(self, node: NodeName, queue_ids: Sequence[QueueId]) -> Mapping[QueueId, int] | None:
        try:
            return await self._caller.held_copies(self._address_of(node), queue_ids, timeout_s=PEER_TIMEOUT_S)
        except AdminRefused as refusal:
            log.info("%s did not answer HeldCopies: %s", node, refusal.message)
            return None

    def sync_queue(self, node: NodeName, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        return self._caller.sync_queue(self._address_of(node), vhost, name)

    async def cancel_sync_queue(self, node: NodeName, vhost: str, name: str) -> None:
        await self._caller.cancel_sync_queue(self._address_of(node), vhost, name, timeout_s=PEER_TIMEOUT_S)
