"""Nodes that begin again on an empty disk under a name that the others know, in whole simulated clusters."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from cluster.metadata.errors import NodeStillUpError, NoSuchNodeError
from cluster.raft.storage import RaftStorage
from cluster.runtime.admission import COMING_MS
from cluster.transport.admin_port import AdminPort, AdminRefused, ExitCode, QueueSelection
from node.config import Address, Member
from node.ids import NodeName
from node.store.disk.disk import read_whole, write_durably
from tests.support.amounts import few_fast
from tests.support.sim_lab import NAMES, Lab


def test_a_wiped_node_ends_with_the_two_ways_out_and_the_others_go_on(lab: Lab) -> None:
    for name in NAMES:
        lab.found()
        lab.cluster.wipe(name)
        lab.pass_time(5)
        assert name not in lab.cluster.nodes, "it has ended by itself"
        (end,) = lab.ends_of(name)
        assert f"`warrenctl forget_cluster_node {name}`" in end
        assert "restore the whole directory" in end
        assert "`warrenctl join_cluster`" in end
        others = [lab.cluster.nodes[other] for other in NAMES if other != name]
        assert any(node.raft.core.is_leader for node in others)
        for node in others:
            assert not node.runtime.metadata.state.members[NodeName(name)].is_up, "it counts as down"
        lab.cluster.wipe_end(name)
        lab.until_converged()


def test_a_node_wiped_before_anybody_saw_it_go_has_no_vote(lab: Lab) -> None:
    lab.found()
    leader = lab.leader()
    wiped, other = (name for name in NAMES if name != leader)
    lab.cluster.kill(leader)
    lab.cluster.wipe(wiped)
    lab.pass_time(30)
    # One that remembers and one that does not are no majority.
    assert not lab.cluster.nodes[other].raft.core.is_leader
    assert wiped not in lab.cluster.nodes
    lab.start(leader)
    lab.pass_time(10)
    assert lab.cluster.nodes[leader].raft.core.leader is not None, "the two that remember are one"


@pytest.mark.parametrize("survivor", few_fast(NAMES, 1))
def test_a_wiped_majority_founds_nothing_beside_the_node_that_remembers(lab: Lab, survivor: str) -> None:
    lab.found()
    lab.cluster.kill(survivor)
    wiped = [name for name in NAMES if name != survivor]
    for name in wiped:
        lab.cluster.wipe(name)
    lab.pass_time(40)
    assert not any(lab.is_founded(name) for name in wiped), "while the survivor is away they wait for it"
    lab.start(survivor)
    lab.pass_time(20)
    assert [name for name in NAMES if name in lab.cluster.nodes] == [survivor], "and then they are refused"
    for name in wiped:
        lab.cluster.wipe_end(name)
    lab.until_converged()


def test_a_cluster_of_which_nothing_is_left_is_founded_anew(lab: Lab) -> None:
    lab.found()
    for name in NAMES:
        lab.cluster.kill(name)
        lab.cluster.machines[name].wipe_disk()
    lab.found()


def test_who_waits_for_its_cluster_to_be_founded_says_so(lab: Lab) -> None:
    """Two of three are a majority, of a cluster that there is."""
    lab.start("n1", "n2")
    lab.pass_time(10)
    for request in (lambda admin: admin.list_queues("/", (), QueueSelection()), forget_n3):
        with pytest.raises(AdminRefused, match=r"founded when all of its nodes have started.*lacks n3") as caught:
            lab.ask("n1", request)
        assert "majority" not in caught.value.message
        assert "--offline" not in caught.value.message
    assert "take that one off their lists" in caught.value.message


def forget_n3(admin: AdminPort) -> Coroutine[Any, Any, Any]:
    return admin.forget_cluster_node("n3")


@pytest.mark.parametrize("last", few_fast(NAMES, 1))
def test_a_cluster_is_founded_when_its_last_node_has_started_in_any_order(lab: Lab, last: str) -> None:
    first = [name for name in NAMES if name != last]
    lab.start(*reversed(first))
    lab.pass_time(30)
    assert not any(lab.is_founded(name) for name in first)
    lab.start(last)
    lab.until_converged()


@pytest.mark.parametrize(
    ("after_ms", "victim"),
    few_fast(((ms, victim) for ms in (1, 3, 5, 8, 12, 20, 40, 80, 200, 1000) for victim in NAMES), 3),
)
def test_a_node_wiped_while_its_cluster_is_founded_is_of_it_or_refused(lab: Lab, victim: str, after_ms: int) -> None:
    """Nobody can have counted on it under one identity and then on another."""
    lab.start(*NAMES)
    lab.pass_time(after_ms / 1000)
    lab.cluster.wipe(victim)
    lab.pass_time(30)
    identities = set()
    for name, node in lab.cluster.nodes.items():
        configuration = node.raft.core.log.configuration
        if configuration:
            identities.add(configuration)
        lab.check_invariants()
        known = node.raft.core.log.identity_of(NodeName(victim))
        assert name != victim or known in (None, node_identity(lab, victim))
    assert len(identities) <= 1, "one group was founded at most"
    assert sum(node.raft.core.is_leader for node in lab.cluster.nodes.values()) == 1


def node_identity(lab: Lab, name: str) -> str:
    said = dict(line.split(" = ", 1) for line in lab.identity(name).decode().splitlines())
    return said.get("identity") or said["directory"]


@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize("after_ms", few_fast((1, 3, 5, 8, 12, 20, 40), 2))
def test_a_node_that_restarts_while_its_cluster_is_founded_is_of_it(lab: Lab, victim: str, after_ms: int) -> None:
    lab.start(*NAMES)
    lab.pass_time(after_ms / 1000)
    lab.cluster.kill(victim)
    lab.start(victim)
    lab.until_converged()


def test_a_directory_without_its_raft_log_does_not_start(lab: Lab) -> None:
    lab.found()
    lab.cluster.kill("n2")
    disk = lab.cluster.machines["n2"].disk
    for name in disk.list("/data/raft"):
        disk.unlink(f"/data/raft/{name}")
    lab.start("n2")
    lab.pass_time(1)
    assert "has lost the log of the metadata" in lab.ends_of("n2")[-1]


def test_an_older_copy_of_a_directory_is_refused(lab: Lab) -> None:
    lab.found()
    for _ in range(3):
        lab.cluster.kill("n3")
        lab.start("n3")
        lab.until_converged()
    disk = lab.cluster.machines["n3"].disk
    lab.cluster.kill("n3")
    disk.unlink("/data/incarnation")
    lab.start("n3")
    lab.pass_time(5)
    assert "is an older copy" in lab.ends_of("n3")[-1]


def test_a_backup_of_a_stopped_node_is_refused_after_it_was_started_once(lab: Lab) -> None:
    lab.found()
    machine = lab.cluster.machines["n3"]
    lab.cluster.kill("n3")
    lab.pass_time(5)
    backup = machine.disk.snapshot()
    lab.start("n3")
    lab.until_converged()
    lab.declare("n1", "since")
    lab.cluster.kill("n3")
    lab.pass_time(5)
    machine.wipe_disk()
    for path, content in backup.items():
        machine.disk.mkdir(path.rpartition("/")[0])
        write_durably(machine.disk, path, content)
    lab.start("n3")
    lab.pass_time(5)
    assert "is an older copy" in lab.ends_of("n3")[-1]


def test_directories_of_a_release_without_identities_get_some_that_the_group_notes(lab: Lab) -> None:
    for name in NAMES:
        begin_as_earlier_release(lab, name)
    lab.start(*NAMES)
    lab.until_converged()
    lab.pass_time(10)
    (configuration,) = {frozenset(node.raft.core.log.configuration) for node in lab.cluster.nodes.values()}
    assert dict(configuration) == {name: node_identity(lab, name) for name in NAMES}
    lab.cluster.wipe("n3")
    lab.pass_time(5)
    assert "the data of n3 is lost" in lab.ends_of("n3")[-1]


def test_a_node_wiped_before_its_group_noted_its_first_identity_is_refused(lab: Lab) -> None:
    for name in ("n1", "n2"):
        begin_as_earlier_release(lab, name)
    lab.start(*NAMES)
    lab.pass_time(10)
    assert "the data of n3 is lost" in lab.ends_of("n3")[-1]
    assert any(node.raft.core.is_leader for node in lab.cluster.nodes.values())


def begin_as_earlier_release(lab: Lab, name: str) -> None:
    """The directory as that release made it at its first start."""
    disk = lab.cluster.machines[name].disk
    disk.mkdir("/data")
    RaftStorage.open(disk, "/data/raft", [NodeName(each) for each in NAMES])[0].close()
    write_durably(disk, "/data/incarnation", b"1")


# --- forgotten, and taken in again


@pytest.mark.parametrize("victim", few_fast(NAMES, 1))
def test_who_has_lost_its_disk_is_forgotten_and_joins_as_a_new_node(lab: Lab, victim: str) -> None:
    lab.found()
    other = next(name for name in NAMES if name != victim)
    for _ in range(2):  # it may happen again
        before = incarnation(lab, victim)
        lab.lose_disk(victim)
        lab.pass_time(10)
        lab.forget(victim, at=other)
        lab.pass_time(2)
        assert victim not in lab.cluster.nodes[other].raft.core.voters
        lab.start(victim)
        lab.until_converged()
        lab.pass_time(5)
        for node in lab.cluster.nodes.values():
            assert dict(node.raft.core.log.configuration)[NodeName(victim)] == node_identity(lab, victim)
            assert set(node.raft.core.voters) == set(NAMES)
        assert incarnation(lab, victim) > before
        assert not any("stuck" in line for line in lab.story)


def test_an_operator_who_forgets_a_node_twice_leaves_it_the_disk_with_which_it_comes_in(lab: Lab) -> None:
    """Of the simulator's operator, and seeds 10571508 and 819191577: a disk that the cluster counts on was deleted."""
    lab.found()
    lab.cluster.wipe("n3")
    lab.pass_time(10)
    lab.forget("n3", at="n1")
    lab.cluster.forgotten("n3")
    lab.cluster.start("n3")
    lab.cluster.forgotten("n3")
    lab.until_converged()
    lab.cluster.joined("n3")
    identity = lab.identity("n3")
    lab.cluster.kill("n3")
    lab.start("n3")
    lab.until_converged()
    assert lab.identity("n3") == identity


