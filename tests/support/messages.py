"""Messages for tests: numbered, of one origin, recognisable."""

from __future__ import annotations

from collections.abc import Hashable

from node.ids import MsgId, OriginId, make_msg_id
from node.message import Message
from node.queues.backing_queue import Publication

ORIGIN = OriginId(b"origin-1")


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
