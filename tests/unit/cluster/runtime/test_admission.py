"""Who is linked with, who is told to go, and whose answers count (whole clusters: tests of `wipe` in the simulator)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from cluster.metadata.records import MemberRecord
from cluster.raft.config import RaftConfig, founding_state
from cluster.raft.core import RaftCore
from cluster.raft.messages import Entry, EntryKind, Voter
from cluster.runtime.admission import Admission
from cluster.runtime.identity import IDENTITY_FILE, IdentityFile
from cluster.transport.mesh_port import HandshakeError
from node.errors import ConfigError, StorageError
from node.ids import Incarnation, NodeName
from node.store.disk.disk import write_durably
from node.store.disk.simulated import CrashStyle, SimulatedDisk

N1, N2, N3 = (NodeName(f"n{number}") for number in range(1, 4))
NAMES = (N1, N2, N3)


class Node:
    """The part of a node that decides on links, with a log that is durable at once."""

    def __init__(
        self, name: NodeName, disk: SimulatedDisk | None = None, members: tuple[NodeName, ...] = NAMES
    ) -> None:
        self.name = name
        self.disk = disk or SimulatedDisk()
        self.disk.mkdir("/data")
        self.file = IdentityFile.open(self.disk, "/data", name, Random(str(id(self))))
        self.core = RaftCore(RaftConfig(name), founding_state([]), Random(1), now_ms=0)
        self.records: dict[NodeName, MemberRecord] = {}
        self.refusals: list[str] = []
        self.incarnation = Incarnation(1)
        self.gate = Admission(name, self.incarnation, members, self.file, lambda: self.records, self.refusals.append)
        self.gate.join(self)
        self.gate.start()

    @property
    def identity(self) -> str:
        return self.file.current.identity

    @property
    def applied_index(self) -> int:
        return self.core.log.commit

    def found(self, voters: Sequence[Voter]) -> None:
        self.core.found(0, voters)
        while self.core.has_work:
            self.core.appended(self.core.take_ready())

    def add_voter(self, voter: Voter) -> None:
        self.core.propose_add_voter(0, voter.name, voter.identity)

    def hears(self, peer: Node) -> None:
        """One word of a handshake. Raises `HandshakeError`."""
        credentials = peer.gate.credentials(self.name)
        self.gate.heed(peer.name, credentials)
        self.gate.admit(peer.name, peer.incarnation, credentials)

    def meets(self, peer: Node) -> None:
        """The whole handshake, which the one whose name sorts first begins."""
        first, second = sorted((self, peer), key=lambda node: node.name)
        try:
            second.hears(first)
        finally:  # the answer, whatever it is
            first.gate.heed(second.name, second.gate.credentials(first.name))
        first.hears(second)
        first.gate.linked(second.name, second.identity)
        second.gate.linked(first.name, first.identity)

    def knows_log_of(self, other: Node) -> None:
        self.found(list(other.core.log.configuration))


def founded() -> tuple[Node, Node, Node]:
    n1, n2, n3 = (Node(name) for name in NAMES)
    n1.meets(n2)
    n1.meets(n3)
    for other in (n2, n3):
        other.knows_log_of(n1)
    return n1, n2, n3


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


def test_an_older_copy_of_a_directory_is_refused() -> None:
    n1, _, n3 = founded()
    n1.records[N3] = MemberRecord(N3, "", "", Incarnation(5), is_up=True)
    with pytest.raises(HandshakeError, match="older copy"):
        n1.meets(n3)
    assert "older copy" in n3.refusals[0]


def test_a_directory_of_another_identity_with_the_log_of_this_one_does_not_start() -> None:
    n1, _, _ = founded()
    other = IdentityFile.open(empty_directory(), "/data", N1, Random(99))
    gate = Admission(N1, Incarnation(1), NAMES, other, dict, n1.refusals.append)
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
