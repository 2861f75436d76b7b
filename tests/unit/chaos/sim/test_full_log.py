"""A node whose disk does not take the log of the metadata: silent, and what was asked of it then is not done later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.transport.admin_port import AdminRefused, ExitCode
from tests.support.sim_lab import NAMES, Lab

#: Of virtual time: many times what a declaration takes that waits for nobody.
QUICK_S = 0.5
#: Long after whoever asked was told that nobody knows.
MINUTES_S = 120


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


def pause(lab: Lab, name: str) -> None:
    while lab.cluster.nodes[name].clients.is_serving:
        lab.pass_time(0.05)


def make_room(lab: Lab, name: str, room: int) -> None:
    lab.cluster.machines[name].disk.capacity_bytes = room
    lab.pass_time(10)
    lab.until_converged()


def test_a_vhost_whose_deletion_was_given_up_is_not_deleted_long_after(founded_lab: Lab) -> None:
    lab = founded_lab
    lab.ask("n1", lambda admin: admin.add_vhost("v"))
    lab.declare("n1", "q", vhost="v")
    lab.until_converged()
    leader, name, room = stalled(lab)
    with pytest.raises(AdminRefused, match="not known whether the change will be made") as caught:
        lab.ask(name, lambda admin: admin.delete_vhost("v"))
    assert caught.value.exit_code is ExitCode.TEMPORARY
    lab.pass_time(MINUTES_S)
    make_room(lab, name, room)
    assert lab.cluster.nodes[leader].runtime.metadata.state.topology.has_vhost("v")


def test_a_policy_that_was_given_up_does_not_replace_a_newer_one(founded_lab: Lab) -> None:
    lab = founded_lab
    leader, name, room = stalled(lab)
    with pytest.raises(AdminRefused, match="not known whether the change will be made"):
        lab.set_policy(name, {"ha-mode": "exactly", "ha-params": 1})
    lab.pass_time(MINUTES_S)
    lab.set_policy(leader, {"ha-mode": "all"})
    make_room(lab, name, room)
    assert lab.cluster.nodes[leader].runtime.metadata.state.policies["/", "lab"].definition == {"ha-mode": "all"}


def test_nothing_piles_up_meanwhile(founded_lab: Lab) -> None:
    lab = founded_lab
    _, name, room = stalled(lab)
    lab.pass_time(MINUTES_S)
    core = lab.cluster.nodes[name].raft.core
    assert len(core._messages_now) + len(core._messages_after_append) < 20
    make_room(lab, name, room)


def test_declarations_on_the_other_nodes_are_quick_once_it_serves_no_clients(founded_lab: Lab) -> None:
    lab = founded_lab
    _, full, room = stalled(lab)
    pause(lab, full)
    lab.pass_time(0.1)
    for entry in (name for name in NAMES if name != full):
        began_s = lab.loop.now_s
        lab.use_channel(entry, lambda channel, entry=entry: channel.declare(f"q {entry}"))  # type: ignore[misc]
        assert lab.loop.now_s - began_s < QUICK_S
    make_room(lab, full, room)


def test_it_knows_what_was_declared_without_it_before_it_serves_again(founded_lab: Lab) -> None:
    lab = founded_lab
    leader, full, room = stalled(lab)
    pause(lab, full)
    lab.pass_time(0.1)
    lab.cluster.machines[full].disk.capacity_bytes = room
    declared: list[str] = []
    while not lab.cluster.nodes[full].clients.is_serving:
        name = f"q {len(declared)}"
        lab.use_channel(leader, lambda channel, name=name: channel.declare(name))  # type: ignore[misc]
        declared.append(name)
    topology = lab.cluster.nodes[full].runtime.metadata.state.topology
    assert len(declared) > 1
    assert [name for name in declared if topology.queue("/", name) is None] == []
    lab.until_converged()


def test_who_hears_late_of_its_return_has_not_answered_without_it(founded_lab: Lab) -> None:
    """One node goes on answering its clients meanwhile, and what that has made comes late to the one that returns."""
    lab = founded_lab
    leader, full, room = stalled(lab)
    late = next(name for name in NAMES if name not in (leader, full))
    pause(lab, full)
    lab.pass_time(0.1)
    lab.cluster.slow_link(full, late, 1000)
    lab.cluster.slow_link(leader, full, 300)
    lab.cluster.machines[full].disk.capacity_bytes = room
    while not lab.cluster.nodes[full].clients.is_serving:
        lab.pass_time(0.01)
    lab.use_channel(late, lambda channel: channel.declare("q"))
    lab.publish(full, "q", 1)
    lab.until_converged()
    assert lab.ready(late, "q") == 1


def test_a_snapshot_for_which_there_is_no_descriptor_is_waited_for(lab: Lab) -> None:
    """Of the leader's: it is another file beside the log."""
    lab.cluster.personality = replace(lab.cluster.personality, log_entries_kept=5)
    lab.found()
    leader = lab.leader()
    late = next(name for name in NAMES if name != leader)
    lab.cluster.isolate(late)
    lab.pass_time(20)
    lab.declare(leader, *(f"queue {number}" for number in range(30)))
    disk = lab.cluster.machines[late].disk
    disk.open_limit = len(disk.descriptors)
    lab.cluster.isolate_end(late)
    lab.pass_time(20)
    assert lab.ends_of(late) == []
    assert lab.cluster.nodes[late].raft._stalled is not None
    disk.open_limit = None
    lab.until_converged()
