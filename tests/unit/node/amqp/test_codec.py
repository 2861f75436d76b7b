"""The frame reader, fed whole, bytewise and with a tail; `pamqp` makes the bytes."""

from __future__ import annotations

import struct

import pytest
from pamqp import base, commands

from node.amqp import codec
from node.amqp.codec import PROPERTIES_CACHE_ENTRIES, PUBLISH_CACHE_ENTRIES, READ_LIMIT, FrameReader
from node.amqp.frames import (
    SETTLE_BY_REJECT,
    SETTLE_MULTIPLE,
    SETTLE_NEGATIVE,
    SETTLE_REQUEUE,
    Fault,
    FrameItem,
    MethodReceived,
    Publishes,
    Settlements,
)
from tests.support.amqp_frames import flatten, method_bytes, publish_bytes

FRAME_MAX = 4096
Basic = commands.Basic
PERSISTENT = Basic.Properties(content_type="text/plain", headers={"n": 1, "t": {"a": ["b"]}}, delivery_mode=2)


def make_reader() -> FrameReader:
    return FrameReader(FRAME_MAX, max_message_size_bytes=20_000)


def feed_cut(data: bytes, step: int) -> list[FrameItem]:
    reader = make_reader()
    items = []
    for at in range(0, len(data), step):
        items += feed_all(reader, data[at : at + step])
    return items


def feed_all(reader: FrameReader, data: bytes) -> list[FrameItem]:
    """Feed, and read to the end what is left because of the limit."""
    items = reader.feed(data)
    reader.check_invariants()
    while reader.has_more:
        items += reader.feed(b"")
        reader.check_invariants()
    return items


def fault_of(data: bytes) -> Fault:
    """The fault that ends ``data``, the same however it is cut."""
    whole = feed_cut(data, len(data))
    assert flatten(feed_cut(data, 1)) == flatten(whole)
    fault = whole[-1]
    assert isinstance(fault, Fault)
    return fault


