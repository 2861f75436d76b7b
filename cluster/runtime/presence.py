"""That this node lives, and which queues wait for its copy: said until the cluster knows it.

A `NodeUp` is what brings a complete copy back into its record, in whatever life of its node. It is needed by a node
that was declared down and lives, and by one whose copy was dropped just before the master died: nobody serves such a
queue, and nobody asks. One commit is for all queues of the node, since each looks at every queue of the cluster; and a
proposal that found no quorum is made again, for the wait would have no end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cluster.metadata.state import MetadataState
from node.ids import NodeName, QueueId


class Presence:
    """See the top of this module."""

    def __init__(
        self,
        node: NodeName,
        state: MetadataState,
        is_failed: Callable[[QueueId], bool],
        announce: Callable[[], Awaitable[None]],
        spawn: Callable[[Awaitable[None], str], None],
    ) -> None:
        """``is_failed``: the copy here is out of service. ``announce`` commits a `NodeUp`; ``spawn`` runs something in
        the background and logs its failure."""
        self._node = node
        self._state = state
        self._is_failed = is_failed
        self._announce = announce
        self._spawn = spawn
        #: Queues that waited for the copy here when they were last looked at.
        self._waiting: set[QueueId] = set()
        self._is_announcing = False
        #: Which does so.
        self._announcement: asyncio.Task[object] | None = None
        self._is_over = False

    def queue_changed(self, queue_id: QueueId) -> None:
        """A record was applied; it may be that the queue waits for this node."""
        if self._is_waited_for(queue_id):
            self._waiting.add(queue_id)
            self.say()

    def _is_waited_for(self, queue_id: QueueId) -> bool:
        """Nobody serves the queue, and this node has all of it: it was dropped just before the master died."""
        record = self._state.masterships.get(queue_id)
        is_wanted = record is not None and record.is_down and self._node in record.complete
        return is_wanted and not self._is_failed(queue_id)

    def say(self) -> None:
        """Announce this node, unless that is on its way."""
        if not self._is_announcing and not self._is_over:
            self._is_announcing = True
            self._spawn(self._run(), "announcing this node again")

    async def _run(self) -> None:
        self._announcement = asyncio.current_task()
        try:
            if not self._is_over:
                await self._announce()
        finally:
            self._is_announcing = False
            self._announcement = None

    def tick(self) -> None:
        """Now and then: what was said and not heard is said again."""
        self._waiting = {queue_id for queue_id in self._waiting if self._is_waited_for(queue_id)}
        member = self._state.members.get(self._node)
        if self._waiting or member is None or not member.is_up:
            self.say()

    def end(self) -> None:
        """The node is about to say goodbye. What it has announced could be decided behind that."""
        self._is_over = True
        if self._announcement is not None:
            self._announcement.cancel()
