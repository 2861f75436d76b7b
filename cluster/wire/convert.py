"""Between the dataclasses that the cluster's machines speak and the protobuf messages of ``proto/``.

A link frame is a protobuf message whose repeated fields are its *items*. A protobuf message may be written as the
concatenation of its encoded fields, so an encoder returns one item, complete with tag and length, and a frame is
the concatenation of items: nothing is encoded twice on its way into a frame, and the size of a frame is known
before it is built. In the same way the ops of a queue, the same for all its mirrors, are encoded once and spliced
behind each mirror's own numbers.

A frame that is larger than a peer lets in at once crosses in parts, see `parts_of` and `Assembler`.

Bulk (message envelopes) is never looked into here. Whatever a peer sends that we cannot read is `WireError`; but a
message of a kind that we do not know is passed over and reported, so that it can be answered (`NotUnderstood`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from cluster.membership.messages import NodeAlarms
from cluster.mirroring.messages import MirrorMessage, MirrorOp, Ops
from cluster.raft.messages import Message as RaftMessage
from cluster.sessions.messages import SessionMessage
from cluster.wire import convert_membership, convert_mirroring, convert_sessions, mirroring_pb2
from cluster.wire import mesh_pb2 as pb
from cluster.wire.convert_consensus import consensus_from_wire, consensus_to_wire
from cluster.wire.errors import WireError
from node.ids import NodeName

QueueFrameMessage = MirrorMessage | SessionMessage | NodeAlarms

_LENGTH_DELIMITED = 2
#: Of a frame that crosses in parts, so many bytes are in each.
PART_BYTES = 1024 * 1024


def _tag(descriptor: Any, field: str) -> bytes:
    """Tag byte of a length-delimited field, from the field's number in the ``.proto`` file."""
    number: int = descriptor.fields_by_name[field].number
    assert number < 16, "one byte holds the tag"
    return bytes((number << 3 | _LENGTH_DELIMITED,))


_CONSENSUS_ITEM_TAG = _tag(pb.LinkFrame.DESCRIPTOR, "consensus")
_QUEUE_ITEM_TAG = _tag(pb.LinkFrame.DESCRIPTOR, "queues")
_OPS_MESSAGE_TAG = _tag(pb.QueueMessage.DESCRIPTOR, "ops")
_PART_TAG = _tag(pb.LinkFrame.DESCRIPTOR, "part")
_LAST_PART_TAG = _tag(pb.LinkFrame.DESCRIPTOR, "last_part")
_PART_TAGS = (_PART_TAG, _LAST_PART_TAG)
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


def _length(size: int) -> bytes:
    """``size`` as a protobuf varint."""
    encoded = bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """The sender passed over messages with these fields of the stream's message: it does not know their kind."""

    stream: str
    fields: tuple[int, ...]


def encode_consensus(message: RaftMessage) -> bytes:
    """One item of a frame of the consensus stream."""
    encoded = consensus_to_wire(message).SerializeToString()
    return _CONSENSUS_ITEM_TAG + _length(len(encoded)) + encoded


def decode_consensus(frame: bytes, sender: NodeName, receiver: NodeName, unknown: list[int]) -> list[RaftMessage]:
    """The messages of a frame of the consensus stream from ``sender`` to ``receiver``.

    Fields of messages of kinds that we do not know are appended to ``unknown``.
    """
    messages = []
    try:
        for item in _parse_frame(frame).consensus:
            if item.WhichOneof("message") is None:
                unknown += _unknown_fields(item)
            else:
                messages.append(consensus_from_wire(item, sender, receiver))
    except ValueError as error:
        raise WireError(str(error)) from None
    return messages


def encode_not_understood(complaint: NotUnderstood) -> bytes:
    """One item of a frame of the queue stream."""
    wire = pb.NotUnderstood(stream=complaint.stream, fields=complaint.fields)
    encoded = pb.QueueMessage(not_understood=wire).SerializeToString()
    return _QUEUE_ITEM_TAG + _length(len(encoded)) + encoded


class QueueEncoder:
    """Encodes items of the queue stream, the ops of a queue only once for all its mirrors.

    Ops are recognised by the identity of their tuple, which is kept until `forget`: the owner calls it at the end of
    each turn of its loop, which is as long as the same ops keep being sent.
    """

    __slots__ = ("_encoded_ops",)

    def __init__(self) -> None:
        #: By id of the tuple; holding the tuple keeps its id from being used again.
        self._encoded_ops: dict[int, tuple[Sequence[MirrorOp], bytes]] = {}

    @property
    def holds_ops(self) -> bool:
        """There is something to `forget`."""
        return bool(self._encoded_ops)

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
            may_lack_refused=message.may_lack_refused,
        ).SerializeToString()
        ops_size = len(numbers) + len(op_list)
        ops_header = _OPS_MESSAGE_TAG + _length(ops_size)
        item_header = _QUEUE_ITEM_TAG + _length(len(ops_header) + ops_size)
        return b"".join((item_header, ops_header, numbers, op_list))


def decode_queue_frame(frame: bytes, strange: list[int | NotUnderstood]) -> list[QueueFrameMessage]:
    """The messages of a frame of the queue stream.

    Appended to ``strange``: fields of messages of kinds that we do not know, and what the peer did not understand.
    """
    messages = []
    try:
        for item in _parse_frame(frame).queues:
            field = item.WhichOneof("message")
            if field is None:
                strange += _unknown_fields(item)
            elif field == "not_understood":
                strange.append(NotUnderstood(item.not_understood.stream, tuple(item.not_understood.fields)))
            else:
                messages.append(_FROM_WIRE[field](getattr(item, field)))
    except ValueError as error:
        raise WireError(str(error)) from None
    return messages


def _unknown_fields(item: Any) -> list[int]:
    """Numbers of the fields in which a newer node has put what it says. Raises `ValueError` if it says nothing."""
    unknown: Any = UnknownFieldSet(item)  # its type stub lacks iteration
    fields = [each.field_number for each in unknown]
    if not fields:
        raise ValueError("an empty message")
    return fields


def parts_of(frame: bytes) -> list[bytes]:
    """Frames of `PART_BYTES` and a little each, of which an `Assembler` makes ``frame`` again."""
    view = memoryview(frame)
    starts = range(0, len(frame), PART_BYTES)
    return [
        b"".join((_LAST_PART_TAG if start + PART_BYTES >= len(frame) else _PART_TAG, _length(len(part)), part))
        for start in starts
        for part in (view[start : start + PART_BYTES],)
    ]


class Assembler:
    """Makes whole frames of what comes on one stream; a frame may have ``largest_bytes``."""

    __slots__ = ("_largest_bytes", "_parts", "_size")

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, frame: bytes) -> bytes | None:
        """A frame that has come as a whole, or whose last part this is. Raises `WireError`."""
        if frame[:1] not in _PART_TAGS:
            if self._parts:
                raise WireError("a frame begins before the last part of another")
            return frame
        wire = _parse_frame(frame)
        is_last = wire.HasField("last_part")
        part = wire.last_part if is_last else wire.part
        self._size += len(part)
        if self._size > self._largest_bytes or not part:
            raise WireError(f"a frame in parts of 1 to {self._largest_bytes} bytes in all was expected")
        self._parts.append(part)
        if not is_last:
            return None
        whole = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return whole


def _parse_frame(frame: bytes) -> pb.LinkFrame:
    try:
        return pb.LinkFrame.FromString(frame)
    except DecodeError as error:
        raise WireError(f"not a link frame: {error}") from None
