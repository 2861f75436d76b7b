"""Whom the mesh lets speak: cookies, addresses, members, and words that come late."""

from __future__ import annotations

import logging

import pytest

from cluster.transport.carrier import IncomingStream, StreamKind
from cluster.transport.mesh import Mesh
from cluster.wire.convert import Hello, HelloReply, decode_hello_reply, encode_hello
from node.ids import Incarnation, NodeName
from tests.support.memory_path import pass_time
from tests.support.mesh_listener import Listener
from tests.support.mesh_nodes import N1, N2, N3, TIMING, MeshNodes, now


async def test_a_wrong_cookie_is_refused_with_a_clear_line(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await pair.start(N1)
        await pair.start(N2, cookie="other")
        await pass_time(10)
    refusal = "wrong cookie: the nodes belong to different clusters"
    assert f"refused a Consensus stream from memory:n1: {refusal}" in caplog.text
    assert caplog.text.count(f"no link to n2: refused by the peer: {refusal}") == 1
    assert all(listener.happened == [] for listener in pair.listeners.values())


async def test_a_swapped_address_is_refused(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    """The port of n2 in n1's configuration belongs to another node."""
    listener, carrier = Listener(), pair.network.carrier(N2)
    address, known = pair.addresses[N2], pair.addresses
    wrong = Mesh(N3, Incarnation(1), address, known, listener, carrier, cookie="secret")
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
        pair.network.carrier("n0"),
        cookie="secret",
    )
    with caplog.at_level(logging.WARNING):
        await mesh.start()
        await pair.until(lambda: "no link to n1: refused by the peer: n0 is no member that n1 knows" in caplog.text)
    await mesh.stop()


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


async def greet(pair: MeshNodes, hello: Hello, kind: StreamKind = StreamKind.CONSENSUS) -> HelloReply:
    """Say hello to a node as somebody who came late might."""
    carrier = pair.carriers[hello.sender]
    connection = carrier.connect(pair.addresses[hello.receiver], silence_timeout_ms=TIMING.silence_timeout_ms)
    stream = connection.open_stream(kind)
    await stream.write(encode_hello(hello))
    answer = await stream.read()
    assert answer is not None, "a hello is answered"
    await connection.close()
    return decode_hello_reply(answer)


def hello_of(sender: NodeName, start: int, receiver: NodeName, receiver_start: int, link: int) -> Hello:
    return Hello(b"secret", sender, Incarnation(start), receiver, Incarnation(receiver_start), link)


@pytest.mark.parametrize(
    ("hello", "refused"),
    [
        (hello_of(N1, 4, N2, 0, 9), "link 9 is older than the present one"),
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
    reply = await greet(pair, hello)
    assert (reply.node, reply.refused) == (hello.receiver, refused)
    await pass_time(10)
    assert all(listener.count("down") == 1 for listener in pair.listeners.values())
    pair.check_invariants()


async def test_a_peer_that_accepts_and_never_answers_costs_a_handshake_timeout(
    pair: MeshNodes, caplog: pytest.LogCaptureFixture
) -> None:
    async def say_nothing(kind: StreamKind, stream: IncomingStream) -> None:
        await stream.read()
        await stream.read()

    mute = pair.network.carrier(N2)
    await mute.serve(pair.addresses[N2], say_nothing, silence_timeout_ms=TIMING.silence_timeout_ms)
    began = now()
    with caplog.at_level(logging.WARNING):
        await pair.start(N1)
        await pair.until(lambda: "no link to n2: no complete handshake in time" in caplog.text)
    assert now() - began == pytest.approx(TIMING.handshake_timeout_ms / 1000, abs=0.01)
    assert pair.listeners[N1].happened == []
