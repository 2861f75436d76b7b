"""Vhosts that come and go, with what nodes have of them on their disks."""

from __future__ import annotations

import pytest

from chaos.sim.machine import DATA_DIR
from cluster.transport.admin_port import AdminRefused
from node.queues.vhost_store import vhost_directory
from tests.support.sim_lab import NAMES, Lab

VHOST = "tenant"


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def settle_in(lab: Lab) -> None:
    """Queues with mirrors everywhere."""
    lab.ask("n1", lambda admin: admin.add_vhost(VHOST))
    for name in NAMES:
        lab.declare(name, f"of {name}", vhost=VHOST)
    lab.until_converged()
    assert [name for name in NAMES if files_of_tenant(lab, name)] == list(NAMES)


def files_of_tenant(lab: Lab, name: str) -> list[str]:
    directory = vhost_directory(DATA_DIR, VHOST)
    return [path for path in lab.cluster.machines[name].disk.snapshot() if path.startswith(directory)]


def test_nothing_is_left_of_a_vhost_that_was_deleted(lab: Lab) -> None:
    settle_in(lab)
    lab.ask("n2", lambda admin: admin.delete_vhost(VHOST))
    lab.pass_time(5)
    lab.until_converged()
    assert [files_of_tenant(lab, name) for name in NAMES] == [[], [], []]


@pytest.mark.parametrize("away", ["n1", "n3"])
def test_nothing_is_left_of_a_vhost_on_a_node_that_was_away_when_it_was_deleted(lab: Lab, away: str) -> None:
    settle_in(lab)
    lab.cluster.kill(away)
    lab.pass_time(5)
    lab.ask("n2", lambda admin: admin.delete_vhost(VHOST))
    lab.pass_time(5)
    lab.start(away)
    lab.until_converged()
    lab.pass_time(5)
    assert [files_of_tenant(lab, name) for name in NAMES] == [[], [], []]


def test_a_deletion_that_a_line_held_does_not_delete_the_vhost_that_was_made_anew(lab: Lab) -> None:
    """The operator was told by its node that nobody knows, and did both through another one."""
    settle_in(lab)
    leader = lab.leader()
    entry, other = (name for name in NAMES if name != leader)
    lab.cluster.cut(entry, leader)
    asked = lab.begin_to_ask(entry, lambda admin: admin.delete_vhost(VHOST))
    while not asked.done():
        lab.pass_time(0.02)
    assert isinstance(asked.exception(), AdminRefused)
    lab.ask(other, lambda admin: admin.delete_vhost(VHOST))
    lab.ask(other, lambda admin: admin.add_vhost(VHOST))
    lab.declare(other, "anew", vhost=VHOST)
    lab.cluster.cut_end(entry, leader)
    lab.pass_time(5)
    lab.until_converged()
    assert lab.cluster.nodes[other].runtime.metadata.state.topology.queue(VHOST, "anew") is not None


def test_a_vhost_that_is_made_anew_at_once_is_whole(lab: Lab) -> None:
    settle_in(lab)
    lab.ask("n2", lambda admin: admin.delete_vhost(VHOST))
    settle_in(lab)
    for name in NAMES:
        lab.cluster.kill(name)
    lab.start(*NAMES)
    lab.until_converged()
    assert len(list(lab.cluster.nodes["n1"].runtime.metadata.state.topology.queues(VHOST))) == 3
