"""Between the dataclasses that the cluster's machines speak and the protobuf messages of ``proto/``.

A link frame is a protobuf message whose repeated fields are its *items*. A protobuf message may be written as the
concatenation of its encoded fields, so an encoder returns one item, complete with tag and length, and a frame is
the concatenation of items: nothing is encoded twice on its way into a frame, and the size of a frame is known
before it is built. In the same way the ops of a queue, the same for all its mirrors, are encoded once and spliced
behind each mirror's own numbers.

Bulk (message envelopes) is never looked into here. Whatever a peer sends that we cannot read is `WireError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from cluster.membership.messages import NodeAlarms
from cluster.mirroring.messages import MirrorMessage, MirrorOp, Ops
from cluster.raft.messages import Message as RaftMessage
from cluster.sessions.messages import SessionMessage
from cluster.wire import convert_membership, convert_mirroring, convert_sessions, mirroring_pb2
from cluster.wire import mesh_pb2 as pb
from cluster.wire.convert_consensus import consensus_from_wire, consensus_to_wire
from node.errors import WarrenError
from node.ids import Incarnation, NodeName

QueueFrameMessage = MirrorMessage | SessionMessage | NodeAlarms

_LENGTH_DELIMITED = 2


def _tag(descriptor: Any, field: str) -> bytes:
    """Tag byte of a length-delimited field, from the field's number in the ``.proto`` file."""
    number: int = descriptor.fields_by_name[field].number
    assert number < 16, "one byte holds the tag"
    return bytes((number << 3 | _LENGTH_DELIMITED,))


_CONSENSUS_ITEM_TAG = _tag(pb.LinkFrame.DESCRIPTOR, "consensus")
_QUEUE_ITEM_TAG = _tag(pb.LinkFrame.DESCRIPTOR, "queues")
_OPS_MESSAGE_TAG = _tag(pb.QueueMessage.DESCRIPTOR, "ops")
_OP_LIST_TAG = _tag(mirroring_pb2.Ops.DESCRIPTOR, "ops")

_TO_WIRE: dict[type[Any], tuple[str, Callable[[Any], Any]]] = {
    **convert_membership.TO_WIRE,
    **convert_mirroring.TO_WIRE,
    **convert_sessions.TO_WIRE,
}
_FROM_WIRE: dict[str, Callable[[Any], QueueFrameMessage]] = {
    **convert_membership.FROM_WIRE,
    **convert_mirroring.FROM_WIRE,
    **convert_sessions.FROM_WIRE,
}


