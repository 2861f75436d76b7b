"""Messages for tests: numbered, of one origin, recognisable."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from pamqp import encode

from node.ids import MsgId, OriginId
from node.message import Message
from node.queues.backing_queue import Publication
from node.routing.properties import HEADERS_BIT_HIGH

ORIGIN = OriginId(b"origin-1")


def make_msg_id(origin: OriginId, counter: int) -> MsgId:
    """Identity of the ``counter``-th publish of ``origin``, as `node.ids.split_msg_id` reads it."""
    return MsgId(origin + counter.to_bytes(8, "big"))


def msg_id_of(counter: int, origin: OriginId = ORIGIN) -> MsgId:
    return make_msg_id(origin, counter)


def make_message(
    counter: int, *, body: bytes | None = None, persistent: bool = True, origin: OriginId = ORIGIN
) -> Message:
    """The ``counter``-th message of ``origin`` (from 1); the body names it unless given."""
    content = f"message {counter}".encode() if body is None else body
    return Message(make_msg_id(origin, counter), "exchange", "key", b"\x10\x00\x02", content, persistent)


def publications(
    first: int, count: int, *, persistent: bool = True, tokens: bool = True, body: bytes | None = None
) -> list[Publication]:
    """Messages ``first`` to ``first + count - 1``; each has its counter as token."""
    made: list[Publication] = []
    for counter in range(first, first + count):
        token: Hashable | None = counter if tokens else None
        made.append(Publication(make_message(counter, persistent=persistent, body=body), token))
    return made


def encode_headers(headers: Mapping[str, Any]) -> bytes:
    """Property bytes with nothing but a headers table."""
    return bytes((HEADERS_BIT_HIGH, 0)) + encode.field_table(dict(headers))
