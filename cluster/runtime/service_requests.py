"""Masters of this node ask to take service: many queues in one commit, one commit at a time.

A failover names this node the master of every queue that the dead one had; each has to take service before it confirms
anything. What is asked for while a commit is on its way goes with the next. Nothing is repeated here: a master that is
not in service asks again (`cluster.mirroring.service`).

What nobody decides is proposed for half a minute, and the commit ends the completeness of copies that are down. So it
is *withdrawn* for a queue whose copy here fails meanwhile: one that is down may be the only one that can be served. (If
the commit has found the leader before, it comes: then the failure came behind it, as far as the others can tell.)
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
        #: What the commit under way is for, and that commit.
        self._asked: dict[QueueId, Epoch] = {}
        self._asking: asyncio.Future[object] | None = None
        self._is_withdrawn = False

    def ask(self, record: MastershipRecord) -> None:
        """The master that this record names, on this node, is ready to serve."""
        self._wanted[record.queue_id] = record.epoch
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run(), "taking service")

    def withdraw(self, queue_id: QueueId) -> None:
        """The copy here is out of service: whatever was asked for it is not meant any more."""
        self._wanted.pop(queue_id, None)
        if self._asked.pop(queue_id, None) is not None and self._asking is not None:
            self._is_withdrawn = True
            self._asking.cancel()

    async def _run(self) -> None:
        try:
            while self._wanted:
                await asyncio.sleep(0)  # what else this turn of the loop asks for goes along
                self._asked = dict(islice(self._wanted.items(), QUEUES_PER_REQUEST))
                for queue_id in self._asked:
                    del self._wanted[queue_id]
                if self._asked and not await self._is_answered():
                    self._wanted = {**self._asked, **self._wanted}  # the others ask once more
        finally:
            self._is_running = False
            self._asked = {}

    async def _is_answered(self) -> bool:
        """False if it was withdrawn for some of the queues."""
        self._is_withdrawn = False
        self._asking = asyncio.ensure_future(self._change(TakeService(self._node, tuple(self._asked.items()))))
        try:
            await self._asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_withdrawn or (task is not None and task.cancelling()):
                raise
            return False
        finally:
            self._asking = None
        return True
