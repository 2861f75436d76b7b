"""What nodes tell each other of how far they have applied the log, and of whether they serve clients (`AppliedUpTo`).

Each is told after every batch that is applied here, when a link comes up, when this node's standing changes
(`cluster.runtime.pause_notice`), and when that of the peer is heard to have changed, which is the answer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cluster.raft.messages import AppliedUpTo, Message
from cluster.runtime.applied_watch import AppliedWatch
from cluster.runtime.pause_notice import PauseNotice
from node.ids import NodeName


class AppliedReports:
    """See the top of this module. Everything on the loop's thread."""

    def __init__(
        self,
        node: NodeName,
        watch: AppliedWatch,
        notice: PauseNotice,
        send: Callable[[NodeName, Sequence[Message]], None],
        applied_index: Callable[[], int],
    ) -> None:
        self._node = node
        self._watch = watch
        self._notice = notice
        self._send = send
        self._applied_index = applied_index
        #: The standing that all linked peers were told last.
        self._told = notice.standing

    def tell(self, peers: Collection[NodeName]) -> None:
        """How far this node is."""
        index, standing = self._applied_index(), self._notice.standing
        for peer in peers:
            heard = self._watch.standing(peer)
            self._send(peer, [AppliedUpTo(self._node, peer, index, standing=standing, heard_standing=heard)])

    def tell_standing(self) -> None:
        """If it has changed."""
        if self._notice.standing != self._told:
            self._told = self._notice.standing
            self.tell(self._notice.linked_peers)

    def receive(self, message: AppliedUpTo) -> None:
        """A peer says how far it is."""
        self._notice.heard(message.sender, message.heard_standing)
        if self._watch.heard(message.sender, message.index, message.standing):
            self.tell([message.sender])

    async def wait(self, index: int, peers: Callable[[], Collection[NodeName]]) -> bool:
        """See `AppliedWatch.wait`."""
        return await self._watch.wait(index, peers)

    def peers_changed(self) -> None:
        """A peer was declared up or down."""
        self._watch.peers_changed()

    def peer_begins_anew(self, peer: NodeName, now_ms: int) -> None:
        """A peer has started again, and has yet to be linked with."""
        self._watch.peer_begins_anew(peer, now_ms / 1000)

    def link_up(self, peer: NodeName) -> None:
        """A link that was down has lost what was said."""
        self._watch.link_up(peer)
        self._notice.link_up(peer)
        self.tell([peer])

    def link_down(self, peer: NodeName, now_ms: int) -> None:
        """The link is gone."""
        self._watch.link_down(peer, now_ms / 1000)
        self._notice.link_down(peer, now_ms)

    def check_invariants(self) -> None:
        self._watch.check_invariants()
        self._notice.check_invariants()
