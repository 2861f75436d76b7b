"""How one node asks the admin service of another, in plain values.

The daemon's caller is `cluster.transport.grpc_admin_caller.GrpcAdminCaller`; a simulator answers from memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from cluster.transport.admin_port import SyncProgress, Table
from node.ids import QueueId


class AdminCaller(Protocol):
    """Asks nodes by the address of their cluster listener (``host:port``).

    Every method raises `AdminRefused`: with the exit code and text of the node asked if it refused, and with
    `ExitCode.UNAVAILABLE` if it cannot be reached, does not accept our cookie or does not answer in ``timeout_s``.
    """

    async def listing(
        self, address: str, listing: str, vhost: str, columns: Sequence[str], *, timeout_s: float
    ) -> Table:
        """What the node itself knows (``local``); ``listing`` is the request's name, for instance ``ListQueues``."""

    async def status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        """What the node says about itself, see `AdminPort.status`."""

    async def cluster_status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        """What the node says about its cluster, see `AdminPort.cluster_status`."""

    def sync_queue(self, address: str, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        """See `AdminPort.sync_queue`; no time limit."""

    async def cancel_sync_queue(self, address: str, vhost: str, name: str, *, timeout_s: float) -> None:
        """See `AdminPort.cancel_sync_queue`."""

    async def held_copies(
        self, address: str, queue_ids: Sequence[QueueId], *, timeout_s: float
    ) -> Mapping[QueueId, int]:
        """See `AdminPort.held_copies`."""

    async def close(self) -> None:
        """Hang up; it asks no more."""
