"""What operators ask of the node that serves a queue, which may have no copy in service that could be asked.

A copy that is out of service (`cluster.runtime.out_of_service`) plays no role: whoever asks for the queue waits as
during a failover, and is told in the end that its node does not answer, though that is up. A client may wait; an
operator is to hear at once what is wrong, and what he can do. This node knows of its own copies. Of another one it asks
the state of its queues, once the answer takes longer than it should: a listing costs more than the answer.

A queue in that state can be deleted without a condition (`node.broker.deletion`), which gives the copy up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.admin_rows import OUT_OF_SERVICE
from cluster.runtime.node_runtime import NodeRuntime
from cluster.transport.admin_port import AdminRefused, ExitCode
from node.errors import ChannelError
from node.ids import Epoch, NodeName, QueueId
from node.topology.arguments import describe_queue
from node.topology.records import QueueRecord

_Answer = TypeVar("_Answer")

#: Another node is asked how the queue is if it has not answered by then.
PATIENCE_S = 1.0


class NotServedError(ChannelError):
    """The only copy that could answer is out of service; ``refusal`` says so at length."""

    def __init__(self, refusal: AdminRefused) -> None:
        super().__init__(404, refusal.message)
        self.refusal = refusal


class AdminServed:
    """See the top of this module. Implements `node.broker.deletion.DeletableQueues`; what it is asked raises
    `NotServedError` besides what the gateway raises."""

    def __init__(self, runtime: NodeRuntime, peers: AdminPeers) -> None:
        self._runtime = runtime
        self._peers = peers

    def refusal(self, queue: QueueRecord) -> AdminRefused | None:
        """Why nobody can serve a queue whose master is this node; ``None`` if that can be."""
        record = self._runtime.metadata.state.masterships.get(queue.queue_id)
        failure = self._runtime.queues.failure(queue.queue_id)
        if failure is None or record is None or record.master != self._runtime.node or record.is_down:
            return None
        text = f"{_beginning(queue, record.master)}: {failure.reason}. "
        if failure.is_starved:
            return AdminRefused(ExitCode.TEMPORARY, text + "It is opened again by itself when there is room")
        return AdminRefused(
            ExitCode.SOFTWARE,
            f"{text}When what is wrong is mended, a restart of {record.master} opens it again, and drops what it "
            "cannot read (so stop the node, copy its directory, and see what `warren store verify` says of that, "
            "before it starts); delete_queue, without a condition, gives it up",
        )

    async def purge(self, queue_id: QueueId) -> int:
        return await self._answered(queue_id, lambda: self._runtime.gateway.purge(queue_id))

    async def delete_if(self, queue_id: QueueId, if_unused: bool, if_empty: bool) -> tuple[int, Epoch]:
        return await self._answered(queue_id, lambda: self._runtime.gateway.delete_if(queue_id, if_unused, if_empty))

    async def delete_abandoned(self, queue_id: QueueId) -> None:
        await self._answered(queue_id, lambda: self._runtime.gateway.delete_abandoned(queue_id))

    async def _answered(self, queue_id: QueueId, ask: Callable[[], Coroutine[Any, Any, _Answer]]) -> _Answer:
        queue = self._runtime.records.find_queue(queue_id)
        if queue is not None and (refusal := self.refusal(queue)) is not None:
            raise NotServedError(refusal)
        asking = asyncio.ensure_future(ask())
        try:
            is_answered = (await asyncio.wait((asking,), timeout=PATIENCE_S))[0]
            if not is_answered and queue is not None and (refusal := await self._refusal_anywhere(queue)) is not None:
                raise NotServedError(refusal)
            return await asking
        finally:
            asking.cancel()

    async def _refusal_anywhere(self, queue: QueueRecord) -> AdminRefused | None:
        """By the word of its master."""
        record = self._runtime.metadata.state.masterships.get(queue.queue_id)
        if record is None or record.is_down:
            return None
        if record.master == self._runtime.node:
            return self.refusal(queue)
        if not self._runtime.links.is_up(record.master):
            return None
        rows = await self._peers.rows("ListQueues", [record.master], queue.vhost, ("name", "state"))
        if not any(row["name"] == queue.name and row["state"] == OUT_OF_SERVICE for row in rows):
            return None
        text = f"{_beginning(queue, record.master)}; to hear why, ask that node: warrenctl -n {record.master}"
        return AdminRefused(ExitCode.SOFTWARE, text)


def _beginning(queue: QueueRecord, node: NodeName) -> str:
    return f"{describe_queue(queue.vhost, queue.name)} cannot be served: its copy on {node} is out of service"
