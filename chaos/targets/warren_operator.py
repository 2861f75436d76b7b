"""`chaos.targets.target.Operator` of a node of Warren, over its admin service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chaos.cluster_under_test.process_ids import node_of_pid, nodes_of_pids
from chaos.targets.target import NotNow, QueueView, TargetError
from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_client import AdminClient, AdminError
from cluster.transport.admin_port import ExitCode
from node.alarms.limits import MemoryWatermark

_VHOST = "/"
#: A node that does not answer within this is asked again later, or another one is.
REQUEST_TIMEOUT_S = 2.0
_COLUMNS = (
    "name",
    "pid",
    "slave_pids",
    "synchronised_slave_pids",
    "messages_ready",
    "messages_unacknowledged",
    "state",
)
#: What the listing says of a queue that nobody serves; ``pid`` is then that of who served it last.
_DOWN = "down"
#: Questions to one node at a time.
_THREADS = 4
_Answer = TypeVar("_Answer")


def view_of_row(row: Mapping[str, Any], numbers: Mapping[str, int]) -> QueueView:
    """One row of ``list_queues``; ``numbers`` of the nodes by their names."""
    master = None if row["state"] == _DOWN else node_of_pid(row["pid"])
    return QueueView(
        queue=row["name"],
        master=numbers[master] if master is not None else None,
        mirrors=_numbered(nodes_of_pids(row["slave_pids"]), numbers),
        synchronised=_numbered(nodes_of_pids(row["synchronised_slave_pids"]), numbers),
        ready=row["messages_ready"],
        unacked=row["messages_unacknowledged"],
        incarnation=str(row["pid"]) if master is not None else "",
    )


def _numbered(names: Iterable[str], numbers: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(numbers[name] for name in names)


class WarrenOperator:
    """Of one node. The client blocks, so every question is asked on a thread: on one of the operator's own, as those
    of a node that stands still are held up, and nobody else is to wait for them."""

    def __init__(self, address: str, cookie: str, numbers: Mapping[str, int]) -> None:
        self._client = AdminClient(address, cookie, timeout_s=REQUEST_TIMEOUT_S)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"operator-{address}")
        self._numbers = numbers

    async def queues(self) -> list[QueueView]:
        table = await self._ask(lambda: self._client.list_queues(_VHOST, _COLUMNS))
        return [view_of_row(row, self._numbers) for row in table.as_dicts()]

    async def running(self) -> list[int]:
        status = await self._ask(self._client.cluster_status)
        return sorted(_numbered(status["running_nodes"], self._numbers))

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        policy = PolicyRecord(_VHOST, name, pattern, dict(definition), priority=0, apply_to="queues")
        await self._ask(lambda: self._client.set_policy(policy))

    async def clear_policy(self, name: str) -> None:
        await self._ask(lambda: self._client.clear_policy(_VHOST, name))

    async def sync(self, queue: str) -> None:
        def begin() -> None:
            # The first report comes when it has begun. Nobody stops it by not listening any more.
            for _ in self._client.sync_queue(_VHOST, queue, timeout_s=REQUEST_TIMEOUT_S):
                break

        await self._ask(begin)

    async def cancel_sync(self, queue: str) -> None:
        await self._ask(lambda: self._client.cancel_sync_queue(_VHOST, queue))

    async def purge(self, queue: str) -> None:
        await self._ask(lambda: self._client.purge_queue(_VHOST, queue))

    async def forget(self, name: str) -> None:
        """The node of that name, which is down, is a member no more."""
        await self._ask(lambda: self._client.forget_cluster_node(name))

    async def set_memory_watermark(self, watermark: MemoryWatermark) -> None:
        """Until the node stops."""
        await self._ask(lambda: self._client.set_memory_watermark(watermark))

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)
        await asyncio.to_thread(self._threads.shutdown)

    async def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        try:
            asked = asyncio.get_running_loop().run_in_executor(self._threads, question)
        except RuntimeError as error:
            raise NotNow("the operator is closed") from error
        try:
            return await asked
        except AdminError as error:
            if error.exit_code in (ExitCode.UNAVAILABLE, ExitCode.TEMPORARY):
                raise NotNow(str(error)) from error
            raise TargetError(str(error)) from error
        except ValueError as error:
            # The channel was closed while the question waited for its thread.
            raise NotNow(str(error)) from error
