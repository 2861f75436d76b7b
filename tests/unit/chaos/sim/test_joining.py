"""Nodes that are alone, and join a cluster that their configuration does not name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from chaos.sim.machine import COOKIE
from cluster.metadata.commands import ChangeTopology
from cluster.transport.admin_port import AdminPort, AdminRefused, ExitCode
from node.errors import StorageError
from node.ids import NodeName
from node.topology.commands import DeclareQueue
from tests.support.amounts import slow
from tests.support.sim_lab import Lab


def address(lab: Lab, name: str) -> str:
    return str(lab.cluster.machines[name].config.cluster_advertised_address)


def alone(lab: Lab, *names: str) -> None:
    for name in names:
        lab.cluster.add_machine(name)
        lab.start(name)
    lab.pass_time(5)
    for name in names:
        assert lab.cluster.nodes[name].clients.is_serving


def join(lab: Lab, name: str, existing: str) -> None:
    lab.ask(name, lambda admin: admin.join_cluster(address(lab, existing)))


def voters(lab: Lab, at: str) -> set[str]:
    return set(lab.cluster.nodes[at].raft.core.voters)


def restart(lab: Lab, *names: str) -> None:
    for name in names:
        lab.cluster.stop(name)
    while any(name in lab.cluster.nodes for name in names):
        lab.pass_time(0.1)
    lab.start(*names)


@pytest.mark.parametrize("name", ["a1", slow("n4")])
def test_a_node_alone_joins_without_a_word_in_any_configuration(lab: Lab, name: str) -> None:
    """Whether its name sorts before those of the members, so that it is the one to dial, or behind."""
    lab.found()
    lab.declare("n1", "q")
    alone(lab, name)
    join(lab, name, "n2")
    lab.until_converged()
    lab.pass_time(5)
    everybody = {"n1", "n2", "n3", name}
    for node in everybody:
        assert voters(lab, node) == everybody
    restart(lab, *everybody)
    lab.until_converged()
    lab.cluster.kill("n1")
    lab.pass_time(10)
    assert len([node for node in lab.cluster.nodes.values() if node.raft.core.is_leader]) == 1, "three of four"


def test_a_cluster_grows_out_of_nodes_that_were_alone(lab: Lab) -> None:
    names = ("b1", "b2", "b3")
    alone(lab, *names)
    for name in list(lab.cluster.machines):
        if name not in names:
            del lab.cluster.machines[name]
    join(lab, "b3", "b1")
    lab.pass_time(10)
    join(lab, "b2", "b3")
    lab.until_converged()
    lab.pass_time(5)
    for name in names:
        assert voters(lab, name) == set(names)
    lab.cluster.stop("b1")
    lab.pass_time(5)
    members = lab.cluster.nodes["b2"].runtime.metadata.state.members
    assert not members[NodeName("b1")].is_up, "who founded it alone says goodbye like any other"


def test_a_node_far_away_gets_its_vote_while_something_is_declared_all_the_time(lab: Lab) -> None:
    """What it has is never all that is committed: that takes a tenth of a second to it."""
    lab.found()
    lab.cluster.personality = replace(lab.cluster.personality, link_delay_ms=(100, 100), slow_chunks_percent=0)
    alone(lab, "n4")
    join(lab, "n4", "n1")
    metadata, process = lab.cluster.nodes["n1"].runtime.metadata, lab.cluster.machines["n1"].process
    assert process is not None
    declared: list[asyncio.Task[object]] = []
    end_s = lab.loop.now_s + 20
    while "n4" not in voters(lab, "n1") and lab.loop.now_s < end_s:
        declare = DeclareQueue("/", f"q{len(declared)}", durable=True)
        declared.append(process.create_task(metadata.change(ChangeTopology(declare, NodeName("n1")))))
        lab.pass_time(0.03)
    assert "n4" in voters(lab, "n1")
    lab.until_converged()
    assert all(task.done() and task.exception() is None for task in declared)


def test_who_has_learned_and_died_gets_no_vote(lab: Lab) -> None:
    """The two of three that live would be two of four."""
    lab.found()
    alone(lab, "n4")
    lab.cluster.kill("n3")
    lab.pass_time(10)
    leader = lab.leader()
    join(lab, "n4", leader)
    core = lab.cluster.nodes[leader].raft.core
    end_s = lab.loop.now_s + 20
    while not core.has_learned(NodeName("n4")) and lab.loop.now_s < end_s:
        lab.pass_time(0.0005)
    assert "n4" not in core.voters, "not yet"
    lab.cluster.kill("n4")
    lab.pass_time(60)
    assert "n4" not in core.voters
    assert all(node.raft.pause is None for node in lab.cluster.nodes.values())


def test_the_alarm_of_a_node_that_dies_before_it_is_a_member_goes_with_it(lab: Lab) -> None:
    lab.found()
    alone(lab, "n4")
    disk = lab.cluster.machines["n4"].disk
    disk.capacity_bytes = disk.used_bytes + 900_000  # below the limit of the alarm
    lab.pass_time(11)
    join(lab, "n4", "n1")
    alarms = {name: lab.cluster.nodes[name].runtime.alarms for name in ("n1", "n2", "n3")}
    end_s = lab.loop.now_s + 20
    while not all("n4" in each.alarmed_peers for each in alarms.values()) and lab.loop.now_s < end_s:
        lab.pass_time(0.001)
    assert "n4" not in lab.cluster.nodes["n1"].runtime.metadata.state.members, "it has not come yet"
    lab.cluster.kill("n4")
    lab.pass_time(120)
    assert {name: each.registry.reason for name, each in alarms.items()} == dict.fromkeys(alarms, "")


def test_a_full_disk_while_joining_ends_no_keeper_of_a_link(lab: Lab) -> None:
    """Those are who notices when a peer is killed."""
    failures: list[str] = []
    lab.loop.set_exception_handler(lambda _loop, context: failures.append(str(context["message"])))
    lab.found()
    alone(lab, "n4")
    machine, before = lab.cluster.machines["n4"], lab.cluster.nodes["n4"]
    join(lab, "n4", "n1")
    while lab.cluster.nodes["n4"] is before:
        lab.pass_time(0.0005)
    room, machine.disk.capacity_bytes = machine.disk.capacity_bytes, 1
    lab.pass_time(5)
    machine.disk.capacity_bytes = room
    lab.until_converged()
    assert failures == []


def test_a_reset_that_failed_is_not_carried_out_later(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(lab, "n4")
    disk = lab.cluster.machines["n4"].disk

    def fail(path: str) -> None:
        monkeypatch.undo()
        raise StorageError(f"fsync of {path} failed: Input/output error (errno 5)")

    monkeypatch.setattr(disk, "sync_directory", fail)
    with pytest.raises(StorageError, match="errno 5"):
        lab.ask("n4", lambda admin: admin.reset())
    lab.declare("n4", "q")
    lab.cluster.kill("n4")
    lab.start("n4")
    lab.pass_time(5)
    assert lab.record("n4", "q") is not None


def test_two_join_at_once(lab: Lab) -> None:
    lab.found()
    alone(lab, "a1", "n4")
    join(lab, "n4", "n1")
    join(lab, "a1", "n1")
    lab.until_converged()
    lab.pass_time(5)
    assert voters(lab, "n1") == {"a1", "n1", "n2", "n3", "n4"}


def asked_at_once(lab: Lab, *requests: Callable[[AdminPort], Coroutine[Any, Any, Any]]) -> list[object]:
    """What n4 answers to operators who ask for this at the same time."""
    tasks = [lab.begin_to_ask("n4", request) for request in requests]
    end_s = lab.loop.now_s + 5
    while not all(task.done() for task in tasks) and lab.loop.now_s < end_s:
        lab.pass_time(0.0005)
    return [task.exception() or task.result() for task in tasks]


@pytest.mark.parametrize("others", [("n1", "x1"), ("x1", "n1"), ("n1", "n2")], ids=" ".join)
def test_of_two_operators_who_have_a_node_join_one_is_refused(lab: Lab, others: tuple[str, str]) -> None:
    lab.found()
    alone(lab, "n4", "x1")
    first, second = (partial(lambda at, admin: admin.join_cluster(at), address(lab, existing)) for existing in others)
    answers = asked_at_once(lab, first, second)
    refused = [(answer, existing) for answer, existing in zip(answers, others, strict=True) if is_refusal(answer)]
    assert len(refused) == 1
    ((refusal, _),) = refused
    assert isinstance(refusal, AdminRefused)
    (existing,) = (name for answer, name in zip(answers, others, strict=True) if not is_refusal(answer))
    lab.pass_time(20)
    assert "n4" in voters(lab, existing)
    cluster = "x1" if existing == "x1" else "n1, n2, n3"
    assert refusal.exit_code is ExitCode.TEMPORARY
    assert f"n4 was told just before to join the cluster of {cluster}" in refusal.message


def is_refusal(answer: object) -> bool:
    return isinstance(answer, Exception)


def test_a_reset_and_a_join_that_meet_are_not_both_done(lab: Lab) -> None:
    lab.found()
    alone(lab, "n4")
    where = address(lab, "n1")

    async def reset(admin: AdminPort) -> None:
        await admin.reset()

    joined, was_reset = asked_at_once(lab, lambda admin: admin.join_cluster(where), reset)
    assert was_reset is None
    assert isinstance(joined, AdminRefused)
    assert "n4 was told just before to begin again with nothing" in joined.message
    lab.pass_time(10)
    assert voters(lab, "n4") == {"n4"}


def test_who_begins_again_to_join_takes_no_other_order_meanwhile(lab: Lab) -> None:
    lab.found()
    alone(lab, "n4")
    join(lab, "n4", "n1")
    with pytest.raises(AdminRefused, match="n4 was told just before to join the cluster of n1, n2, n3"):
        lab.ask("n4", lambda admin: admin.reset())
    lab.until_converged()
    assert "n4" in voters(lab, "n1")


def test_who_has_data_is_told_to_give_it_up_first(lab: Lab) -> None:
    lab.found()
    alone(lab, "n4")
    lab.declare("n4", "mine")
    with pytest.raises(AdminRefused, match=r"n4 has 1 queues, which would be lost: `warrenctl reset --confirm`"):
        join(lab, "n4", "n1")
    lab.ask("n4", lambda admin: admin.reset())
    lab.pass_time(5)
    state = lab.cluster.nodes["n4"].runtime.metadata.state
    assert list(state.topology.all_queues()) == []
    join(lab, "n4", "n1")
    lab.until_converged()
    with pytest.raises(AdminRefused, match="n4 is a member of the cluster of n4, n1, n2, n3 and cannot be reset"):
        lab.ask("n4", lambda admin: admin.reset())
    with pytest.raises(AdminRefused, match="is a member of the cluster"):
        join(lab, "n4", "n1")


def test_who_cannot_join_is_told_why_and_loses_nothing(lab: Lab) -> None:
    lab.found()
    alone(lab, "n4")
    with pytest.raises(AdminRefused, match="is n4 itself"):
        join(lab, "n4", "n4")
    with pytest.raises(AdminRefused, match="bad address 'nowhere'"):
        lab.ask("n4", lambda admin: admin.join_cluster("nowhere"))
    with pytest.raises(AdminRefused, match=r"n4 could not ask a node at n9:25672: .*not its AMQP port") as caught:
        lab.ask("n4", lambda admin: admin.join_cluster("n9:25672"))
    assert caught.value.exit_code is ExitCode.TEMPORARY
    lab.cluster.admin_doors["n1"].cookie = "of another cluster"
    with pytest.raises(
        AdminRefused, match=r"n4's cookie is not that of the node at .*: give n4 the cluster's"
    ) as caught:
        join(lab, "n4", "n1")
    assert caught.value.exit_code is ExitCode.SOFTWARE
    lab.cluster.admin_doors["n1"].cookie = COOKIE
    lab.cluster.kill("n2")
    lab.cluster.kill("n3")
    lab.pass_time(10)
    with pytest.raises(AdminRefused, match="has no majority now"):
        join(lab, "n4", "n1")
    assert lab.cluster.nodes["n4"].clients.is_serving
    assert voters(lab, "n4") == {"n4"}


@pytest.mark.parametrize("moments_ms", [(5,), slow(((0, 1, 5, 20, 100, 400),))], ids=str)
def test_a_node_that_is_killed_while_it_joins_joins_at_its_next_start(lab: Lab, moments_ms: tuple[int, ...]) -> None:
    """At one moment after the other: in between its disk is lost, so that it may join again."""
    lab.found()
    alone(lab, "n4")
    for after_ms in moments_ms:
        join(lab, "n4", "n1")
        lab.pass_time(after_ms / 1000)
        lab.cluster.kill("n4")
        lab.pass_time(2)
        lab.start("n4")
        lab.until_converged()
        lab.pass_time(5)
        assert "n4" in voters(lab, "n1")
        lab.lose_disk("n4")
        lab.pass_time(10)
        lab.forget("n4", at="n1")
        lab.pass_time(3)
        lab.start("n4")
        lab.pass_time(5)


@pytest.mark.parametrize("name", ["a1", "n4"])
def test_who_was_away_while_another_came_finds_it_though_only_that_one_leads(lab: Lab, name: str) -> None:
    """Whether the one or the other is to open the link between them (seed 11873)."""
    lab.found()
    lab.cluster.kill("n3")
    lab.pass_time(10)
    alone(lab, name)
    join(lab, name, "n1")
    lab.pass_time(10)
    while (leader := lab.leader()) != name:
        lab.cluster.kill(leader)
        lab.start(leader)
        lab.pass_time(5)
    lab.start("n3")
    lab.until_converged()
    assert lab.leader() == name
    assert voters(lab, "n3") == {"n1", "n2", "n3", name}


def test_who_joined_and_was_forgotten_joins_again_under_its_name(lab: Lab) -> None:
    lab.found()
    alone(lab, "n4")
    for _ in range(2):
        join(lab, "n4", "n1")
        lab.until_converged()
        lab.pass_time(5)
        lab.lose_disk("n4")
        lab.pass_time(10)
        lab.forget("n4", at="n2")
        lab.pass_time(2)
        lab.start("n4")
        lab.pass_time(5)
        assert voters(lab, "n4") == {"n4"}, "with an empty directory it is alone again"
