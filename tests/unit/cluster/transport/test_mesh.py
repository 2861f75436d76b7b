"""The mesh over a network in memory: order, breaks, restarts, refusals, silence, limits, shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster.raft.messages import Heartbeat, Message
from cluster.transport.carrier import IncomingStream, StreamKind
from cluster.transport.mesh import Mesh
from cluster.transport.outbox import OutboxLimits
from cluster.wire.convert import Hello, HelloReply, decode_hello_reply, encode_hello
from node.ids import Incarnation, NodeName
from tests.support.memory_path import pass_time
from tests.support.mesh_listener import Listener, ops
from tests.support.mesh_nodes import TIMING, MeshNodes

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
SILENCE_S = TIMING.silence_timeout_ms / 1000


@pytest.fixture
async def pair() -> AsyncIterator[MeshNodes]:
    """Two nodes, not started."""
    pair = MeshNodes(N1, N2)
    yield pair
    await pair.stop_all()


def now() -> float:
    return asyncio.get_running_loop().time()


# --- a link that works ---


async def test_a_link_carries_both_streams_in_order_in_both_directions(pair: MeshNodes) -> None:
    pair.set_delay(0, 0.005)
    await pair.start_all()
    assert pair.meshes[N1].up_peers == [N2]
    assert pair.meshes[N2].up_peers == [N1]
    expected = [ops(index) for index in range(400)]
    beats: list[Message] = [Heartbeat(N1, N2, 1, commit, 1) for commit in range(20)]
    answers: list[Message] = [Heartbeat(N2, N1, 1, commit, 1) for commit in range(20)]
    for start in range(0, 400, 20):
        pair.meshes[N1].send_queue_frames(N2, expected[start : start + 20])
        pair.meshes[N2].send_queue_frames(N1, expected[start : start + 20])
        pair.meshes[N1].send_consensus(N2, [beats[start // 20]])
        pair.meshes[N2].send_consensus(N1, [answers[start // 20]])
        if start % 100 == 0:
            await asyncio.sleep(0)
    heard1, heard2 = pair.listeners[N1], pair.listeners[N2]
    await pair.until(lambda: len(heard1.queues) == len(heard2.queues) == 400)
    await pair.until(lambda: len(heard1.consensus) == len(heard2.consensus) == 20)
    assert heard1.queues == heard2.queues == expected
    assert (heard2.consensus, heard1.consensus) == (beats, answers)
    assert heard2.frames <= 8, "what is sent in one turn travels together"


async def test_both_sides_begin_at_once_and_open_one_link(pair: MeshNodes, caplog: pytest.LogCaptureFixture) -> None:
    pair.set_delay(0.01, 0.01)
    await asyncio.gather(pair.start(N1), pair.start(N2))
    await pair.until_all_up(1)
    await pass_time(10)
    for listener, other in ((pair.listeners[N1], N2), (pair.listeners[N2], N1)):
        assert listener.happened == [("up", other, 1)]
    assert caplog.messages == [], "nobody tried in vain"


@pytest.mark.parametrize("seed", range(5))
async def test_both_sides_lose_the_link_at_once_and_open_one(seed: int) -> None:
    pair = MeshNodes(N1, N2, seed=seed)
    pair.set_delay(0, 0.02)
    await pair.start_all()
    pair.meshes[N1].reset_link(N2, "test")
    pair.meshes[N2].reset_link(N1, "test")
    await pair.until_all_up(2)
    await pass_time(10)
    for listener in pair.listeners.values():
        assert [what for what, _, _ in listener.happened] == ["up", "down", "up"]
    await pair.stop_all()


async def test_an_idle_link_shows_that_both_live(pair: MeshNodes) -> None:
    await pair.start_all()
    await pass_time(10 * TIMING.heartbeat_interval_ms / 1000 + 0.1)
    assert [listener.beats for listener in pair.listeners.values()] == [10, 10]
    assert all(listener.frames == 0 and not listener.consensus for listener in pair.listeners.values())


async def test_three_nodes_have_three_links() -> None:
    nodes = MeshNodes(N1, N2, N3)
    nodes.set_delay(0, 0.01)
    for name in nodes.addresses:
        await nodes.start(name)
    await nodes.until_all_up(2)
    assert [set(mesh.up_peers) for mesh in nodes.meshes.values()] == [{N2, N3}, {N1, N3}, {N1, N2}]
    await nodes.stop_all()


async def test_sending_without_a_link_is_dropped(pair: MeshNodes) -> None:
    await pair.start(N1)
    pair.meshes[N1].send_queue_frames(N2, [ops(1)])
    pair.meshes[N1].send_consensus(N2, [Heartbeat(N1, N2, 1, 1, 1)])
    assert not pair.meshes[N1].is_congested(N2)
    await pair.start(N2)
    await pair.until_all_up(1)
    pair.meshes[N1].send_queue_frames(N2, [ops(2)])
    await pair.until(lambda: bool(pair.listeners[N2].queues))
    assert pair.listeners[N2].queues == [ops(2)]
    assert pair.listeners[N2].consensus == []


# --- breaks ---


async def break_by_first(pair: MeshNodes) -> None:
    pair.meshes[N1].reset_link(N2, "test")


async def break_by_second(pair: MeshNodes) -> None:
    pair.meshes[N2].reset_link(N1, "test")


async def break_by_network(pair: MeshNodes) -> None:
    pair.network.reset(N1, N2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("break_link", [break_by_first, break_by_second, break_by_network])
async def test_a_break_loses_a_suffix_and_the_new_link_mixes_nothing(
    seed: int, break_link: Callable[[MeshNodes], Awaitable[None]]
) -> None:
    pair = MeshNodes(N1, N2, seed=seed)
    pair.set_delay(0, 0.01)
    await pair.start_all()
    heard = pair.listeners[N2]
    for cut in range(1, 4):
        sent = [ops(cut * 1000 + index, 5000) for index in range(100)]
        for start in range(0, 100, 10):
            pair.meshes[N1].send_queue_frames(N2, sent[start : start + 10])
            await asyncio.sleep(0)
        await pass_time(0.002 * seed)
        await break_link(pair)
        await pair.until_all_up(cut + 1)
        assert heard.queues == sent[: len(heard.queues)], "a suffix is lost, nothing in the middle"
        assert len(heard.queues) < 100
        heard.queues.clear()
        pair.meshes[N1].send_queue_frames(N2, [ops(cut)])
        await pair.until(lambda: bool(heard.queues))
        assert heard.queues == [ops(cut)]
        heard.queues.clear()
    for listener in pair.listeners.values():
        assert [what for what, _, _ in listener.happened] == ["up", *["down", "up"] * 3]
    await pair.stop_all()


@pytest.mark.parametrize(("survivor", "victim"), [(N1, N2), (N2, N1)])
async def test_a_dead_process_is_reported_once_and_its_successor_is_linked(
    pair: MeshNodes, survivor: NodeName, victim: NodeName
) -> None:
    await pair.start_all()
    listener = pair.listeners[survivor]
    await pair.kill(victim)
    await pass_time(10)
    assert [what for what, _, _ in listener.happened] == ["up", "down", "refused"]
    await pair.start(victim, incarnation=2)
    await pair.until(lambda: listener.count("up") == 2)
    assert listener.happened[-1] == ("up", victim, 2)
    pair.meshes[survivor].send_queue_frames(victim, [ops(1)])
    await pair.until(lambda: pair.listeners[victim].queues == [ops(1)])


async def test_a_peer_that_never_was_is_refused_once(pair: MeshNodes) -> None:
    await pair.start(N1)
    await pass_time(10)
    assert pair.listeners[N1].happened == [("refused", N2, None)]


async def test_a_refusal_is_reported_within_one_backoff(pair: MeshNodes) -> None:
    await pair.start_all()
    began = now()
    await pair.kill(N2)
    await pair.until(lambda: pair.listeners[N1].count("refused") == 1)
    assert now() - began <= TIMING.backoff_min_ms / 1000


async def test_a_refusing_path_is_a_refusal_until_it_opens(pair: MeshNodes) -> None:
    """A firewall between two nodes that both live looks like a dead process to the side that it refuses."""
    pair.network.path(N1, N2).is_refusing = True
    await pair.start(N1)
    await pair.start(N2)
    await pass_time(5)
    assert pair.listeners[N1].happened == [("refused", N2, None)]
    assert pair.listeners[N2].happened == []
    pair.network.path(N1, N2).is_refusing = False
    await pair.until_all_up(1)


# --- silence ---


@pytest.mark.parametrize("directions", [[(N1, N2), (N2, N1)], [(N1, N2)], [(N2, N1)]])
@pytest.mark.parametrize("seed", range(3))
async def test_a_cut_link_is_down_after_the_silence_and_nobody_is_called_dead(
    directions: list[tuple[NodeName, NodeName]], seed: int
) -> None:
    """Also if only one direction is cut: a link is both or nothing."""
    pair = MeshNodes(N1, N2, seed=seed)
    pair.set_delay(0.001, 0.002)
    await pair.start_all()
    began = now()
    for source, target in directions:
        pair.network.path(source, target).cut()
    await pair.until(lambda: all(listener.count("down") == 1 for listener in pair.listeners.values()))
    assert SILENCE_S / 2 < now() - began <= SILENCE_S + 0.1
    await pass_time(30)
    assert all(listener.count("refused") == 0 for listener in pair.listeners.values())
    assert all(listener.count("up") == 1 for listener in pair.listeners.values())
    pair.network.heal(N1, N2)
    await pair.until_all_up(2)
    await pair.stop_all()


async def test_a_short_cut_delays_and_loses_nothing(pair: MeshNodes) -> None:
    await pair.start_all()
    pair.network.cut(N1, N2)
    pair.meshes[N1].send_queue_frames(N2, [ops(1)])
    await pass_time(SILENCE_S / 2)
    assert pair.listeners[N2].queues == []
    pair.network.heal(N1, N2)
    await pair.until(lambda: pair.listeners[N2].queues == [ops(1)])
    await pass_time(2 * SILENCE_S)
    assert all(listener.happened[1:] == [] for listener in pair.listeners.values())


@pytest.mark.parametrize(("survivor", "victim"), [(N1, N2), (N2, N1)])
async def test_a_lost_machine_is_silent_and_its_next_start_is_linked(
    pair: MeshNodes, survivor: NodeName, victim: NodeName
) -> None:
    await pair.start_all()
    listener = pair.listeners[survivor]
    await pair.lose(victim)
    await pass_time(SILENCE_S + 1)
    assert [what for what, _, _ in listener.happened] == ["up", "down"]
    await pair.start(victim, incarnation=2)
    await pair.until(lambda: listener.count("up") == 2)
    assert listener.happened[-1] == ("up", victim, 2)
    assert listener.count("refused") == 0


@pytest.mark.parametrize(("survivor", "victim"), [(N1, N2), (N2, N1)])
async def test_a_machine_that_is_back_before_the_silence_ends_resets_what_it_does_not_know(
    pair: MeshNodes, survivor: NodeName, victim: NodeName
) -> None:
    """The survivor's side of the old link is half open: its next sign of life is answered with a reset."""
    await pair.start_all()
    await pair.lose(victim)
    began = now()
    await pair.start(victim, incarnation=2)
    await pair.until(lambda: pair.listeners[survivor].count("up") == 2)
    assert now() - began < 1
    assert [what for what, _, _ in pair.listeners[survivor].happened] == ["up", "down", "up"]


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


