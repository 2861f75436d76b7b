"""Waiting until the peers have applied a change."""

from __future__ import annotations

import asyncio

from cluster.runtime.applied_watch import AppliedWatch
from node.ids import NodeName

N2, N3 = NodeName("n2"), NodeName("n3")


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_change_is_visible_when_every_peer_has_applied_it() -> None:
    watch = AppliedWatch()
    waiting = [asyncio.create_task(watch.wait(index, lambda: [N2, N3])) for index in (7, 8)]
    watch.heard(N2, 8)
    await turn()
    assert not waiting[0].done()
    watch.heard(N3, 7)
    await turn()
    assert [task.done() for task in waiting] == [True, False]
    watch.heard(N3, 9)
    assert await asyncio.gather(*waiting) == [True, True]


async def test_a_peer_that_leaves_is_waited_for_no_more() -> None:
    watch = AppliedWatch()
    peers = {N2, N3}
    task = asyncio.create_task(watch.wait(7, lambda: peers))
    watch.heard(N2, 7)
    await turn()
    assert not task.done()
    peers.discard(N3)
    watch.peers_changed()
    assert await task


async def test_a_restarted_peer_has_applied_what_it_says_now() -> None:
    watch = AppliedWatch()
    watch.heard(N2, 9)
    watch.heard(N2, 1)
    assert not await watch.wait(7, lambda: [N2], timeout_s=0)


async def test_alone_nobody_is_waited_for() -> None:
    assert await AppliedWatch().wait(7, lambda: [])
