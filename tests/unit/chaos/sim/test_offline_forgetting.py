"""A majority that is gone for good, and what becomes of it when it is not."""

from __future__ import annotations

from random import Random

import pytest

from chaos.sim.machine import DATA_DIR
from cluster.metadata.codec import _CODES, encode_request
from cluster.metadata.commands import AddMirror, AdmitNode, Request, RequestId
from cluster.metadata.errors import NewerReleaseError
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.raft.messages import Entry, EntryKind, Ready
from cluster.raft.storage import RaftStorage
from cluster.runtime.identity import RAFT_DIRECTORY, IdentityFile, read_identity
from cluster.runtime.offline_forgetting import carry_out, plan_forgetting
from node.errors import ConfigError, StorageError
from node.ids import Epoch, Incarnation, NodeName, QueueId
from tests.support.sim_lab import NAMES, Lab


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def queues(lab: Lab, at: str) -> list[str]:
    return sorted(queue.name for queue in lab.cluster.nodes[at].runtime.metadata.state.topology.all_queues())


def leaders(lab: Lab) -> list[str]:
    return sorted(name for name, node in lab.cluster.nodes.items() if node.raft.core.is_leader)


def kill_all(lab: Lab) -> None:
    for name in NAMES:
        lab.cluster.kill(name)


@pytest.mark.parametrize("survivor", NAMES)
def test_the_survivor_goes_on_alone_and_those_that_it_forgot_end_when_they_come_back_together(
    lab: Lab, survivor: str
) -> None:
    """Also those that wait for it to open a link, as the ones whose names sort behind its own do."""
    gone = [name for name in NAMES if name != survivor]
    lab.declare(survivor, "kept")
    lab.declare(gone[0], "lost")
    kill_all(lab)
    plan = plan_forgetting(lab.cluster.machines[survivor].disk, DATA_DIR, gone)
    assert (plan.node, plan.remaining) == (survivor, (survivor,))
    assert plan.deleted_queues == ("queue 'lost' in vhost '/'",)
    lab.cluster.forget_offline(survivor, *gone)
    lab.start(survivor)
    lab.pass_time(5)
    assert leaders(lab) == [survivor]
    assert queues(lab, survivor) == ["kept"]
    lab.declare(survivor, "new")
    lab.start(*gone)
    lab.pass_time(20)
    assert list(lab.cluster.nodes) == [survivor]
    for name in gone:
        assert f"{name} was forgotten while {survivor} was down, which goes on without it" in lab.ends_of(name)[-1]
        assert "`warrenctl join_cluster`" in lab.ends_of(name)[-1]
    assert queues(lab, survivor) == ["kept", "new"]


def test_whom_a_survivor_forgot_joins_again_with_an_empty_directory(lab: Lab) -> None:
    kill_all(lab)
    lab.cluster.forget_offline("n2", "n1", "n3")
    for name in ("n1", "n3"):
        lab.lose_disk(name)
    lab.start(*NAMES)
    lab.until_converged()
    lab.pass_time(5)
    assert set(lab.cluster.nodes["n1"].raft.core.voters) == set(NAMES)
    groups = {read_identity(lab.cluster.machines[name].disk, DATA_DIR) for name in NAMES}
    assert len({(each.group, each.superseded) for each in groups if each is not None}) == 1


def test_a_forgotten_majority_that_lives_apart_and_the_survivor_never_link(lab: Lab) -> None:
    """Nobody can keep it from electing somebody while the survivor is away. Then there are two clusters, not one."""
    kill_all(lab)
    lab.cluster.forget_offline("n3", "n1", "n2")
    lab.start("n1", "n2")
    lab.pass_time(10)
    (rival,) = leaders(lab)
    lab.start("n3")
    lab.pass_time(20)
    assert leaders(lab) == sorted([rival, "n3"])
    assert lab.cluster.nodes["n3"].mesh.up_peers == []
    assert "n3" not in lab.cluster.nodes[rival].mesh.up_peers
    lab.declare(rival, "rival")
    lab.declare("n3", "ours")
    assert (queues(lab, rival), queues(lab, "n3")) == (["rival"], ["ours"])
    for name in ("n1", "n2"):  # and once they are started again they learn that they must not
        lab.cluster.kill(name)
    lab.start("n1", "n2")
    lab.pass_time(20)
    assert list(lab.cluster.nodes) == ["n3"]


def forget_a_living_majority(lab: Lab) -> str:
    """n3 is given the word, and runs where nobody hears it; n1 and n2 have gone on. Who leads them."""
    lab.cluster.kill("n3")
    lab.pass_time(5)
    lab.declare("n1", "unknown.to.n3")
    lab.cluster.forget_offline("n3", "n1", "n2")
    lab.cluster.isolate("n3")
    lab.start("n3")
    lab.pass_time(5)
    (rival,) = set(leaders(lab)) - {"n3"}
    return rival


def kill_one_of_a_living_majority(lab: Lab, which: str) -> str:
    """Which node that was."""
    leader = forget_a_living_majority(lab)
    (follower,) = {"n1", "n2"} - {leader}
    victim = leader if which == "the leader" else follower
    lab.cluster.kill(victim)
    return victim