# --- who may speak ---


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


# --- limits ---


async def test_a_peer_that_reads_late_congests_and_then_no_longer() -> None:
    pair = MeshNodes(N1, N2)
    await pair.start(N1, limits=OutboxLimits(congested_bytes=4_000_000, overflow_bytes=12_000_000))
    await pair.start(N2)
    await pair.until_all_up(1)
    mesh, listener = pair.meshes[N1], pair.listeners[N1]
    pair.network.cut(N1, N2)
    mesh.send_queue_frames(N2, [ops(index, 100_000) for index in range(60)])
    assert mesh.is_congested(N2)
    await pass_time(1)
    assert mesh.is_congested(N2), "the carrier takes no more than its window"
    assert listener.count("uncongested") == 0
    pair.network.heal(N1, N2)
    await pair.until(lambda: len(pair.listeners[N2].queues) == 60)
    assert not mesh.is_congested(N2)
    assert [what for what, _, _ in listener.happened] == ["up", "uncongested"]
    await pair.stop_all()


async def test_a_peer_for_whom_too_much_waits_loses_the_link(pair: MeshNodes) -> None:
    await pair.start(N1, limits=OutboxLimits(congested_bytes=4_000_000, overflow_bytes=12_000_000))
    await pair.start(N2)
    await pair.until_all_up(1)
    pair.meshes[N1].send_queue_frames(N2, [ops(index, 100_000) for index in range(130)])
    await pair.until(lambda: pair.listeners[N1].count("down") == 1)
    reason = next(str(reason) for what, _, reason in pair.listeners[N1].happened if what == "down")
    assert "does not read" in reason
    await pair.until_all_up(2)


