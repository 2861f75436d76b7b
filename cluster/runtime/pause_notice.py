"""That this node serves no clients, as its peers have heard it: they need not wait for it, until it says otherwise.

A declaration is answered when every node that serves clients has applied it (`cluster.runtime.standing`). A node whose
disk is full applies nothing, and is linked all the same: it would hold up every declaration in the cluster for as long
as a peer is waited for. So a node that pauses says so. The number that it says, its *standing*, is odd while it serves
nobody and even otherwise, so that no answer to what it said before is taken for one to what it says now.

**The return** must not be too early, for others may be answering clients without waiting for this node. So it first
says that it is about to serve again, from which on a peer that has heard it waits for it. It serves when all have heard
it who may have thought otherwise, and it is current as of a time at which that was so (`cluster.raft.currency`):
whatever was answered without it was committed before, and is applied here.

**Whom it concerns.** A peer forgets what it was told when the link breaks, and then waits as for any other peer whose
link broke. It notices that no later than a silence takes, or its process is gone. Who is linked anew is told what is
true then. A peer of a release that does not know of this waits as it always did, and says nothing of what it heard.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.ids import NodeName


class PauseNotice:
    """See the top of this module. Times are those of this node's clock."""

    def __init__(self, silence_ms: int) -> None:
        """``silence_ms``: a link that is down here is up for the peer for so long at most."""
        self.standing = 0
        self._silence_ms = silence_ms
        #: The latest standing that each linked peer has heard; ``None``: it heeds none.
        self._heard: dict[NodeName, int | None] = {}
        #: When the link to each peer broke that may have been told that this node serves nobody, and nothing since.
        self._lost_ms: dict[NodeName, int] = {}
        #: The first time at which nobody was known to think any more that this node serves nobody.
        self._over_for_all_ms: int | None = None

    # --- peers ---

    @property
    def linked_peers(self) -> Sequence[NodeName]:
        """Who is to be told when the standing changes."""
        return list(self._heard)

    def link_up(self, peer: NodeName) -> None:
        """It is told the present standing before anything else, and has forgotten those of before."""
        self._heard[peer] = self.standing
        self._lost_ms.pop(peer, None)

    def link_down(self, peer: NodeName, now_ms: int) -> None:
        """It will notice."""
        heard = self._heard.pop(peer, None)
        if heard is not None and (self.is_given or heard < self.standing):
            self._lost_ms[peer] = now_ms

    def peer_gone(self, peer: NodeName) -> None:
        """Its process is known to be gone, and its clients with it."""
        self._lost_ms.pop(peer, None)

    def heard(self, peer: NodeName, standing: int | None) -> None:
        """What a peer says of what it has heard; ``None``: it heeds no notice."""
        if peer in self._heard:
            self._heard[peer] = standing

    # --- this node ---

    @property
    def is_given(self) -> bool:
        """Nobody need wait for this node."""
        return self.standing % 2 == 1

    def give(self) -> None:
        """No client is served from now on."""
        if not self.is_given:
            self.standing += 1
            self._over_for_all_ms = None

    def take_back(self) -> None:
        """Clients are to be served again."""
        if self.is_given:
            self.standing += 1

    def unheard_by(self, now_ms: int) -> list[NodeName]:
        """Who may still think that this node serves nobody, after that was taken back."""
        lost = [peer for peer, lost_ms in self._lost_ms.items() if now_ms < lost_ms + self._silence_ms]
        return lost + [peer for peer, heard in self._heard.items() if heard is not None and heard < self.standing]

    def over_for_all_ms(self, now_ms: int) -> int | None:
        """A time at which everybody waited for this node again; ``None`` if that is yet to come."""
        if self._over_for_all_ms is None and not self.is_given and not self.unheard_by(now_ms):
            self._over_for_all_ms = now_ms
        return self._over_for_all_ms

    def check_invariants(self) -> None:
        assert not self._heard.keys() & self._lost_ms.keys(), "a link is up or lost"
        assert self._over_for_all_ms is None or not self.is_given, "what is over was taken back"
        assert all(heard is None or heard <= self.standing for heard in self._heard.values()), "what was said is heard"
