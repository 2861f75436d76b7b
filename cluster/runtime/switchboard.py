"""Frames between this node and the others, in and out, by kind.

Out (`OutgoingFrames`): what the parts of the node have to say in one turn of the loop leaves together, one call of the
mesh per receiver. In (`Switchboard`): a frame goes to the part that its kind is for::

    mirroring (Attach, Ops ...)        QueueSet
    answers of a master to channels    ClusterGateway, where the channels are
    requests of channels to a master   SessionHost, where the queues are
    NodeAlarms                         ResourceAlarms
    consensus                          RaftDriver

What carries messages to consumers (`OutgoingFrames.deliver`) waits while a link is full: it is congested, and some of
these are part of that. So they get no more of a congested link than the rest leaves, but always some, one share at a
time. Who finds a link full waits in one line for it (`OutgoingFrames.when_room`), so that all have their turns.

Whatever a peer says is a sign of life, first of all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from cluster.membership.messages import NodeAlarms
from cluster.mirroring.messages import Attach, AttachRefused, AttachReply, Ops, OpsAck
from cluster.raft.messages import Message as RaftMessage
from cluster.runtime.link_line import LinkLine
from cluster.sessions.messages import (
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionOpened,
    SessionReply,
)
from cluster.wire.convert import QueueFrameMessage
from node.ids import Incarnation, NodeName

log = logging.getLogger(__name__)

#: So many bytes for consumers of a node that were said in a turn count as nothing when room is asked for: to hand over
#: less, queue by queue, costs more than it tells.
UNSAID_BYTES_MAX = 1024 * 1024

_MIRRORING = (Attach, AttachReply, AttachRefused, Ops, OpsAck)
_TO_ENTRY_NODE = (
    SessionOpened,
    SessionDeliver,
    SessionConfirm,
    SessionCredit,
    SessionConsumerCancelled,
    SessionReply,
)


class FrameCarrier(Protocol):
    """The mesh, as frames of queues use it (`cluster.transport.mesh.Mesh`)."""

    @property
    def up_peers(self) -> Sequence[NodeName]: ...

    def is_congested(self, peer: NodeName) -> bool: ...

    def mark(self, peer: NodeName) -> None: ...

    def is_full(self, peer: NodeName) -> bool: ...

    def send_queue_frames(self, peer: NodeName, messages: Sequence[QueueFrameMessage]) -> None: ...

    def reset_link(self, peer: NodeName, reason: str) -> None: ...


class OutgoingFrames:
    """Implements `cluster.sessions.ports.Links` and `MasterLinks`, and `cluster.runtime.queue_ports.MirrorLinks`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], slice_pieces: int) -> None:
        """``clock``, ``slice_pieces``: see `LinkLine`."""
        self._loop = loop
        self._line = LinkLine(self._is_link_full, loop.call_soon, clock, slice_pieces)
        #: Who waits (`when_room`) goes on.
        self.room_came = self._line.room_came
        self._outgoing: dict[NodeName, list[QueueFrameMessage]] = {}
        #: Bytes of messages in these, of nodes that were ever sent some: of no other is it asked if the link is full.
        self._unsaid_bytes: dict[NodeName, int] = {}
        #: Nodes whose link lacks something that was said, and is about to be reset.
        self._broken: set[NodeName] = set()
        self._mesh: FrameCarrier

    def connect(self, mesh: FrameCarrier) -> None:
        """The mesh needs whoever hears its frames, who needs this: so it comes last, and before anything is sent."""
        self._mesh = mesh

    def send(self, node: NodeName, message: QueueFrameMessage) -> None:
        """At the end of this turn; dropped if the link is down then."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.setdefault(node, []).append(message)

    def deliver(self, node: NodeName, message: SessionDeliver | SessionReply, size_bytes: int) -> None:
        """`send`, of what carries so many bytes to a consumer, or to whoever asked for a message."""
        self._unsaid_bytes[node] = self._unsaid_bytes.get(node, 0) + size_bytes
        self.send(node, message)

    def send_to_all(self, message: QueueFrameMessage) -> None:
        """To every peer whose link is up now."""
        for peer in self._mesh.up_peers:
            self.send(peer, message)

    def is_congested(self, node: NodeName) -> bool:
        return self._mesh.is_congested(node)

    def is_congested_now(self, node: NodeName) -> bool:
        """What is said to the node in this turn counts, too: it is handed over for that."""
        self._hand_over_now(node)
        return self._mesh.is_congested(node)

    def is_full_now(self, node: NodeName) -> bool:
        """Messages to consumers there have to wait, or others do who came before whoever asks. See the module text."""
        if node not in self._unsaid_bytes:
            return False
        return self._line.has_others(node) or self._is_link_full(node)

    def _is_link_full(self, node: NodeName) -> bool:
        if self._unsaid_bytes.get(node, 0) > UNSAID_BYTES_MAX:
            self._hand_over_now(node)
        return self._mesh.is_full(node)

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        """It is full: call this when it is no longer, or is gone, and those who came before have gone on. ``key``: who
        waits, in one place. ``go_on`` does not raise."""
        self._line.wait(node, key, go_on)

    def nobody_waits(self) -> None:
        """The queues are closed. The links end without a word, so nobody would ever go on."""
        self._line.clear()

    def is_up(self, node: NodeName) -> bool:
        return node in self._mesh.up_peers

    def linked_nodes(self) -> Sequence[NodeName]:
        return self._mesh.up_peers

    def _hand_over_now(self, node: NodeName) -> None:
        if messages := self._outgoing.get(node):
            self._outgoing[node] = []
            self._hand_over(node, messages)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for node, messages in outgoing.items():
            self._hand_over(node, messages)

    def _hand_over(self, node: NodeName, messages: Sequence[QueueFrameMessage]) -> None:
        if unsaid_bytes := self._unsaid_bytes.get(node):
            self._unsaid_bytes[node] = 0
        if node in self._broken:
            return  # behind a gap, what is sent again later would be taken for known
        try:
            self._mesh.send_queue_frames(node, messages)
            if unsaid_bytes:
                self._mesh.mark(node)
        except Exception as error:
            # Part of the conversation is lost, as with a broken link; the other nodes get theirs.
            log.exception("messages for %s could not be sent", node)
            self._broken.add(node)
            # Not here: whoever asks for room (`is_congested_now`) is in the midst of something, and is told of the end.
            self._loop.call_soon(self._reset, node, f"messages could not be sent: {error!r}")

    def _reset(self, node: NodeName, reason: str) -> None:
        self._broken.discard(node)
        self._mesh.reset_link(node, reason)

    def check_invariants(self) -> None:
        self._line.check_invariants(self._mesh.is_full)
        for node, size_bytes in self._unsaid_bytes.items():
            assert not size_bytes or self._outgoing.get(node), "what is unsaid is to be said"


class FrameReceiver(Protocol):
    """A part of the node that some frames are for."""

    def receive(self, node: NodeName, message: Any, /) -> None: ...


class LinkWatcher(Protocol):
    """Who knows which peers live (`cluster.runtime.membership.Membership`)."""

    def heard(self, peer: NodeName) -> None: ...

    def link_up(self, peer: NodeName, incarnation: Incarnation) -> None: ...

    def link_down(self, peer: NodeName) -> None: ...

    def peer_refused(self, peer: NodeName) -> None: ...


class EntryReceiver(FrameReceiver, Protocol):
    """The gateway of the channels here."""

    def link_free(self, node: NodeName) -> None: ...


class Switchboard:
    """See the top of this module. Implements `cluster.transport.mesh.MeshHandler`."""

    def __init__(
        self,
        membership: LinkWatcher,
        *,
        consensus: Callable[[Sequence[RaftMessage]], None],
        mirroring: FrameReceiver,
        entry: EntryReceiver,
        sessions: FrameReceiver,
        alarms: FrameReceiver,
        room_came: Callable[[NodeName], None],
    ) -> None:
        """``entry`` hears what masters elsewhere say to channels here, ``sessions`` what channels elsewhere say to
        queues here."""
        self._membership = membership
        self._consensus = consensus
        self._mirroring = mirroring
        self._entry = entry
        self._sessions = sessions
        self._alarms = alarms
        self._room_came = room_came

    def on_consensus(self, peer: NodeName, messages: list[RaftMessage]) -> None:
        self._membership.heard(peer)
        self._consensus(messages)

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None:
        self._membership.heard(peer)
        for message in messages:
            if isinstance(message, _MIRRORING):
                self._mirroring.receive(peer, message)
            elif isinstance(message, _TO_ENTRY_NODE):
                self._entry.receive(peer, message)
            elif isinstance(message, NodeAlarms):
                self._alarms.receive(peer, message)
            else:
                self._sessions.receive(peer, message)

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        self._membership.link_up(peer, incarnation)

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        self._membership.link_down(peer)
        self._room_came(peer)  # what waited went with the link

    def on_peer_refused(self, peer: NodeName) -> None:
        self._membership.peer_refused(peer)

    def on_link_uncongested(self, peer: NodeName) -> None:
        self._entry.link_free(peer)

    def on_link_room(self, peer: NodeName) -> None:
        self._room_came(peer)
