"""Methods other than the hot ones: the classes and layouts of `pamqp`, our own strict value coding (see `values`).

`pamqp`'s own ``marshal`` and constructors check names against the specification's patterns, which RabbitMQ never did
(a queue called ``a b`` is fine), so methods are made here without them.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, cast

from pamqp import base, commands

from node.amqp.values import (
    MalformedValue,
    pack_long_string,
    pack_short_string,
    pack_table,
    read_long_string,
    read_short_string,
    read_table,
)

FRAME_HEADER = struct.Struct(">BHI")
FRAME_END = b"\xce"
_NUMBERS = {"octet": struct.Struct(">B"), "short": struct.Struct(">H"), "long": struct.Struct(">I")}
_NUMBERS["longlong"] = struct.Struct(">Q")
_INDEX = struct.Struct(">I")

#: Bits share a byte, eight at most; the widest method (``exchange.declare``) has five.
_BITS_IN_BYTE = 8


class AccessRequest(base.Frame):
    """``access.request``, gone from 0-9-1 but still sent by old clients."""

    __slots__: ClassVar[list[str]] = ["realm", "exclusive", "passive", "active", "write", "read"]  # noqa: RUF023 - wire order
    name = "Access.Request"
    index = 0x001E000A
    _realm = "shortstr"
    _exclusive = _passive = _active = _write = _read = "bit"


class AccessRequestOk(base.Frame):
    """``access.request-ok``."""

    __slots__: ClassVar[list[str]] = ["ticket"]
    name = "Access.RequestOk"
    index = 0x001E000B
    _ticket = "short"


METHOD_CLASSES: dict[int, type[base.Frame]] = {
    **cast("dict[int, type[base.Frame]]", commands.INDEX_MAPPING),
    AccessRequest.index: AccessRequest,
    AccessRequestOk.index: AccessRequestOk,
}
_LAYOUTS: dict[type[base.Frame], tuple[tuple[str, str], ...]] = {
    method: tuple((name, method.amqp_type(name)) for name in method.__slots__) for method in METHOD_CLASSES.values()
}


def decode_method(payload: bytes) -> base.Frame | None:
    """The method in a method frame's payload; ``None`` if no such method exists.

    Long strings are bytes (a SASL response is binary). Raises `MalformedValue` if the arguments are cut off, do not
    hold what their types say, or leave bytes behind.
    """
    if len(payload) < _INDEX.size:
        raise MalformedValue("a method frame has no method")
    method_class = METHOD_CLASSES.get(_INDEX.unpack_from(payload)[0])
    if method_class is None:
        return None
    method = method_class.__new__(method_class)
    at = _INDEX.size
    bit = _BITS_IN_BYTE
    for name, kind in _LAYOUTS[method_class]:
        value: Any
        if kind == "bit":
            if bit == _BITS_IN_BYTE:
                bit = 0
                if at >= len(payload):
                    raise MalformedValue("the bits are missing")
                at += 1
            value = bool(payload[at - 1] >> bit & 1)
            bit += 1
        else:
            bit = _BITS_IN_BYTE
            value, at = _read_argument(kind, payload, at)
        setattr(method, name, value)
    if at != len(payload):
        raise MalformedValue(f"{len(payload) - at} bytes are left behind the arguments of {method_class.name}")
    return method


def _read_argument(kind: str, payload: bytes, at: int) -> tuple[Any, int]:
    if kind == "shortstr":
        return read_short_string(payload, at)
    if kind == "longstr":
        return read_long_string(payload, at)
    if kind == "table":
        return read_table(payload, at)
    layout = _NUMBERS[kind]
    try:
        return layout.unpack_from(payload, at)[0], at + layout.size
    except struct.error:
        raise MalformedValue("a number is cut off") from None


def pack_method(channel: int, method_class: type[base.Frame], *arguments: Any) -> bytes:
    """A whole method frame. ``arguments`` stand in the order of the specification, reserved ones included."""
    layout = _LAYOUTS[method_class]
    assert len(arguments) == len(layout), f"{method_class.name} has {len(layout)} arguments, not {len(arguments)}"
    parts = [_INDEX.pack(method_class.index)]
    bits = 0
    bit_count = 0
    for (_, kind), value in zip(layout, arguments, strict=True):
        if kind == "bit":
            bits |= bool(value) << bit_count
            bit_count += 1
            continue
        if bit_count:
            parts.append(bytes((bits,)))
            bits = bit_count = 0
        if kind == "shortstr":
            parts.append(pack_short_string(value))
        elif kind == "longstr":
            parts.append(pack_long_string(value))
        elif kind == "table":
            parts.append(pack_table(value))
        else:
            parts.append(_NUMBERS[kind].pack(value))
    if bit_count:
        parts.append(bytes((bits,)))
    payload = b"".join(parts)
    return FRAME_HEADER.pack(1, channel, len(payload)) + payload + FRAME_END
