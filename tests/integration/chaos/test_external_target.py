"""A cluster that somebody else runs: hurt and healed by commands of a shell, asked over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from chaos.harm.journal import Journal, heal, outstanding
from chaos.harm.undoers import UNDOERS
from chaos.plan.model import ClusterPlan
from chaos.targets.external import ExternalTarget
from chaos.targets.management import ManagementOperator
from chaos.targets.outside import Management, OutsideCluster, OutsideNode
from chaos.targets.target import NotNow, QueueView, TargetError
from tests.support.live_cluster import LiveCluster, run_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(Path(tmp_path_factory.mktemp("cluster")), node_count=1) as running:
        yield running


@pytest.fixture
def outside(live: LiveCluster) -> OutsideCluster:
    """One node, which somebody runs with `warren cluster`."""
    warren = f"{sys.executable} -m chaos.cli cluster"
    directory = live.local.directory.path
    commands = {
        "kill": f"{warren} kill n1 --dir {directory}",
        "start": f"{warren} restart n1 --dir {directory}",
        "pause": "echo it is not mine >&2; exit 3",
        "resume": "true",
    }
    return OutsideCluster("staging", [OutsideNode("n1", live.url("n1"), commands)])


async def test_a_node_is_killed_and_started_by_its_commands(outside: OutsideCluster, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        target = ExternalTarget(outside, journal)
        await target.start(ClusterPlan(nodes=1))
        await target.wait_ready()
        await target.kill([1])
        assert not target.is_running(1)
        assert [entry.what for entry in journal.outstanding] == ["kill n1"]
        with pytest.raises(TimeoutError, match="n1 of staging did not serve clients in time"):
            await target.wait_ready([1], timeout_s=0.5)
        await target.start_node(1)
        await target.wait_ready([1])
        assert journal.outstanding == []
        await target.close()


async def test_who_was_killed_by_a_run_that_is_gone_is_started_by_healing(
    outside: OutsideCluster, tmp_path: Path
) -> None:
    with Journal(tmp_path) as journal:
        await ExternalTarget(outside, journal).kill([1])
    assert [healed.problem for healed in heal(tmp_path, UNDOERS)] == [""]
    assert outstanding(tmp_path) == []
    with Journal(tmp_path) as journal:
        await ExternalTarget(outside, journal).wait_ready([1])


async def test_a_command_that_fails_says_what_it_said(outside: OutsideCluster, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(TargetError, match=r"n1: .*ended with 3: it is not mine"):
            await ExternalTarget(outside, journal).pause(1)
        assert [entry.what for entry in journal.outstanding] == ["pause n1"], "maybe it stands still"


async def test_what_cannot_be_is_refused(outside: OutsideCluster, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        target = ExternalTarget(outside, journal)
        with pytest.raises(TargetError, match="has 1 nodes, and 3 are wanted"):
            await target.start(ClusterPlan(nodes=3))
        with pytest.raises(TargetError, match="not ours to make: mirroring"):
            await target.start(ClusterPlan(nodes=1, settings={"mirroring": 1}))
        with pytest.raises(TargetError, match="has no command 'stop'"):
            await target.stop(1)
        with pytest.raises(TargetError, match="nobody empties disks"):
            await target.wipe(1)
        operator = target.operator(1)
        for order in (
            operator.set_policy("p", "^q", {"ha-mode": "all"}),
            operator.clear_policy("p"),
            operator.sync("q"),
            operator.cancel_sync("q"),
        ):
            with pytest.raises(TargetError, match=r"tells of no \[management\]"):
                await order
        with pytest.raises(NotNow, match="nobody tells which nodes there are"):
            await operator.running()
        await target.close()


# --- the management interface


class Interface:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, object]] = []
        self.status = 200
        self.answer: object = None

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.asked.append((request.method, request.raw_path, json.loads(body) if body else None))
        text = "" if self.answer is None else json.dumps(self.answer)
        return web.Response(status=self.status, text=text)


@asynccontextmanager
async def served(interface: Interface) -> AsyncIterator[ManagementOperator]:
    application = web.Application()
    application.router.add_route("*", "/{anything:.*}", interface.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    operator = ManagementOperator(Management(f"http://{host}:{port}", "chaos", "s3cret", "a/b"), {"x": 1, "y": 2})
    try:
        yield operator
    finally:
        await operator.close()
        await runner.cleanup()


async def test_orders_over_http() -> None:
    interface = Interface()
    async with served(interface) as operator:
        await operator.set_policy("chaos", "^q$", {"ha-mode": "all"})
        await operator.clear_policy("chaos")
        await operator.sync("q/1")
        await operator.cancel_sync("q/1")
        await operator.purge("q/1")
    assert interface.asked == [
        (
            "PUT",
            "/api/policies/a%2Fb/chaos",
            {"pattern": "^q$", "definition": {"ha-mode": "all"}, "apply-to": "queues"},
        ),
        ("DELETE", "/api/policies/a%2Fb/chaos", None),
        ("POST", "/api/queues/a%2Fb/q%2F1/actions", {"action": "sync"}),
        ("POST", "/api/queues/a%2Fb/q%2F1/actions", {"action": "cancel_sync"}),
        ("DELETE", "/api/queues/a%2Fb/q%2F1/contents", None),
    ]


async def test_questions_over_http() -> None:
    interface = Interface()
    async with served(interface) as operator:
        interface.answer = [
            {"name": "x", "running": False},
            {"name": "y", "running": True},
            {"name": "z", "running": True},
        ]
        assert await operator.running() == [2]
        interface.answer = [{"name": "q", "node": "x", "slave_nodes": ["y"], "messages_ready": 3}]
        assert await operator.queues() == [QueueView("q", 1, (2,), (), 3, None)]


@pytest.mark.parametrize(("status", "error"), [(503, NotNow), (404, TargetError), (401, TargetError)])
async def test_refusals_over_http_show_no_password(status: int, error: type[Exception]) -> None:
    interface = Interface()
    interface.status = status
    async with served(interface) as operator:
        with pytest.raises(error, match=str(status)) as caught:
            await operator.sync("q")
    assert "s3cret" not in str(caught.value)


async def test_who_does_not_answer_is_asked_later() -> None:
    async with served(Interface()) as operator:
        address = operator
    with pytest.raises(NotNow, match="does not answer: Client"):
        await address.running()
    await address.close()