async def test_a_frame_larger_than_the_window_passes(pair: MeshNodes) -> None:
    await pair.start_all()
    large = ops(1, 2_000_000)
    pair.meshes[N2].send_queue_frames(N1, [large])
    await pair.until(lambda: pair.listeners[N1].queues == [large])


# --- members, failures, shutdown ---


async def test_peers_come_and_go(pair: MeshNodes) -> None:
    await pair.start_all()
    pair.meshes[N1].remove_peer(N2)
    await pair.until(lambda: pair.listeners[N2].count("down") == 1)
    assert pair.listeners[N1].happened[-1][0] == "down"
    assert pair.meshes[N1].up_peers == []
    pair.meshes[N1].add_peer(N2, pair.addresses[N2])
    await pair.until(lambda: pair.meshes[N1].up_peers == [N2] and pair.meshes[N2].up_peers == [N1])


async def test_a_peer_that_moves_is_found_at_its_new_address(pair: MeshNodes) -> None:
    await pair.start_all()
    await pair.stop(N2)
    pair.addresses[N2] = "n2:2"
    await pair.start(N2, incarnation=2)
    await pass_time(5)
    assert pair.meshes[N1].up_peers == []
    pair.meshes[N1].add_peer(N2, "n2:2")
    await pair.until(lambda: pair.meshes[N1].up_peers == [N2] and pair.meshes[N2].up_peers == [N1])