class WireError(WarrenError):
    """A peer sent bytes that are no frame of ours: another version, or damage."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a node says of itself; the fields are explained in ``proto/mesh.proto``."""

    identity: str = ""
    group: str = ""
    configuration_term: int = 0
    configuration_index: int = 0
    members: tuple[NodeName, ...] = ()
    receiver_identity: str = ""
    receiver_incarnation: Incarnation = field(default=Incarnation(0))
    cluster_address: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a stream; the fields are explained in ``proto/mesh.proto``."""

    cookie: bytes
    sender: NodeName
    sender_incarnation: Incarnation
    receiver: NodeName
    receiver_incarnation: Incarnation
    link: int
    credentials: Credentials = Credentials()


@dataclass(frozen=True, slots=True)
class HelloReply:
    """Answer to a `Hello`; ``refused`` is empty if it is accepted."""

    node: NodeName
    incarnation: Incarnation
    refused: str = ""
    credentials: Credentials = Credentials()


def _length(size: int) -> bytes:
    """``size`` as a protobuf varint."""
    encoded = bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def encode_hello(hello: Hello) -> bytes:
    """The frame."""
    return pb.LinkFrame(
        hello=pb.Hello(
            cookie=hello.cookie,
            sender=hello.sender,
            sender_incarnation=hello.sender_incarnation,
            receiver=hello.receiver,
            receiver_incarnation=hello.receiver_incarnation,
            link=hello.link,
            credentials=_credentials_to_wire(hello.credentials),
        )
    ).SerializeToString()


def decode_hello(frame: bytes) -> Hello:
    wire = _parse_frame(frame)
    if not wire.HasField("hello"):
        raise WireError("a stream begins with a hello")
    hello = wire.hello
    return Hello(
        hello.cookie,
        NodeName(hello.sender),
        Incarnation(hello.sender_incarnation),
        NodeName(hello.receiver),
        Incarnation(hello.receiver_incarnation),
        hello.link,
        _credentials_from_wire(hello.credentials),
    )


def encode_hello_reply(reply: HelloReply) -> bytes:
    return pb.HelloReply(
        node=reply.node,
        incarnation=reply.incarnation,
        refused=reply.refused,
        credentials=_credentials_to_wire(reply.credentials),
    ).SerializeToString()


def decode_hello_reply(answer: bytes) -> HelloReply:
    try:
        wire = pb.HelloReply.FromString(answer)
    except DecodeError as error:
        raise WireError(f"not an answer to a hello: {error}") from None
    return HelloReply(
        NodeName(wire.node),
        Incarnation(wire.incarnation),
        wire.refused,
        _credentials_from_wire(wire.credentials),
    )


def _credentials_to_wire(m: Credentials) -> pb.Credentials:
    return pb.Credentials(
        identity=m.identity,
        group=m.group,
        configuration_term=m.configuration_term,
        configuration_index=m.configuration_index,
        members=m.members,
        receiver_identity=m.receiver_identity,
        receiver_incarnation=m.receiver_incarnation,
        cluster_address=m.cluster_address,
    )


def _credentials_from_wire(w: pb.Credentials) -> Credentials:
    return Credentials(
        w.identity,
        w.group,
        w.configuration_term,
        w.configuration_index,
        tuple(NodeName(member) for member in w.members),
        w.receiver_identity,
        Incarnation(w.receiver_incarnation),
        w.cluster_address,
    )


def encode_consensus(message: RaftMessage) -> bytes:
    """One item of a frame of the consensus stream."""
    encoded = consensus_to_wire(message).SerializeToString()
    return _CONSENSUS_ITEM_TAG + _length(len(encoded)) + encoded


def decode_consensus(frame: bytes, sender: NodeName, receiver: NodeName) -> list[RaftMessage]:
    """The messages of a frame of the consensus stream from ``sender`` to ``receiver``."""
    try:
        return [consensus_from_wire(item, sender, receiver) for item in _parse_frame(frame).consensus]
    except ValueError as error:
        raise WireError(str(error)) from None


class QueueEncoder:
    """Encodes items of the queue stream, the ops of a queue only once for all its mirrors.

    Ops are recognised by the identity of their tuple, which is kept until `forget`: the owner calls it at the end of
    each turn of its loop, which is as long as the same ops keep being sent.
    """

    __slots__ = ("_encoded_ops",)

    def __init__(self) -> None:
        #: By id of the tuple; holding the tuple keeps its id from being used again.
        self._encoded_ops: dict[int, tuple[Sequence[MirrorOp], bytes]] = {}

    def encode(self, message: QueueFrameMessage) -> bytes:
        """One item of a frame of the queue stream."""
        if type(message) is Ops:
            return self._encode_ops(message)
        field, to_wire = _TO_WIRE[type(message)]
        fields: dict[str, Any] = {field: to_wire(message)}
        encoded = pb.QueueMessage(**fields).SerializeToString()
        return _QUEUE_ITEM_TAG + _length(len(encoded)) + encoded

    def forget(self) -> None:
        self._encoded_ops.clear()

    def _encode_ops(self, message: Ops) -> bytes:
        known = self._encoded_ops.get(id(message.ops))
        if known is None:
            encoded = convert_mirroring.ops_to_wire(message.ops).SerializeToString()
            known = message.ops, _OP_LIST_TAG + _length(len(encoded)) + encoded
            self._encoded_ops[id(message.ops)] = known
        op_list = known[1]
        numbers = mirroring_pb2.Ops(
            queue_id=message.queue_id,
            epoch=message.epoch,
            attach_id=message.attach_id,
            first_index=message.first_index,
        ).SerializeToString()
        ops_size = len(numbers) + len(op_list)
        ops_header = _OPS_MESSAGE_TAG + _length(ops_size)
        item_header = _QUEUE_ITEM_TAG + _length(len(ops_header) + ops_size)
        return b"".join((item_header, ops_header, numbers, op_list))


def decode_queue_frame(frame: bytes) -> list[QueueFrameMessage]:
    """The messages of a frame of the queue stream."""
    try:
        return [_queue_message_from_wire(item) for item in _parse_frame(frame).queues]
    except ValueError as error:
        raise WireError(str(error)) from None


def _queue_message_from_wire(wire: pb.QueueMessage) -> QueueFrameMessage:
    field = wire.WhichOneof("message")
    if field is None:
        raise ValueError("a queue message of an unknown kind")
    return _FROM_WIRE[field](getattr(wire, field))


def _parse_frame(frame: bytes) -> pb.LinkFrame:
    try:
        return pb.LinkFrame.FromString(frame)
    except DecodeError as error:
        raise WireError(f"not a link frame: {error}") from None
