"""Asking the admin service of other nodes: listings of the whole cluster, commands that only a master can carry out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from cluster.transport.admin_caller import AdminCaller
from cluster.transport.admin_port import AdminRefused, ExitCode, SyncProgress, Table, WrongCookie
from node.ids import NodeName, QueueId
from node.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

#: How often who waits for a master looks whether it still is one.
WATCH_INTERVAL_S = 0.2
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

    def sync_queue(
        self, node: NodeName, vhost: str, name: str, is_there: Callable[[], bool]
    ) -> AsyncIterator[SyncProgress]:
        """See `AdminPort.sync_queue`; ``node`` is the queue's master. While it says nothing ``is_there`` is asked now
        and then whether it still is: nobody waits for a node that has lost the queue. False, or what it raises
        (`AdminRefused`), is the end."""
        return _while_there(node, name, self._caller.sync_queue(self._address_of(node), vhost, name), is_there)

    async def cancel_sync_queue(self, node: NodeName, vhost: str, name: str) -> None:
        await self._caller.cancel_sync_queue(self._address_of(node), vhost, name, timeout_s=PEER_TIMEOUT_S)


async def _while_there(
    node: NodeName, name: str, reports: AsyncIterator[SyncProgress], is_there: Callable[[], bool]
) -> AsyncIterator[SyncProgress]:
    while True:
        coming = asyncio.ensure_future(_next(reports))
        try:
            while not (await asyncio.wait((coming,), timeout=WATCH_INTERVAL_S))[0]:
                if not is_there():
                    return
            report = coming.result()
        except WrongCookie:
            raise
        except AdminRefused as refusal:
            if refusal.exit_code is not ExitCode.UNAVAILABLE:
                raise
            text = f"{node}, the master of queue '{name}', does not answer any more: ask again ({refusal.message})"
            raise AdminRefused(ExitCode.TEMPORARY, text) from None
        finally:
            coming.cancel()
        if report is None:
            return
        yield report


async def _next(reports: AsyncIterator[SyncProgress]) -> SyncProgress | None:
    return await anext(reports, None)
