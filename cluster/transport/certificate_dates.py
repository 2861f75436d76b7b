"""From when until when a certificate holds. gRPC refuses one that does not hold, and only tells whoever is shown it."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from datetime import UTC, datetime

_FIRST_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
#: Tags of DER. The version of a certificate is optional, and the first field if it is there.
_VERSION = 0xA0
_TIME_FORMATS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
#: Of the fields behind the version: serial number, algorithm, issuer, validity.
_VALIDITY = 3


def date_problem(pem: bytes, now_s: float) -> str:
    """Why the first certificate in ``pem`` does not hold at ``now_s``, seconds since the epoch; empty if it does, or if
    that cannot be made out."""
    try:
        begin, end = _validity(pem)
        now = datetime.fromtimestamp(now_s, UTC)
    except (ValueError, IndexError, OverflowError, Base64Error):
        return ""
    if now > end:
        return f"the certificate expired at {end:%Y-%m-%d %H:%M:%S} UTC"
    if now < begin:
        return (
            f"the certificate holds from {begin:%Y-%m-%d %H:%M:%S} UTC on, and it is {now:%Y-%m-%d %H:%M:%S} UTC here"
        )
    return ""


def _validity(pem: bytes) -> tuple[datetime, datetime]:
    """Raises `ValueError` or `IndexError` for what is no certificate."""
    found = _FIRST_CERTIFICATE.search(pem)
    if found is None:
        raise ValueError
    ((_, certificate),) = _fields(b64decode(found[1]))
    _, to_be_signed = next(_fields(certificate))
    fields = [field for field in _fields(to_be_signed) if field[0] != _VERSION]
    begin, end = (
        datetime.strptime(text.decode("ascii"), _TIME_FORMATS.get(tag, "")).replace(tzinfo=UTC)
        for tag, text in _fields(fields[_VALIDITY][1])
    )
    return begin, end


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each value that stands in ``content``."""
    position = 0
    while position < len(content):
        tag, length = content[position], content[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(content[position : position + size], "big")
            position += size
        yield tag, content[position : position + length]
        position += length
