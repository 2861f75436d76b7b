"""Values inside methods and field tables, with the type tags RabbitMQ uses (which differ from the specification's).

Our own instead of `pamqp`'s because a server reads what strangers send: a string that claims more bytes than there
are is an error here (pamqp returns what is left), nesting is limited (pamqp recurses until the interpreter stops),
bytes that are no UTF-8 survive, and a timestamp is the number that was sent.

Python types: bool ``t``, int ``b B s u I i l L``, float ``f d``, `decimal.Decimal` ``D``, str ``S`` (bytes if it is
no UTF-8), bytes ``x``, list ``A``, `Timestamp` ``T``, dict ``F``, None ``V``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

#: Tables within tables. Far more than any client nests, far less than Python's stack.
TABLE_DEPTH_MAX = 64

SHORT_STRING_BYTES_MAX = 255

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")
_DECIMAL = struct.Struct(">BI")


class Timestamp(int):
    """A point in time as AMQP carries it: seconds since 1970 (some clients send milliseconds)."""


class MalformedValue(ValueError):
    """Bytes that do not hold what their type says."""


def read_short_string(buffer: bytes, at: int) -> tuple[str, int]:
    """The string at ``at`` and the offset behind it. Raises `MalformedValue`."""
    if at >= len(buffer):
        raise MalformedValue("a short string is missing")
    end = at + 1 + buffer[at]
    if end > len(buffer):
        raise MalformedValue("a short string is cut off")
    try:
        return buffer[at + 1 : end].decode(), end
    except UnicodeDecodeError:
        raise MalformedValue("a short string is not UTF-8") from None


def read_long_string(buffer: bytes, at: int) -> tuple[bytes, int]:
    """As `read_short_string`, uninterpreted bytes behind a length of four bytes."""
    size, start = _read(_U32, buffer, at)
    end = start + size
    if end > len(buffer):
        raise MalformedValue("a long string is cut off")
    return buffer[start:end], end


def read_table(buffer: bytes, at: int = 0, depth: int = 0) -> tuple[dict[str, Any], int]:
    """The field table (with its length) at ``at`` and the offset behind it. A repeated key keeps its last value."""
    content, end = read_long_string(buffer, at)
    return decode_bare_table(content, depth), end


def decode_bare_table(content: bytes, depth: int = 0) -> dict[str, Any]:
    """A field table without its length, as AMQPLAIN sends it."""
    if depth > TABLE_DEPTH_MAX:
        raise MalformedValue(f"tables are nested deeper than {TABLE_DEPTH_MAX}")
    table: dict[str, Any] = {}
    at = 0
    while at < len(content):
        key, at = read_short_string(content, at)
        table[key], at = read_field(content, at, depth)
    return table


def _read(layout: struct.Struct, buffer: bytes, at: int) -> tuple[Any, int]:
    try:
        return layout.unpack_from(buffer, at)[0], at + layout.size
    except struct.error:
        raise MalformedValue("a number is cut off") from None


def read_field(buffer: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """The value at ``at``, behind its key, and the offset behind it."""
    tag = buffer[at : at + 1]
    at += 1
    layout = _FIXED_FIELDS.get(tag)
    if layout is not None:
        return _read(layout, buffer, at)
    reader = _FIELD_READERS.get(tag)
    if reader is None:
        raise MalformedValue(f"unknown field type {tag!r}" if tag else "a field is missing")
    return reader(buffer, at, depth)


def _read_boolean(buffer: bytes, at: int, _depth: int) -> tuple[bool, int]:
    number, at = _read(_U8, buffer, at)
    return number != 0, at


def _read_text(buffer: bytes, at: int, _depth: int) -> tuple[str | bytes, int]:
    raw, at = read_long_string(buffer, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        return raw, at


def _read_bytes(buffer: bytes, at: int, _depth: int) -> tuple[bytes, int]:
    return read_long_string(buffer, at)


def _read_decimal(buffer: bytes, at: int, _depth: int) -> tuple[Decimal, int]:
    try:
        scale, unscaled = _DECIMAL.unpack_from(buffer, at)
    except struct.error:
        raise MalformedValue("a decimal is cut off") from None
    return Decimal(unscaled).scaleb(-scale), at + _DECIMAL.size


def _read_timestamp(buffer: bytes, at: int, _depth: int) -> tuple[Timestamp, int]:
    seconds, at = _read(_U64, buffer, at)
    return Timestamp(seconds), at


def _read_array(buffer: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth >= TABLE_DEPTH_MAX:
        raise MalformedValue(f"arrays are nested deeper than {TABLE_DEPTH_MAX}")
    content, end = read_long_string(buffer, at)
    items: list[Any] = []
    position = 0
    while position < len(content):
        item, position = read_field(content, position, depth + 1)
        items.append(item)
    return items, end


def _read_nested_table(buffer: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    return read_table(buffer, at, depth + 1)


def _read_void(_buffer: bytes, at: int, _depth: int) -> tuple[None, int]:
    return None, at


_FIXED_FIELDS = {
    b"b": struct.Struct(">b"),
    b"B": _U8,
    b"s": struct.Struct(">h"),
    b"u": _U16,
    b"I": struct.Struct(">i"),
    b"i": _U32,
    b"l": _I64,
    b"L": _I64,
    b"f": struct.Struct(">f"),
    b"d": struct.Struct(">d"),
}
_FIELD_READERS: dict[bytes, Callable[[bytes, int, int], tuple[Any, int]]] = {
    b"t": _read_boolean,
    b"S": _read_text,
    b"x": _read_bytes,
    b"D": _read_decimal,
    b"T": _read_timestamp,
    b"A": _read_array,
    b"F": _read_nested_table,
    b"V": _read_void,
}


#: Bytes of the fields that have always as many, by their tags as numbers.
_FIELD_BYTES = {tag[0]: layout.size for tag, layout in _FIXED_FIELDS.items()} | {
    ord("t"): 1,
    ord("D"): _DECIMAL.size,
    ord("T"): 8,
    ord("V"): 0,
}
_LONG_STRINGS = frozenset(b"Sx")
_TABLE, _ARRAY = ord("F"), ord("A")


def check_table(buffer: bytes, at: int = 0, depth: int = 0, *, is_array: bool = False) -> int:
    """The offset behind the field table (with its length) at ``at``, which everybody can read. Raises
    `MalformedValue`. Takes half the time of `read_table`; what strings hold, keys included, is not looked at.

    ``is_array``: it is the content of an array."""
    if depth > TABLE_DEPTH_MAX:
        raise MalformedValue(f"tables are nested deeper than {TABLE_DEPTH_MAX}")
    start = at + 4
    end = start + int.from_bytes(buffer[at:start], "big")
    if end > len(buffer) or start > len(buffer):
        raise MalformedValue("a table is cut off")
    at = start
    while at < end:
        if not is_array:
            at += 1 + buffer[at]
            if at >= end:
                raise MalformedValue("a field is missing")
        tag = buffer[at]
        at += 1
        if tag in _LONG_STRINGS:
            at += 4 + int.from_bytes(buffer[at : at + 4], "big")
        elif tag in (_TABLE, _ARRAY):
            at = check_table(buffer, at, depth + 1, is_array=tag == _ARRAY)
        else:
            size = _FIELD_BYTES.get(tag)
            if size is None:
                raise MalformedValue(f"unknown field type {bytes((tag,))!r}")
            at += size
    if at != end:
        raise MalformedValue("a field is cut off")
    return at


def pack_short_string(text: str) -> bytes:
    """Raises `ValueError` if the text has more than 255 bytes."""
    raw = text.encode()
    if len(raw) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"a short string has at most {SHORT_STRING_BYTES_MAX} bytes, not {len(raw)}")
    return _U8.pack(len(raw)) + raw


def pack_long_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return _U32.pack(len(raw)) + raw


def pack_table(table: Mapping[str, Any]) -> bytes:
    """A field table with its length, keys in the order of the mapping. Raises `TypeError` for other Python types."""
    return pack_long_string(b"".join([pack_short_string(key) + _pack_field(item) for key, item in table.items()]))


def _pack_field(value: Any) -> bytes:
    match value:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case Timestamp():
            return b"T" + _U64.pack(value)
        case int():
            return _pack_integer(value)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + pack_long_string(value)
        case bytes() | bytearray():
            return b"x" + pack_long_string(bytes(value))
        case Decimal():
            return _pack_decimal(value)
        case Mapping():
            return b"F" + pack_table(value)
        case Sequence():
            return b"A" + pack_long_string(b"".join([_pack_field(item) for item in value]))
    raise TypeError(f"a field table cannot hold {type(value).__name__}")


def _pack_integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"I" + struct.pack(">i", value)
    try:
        return b"l" + _I64.pack(value)
    except struct.error:
        raise TypeError(f"{value} does not fit the 64 bits of a field table's integer") from None


def _pack_decimal(value: Decimal) -> bytes:
    try:
        scale = max(0, -int(value.as_tuple().exponent))
        return b"D" + _DECIMAL.pack(scale, int(value.scaleb(scale)))
    except (ValueError, InvalidOperation, OverflowError, struct.error):
        raise TypeError(f"the decimal {value} does not fit a field table") from None