def assert_the_majority_lives(lab: Lab) -> None:
    assert sorted(lab.cluster.nodes) == list(NAMES)
    lab.check_invariants()
    (rival,) = set(leaders(lab)) - {"n3"}
    assert "n3" not in lab.cluster.nodes[rival].mesh.up_peers
    for name in ("n1", "n2"):
        assert queues(lab, name) == ["unknown.to.n3"]
    lab.declare(rival, "more")
    assert not any(f"end of {name}" in line and "forgotten" in line for line in lab.story for name in ("n1", "n2"))


@pytest.mark.parametrize("restarted", ["the leader", "the follower"])
def test_a_majority_that_lives_is_not_ended_by_a_survivor_while_one_of_it_is_started_again(
    lab: Lab, restarted: str
) -> None:
    """It follows no leader then, nor does the other, which has lost its majority for the moment."""
    victim = kill_one_of_a_living_majority(lab, restarted)
    lab.pass_time(3)
    assert leaders(lab) == ["n3"]
    lab.cluster.isolate_end("n3")
    lab.pass_time(1)
    lab.start(victim)
    lab.pass_time(20)
    assert_the_majority_lives(lab)


@pytest.mark.parametrize("restarted", ["the leader", "the follower"])
def test_a_majority_that_lives_is_not_ended_by_a_survivor_if_one_of_it_stands_still_after_its_start(
    lab: Lab, restarted: str
) -> None:
    """Longer than it would wait for its leader: it has looked for nobody meanwhile."""
    victim = kill_one_of_a_living_majority(lab, restarted)
    lab.pass_time(1)
    lab.cluster.isolate_end("n3")
    lab.pass_time(0.5)
    lab.start(victim)
    lab.pass_time(0.1)
    lab.cluster.pause(victim)
    lab.pass_time(6)
    lab.cluster.pause_end(victim)
    lab.pass_time(30)
    assert_the_majority_lives(lab)


def test_a_majority_that_lives_is_not_ended_by_a_survivor_while_its_link_is_cut(lab: Lab) -> None:
    forget_a_living_majority(lab)
    lab.cluster.cut("n1", "n2")
    lab.cluster.cut("n2", "n1")
    lab.pass_time(10)
    assert leaders(lab) == ["n3"]
    lab.cluster.isolate_end("n3")
    lab.pass_time(10)
    lab.cluster.cut_end("n1", "n2")
    lab.cluster.cut_end("n2", "n1")
    lab.pass_time(20)
    assert_the_majority_lives(lab)


def test_a_member_that_is_left_takes_over_the_truth_even_where_it_knew_more(lab: Lab) -> None:
    lab.declare("n3", "common")
    lab.cluster.kill("n3")
    lab.pass_time(5)
    for number in range(5):
        lab.declare("n2", f"unknown.to.n3.{number}")
    lab.cluster.kill("n1")
    lab.cluster.kill("n2")
    lab.cluster.forget_offline("n3", "n1")
    lab.start("n3")
    lab.pass_time(10)
    assert leaders(lab) == [], "one of two is no majority"
    lab.start("n2")
    lab.pass_time(10)
    lab.check_invariants()
    assert leaders(lab) == ["n3"]
    for name in ("n2", "n3"):
        assert set(lab.cluster.nodes[name].raft.core.voters) == {"n2", "n3"}
        assert queues(lab, name) == ["common"]
    lab.cluster.kill("n3")
    lab.start("n3")
    lab.pass_time(10)
    assert len(leaders(lab)) == 1, "and both remember"
    lab.start("n1")
    lab.pass_time(10)
    assert "was forgotten" in lab.ends_of("n1")[-1]


@pytest.mark.parametrize("survivor", ["n2", "n3"])
def test_the_member_that_founded_the_cluster_takes_over_the_truth_like_any_other(lab: Lab, survivor: str) -> None:
    """With its log dropped it has nothing, as when it was new; still it is of the group that goes on."""
    (gone,) = set(NAMES) - {"n1", survivor}
    lab.declare(survivor, "common")
    kill_all(lab)
    lab.cluster.forget_offline(survivor, gone)
    lab.start(survivor, "n1")
    lab.pass_time(20)
    lab.check_invariants()
    assert leaders(lab) == [survivor]
    assert set(lab.cluster.nodes["n1"].raft.core.voters) == {"n1", survivor}
    assert queues(lab, "n1") == ["common"]
    lab.cluster.kill("n1")
    lab.start("n1")
    lab.pass_time(10)
    lab.check_invariants()
    assert queues(lab, "n1") == ["common"]


def test_it_can_be_done_twice(lab: Lab) -> None:
    kill_all(lab)
    lab.cluster.forget_offline("n3", "n1")
    lab.cluster.forget_offline("n3", "n2")
    lab.start("n3")
    lab.pass_time(5)
    assert leaders(lab) == ["n3"]
    lab.start("n1", "n2")
    lab.pass_time(10)
    assert list(lab.cluster.nodes) == ["n3"], "of whichever group they are"


