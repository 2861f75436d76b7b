"""`ClusterAdmin` over Warren's admin service."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from chaos.cluster_under_test.protocol import AdminUnavailable, QueueSample
from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_client import AdminClient, AdminError

_VHOST = "/"
#: A node that does not answer within this is asked again later, or another one is.
REQUEST_TIMEOUT_S = 2.0
#: What `sample_of_row` reads.
SAMPLE_COLUMNS = (
    "name",
    "pid",
    "slave_pids",
    "synchronised_slave_pids",
    "streaming_mirror_pids",
    "messages_ready",
    "messages_unacknowledged",
)
_PID_NODE = re.compile(r"<?(?:[^@<>]*@)?([^.@<>]+)")


_Answer = TypeVar("_Answer")


def node_of_pid(pid: object) -> str | None:
    """Node name in a process id as listings print it: ``<n1.1.34.0>``, ``rabbit@n1`` or plain ``n1``."""
    match = _PID_NODE.match(str(pid)) if pid else None
    return match.group(1) if match else None


def nodes_of_pids(cell: object) -> tuple[str, ...]:
    """Node names of a list of process ids, in its order; a listing may print the list as text."""
    if not cell:
        return ()
    items: Sequence[object] = str(cell).strip("[]").split(",") if isinstance(cell, str) else list(cell)  # type: ignore[call-overload]
    nodes = (node_of_pid(str(item).strip()) for item in items)
    return tuple(node for node in nodes if node)


def sample_of_row(row: Mapping[str, Any]) -> QueueSample:
    """One row of ``list_queues`` as a sample."""
    return QueueSample(
        queue=row["name"],
        master=node_of_pid(row["pid"]),
        mirrors=nodes_of_pids(row["slave_pids"]),
        synchronised=nodes_of_pids(row["synchronised_slave_pids"]),
        messages_ready=int(row["messages_ready"] or 0),
        messages_unacked=int(row["messages_unacknowledged"] or 0),
        streaming=nodes_of_pids(row["streaming_mirror_pids"]),
    )


class GrpcClusterAdmin:
    """`ClusterAdmin` of one node. The client blocks, so every call runs on a thread of its own."""

    def __init__(self, address: str, cookie: str) -> None:
        self._client = AdminClient(address, cookie, timeout_s=REQUEST_TIMEOUT_S)

    async def list_queues(self) -> list[QueueSample]:
        table = await self._ask(lambda: self._client.list_queues(_VHOST, SAMPLE_COLUMNS))
        return [sample_of_row(row) for row in table.as_dicts()]

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, object]) -> None:
        policy = PolicyRecord(_VHOST, name, pattern, dict(definition), priority=0, apply_to="queues")
        await self._ask(lambda: self._client.set_policy(policy))

    async def sync_queue(self, queue: str) -> None:
        def follow_progress() -> None:
            for _ in self._client.sync_queue(_VHOST, queue):
                pass

        await self._ask(follow_progress)

    async def close(self) -> None:
        self._client.close()

    async def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        try:
            return await asyncio.to_thread(question)
        except (AdminError, ValueError) as error:
            # ValueError: the channel was closed by `close` while the question waited for its thread.
            raise AdminUnavailable(str(error)) from error
