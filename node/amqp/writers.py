"""From messages and acks to frames, many at a time.

A delivery is five pieces: the method frame up to the delivery tag (the same for a consumer, an exchange and a key),
the tag, the rest up to the body (the same while exchange, key, properties and body size stay the same), the body and
the frame end. So a batch of like messages costs one small `pack` each and one join for all.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from node.amqp.frames import (
    BASIC_ACK,
    BASIC_CLASS_WEIGHT,
    BASIC_DELIVER,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_RETURN,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    FRAME_PREFIX,
)
from node.amqp.values import pack_short_string
from node.message import Message
from node.queues.backing_queue import Delivery

_CONTENT_HEADER = struct.Struct(">BHIIQ")
_TAG_AND_FLAG = struct.Struct(">Q?")
_METHOD_PREFIX = struct.Struct(">BHII")
_SETTLE_FRAME = struct.Struct(">BHIIQBB")
_COUNT = struct.Struct(">I")
_CODE = struct.Struct(">H")
_END = b"\xce"


def _pack_content_start(channel: int, message: Message, frame_max: int) -> bytes:
    """The content header frame, and the prefix of the body frame if the body fits into one."""
    properties = message.properties
    size = len(message.body)
    header = (
        _CONTENT_HEADER.pack(FRAME_HEADER, channel, 12 + len(properties), BASIC_CLASS_WEIGHT, size) + properties + _END
    )
    if 0 < size <= frame_max - FRAME_OVERHEAD_BYTES:
        return header + FRAME_PREFIX.pack(FRAME_BODY, channel, size)
    return header


def _append_body_frames(parts: list[bytes], channel: int, body: bytes, frame_max: int) -> None:
    """A body too large for one frame."""
    step = frame_max - FRAME_OVERHEAD_BYTES
    for start in range(0, len(body), step):
        piece = body[start : start + step]
        parts += (FRAME_PREFIX.pack(FRAME_BODY, channel, len(piece)), piece, _END)


def pack_deliveries(
    channel: int, consumer_tag: bytes, first_delivery_tag: int, deliveries: Sequence[Delivery], frame_max: int
) -> bytes:
    """``basic.deliver`` with content for each delivery; the tags count up from ``first_delivery_tag``.

    ``consumer_tag`` is already packed as a short string.
    """
    parts: list[bytes] = []
    append = parts.append
    pack_tag = _TAG_AND_FLAG.pack
    body_max = frame_max - FRAME_OVERHEAD_BYTES
    starts: dict[tuple[str, str], tuple[bytes, bytes]] = {}
    exchange = routing_key = properties = None
    body_bytes = -1
    before_tag = names = between = b""
    delivery_tag = first_delivery_tag
    for _, message, redelivered in deliveries:
        body = message.body
        if message.routing_key != routing_key or message.exchange != exchange:
            exchange, routing_key = message.exchange, message.routing_key
            start = starts.get((exchange, routing_key))
            if start is None:
                names = pack_short_string(exchange) + pack_short_string(routing_key) + _END
                size = 4 + len(consumer_tag) + 9 + len(names) - 1
                before_tag = _METHOD_PREFIX.pack(FRAME_METHOD, channel, size, BASIC_DELIVER) + consumer_tag
                starts[exchange, routing_key] = before_tag, names
            else:
                before_tag, names = start
            body_bytes = -1
        if len(body) != body_bytes or message.properties != properties:
            body_bytes = len(body)
            properties = message.properties
            between = names + _pack_content_start(channel, message, frame_max)
        append(before_tag)
        append(pack_tag(delivery_tag, redelivered))
        append(between)
        if body_bytes <= body_max:
            if body_bytes:
                append(body)
                append(_END)
        else:
            _append_body_frames(parts, channel, body, frame_max)
        delivery_tag += 1
    return b"".join(parts)


def _pack_content(channel: int, arguments: bytes, index: int, message: Message, frame_max: int) -> bytes:
    parts = [
        _METHOD_PREFIX.pack(FRAME_METHOD, channel, 4 + len(arguments), index),
        arguments,
        _END,
        _pack_content_start(channel, message, frame_max),
    ]
    if len(message.body) > frame_max - FRAME_OVERHEAD_BYTES:
        _append_body_frames(parts, channel, message.body, frame_max)
    elif message.body:
        parts += (message.body, _END)
    return b"".join(parts)


def pack_get_ok(channel: int, delivery_tag: int, delivery: Delivery, remaining: int, frame_max: int) -> bytes:
    """``basic.get-ok`` with content; ``remaining`` is the number of ready messages left."""
    message = delivery.message
    arguments = (
        _TAG_AND_FLAG.pack(delivery_tag, delivery.redelivered)
        + pack_short_string(message.exchange)
        + pack_short_string(message.routing_key)
        + _COUNT.pack(remaining)
    )
    return _pack_content(channel, arguments, BASIC_GET_OK, message, frame_max)


def pack_return(channel: int, reply_code: int, reply_text: str, message: Message, frame_max: int) -> bytes:
    """``basic.return`` with content."""
    arguments = (
        _CODE.pack(reply_code)
        + pack_short_string(reply_text)
        + pack_short_string(message.exchange)
        + pack_short_string(message.routing_key)
    )
    return _pack_content(channel, arguments, BASIC_RETURN, message, frame_max)


def pack_confirm(channel: int, publish_seq: int, multiple: bool, positive: bool) -> bytes:
    """``basic.ack`` or, if not ``positive``, ``basic.nack`` for publishes."""
    index = BASIC_ACK if positive else BASIC_NACK
    return _SETTLE_FRAME.pack(FRAME_METHOD, channel, 13, index, publish_seq, multiple, 0xCE)
