"""A message and its one encoding, the *envelope*, shared by disk, replication and remote sessions.

Envelope (big-endian)::

    0        16     17     18     19          23        27
    +--------+------+------+------+-----------+---------+----------+-------------+------------+------+
    | msg_id | flags| elen | rlen | prop len  | body len| exchange | routing key | properties | body |
    +--------+------+------+------+-----------+---------+----------+-------------+------------+------+

flags bit 0: persistent (delivery mode 2). An envelope tells its own length, so a batch is simply the
concatenation of envelopes, and a mirror can write the bytes it received without decoding them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from node.ids import MsgId

ENVELOPE_HEADER = struct.Struct(">16sBBBII")
PERSISTENT_FLAG = 1


class Message:
    """One published message. Immutable by convention; the same object may stand in many queues.

    ``properties`` are the raw bytes of the content header after the body size (flags, then the property
    list), as the client sent them: nothing is lost and nothing is decoded before somebody needs it.
    """

    __slots__ = ("body", "exchange", "msg_id", "persistent", "properties", "routing_key")

    def __init__(
        self,
        msg_id: MsgId,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        persistent: bool,
    ) -> None:
        self.msg_id = msg_id
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body
        self.persistent = persistent

    def __repr__(self) -> str:
        return (
            f"Message({self.msg_id.hex()}, {self.exchange!r}, {self.routing_key!r}, "
            f"{len(self.body)} B{', persistent' if self.persistent else ''})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.envelope() == other.envelope()

    def __hash__(self) -> int:
        return hash(self.msg_id)

    @property
    def size_bytes(self) -> int:
        """Properties and body, the size that the embedding threshold counts (mission S5)."""
        return len(self.properties) + len(self.body)

    def envelope(self) -> bytes:
        """The encoding described at the top of this module."""
        exchange = self.exchange.encode()
        routing_key = self.routing_key.encode()
        return b"".join(
            (
                ENVELOPE_HEADER.pack(
                    self.msg_id,
                    PERSISTENT_FLAG if self.persistent else 0,
                    len(exchange),
                    len(routing_key),
                    len(self.properties),
                    len(self.body),
                ),
                exchange,
                routing_key,
                self.properties,
                self.body,
            )
        )


def decode_envelope(buffer: bytes, start: int = 0) -> tuple[Message, int]:
    """The message at ``start`` and the offset just after it. Raises `ValueError` if ``buffer`` is too short."""
    if len(buffer) < start + ENVELOPE_HEADER.size:
        raise ValueError(f"an envelope header needs {ENVELOPE_HEADER.size} bytes, there are {len(buffer) - start}")
    msg_id, flags, exchange_bytes, key_bytes, properties_bytes, body_bytes = ENVELOPE_HEADER.unpack_from(buffer, start)
    at_exchange = start + ENVELOPE_HEADER.size
    at_key = at_exchange + exchange_bytes
    at_properties = at_key + key_bytes
    at_body = at_properties + properties_bytes
    end = at_body + body_bytes
    if len(buffer) < end:
        raise ValueError(f"an envelope of {end - start} bytes is cut off after {len(buffer) - start}")
    message = Message(
        MsgId(msg_id),
        buffer[at_exchange:at_key].decode(),
        buffer[at_key:at_properties].decode(),
        buffer[at_properties:at_body],
        buffer[at_body:end],
        bool(flags & PERSISTENT_FLAG),
    )
    return message, end


def pack_envelopes(messages: Iterable[Message]) -> bytes:
    """Concatenation of the envelopes, in order."""
    return b"".join([message.envelope() for message in messages])


def iter_envelopes(buffer: bytes) -> Iterator[Message]:
    """The messages of a concatenation. Raises `ValueError` on a torn tail."""
    position = 0
    end = len(buffer)
    while position < end:
        message, position = decode_envelope(buffer, position)
        yield message
