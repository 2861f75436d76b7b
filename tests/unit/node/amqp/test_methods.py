"""Methods and field tables, both ways, against `pamqp`."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from pamqp import commands, frame

from node.amqp.methods import METHOD_CLASSES, AccessRequest, AccessRequestOk, decode_method, pack_method
from node.amqp.values import (
    TABLE_DEPTH_MAX,
    MalformedValue,
    Timestamp,
    check_table,
    pack_long_string,
    pack_short_string,
    pack_table,
    read_table,
)
from tests.support.amounts import few_examples

SAMPLES: dict[str, Any] = {"octet": 9, "short": 500, "long": 70_000, "longlong": 1 << 40, "shortstr": "name"}
SAMPLES |= {"table": {"a": 1, "b": {"c": [True, "x", None]}}}

OURS = (AccessRequest, AccessRequestOk)
#: pamqp warns that recover-async is deprecated, which our settings make an error.
PAMQP_METHODS: list[Any] = [
    method for method in METHOD_CLASSES.values() if method not in OURS and method.name != "Basic.RecoverAsync"
]


def sample_arguments(method_class: Any) -> list[Any]:
    arguments: list[Any] = []
    for position, name in enumerate(method_class.__slots__):
        kind = method_class.amqp_type(name)
        if kind == "bit":
            arguments.append(position % 2 == 0)
        elif kind == "longstr":
            arguments.append(b"long string")
        else:
            arguments.append(SAMPLES[kind])
    return arguments


@pytest.mark.parametrize("method_class", PAMQP_METHODS, ids=lambda method: method.name)
def test_pamqp_reads_what_we_write_and_we_read_it_too(method_class: Any) -> None:
    arguments = sample_arguments(method_class)
    data = pack_method(5, method_class, *arguments)
    size, channel, theirs = frame.unmarshal(data)
    assert (size, channel, type(theirs)) == (len(data), 5, method_class)
    ours = decode_method(data[7:-1])
    assert isinstance(ours, method_class)
    assert ours is not None
    for name, argument in zip(method_class.__slots__, arguments, strict=True):
        assert getattr(ours, name) == argument
        expected = argument.decode() if isinstance(argument, bytes) else argument
        assert getattr(theirs, name) == expected


@pytest.mark.parametrize("method_class", list(METHOD_CLASSES.values()), ids=lambda method: method.name)
def test_every_cut_method_is_refused(method_class: Any) -> None:
    payload = pack_method(5, method_class, *sample_arguments(method_class))[7:-1]
    for size in range(4, len(payload)):
        with pytest.raises(MalformedValue):
            decode_method(payload[:size])
    with pytest.raises(MalformedValue):
        decode_method(payload + b"\x00")


def test_access_request_has_the_layout_of_0_8() -> None:
    payload = b"\x00\x1e\x00\x0a" + b"\x05/data" + b"\x12"
    method = decode_method(payload)
    assert isinstance(method, AccessRequest)
    assert dict(method) == {
        "realm": "/data", "exclusive": False, "passive": True, "active": False, "write": False, "read": True
    }  # fmt: skip
    assert pack_method(1, AccessRequestOk, 1) == b"\x01\x00\x01\x00\x00\x00\x06\x00\x1e\x00\x0b\x00\x01\xce"


def test_an_unknown_method_is_none() -> None:
    assert decode_method(b"\x00\x3c\x00\xff") is None


def test_names_are_not_held_against_patterns() -> None:
    """RabbitMQ allows any name; pamqp's constructors do not."""
    with pytest.raises(ValueError, match="queue"):
        commands.Queue.Declare(queue="a/b é")
    payload = pack_method(1, commands.Queue.Declare, 7, "a/b é", *[False] * 5, {})[7:-1]
    method = decode_method(payload)
    assert isinstance(method, commands.Queue.Declare)
    assert method.queue == "a/b é"


