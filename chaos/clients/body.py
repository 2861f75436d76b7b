"""Identity in the body of a message: whoever has the bytes knows which attempt they are, and that none has changed.

magic | tag of the run | message key | filling ... | CRC-32 of all before it
  4           8              8             any          4
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import NamedTuple

from chaos.record.message_key import unpack

_MAGIC = b"WLB1"
_HEAD = struct.Struct(">4sQQ")
_CHECKSUM = struct.Struct(">I")
BODY_BYTES_MIN = _HEAD.size + _CHECKSUM.size
_PATTERN = bytes(range(256))


class Identity(NamedTuple):
    """What a body says."""

    #: Zero for what is not of this run, or cannot be read.
    key: int
    #: The checksum is there and holds.
    is_sound: bool


def tag_of_run(run: str) -> int:
    """64 bits that no other run has."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "big")


class Bodies:
    """Encodes and decodes the bodies of one run."""

    def __init__(self, run: str, body_bytes: int = BODY_BYTES_MIN) -> None:
        """``body_bytes``: of those that are encoded."""
        assert body_bytes >= BODY_BYTES_MIN, "the identity and the checksum have room"
        self._tag = tag_of_run(run)
        filling_bytes = body_bytes - BODY_BYTES_MIN
        self._filling = (_PATTERN * (filling_bytes // len(_PATTERN) + 1))[:filling_bytes]

    def encode(self, key: int) -> bytes:
        """The body of this attempt."""
        body = _HEAD.pack(_MAGIC, self._tag, key) + self._filling
        return body + _CHECKSUM.pack(zlib.crc32(body))

    def decode(self, body: bytes) -> Identity:
        """What came. An unsound body keeps its key if that can be one: most damage is elsewhere."""
        if len(body) < BODY_BYTES_MIN:
            return Identity(0, False)
        is_sound = (
            zlib.crc32(memoryview(body)[: -_CHECKSUM.size])
            == _CHECKSUM.unpack_from(body, len(body) - _CHECKSUM.size)[0]
        )
        magic, tag, key = _HEAD.unpack_from(body)
        if magic != _MAGIC or tag != self._tag or not _may_be_key(key):
            return Identity(0, is_sound)
        return Identity(key, is_sound)


def _may_be_key(key: int) -> bool:
    return key < 1 << 63 and all(unpack(key))