async def test_a_handler_that_fails_is_heard_and_costs_the_link(pair: MeshNodes) -> None:
    await pair.start_all()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    bug = AssertionError("bug")

    def fail(peer: NodeName, messages: object) -> None:
        raise bug

    pair.listeners[N2].on_queue_frames = fail  # type: ignore[method-assign]
    pair.meshes[N1].send_queue_frames(N2, [ops(1)])
    await pair.until(lambda: pair.listeners[N1].count("down") == 1)
    assert failures == [bug]


async def test_what_cannot_be_read_costs_the_link_and_no_more(pair: MeshNodes) -> None:
    await pair.start_all()
    link = pair.meshes[N1]._peers[N2].link
    assert link is not None
    link.send(StreamKind.QUEUES, [b"\xff\xff\xff"])
    await pair.until_all_up(2)
    assert "unreadable" in str(pair.listeners[N2].happened[1][2])


@pytest.mark.parametrize("moment_ms", [0, 1, 2, 3, 4, 5, 7, 9, 12, 15, 20])
async def test_stopping_in_the_middle_of_a_handshake_ends(pair: MeshNodes, moment_ms: int) -> None:
    pair.set_delay(0.001, 0.001)
    await pair.start(N1)
    await pair.start(N2)
    await pass_time(moment_ms / 1000)
    async with asyncio.timeout(1):
        await pair.stop(N1)
        await pair.stop(N2)


@pytest.mark.parametrize("kind", list(StreamKind))
async def test_stopping_ends_a_stream_that_has_said_nothing_yet(pair: MeshNodes, kind: StreamKind) -> None:
    """It belongs to no link, so closing the links does not end it."""
    await pair.start(N1)
    silent = pair.network.carrier("n0").connect(pair.addresses[N1], silence_timeout_ms=TIMING.silence_timeout_ms)
    silent.open_stream(kind)
    await pass_time(0.1)
    async with asyncio.timeout(1):
        await pair.stop(N1)


async def test_no_callback_comes_after_stopping_began(pair: MeshNodes) -> None:
    pair.set_delay(0.001, 0.01)
    await pair.start_all()
    listener = pair.listeners[N1]
    pair.meshes[N2].send_queue_frames(N1, [ops(index, 1000) for index in range(100)])
    before = len(listener.happened)
    stopping = asyncio.ensure_future(pair.stop(N1))
    await asyncio.sleep(0)
    heard = len(listener.queues)
    await stopping
    await pass_time(1)
    assert (len(listener.happened), len(listener.queues)) == (before, heard)


async def test_an_address_in_use_is_said_so(pair: MeshNodes) -> None:
    await pair.start(N1)
    second = Mesh(N2, Incarnation(1), pair.addresses[N1], pair.addresses, Listener(), pair.carriers[N1])
    with pytest.raises(OSError, match="already"):
        await second.start()
