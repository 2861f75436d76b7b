"""Frames: layout constants, and the items into which `codec.FrameReader` turns a socket read.

::

    0      1         3             7                 size + 7   size + 8
    +------+---------+-------------+------------------+-----------+
    | type | channel | size        | payload          | end 0xCE  |
    +------+---------+-------------+------------------+-----------+
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pamqp import base

from node.errors import ConnectionFailure
from node.message import Message

FRAME_METHOD = 1
FRAME_HEADER = 2
FRAME_BODY = 3
FRAME_HEARTBEAT = 8
FRAME_END = 0xCE
#: Type, channel and size before the payload, the end octet behind it.
FRAME_OVERHEAD_BYTES = 8

FRAME_PREFIX = struct.Struct(">BHI")
#: Frame prefix, class id and weight in one number, body size.
CONTENT_PREFIX = struct.Struct(">BHIIQ")
#: Class `basic` with weight 0.
BASIC_CLASS_WEIGHT = 0x003C0000
#: Method, delivery tag and bits: the payload that ack, nack and reject have in common.
SETTLE_PAYLOAD = struct.Struct(">IQB")

BASIC_PUBLISH = 0x003C0028
BASIC_RETURN = 0x003C0032
BASIC_DELIVER = 0x003C003C
BASIC_GET_OK = 0x003C0047
BASIC_ACK = 0x003C0050
BASIC_REJECT = 0x003C005A
BASIC_NACK = 0x003C0078

HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

#: What a settlement is made of (its second number).
SETTLE_MULTIPLE = 1
SETTLE_REQUEUE = 2
SETTLE_NEGATIVE = 4
SETTLE_BY_REJECT = 8


@dataclass(slots=True)
class Publishes:
    """Consecutive ``basic.publish`` of a channel, each with its content."""

    channel: int
    #: Without ``msg_id``: the broker gives it.
    messages: list[Message]
    #: ``mandatory[i]`` belongs to ``messages[i]``.
    mandatory: list[bool]


@dataclass(slots=True)
class Settlements:
    """Consecutive ``basic.ack``, ``nack`` and ``reject`` of a channel."""

    channel: int
    #: (delivery tag, ``SETTLE_`` bits)
    settlements: list[tuple[int, int]]


@dataclass(slots=True)
class MethodReceived:
    """Any other method."""

    channel: int
    method: base.Frame


@dataclass(slots=True)
class ContentTooLarge:
    """A content header announced more than the server takes. The body is thrown away as it comes."""

    channel: int
    body_bytes: int


@dataclass(slots=True)
class Fault:
    """The peer broke the protocol. Always the last item of a reader."""

    channel: int
    error: ConnectionFailure
    #: Class id in the upper, method id in the lower 16 bits; 0 if no method is to blame.
    method_index: int


FrameItem = Publishes | Settlements | MethodReceived | ContentTooLarge | Fault

#: What an item, or a message of it, weighs beyond its bodies: objects and names.
_ITEM_BYTES = 200


def weight_bytes(item: FrameItem) -> int:
    """About what an item costs while it is kept."""
    if isinstance(item, Publishes):
        return sum([message.size_bytes + _ITEM_BYTES for message in item.messages])
    if isinstance(item, Settlements):
        return len(item.settlements) * 64
    return _ITEM_BYTES


def settle_bits(method_index: int, bits: int) -> int:
    """``SETTLE_`` bits of an ack, nack or reject whose last octet is ``bits``."""
    if method_index == BASIC_ACK:
        return bits & 1
    if method_index == BASIC_NACK:
        return SETTLE_NEGATIVE | (bits & 3)
    return SETTLE_NEGATIVE | SETTLE_BY_REJECT | (bits & 1) << 1


def settle_index(bits: int) -> int:
    """The method that a settlement came with."""
    if not bits & SETTLE_NEGATIVE:
        return BASIC_ACK
    return BASIC_REJECT if bits & SETTLE_BY_REJECT else BASIC_NACK
