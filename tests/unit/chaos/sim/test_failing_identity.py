"""A disk that cannot take down who a node is: full for a while, or broken, which ends the node as every failed sync."""

from __future__ import annotations

import pytest

from chaos.sim.loop import SimulatedLoop
from chaos.sim.machine import DATA_DIR
from cluster.runtime.identity import IDENTITY_FILE
from node.store.disk.simulated import SimulatedDisk
from tests.support.sim_lab import NAMES, PATIENCE_S, Lab

#: By what a node writes it to before it is renamed.
WRITTEN = f"{DATA_DIR}/{IDENTITY_FILE}.tmp"
#: n1 founds the cluster, and asks the others into it.
ASKED = NAMES[2]


@pytest.fixture
def lab(quiet_loop: SimulatedLoop) -> Lab:
    return Lab(quiet_loop)


def ended_by_its_disk(lab: Lab, name: str) -> bool:
    return any("the disk failed, this node stops: fsync of" in end for end in lab.ends_of(name))


def waiting(lab: Lab) -> SimulatedDisk:
    """The disk of a node that waits to be asked into the cluster that the others, which start now, are founding."""
    lab.start(ASKED)
    lab.pass_time(1)
    lab.start(*(name for name in NAMES if name != ASKED))
    return lab.cluster.machines[ASKED].disk


def test_a_node_whose_disk_cannot_take_its_group_ends_and_joins_when_it_can(lab: Lab) -> None:
    disk = waiting(lab)
    disk.fail_syncs = WRITTEN
    lab.pass_time(PATIENCE_S)
    assert ended_by_its_disk(lab, ASKED)
    disk.fail_syncs = None
    lab.start(ASKED)
    lab.until_converged()


def test_a_node_whose_disk_is_full_joins_when_there_is_room(lab: Lab) -> None:
    disk = waiting(lab)
    room, disk.capacity_bytes = disk.capacity_bytes, 1
    lab.pass_time(PATIENCE_S)
    assert not lab.is_founded(ASKED)
    assert not lab.ends_of(ASKED)
    disk.capacity_bytes = room
    lab.until_converged()


def test_a_node_whose_disk_cannot_take_the_new_protocol_ends(quiet_loop: SimulatedLoop) -> None:
    lab = Lab(quiet_loop, earlier=("n1",))
    lab.found()
    disk = lab.cluster.machines["n3"].disk
    disk.fail_syncs = WRITTEN
    lab.cluster.upgrade("n1")
    lab.pass_time(PATIENCE_S)
    assert ended_by_its_disk(lab, "n3")
    disk.fail_syncs = None
    lab.start("n3")
    lab.until_converged()
    assert b"protocol = 3\n" in lab.identity("n3")
