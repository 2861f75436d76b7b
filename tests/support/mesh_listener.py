"""What the tests of the mesh hear and say."""

from __future__ import annotations

from cluster.mirroring.messages import HorizonOp, Ops, PublishOp
from cluster.raft.messages import Message
from cluster.wire.convert import QueueFrameMessage
from node.ids import Epoch, Incarnation, NodeName, QueueId, SeqId


class Listener:
    """A handler that writes down what it hears."""

    def __init__(self) -> None:
        self.happened: list[tuple[str, NodeName, object]] = []
        self.consensus: list[Message] = []
        self.queues: list[QueueFrameMessage] = []
        self.frames = 0
        self.beats = 0

    def on_consensus(self, peer: NodeName, messages: list[Message]) -> None:
        self.consensus += messages
        self.beats += not messages

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None:
        self.queues += messages
        self.frames += 1

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        self.happened.append(("up", peer, incarnation))

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        self.happened.append(("down", peer, reason))

    def on_peer_refused(self, peer: NodeName) -> None:
        self.happened.append(("refused", peer, None))

    def on_link_uncongested(self, peer: NodeName) -> None:
        self.happened.append(("uncongested", peer, None))

    def on_link_room(self, peer: NodeName) -> None:
        self.happened.append(("room", peer, None))

    def count(self, what: str) -> int:
        return sum(name == what for name, _, _ in self.happened)


def ops(index: int, size: int = 10) -> Ops:
    return Ops(QueueId(1), Epoch(1), 1, index, (PublishOp(SeqId(index), 1, bytes(size)), HorizonOp(SeqId(index))))
