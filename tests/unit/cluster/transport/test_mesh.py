"""The mesh over the simulated network: order, batches, limits, members that come and go, shutdown."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from cluster.raft.messages import Heartbeat, Message
from cluster.transport.carrier import StreamKind
from cluster.transport.mesh import Mesh
from cluster.transport.outbox import OutboxLimits
from node.ids import Incarnation, NodeName
from tests.support.mesh_listener import Listener, ops
from tests.support.mesh_nodes import N1, N2, N3, TIMING, MeshNodes

RANDOM_BYTES = Random(1).randbytes


async def test_a_link_carries_both_streams_in_order_in_both_directions(pair: MeshNodes) -> None:
    pair.set_delay(0, 0.005)
    await pair.start_all()
    assert pair.meshes[N1].up_peers == [N2]
    assert pair.meshes[N2].up_peers == [N1]
    expected = [ops(index) for index in range(400)]
    beats: list[Message] = [Heartbeat(N1, N2, 1, commit, 0, 0, 0) for commit in range(20)]
    answers: list[Message] = [Heartbeat(N2, N1, 1, commit, 0, 0, 0) for commit in range(20)]
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
    await asyncio.sleep(10)
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
    await asyncio.sleep(10)
    for listener in pair.listeners.values():
        assert [what for what, _, _ in listener.happened] == ["up", "down", "up"]
    await pair.stop_all()


async def test_an_idle_link_shows_that_both_live(pair: MeshNodes) -> None:
    await pair.start_all()
    await asyncio.sleep(10 * TIMING.heartbeat_interval_ms / 1000 + 0.1)
    assert [listener.beats for listener in pair.listeners.values()] == [10, 10]
    assert all(listener.frames == 0 and not listener.consensus for listener in pair.listeners.values())


async def test_who_speaks_need_not_say_that_he_lives(pair: MeshNodes) -> None:
    """Nor who spoke a moment ago; an interval after his last word he does."""
    await pair.start_all()
    interval_s = TIMING.heartbeat_interval_ms / 1000
    for commit in range(20):
        pair.meshes[N1].send_consensus(N2, [Heartbeat(N1, N2, 1, commit, 0, 0, 0)])
        await asyncio.sleep(interval_s * 0.7)
    assert pair.listeners[N2].beats == 0
    await asyncio.sleep(interval_s * 0.4)
    assert pair.listeners[N2].beats == 1


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
    pair.meshes[N1].send_consensus(N2, [Heartbeat(N1, N2, 1, 1, 0, 0, 0)])
    assert not pair.meshes[N1].is_congested(N2)
    await pair.start(N2)
    await pair.until_all_up(1)
    pair.meshes[N1].send_queue_frames(N2, [ops(2)])
    await pair.until(lambda: bool(pair.listeners[N2].queues))
    assert pair.listeners[N2].queues == [ops(2)]
    assert pair.listeners[N2].consensus == []


# --- limits ---


async def test_a_peer_that_reads_late_congests_and_then_no_longer() -> None:
    pair = MeshNodes(N1, N2)
    await pair.start(N1, limits=OutboxLimits(congested_bytes=4_000_000, overflow_bytes=12_000_000))
    await pair.start(N2)
    await pair.until_all_up(1)
    mesh, listener = pair.meshes[N1], pair.listeners[N1]
    pair.cut_both(N1, N2)
    mesh.send_queue_frames(N2, [ops(index, 100_000) for index in range(60)])
    assert mesh.is_congested(N2)
    await asyncio.sleep(1)
    assert mesh.is_congested(N2), "the carrier takes no more than its window"
    assert listener.count("uncongested") == 0
    pair.heal_both(N1, N2)
    await pair.until(lambda: len(pair.listeners[N2].queues) == 60)
    assert not mesh.is_congested(N2)
    assert [what for what, _, _ in listener.happened] == ["up", "uncongested"]
    await pair.stop_all()


async def test_there_is_room_when_what_was_marked_has_left() -> None:
    """Long before the link is congested no longer, if others congest it."""
    pair = MeshNodes(N1, N2)
    await pair.start(N1, limits=OutboxLimits(congested_bytes=2_000_000, overflow_bytes=12_000_000))
    await pair.start(N2)
    await pair.until_all_up(1)
    mesh, listener = pair.meshes[N1], pair.listeners[N1]
    pair.cut_both(N1, N2)
    mesh.send_queue_frames(N2, [ops(index, 100_000) for index in range(40)])
    assert not mesh.is_full(N2)
    mesh.send_queue_frames(N2, [ops(40, 100_000)])
    mesh.mark(N2)
    mesh.send_queue_frames(N2, [ops(index, 100_000) for index in range(41, 101)])
    assert mesh.is_full(N2)
    pair.heal_both(N1, N2)
    await pair.until(lambda: len(pair.listeners[N2].queues) == 101)
    assert not mesh.is_full(N2)
    assert [what for what, _, _ in listener.happened] == ["up", "room", "uncongested"]
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
    await asyncio.sleep(5)
    assert pair.meshes[N1].up_peers == []
    pair.meshes[N1].add_peer(N2, "n2:2")
    await pair.until(lambda: pair.meshes[N1].up_peers == [N2] and pair.meshes[N2].up_peers == [N1])


async def test_a_peer_is_found_at_whichever_of_its_addresses_it_is(pair: MeshNodes) -> None:
    await pair.start(N2)
    pair.addresses[N2] = "n2:7"
    await pair.start(N1)
    pair.meshes[N1].add_peer(N2, "n2:7", "n2:8", "n2:1")
    await pair.until(lambda: pair.meshes[N1].up_peers == [N2])
    assert pair.meshes[N1].address_of(N2) == "n2:1"


async def test_a_peer_is_dead_when_nobody_listens_where_it_was_met_last(pair: MeshNodes) -> None:
    await pair.start_all()
    pair.meshes[N1].add_peer(N2, "n2:7", pair.addresses[N2])
    assert pair.listeners[N1].count("refused") == 0, "that nobody listens at another address says nothing"
    await pair.kill(N2)
    await pair.until(lambda: pair.listeners[N1].count("refused") == 1)


async def test_that_nobody_listens_where_a_peer_was_says_nothing_of_where_it_is(pair: MeshNodes) -> None:
    """It is known to have moved while this is found out."""
    pair.set_delay(0.01, 0.01)
    pair.addresses[N2] = "n2:7"
    mesh = await pair.start(N1)
    await asyncio.sleep(0.015)
    pair.cut(N1, N2)
    mesh.add_peer(N2, "n2:1")
    await asyncio.sleep(5)
    assert pair.listeners[N1].count("refused") == 0


async def test_nobody_is_met_where_a_peer_was_told_to_be_during_the_handshake(pair: MeshNodes) -> None:
    """That nobody listens there says nothing of a peer whose link was dialed elsewhere."""
    pair.set_delay(0.01, 0.01)
    await pair.start(N2)
    mesh = await pair.start(N1)
    peer = mesh._peers[N2]
    await pair.until(lambda: peer.link is not None)
    assert mesh.up_peers == []
    mesh.add_peer(N2, "n2:7", pair.addresses[N2])
    await pair.until_all_up(1)
    pair.reset(N1, N2)
    await pair.until_all_up(2)
    assert pair.listeners[N1].count("refused") == 0


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
    await asyncio.sleep(moment_ms / 1000)
    async with asyncio.timeout(1):
        await pair.stop(N1)
        await pair.stop(N2)


@pytest.mark.parametrize("kind", list(StreamKind))
async def test_stopping_ends_a_stream_that_has_said_nothing_yet(pair: MeshNodes, kind: StreamKind) -> None:
    """It belongs to no link, so closing the links does not end it."""
    await pair.start(N1)
    pair.dial(pair.carrier("n0"), N1, kind)
    await asyncio.sleep(0.1)
    async with asyncio.timeout(1):
        await pair.stop(N1)


async def test_nobody_is_looked_for_who_is_added_while_this_stops(pair: MeshNodes) -> None:
    """What the group decides is followed until after the mesh has stopped."""
    await pair.start_all()
    mesh, carrier = pair.meshes[N1], pair.carriers[N1]
    stop_carrier = carrier.stop

    async def stop() -> None:
        await stop_carrier()
        mesh.add_peer(N3, "n3:1")

    carrier.stop = stop  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await pair.stop(N1)
    mesh.add_peer(NodeName("n4"), "n4:1")  # of which the fixture looks for a task


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
    await asyncio.sleep(1)
    assert (len(listener.happened), len(listener.queues)) == (before, heard)


async def test_an_address_in_use_is_said_so(pair: MeshNodes) -> None:
    await pair.start(N1)
    second = Mesh(
        N2,
        Incarnation(1),
        pair.addresses[N1],
        pair.addresses,
        Listener(),
        pair.carriers[N1],
        random_bytes=RANDOM_BYTES,
    )
    with pytest.raises(OSError, match="already"):
        await second.start()
