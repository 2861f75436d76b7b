"""Nodes that stop in order, with their hosts as containers do: nobody waits until somebody is missed."""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.client import Connection
from chaos.sim.convergence import why_not_converged
from chaos.sim.machine import AMQP_PORT, DATA_DIR
from chaos.sim.sockets import connect
from cluster.metadata.commands import ChangeTopology
from node.ids import NodeName
from node.store.disk.distrust import MARK_FILE
from node.topology.commands import DeclareQueue
from tests.support.amounts import few_fast
from tests.support.sim_lab import NAMES, Lab

#: Raft's election timeout is a second at least.
WAIT_MAX_S = 0.5
DECLARE_EVERY_S = 0.05


def longest_declare_s(lab: Lab, at: str, lasts_s: float) -> float:
    """Declares on a node, one after the other; how long the slowest took until it was committed and applied there."""
    node, process = lab.cluster.nodes[at], lab.cluster.machines[at].process
    assert process is not None
    took: list[float] = []
    end_s = lab.loop.now_s + lasts_s

    async def declare_on() -> None:
        while lab.loop.now_s < end_s:
            began_s = lab.loop.now_s
            command = DeclareQueue("/", f"declared.{len(took)}", durable=True)
            await node.runtime.metadata.change(ChangeTopology(command, NodeName(at)))
            took.append(lab.loop.now_s - began_s)
            await asyncio.sleep(DECLARE_EVERY_S)

    task = process.create_task(declare_on())
    while not task.done():
        lab.pass_time(0.1)
    task.result()
    return max(took)


def is_marked(lab: Lab, name: str) -> bool:
    return lab.cluster.machines[name].disk.exists(f"{DATA_DIR}/{MARK_FILE}")


def test_only_who_has_stopped_in_order_is_believed_by_its_next_start(founded_lab: Lab) -> None:
    lab = founded_lab
    lab.cluster.stop("n1")
    lab.cluster.kill("n2")
    lab.cluster.fail_sync("n3")
    lab.pass_time(10)
    assert lab.ends_of("n3"), "it could not go on"
    assert [is_marked(lab, name) for name in NAMES] == [False, True, True]


@pytest.mark.parametrize("seed", few_fast(range(1, 4), 1))
def test_no_declare_waits_for_an_election_timeout_when_the_leader_stops_in_order(seed: int, lab: Lab) -> None:
    lab = Lab(lab.loop, seed)
    lab.found()
    for _ in range(2):
        leader = lab.leader()
        other = next(name for name in NAMES if name != leader)
        lab.cluster.stop_leader(is_with_host=1)
        assert longest_declare_s(lab, other, 4) < WAIT_MAX_S
        assert leader not in lab.cluster.nodes, "it has stopped"
        assert lab.leader() != leader
        lab.start(leader)
        lab.until_converged()


def test_a_leader_whose_heirs_do_not_answer_stops_all_the_same(lab: Lab) -> None:
    lab.found()
    leader = lab.leader()
    for other in NAMES:
        if other != leader:
            lab.cluster.pause(other)
    lab.cluster.stop(leader)
    lab.pass_time(15)
    assert leader not in lab.cluster.nodes
    for other in NAMES:
        lab.cluster.pause_end(other)
    lab.pass_time(5)
    assert lab.leader() != leader


def test_a_node_that_is_reset_and_told_to_stop_meanwhile_stops(lab: Lab) -> None:
    """It would begin again."""
    lab.cluster.add_machine("n4")
    lab.start("n4")
    lab.pass_time(5)
    lab.declare("n4", *(f"q{number}" for number in range(50)))
    lab.begin_to_ask("n4", lambda admin: admin.reset())
    first = lab.cluster.nodes["n4"]
    while not first.begins_again:
        lab.pass_time(0.0001)
    lab.cluster.stop("n4")
    assert lab.cluster.nodes["n4"] is first, "it is still on its way to its end"
    lab.pass_time(30)
    assert "n4" not in lab.cluster.nodes


def test_a_cluster_has_not_converged_while_a_node_that_stops_waits_for_a_client(lab: Lab) -> None:
    lab.found()
    stranger = lab.loop.start_process("stranger", lambda: 0.0001)
    # Half-open: the node takes it for a client that says nothing, and waits.
    lab.cluster.cut("n3", "stranger")
    stranger.create_task(connect(lab.cluster.network, stranger, "stranger", ("n3", AMQP_PORT), Connection))
    lab.pass_time(0.1)
    lab.cluster.stop("n3")
    lab.pass_time(1)
    assert "n3" in lab.cluster.nodes, "it still waits"
    assert why_not_converged(lab.cluster) == "n3 does not serve clients"
