"""Meshes of two nodes in one loop over loopback: order, breaks, restarts, refusals, limits, shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import grpc.aio
import pytest

from cluster.raft.messages import Heartbeat, Message
from cluster.transport.carrier import ProbeResult, StreamKind
from cluster.transport.grpc_carrier import SERVICE_NAME, GrpcCarrier
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from cluster.transport.outbox import OutboxLimits
from cluster.transport.probe import probe
from node.ids import Incarnation, NodeName
from tests.support.mesh_listener import Listener, ops
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

RANDOM_BYTES = Random(1).randbytes

pytestmark = pytest.mark.integration

N1, N2 = NodeName("n1"), NodeName("n2")
TIMING = MeshTiming(heartbeat_interval_ms=50, handshake_timeout_ms=2000, backoff_min_ms=5, backoff_max_ms=50)


class Pair:
    """Two nodes that know each other."""

    def __init__(self) -> None:
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in (N1, N2)}
        self.listeners: dict[NodeName, Listener] = {}
        self.meshes: dict[NodeName, Mesh] = {}

    async def start(
        self, name: NodeName, incarnation: int = 1, cookie: str = "secret", limits: OutboxLimits | None = None
    ) -> None:
        self.listeners[name] = Listener()
        mesh = Mesh(
            name,
            Incarnation(incarnation),
            self.addresses[name],
            self.addresses,
            self.listeners[name],
            GrpcCarrier(),
            random_bytes=RANDOM_BYTES,
            cookie=cookie,
            timing=TIMING,
            limits=limits,
        )
        self.meshes[name] = mesh
        await mesh.start()

    async def start_both(self) -> None:
        await self.start(N1)
        await self.start(N2)
        await self.both_up(1)

    async def both_up(self, times: int) -> None:
        await eventually_async(
            lambda: all(listener.count("up") == times for listener in self.listeners.values()), "every link is up"
        )
        for mesh in self.meshes.values():
            mesh.check_invariants()

    async def stop(self, name: NodeName) -> None:
        await self.meshes.pop(name).stop()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    for name in list(pair.meshes):
        await pair.stop(name)
    left = [task for task in asyncio.all_tasks() if "cluster/" in str(task.get_coro())]
    assert left + serving_tasks() == [], "a stopped mesh leaves no task"


def serving_tasks() -> list[asyncio.Task[object]]:
    """Tasks that serve the peers' streams, gRPC's own and those of the mesh."""
    return [task for task in asyncio.all_tasks() if f"[/{SERVICE_NAME}/" in str(task)]


async def test_both_directions_keep_their_order_on_both_streams(pair: Pair) -> None:
    await pair.start_both()
    expected = [ops(index) for index in range(2000)]
    beats: list[Message] = [Heartbeat(N1, N2, 1, commit, 0, 0, 0) for commit in range(100)]
    answers: list[Message] = [Heartbeat(N2, N1, 1, commit, 0, 0, 0) for commit in range(100)]
    for start in range(0, 2000, 20):
        pair.meshes[N1].send_queue_frames(N2, expected[start : start + 20])
        pair.meshes[N2].send_queue_frames(N1, expected[start : start + 20])
        pair.meshes[N1].send_consensus(N2, [beats[start // 20]])
        pair.meshes[N2].send_consensus(N1, [answers[start // 20]])
        if start % 400 == 0:
            await asyncio.sleep(0)
    heard1, heard2 = pair.listeners[N1], pair.listeners[N2]
    await eventually_async(lambda: len(heard1.queues) >= 2000 and len(heard2.queues) >= 2000, "all messages came")
    await eventually_async(lambda: len(heard1.consensus) >= 100 and len(heard2.consensus) >= 100, "all heartbeats came")
    assert heard1.queues == heard2.queues == expected
    assert (heard2.consensus, heard1.consensus) == (beats, answers)
    assert heard2.frames <= 10, "what is sent in one turn travels together"


async def test_a_reset_link_comes_back_without_mixing(pair: Pair) -> None:
    """Whichever side cuts it, both see down and then up, and after up nothing of the link before arrives."""
    await pair.start_both()
    for cut, (name, other) in enumerate([(N1, N2), (N2, N1), (N1, N2)], 1):
        pair.meshes[N1].send_queue_frames(N2, [ops(index, 50_000) for index in range(cut * 1000, cut * 1000 + 100)])
        pair.meshes[name].reset_link(other, "test")
        await pair.both_up(cut + 1)
        heard = pair.listeners[N2]
        heard.queues.clear()
        pair.meshes[N1].send_queue_frames(N2, [ops(cut)])
        await eventually_async(lambda heard=heard: bool(heard.queues), "a message came")  # type: ignore[misc]
        assert heard.queues == [ops(cut)]
    for listener in pair.listeners.values():
        assert [name for name, _, _ in listener.happened if name != "refused"] == ["up", *["down", "up"] * 3]


@pytest.mark.parametrize(("survivor", "victim"), [(N1, N2), (N2, N1)])
async def test_a_dead_process_is_reported_once_and_its_successor_is_linked(
    pair: Pair, survivor: NodeName, victim: NodeName
) -> None:
    await pair.start_both()
    listener = pair.listeners[survivor]
    listener.happened = [entry for entry in listener.happened if entry[0] != "refused"]  # from before both were there
    await pair.stop(victim)
    await eventually_async(lambda: listener.count("refused") == 1, "n1 heard of the refusal")
    await asyncio.sleep(0.1)
    assert [name for name, _, _ in listener.happened] == ["up", "down", "refused"]
    await pair.start(victim, incarnation=2)
    await eventually_async(lambda: listener.count("up") == 2, "the link is up again")
    assert listener.happened[-1] == ("up", victim, 2)
    pair.meshes[survivor].send_queue_frames(victim, [ops(1)])
    await eventually_async(lambda: pair.listeners[victim].queues == [ops(1)], "the message came")


async def test_an_older_start_of_a_node_is_refused(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Only for the opener's streams can it matter: the other side's hello names the opener's start and link."""
    await pair.start(N1, incarnation=5)
    await pair.start(N2)
    await pair.both_up(1)
    await pair.stop(N1)
    with caplog.at_level(logging.WARNING):
        await pair.start(N1, incarnation=4)
        await eventually_async(lambda: "older than the present one" in caplog.text, "the older one is refused")
    assert pair.listeners[N1].count("up") == 0


