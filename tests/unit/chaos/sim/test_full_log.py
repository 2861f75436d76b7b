"""A node whose disk does not take the log of the metadata: silent, and what was asked of it then is not done later."""

from __future__ import annotations

import pytest

from cluster.transport.admin_port import AdminRefused, ExitCode
from tests.support.sim_lab import Lab


def stalled(lab: Lab) -> tuple[str, str, int]:
    """The leader, another node whose disk is full and has refused an entry of the log, and the room it had."""
    leader = lab.leader()
    name = next(name for name in ("n3", "n2") if name != leader)
    disk = lab.cluster.machines[name].disk
    room, disk.capacity_bytes = disk.capacity_bytes, 1
    lab.declare(leader, "other")
    while lab.cluster.nodes[name].raft._stalled is None:
        lab.pass_time(0.01)
    return leader, name, room


def make_room(lab: Lab, name: str, room: int) -> None:
    lab.cluster.machines[name].disk.capacity_bytes = room
    lab.pass_time(10)
    lab.until_converged()


def test_a_vhost_whose_deletion_was_given_up_is_not_deleted_an_hour_later(founded_lab: Lab) -> None:
    lab = founded_lab
    lab.ask("n1", lambda admin: admin.add_vhost("v"))
    lab.declare("n1", "q", vhost="v")
    lab.until_converged()
    leader, name, room = stalled(lab)
    with pytest.raises(AdminRefused, match="not known whether the change will be made") as caught:
        lab.ask(name, lambda admin: admin.delete_vhost("v"))
    assert caught.value.exit_code is ExitCode.TEMPORARY
    lab.pass_time(3600)
    make_room(lab, name, room)
    assert lab.cluster.nodes[leader].runtime.metadata.state.topology.has_vhost("v")


def test_a_policy_of_an_hour_ago_does_not_replace_a_newer_one(founded_lab: Lab) -> None:
    lab = founded_lab
    leader, name, room = stalled(lab)
    with pytest.raises(AdminRefused, match="not known whether the change will be made"):
        lab.set_policy(name, {"ha-mode": "exactly", "ha-params": 1})
    lab.pass_time(3600)
    lab.set_policy(leader, {"ha-mode": "all"})
    make_room(lab, name, room)
    assert lab.cluster.nodes[leader].runtime.metadata.state.policies["/", "lab"].definition == {"ha-mode": "all"}


def test_nothing_piles_up_meanwhile(founded_lab: Lab) -> None:
    lab = founded_lab
    _, name, room = stalled(lab)
    lab.pass_time(600)
    core = lab.cluster.nodes[name].raft.core
    assert len(core._messages_now) + len(core._messages_after_append) < 20
    make_room(lab, name, room)
