"""How far the peers have applied the log, so that a change can be waited for until everybody has it.

A proposer has its answer when the change is applied *on its own node*; a peer may be a message behind. A client that
declares a queue here and publishes to it there would lose the message as unroutable. The reference's transactions
return when all running nodes have committed (Mnesia's sync transactions), and programs rely on it.

So every node tells every peer the index it has applied, after each batch that it applies and when a link comes up, and
a change of topology is answered when all peers that are up have reached it. The wait is bounded, for a frozen peer must
not hold up the others for ever; but it is longer than a peer that does not catch up goes on serving clients. How long
that is, and why it is enough, stands in `cluster.runtime.standing`. A peer whose link is down cannot say how far it is,
and need not be waited for when so much time has passed since the link broke, or it was heard to have begun again. And
one that has said that it serves no clients is not waited for, as long as the link and its life last and until it says
otherwise (`cluster.runtime.pause_notice`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from node.ids import NodeName


class AppliedWatch:
    """What the peers have said. Everything on the loop's thread. ``now_s``: the loop's time."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._applied: dict[NodeName, int] = {}
        #: What each linked peer has said of itself: odd while it serves no clients.
        self._standings: dict[NodeName, int] = {}
        self._changed = asyncio.Event()
        self._linked: dict[NodeName, None] = {}
        #: When the link to each peer broke, or it began again without one; of others without one, when this began.
        self._lost_s: dict[NodeName, float] = {}
        self._began_s = now_s

    def heard(self, peer: NodeName, index: int, standing: int = 0) -> bool:
        """``peer`` has applied everything up to ``index``; less than before if it has restarted and replays. True if
        its standing is another than before."""
        self._applied[peer] = index
        self._changed.set()
        if peer not in self._linked or standing == self.standing(peer):
            return False
        self._standings[peer] = standing
        return True

    def standing(self, peer: NodeName) -> int:
        """What a peer has said last, on the present link."""
        return self._standings.get(peer, 0)

    def link_up(self, peer: NodeName) -> None:
        """It can say how far it is."""
        self._linked[peer] = None
        self._lost_s.pop(peer, None)
        self._changed.set()

    def link_down(self, peer: NodeName, now_s: float) -> None:
        """It cannot."""
        if peer in self._linked:
            del self._linked[peer]
            self._standings.pop(peer, None)
            self._lost_s[peer] = now_s
        self._changed.set()

    def peer_begins_anew(self, peer: NodeName, now_s: float) -> None:
        """It may serve clients, whatever its life before said on a link that is not missed yet, and however long ago it
        was lost."""
        self._standings.pop(peer, None)
        if peer not in self._linked:
            self._lost_s[peer] = now_s

    def peers_changed(self) -> None:
        """Whom to wait for may have changed: look again."""
        self._changed.set()

    async def wait(self, index: int, peers: Callable[[], Collection[NodeName]]) -> bool:
        """Until all of ``peers()``, those that are up, have applied ``index`` or serve no clients; false if some have
        not in time."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        while behind := [peer for peer in peers() if self._is_lacking(peer, index)]:
            ends_s = [end_s for peer in behind if (end_s := self._end_s(peer, deadline_s)) > loop.time()]
            if not ends_s:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout_at(min(ends_s)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return True

    def _is_lacking(self, peer: NodeName, index: int) -> bool:
        """It may answer clients that do not find what is behind ``index``."""
        return self._applied.get(peer, 0) < index and self.standing(peer) % 2 == 0

    def _end_s(self, peer: NodeName, deadline_s: float) -> float:
        """Until when this peer is waited for."""
        if peer in self._linked:
            return deadline_s
        return min(deadline_s, self._lost_s.get(peer, self._began_s) + self._timeout_s)

    def check_invariants(self) -> None:
        assert not self._linked.keys() & self._lost_s.keys(), "a link is up or lost"
        assert self._standings.keys() <= self._linked.keys(), "what a peer says of itself ends with its link"