async def test_a_wrong_cookie_is_refused_with_a_clear_line(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await pair.start(N1)
        await pair.start(N2, cookie="other")
        await eventually_async(lambda: "no link to n2: wrong cookie" in caplog.text, "the cookie is refused")
    assert pair.listeners[N1].count("up") == pair.listeners[N2].count("up") == 0


async def test_a_swapped_address_is_refused(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The port of n2 in n1's configuration belongs to another node."""
    n3 = NodeName("n3")
    listener = Listener()
    address, known = pair.addresses[N2], pair.addresses
    wrong = Mesh(
        n3,
        Incarnation(1),
        address,
        known,
        listener,
        GrpcCarrier(),
        random_bytes=RANDOM_BYTES,
        cookie="secret",
        timing=TIMING,
    )
    with caplog.at_level(logging.WARNING):
        await wrong.start()
        await pair.start(N1)
        await eventually_async(lambda: "this is n3, not n2" in caplog.text, "the name is refused")
    await wrong.stop()


async def test_a_peer_that_does_not_read_first_congests_and_then_loses_the_link(pair: Pair) -> None:
    limits = OutboxLimits(congested_bytes=4_000_000, overflow_bytes=12_000_000)
    await pair.start(N1, limits=limits)
    await pair.start(N2)
    await pair.both_up(1)
    mesh, listener = pair.meshes[N1], pair.listeners[N1]
    mesh.send_queue_frames(N2, [ops(index, 100_000) for index in range(60)])
    assert mesh.is_congested(N2)
    await eventually_async(
        lambda: not mesh.is_congested(N2) and len(pair.listeners[N2].queues) == 60, "everything came and nothing waits"
    )
    assert listener.count("uncongested") == 1
    assert listener.count("down") == 0
    mesh.send_queue_frames(N2, [ops(index, 100_000) for index in range(130)])
    await eventually_async(lambda: listener.count("down") == 1, "the link is down")
    assert "does not read" in str(listener.happened[-1][2])
    await pair.both_up(2)


async def test_an_idle_link_shows_that_both_live(pair: Pair) -> None:
    await pair.start_both()
    await eventually_async(
        lambda: all(listener.beats >= 2 for listener in pair.listeners.values()), "heartbeats came both ways"
    )
    assert all(listener.frames == 0 and not listener.consensus for listener in pair.listeners.values())


async def test_a_large_message_passes(pair: Pair) -> None:
    await pair.start_both()
    large = ops(1, 20_000_000)
    pair.meshes[N2].send_queue_frames(N1, [large])
    await eventually_async(lambda: pair.listeners[N1].queues == [large], "the large message came")


async def test_sending_without_a_link_is_dropped(pair: Pair) -> None:
    await pair.start(N1)
    pair.meshes[N1].send_queue_frames(N2, [ops(1)])
    pair.meshes[N1].send_consensus(N2, [Heartbeat(N1, N2, 1, 1, 0, 0, 0)])
    assert not pair.meshes[N1].is_congested(N2)
    await pair.start(N2)
    await pair.both_up(1)
    pair.meshes[N1].send_queue_frames(N2, [ops(2)])
    await eventually_async(lambda: bool(pair.listeners[N2].queues), "a message came")
    assert pair.listeners[N2].queues == [ops(2)]


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 10, 20, 50])
async def test_stopping_in_the_middle_of_a_handshake_ends(pair: Pair, turns: int) -> None:
    await pair.start(N1)
    await pair.start(N2)
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    async with asyncio.timeout(5):
        await pair.stop(N1)
        await pair.stop(N2)


