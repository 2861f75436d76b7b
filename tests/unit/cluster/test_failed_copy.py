"""A queue whose only copy cannot be opened, as operators meet it: what they are told, at once, and what they can do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.composition import Node
from cluster.metadata.records import PolicyRecord
from cluster.runtime import admin_served
from cluster.runtime.admin import NodeAdmin
from cluster.runtime.admin_served import AdminServed, NotServedError
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection
from node.errors import DiskFullError
from node.ids import NodeName, QueueId
from node.topology.commands import DeclareQueue
from node.topology.records import QueueRecord
from tests.support.small_world import SmallWorld, leave_seven_messages, running

NAMED = "queue 'orders' in vhost '/'"


async def lose_the_index(small: SmallWorld) -> QueueRecord:
    """A node that was stopped in an orderly way has lost a file that the terms of its queue count on."""
    orders = await leave_seven_messages(small)
    (path,) = (path for path in small.disk.snapshot() if path.endswith(f"/{orders.queue_id}/0.qi"))
    small.disk.unlink(path)
    return orders


async def states(node: Node) -> tuple[tuple[object, ...], ...]:
    return (await node.admin.list_queues("/", ("name", "state"), QueueSelection())).rows


REFUSED: dict[str, Callable[[NodeAdmin], Awaitable[object]]] = {
    "purge_queue": lambda admin: admin.purge_queue("/", "orders"),
    "delete_queue --if-empty": lambda admin: admin.delete_queue("/", "orders", if_empty=True, if_unused=False),
    "sync_queue": lambda admin: anext(admin.sync_queue("/", "orders")),
    "cancel_sync_queue": lambda admin: admin.cancel_sync_queue("/", "orders"),
    "force_promote": lambda admin: admin.force_promote("/", "orders", "n1"),
}


@pytest.mark.parametrize("command", REFUSED)
async def test_who_asks_for_it_hears_at_once_what_is_wrong_and_what_can_be_done(command: str) -> None:
    small = SmallWorld()
    await lose_the_index(small)
    async with running(small) as node:
        assert await states(node) == (("orders", "out_of_service"),)
        await node.admin.set_policy(PolicyRecord("/", "ha", "^", {"ha-mode": "all"}, 0, "queues"))
        with pytest.raises(AdminRefused) as caught:
            async with asyncio.timeout(5):
                await REFUSED[command](node.admin)
    text = caught.value.message
    assert caught.value.exit_code is ExitCode.SOFTWARE
    assert text.startswith(f"{NAMED} cannot be served: its copy on n1 is out of service: ")
    assert "/0.qi" in text
    assert "a restart of n1 opens it again, and drops what it cannot read" in text
    for remedy in ("`warren store verify`", "delete_queue, without a condition"):
        assert remedy in text


async def test_it_is_deleted_at_once_without_a_condition_with_all_of_its_files() -> None:
    small = SmallWorld()
    orders = await lose_the_index(small)
    async with running(small) as node:
        async with asyncio.timeout(5):
            assert await node.admin.delete_queue("/", "orders", if_empty=False, if_unused=False) == 0
        assert await states(node) == ()
    async with running(small) as node:
        assert await states(node) == ()
        node.check_invariants()
    assert not [path for path in small.disk.snapshot() if f"/queues/{orders.queue_id}/" in path]


async def test_a_restart_opens_it_again_with_what_can_be_read() -> None:
    small = SmallWorld()
    orders = await lose_the_index(small)
    async with running(small):
        pass
    async with running(small) as node:
        assert await states(node) == (("orders", "running"),)
        assert node.runtime.queues.roles[orders.queue_id].local.ready == 0


async def test_the_log_names_the_queue_and_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    small = SmallWorld()
    await lose_the_index(small)
    async with running(small):
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.startswith(NAMED) for text in errors] == [True, True]
    assert "`warren store verify`" in errors[1]


async def test_for_want_of_room_it_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SmallWorld()
    async with running(small) as node:
        await node.runtime.metadata.submit(DeclareQueue("/", "orders", durable=True))

    def full(*_arguments: object, **_options: object) -> None:
        raise DiskFullError("no space left on device")

    monkeypatch.setattr(NodeQueueFiles, "queue_opening", full)
    async with running(small) as node:
        with pytest.raises(AdminRefused, match=r"no space left .*opened again by itself when there is room") as caught:
            await node.admin.purge_queue("/", "orders")
    assert caught.value.exit_code is ExitCode.TEMPORARY


class AnsweringPeers:
    """The node of the master, which lists its queues."""

    def __init__(self, state: str) -> None:
        self.state = state

    async def rows(
        self, _listing: str, nodes: list[NodeName], _vhost: str, _columns: object
    ) -> list[dict[str, object]]:
        assert nodes == ["n2"]
        return [{"name": "other", "state": "out_of_service"}, {"name": "orders", "state": self.state}]


@pytest.mark.parametrize("state", ["out_of_service", "running"])
async def test_a_queue_of_another_node_is_asked_after_when_the_answer_takes_long(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_served, "PATIENCE_S", 0)
    orders, answers = QueueRecord(QueueId(7), "/", "orders", True, None, False, {}), asyncio.Event()

    async def purge(_queue_id: QueueId) -> int:
        await answers.wait()
        return 3

    record = SimpleNamespace(master=NodeName("n2"), is_down=False)
    runtime = SimpleNamespace(
        node=NodeName("n1"),
        metadata=SimpleNamespace(state=SimpleNamespace(masterships={orders.queue_id: record})),
        queues=SimpleNamespace(failure=lambda _queue_id: None),
        records=SimpleNamespace(find_queue=lambda _queue_id: orders),
        links=SimpleNamespace(is_up=lambda _node: True),
        gateway=SimpleNamespace(purge=purge),
    )
    served = AdminServed(cast(Any, runtime), cast(Any, AnsweringPeers(state)))
    asking = asyncio.ensure_future(served.purge(orders.queue_id))
    if state == "running":
        asyncio.get_running_loop().call_soon(answers.set)
        assert await asking == 3
    else:
        with pytest.raises(NotServedError) as caught:
            await asking
        assert "its copy on n2 is out of service; to hear why, ask that node" in caught.value.refusal.message
