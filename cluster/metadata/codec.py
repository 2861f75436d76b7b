"""Commands and snapshots as bytes: a compact, self-describing, deterministic encoding of plain values.

A value is one tag byte and its content; lengths and integers are LEB128 (integers zigzag first). Only the types named
in `_TAGS` and the registered command classes can come out of `decode`, whatever the bytes: nothing is ever executed,
imported or constructed by name.

```
N T F        None, True, False            i  integer           t  AMQP timestamp (an integer of its own type)
f  8 bytes   float                        s  string (UTF-8)    b  bytes
D  string    Decimal                      U  datetime: microseconds since 1970, UTC
l  count     list                         u  count  tuple      m  count  dict: key, value, key, value ... in order
c  code count  fields of a registered command, in the order of their declaration
```

A new kind of value comes only within a new command or a new field, so that an older release meets that first and says
so (`NewerKindError`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from cluster.metadata import commands, records
from cluster.metadata.kinds import written_fields
from cluster.metadata.wellformed import problem_of
from node.amqp.values import Timestamp
from node.errors import WarrenError
from node.pieces import Pieces
from node.topology import commands as topology

#: Deeper nesting than any AMQP table passes its own check; keeps a hostile peer from exhausting the stack.
MAX_DEPTH = 80
#: Bytes of one integer: more digits than anybody can mean, fewer than Python refuses to print, and no time to read.
INTEGER_BYTES_MAX = 1024
#: Encoding this much takes a few milliseconds.
PIECE_BYTES = 16 * 1024
#: In a snapshot of the metadata the longest lists, those of bindings, are at this depth.
_PIECES_DEPTH = 5
#: Decoding this much takes a millisecond.
DECODED_PIECE_BYTES = 8 * 1024
_FLOAT = struct.Struct(">d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Code on the wire and on disk -> class. Codes are never used again for something else. (16 was a command that a mirror
#: lacks something; no release proposed it, so no log has it.)
_CLASSES: Mapping[int, type] = {
    1: commands.Request,
    2: commands.RequestId,
    3: commands.ChangeTopology,
    4: commands.NodeUp,
    5: commands.NodeDown,
    6: commands.ForgetNode,
    7: commands.SetPolicy,
    8: commands.ClearPolicy,
    9: commands.AddUser,
    10: commands.DeleteUser,
    11: commands.ChangePassword,
    12: commands.SetUserTags,
    13: commands.SetPermissions,
    14: commands.ClearPermissions,
    15: commands.MirrorSynchronised,
    17: commands.DropMirror,
    18: commands.AddMirror,
    19: commands.MoveMaster,
    20: records.PolicyRecord,
    21: records.MemberRecord,
    22: records.MastershipRecord,
    23: commands.MirrorFollows,
    24: commands.TakeService,
    25: commands.ForcePromote,
    26: commands.FoundCluster,
    27: commands.AdmitNode,
    28: records.AdmittedRecord,
    30: commands.RaiseProtocol,
    40: topology.CreateVhost,
    41: topology.DeleteVhost,
    42: topology.DeclareExchange,
    43: topology.DeleteExchange,
    44: topology.DeclareQueue,
    45: topology.DeleteQueue,
    46: topology.Bind,
    47: topology.Unbind,
    48: topology.NoteConsumer,
}
_CODES: Mapping[type, int] = {cls: code for code, cls in _CLASSES.items()}
_FIELDS: Mapping[type, tuple[str, ...]] = {cls: tuple(f.name for f in fields(cls)) for cls in _CODES}
#: A request, before its two fields.
_REQUEST_BEGIN = b"c\x01\x02"


class CodecError(WarrenError):
    """The bytes are no encoded value, or the value is of a type that cannot be encoded."""


class NewerKindError(CodecError):
    """The bytes are those of a newer release: a command of an unknown kind, or with a field more."""


def encode(value: Any) -> bytes:
    """Bytes of a plain value or a command. Raises `CodecError` for any other type, and for what `decode` refuses."""
    out = bytearray()
    try:
        _put(out, value, 0)
    except (UnicodeEncodeError, OverflowError) as error:
        raise CodecError(f"cannot be encoded: {error}") from error
    return bytes(out)


def encode_in_pieces(value: Any) -> Iterator[bytes]:
    """What `encode` gives, in pieces of about `PIECE_BYTES` each: whoever holds a loop can take one at a time.

    Only the dicts and sequences of the uppermost `_PIECES_DEPTH` levels are taken apart. Raises as `encode` does.
    """
    out = bytearray()
    try:
        yield from _put_in_pieces(out, value, 0)
    except (UnicodeEncodeError, OverflowError) as error:
        raise CodecError(f"cannot be encoded: {error}") from error
    yield bytes(out)


def _put_in_pieces(out: bytearray, value: Any, depth: int) -> Iterator[bytes]:
    if depth >= _PIECES_DEPTH or isinstance(value, str | bytes) or not isinstance(value, Mapping | Sequence):
        _put(out, value, depth)
    elif isinstance(value, Mapping):
        out += b"m"
        _put_length(out, len(value))
        for key, item in value.items():
            _put(out, key, depth + 1)
            yield from _put_in_pieces(out, item, depth + 1)
    else:
        out += b"u" if isinstance(value, tuple) else b"l"
        _put_length(out, len(value))
        for item in value:
            yield from _put_in_pieces(out, item, depth + 1)
            if len(out) >= PIECE_BYTES:
                yield bytes(out)
                out.clear()


def decode(data: bytes) -> Any:
    """The value that `encode` was given. Raises `CodecError` for anything else.

    Besides that only `MemoryError` and `RecursionError`, which tell of the process and not of the bytes: another node
    may well read them, so this one must not say that they are none.
    """
    try:
        value, end = _get(data, 0, 0)
    except (CodecError, MemoryError, RecursionError):
        raise
    except Exception as error:
        # Whatever a constructor has against the bytes: no list of what Python may raise for them would be complete.
        raise CodecError(f"not an encoded value: {error}") from error
    if end != len(data):
        raise CodecError(f"{len(data) - end} bytes too many behind an encoded value")
    return value


def decode_in_pieces(data: bytes) -> Pieces[Any]:
    """What `decode` gives, so many bytes at a time as take about a millisecond. Raises as `decode` does.

    Only what `encode_in_pieces` takes apart is put together in pieces.
    """
    reader = _Reader(data)
    try:
        value = yield from reader.read(0)
    except (CodecError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise CodecError(f"not an encoded value: {error}") from error
    if reader.at != len(data):
        raise CodecError(f"{len(data) - reader.at} bytes too many behind an encoded value")
    return value


class _Reader:
    """Reads encoded values, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._piece_end = DECODED_PIECE_BYTES

    def read(self, depth: int) -> Pieces[Any]:
        """The next value, which is ``depth`` deep."""
        data, tag = self._data, self._data[self.at]
        if depth >= _PIECES_DEPTH or tag not in b"lum":
            value, self.at = _get(data, self.at, depth)
            return value
        count, self.at = _get_length(data, self.at + 1)
        if tag == ord("m"):
            table: dict[Any, Any] = {}
            for _ in range(count):
                key, self.at = _get(data, self.at, depth + 1)
                table[key] = yield from self.read(depth + 1)
            return table
        items: list[Any] = []
        if depth + 1 == _PIECES_DEPTH or (count and data[self.at] not in b"lum"):
            yield from self._read_items(items, count, depth + 1)
        else:
            for _ in range(count):
                item = yield from self.read(depth + 1)
                items.append(item)
                if self._is_piece_done():
                    yield
        return items if tag == ord("l") else tuple(items)

    def _read_items(self, items: list[Any], count: int, depth: int) -> Pieces[None]:
        """Without a generator for each."""
        data, at = self._data, self.at
        for _ in range(count):
            item, at = _get(data, at, depth)
            items.append(item)
            self.at = at
            if self._is_piece_done():
                yield

    def _is_piece_done(self) -> bool:
        if self.at < self._piece_end:
            return False
        self._piece_end = self.at + DECODED_PIECE_BYTES
        return True


