"""Bytes as real clients send them, made by `pamqp`, and items brought into one form for comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pamqp import base, body, commands, frame, header

from node.amqp.frames import ContentTooLarge, Fault, FrameItem, MethodReceived, Publishes, Settlements


def method_bytes(channel: int, method: base.Frame) -> bytes:
    return frame.marshal(method, channel)


def publish_bytes(
    channel: int,
    exchange: str = "",
    routing_key: str = "q",
    payload: bytes = b"hello",
    *,
    mandatory: bool = False,
    immediate: bool = False,
    properties: commands.Basic.Properties | None = None,
    body_frame_bytes: int = 1 << 20,
) -> bytes:
    """A publish; its body in frames of at most ``body_frame_bytes``."""
    parts = [
        frame.marshal(commands.Basic.Publish(0, exchange, routing_key, mandatory, immediate), channel),
        frame.marshal(header.ContentHeader(0, len(payload), properties or commands.Basic.Properties()), channel),
    ]
    parts += [
        frame.marshal(body.ContentBody(payload[at : at + body_frame_bytes]), channel)
        for at in range(0, len(payload), body_frame_bytes)
    ]
    return b"".join(parts)


def unmarshal_all(data: bytes) -> list[tuple[int, Any]]:
    """What `pamqp` reads: (channel, frame) for each frame."""
    frames = []
    while data:
        size, channel, value = frame.unmarshal(data)
        frames.append((channel, value))
        data = data[size:]
    return frames


def flatten(items: Iterable[FrameItem]) -> dict[int, list[tuple[Any, ...]]]:
    """Per channel what the items say, runs taken apart: equal for every way to cut the same bytes."""
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for item in items:
        lines = seen.setdefault(item.channel, [])
        match item:
            case Publishes(_, messages, mandatory):
                for message, flag in zip(messages, mandatory, strict=True):
                    lines.append(
                        (
                            "publish",
                            message.exchange,
                            message.routing_key,
                            message.properties,
                            message.body,
                            message.persistent,
                            flag,
                        )
                    )
            case Settlements(_, settlements):
                lines.extend(("settle", tag, bits) for tag, bits in settlements)
            case MethodReceived(_, method):
                lines.append(("method", method.name, dict(method)))
            case ContentTooLarge(_, size):
                lines.append(("too large", size))
            case Fault(_, error, index):
                lines.append(("fault", error.reply_code, str(error), index))
    return seen
