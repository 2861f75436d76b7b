"""What the mesh notices, and how soon: resets, dead processes, refusals, cuts, lost machines. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from node.ids import NodeName
from tests.support.mesh_listener import ops
from tests.support.mesh_nodes import N1, N2, TIMING, MeshNodes, now

SILENCE_S = TIMING.silence_timeout_ms / 1000


async def break_by_first(pair: MeshNodes) -> None:
    pair.meshes[N1].reset_link(N2, "test")


async def break_by_second(pair: MeshNodes) -> None:
    pair.meshes[N2].reset_link(N1, "test")


async def break_by_network(pair: MeshNodes) -> None:
    pair.reset(N1, N2)


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
        await asyncio.sleep(0.002 * seed)
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
    await asyncio.sleep(10)
    assert [what for what, _, _ in listener.happened] == ["up", "down", "refused"]
    await pair.start(victim, incarnation=2)
    await pair.until(lambda: listener.count("up") == 2)
    assert listener.happened[-1] == ("up", victim, 2)
    pair.meshes[survivor].send_queue_frames(victim, [ops(1)])
    await pair.until(lambda: pair.listeners[victim].queues == [ops(1)])


async def test_a_peer_that_never_was_is_refused_once(pair: MeshNodes) -> None:
    await pair.start(N1)
    await asyncio.sleep(10)
    assert pair.listeners[N1].happened == [("refused", N2, None)]


async def test_a_refusal_is_reported_within_one_backoff(pair: MeshNodes) -> None:
    await pair.start_all()
    began = now()
    await pair.kill(N2)
    await pair.until(lambda: pair.listeners[N1].count("refused") == 1)
    assert now() - began <= TIMING.backoff_min_ms / 1000


async def test_a_refusing_path_is_a_refusal_until_it_opens(pair: MeshNodes) -> None:
    """A firewall between two nodes that both live looks like a dead process to the side that it refuses."""
    pair.refuse(N1, N2)
    await pair.start(N1)
    await pair.start(N2)
    await asyncio.sleep(5)
    assert pair.listeners[N1].happened == [("refused", N2, None)]
    assert pair.listeners[N2].happened == []
    pair.refuse(N1, N2, False)
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
        pair.cut(source, target)
    await pair.until(lambda: all(listener.count("down") == 1 for listener in pair.listeners.values()))
    assert SILENCE_S / 2 < now() - began <= SILENCE_S + 0.1
    await asyncio.sleep(30)
    assert all(listener.count("refused") == 0 for listener in pair.listeners.values())
    assert all(listener.count("up") == 1 for listener in pair.listeners.values())
    pair.heal_both(N1, N2)
    await pair.until_all_up(2)
    await pair.stop_all()


async def test_a_short_cut_delays_and_loses_nothing(pair: MeshNodes) -> None:
    await pair.start_all()
    pair.cut_both(N1, N2)
    pair.meshes[N1].send_queue_frames(N2, [ops(1)])
    await asyncio.sleep(SILENCE_S / 2)
    assert pair.listeners[N2].queues == []
    pair.heal_both(N1, N2)
    await pair.until(lambda: pair.listeners[N2].queues == [ops(1)])
    await asyncio.sleep(2 * SILENCE_S)
    assert all(listener.happened[1:] == [] for listener in pair.listeners.values())


@pytest.mark.parametrize(("survivor", "victim"), [(N1, N2), (N2, N1)])
async def test_a_lost_machine_is_silent_and_its_next_start_is_linked(
    pair: MeshNodes, survivor: NodeName, victim: NodeName
) -> None:
    await pair.start_all()
    listener = pair.listeners[survivor]
    await pair.lose(victim)
    await asyncio.sleep(SILENCE_S + 1)
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


async def test_what_was_refused_before_a_link_came_is_no_news(pair: MeshNodes) -> None:
    """Another address is silent, so looking takes a second, in which the peer may be back. If it was reported then, the
    next death would not be."""
    silent = NodeName("n0")
    await pair.start_all()
    pair.cut_both(N2, silent)
    pair.meshes[N2].add_peer(N1, pair.addresses[N1], f"{silent}:1")
    listener = pair.listeners[N2]
    await pair.kill(N1)
    await pair.until(lambda: listener.count("refused") == 1)
    await asyncio.sleep(TIMING.probe_timeout_ms / 2000)
    await pair.start(N1, incarnation=2)
    await pair.until(lambda: listener.count("up") == 2)
    await asyncio.sleep(5)
    await pair.kill(N1)
    await pair.until(lambda: listener.count("refused") == 2)
    assert [what for what, _, _ in listener.happened] == ["up", "down", "refused", "up", "down", "refused"]


async def test_what_was_refused_before_a_link_that_came_and_went_is_no_news(pair: MeshNodes) -> None:
    """As above; and the link that came meanwhile is cut again before the look is over. The peer lives."""
    silent = NodeName("n0")
    await pair.start_all()
    pair.cut_both(N2, silent)
    pair.meshes[N2].add_peer(N1, pair.addresses[N1], f"{silent}:1")
    listener = pair.listeners[N2]
    await pair.kill(N1)
    await pair.until(lambda: listener.count("refused") == 1)
    await asyncio.sleep(TIMING.probe_timeout_ms / 2000)
    await pair.start(N1, incarnation=2)
    await pair.until(lambda: listener.count("up") == 2)
    pair.cut_both(N1, N2)
    pair.meshes[N2].reset_link(N1, "test")
    await asyncio.sleep(5)
    assert [what for what, _, _ in listener.happened] == ["up", "down", "refused", "up", "down"]
    pair.heal_both(N1, N2)
    await pair.until(lambda: listener.count("up") == 3)
    await pair.kill(N1)
    await pair.until(lambda: listener.count("refused") == 2)


async def test_what_was_refused_before_a_peer_was_heard_is_no_news(pair: MeshNodes) -> None:
    """It has proved who it is meanwhile, and its handshake came to no end."""
    silent = NodeName("n0")
    await pair.start_all()
    pair.cut_both(N2, silent)
    pair.meshes[N2].add_peer(N1, pair.addresses[N1], f"{silent}:1")
    listener, peer = pair.listeners[N2], pair.meshes[N2]._peers[N1]
    await pair.kill(N1)
    await pair.until(lambda: peer.link is None)
    await asyncio.sleep(TIMING.probe_timeout_ms / 2000)
    await pair.start(N1, incarnation=2)
    await pair.until(lambda: peer.link is not None)
    pair.cut_both(N1, N2)
    pair.meshes[N2].reset_link(N1, "test")
    await asyncio.sleep(5)
    assert [what for what, _, _ in listener.happened] == ["up", "down"]