def encode_request(request: commands.Request) -> bytes:
    """The payload of a Raft entry."""
    return encode(request)


def decode_request(data: bytes) -> commands.Request:
    """The request in a Raft entry. Raises `CodecError`, also if nobody can have asked for it under such an id.

    `NewerKindError` only if it is a request but for what it asks.
    """
    try:
        request = decode(data)
    except NewerKindError as error:
        if _is_request(data):
            raise
        raise CodecError(str(error)) from error
    if not isinstance(request, commands.Request):
        raise CodecError(f"a {type(request).__name__} is no request")
    if problem := problem_of(request.request_id, commands.RequestId):
        raise CodecError(f"a request without an identity: {problem}")
    return request


def _is_request(data: bytes) -> bool:
    """These bytes, whatever they ask for, begin as a request does."""
    try:
        request_id, _ = _get(data, len(_REQUEST_BEGIN), 1)
    except Exception:  # as in `decode`
        return False
    return data.startswith(_REQUEST_BEGIN) and not problem_of(request_id, commands.RequestId)


def _put_length(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_integer(out: bytearray, value: int) -> None:
    if value.bit_length() >= 7 * INTEGER_BYTES_MAX:
        raise CodecError(f"an integer of {value.bit_length()} bits is too big")
    _put_length(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_bytes(out: bytearray, tag: bytes, content: bytes) -> None:
    out += tag
    _put_length(out, len(content))
    out += content


def _put(out: bytearray, value: Any, depth: int) -> None:  # noqa: C901 - one branch per type, nothing else
    if value is None:
        out += b"N"
    elif value is True:
        out += b"T"
    elif value is False:
        out += b"F"
    elif isinstance(value, int):
        out += b"t" if isinstance(value, Timestamp) else b"i"
        _put_integer(out, int(value))
    elif isinstance(value, str):
        _put_bytes(out, b"s", value.encode())
    elif isinstance(value, bytes | bytearray | memoryview):
        _put_bytes(out, b"b", bytes(value))
    elif isinstance(value, float):
        out += b"f" + _FLOAT.pack(value)
    elif isinstance(value, Decimal):
        _put_bytes(out, b"D", str(value).encode())
    elif isinstance(value, datetime):
        out += b"U"
        _put_integer(out, (value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC) - _EPOCH) // _MICROSECOND)
    elif depth >= MAX_DEPTH:
        raise CodecError(f"nested deeper than {MAX_DEPTH}")
    elif type(value) in _CODES:
        names = written_fields(value, _FIELDS[type(value)])
        out += b"c"
        _put_length(out, _CODES[type(value)])
        _put_length(out, len(names))
        for name in names:
            _put(out, getattr(value, name), depth + 1)
    elif isinstance(value, Mapping):
        out += b"m"
        _put_length(out, len(value))
        for key, item in value.items():
            _put(out, key, depth + 1)
            _put(out, item, depth + 1)
    elif isinstance(value, Sequence):
        out += b"u" if isinstance(value, tuple) else b"l"
        _put_length(out, len(value))
        for item in value:
            _put(out, item, depth + 1)
    else:
        raise CodecError(f"a {type(value).__name__} cannot be encoded")


def _get_length(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    end = at + INTEGER_BYTES_MAX
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        if at == end:
            raise CodecError(f"an integer of more than {INTEGER_BYTES_MAX} bytes")
        shift += 7


def _get_integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _get_length(data, at)
    return (number >> 1 if not number & 1 else -((number + 1) >> 1)), at


def _get_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _get_length(data, at)
    if at + length > len(data):
        raise CodecError(f"{length} bytes announced at {at}, {len(data) - at} there")
    return data[at : at + length], at + length


def _get_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + _FLOAT.size


def _get_timestamp(data: bytes, at: int) -> tuple[Timestamp, int]:
    number, at = _get_integer(data, at)
    return Timestamp(number), at


def _get_text(data: bytes, at: int) -> tuple[str, int]:
    content, at = _get_bytes(data, at)
    return content.decode(), at


def _get_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    text, at = _get_text(data, at)
    return Decimal(text), at


def _get_datetime(data: bytes, at: int) -> tuple[datetime, int]:
    microseconds, at = _get_integer(data, at)
    return _EPOCH + microseconds * _MICROSECOND, at


_SCALARS: Mapping[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("N"): lambda data, at: (None, at),
    ord("T"): lambda data, at: (True, at),
    ord("F"): lambda data, at: (False, at),
    ord("i"): _get_integer,
    ord("t"): _get_timestamp,
    ord("f"): _get_float,
    ord("s"): _get_text,
    ord("b"): _get_bytes,
    ord("D"): _get_decimal,
    ord("U"): _get_datetime,
}


def _get(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    scalar = _SCALARS.get(tag)
    if scalar is not None:
        return scalar(data, at)
    if depth >= MAX_DEPTH:
        raise CodecError(f"nested deeper than {MAX_DEPTH}")
    if tag in b"lu":
        items, at = _get_items(data, at, depth)
        return (items if tag == ord("l") else tuple(items)), at
    if tag == ord("m"):
        count, at = _get_length(data, at)
        table: dict[Any, Any] = {}
        for _ in range(count):
            key, at = _get(data, at, depth + 1)
            table[key], at = _get(data, at, depth + 1)
        return table, at
    if tag == ord("c"):
        code, at = _get_length(data, at)
        cls = _CLASSES.get(code)
        items, at = _get_items(data, at, depth)
        if cls is None:
            raise NewerKindError(f"no command has code {code} here")
        if len(items) > len(_FIELDS[cls]):
            raise NewerKindError(
                f"a {cls.__name__} of {len(items)} fields, of which {len(_FIELDS[cls])} are known here"
            )
        return cls(*items), at
    raise CodecError(f"unknown tag {tag} at {at - 1}")


def _get_items(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    count, at = _get_length(data, at)
    items = []
    for _ in range(count):
        item, at = _get(data, at, depth + 1)
        items.append(item)
    return items, at
