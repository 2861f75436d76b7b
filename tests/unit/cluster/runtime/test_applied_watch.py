"""Waiting until the peers have applied a change."""

from __future__ import annotations

import asyncio

from cluster.runtime.applied_watch import AppliedWatch
from node.ids import NodeName

N2, N3 = NodeName("n2"), NodeName("n3")
TIMEOUT_S = 5.0


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def make_watch(timeout_s: float = TIMEOUT_S, began_s: float | None = None) -> AppliedWatch:
    watch = AppliedWatch(timeout_s, asyncio.get_running_loop().time() if began_s is None else began_s)
    watch.link_up(N2)
    watch.link_up(N3)
    return watch


async def test_a_change_is_visible_when_every_peer_has_applied_it() -> None:
    watch = make_watch()
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
    watch = make_watch()
    peers = {N2, N3}
    task = asyncio.create_task(watch.wait(7, lambda: peers))
    watch.heard(N2, 7)
    await turn()
    assert not task.done()
    peers.discard(N3)
    watch.peers_changed()
    assert await task


async def test_a_restarted_peer_has_applied_what_it_says_now() -> None:
    watch = make_watch(timeout_s=0)
    watch.heard(N2, 9)
    watch.heard(N2, 1)
    assert not await watch.wait(7, lambda: [N2])


async def test_alone_nobody_is_waited_for() -> None:
    assert await make_watch().wait(7, lambda: [])


async def test_a_peer_whose_link_broke_just_now_may_still_serve_clients() -> None:
    watch = make_watch()
    watch.link_down(N2, asyncio.get_running_loop().time())
    task = asyncio.create_task(watch.wait(7, lambda: [N2]))
    await turn()
    assert not task.done()
    watch.link_up(N2)
    watch.heard(N2, 7)
    assert await task
    watch.check_invariants()


async def test_a_peer_whose_link_broke_long_ago_has_paused() -> None:
    watch = make_watch()
    watch.link_down(N2, asyncio.get_running_loop().time() - TIMEOUT_S)
    assert not await watch.wait(7, lambda: [N2]), "nothing is known of it, and nothing is waited for"


async def test_a_peer_that_never_had_a_link_is_waited_for_from_the_start_on() -> None:
    watch = AppliedWatch(TIMEOUT_S, asyncio.get_running_loop().time())
    task = asyncio.create_task(watch.wait(7, lambda: [N2]))
    await turn()
    assert not task.done()
    watch.link_up(N2)
    watch.heard(N2, 8)
    assert await task
    long_ago = AppliedWatch(TIMEOUT_S, asyncio.get_running_loop().time() - TIMEOUT_S)
    assert not await long_ago.wait(7, lambda: [N2])


async def test_a_peer_that_serves_no_clients_is_not_waited_for_until_it_is_about_to() -> None:
    watch = make_watch()
    task = asyncio.create_task(watch.wait(7, lambda: [N2, N3]))
    assert watch.heard(N3, 5, 1)
    assert not watch.heard(N3, 6, 1), "it has said so before"
    watch.heard(N2, 7)
    assert await task
    assert watch.heard(N3, 6, 2)
    task = asyncio.create_task(watch.wait(7, lambda: [N2, N3]))
    await turn()
    assert not task.done()
    watch.heard(N3, 7, 2)
    assert await task
    watch.check_invariants()


async def test_what_a_peer_said_of_itself_ends_with_its_link() -> None:
    watch = make_watch()
    watch.heard(N3, 5, 1)
    watch.link_down(N3, asyncio.get_running_loop().time())
    watch.check_invariants()
    task = asyncio.create_task(watch.wait(7, lambda: [N3]))
    await turn()
    assert not task.done()
    watch.link_up(N3)
    assert watch.standing(N3) == 0
    watch.heard(N3, 7, 1)
    assert await task


async def test_what_a_peer_said_of_itself_is_not_true_of_its_next_life() -> None:
    """The link to it was cut, which is not noticed yet, and it has come back by way of the others."""
    watch = make_watch()
    watch.heard(N3, 5, 1)
    assert await watch.wait(7, lambda: [N3])
    watch.peer_begins_anew(N3, asyncio.get_running_loop().time())
    watch.check_invariants()
    task = asyncio.create_task(watch.wait(7, lambda: [N3]))
    await turn()
    assert not task.done(), "it serves clients"
    watch.heard(N3, 7)
    assert await task


async def test_a_peer_that_was_lost_long_ago_and_has_come_back_by_way_of_the_others_is_waited_for() -> None:
    """Its link to this node comes up a moment later than those to the others; it serves clients by then, perhaps."""
    watch = make_watch()
    now_s = asyncio.get_running_loop().time()
    watch.link_down(N2, now_s - TIMEOUT_S)
    watch.peer_begins_anew(N2, now_s)
    watch.check_invariants()
    task = asyncio.create_task(watch.wait(7, lambda: [N2]))
    await turn()
    assert not task.done()
    watch.link_up(N2)
    watch.heard(N2, 7)
    assert await task