@pytest.mark.parametrize("after_ms", few_fast((3, 8, 20, 60, 120, 200), 2))
def test_who_loses_its_disk_again_while_it_learns_is_taught_from_the_beginning(lab: Lab, after_ms: int) -> None:
    lab.found()
    lab.replace_disk("n3", at="n1")
    lab.pass_time(after_ms / 1000)
    lab.lose_disk("n3")
    lab.start("n3")
    lab.pass_time(10)
    if "n3" not in lab.cluster.nodes:  # it voted already
        assert "the data of n3 is lost" in lab.ends_of("n3")[-1]
        lab.forget("n3", at="n1")
        lab.start("n3")
    lab.until_converged()
    lab.pass_time(5)
    for node in lab.cluster.nodes.values():
        assert dict(node.raft.core.log.configuration)[NodeName("n3")] == node_identity(lab, "n3")


def test_a_disk_whose_place_another_has_taken_before_it_voted_gets_no_vote(lab: Lab) -> None:
    """It learns under the name of the other, as a majority that is away decides about both when it is back."""
    lab.found()
    lab.replace_disk("n3", at="n1")
    while not lab.cluster.nodes["n1"].runtime.metadata.state.admissions.admitted:
        lab.pass_time(0.001)
    lab.cluster.kill("n2")
    lab.pass_time(0.3)
    lab.cluster.kill("n3")
    lab.pass_time(COMING_MS / 1000)
    lab.cluster.cut("n2", "n3")  # or n2 would have the one before let in again
    lab.cluster.cut("n3", "n2")
    machine = lab.cluster.machines["n3"]
    machine.wipe_disk()
    lab.start("n3")  # n1 is to let the new one in, as soon as it can
    lab.pass_time(0.2)
    other = node_identity(lab, "n3")
    lab.cluster.kill("n3")
    machine.restore_disk()
    lab.start("n3")
    lab.pass_time(1)
    lab.start("n2")
    lab.pass_time(30)
    node = lab.cluster.nodes["n1"]
    assert node.runtime.metadata.state.admissions.admitted[NodeName("n3")].identity == other
    assert node.raft.core.log.identity_of(NodeName("n3")) is None, "it is not there to learn"