@pytest.mark.parametrize("kind", list(StreamKind))
async def test_stopping_ends_a_stream_that_has_said_nothing_yet(pair: Pair, kind: StreamKind) -> None:
    """It belongs to no link, so closing the links does not end it."""
    await pair.start(N1)
    async with grpc.aio.insecure_channel(pair.addresses[N1]) as channel:
        open_stream: Any = channel.stream_stream
        stream = open_stream(f"/{SERVICE_NAME}/{kind.value}")()
        answer = asyncio.ensure_future(stream.read())
        await eventually_async(lambda: bool(serving_tasks()), "a stream is served")
        await pair.stop(N1)
        assert serving_tasks() == []
        with pytest.raises(grpc.aio.AioRpcError, match="Cancelling all calls"):
            await answer


async def test_peers_come_and_go(pair: Pair) -> None:
    await pair.start_both()
    pair.meshes[N1].remove_peer(N2)
    await eventually_async(lambda: pair.listeners[N2].count("down") == 1, "the link is down")
    assert pair.meshes[N1].up_peers == []
    pair.meshes[N1].add_peer(N2, pair.addresses[N2])
    await eventually_async(
        lambda: pair.meshes[N1].up_peers == [N2] and pair.meshes[N2].up_peers == [N1], "the link is up again"
    )


async def test_a_handler_that_fails_is_heard_and_costs_the_link(pair: Pair) -> None:
    await pair.start_both()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    bug = AssertionError("bug")

    def fail(peer: NodeName, messages: object) -> None:
        raise bug

    pair.listeners[N2].on_queue_frames = fail  # type: ignore[method-assign]
    pair.meshes[N1].send_queue_frames(N2, [ops(1)])
    await eventually_async(lambda: pair.listeners[N1].count("down") == 1, "the link is down")
    assert failures == [bug]
    asyncio.get_running_loop().set_exception_handler(None)


async def test_probe_tells_who_listens() -> None:
    port = free_port()
    assert await probe(f"127.0.0.1:{port}", 1) is ProbeResult.REFUSED
    with socket.create_server(("127.0.0.1", port)):
        assert await probe(f"127.0.0.1:{port}", 1) is ProbeResult.ACCEPTED
    assert await probe("no-such-host.invalid:1", 1) is ProbeResult.SILENT
