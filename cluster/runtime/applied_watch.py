"""How far the peers have applied the log, so that a change can be waited for until everybody has it.

A proposer has its answer when the change is applied *on its own node*; a peer may be a message behind. A client that
declares a queue here and publishes to it there would lose the message as unroutable. The reference's transactions
return when all running nodes have committed (Mnesia's sync transactions), and programs rely on it.

So every node tells every peer the index it has applied, after each batch that it applies and when a link comes up, and
a change of topology is answered when all peers that are up and linked have reached it. The wait is bounded: it makes
changes visible, nothing depends on it for safety, and a frozen peer must not hold up the others for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from node.ids import NodeName

#: A healthy peer answers within milliseconds; a frozen one is declared down after some seconds and waited for no more.
VISIBILITY_TIMEOUT_S = 1.0


class AppliedWatch:
    """What the peers have said. Everything on the loop's thread."""

    def __init__(self) -> None:
        self._applied: dict[NodeName, int] = {}
        self._changed = asyncio.Event()

    def heard(self, peer: NodeName, index: int) -> None:
        """``peer`` has applied everything up to ``index``; less than before if it has restarted and replays."""
        self._applied[peer] = index
        self._changed.set()

    def peers_changed(self) -> None:
        """Whom to wait for may have changed: look again."""
        self._changed.set()

    async def wait(
        self, index: int, peers: Callable[[], Collection[NodeName]], timeout_s: float = VISIBILITY_TIMEOUT_S
    ) -> bool:
        """Until all of ``peers()`` have applied ``index``; false if they have not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._applied.get(peer, 0) >= index for peer in peers()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
