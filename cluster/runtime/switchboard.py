"""Frames between this node and the others, in and out, by kind.

Out (`OutgoingFrames`): what the parts of the node have to say in one turn of the loop leaves together, one call of the
mesh per receiver. In (`Switchboard`): a frame goes to the part that its kind is for::

    mirroring (Attach, Ops ...)        QueueSet
    answers of a master to channels    ClusterGateway, where the channels are
    requests of channels to a master   SessionHost, where the queues are
    NodeAlarms                         ResourceAlarms
    consensus                          RaftDriver

Whatever a peer says is a sign of life, first of all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cluster.membership.messages import NodeAlarms
from cluster.mirroring.messages import Attach, AttachRefused, AttachReply, Ops, OpsAck
from cluster.raft.messages import Message as RaftMessage
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

    def send_queue_frames(self, peer: NodeName, messages: Sequence[QueueFrameMessage]) -> None: ...

    def reset_link(self, peer: NodeName, reason: str) -> None: ...


class OutgoingFrames:
    """Implements `cluster.sessions.entry.Links` and `cluster.runtime.queue_set.MirrorLinks`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outgoing: dict[NodeName, list[QueueFrameMessage]] = {}
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

    def send_to_all(self, message: QueueFrameMessage) -> None:
        """To every peer whose link is up now."""
        for peer in self._mesh.up_peers:
            self.send(peer, message)

    def is_congested(self, node: NodeName) -> bool:
        return self._mesh.is_congested(node)

    def is_congested_now(self, node: NodeName) -> bool:
        """What is said to the node in this turn counts, too: it is handed over for that."""
        if messages := self._outgoing.get(node):
            self._outgoing[node] = []
            self._hand_over(node, messages)
        return self._mesh.is_congested(node)

    def is_up(self, node: NodeName) -> bool:
        return node in self._mesh.up_peers

    def linked_nodes(self) -> Sequence[NodeName]:
        return self._mesh.up_peers

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for node, messages in outgoing.items():
            self._hand_over(node, messages)

    def _hand_over(self, node: NodeName, messages: Sequence[QueueFrameMessage]) -> None:
        if node in self._broken:
            return  # behind a gap, what is sent again later would be taken for known
        try:
            self._mesh.send_queue_frames(node, messages)
        except Exception as error:
            # Part of the conversation is lost, as with a broken link; the other nodes get theirs.
            log.exception("messages for %s could not be sent", node)
            self._broken.add(node)
            # Not here: whoever asks for room (`is_congested_now`) is in the midst of something, and is told of the end.
            self._loop.call_soon(self._reset, node, f"messages could not be sent: {error!r}")

    def _reset(self, node: NodeName, reason: str) -> None:
        self._broken.discard(node)
        self._mesh.reset_link(node, reason)


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
    ) -> None:
        """``entry`` hears what masters elsewhere say to channels here, ``sessions`` what channels elsewhere say to
        queues here."""
        self._membership = membership
        self._consensus = consensus
        self._mirroring = mirroring
        self._entry = entry
        self._sessions = sessions
        self._alarms = alarms

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

    def on_peer_refused(self, peer: NodeName) -> None:
        self._membership.peer_refused(peer)

    def on_link_uncongested(self, peer: NodeName) -> None:
        self._entry.link_free(peer)