def test_a_cluster_goes_on_with_the_new_node_when_an_old_one_dies(lab: Lab) -> None:
    lab.found()
    lab.replace_disk("n3", at="n1")
    lab.until_converged()
    lab.pass_time(5)
    lab.cluster.kill("n1")
    lab.pass_time(20)
    assert sum(lab.cluster.nodes[name].raft.core.is_leader for name in ("n2", "n3")) == 1


def test_whom_only_a_configuration_lists_is_no_member(lab: Lab) -> None:
    lab.found()
    lab.cluster.kill("n3")
    machine = lab.cluster.machines["n3"]
    extra = Member(NodeName("n9"), Address("n9", 25672))
    machine.config = replace(machine.config, members=(*machine.config.members, extra))
    lab.start("n3")
    lab.until_converged()
    assert lab.ask("n3", lambda admin: admin.cluster_status())["disk_nodes"] == [*NAMES]
    lab.cluster.kill("n1")
    lab.cluster.kill("n2")
    lab.pass_time(10)
    assert lab.ask("n3", lambda admin: admin.cluster_status())["paused"]["n3"]["lacks"] == ["n1", "n2"]


def test_who_would_forget_without_a_majority_is_told_of_the_offline_way(lab: Lab) -> None:
    """n2 counts as up, as nobody could decide that it is not; to call it running would be wrong."""
    lab.found()
    lab.cluster.kill("n2")
    lab.cluster.kill("n3")
    lab.pass_time(10)
    with pytest.raises(AdminRefused, match=r"lacks n2, n3\); to forget a node takes a majority.*--offline") as caught:
        lab.forget("n2", at="n1")
    assert caught.value.exit_code is ExitCode.TEMPORARY


