"""Somebody copies the data directory of a node that runs, and starts the copy somewhere else for a while."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import pytest

from chaos.sim.machine import Machine
from node.config import Address
from node.store.disk.disk import write_durably
from node.throttled_log import kind_of
from tests.support.sim_lab import Lab

COPY = "copy"
#: After the copy has gone: its links are broken, and what it may have said last is past.
BACK_WITHIN_S = 10


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def start_copy(lab: Lab, name: str) -> None:
    """Of the directory of a node, on a machine of its own."""
    cluster = lab.cluster
    original = cluster.machines[name]
    machine = Machine(COPY, lab.loop, cluster.network, cluster.personality, 1, cluster.admin_doors)
    address = Address(COPY, original.config.cluster_listener.port)
    machine.config = replace(original.config, cluster_listener=address, cluster_advertised_address=address)
    for path, content in original.disk.snapshot().items():
        machine.disk.mkdir(path.rpartition("/")[0])
        write_durably(machine.disk, path, content)
    cluster.machines[COPY] = machine
    cluster.deaths[COPY], cluster.powers[COPY] = [], []
    lab.start(COPY)


def end_copy(lab: Lab) -> None:
    lab.cluster.kill(COPY)
    del lab.cluster.machines[COPY]


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_a_node_whose_copy_ran_beside_it_is_linked_again_when_that_has_gone(lab: Lab, name: str) -> None:
    start_copy(lab, name)
    lab.pass_time(8)
    assert COPY in lab.cluster.nodes, "nobody can tell it from the node itself"
    end_copy(lab)
    lab.pass_time(BACK_WITHIN_S)
    assert {len(node.mesh.up_peers) for node in lab.cluster.nodes.values()} == {2}
    lab.until_converged()
    assert not lab.ends_of(name)


def test_a_node_whose_copy_is_taken_for_it_by_the_cluster_ends_and_says_why(lab: Lab) -> None:
    """n1 opens the links to both others, so its copy takes them all."""
    start_copy(lab, "n1")
    lab.pass_time(8)
    assert "is an older copy" in lab.ends_of("n1")[-1]


def test_what_two_processes_of_one_node_cause_is_said_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)
    start_copy(lab, "n2")
    lab.pass_time(50)
    refusals = Counter(kind_of(message) for message in caplog.messages if "older than the present one" in message)
    assert max(refusals.values()) == 1
    assert sum(refusals.values()) == 2, "by who refuses and who is refused"
