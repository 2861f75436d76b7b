"""Who is linked with, who is told to go, and whose answers count (whole clusters: tests of `wipe` in the simulator)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from random import Random

import pytest

from cluster.metadata.commands import AdmitNode, ForgetNode
from cluster.metadata.records import AdmittedRecord, MemberRecord
from cluster.raft.config import founding_entries
from cluster.raft.messages import Entry, EntryKind, Voter
from cluster.runtime.admission import COMING_MS, UNHEARD_STARTS
from cluster.runtime.group_members import GroupMembers
from cluster.runtime.identity import IDENTITY_FILE, IdentityFile
from cluster.transport.mesh_port import HandshakeError
from node.errors import ConfigError, StorageError
from node.ids import Incarnation, NodeName
from node.store.disk.disk import write_durably
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from tests.support.gates import N1, N2, N3, N4, N5, NAMES, Node, founded


def test_the_first_by_name_founds_when_all_are_there() -> None:
    n1, n2, n3 = (Node(name) for name in NAMES)
    with pytest.raises(HandshakeError, match="waits until n1"):
        n2.meets(n3)
    n1.meets(n2)
    assert n1.core.log.configuration == ()
    n1.meets(n3)
    assert dict(n1.core.log.configuration) == {node.name: node.identity for node in (n1, n2, n3)}
    n2.meets(n3)
    for node in (n1, n2, n3):
        assert node.file.current.group == n1.identity
        node.gate.check_invariants()


def test_who_is_bound_to_a_group_stays_bound_when_the_power_fails() -> None:
    n1, n2 = Node(N1), Node(N2)
    n1.meets(n2)
    n2.disk.crash(CrashStyle.DROP, Random(1))
    again = Node(N2, n2.disk)
    assert again.file.current == n2.file.current


def test_different_lists_found_nothing_and_both_are_named() -> None:
    n1, n2 = Node(N1), Node(N2, members=(N1, N2))
    with pytest.raises(HandshakeError, match=r"a new cluster of n1, n2, and n1 to be of one of n1, n2, n3"):
        n1.meets(n2)
    assert (n1.refusals, n2.refusals) == ([], []), "the operator sets one of them right, and the other waits"


@pytest.mark.parametrize("victim", NAMES)
def test_a_wiped_node_is_refused_and_learns_it_whoever_speaks_first(victim: NodeName) -> None:
    nodes = {node.name: node for node in founded()}
    wiped = Node(victim)
    for name, node in nodes.items():
        if name != victim:
            with pytest.raises(HandshakeError):
                node.meets(wiped)
            assert node.refusals == []
    assert len(wiped.refusals) >= 1
    assert f"`warrenctl forget_cluster_node {victim}`" in wiped.refusals[0]


def test_a_wiped_founder_founds_nothing_with_nodes_that_are_bound_to_each_other() -> None:
    """n2 has the log, n3 has not heard of it yet."""
    n1, n2, n3 = (Node(name) for name in NAMES)
    n1.meets(n2)
    n1.meets(n3)
    n2.knows_log_of(n1)
    wiped = Node(N1)
    wiped.meets(n3)
    with pytest.raises(HandshakeError):
        wiped.meets(n2)
    assert wiped.core.log.last_index == 0
    assert wiped.refusals != []


def test_an_answer_counts_only_for_the_identity_that_the_log_means_now() -> None:
    n1, _, _ = founded()
    assert n1.gate.may_answer(N3)
    n1.gate.unlinked(N3)
    n1.gate.linked(N3, "another")
    assert not n1.gate.may_answer(N3)


def test_an_answer_of_a_learner_counts_only_for_the_directory_that_was_let_in_last() -> None:
    n1, _, _ = founded()
    new = NodeName("n4")
    n1.gate.linked(new, "first")
    for identity, may_answer in (("first", True), ("second", False)):
        n1.state.admissions.admitted[new] = AdmittedRecord(new, identity, "n4:25672", Incarnation(0))
        assert n1.gate.may_answer(new) == may_answer


def test_a_peer_that_lags_behind_ends_nobody() -> None:
    """The group has taken n3 in again under another identity, and n2 has not heard of it."""
    n1, n2, _ = founded()
    fresh = Node(N3)
    fresh.file.bind(n1.file.current.group)
    others = [voter for voter in n1.core.log.configuration if voter.name != N3]
    fresh.found([*others, Voter(N3, fresh.identity)])
    fresh.core.log.append([Entry(4, 2, EntryKind.ADD_VOTER, Voter(N3, fresh.identity).pack())])
    n2.meets(fresh)
    assert (n2.refusals, fresh.refusals) == ([], [])
    assert not n2.gate.may_answer(N3), "as long as its log means another"


def test_a_member_that_has_yet_to_carry_out_its_log_again_ends_no_newer_directory() -> None:
    """n3 was forgotten and let in twice; n1 has both in its log, and has carried out the first as yet."""
    n1, _, n3 = founded()
    fresh = Node(N3)
    fresh.file.bind(n1.file.current.group)
    others = [voter for voter in n1.core.log.configuration if voter.name != N3]
    fresh.found([*others, Voter(N3, fresh.identity)])
    for node, before in ((n1, n3.identity), (fresh, fresh.identity)):
        removed = Entry(4, 2, EntryKind.REMOVE_VOTER, Voter(N3, before).pack())
        node.core.log.append([removed, Entry(5, 2, EntryKind.ADD_VOTER, Voter(N3, fresh.identity).pack())])
    n1.state.admissions.forget(ForgetNode(N3, is_voter=True), None)
    for first in (None, AdmitNode(N3, "first", "n3:1")):
        if first is not None:
            n1.state.admissions.admit(first, None)
        n1.meets(fresh)
        assert fresh.refusals == []
        assert n1.gate.may_answer(N3)


def test_a_new_node_restarts_although_its_log_still_means_the_one_before() -> None:
    """It was stopped while it learned: what it has was written before its name was free."""
    n1, _, _ = founded()
    fresh = IdentityFile.open(empty_directory(), "/data", N1, Random(99))
    fresh.join(n1.file.current.group)
    n1.file = fresh
    gate = n1.new_gate()
    gate.join(n1)
    gate.check_invariants()


def test_that_a_node_has_joined_is_kept_and_what_an_earlier_release_wrote_is_read() -> None:
    disk = empty_directory()
    file = IdentityFile.open(disk, "/data", N1, Random(1))
    assert not file.current.has_joined
    file.join("a0" * 16, meant_at=7)
    kept = IdentityFile.open(disk, "/data", N1, Random(2))
    assert (kept.current.has_joined, kept.current.meant_at) == (True, 7)
    kept.adopt("c2" * 16, ["a0" * 16])
    assert IdentityFile.open(disk, "/data", N1, Random(2)).current.meant_at == 0, "the other group counts otherwise"
    disk.unlink("/data/identity")
    write_durably(disk, "/data/identity", f"identity = {'b1' * 16}\ngroup = {'a0' * 16}\n".encode())
    assert not IdentityFile.open(disk, "/data", N1, Random(3)).current.has_joined


def test_a_directory_of_another_identity_with_the_log_of_this_one_does_not_start() -> None:
    n1, _, _ = founded()
    other = IdentityFile.open(empty_directory(), "/data", N1, Random(99))
    n1.file = other
    gate = n1.new_gate()
    with pytest.raises(ConfigError, match="put together from several"):
        gate.join(n1)


def test_a_directory_that_has_lost_its_log_does_not_start() -> None:
    disk = empty_directory()
    IdentityFile.open(disk, "/data", N1, Random(1)).note_log()
    with pytest.raises(ConfigError, match="has lost the log of the metadata"):
        IdentityFile.open(disk, "/data", N1, Random(1))


def test_an_identity_that_cannot_be_read_stops_the_node() -> None:
    disk = empty_directory()
    write_durably(disk, f"/data/{IDENTITY_FILE}", b"")
    with pytest.raises(StorageError, match="should hold the identity"):
        IdentityFile.open(disk, "/data", N1, Random(1))


def empty_directory() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    return disk


def test_a_new_node_whose_list_names_the_members_is_let_in() -> None:
    n1, n2, _ = founded()
    n4 = Node(N4, members=(*NAMES, N4))
    with pytest.raises(HandshakeError):
        n1.meets(n4)
    assert n1.let_in == [AdmitNode(N4, n4.identity, "n4:1")]
    n1.meets(n4)
    assert n4.file.current.group == n1.file.current.group
    assert (n4.refusals, n4.begun_again_after) == ([], [])
    assert n2.let_in == []


def test_who_was_told_which_cluster_to_join_is_not_ended_by_one_of_its_list_that_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was reset, say, when it had been let in, and nobody has forgotten it yet."""
    n1, _, _ = founded()
    n5 = Node(N5, members=(N5,))
    n4 = Node(N4, members=(*NAMES, N4, N5), told_to_join=n1.file.current.group)
    with pytest.raises(HandshakeError):
        n4.meets(n5)
    assert n4.refusals == []
    assert "run `warrenctl forget_cluster_node n5` there" in caplog.text
    assert n5.let_in == [], "nor does that one take it for somebody who comes to it"
    with pytest.raises(HandshakeError):
        n1.meets(n4)
    n1.meets(n4)
    assert n4.file.current.group == n1.file.current.group
    lost = Node(N4, members=(N4, N5), told_to_join=n1.file.current.group)
    with pytest.raises(HandshakeError):
        lost.meets(n5)
    assert "n5 is of another cluster" in lost.refusals[0], "and so are all that it was told of"