def test_a_node_that_runs_is_not_forgotten(lab: Lab) -> None:
    lab.found()
    with pytest.raises(NodeStillUpError, match="must be stopped before it can be removed"):
        lab.forget("n3", at="n1")
    with pytest.raises(NoSuchNodeError):
        lab.forget("n7", at="n1")


def test_a_forgotten_node_that_returns_is_told_what_to_do(lab: Lab) -> None:
    lab.found()
    lab.cluster.kill("n3")
    lab.pass_time(10)
    lab.forget("n3", at="n1")
    lab.pass_time(2)
    lab.start("n3")
    lab.pass_time(10)
    assert "n3 was removed from the cluster of n1, n2: delete its data directory" in lab.ends_of("n3")[-1]
    assert NodeName("n3") not in lab.cluster.nodes["n1"].runtime.metadata.state.members
    for name in ("n1", "n2"):  # whose configuration still names it
        lab.cluster.kill(name)
    lab.start("n1", "n2")
    lab.pass_time(10)
    assert sum(lab.cluster.nodes[name].raft.core.is_leader for name in ("n1", "n2")) == 1


def test_two_of_three_nodes_that_lost_their_disks_are_replaced_one_after_the_other(lab: Lab) -> None:
    lab.found()
    for victim in ("n2", "n3"):
        lab.replace_disk(victim, at="n1")
        lab.until_converged()
        lab.pass_time(5)
    lab.cluster.kill("n1")
    lab.pass_time(20)
    assert sum(lab.cluster.nodes[name].raft.core.is_leader for name in ("n2", "n3")) == 1


def incarnation(lab: Lab, name: str) -> int:
    return int(read_whole(lab.cluster.machines[name].disk, "/data/incarnation"))


# --- who waits at its first start


def test_whoever_waits_for_the_others_at_its_first_start_is_calm(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)
    caplog.set_level(logging.INFO)
    lab.start("n1")
    lab.pass_time(20)
    lab.start("n2", "n3")
    lab.until_converged()
    said = [
        record for record in caplog.records if "pause" in record.getMessage() or "not served" in record.getMessage()
    ]
    assert [record.levelname for record in said] == ["INFO"]
    assert "clients are not served yet" in said[0].getMessage()
    assert "waits for n2, n3" in said[0].getMessage()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_what_an_empty_disk_has_free_is_what_its_node_measures(lab: Lab) -> None:
    """And not what was free on the one before it, which may have been full."""
    lab.found()
    machine = lab.cluster.machines["n3"]
    lab.cluster.full_disk("n3", 1000)
    assert machine.probe.free_disk_bytes() == 1000
    lab.cluster.wipe("n3")
    lab.cluster.full_disk_end("n3")
    assert machine.probe.free_disk_bytes() > 1_000_000
    lab.cluster.full_disk("n3", 1000)
    assert machine.probe.free_disk_bytes() == 1000
    lab.pass_time(5)
    lab.cluster.wipe_end("n3")
    lab.until_converged()
    assert machine.probe.free_disk_bytes() > 1_000_000, "what ailed it ended while it was elsewhere"


def test_a_node_that_joins_cannot_be_forgotten_before_it_is_stopped(lab: Lab) -> None:
    """Nobody has committed yet that it is up. It would not hear of it: it waited for ever."""
    lab.found()
    lab.replace_disk("n3", at="n1")
    runtime = lab.cluster.nodes["n1"].runtime
    while NodeName("n3") not in runtime.links.linked_nodes():
        lab.pass_time(0.001)
    assert NodeName("n3") not in runtime.metadata.state.members, "it has not announced itself"
    with pytest.raises(NodeStillUpError):
        lab.forget("n3", at="n1")
    lab.until_converged()
