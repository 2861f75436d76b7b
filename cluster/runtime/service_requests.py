"""Masters of this node ask to take service: many queues in one commit, one commit at a time.

A failover names this node the master of every queue that the dead one had; each has to take service before it confirms
anything. What is asked for while a commit is on its way goes with the next. Nothing is repeated here: a master that is
not in service asks again (`cluster.mirroring.service`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

from cluster.metadata.commands import TakeService
from cluster.metadata.records import MastershipRecord
from node.ids import Epoch, NodeName, QueueId

#: Queues per commit: some 20 KB, applied within milliseconds.
QUEUES_PER_REQUEST = 1000


class ServiceRequests:
    """See the top of this module."""

    def __init__(
        self,
        node: NodeName,
        change: Callable[[TakeService], Awaitable[object]],
        spawn: Callable[[Awaitable[None], str], None],
    ) -> None:
        """``change`` commits a command; ``spawn`` runs something in the background and logs its failure."""
        self._node = node
        self._change = change
        self._spawn = spawn
        self._wanted: dict[QueueId, Epoch] = {}
        self._is_running = False

    def ask(self, record: MastershipRecord) -> None:
        """The master that this record names, on this node, is ready to serve."""
        self._wanted[record.queue_id] = record.epoch
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run(), "taking service")

    async def _run(self) -> None:
        try:
            while self._wanted:
                await asyncio.sleep(0)  # what else this turn of the loop asks for goes along
                queues = tuple(islice(self._wanted.items(), QUEUES_PER_REQUEST))
                for queue_id, _ in queues:
                    del self._wanted[queue_id]
                await self._change(TakeService(self._node, queues))
        finally:
            self._is_running = False