def test_who_cannot_be_forgotten_is_refused(lab: Lab) -> None:
    kill_all(lab)
    disk = lab.cluster.machines["n3"].disk
    before = disk.operations
    with pytest.raises(ConfigError, match="cannot be forgotten by itself"):
        plan_forgetting(disk, DATA_DIR, ["n3"])
    with pytest.raises(ConfigError, match="n7 is no member of the cluster of n1, n2, n3"):
        plan_forgetting(disk, DATA_DIR, ["n7"])
    with pytest.raises(ConfigError, match="holds nothing of a cluster"):
        plan_forgetting(disk, "/nowhere", ["n1"])
    plan_forgetting(disk, DATA_DIR, ["n1", "n2"])
    assert disk.operations == before, "a plan writes nothing"


def forget_with_interruptions(lab: Lab, names: list[str]) -> None:
    """At n3, which is down: interrupted at every operation, told of it, and done again."""
    machine = lab.cluster.machines["n3"]
    reached = 0
    for operations in range(1, 60):
        machine.disk.on_operation = _fail_in(operations)
        try:
            plan = plan_forgetting(machine.disk, DATA_DIR, names)
            carry_out(machine.disk, DATA_DIR, plan, Random(operations))
        except StorageError:
            pass
        else:
            break
        finally:
            machine.disk.on_operation = None
        machine.disk.lose_handles()
        identity = read_identity(machine.disk, DATA_DIR)
        assert identity is not None
        if identity.forgetting:
            reached += 1
            lab.start("n3")
            lab.pass_time(1)
            assert "was interrupted on n3: run it again" in lab.ends_of("n3")[-1]
    assert reached > 2


def test_whoever_is_interrupted_is_told_and_does_it_again(lab: Lab) -> None:
    kill_all(lab)
    forget_with_interruptions(lab, ["n1", "n2"])
    lab.start("n3")
    lab.pass_time(5)
    assert leaders(lab) == ["n3"]


def test_so_does_who_forgets_a_node_that_never_voted(lab: Lab) -> None:
    kill_all(lab)
    admission = AdmitNode(NodeName("n4"), "d" * 32, "n4:25672")
    append_to_log(lab, "n3", encode_request(Request(RequestId(NodeName("n1"), Incarnation(1), 99), admission)))
    forget_with_interruptions(lab, ["n4"])
    with pytest.raises(ConfigError, match="n4 is no member of the cluster of n1, n2, n3"):
        plan_forgetting(lab.cluster.machines["n3"].disk, DATA_DIR, ["n4"])


def _fail_in(operations: int):  # type: ignore[no-untyped-def]
    left = operations

    def count() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise StorageError("interrupted")

    return count


def append_to_log(lab: Lab, at: str, payload: bytes) -> None:
    """The node is down."""
    storage, restored = RaftStorage.open(lab.cluster.machines[at].disk, f"{DATA_DIR}/{RAFT_DIRECTORY}")
    index = restored.entries[-1].index + 1
    entry = Entry(index, restored.hard_state.term, EntryKind.COMMAND, payload)
    storage.append(Ready(1, (), None, (entry,), restored.hard_state, True, (), ()))
    storage.sync()
    storage.close()


def test_a_release_that_does_not_know_all_of_the_log_decides_nothing_by_it(lab: Lab) -> None:
    """What it does not know may be what a queue depends on."""
    kill_all(lab)
    request = Request(RequestId(NodeName("n2"), Incarnation(1), 99), AddMirror(QueueId(1), Epoch(1), NodeName("n1")))
    code = f"c{chr(_CODES[AddMirror])}".encode()
    append_to_log(lab, "n2", encode_request(request).replace(code, b"c\x7f"))
    with pytest.raises(NewerReleaseError, match=r"entry .* of the metadata log .* upgrade this node"):
        plan_forgetting(lab.cluster.machines["n2"].disk, DATA_DIR, ["n1", "n3"])


def test_a_directory_of_a_newer_release_is_left_to_that_one(lab: Lab) -> None:
    kill_all(lab)
    disk = lab.cluster.machines["n2"].disk
    identity = read_identity(disk, DATA_DIR)
    assert identity is not None
    IdentityFile(disk, DATA_DIR, identity).need(NEWEST_PROTOCOL + 1)
    with pytest.raises(NewerReleaseError, match=r"identity needs protocol 4, .* upgrade this node"):
        plan_forgetting(disk, DATA_DIR, ["n1", "n3"])


def test_a_log_that_was_given_up_is_no_truth_for_anybody(lab: Lab) -> None:
    """The node was about to begin again with that of the cluster that goes on."""
    kill_all(lab)
    disk = lab.cluster.machines["n2"].disk
    identity = read_identity(disk, DATA_DIR)
    assert identity is not None
    IdentityFile(disk, DATA_DIR, identity).adopt("ab" * 16, (identity.group,))
    with pytest.raises(ConfigError, match="was given up"):
        plan_forgetting(disk, DATA_DIR, ["n1", "n3"])
