"""The identity that every test message carries in its body.

    0        4         12       16        24        28              n-4      n
    | magic  | run tag | pub_id | seq     | attempt | filling ...    | crc32 |

All numbers are big-endian. The CRC-32 covers everything before it, so a message cut, mixed up or altered on its way
shows. The run tag tells messages that an earlier run left in a queue from our own.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_HEADER = struct.Struct(">4sQIQI")
_CRC = struct.Struct(">I")
_MAGIC = b"WRN1"
#: Smallest body: identity and checksum without filling.
MIN_BODY_BYTES = _HEADER.size + _CRC.size


@dataclass(frozen=True, slots=True)
class MessageId:
    """Which message of this run, and which attempt to publish it."""

    pub_id: int
    #: Number of the message at its publisher, from 1, dense.
    seq: int
    #: 1 for the first publish; a retry after an unknown or refused outcome is the next attempt of the same message.
    attempt: int


def run_tag(run_id: str) -> int:
    """64 bits that stand for a run in the body of its messages."""
    encoded = run_id.encode()
    return zlib.crc32(encoded) << 32 | zlib.crc32(encoded[::-1])


def encode_body(tag: int, message: MessageId, body_bytes: int) -> bytes:
    """A body of exactly ``body_bytes`` (at least `MIN_BODY_BYTES`) that carries the identity."""
    header = _HEADER.pack(_MAGIC, tag, message.pub_id, message.seq, message.attempt)
    covered = header.ljust(body_bytes - _CRC.size, b".")
    assert len(covered) == body_bytes - _CRC.size, "the body is too small for an identity"
    return covered + _CRC.pack(zlib.crc32(covered))


def decode_body(tag: int, body: bytes) -> tuple[MessageId | None, bool]:
    """The identity in a body (None: not of this run) and whether the checksum holds.

    A body whose checksum fails still gives the identity when the header can be read, so that the report can name it.
    """
    if len(body) < MIN_BODY_BYTES:
        return None, False
    magic, body_tag, pub_id, seq, attempt = _HEADER.unpack_from(body)
    crc_ok = _CRC.unpack_from(body, len(body) - _CRC.size)[0] == zlib.crc32(body[: -_CRC.size])
    if magic != _MAGIC or body_tag != tag:
        return None, crc_ok
    return MessageId(pub_id, seq, attempt), crc_ok
