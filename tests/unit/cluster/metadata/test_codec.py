"""Values and commands survive the way through bytes; strange bytes are refused, never executed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.metadata import codec
from cluster.metadata.codec import (
    DECODED_PIECE_BYTES,
    INTEGER_BYTES_MAX,
    MAX_DEPTH,
    PIECE_BYTES,
    CodecError,
    decode,
    decode_in_pieces,
    decode_request,
    encode,
    encode_in_pieces,
    encode_request,
)
from cluster.metadata.commands import (
    AddUser,
    ChangePassword,
    ChangeTopology,
    FoundCluster,
    NodeDown,
    Request,
    RequestId,
    SetPolicy,
)
from cluster.metadata.records import PolicyRecord
from node.amqp.values import Timestamp
from node.ids import Incarnation, NodeName
from node.pieces import at_once
from node.topology.commands import DeclareQueue, DeleteQueue
from tests.support.amounts import few_examples

N1 = NodeName("n1")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**64,
        -(2**70),
        1.5,
        float("inf"),
        "",
        "ä\n",
        b"\x00\xff",
        Decimal("-1.50"),
        datetime(2024, 5, 1, 12, 30, 1, 7, tzinfo=UTC),
        datetime(1960, 1, 1, tzinfo=UTC),
        Timestamp(1700000000),
        [1, [2, {"a": None}]],
        (1, (2,)),
        {"k": {"n": [b"x", 1.0]}, "l": ()},
    ],
)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


def test_a_time_is_a_moment_wherever_it_was_read_off_a_clock() -> None:
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    summer_time = timezone(timedelta(hours=2))
    assert encode(datetime(2024, 5, 1, 14, tzinfo=summer_time)) == encode(noon)
    assert encode(datetime(2024, 5, 1, 12)) == encode(noon)  # noqa: DTZ001 - without a zone it counts as UTC


@pytest.mark.parametrize(
    "command",
    [
        ChangeTopology(DeclareQueue("/", "q", True, "n1/1", False, {"x-max-length": 5, "d": Decimal("1.5")}), N1),
        NodeDown(N1, Incarnation(3), "shutdown"),
        SetPolicy(PolicyRecord("/", "p", "^", {"ha-mode": "nodes", "ha-params": ["n1"]}, 1, "queues")),
    ],
)
def test_a_request_comes_back(command: Any) -> None:
    request = Request(RequestId(N1, Incarnation(2), 9), command)
    assert decode_request(encode_request(request)) == request


def test_the_encoding_of_a_request_is_what_older_logs_hold() -> None:
    """A golden value: changing these bytes makes existing clusters unreadable."""
    request = Request(RequestId(N1, Incarnation(2), 9), NodeDown(N1, Incarnation(1)))
    assert encode_request(request).hex() == ("63010263020373026e316904691263050373026e316902730766" + "61696c757265")


def test_a_deletion_of_an_older_log_has_no_epoch() -> None:
    fields = encode(["/", "q", 7])
    assert decode(b"c" + bytes([45]) + fields[1:]) == DeleteQueue("/", "q", 7, None)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@few_examples(30, 300, values)
def test_every_plain_value_comes_back(value: Any) -> None:
    assert decode(encode(value)) == value


@few_examples(30, 300, values)
def test_pieces_are_the_whole(value: Any) -> None:
    assert b"".join(encode_in_pieces(value)) == encode(value)


def test_pieces_are_small_however_long_the_lists() -> None:
    value = {"vhosts": [{"bindings": [{"key": "k" * 100, "number": number} for number in range(5_000)]}]}
    pieces = list(encode_in_pieces(value))
    assert b"".join(pieces) == encode(value)
    assert max(map(len, pieces)) < PIECE_BYTES + 200
    with pytest.raises(CodecError, match="a object cannot be encoded"):
        list(encode_in_pieces([[object()]]))


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("item", ["text" * 25, ["text" * 20, 7], {"key": "k" * 80}], ids=["text", "list", "table"])
def test_long_lists_are_read_a_little_at_a_time(depth: int, item: Any) -> None:
    """As deep as the longest lists of a snapshot are, whatever is in them."""
    value: Any = [item] * 1_000
    for _ in range(depth):
        value = [value]
    data = encode(value)
    turns = sum(1 for _ in decode_in_pieces(data))
    assert len(data) // (DECODED_PIECE_BYTES + 200) <= turns <= len(data) // DECODED_PIECE_BYTES


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = "innermost"
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"in": value}], ids=["lists", "tables"])
def test_what_can_be_written_can_be_read_however_deep_it_is(wrap: Callable[[Any], Any]) -> None:
    """At once and in pieces alike: an entry becomes part of a snapshot."""
    deepest, too_deep = nested(MAX_DEPTH, wrap), nested(MAX_DEPTH + 1, wrap)
    data = encode(deepest)
    assert b"".join(encode_in_pieces(deepest)) == data
    assert decode(data) == at_once(decode_in_pieces(data)) == deepest
    for write in (encode, lambda value: list(encode_in_pieces(value))):
        with pytest.raises(CodecError, match="nested deeper"):
            write(too_deep)
    data = b"l\x01" + data
    for read in (decode, lambda data: at_once(decode_in_pieces(data))):
        with pytest.raises(CodecError, match="nested deeper"):
            read(data)


def test_an_integer_has_as_many_bytes_as_anybody_can_mean_and_no_more() -> None:
    """Or bytes without an end would be read for ever."""
    greatest = 2 ** (7 * INTEGER_BYTES_MAX - 1) - 1
    for number in (greatest, -greatest):
        assert decode(encode(number)) == number
        with pytest.raises(CodecError, match="too big"):
            encode(number * 2 + 1)
    with pytest.raises(CodecError, match=f"more than {INTEGER_BYTES_MAX} bytes"):
        decode(b"i" + b"\x80" * INTEGER_BYTES_MAX + b"\x01")


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (8191, "fe7f")],
)
def test_integers_are_as_short_as_they_can_be(value: int, data: str) -> None:
    assert encode(value) == b"i" + bytes.fromhex(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    with suppress(CodecError):
        decode(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not an encoded value"),
        (b"?", "unknown tag"),
        (b"s\x05ab", "5 bytes announced"),
        (b"N\x00", "1 bytes too many"),
        (b"c\x7f\x00", "no command has code 127"),
        (b"l\x01" * 200 + b"N", "nested deeper"),
    ],
)
def test_strange_bytes_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(CodecError, match=text):
        decode(data)


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_want_of_memory_or_stack_is_no_property_of_the_bytes(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that took them for no value would pass over an entry that the others carry out."""

    def fail(_data: bytes, _at: int, _depth: int) -> tuple[Any, int]:
        raise error

    monkeypatch.setattr(codec, "_get", fail)
    with pytest.raises(error):
        decode(encode([1]))


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(CodecError, match="a object cannot be encoded"):
        encode(object())


def test_a_command_that_is_logged_does_not_tell_a_password_hash() -> None:
    hash_of_password = "c2VjcmV0"
    for command in (
        AddUser("guest", hash_of_password),
        ChangePassword("guest", hash_of_password),
        FoundCluster("/", "guest", hash_of_password),
    ):
        assert hash_of_password not in repr(command)
        assert decode_request(encode_request(Request(RequestId(N1, Incarnation(1), 1), command))).command == command
