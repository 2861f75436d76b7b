"""Masters that are spread over whole simulated clusters, while clients publish and consume or nodes die."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from chaos.sim.client import Channel, open_connection
from chaos.sim.loop import SimulatedLoop
from chaos.sim.machine import AMQP_PORT
from cluster.metadata.commands import ChangeTopology
from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_port import AdminPort, AdminRefused
from node.ids import NodeName
from node.topology.commands import DeleteQueue
from tests.support.amounts import few_fast
from tests.support.sim_lab import Lab


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def mirror(lab: Lab, definition: dict[str, Any]) -> None:
    policy = PolicyRecord("/", "all", "", {"ha-sync-mode": "automatic", **definition}, 0, "queues")
    lab.ask("n1", lambda admin: admin.set_policy(policy))
    lab.until_converged()


def rebalance(lab: Lab, at: str = "n1", queue_pattern: str = "", *, is_dry_run: bool = False) -> list[dict[str, Any]]:
    async def ask(admin: AdminPort) -> list[dict[str, Any]]:
        return [dict(report) async for report in admin.rebalance_queues("", queue_pattern, is_dry_run=is_dry_run)]

    return lab.ask(at, ask)


def masters(lab: Lab) -> Counter[str]:
    return Counter(record.master for record in lab.cluster.nodes["n1"].runtime.metadata.state.masterships.values())


def test_masters_are_spread_to_synchronised_mirrors(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "all"})
    lab.declare("n1", *(f"q{number}" for number in range(10)))
    lab.until_converged()
    plan = rebalance(lab, is_dry_run=True)
    assert masters(lab) == {"n1": 10}, "a dry run moves nothing"
    assert plan[-1]["masters"] == {"n1": 4, "n2": 3, "n3": 3}
    reports = rebalance(lab, at="n3")
    assert [report["state"] for report in reports[:-1]] == ["moved"] * 6
    assert sorted(masters(lab).values()) == [3, 3, 4]
    lab.until_converged()
    assert rebalance(lab)[:-1] == [], "there is nothing left to do"
    state = lab.cluster.nodes["n1"].runtime.metadata.state
    assert all(record.lossy_promotions == 0 for record in state.masterships.values())


def test_queues_without_synchronised_mirrors_stay(lab: Lab) -> None:
    lab.declare("n1", "a", "b", "c")
    assert rebalance(lab)[:-1] == []
    mirror(lab, {"ha-mode": "nodes", "ha-params": ["n1", "n2"]})
    assert rebalance(lab)[-1]["masters"] == {"n1": 2, "n2": 1, "n3": 0}


def test_masters_under_exactly_are_spread(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "exactly", "ha-params": 2})
    lab.declare("n1", *(f"q{number}" for number in range(6)))
    lab.until_converged()
    rebalance(lab)
    assert masters(lab) == {"n1": 2, "n2": 2, "n3": 2}


def test_two_at_the_same_time_do_each_others_work(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "all"})
    lab.declare("n1", *(f"q{number}" for number in range(9)))
    lab.until_converged()
    tasks = []
    for at in ("n1", "n2"):
        process = lab.cluster.machines[at].process
        assert process is not None
        reports = lab.cluster.nodes[at].admin.rebalance_queues("", "", is_dry_run=False)

        async def follow(reports: AsyncIterator[Mapping[str, Any]] = reports) -> list[str]:
            return [report["state"] async for report in reports if "state" in report]

        tasks.append(process.create_task(follow()))
    while not all(task.done() for task in tasks):
        lab.pass_time(0.1)
    assert sorted(state for task in tasks for state in task.result()) == ["moved"] * 6 + ["refused"] * 6
    assert masters(lab) == {"n1": 3, "n2": 3, "n3": 3}


def test_only_the_queues_that_are_asked_for_are_counted_and_moved(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "all"})
    lab.declare("n1", "a1", "a2", "a3", "b1", "b2", "b3")
    lab.until_converged()
    assert rebalance(lab, queue_pattern="^a")[-1]["masters"] == {"n1": 1, "n2": 1, "n3": 1}
    assert masters(lab) == {"n1": 4, "n2": 1, "n3": 1}
    with pytest.raises(AdminRefused, match="no regular expression"):
        rebalance(lab, queue_pattern="(")


def test_moves_that_are_not_possible_any_more_are_refused_and_say_why(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "all"})
    lab.declare("n1", *(f"q{number}" for number in range(12)))
    lab.until_converged()
    process = lab.cluster.machines["n1"].process
    assert process is not None
    reports: list[dict[str, Any]] = []

    async def ask() -> None:
        async for report in lab.cluster.nodes["n1"].admin.rebalance_queues("", "", is_dry_run=False):
            reports.append(dict(report))  # noqa: PERF401 - looked at while it grows

    task = process.create_task(ask())
    while not reports:
        lab.pass_time(0.001)
    lab.cluster.kill("n3")
    while not task.done():
        lab.pass_time(0.1)
    task.result()
    refused = [report for report in reports if report.get("state") == "refused"]
    assert refused
    assert all(report["reason"] for report in refused)
    lab.start("n3")
    lab.until_converged()
    rebalance(lab)
    assert sorted(masters(lab).values()) == [4, 4, 4]
    state = lab.cluster.nodes["n1"].runtime.metadata.state
    assert all(record.lossy_promotions == 0 for record in state.masterships.values())


def test_masters_go_to_synchronised_mirrors_before_their_node_stops_in_order(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "all"})
    lab.declare("n1", "a", "b")
    lab.until_converged()
    lab.cluster.stop("n1")
    state = lab.cluster.nodes["n2"].runtime.metadata.state
    while "n1" in lab.cluster.nodes:
        lab.pass_time(0.005)
    assert all(record.master != "n1" and record.in_service for record in state.masterships.values())


def on_a_channel(lab: Lab, at: str, work: Callable[[Channel], Awaitable[None]]) -> None:
    """What a client of a node does, to the end."""

    async def connect() -> None:
        connection = await open_connection(lab.cluster.network, client, "client", (at, AMQP_PORT))
        await work(await connection.channel())
        connection.close()

    client = lab.loop.start_process("client", lambda: 0.0001)
    task = client.create_task(connect())
    while not task.done():
        lab.pass_time(0.1)
    task.result()


@pytest.mark.parametrize("seed", few_fast(range(1, 11), 3))
def test_what_nobody_was_ever_given_is_not_flagged_after_a_move(seed: int, quiet_loop: SimulatedLoop) -> None:
    lab = Lab(quiet_loop, seed)
    lab.found()
    mirror(lab, {"ha-mode": "all"})
    queues = [f"q{number}" for number in range(6)]
    lab.declare("n1", *queues)

    async def publish(channel: Channel) -> None:
        for queue in queues:
            for number in range(5):
                channel.publish(queue, b"%d" % number)
        for queue in queues:
            first = await channel.get(queue)
            assert first is not None
            channel.nack(first.delivery_tag)

    async def look(channel: Channel) -> None:
        for queue in queues:
            got = [await channel.get(queue) for _ in range(5)]
            flags[queue] = [each.is_redelivered for each in got if each is not None]

    flags: dict[str, list[bool]] = {}
    on_a_channel(lab, "n1", publish)
    lab.until_converged()
    assert [report["state"] for report in rebalance(lab)[:-1]] == ["moved"] * 4
    on_a_channel(lab, "n2", look)
    assert flags == {queue: [True, False, False, False, False] for queue in queues}


def test_a_queue_that_is_deleted_meanwhile_is_named(lab: Lab) -> None:
    mirror(lab, {"ha-mode": "all"})
    lab.declare("n1", *(f"q{number}" for number in range(20)))
    lab.until_converged()

    async def delete_all_behind_the_first(admin: AdminPort) -> list[str]:
        names: list[str] = []
        async for report in admin.rebalance_queues("", "", is_dry_run=False):
            if not names:
                for number in range(20):
                    command = ChangeTopology(DeleteQueue("/", f"q{number}"), NodeName("n1"))
                    await lab.cluster.nodes["n1"].runtime.metadata.change(command)
            names += [report["queue"]] if "queue" in report else []
        return names

    names = lab.ask("n1", delete_all_behind_the_first)
    assert len(names) > 5
    assert all(name.startswith("q") for name in names)