STREAMS = {
    "one publish": publish_bytes(1),
    "persistent, with headers": publish_bytes(1, "x", "k.1", properties=PERSISTENT) * 3,
    "mandatory": publish_bytes(1, mandatory=True) + publish_bytes(1),
    "empty body": publish_bytes(1, payload=b"") + publish_bytes(1),
    "body in frames": publish_bytes(1, payload=bytes(range(256)) * 40, body_frame_bytes=FRAME_MAX - 8),
    "two channels in turn": (publish_bytes(1, payload=b"a") + publish_bytes(2, payload=b"b")) * 3,
    "acks between": publish_bytes(1) + method_bytes(1, Basic.Ack(7, True)) + publish_bytes(1),
    "methods and heartbeats": method_bytes(1, commands.Queue.Declare(queue="q", arguments={"x-max-length": 5}))
    + b"\x08\x00\x00\x00\x00\x00\x00\xce"
    + publish_bytes(1),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_cut_gives_the_same_items(name: str) -> None:
    data = STREAMS[name]
    whole = flatten(feed_cut(data, len(data)))
    assert whole
    for step in (1, 2, 7, 19, 64, len(data) - 1):
        assert flatten(feed_cut(data, step)) == whole


@pytest.mark.parametrize("name", STREAMS)
def test_a_tail_waits_for_its_rest(name: str) -> None:
    data = STREAMS[name]
    tail = publish_bytes(9, payload=b"tail")
    reader = make_reader()
    items = reader.feed(data + tail[:-3])
    assert 9 not in flatten(items)
    assert flatten(reader.feed(tail[-3:]))[9][0][4] == b"tail"


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("name", STREAMS)
def test_a_limit_anywhere_gives_the_same_items(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = STREAMS[name] + publish_bytes(1, payload=b"last")
    whole = flatten(feed_cut(data, len(data)))
    monkeypatch.setattr(codec, "READ_LIMIT", limit)
    reader = make_reader()
    reader.feed(data)
    assert reader.has_more
    for step in (1, 7, 19, 64, len(data)):
        assert flatten(feed_cut(data, step)) == whole


@pytest.mark.parametrize("step", [100, 250, 1000])
def test_data_may_come_while_more_is_left(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then one call reads on where the last one stopped, and no further than the limit."""
    data = b"".join(STREAMS.values())
    whole = flatten(feed_cut(data, len(data)))
    monkeypatch.setattr(codec, "READ_LIMIT", 2)
    reader = make_reader()
    items = []
    times_left = 0
    for at in range(0, len(data), step):
        items += reader.feed(data[at : at + step])
        reader.check_invariants()
        times_left += reader.has_more
    assert times_left
    assert flatten(items + feed_all(reader, b"")) == whole


@pytest.mark.parametrize("one", [publish_bytes(1), method_bytes(1, Basic.Ack(7)), b"\x08\x00\x00\x00\x00\x00\x00\xce"])
def test_one_call_reads_a_limited_number(one: bytes) -> None:
    reader = make_reader()
    counts = [len(flatten(reader.feed(one * (2 * READ_LIMIT + 1))).get(1, []))]
    while reader.has_more:
        counts.append(len(flatten(reader.feed(b"")).get(1, [])))
        reader.check_invariants()
    assert counts == ([0, 0, 0] if one[0] == 8 else [READ_LIMIT, READ_LIMIT, 1])


def test_frames_of_a_body_count_each() -> None:
    reader = make_reader()
    reader.max_message_size_bytes = 1_000_000
    body = bytes(range(256)) * (4 * READ_LIMIT)
    assert reader.feed(publish_bytes(1, payload=body, body_frame_bytes=512) + publish_bytes(1)) == []
    assert reader.has_more
    first, second = flatten(feed_all(reader, b""))[1]
    assert (first[4], second[4]) == (body, b"hello")


def has_more(reader: FrameReader) -> bool:
    return reader.has_more


def test_an_incomplete_frame_behind_the_limit_waits_for_its_rest() -> None:
    tail = publish_bytes(1, payload=b"tail")
    reader = make_reader()
    assert len(flatten(reader.feed(publish_bytes(1) * READ_LIMIT + tail[:-3]))[1]) == READ_LIMIT
    assert has_more(reader)
    assert reader.feed(b"") == []
    assert not has_more(reader)
    reader.check_invariants()
    assert flatten(reader.feed(tail[-3:]))[1][0][4] == b"tail"


def test_a_fault_behind_the_limit_is_the_last() -> None:
    reader = make_reader()
    data = publish_bytes(1) * READ_LIMIT + raw_frame(4, 1, b"") + publish_bytes(1)
    assert [type(item) for item in reader.feed(data)] == [Publishes]
    assert [type(item) for item in reader.feed(publish_bytes(1))] == [Fault]
    assert feed_all(reader, publish_bytes(1)) == []
    reader.check_invariants()


def test_a_channel_may_begin_to_be_ignored_while_more_is_left() -> None:
    reader = make_reader()
    reader.feed(publish_bytes(1) * (READ_LIMIT - 1) + PUBLISH_METHOD + publish_bytes(2))
    reader.ignore_channel(1)
    items = feed_all(reader, publish_bytes(1) + method_bytes(1, commands.Channel.CloseOk()) + publish_bytes(1))
    assert [(item.channel, type(item)) for item in items] == [(2, Publishes), (1, MethodReceived), (1, Publishes)]


def test_a_run_of_publishes_is_one_item_of_messages() -> None:
    (item,) = make_reader().feed(
        publish_bytes(3, "x", "a", b"1", properties=PERSISTENT) + publish_bytes(3, "x", "b", b"2")
    )
    assert isinstance(item, Publishes)
    assert item.channel == 3
    first, second = item.messages
    assert (first.exchange, first.routing_key, first.body, first.persistent) == ("x", "a", b"1", True)
    assert (second.exchange, second.routing_key, second.body, second.persistent) == ("x", "b", b"2", False)
    assert item.mandatory == [False, False]
    assert first.properties == PERSISTENT.marshal()


def test_channels_in_turn_keep_one_run_each() -> None:
    items = make_reader().feed((publish_bytes(1) + publish_bytes(2)) * 5)
    assert [(item.channel, len(item.messages)) for item in items if isinstance(item, Publishes)] == [(1, 5), (2, 5)]


def test_contents_of_channels_may_be_interleaved_frame_by_frame() -> None:
    one, two = publish_bytes(1, payload=b"one"), publish_bytes(2, payload=b"two!")
    at_one = one.index(b"\x02\x00\x01\x00\x00")
    at_two = two.index(b"\x02\x00\x02\x00\x00")
    items = feed_cut(one[:at_one] + two[:at_two] + one[at_one:] + two[at_two:], 1000)
    assert {channel: lines[0][4] for channel, lines in flatten(items).items()} == {1: b"one", 2: b"two!"}


def test_settlements_come_as_one_run() -> None:
    data = b"".join(
        method_bytes(1, method)
        for method in (
            Basic.Ack(1),
            Basic.Ack(2, True),
            Basic.Nack(3, True, False),
            Basic.Reject(4, True),
            Basic.Reject(5, False),
        )
    )
    (item,) = make_reader().feed(data)
    assert item == Settlements(
        1,
        [
            (1, 0),
            (2, SETTLE_MULTIPLE),
            (3, SETTLE_NEGATIVE | SETTLE_MULTIPLE),
            (4, SETTLE_NEGATIVE | SETTLE_BY_REJECT | SETTLE_REQUEUE),
            (5, SETTLE_NEGATIVE | SETTLE_BY_REJECT),
        ],
    )


def test_caches_stay_bounded() -> None:
    reader = make_reader()
    for number in range(2 * PUBLISH_CACHE_ENTRIES + PROPERTIES_CACHE_ENTRIES):
        data = publish_bytes(1, "x", f"key {number}", properties=Basic.Properties(message_id=str(number)))
        assert len(flatten(reader.feed(data))[1]) == 1
        reader.check_invariants()


def raw_frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


PUBLISH_METHOD = method_bytes(1, Basic.Publish(0, "", "q"))
HEADER_5 = raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0))

FAULTS = {
    "wrong end": (501, raw_frame(1, 1, b"\x00\x3c\x00\x0a", end=0)),
    "too large": (501, raw_frame(3, 1, bytes(FRAME_MAX + 1))),
    "unknown type": (501, raw_frame(4, 1, b"")),
    "method cut off": (501, raw_frame(1, 1, b"\x00\x32\x00\x0a\x00")),
    "method too long": (501, raw_frame(1, 1, b"\x00\x14\x00\x0a\x00\x00")),
    "no method": (501, raw_frame(1, 1, b"\x00")),
    "string longer than its frame": (501, raw_frame(1, 1, b"\x00\x14\x00\x0a\x05ab")),
    "publish cut off": (501, raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x02x")),
    "publish not UTF-8": (501, raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x01\xff\x00\x00")),
    "ack of the wrong size": (501, raw_frame(1, 1, b"\x00\x3c\x00\x50\x00\x00\x00\x01\x00")),
    "unknown method": (503, raw_frame(1, 1, b"\x00\x3c\x00\xff")),
    "unknown class": (503, raw_frame(1, 1, b"\x00\x07\x00\x0a")),
    "publish on channel 0": (503, publish_bytes(1) + publish_bytes(0)),
    "connection class elsewhere": (503, method_bytes(1, commands.Connection.CloseOk())),
    "header without method": (505, HEADER_5),
    "body without header": (505, PUBLISH_METHOD + raw_frame(3, 1, b"hello")),
    "body without method": (505, raw_frame(3, 1, b"hello")),
    "method instead of header": (505, PUBLISH_METHOD + PUBLISH_METHOD),
    "method instead of body": (505, PUBLISH_METHOD + HEADER_5 + PUBLISH_METHOD),
    "two headers": (505, PUBLISH_METHOD + HEADER_5 + HEADER_5),
    "body too long": (505, PUBLISH_METHOD + HEADER_5 + raw_frame(3, 1, b"hello!")),
    "header and body of different channels": (
        505,
        PUBLISH_METHOD + method_bytes(2, Basic.Publish(0, "", "q")) + HEADER_5 + raw_frame(3, 2, b"hello"),
    ),
    "header of another class": (505, PUBLISH_METHOD + raw_frame(2, 1, struct.pack(">HHQH", 61, 0, 5, 0))),
    "weight": (501, PUBLISH_METHOD + raw_frame(2, 1, struct.pack(">HHQH", 60, 1, 5, 0))),
    "header cut off": (501, PUBLISH_METHOD + raw_frame(2, 1, bytes.fromhex("003c0000000000000000"))),
    "property missing": (501, PUBLISH_METHOD + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0x1000))),
    "property cut off": (501, PUBLISH_METHOD + raw_frame(2, 1, struct.pack(">HHQHB", 60, 0, 5, 0x8000, 9))),
    "bytes behind the properties": (501, PUBLISH_METHOD + raw_frame(2, 1, struct.pack(">HHQHB", 60, 0, 5, 0, 9))),
    "flags go on": (501, PUBLISH_METHOD + raw_frame(2, 1, struct.pack(">HHQHH", 60, 0, 5, 1, 0))),
    "heartbeat on a channel": (505, raw_frame(8, 1, b"")),
    "heartbeat with a payload": (501, raw_frame(8, 0, b"x")),
    "immediate": (540, publish_bytes(1, immediate=True)),
    "too many under way": (
        506,
        b"".join(
            method_bytes(channel, Basic.Publish(0, "", "q"))
            + raw_frame(2, channel, struct.pack(">HHQH", 60, 0, 20_000, 0))
            for channel in (1, 2, 3)
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_reply_code(name: str) -> None:
    code, data = FAULTS[name]
    assert fault_of(data).error.reply_code == code


def test_what_came_before_a_fault_is_kept_and_nothing_after_it() -> None:
    reader = make_reader()
    items = reader.feed(publish_bytes(1) + raw_frame(4, 1, b"") + publish_bytes(1))
    assert [type(item) for item in items] == [Publishes, Fault]
    assert reader.feed(publish_bytes(1)) == []


@pytest.mark.parametrize("answer", [commands.Connection.CloseOk(), commands.Connection.Close(200, "", 0, 0)])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_behind_a_fault_the_end_of_the_connection_is_still_read(answer: base.Frame, step: int) -> None:
    reader = make_reader()
    head = PUBLISH_METHOD + raw_frame(1, 1, b"\x00\x3c\x00\xff")  # a content is missing, and there is no such method
    assert [type(item) for item in feed_all(reader, head)] == [Fault]
    data = publish_bytes(1) * (READ_LIMIT + 1) + method_bytes(0, answer)
    items = [item for at in range(0, len(data), step) for item in feed_all(reader, data[at : at + step])]
    reader.check_invariants()
    assert [type(item) for item in items] == [MethodReceived]
    assert isinstance(items[0], MethodReceived)
    assert items[0].method.name == answer.name


def test_where_no_frame_can_be_told_from_the_next_nothing_is_read_any_more() -> None:
    for broken in (raw_frame(1, 1, b"x")[:-1] + b"\x00", raw_frame(1, 1, b"x" * (FRAME_MAX + 1))):
        reader = make_reader()
        assert [type(item) for item in feed_all(reader, broken)] == [Fault]
        assert feed_all(reader, method_bytes(0, commands.Connection.CloseOk())) == []
        assert not has_more(reader)


def test_a_fault_names_the_method_to_blame() -> None:
    assert fault_of(raw_frame(1, 1, b"\x00\x3c\x00\xff")).method_index == 0x003C00FF


def test_too_large_a_message_is_announced_and_its_body_thrown_away() -> None:
    big = publish_bytes(1, payload=bytes(20_001), body_frame_bytes=FRAME_MAX - 8)
    seen = flatten(feed_cut(big + publish_bytes(1, payload=b"next"), 1000))[1]
    assert seen[0] == ("too large", 20_001)
    assert seen[1][4] == b"next"
    assert len(seen) == 2


def test_a_closing_channel_is_silent_until_close_ok() -> None:
    """The number is usable again at once, even in the same read."""
    reader = make_reader()
    reader.feed(PUBLISH_METHOD + HEADER_5)
    reader.ignore_channel(1)
    reader.check_invariants()
    data = (
        raw_frame(3, 1, b"hello")
        + publish_bytes(1)
        + method_bytes(1, Basic.Ack(1))
        + method_bytes(1, commands.Channel.CloseOk())
        + method_bytes(1, commands.Channel.Open())
        + publish_bytes(1, payload=b"new")
    )
    names = [
        item.method.name if isinstance(item, MethodReceived) else type(item).__name__ for item in reader.feed(data)
    ]
    assert names == ["Channel.CloseOk", "Channel.Open", "Publishes"]
    reader.check_invariants()


def test_the_negotiated_frame_max_takes_effect() -> None:
    reader = make_reader()
    reader.frame_max = 10_000
    (item,) = reader.feed(publish_bytes(1, payload=bytes(9000)))
    assert isinstance(item, Publishes)
