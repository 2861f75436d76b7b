"""Nodes that are started again under another address, in whole simulated clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.config import Address
from node.ids import NodeName
from tests.support.amounts import few_fast
from tests.support.sim_lab import NAMES, Lab


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def move(lab: Lab, name: str, port: int) -> None:
    """Its own configuration is changed, nobody else's."""
    machine = lab.cluster.machines[name]
    address = Address(name, port)
    machine.config = replace(machine.config, cluster_listener=address, cluster_advertised_address=address)


def stop(lab: Lab, *names: str) -> None:
    for name in names:
        lab.cluster.stop(name)
    while any(name in lab.cluster.nodes for name in names):
        lab.pass_time(0.1)


@pytest.mark.parametrize("mover", few_fast(NAMES, 1))
def test_a_node_that_moved_is_found_by_the_others(lab: Lab, mover: str) -> None:
    for port in (25673, 25674, 25673):
        stop(lab, mover)
        lab.pass_time(2)
        move(lab, mover, port)
        lab.start(mover)
        lab.until_converged()
        for node in lab.cluster.nodes.values():
            member = node.runtime.metadata.state.members[NodeName(mover)]
            assert member.cluster_address == f"{mover}:{port}"
    others = [name for name in NAMES if name != mover]
    for other in others:  # whose configuration still has the first address
        stop(lab, other)
        lab.start(other)
        lab.until_converged()
    lab.cluster.kill(others[0])
    lab.pass_time(10)
    assert len([name for name, node in lab.cluster.nodes.items() if node.raft.core.is_leader]) == 1


@pytest.mark.parametrize("mover", few_fast(NAMES, 1))
def test_a_node_that_moved_while_another_is_down_is_found_by_that_one_too(lab: Lab, mover: str) -> None:
    late, other = (name for name in NAMES if name != mover)
    stop(lab, late)
    stop(lab, mover)
    move(lab, mover, 25673)
    lab.start(mover)
    lab.pass_time(10)
    lab.cluster.kill(other)
    lab.start(late)
    lab.pass_time(10)
    assert mover in lab.cluster.nodes[late].mesh.up_peers
    lab.start(other)
    lab.until_converged()


def test_nodes_that_all_moved_at_once_find_each_other_where_their_configuration_says(lab: Lab) -> None:
    stop(lab, *NAMES)
    for name, port in zip(NAMES, (25673, 25674, 25675), strict=True):
        move(lab, name, port)
    formation = tuple(
        member._replace(cluster_address=lab.cluster.machines[member.name].config.cluster_advertised_address)
        for member in lab.cluster.machines["n1"].config.members
    )
    for name in NAMES:  # all at once: then everybody has to be told where the others are now
        machine = lab.cluster.machines[name]
        machine.config = replace(machine.config, members=formation)
    lab.start(*NAMES)
    lab.until_converged()
