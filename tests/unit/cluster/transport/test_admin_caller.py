"""Asking the admin service of other nodes, over the simulated network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chaos.sim.loop import SimulatedLoop
from chaos.sim.machine import AdminDoor, MemoryAdminCaller
from chaos.sim.network import Link, Network
from cluster.runtime.admin_peers import PEER_TIMEOUT_S, STATUS_TIMEOUT_S, WATCH_INTERVAL_S, AdminPeers
from cluster.transport.admin_port import AdminRefused, ExitCode, SyncProgress
from node.ids import NodeName, QueueId
from tests.support.recording_port import LISTED, RecordingPort

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")


class Asked:
    """Two nodes, and a third that asks both."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.network = Network(loop, lambda _source, _target: Link(lambda: 0.0))
        self.ports = {N2: RecordingPort(), N3: RecordingPort()}
        doors = {str(node): AdminDoor(loop.start_process(node), port, "cookie") for node, port in self.ports.items()}
        caller = MemoryAdminCaller(loop, self.network, N1, doors, "cookie")
        self.peers = AdminPeers({N2: "n2:1", N3: "n3:1"}.__getitem__, caller)


@pytest.fixture
async def asked() -> Asked:
    return Asked()


async def timed(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    return await work, loop.time() - began


async def test_rows_of_all_nodes_are_put_together(asked: Asked) -> None:
    assert await asked.peers.rows("ListQueues", [N2, N3], "v", ["name"]) == LISTED.as_dicts() * 2


async def test_a_silent_node_contributes_nothing_and_holds_up_for_a_moment_only(
    asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    asked.network.link(N1, N3).is_cut = True
    with caplog.at_level(logging.INFO):
        rows, took_s = await timed(asked.peers.rows("ListChannels", [N2, N3], "", []))
    assert rows == LISTED.as_dicts()
    assert took_s == pytest.approx(PEER_TIMEOUT_S)
    assert caplog.messages == ["n3 did not answer ListChannels: Deadline Exceeded"]
    statuses, took_s = await timed(asked.peers.statuses([N2, N3]))
    assert statuses == {N2: {"pid": 1}}
    assert took_s == pytest.approx(STATUS_TIMEOUT_S)


async def test_a_node_that_refuses_contributes_nothing(asked: Asked) -> None:
    asked.ports[N2].refusal = AdminRefused(ExitCode.USAGE, "Info key(s) x are not supported")
    assert await asked.peers.rows("ListQueues", [N2, N3], "v", ["x"]) == LISTED.as_dicts()


async def test_a_node_that_does_not_say_what_it_has_is_left_out(asked: Asked) -> None:
    asked.ports[N2].refusal = AdminRefused(ExitCode.UNAVAILABLE, "unknown method")
    assert await asked.peers.held_copies([N2, N3], [QueueId(7)]) == {N3: {7: 12, 9: 0}}


async def test_a_command_goes_to_the_node_named(asked: Asked) -> None:
    progress = [each async for each in asked.peers.sync_queue(N3, "v", "q", lambda: True)]
    assert progress == [SyncProgress(1, 2, False), SyncProgress(2, 2, True)]
    await asked.peers.cancel_sync_queue(N3, "v", "q")
    assert asked.ports[N3].calls == [("sync_queue", "v", "q"), ("cancel_sync_queue", "v", "q")]
    assert asked.ports[N2].calls == []


async def test_a_command_to_a_silent_node_is_refused(asked: Asked) -> None:
    asked.network.link(N3, N1).is_cut = True
    with pytest.raises(AdminRefused) as caught:
        await asked.peers.cancel_sync_queue(N3, "v", "q")
    assert caught.value.exit_code is ExitCode.UNAVAILABLE
    assert asked.ports[N3].calls == [("cancel_sync_queue", "v", "q")], "it was carried out; only the answer is lost"


async def test_a_node_that_has_just_left_the_cluster_contributes_nothing(asked: Asked) -> None:
    """Whoever asks has looked a moment before it was removed."""
    gone = NodeName("n4")
    assert await asked.peers.rows("ListQueues", [N2, gone], "v", ["name"]) == LISTED.as_dicts()
    assert await asked.peers.statuses([N2, gone]) == {N2: {"pid": 1}}
    assert await asked.peers.held_copies([gone], [QueueId(7)]) == {}
    with pytest.raises(AdminRefused, match="n4 is no member of the cluster any more"):
        asked.peers.sync_queue(gone, "v", "q", lambda: True)


async def others_end() -> None:
    """Nobody waits for anything any more."""
    current = asyncio.current_task()
    async with asyncio.timeout(1):
        while others := [task for task in asyncio.all_tasks() if task is not current]:
            await asyncio.wait(others)


async def watch(asked: Asked, is_there: Callable[[], bool]) -> list[SyncProgress]:
    return [each async for each in asked.peers.sync_queue(N3, "v", "q", is_there)]


async def test_a_synchronisation_on_a_silent_node_is_watched_as_long_as_the_queue_is_there(asked: Asked) -> None:
    asked.network.link(N3, N1).is_cut = True
    looks = iter([True, True, False])
    progress, took_s = await timed(watch(asked, lambda: next(looks)))
    assert progress == []
    assert took_s == pytest.approx(3 * WATCH_INTERVAL_S)
    await others_end()


async def test_why_a_queue_is_not_there_any_more_is_told_to_who_watches(asked: Asked) -> None:
    asked.network.link(N3, N1).is_cut = True

    def look() -> bool:
        raise AdminRefused(ExitCode.TEMPORARY, "queue 'q' has moved to n2: ask again")

    with pytest.raises(AdminRefused, match="has moved to n2"):
        await watch(asked, look)


async def test_who_stops_watching_leaves_nothing_behind(asked: Asked) -> None:
    asked.network.link(N3, N1).is_cut = True
    watching = asyncio.ensure_future(watch(asked, lambda: True))
    await asyncio.wait((watching,), timeout=2.5 * WATCH_INTERVAL_S)
    watching.cancel()
    await others_end()
    assert watching.cancelled()


async def test_a_master_that_was_lost_may_be_asked_again(asked: Asked) -> None:
    asked.ports[N3].refusal = AdminRefused(ExitCode.UNAVAILABLE, "Socket closed")
    with pytest.raises(AdminRefused) as caught:
        await watch(asked, lambda: True)
    assert caught.value.exit_code is ExitCode.TEMPORARY
    assert caught.value.message == "n3, the master of queue 'q', does not answer any more: ask again (Socket closed)"


async def test_a_refusal_of_the_master_is_handed_on(asked: Asked) -> None:
    refusal = asked.ports[N3].refusal = AdminRefused(ExitCode.TEMPORARY, "queue 'q' has moved to n2: ask again")
    with pytest.raises(AdminRefused) as caught:
        await watch(asked, lambda: True)
    assert (caught.value.exit_code, caught.value.message) == (refusal.exit_code, refusal.message)