FIELDS: list[tuple[bytes, Any]] = [
    (b"t\x01", True),
    (b"t\x00", False),
    (b"b\xff", -1),
    (b"B\xff", 255),
    (b"s\xff\xfe", -2),
    (b"u\xff\xfe", 65534),
    (b"I\xff\xff\xff\xfd", -3),
    (b"i\xff\xff\xff\xfd", 4294967293),
    (b"l" + b"\xff" * 8, -1),
    (b"L" + b"\xff" * 8, -1),
    (b"f\x3f\xc0\x00\x00", 1.5),
    (b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
    (b"D\x02\x00\x00\x01\x3b", Decimal("3.15")),
    (b"S\x00\x00\x00\x02ab", "ab"),
    (b"S\x00\x00\x00\x01\xff", b"\xff"),
    (b"x\x00\x00\x00\x01\xff", b"\xff"),
    (b"A\x00\x00\x00\x04b\x01b\x02", [1, 2]),
    (b"T\x00\x00\x00\x00\x00\x00\x00\x05", Timestamp(5)),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1)),
    (b"F\x00\x00\x00\x04\x01kb\x01", {"k": 1}),
    (b"F\x00\x00\x00\x00", {}),
    (b"V", None),
]


@pytest.mark.parametrize(("encoded", "value"), FIELDS)
def test_each_field_type_is_read_as_rabbitmq_means_it(encoded: bytes, value: Any) -> None:
    table = pack_long_string(b"\x01k" + encoded)
    read, end = read_table(table)
    assert check_table(b"ab" + table, 2) == 2 + end
    assert read == {"k": value}
    assert type(read["k"]) is type(value)
    assert end == len(table)
    for size in range(1, len(encoded)):
        cut = pack_long_string(b"\x01k" + encoded[:size])
        for read_or_check in (read_table, check_table):
            with pytest.raises(MalformedValue):
                read_or_check(cut)


@pytest.mark.parametrize("value", [value for _, value in FIELDS])
def test_each_value_survives_the_way_there_and_back(value: Any) -> None:
    read, _ = read_table(pack_table({"k": value}))
    assert read == {"k": value}


def test_pamqp_reads_our_tables() -> None:
    table = {"s": "text", "n": 5, "big": 1 << 40, "f": 1.25, "t": Timestamp(86_400), "d": Decimal("1.5"), "l": [1, {}]}
    start = pack_method(0, commands.Connection.Start, 0, 9, table, b"PLAIN", b"en_US")
    _, _, method = frame.unmarshal(start)
    assert isinstance(method, commands.Connection.Start)
    assert method.server_properties == table | {"t": datetime(1970, 1, 2, tzinfo=UTC)}


def test_an_unknown_field_type_is_refused() -> None:
    for read_or_check in (read_table, check_table):
        with pytest.raises(MalformedValue, match="unknown field type b'U'"):
            read_or_check(pack_long_string(b"\x01kU\x00\x00"))


WHOLE = pack_table({"s": "text", "n": [1, {"in": None}], "t": Timestamp(7), "d": Decimal("1.5"), "f": {"x": b"raw"}})


@few_examples(200, 5_000, st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_what_is_checked_can_be_read(position: int, octet: int) -> None:
    """But for keys that are no UTF-8, which other clients can read."""
    table = WHOLE[:position] + bytes((octet,)) + WHOLE[position + 1 :]
    try:
        read_table(table)
    except MalformedValue as error:
        if "not UTF-8" not in str(error):
            with pytest.raises(MalformedValue):
                check_table(table)
    else:
        check_table(table)


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_nesting_is_limited(tag: bytes) -> None:
    def nested(depth: int) -> bytes:
        content = b""
        for _ in range(depth):
            content = tag + pack_long_string((b"\x01k" if tag == b"F" else b"") + content if content else b"")
        return pack_long_string(b"\x01k" + content)

    for read_or_check in (read_table, check_table):
        read_or_check(nested(TABLE_DEPTH_MAX))
        with pytest.raises(MalformedValue, match="nested deeper"):
            read_or_check(nested(TABLE_DEPTH_MAX + 2))


@pytest.mark.parametrize("value", [object(), 1 << 63, Decimal("NaN"), Decimal(1 << 40)])
def test_what_a_table_cannot_hold_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        pack_table({"k": value})


def test_a_short_string_has_at_most_255_bytes() -> None:
    assert pack_short_string("é" * 127 + "e") == b"\xff" + "é".encode() * 127 + b"e"
    with pytest.raises(ValueError, match="255"):
        pack_short_string("é" * 128)
