"""Whom the mesh lets speak: proofs, protocols, addresses, members, and words that come late."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.sessions.messages import SessionReply
from cluster.transport import mesh as mesh_module
from cluster.transport.carrier import IncomingStream, OutgoingStream, StreamKind
from cluster.transport.handshake import NONCE_BYTES, Side, answer, challenge, prove
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import HandshakeError, OpenGate, Spoken
from cluster.wire import mesh_pb2
from cluster.wire.convert import PART_BYTES
from cluster.wire.convert_handshake import (
    Challenge,
    Credentials,
    Hello,
    Verdict,
    decode_answer,
    decode_hello,
    decode_proof,
    encode_challenge,
    encode_hello,
    encode_proof,
)
from node.errors import DiskFullError
from node.ids import Incarnation, NodeName, QueueId
from tests.support.mesh_listener import Listener
from tests.support.mesh_nodes import N1, N2, N3, TIMING, MeshNodes, now

RANDOM_BYTES = Random(1).randbytes
OF_TWO_STARTS = (
    ", which start 5 of n1 has opened, and this is start 4: if both run, one of them has a copy of the other's data "
    "directory, and must be stopped"
)


async def test_a_wrong_cookie_is_refused_with_a_clear_line(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await pair.start(N1)
        await pair.start(N2, cookie="other")
        await asyncio.sleep(10)
    assert "n1 hung up instead of proving that it is one of us; is its cookie another?" in caplog.text
    assert caplog.text.count("no link to n2: wrong cookie: the nodes belong to different clusters") == 1
    assert all(listener.happened == [] for listener in pair.listeners.values())


async def test_a_swapped_address_is_refused(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    """The port of n2 in n1's configuration belongs to another node."""
    listener, carrier = Listener(), pair.carrier(N2)
    address, known = pair.addresses[N2], pair.addresses
    wrong = Mesh(N3, Incarnation(1), address, known, listener, carrier, random_bytes=RANDOM_BYTES, cookie="secret")
    with caplog.at_level(logging.WARNING):
        await wrong.start()
        await pair.start(N1)
        await pair.until(lambda: "this is n3, not n2" in caplog.text)
    await wrong.stop()


