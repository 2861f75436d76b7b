"""Reading property bytes, compared with what an independent encoder (pamqp) writes."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from pamqp import commands, header

from node.errors import ConnectionFailure
from node.routing.properties import (
    headers_of,
    plain_table,
    property_spans,
    short_string_of,
    without_header,
)
from tests.support.messages import encode_headers


def marshal(properties: commands.Basic.Properties) -> bytes:
    """Property bytes as a client sends them: the content header without class, weight and body size."""
    return header.ContentHeader(0, 0, properties).marshal()[12:]


FULL = commands.Basic.Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"CC": ["a", "b"], "n": 5},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    reply_to="r",
    expiration="1000",
    message_id="m",
    timestamp=datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    message_type="t",
    user_id="guest",
    app_id="app",
)


def test_every_property_is_found_at_its_place() -> None:
    raw = marshal(FULL)
    spans = property_spans(raw)
    assert len(spans) == 13
    assert max(end for _, end in spans.values()) == len(raw)
    assert headers_of(raw) == {"CC": ["a", "b"], "n": 5}
    assert short_string_of(raw, "expiration") == "1000"
    assert short_string_of(raw, "user_id") == "guest"


def test_headers_are_read_as_the_arguments_of_a_binding_are() -> None:
    """Both are plain data, or a headers exchange would not find a time equal to itself."""
    when = datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.UTC)
    raw = marshal(commands.Basic.Properties(headers={"when": when, "price": Decimal("1.5"), "raw": bytearray(b"x")}))
    assert headers_of(raw) == {"when": 60, "price": 1.5, "raw": b"x"}


def test_absent_properties() -> None:
    raw = marshal(commands.Basic.Properties(delivery_mode=1))
    assert headers_of(raw) == {}
    assert short_string_of(raw, "expiration") is None
    assert without_header(raw, "BCC") == raw


def test_a_header_is_cut_out_and_the_rest_is_untouched() -> None:
    with_bcc = commands.Basic.Properties(headers={"a": 1, "BCC": ["x"], "z": {"BCC": 1}}, delivery_mode=2, app_id="app")
    without = commands.Basic.Properties(headers={"a": 1, "z": {"BCC": 1}}, delivery_mode=2, app_id="app")
    assert without_header(marshal(with_bcc), "BCC") == marshal(without)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x20",
        b"\x20\x00",
        b"\x20\x00\x00\x00\x00\x09",
        b"\x20\x00\x00\x00\x00\x03\x01a?",
        b"\x20\x00\x00\x00\x00\x02\x09a",
        b"\x20\x00" + b"\x00\x00\x10\x00" + b"\x01aF\x00\x00\x00\x00" * 3,
    ],
)
def test_damaged_properties_are_a_frame_error(raw: bytes) -> None:
    with pytest.raises(ConnectionFailure) as caught:
        headers_of(raw)
    assert caught.value.reply_code == 501


def test_deeply_nested_tables_are_refused_not_fatal() -> None:
    nested = b""
    for _ in range(3000):
        entry = b"\x01aF" + len(nested).to_bytes(4, "big") + nested
        nested = entry
    with pytest.raises(ConnectionFailure):
        headers_of(b"\x20\x00" + len(nested).to_bytes(4, "big") + nested)


def test_plain_table_keeps_plain_values_and_converts_the_others() -> None:
    when = datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.UTC)
    table = {"a": when, "b": Decimal("1.5"), "c": bytearray(b"x"), "d": [when, {"e": when}], "f": None, "g": True}
    assert plain_table(table) == {"a": 60, "b": 1.5, "c": b"x", "d": [60, {"e": 60}], "f": None, "g": True}


def test_headers_are_read() -> None:
    assert headers_of(encode_headers({"k": "v"})) == {"k": "v"}
