"""An operator watches a queue's mirrors being filled while other things happen to the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cluster.metadata.commands import MoveMaster
from cluster.transport.admin_port import AdminPort, AdminRefused, ExitCode, SyncProgress
from node.ids import NodeName
from tests.support.sim_lab import Lab

#: How many times longer words to the mirror take: it is not filled before the test ends.
SLOWNESS = 200


async def watch(admin: AdminPort) -> None:
    async for _ in admin.sync_queue("/", "q"):
        pass


async def last_word(admin: AdminPort) -> SyncProgress:
    return [each async for each in admin.sync_queue("/", "q")][-1]


def begin_to_watch(
    lab: Lab, at: str = "n1", watch: Callable[[AdminPort], Coroutine[Any, Any, Any]] = watch
) -> asyncio.Task[Any]:
    """Two copies on n1 and n3 are complete, that on n2 is being filled, and somebody looks on, at the master n1 or at
    another node, which asks n1."""
    lab.found()
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "manual", "ha-sync-batch-size": 1})
    lab.declare("n1", "q")
    lab.until_converged()
    lab.cluster.kill("n2")
    lab.pass_time(8)
    lab.publish("n1", "q", 50)
    lab.start("n2")
    lab.until_converged()
    lab.cluster.slow_link("n1", "n2", SLOWNESS)
    lab.cluster.slow_link("n3", "n2", SLOWNESS)
    watching = lab.begin_to_ask(at, watch)
    lab.pass_time(0.03)
    assert not watching.done()
    return watching


@pytest.mark.parametrize("at", ["n1", "n3"])
def test_who_watches_is_told_that_it_was_cancelled(lab: Lab, at: str) -> None:
    """Which is no failure; but not every mirror has everything."""
    watching = begin_to_watch(lab, at, last_word)
    lab.ask("n2", lambda admin: admin.cancel_sync_queue("/", "q"))
    lab.pass_time(2)
    last = watching.result()
    assert last.is_finished
    assert last.synchronised_messages < last.total_messages == 50


def move(lab: Lab, target: str) -> None:
    """The master, and it serves and has the other complete copy again."""
    record = lab.record("n1", "q")
    assert record is not None
    lab.change("n1", MoveMaster(record.queue_id, record.epoch, NodeName(target)))
    while not (record := lab.record("n1", "q")) or not (record.in_service and record.synchronised):
        lab.pass_time(0.001)
    assert record.master == target


def test_who_watches_is_told_when_the_master_was_elsewhere_in_between(lab: Lab) -> None:
    """So quickly that it is back when the watcher looks again: nobody fills the mirror any more."""
    watching = begin_to_watch(lab)
    move(lab, "n3")
    move(lab, "n1")
    assert not watching.done()
    lab.pass_time(5)
    with pytest.raises(AdminRefused, match=r"queue 'q' has changed its master: ask again") as caught:
        watching.result()
    assert caught.value.exit_code is ExitCode.TEMPORARY


def test_who_watches_elsewhere_is_told_when_the_master_stands_still_and_the_queue_goes_on(lab: Lab) -> None:
    """Nobody hangs up: the process is stopped, its sockets live."""
    watching = begin_to_watch(lab, at="n3")
    lab.cluster.pause("n1")
    lab.pass_time(15)
    record = lab.record("n3", "q")
    assert record is not None
    assert record.master == "n3"
    assert watching.done()
    with pytest.raises(AdminRefused, match=r"queue 'q' has moved to n3: ask again") as caught:
        watching.result()
    assert caught.value.exit_code is ExitCode.TEMPORARY