def test_who_was_told_which_cluster_to_join_takes_each_peer_for_what_it_is_now() -> None:
    """One that was of it leaves, and one that had left comes back, while the list waits for a majority, say."""
    n1, n2, n3 = founded()
    n4 = Node(N4, members=(*NAMES, N4), told_to_join=n1.file.current.group)
    alone = Node(N3, members=(N3,))

    def shown_to(peer: Node, *names: NodeName) -> list[tuple[NodeName, ...]]:
        for name in names:
            n4.gate.heed(name, peer.gate.credentials(N4))
        return [n4.gate.credentials(name).members for name in names]

    assert shown_to(n3, N3) == [(*NAMES, N4)]
    assert shown_to(alone, N3) == [()]
    shown_to(n3, N3)
    shown_to(alone, N1, N2)
    assert n4.refusals == [], "one is left that it can join"
    shown_to(n2, N2)
    shown_to(alone, N2, N3)
    assert "n3 is of another cluster" in n4.refusals[0]


def test_two_that_were_told_to_join_each_other_say_how_that_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them has begun again, and nothing is left of what the other is to join."""
    n4, n5 = (Node(name, members=(N4, N5), told_to_join="0" * 32) for name in (N4, N5))
    for _ in range(3):
        with pytest.raises(HandshakeError):
            n4.meets(n5)
    assert caplog.text.count("`warrenctl reset --confirm` on one of them ends that") == 2
    assert (n4.refusals, n5.refusals) == ([], [])


@pytest.mark.parametrize("is_linked", [False, True], ids=["let in", "linked"])
def test_of_two_of_one_name_that_were_told_to_join_the_first_joins_and_the_other_hears_why(is_linked: bool) -> None:
    """The second ends at the answer to its first word; the group must not have taken it for the first by then."""
    n1, _, _ = founded()
    first, second = (Node(N4, members=(*NAMES, N4), told_to_join=n1.file.current.group) for _ in range(2))
    with pytest.raises(HandshakeError):
        n1.meets(first)
    if is_linked:
        n1.meets(first)
        n1.now_ms += 10 * COMING_MS
    with pytest.raises(HandshakeError):
        n1.meets(second)
    assert "there are two nodes of this name: the cluster of n1 has taken in the other" in second.refusals[0]
    assert "set another `node_name`" in second.refusals[0]
    n1.meets(first)
    assert (first.refusals, first.file.current.group) == ([], n1.file.current.group)
    assert [command.identity for command in n1.let_in] == [first.identity]


def test_who_was_let_in_and_does_not_come_makes_room_for_another_directory() -> None:
    n1, _, _ = founded()
    lost, second = (Node(N4, members=(*NAMES, N4), told_to_join=n1.file.current.group) for _ in range(2))
    with pytest.raises(HandshakeError):
        n1.meets(lost)
    for _ in range(2):
        with pytest.raises(HandshakeError):
            n1.meets(second)
        assert [command.identity for command in n1.let_in] == [lost.identity]
        n1.now_ms += COMING_MS // 2
    with pytest.raises(HandshakeError):
        n1.meets(second)
    again = Node(N4, second.disk, members=(*NAMES, N4), told_to_join=n1.file.current.group)
    n1.meets(again)
    assert again.file.current.group == n1.file.current.group


def test_who_was_forgotten_and_is_let_in_again_has_as_much_time_to_come_as_before() -> None:
    n1, _, _ = founded()
    first, second = (Node(N4, members=(*NAMES, N4), told_to_join=n1.file.current.group) for _ in range(2))
    first.gate.heed(N1, n1.gate.credentials(N4))

    def call_twice() -> None:
        """The second time it is known to have been let in."""
        for _ in range(2):
            with suppress(HandshakeError):
                n1.hears(first)

    call_twice()
    n1.now_ms += 10 * COMING_MS
    n1.state.admissions.forget(ForgetNode(N4), None)
    call_twice()
    with pytest.raises(HandshakeError):
        n1.meets(second)
    assert [command.identity for command in n1.let_in] == [first.identity] * 2


def joined() -> tuple[Node, Node, Node]:
    """n4 is let in by n1, and n3 has yet to hear of it."""
    n1, _, n3 = founded()
    n4 = Node(N4, members=(*NAMES, N4))
    with pytest.raises(HandshakeError):
        n1.meets(n4)
    n1.meets(n4)
    return n1, n3, n4


def learn_log(node: Node, teacher: Node) -> None:
    """Its records are those of the founding."""
    missing = founding_entries(teacher.core.log.configuration)[node.core.log.last_index :]
    if missing:
        node.core.log.append(missing)
    node.applied_index = node.core.log.last_index


def learn(node: Node, teacher: Node) -> None:
    """Log and records."""
    learn_log(node, teacher)
    for command in teacher.let_in:
        node.state.admissions.admit(command, None)
    node.applied_index = teacher.applied_index


@pytest.mark.parametrize("speaker_replays", [False, True])
@pytest.mark.parametrize("knows_by", ["word of a member", "its records", "its file"])
def test_a_member_that_has_yet_to_hear_of_a_new_node_does_not_end_it(knows_by: str, speaker_replays: bool) -> None:
    n1, n3, n4 = joined()
    learn_log(n4, n1)
    if knows_by == "its records":
        learn(n4, n1)
    if knows_by == "its file":
        n4.applied_index = 1  # it carries out again what it has
    if knows_by != "word of a member":
        n4.gate = n4.new_gate()
        n4.gate.join(n4)  # it has started since
    if speaker_replays:
        n3.applied_index = 0
    with pytest.raises(HandshakeError, match="n4 is no member"):
        n3.meets(n4)
    assert n4.refusals == []
    learn(n3, n1)
    n3.meets(n4)


def test_a_new_node_that_was_forgotten_while_it_learned_hears_of_it() -> None:
    n1, n3, n4 = joined()
    learn(n4, n1)
    learn(n3, n1)
    n3.state.admissions.forget(ForgetNode(N4), None)
    n3.applied_index += 1
    with pytest.raises(HandshakeError, match="n4 is no member"):
        n3.meets(n4)
    assert "n4 was removed from the cluster of n1, n2, n3" in n4.refusals[0]


def test_a_member_that_was_away_links_with_a_newer_one_until_its_log_tells_of_it() -> None:
    n1, n3, n4 = joined()
    learn(n4, n1)
    n4.core.log.append([Entry(n4.core.log.last_index + 1, 2, EntryKind.ADD_VOTER, Voter(N4, n4.identity).pack())])
    away = Bystander(n3)
    members = GroupMembers(N3, n3.state, {}, lambda: n3.identity, {}, n3.gate.introduced, lambda _peers: None)
    members.join(away, away)
    members.follow()
    assert "link n4" not in away.asked
    n3.hears(n4)
    members.follow()
    assert away.asked[-1] == "link n4"
    n3.core.log.append(n4.core.log.slice(n3.core.log.last_index + 1, n4.core.log.last_index + 1, 10_000))
    assert n3.gate.introduced() == {}


def test_a_new_directory_is_not_lost_because_a_member_still_means_the_one_before() -> None:
    n1, n2, _ = founded()
    n1.state.admissions.forget(ForgetNode(N3, is_voter=True), None)
    fresh = Node(N3)
    n1.state.admissions.admit(AdmitNode(N3, fresh.identity, "n3:1"), None)
    n1.applied_index += 2
    fresh.incarnation = Incarnation(2)
    fresh.gate = fresh.new_gate()
    fresh.gate.join(fresh)
    n1.meets(fresh)
    with pytest.raises(HandshakeError, match="n3 has lost its data"):
        n2.meets(fresh)
    assert fresh.refusals == []


def test_who_has_begun_again_for_a_group_that_goes_on_does_not_join_the_one_that_was_given_up() -> None:
    """Another member that is left may not have heard of it yet. What it means by this node's name is of the past; and
    it is told by nobody that it was forgotten who has nothing yet to know that from."""
    _, n2, n3 = founded()
    n3.file.adopt("the group that goes on", [n3.file.current.group])
    again = Node(N3, n3.disk)
    with pytest.raises(HandshakeError, match="n2 is of the cluster that was given up for that of n3, offline"):
        again.meets(n2)
    assert again.file.current.group == "the group that goes on"
    assert (again.refusals, n2.refusals) == ([], [])


@pytest.mark.parametrize("belongs_by", ["being let in", "beginning again"])
def test_who_belongs_to_a_group_and_has_nothing_yet_is_not_taken_by_a_founder_that_has_nothing(belongs_by: str) -> None:
    """The founder lost its disk, too. Bound to another group, this node would be no voter of its own any more."""
    n1, _, n3 = founded()
    if belongs_by == "being let in":
        n1.state.admissions.forget(ForgetNode(N3, is_voter=True), None)
        n3 = Node(N3)
        n1.state.admissions.admit(AdmitNode(N3, n3.identity, "n3:1"), None)
        n1.applied_index += 2
        n1.meets(n3)
    else:
        n3.file.adopt("the group that goes on", [n3.file.current.group])
        n3 = Node(N3, n3.disk)
    group = n3.file.current.group
    wiped = Node(N1)
    with pytest.raises(HandshakeError, match="n3 is of a cluster that was founded before"):
        wiped.meets(n3)
    assert n3.file.current.group == group
    assert (n3.refusals, wiped.refusals) == ([], [])


def test_a_node_whose_list_lacks_a_member_is_refused_and_both_lists_are_named() -> None:
    n1, _, _ = founded()
    n4 = Node(N4, members=(N1, N2, N4))
    with pytest.raises(HandshakeError):
        n1.meets(n4)
    assert n1.let_in == []
    assert "cannot join the cluster of n1, n2, n3, to which n1 belongs, with the list n1, n2, n4" in n4.refusals[0]


@pytest.mark.parametrize("starts", [1, 8, 7 + UNHEARD_STARTS])
def test_a_forgotten_name_comes_back_with_another_directory_and_counts_its_starts_on(starts: int) -> None:
    """The group knows of seven of the directory before; what the eighth has proposed may be in the log."""
    n1, _, n3 = founded()
    n1.state.members[N3] = MemberRecord(N3, "n3:1", "", Incarnation(7), is_up=False)
    n1.state.admissions.forget(ForgetNode(N3), n1.state.members.pop(N3))
    n1.core.log.append([Entry(4, 2, EntryKind.REMOVE_VOTER, Voter(N3, n3.identity).pack())])
    with pytest.raises(HandshakeError):
        n1.meets(n3)
    assert "n3 was removed from the cluster of n1, n2: delete its data directory" in n3.refusals[0]
    assert "or, if it has none, by `warrenctl join_cluster`" in n3.refusals[0]
    fresh = Node(N3)
    fresh.incarnation = Incarnation(starts)
    fresh.gate = fresh.new_gate()
    fresh.gate.join(fresh)
    for _ in range(2):
        with pytest.raises(HandshakeError):
            n1.meets(fresh)
    assert fresh.begun_again_after == [7 + UNHEARD_STARTS]
    assert fresh.refusals == []
    fresh.incarnation = Incarnation(8 + UNHEARD_STARTS)
    fresh.gate = fresh.new_gate()
    fresh.gate.join(fresh)
    n1.meets(fresh)
    assert fresh.file.current.group == n1.file.current.group


class Bystander:
    """Takes down what is asked of the voters and the links of a node, and does nothing."""

    def __init__(self, node: Node) -> None:
        self.core = node.core
        self.applied_index = 0
        self.peers = (N3,)
        self.asked: list[str] = []

    def add_voter(self, voter: Voter) -> None:
        self.asked.append(f"add {voter.name}")

    def remove_voter(self, node: NodeName) -> None:
        self.asked.append(f"remove {node}")

    def set_learners(self, learners: Collection[Voter]) -> None:
        self.asked.append(f"teach {len(learners)}")

    def add_peer(self, name: NodeName, *addresses: str) -> None:
        self.asked.append(f"link {name}")

    def remove_peer(self, name: NodeName) -> None:
        self.asked.append(f"unlink {name}")


def test_a_leader_whose_records_are_behind_its_log_takes_vote_and_link_from_nobody() -> None:
    n1 = Node(N1, members=(N1,))
    n1.core.tick(60_000)
    while n1.core.has_work:
        n1.core.appended(n1.core.take_ready())
    assert n1.core.is_leader
    n1.core.log.append([Entry(n1.core.log.last_index + 1, n1.core.term, EntryKind.ADD_VOTER, Voter(N3, "new").pack())])
    n1.state.admissions.forget(ForgetNode(N3, is_voter=True), None)
    group = Bystander(n1)
    members = GroupMembers(
        N1, n1.state, {N3: "n3:1"}, lambda: n1.identity, {N3: "new"}, n1.gate.introduced, lambda _peers: None
    )
    members.join(group, group)
    members.follow()
    assert group.asked == ["link n3"]


def test_that_a_cluster_goes_on_for_another_is_no_warning_at_every_start(caplog: pytest.LogCaptureFixture) -> None:
    """It is so for ever, also for nodes that joined later."""
    n1, _, _ = founded()
    n1.file.adopt("c2" * 16, ["a0" * 16])
    gate = n1.new_gate()
    gate.join(n1)
    with caplog.at_level(logging.INFO):
        gate.start()
    (record,) = (
        record for record in caplog.records if "goes on for one of which others were given up" in record.message
    )
    assert record.levelno == logging.INFO
