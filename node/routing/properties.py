"""Just enough of the basic properties to route: which fields are there, the headers table, and removing a header.

The property bytes are two flag bytes (one bit per property, highest first; AMQP 0-9-1 section 4.2.6.1) followed by the
values of the properties present, in the same order. Most messages are routed without a look inside.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from node.amqp.values import MalformedValue, read_field, read_table
from node.errors import ConnectionFailure

#: Flags in the first property byte.
HEADERS_BIT_HIGH = 0x20
DELIVERY_MODE_BIT_HIGH = 0x10
EXPIRATION_BIT_HIGH = 0x01
#: Flag in the second property byte.
USER_ID_BIT_LOW = 0x10

#: Value layout of each property, in flag order from bit 15: ``s`` short string, ``t`` table, or a number of bytes.
_LAYOUT: tuple[tuple[int, str, str | int], ...] = (
    (0x8000, "content_type", "s"),
    (0x4000, "content_encoding", "s"),
    (0x2000, "headers", "t"),
    (0x1000, "delivery_mode", 1),
    (0x0800, "priority", 1),
    (0x0400, "correlation_id", "s"),
    (0x0200, "reply_to", "s"),
    (0x0100, "expiration", "s"),
    (0x0080, "message_id", "s"),
    (0x0040, "timestamp", 8),
    (0x0020, "type", "s"),
    (0x0010, "user_id", "s"),
    (0x0008, "app_id", "s"),
    (0x0004, "cluster_id", "s"),
)
_FLAGS_BYTES = 2


def property_spans(properties: bytes) -> dict[str, tuple[int, int]]:
    """Where each present property's value lies: name -> (start, end), length prefixes included.

    Raises `ConnectionFailure` 501 if the bytes are cut short.
    """
    if len(properties) < _FLAGS_BYTES:
        raise ConnectionFailure(501, "content header without property flags")
    flags = properties[0] << 8 | properties[1]
    position = _FLAGS_BYTES
    spans: dict[str, tuple[int, int]] = {}
    for bit, name, layout in _LAYOUT:
        if not flags & bit:
            continue
        if layout == "s":
            length = 1 + int.from_bytes(properties[position : position + 1], "big")
        elif layout == "t":
            length = 4 + int.from_bytes(properties[position : position + 4], "big")
        else:
            assert isinstance(layout, int), "every other layout is a width"
            length = layout
        if position + length > len(properties):
            raise ConnectionFailure(501, f"property {name} is cut short")
        spans[name] = (position, position + length)
        position += length
    return spans


def delivery_mode_of(properties: bytes) -> int:
    """The number in ``delivery_mode``, which is present in these (sound) properties: faster than `property_spans`."""
    flags, at = properties[0], _FLAGS_BYTES
    if flags & 0x80:
        at += 1 + properties[at]
    if flags & 0x40:
        at += 1 + properties[at]
    if flags & HEADERS_BIT_HIGH:
        at += 4 + int.from_bytes(properties[at : at + 4], "big")
    return properties[at]


def headers_of(properties: bytes) -> dict[str, Any]:
    """The headers table as plain data, empty if there is none. Raises `ConnectionFailure` 501 for other bytes."""
    if not properties or not properties[0] & HEADERS_BIT_HIGH:
        return {}
    start, end = property_spans(properties)["headers"]
    try:
        return plain_table(read_table(properties[start:end])[0])
    except MalformedValue as error:
        raise ConnectionFailure(501, f"the headers table cannot be decoded: {error}") from error


def short_string_of(properties: bytes, name: str) -> str | None:
    """The text of a short-string property (``expiration``, ``user_id`` ...), or ``None`` if it is absent."""
    span = property_spans(properties).get(name)
    if span is None:
        return None
    return properties[span[0] + 1 : span[1]].decode(errors="replace")


def without_header(properties: bytes, header: str) -> bytes:
    """The same properties with one entry of a (sound) headers table cut out; every other byte stays as it was."""
    span = property_spans(properties).get("headers")
    if span is None:
        return properties
    start, end = span
    name = header.encode()
    position = start + 4
    kept = []
    while position < end:
        name_end = position + 1 + properties[position]
        # The decoder says how long the value is; the bytes themselves are copied untouched.
        entry_end = read_field(properties, name_end)[1]
        if properties[position + 1 : name_end] != name:
            kept.append(properties[position:entry_end])
        position = entry_end
    entries = b"".join(kept)
    return b"".join((properties[:start], len(entries).to_bytes(4, "big"), entries, properties[end:]))


def plain_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A field table as plain data (no dates, decimals or byte arrays): what topology commands carry."""
    return {str(key): _plain_value(value) for key, value in arguments.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Mapping):
        return plain_table(value)
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    return value
