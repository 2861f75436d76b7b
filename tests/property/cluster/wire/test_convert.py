"""Whatever a machine of the cluster says arrives as it was said, alone or together with anything else in a frame."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.membership import messages as membership
from cluster.mirroring import messages as mirroring
from cluster.raft import messages as raft
from cluster.sessions import messages as sessions
from cluster.wire import convert, mesh_pb2
from cluster.wire import convert_handshake as handshake
from cluster.wire.errors import WireError
from node.alarms.registry import Alarm
from node.ids import Incarnation, NodeName
from node.queues.events import ConsumerSpec
from node.queues.replica import Holding, SegmentDigest, SeqRange
from tests.support.amounts import few_examples

SENDER, RECEIVER = NodeName("n1"), NodeName("n2")
number = st.integers(0, 2**64 - 1)
blob = st.binary(max_size=300)
text = st.text(max_size=20)


def tuples_of(element: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(element, max_size=4).map(tuple)


def lists_of(element: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(element, max_size=4)


entries = st.builds(raft.Entry, number, number, st.sampled_from(raft.EntryKind), blob)
snapshots = st.builds(raft.Snapshot, number, number, tuples_of(text), blob)
_ends = (st.just(SENDER), st.just(RECEIVER))
raft_messages = st.one_of(
    st.builds(raft.PreVoteRequest, *_ends, number, number, number),
    st.builds(raft.PreVoteResponse, *_ends, number, st.booleans()),
    st.builds(raft.VoteRequest, *_ends, number, number, number, st.booleans()),
    st.builds(raft.VoteResponse, *_ends, number, st.booleans()),
    st.builds(raft.AppendRequest, *_ends, number, number, number, tuples_of(entries), number),
    st.builds(raft.AppendResponse, *_ends, number, st.booleans(), number, number, number),
    st.builds(raft.Heartbeat, *_ends, *[number] * 5),
    st.builds(raft.HeartbeatResponse, *_ends, *[number] * 3),
    st.builds(raft.InstallSnapshot, *_ends, number, snapshots),
    st.builds(raft.TimeoutNow, *_ends, number),
    st.builds(raft.ForwardedProposal, *_ends, tuples_of(blob), st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.builds(raft.AppliedUpTo, *_ends, number, number, st.none() | number),
)

origins = st.dictionaries(st.binary(min_size=8, max_size=8), number, max_size=4)
digests = st.builds(SegmentDigest, number, number, number)
holdings = st.builds(Holding, number, st.binary(min_size=16, max_size=16))
mirror_ops = st.one_of(
    st.builds(mirroring.PublishOp, number, number, blob, origins),
    st.builds(mirroring.SettleOp, tuples_of(st.builds(SeqRange, number, number))),
    st.builds(mirroring.SyncBatchOp, tuples_of(number), blob),
    st.builds(mirroring.HorizonOp, number),
    st.builds(mirroring.OriginsOp, origins),
)
mirror_messages = st.one_of(
    st.builds(
        mirroring.Attach,
        *(number, number, number, number, number, number, origins, tuples_of(digests), number),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        mirroring.AttachReply,
        number,
        number,
        number,
        tuples_of(st.builds(mirroring.SegmentHoldings, number, tuples_of(holdings))),
    ),
    st.builds(mirroring.AttachRefused, number, number, number),
    st.builds(mirroring.Ops, number, number, number, number, tuples_of(mirror_ops), st.booleans()),
    st.builds(mirroring.OpsAck, number, number, number, number, number, st.booleans(), st.booleans()),
)

arguments = st.dictionaries(
    text, st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), text, st.none()), max_size=3
)
consumers = st.builds(
    ConsumerSpec,
    text,
    st.booleans(),
    st.booleans(),
    number,
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    arguments,
)
verbs = st.sampled_from(["consume", "cancel", "get", "purge", "counts", "delete_if"])
flag = st.booleans()
session_messages = st.one_of(
    st.builds(sessions.SessionOpen, number, number, number, number),
    st.builds(sessions.SessionCredit, number, number, number, number),
    st.builds(sessions.SessionPublish, number, number, number, lists_of(number), blob),
    st.builds(
        sessions.SessionSettle,
        number,
        number,
        number,
        st.sampled_from(["ack", "requeue", "discard"]),
        lists_of(number),
    ),
    st.builds(sessions.SessionGrant, number, number, number, text, number),
    st.builds(sessions.SessionChannelClosed, number, number, number),
    st.builds(
        sessions.SessionCall, number, number, number, verbs, number, st.none() | consumers, text, flag, flag, flag
    ),
    st.builds(sessions.SessionOpened, number, number, text),
    lists_of(st.tuples(number, st.booleans())).flatmap(
        lambda pairs: st.builds(
            sessions.SessionDeliver,
            number,
            number,
            number,
            text,
            st.just([seq_id for seq_id, _ in pairs]),
            st.just([redelivered for _, redelivered in pairs]),
            blob,
        )
    ),
    st.builds(sessions.SessionConfirm, number, number, number, lists_of(number), flag),
    st.builds(sessions.SessionConsumerCancelled, number, number, number, text),
    st.builds(
        sessions.SessionReply, number, number, number, st.integers(0, 999), text, number, number, number, flag, blob
    ),
)


node_alarms = st.builds(membership.NodeAlarms, tuples_of(st.sampled_from(Alarm)))


def test_an_alarm_of_an_unknown_resource_is_not_understood() -> None:
    message = mesh_pb2.QueueMessage(node_alarms=mesh_pb2.NodeAlarms(resources=["patience"]))
    with pytest.raises(WireError, match="alarms of unknown resources: patience"):
        convert.decode_queue_frame(mesh_pb2.LinkFrame(queues=[message]).SerializeToString(), [])


@few_examples(25, 250, st.lists(raft_messages, max_size=5))
def test_consensus_frames_round_trip(messages: list[raft.Message]) -> None:
    frame = b"".join(map(convert.encode_consensus, messages))
    assert convert.decode_consensus(frame, SENDER, RECEIVER, []) == messages


@given(st.lists(mirror_messages | session_messages | node_alarms, max_size=5))
def test_queue_frames_round_trip(messages: list[convert.QueueFrameMessage]) -> None:
    frame = b"".join(map(convert.QueueEncoder().encode, messages))
    assert convert.decode_queue_frame(frame, []) == messages


@given(tuples_of(mirror_ops), st.lists(st.tuples(number, number, number, number), min_size=2, max_size=3))
def test_ops_shared_by_mirrors_arrive_at_each_with_its_own_numbers(
    ops: tuple[mirroring.MirrorOp, ...], mirrors: list[tuple[Any, Any, int, int]]
) -> None:
    encoder = convert.QueueEncoder()
    sent = [mirroring.Ops(queue_id, epoch, attach_id, index, ops) for queue_id, epoch, attach_id, index in mirrors]
    for message in sent:
        assert convert.decode_queue_frame(encoder.encode(message), []) == [message]


@given(blob, text, number, number, number)
def test_the_words_of_a_handshake_round_trip(noise: bytes, name: str, incarnation: int, other: int, link: int) -> None:
    here, start = NodeName(name), Incarnation(incarnation)
    hello = handshake.Hello(here, start, NodeName(name + "x"), Incarnation(other), link, 2, 3, noise)
    assert handshake.decode_hello(handshake.encode_hello(hello)) == hello
    for said in (handshake.Verdict(here, start, name, 7), handshake.Challenge(here, start, 2, b"n" + noise, noise)):
        encode: Any = handshake.encode_verdict if isinstance(said, handshake.Verdict) else handshake.encode_challenge
        assert handshake.decode_answer(encode(said)) == said
    assert handshake.decode_proof(handshake.encode_proof(noise)) == noise


@given(blob)
def test_damage_is_a_wire_error_or_some_message_but_never_anything_else(damage: bytes) -> None:
    for decode in (
        handshake.decode_hello,
        handshake.decode_answer,
        handshake.decode_proof,
        convert.Assembler(1000).add,
        lambda frame: convert.decode_queue_frame(frame, []),
        lambda frame: convert.decode_consensus(frame, SENDER, RECEIVER, []),
    ):
        with suppress(WireError):
            decode(damage)


@given(st.lists(st.integers(0, 5 * convert.PART_BYTES), min_size=1, max_size=3), st.integers(0, 255))
@settings(max_examples=10)
def test_a_frame_that_crossed_in_parts_is_whole_again(sizes: list[int], byte: int) -> None:
    assembler = convert.Assembler(largest_bytes=5 * convert.PART_BYTES)
    for size in sizes:
        frame = b"\x1a" + bytes((byte,)) * size
        parts = convert.parts_of(frame) if len(frame) > convert.PART_BYTES else [frame]
        assert max(map(len, parts)) <= convert.PART_BYTES + 5
        came = [assembler.add(part) for part in parts]
        assert came == [*[None] * (len(parts) - 1), frame] if size < 5 * convert.PART_BYTES else True


def test_parts_are_bounded_and_nothing_comes_between_them() -> None:
    part = convert.parts_of(bytes(2 * convert.PART_BYTES))[0]
    assembler = convert.Assembler(largest_bytes=2 * convert.PART_BYTES)
    assert [assembler.add(part), assembler.add(part)] == [None, None]
    with pytest.raises(WireError, match="in all was expected"):
        assembler.add(part)
    assembler = convert.Assembler(largest_bytes=2 * convert.PART_BYTES)
    assembler.add(part)
    with pytest.raises(WireError, match="before the last part of another"):
        assembler.add(b"\x1a\x00")
    with pytest.raises(WireError):
        convert.Assembler(100).add(b"\x2a\x00")


def test_messages_of_unknown_kinds_are_passed_over_and_reported() -> None:
    """Field 200 of either stream's message holds what this release has never heard of; the others are read."""
    unknown = b"\xc2\x0c\x01\x05"
    alarms = convert.QueueEncoder().encode(membership.NodeAlarms(()))
    strange: list[Any] = []
    assert convert.decode_queue_frame(b"\x1a\x04" + unknown + alarms, strange) == [membership.NodeAlarms(())]
    assert strange == [200]
    complaint = convert.NotUnderstood("Queues", (200, 7))
    assert convert.decode_queue_frame(convert.encode_not_understood(complaint), strange) == []
    assert strange == [200, complaint]
    now = raft.TimeoutNow(SENDER, RECEIVER, 1)
    frame = b"\x12\x04" + unknown + convert.encode_consensus(now)
    assert convert.decode_consensus(frame, SENDER, RECEIVER, strange) == [now]
    assert strange == [200, complaint, 200]


@pytest.mark.parametrize(
    "frame",
    [
        b"\x1a\x00",  # a message without content
        b"\x1a\x06\x22\x04\x2a\x02\x0a\x00",  # ops with an op without content
        b"\x1a\x0b\x22\x09\x2a\x07\x0a\x05\x12\x03\x0a\x01\x05",  # a settle op with half a range
        b"\x1a\x06\x8a\x01\x03\x2a\x01\x07",  # a delivery with a seq id and no redelivered flag
        b"\x1a\x02",  # cut off
    ],
)
def test_queue_frames_that_make_no_sense_are_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        convert.decode_queue_frame(frame, [])


def test_a_consensus_message_without_content_is_refused() -> None:
    with pytest.raises(WireError):
        convert.decode_consensus(b"\x12\x00", SENDER, RECEIVER, [])
