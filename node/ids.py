"""Identifiers: one distinct type per kind of number, so that mypy refuses to mix them."""

from __future__ import annotations

import struct
from typing import NamedTuple, NewType

#: Name of a node, as in the configuration (``n1``). Stable over restarts.
NodeName = NewType("NodeName", str)
#: Position of a message in one queue: dense, monotone, never reused in the life of the queue, in any epoch.
SeqId = NewType("SeqId", int)
#: Identity of one publish: ``ORIGIN_BYTES`` of origin, then a big-endian counter that grows by one per publish.
MsgId = NewType("MsgId", bytes)
#: Who made a message id: one random value per channel of an entry node.
OriginId = NewType("OriginId", bytes)
#: Identity of one life of a queue. A queue that is deleted and declared again gets another one.
QueueId = NewType("QueueId", int)
#: Generation of a queue's mastership. A higher epoch fences every lower one.
Epoch = NewType("Epoch", int)
#: Number of a start of a node: grows at every start. Tells a restarted process from the one before.
Incarnation = NewType("Incarnation", int)

MSG_ID_BYTES = 16
ORIGIN_BYTES = 8
_COUNTER = struct.Struct(">Q")


class QueueName(NamedTuple):
    """What a client calls a queue."""

    vhost: str
    name: str

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost}'"


#: Of a number that a node never uses twice the upper bits are its incarnation, so many lower ones count in that life.
NUMBER_BITS = 32


def numbers_of_life(incarnation: Incarnation) -> int:
    """Where a node begins to count in this life: its numbers are above this, and those of earlier lives below."""
    return incarnation << NUMBER_BITS


class ChannelKey(NamedTuple):
    """One AMQP channel, unique in the cluster for ever."""

    node: NodeName
    #: Incarnation of the entry node, and the channel's number, which that counts from 1.
    channel_id: int

    @property
    def number(self) -> int:
        return self.channel_id & ((1 << NUMBER_BITS) - 1)


def split_msg_id(msg_id: MsgId) -> tuple[OriginId, int]:
    """The origin and the counter of an id: the counter from 1, below 2**64."""
    return OriginId(msg_id[:ORIGIN_BYTES]), _COUNTER.unpack_from(msg_id, ORIGIN_BYTES)[0]