async def test_a_node_that_is_no_member_is_refused(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    await pair.start(N1)
    stranger = {"n0": "n0:1", "n1": pair.addresses[N1]}
    mesh = Mesh(
        NodeName("n0"),
        Incarnation(1),
        "n0:1",
        {NodeName(name): address for name, address in stranger.items()},
        Listener(),
        pair.carrier("n0"),
        random_bytes=RANDOM_BYTES,
        cookie="secret",
    )
    with caplog.at_level(logging.WARNING):
        await mesh.start()
        await pair.until(lambda: "no link to n1: refused by the peer: n0 is no member that n1 knows" in caplog.text)
    await mesh.stop()


async def test_of_many_strangers_the_oldest_is_sent_away_and_a_peer_comes_in(
    pair: MeshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say nothing, or something and no more."""
    monkeypatch.setattr(mesh_module, "STRANGERS_MAX", 4)
    await pair.start(N2)
    stranger = pair.carrier("n0")
    streams = [pair.dial(stranger, N2, StreamKind.CONSENSUS) for _ in range(12)]
    for stream in streams[::2]:
        await stream.write(encode_hello(hello_of(NodeName("n0"), 1, N2, 0, 50)))
    for stream in streams[:8]:
        while await stream.read() is not None:
            pair.meshes[N2].check_invariants()
    assert now() < TIMING.handshake_timeout_ms / 1000
    await pair.start(N1)
    await pair.until_all_up(1)


class UnreadStream:
    """A stranger's, who says nothing that can be read, and reads nothing; or says nothing at all."""

    caller = "somewhere"

    def __init__(self, *frames: bytes) -> None:
        self._frames = list(frames)

    async def read(self) -> bytes | None:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop()

    async def write(self, frame: bytes) -> None:
        await asyncio.Event().wait()


async def test_a_stranger_that_does_not_read_its_refusal_is_in_nobodys_way_and_goes(
    pair: MeshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_module, "STRANGERS_MAX", 1)
    mesh = await pair.start(N2)
    strangers = [UnreadStream(b"no hello"), UnreadStream()]
    serving = []
    for stranger in strangers:
        serving.append(asyncio.create_task(mesh._serve(StreamKind.CONSENSUS, stranger)))
        await asyncio.sleep(0.01)
    assert [task.done() for task in serving] == [False, False]
    done, _ = await asyncio.wait(serving, timeout=2 * TIMING.handshake_timeout_ms / 1000)
    assert [task.exception() for task in done] == [None, None]
    mesh.check_invariants()


async def test_a_hello_is_short(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a stranger says is kept until he has proved to be none, and looked at before."""
    await pair.start(N2)
    names = tuple(NodeName(f"n{number}") for number in range(20_000))
    hello = replace(hello_of(N1, 1, N2, 0, 50), credentials=Credentials(members=names))
    pair.carriers[N1] = pair.carrier(N1)
    said = await hear(await dial(pair, hello))
    assert isinstance(said, Verdict)
    assert "a hello has at most 65536 bytes" in said.refused


async def test_an_older_start_of_a_node_is_refused(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    """Only for the opener's streams can it matter: the other side's hello names the opener's start and link."""
    await pair.start(N1, incarnation=5)
    await pair.start(N2)
    await pair.until_all_up(1)
    await pair.stop(N1)
    with caplog.at_level(logging.WARNING):
        await pair.start(N1, incarnation=4)
        await pair.until(lambda: "older than the present one" in caplog.text)
    assert pair.listeners[N1].count("up") == 0


@pytest.mark.parametrize("later_start", [1, 2])
async def test_a_copy_of_a_node_that_has_gone_keeps_the_node_out_no_longer(pair: MeshNodes, later_start: int) -> None:
    """A second process of n1 takes the link, under a later start or a higher number, and ends."""
    await pair.start_all()
    heard = pair.listeners[N2]
    said = await greet(pair, hello_of(N1, later_start, N2, 0, 50))
    assert isinstance(said, Verdict)
    assert (said.refused, heard.count("down")) == ("", 1), "nobody can tell it from n1"
    ended_s = now()
    await pair.until(lambda: heard.count("up") == 2)
    assert now() - ended_s > TIMING.handshake_timeout_ms / 1000, "before, it may have been a straggler"
    assert heard.happened[-1] == ("up", N1, 1)


async def dial(pair: MeshNodes, hello: Hello, kind: StreamKind = StreamKind.CONSENSUS) -> OutgoingStream:
    """A stream on which somebody has said hello."""
    stream = pair.dial(pair.carriers[hello.sender], hello.receiver, kind)
    await stream.write(encode_hello(hello))
    return stream


async def hear(stream: OutgoingStream) -> Challenge | Verdict:
    said = await stream.read()
    assert said is not None, "whoever shakes hands is answered"
    return decode_answer(said)


async def greet(pair: MeshNodes, hello: Hello, secret: bytes = b"secret") -> Challenge | Verdict:
    """The last that a node says to somebody who says hello and knows a secret."""
    stream = await dial(pair, hello)
    said = await hear(stream)
    if isinstance(said, Verdict):
        return said
    await stream.write(encode_proof(answer(secret, StreamKind.CONSENSUS, encode_hello(hello), said)))
    return await hear(stream)


def hello_of(sender: NodeName, start: int, receiver: NodeName, receiver_start: int, link: int) -> Hello:
    return Hello(sender, Incarnation(start), receiver, Incarnation(receiver_start), link, 2, 2, bytes(NONCE_BYTES))


@pytest.mark.parametrize(
    ("hello", "refused"),
    [
        (hello_of(N1, 4, N2, 0, 9), f"link 9 is older than the present one{OF_TWO_STARTS}"),
        (hello_of(N1, 5, N2, 0, 1), "link 1 is older than the present one"),
        (hello_of(N1, 5, N2, 0, 2), "link 2 has a Consensus stream already"),
        (hello_of(N2, 1, N1, 5, 1), "link 1 is not the present one"),
        (hello_of(N2, 1, N1, 4, 2), "link 2 is not the present one"),
        (hello_of(N2, 1, N1, 5, 2), "link 2 has a Consensus stream already"),
    ],
    ids=["start before", "link before", "link now", "answer to link before", "answer to start before", "answer again"],
)
async def test_a_straggler_is_refused_and_the_present_link_lives_on(
    pair: MeshNodes, hello: Hello, refused: str
) -> None:
    """A hello of an earlier start or link of either node arrives after the links that followed it."""
    await pair.start(N1, incarnation=5)
    await pair.start(N2)
    await pair.until_all_up(1)
    pair.meshes[N1].reset_link(N2, "test")
    await pair.until_all_up(2)
    said = await greet(pair, hello)
    assert isinstance(said, Verdict)
    assert (said.node, said.refused) == (hello.receiver, refused)
    await asyncio.sleep(10)
    assert all(listener.count("down") == 1 for listener in pair.listeners.values())
    pair.check_invariants()


async def test_a_peer_that_accepts_and_never_answers_costs_a_handshake_timeout(
    pair: MeshNodes, caplog: pytest.LogCaptureFixture
) -> None:
    async def say_nothing(kind: StreamKind, stream: IncomingStream) -> None:
        await stream.read()
        await stream.read()

    mute = pair.carrier(N2)
    await mute.serve(pair.addresses[N2], say_nothing, silence_timeout_ms=TIMING.silence_timeout_ms)
    began = now()
    with caplog.at_level(logging.WARNING):
        await pair.start(N1)
        await pair.until(lambda: "no link to n2: no complete handshake in time" in caplog.text)
    assert now() - began == pytest.approx(TIMING.handshake_timeout_ms / 1000, abs=0.01)
    assert pair.listeners[N1].happened == []


# --- proofs and protocols ---

HELLO = hello_of(N1, 5, N2, 0, 9)


@pytest.mark.parametrize(
    "changed",
    [
        {"sender": "n3"},
        {"sender_incarnation": 6},
        {"receiver": "n1"},
        {"receiver_incarnation": 1},
        {"link": 10},
        {"oldest_protocol": 1},
        {"newest_protocol": 3},
        {"nonce": b"x" * NONCE_BYTES},
        {"credentials": Credentials(identity="another")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_proof_is_for_one_hello_only(changed: dict[str, Any]) -> None:
    said = (N2, Incarnation(7), 2, b"nonce")
    proof = prove(b"secret", Side.DIALER, StreamKind.QUEUES, encode_hello(HELLO), *said)
    other = encode_hello(replace(HELLO, **changed))
    assert proof != prove(b"secret", Side.DIALER, StreamKind.QUEUES, other, *said)


def test_a_proof_is_for_one_side_stream_secret_and_challenge_only() -> None:
    terms: dict[str, Any] = dict(
        secret=b"secret", side=Side.DIALER, kind=StreamKind.QUEUES, hello_frame=b"hello", acceptor=N2
    )
    terms |= dict(incarnation=Incarnation(7), protocol=2, nonce=b"nonce")
    changes: dict[str, Any] = dict(secret=b"Secret", side=Side.ACCEPTOR, kind=StreamKind.CONSENSUS, acceptor=N3)
    changes |= dict(incarnation=Incarnation(8), protocol=3, nonce=b"Nonce")
    proofs = {prove(**terms), *(prove(**terms | {name: value}) for name, value in changes.items())}
    assert len(proofs) == 1 + len(changes)


async def test_whoever_takes_the_place_of_a_dead_node_learns_nothing_that_opens_a_door(
    pair: MeshNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """An impostor at the address of n2 hears hellos, and sends each of n1's own words back to it."""
    heard: list[bytes] = []

    async def impostor(kind: StreamKind, stream: IncomingStream) -> None:
        hello_frame = await stream.read()
        assert hello_frame is not None
        heard.append(hello_frame)
        hello = decode_hello(hello_frame)
        forged = Challenge(N2, Incarnation(1), NEWEST_PROTOCOL, hello.nonce, hello.nonce)
        await stream.write(encode_challenge(forged))
        if (proof := await stream.read()) is not None:
            heard.append(proof)

    carrier = pair.carrier(N2)
    await carrier.serve(pair.addresses[N2], impostor, silence_timeout_ms=TIMING.silence_timeout_ms)
    with caplog.at_level(logging.WARNING):
        await pair.start(N1)
        await pair.until(lambda: "no link to n2: wrong cookie" in caplog.text)
    assert all(b"secret" not in frame for frame in heard)
    assert all(decode_proof(frame) == b"" for frame in heard), "n1 proves nothing to whoever proves nothing"
    assert pair.listeners[N1].happened == []


async def test_a_recorded_handshake_opens_nothing_a_second_time(pair: MeshNodes) -> None:
    await pair.start(N1, incarnation=5)
    await pair.start(N2)
    await pair.until_all_up(1)
    stream = await dial(pair, HELLO)
    said = await hear(stream)
    assert isinstance(said, Challenge)
    recorded = encode_proof(answer(b"secret", StreamKind.CONSENSUS, encode_hello(HELLO), said))
    again = await dial(pair, HELLO)
    await hear(again)
    await again.write(recorded)
    assert await hear(again) == Verdict(
        N2, Incarnation(1), "wrong cookie: the nodes belong to different clusters", NEWEST_PROTOCOL
    )
    assert all(listener.count("down") == 0 for listener in pair.listeners.values())


async def test_somebody_without_the_secret_changes_nothing(pair: MeshNodes) -> None:
    """A hello that would close the present link, and name a newer one, counts for nothing before its proof."""
    await pair.start(N1, incarnation=5)
    await pair.start(N2)
    await pair.until_all_up(1)
    stream = await dial(pair, replace(HELLO, sender_incarnation=Incarnation(2**40), link=2**40))
    assert isinstance(await hear(stream), Challenge)
    await stream.write(encode_proof(b"guess"))
    said = await hear(stream)
    assert isinstance(said, Verdict)
    assert said.refused.startswith("wrong cookie")
    pair.meshes[N1].reset_link(N2, "test")
    await pair.until_all_up(2)


class ForgetfulGate(OpenGate):
    """Of a node whose disk has no room, twice, for what follows from a handshake."""

    def __init__(self) -> None:
        self.attempts = 0

    def admit(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> None:
        self.attempts += 1
        if self.attempts <= 2:
            raise DiskFullError("write of /data/identity.tmp failed: No space left on device")


@pytest.mark.parametrize("full", [N1, N2], ids=["which dials", "which is dialed"])
async def test_a_node_that_cannot_write_down_what_follows_has_no_link_yet(
    pair: MeshNodes, caplog: pytest.LogCaptureFixture, full: NodeName
) -> None:
    gate = ForgetfulGate()
    with caplog.at_level(logging.INFO):
        for name in (N1, N2):
            await pair.start(name, gate=gate if name == full else None)
        await pair.until_all_up(1)
    assert gate.attempts > 2
    assert "No space left on device" in caplog.text


def test_a_verdict_without_a_challenge_is_not_believed() -> None:
    with pytest.raises(HandshakeError, match="without a proof that it is one of us"):
        answer(b"secret", StreamKind.QUEUES, encode_hello(HELLO), Verdict(N2, Incarnation(1)))


@pytest.mark.parametrize(
    ("oldest", "newest", "spoken"),
    [
        (2, 2, 2),
        (1, 5, 3),
        (2, 9, 3),
        (1, 1, "n1 speaks protocol 1, and the cluster needs 2 at least: start n1 with the release of the other nodes"),
        (4, 9, "n2 speaks protocol 3, and the cluster needs 4 at least: start n2 with the release of the other nodes"),
        (0, 0, "n1 speaks protocol 1, n2 protocols 2 to 3: these releases cannot be mixed"),
    ],
)
def test_two_nodes_speak_the_newest_protocol_that_both_know(oldest: int, newest: int, spoken: int | str) -> None:
    hello = replace(HELLO, oldest_protocol=oldest, newest_protocol=newest)
    terms = (b"secret", StreamKind.QUEUES, encode_hello(hello), N2, Incarnation(1), bytes(NONCE_BYTES), Spoken(2, 3))
    if isinstance(spoken, int):
        assert challenge(*terms)[1].protocol == spoken
        return
    with pytest.raises(HandshakeError, match=spoken):
        challenge(*terms)


def test_a_node_that_does_not_speak_the_protocol_of_the_cluster_is_refused() -> None:
    """It speaks one that this release knows, and does not know what the cluster uses."""
    frame = encode_hello(replace(HELLO, oldest_protocol=2, newest_protocol=2))
    with pytest.raises(HandshakeError, match="n1 speaks protocol 2, and the cluster needs 3 at least: start n1 with"):
        challenge(b"secret", StreamKind.QUEUES, frame, N2, Incarnation(1), bytes(NONCE_BYTES), Spoken(3, 3))


async def test_a_node_of_protocol_1_is_told_that_releases_cannot_be_mixed(pair: MeshNodes) -> None:
    """Its hello has the secret in field 1, and no protocols."""
    await pair.start(N1)
    await pair.start(N2)
    await pair.until_all_up(1)
    stream = pair.dial(pair.carriers[N1], N2, StreamKind.QUEUES)
    await stream.write(mesh_pb2.LinkFrame(hello=mesh_pb2.Hello.FromString(b"\x0a\x06secret")).SerializeToString())
    said = await hear(stream)
    assert isinstance(said, Verdict)
    assert "speaks protocol 1, n2 protocols 2 to 3: these releases cannot be mixed" in said.refused


def test_the_refusal_of_a_node_of_protocol_1_says_what_may_be_behind_it() -> None:
    refusal = Verdict(N2, Incarnation(1), "wrong cookie: the nodes belong to different clusters")
    with pytest.raises(HandshakeError, match=r"which may speak protocol 1: .* these releases cannot be mixed"):
        answer(b"secret", StreamKind.QUEUES, encode_hello(HELLO), refusal)


def test_what_a_stranger_says_reaches_the_log_short_and_in_one_line() -> None:
    hello = replace(HELLO, receiver=NodeName("n1\nERROR all is lost" + "x" * 10_000))
    with pytest.raises(HandshakeError) as caught:
        challenge(b"secret", StreamKind.QUEUES, encode_hello(hello), N2, Incarnation(1), bytes(NONCE_BYTES), Spoken())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


async def test_a_message_of_an_unknown_kind_is_answered_and_the_link_lives_on(
    pair: MeshNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """A node of a later release says something of its own, in field 200, twice."""
    await pair.start(N1)
    await pair.start(N2)
    await pair.until_all_up(1)
    link = pair.meshes[N1]._peers[N2].link
    assert link is not None
    for _ in range(2):
        link.send(StreamKind.QUEUES, [b"\x1a\x04\xc2\x0c\x01\x05"])
        link.send(StreamKind.CONSENSUS, [b"\x12\x04\xc2\x0c\x01\x05"])
    await pair.until(lambda: caplog.text.count("n2 did not understand") == 2)
    await asyncio.sleep(1)
    assert caplog.text.count("of n1, fields 200, are of no kind known here") == 2, "once for each stream"
    assert "n2 did not understand Queues messages of ours, fields 200" in caplog.text
    assert all(listener.count("down") == 0 for listener in pair.listeners.values())


async def test_a_frame_larger_than_a_part_crosses_in_parts(pair: MeshNodes) -> None:
    await pair.start(N1)
    await pair.start(N2)
    await pair.until_all_up(1)
    sizes: list[int] = []
    link = pair.meshes[N1]._peers[N2].link
    assert link is not None
    stream = link._outgoing[StreamKind.QUEUES]
    write = stream.write

    async def measured(frame: bytes) -> None:
        sizes.append(len(frame))
        await write(frame)

    stream.write = measured  # type: ignore[method-assign]
    reply = SessionReply(QueueId(1), 2, 3, envelope=bytes(5_000_000))
    pair.meshes[N1].send_queue_frames(N2, [reply])
    await pair.until(lambda: reply in pair.listeners[N2].queues)
    assert len(sizes) == 5
    assert max(sizes) <= PART_BYTES + 5
