"""Any split of any stream gives the same items; no bytes make the reader raise."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from node.amqp import codec
from node.amqp.codec import FrameReader
from node.amqp.frames import Fault, FrameItem
from tests.support.amounts import few_examples
from tests.support.amqp_frames import flatten, method_bytes, publish_bytes

FRAME_MAX = 4096

publishes = st.builds(
    publish_bytes,
    st.integers(1, 3),
    st.sampled_from(["", "amq.topic"]),
    st.sampled_from(["q", "a.b", "long " * 40]),
    st.binary(max_size=60),
    mandatory=st.booleans(),
    properties=st.builds(
        commands.Basic.Properties,
        content_type=st.sampled_from(["", "text/plain"]),
        headers=st.sampled_from([{}, {"k": "v"}]),
        delivery_mode=st.sampled_from([None, 1, 2]),
        message_id=st.text(max_size=10),
    ),
    body_frame_bytes=st.integers(5, 60),
)
settlements = st.builds(
    method_bytes,
    st.integers(1, 3),
    st.one_of(
        st.builds(commands.Basic.Ack, st.integers(0, 2**63 - 1), st.booleans()),
        st.builds(commands.Basic.Nack, st.integers(0, 2**63 - 1), st.booleans(), st.booleans()),
        st.builds(commands.Basic.Reject, st.integers(0, 2**63 - 1), st.booleans()),
        st.builds(commands.Basic.Qos, st.just(0), st.integers(0, 99), st.booleans()),
    ),
)
streams = st.lists(st.one_of(publishes, settlements), min_size=1, max_size=12).map(b"".join)


def feed_pieces(pieces: list[bytes]) -> list[FrameItem]:
    reader = FrameReader(FRAME_MAX)
    items = []
    for piece in pieces:
        items += reader.feed(piece)
        reader.check_invariants()
        while reader.has_more:
            items += reader.feed(b"")
            reader.check_invariants()
    return items


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@few_examples(30, 300, streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_split_gives_the_same_items(data: bytes, places: list[int]) -> None:
    whole = flatten(feed_pieces([data]))
    assert whole
    assert not any(line[0] == "fault" for lines in whole.values() for line in lines)
    assert flatten(feed_pieces(cut(data, places))) == whole


@few_examples(30, 300, streams, st.lists(st.integers(0, 10_000), max_size=20), st.integers(1, 5))
def test_a_limit_of_frames_gives_the_same_items(data: bytes, places: list[int], limit: int) -> None:
    whole = flatten(feed_pieces([data]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "READ_LIMIT", limit)
        assert flatten(feed_pieces(cut(data, places))) == whole


@few_examples(
    30, 300, streams, st.integers(0, 10_000), st.integers(0, 255), st.lists(st.integers(0, 10_000), max_size=5)
)
def test_a_changed_byte_never_raises_and_faults_alike(data: bytes, place: int, octet: int, places: list[int]) -> None:
    place %= len(data)
    damaged = data[:place] + bytes((octet,)) + data[place + 1 :]
    whole = feed_pieces([damaged])
    assert flatten(feed_pieces(cut(damaged, places))) == flatten(whole)
    assert all(not isinstance(item, Fault) for item in whole[:-1])


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(data: bytes) -> None:
    feed_pieces([data])


@given(st.integers(0, 9), st.integers(0, 3), st.binary(max_size=60))
def test_random_payloads_never_raise(kind: int, channel: int, payload: bytes) -> None:
    frame = bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"
    feed_pieces([frame])


@given(st.sampled_from([0x0032000A, 0x003C0014, 0x000A000B, 0x0028001E]), st.binary(max_size=60))
def test_random_arguments_never_raise(index: int, arguments: bytes) -> None:
    payload = index.to_bytes(4, "big") + arguments
    channel = b"\x00\x00" if index >> 16 == 10 else b"\x00\x01"
    feed_pieces([b"\x01" + channel + len(payload).to_bytes(4, "big") + payload + b"\xce"])
