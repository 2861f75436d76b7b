"""Copies of a directory that know of fewer starts than the cluster (whole clusters: `wipe` in the simulator)."""

from __future__ import annotations

import pytest

from cluster.metadata.records import MemberRecord
from cluster.raft.messages import Entry, EntryKind, Voter
from cluster.transport.mesh_port import HandshakeError
from node.ids import Incarnation
from tests.support.gates import N1, N3, founded


def test_an_older_copy_of_a_directory_is_refused() -> None:
    n1, _, n3 = founded()
    n1.state.members[N3] = MemberRecord(N3, "", "", Incarnation(5), is_up=True)
    with pytest.raises(HandshakeError, match="older copy"):
        n1.meets(n3)
    assert "older copy" in n3.refusals[0]


def test_an_older_copy_of_a_directory_is_refused_though_its_log_is_of_a_newer_configuration() -> None:
    """Of two logs, one may say of a configuration that it is newer only because another snapshot has it."""
    n1, _, n3 = founded()
    n1.state.members[N3] = MemberRecord(N3, "", "", Incarnation(5), is_up=True)
    n3.core.log.append([Entry(4, 2, EntryKind.ADD_VOTER, Voter(N1, n1.identity).pack())])
    with pytest.raises(HandshakeError, match="older copy"):
        n1.meets(n3)
    assert "older copy" in n3.refusals[0]


def test_an_older_copy_of_a_directory_is_refused_though_only_one_start_lies_between() -> None:
    """A backup of a stopped node: the node was started once since, as the copy is now."""
    n1, _, n3 = founded()
    n1.state.members[N3] = MemberRecord(N3, "", "", n3.incarnation, is_up=True)
    n3.gate = n3.new_gate()
    n3.gate.join(n3)
    n1.meets(n3)
    assert "older copy" in n3.refusals[0]


def test_a_node_whose_start_is_known_from_its_first_link_is_no_copy() -> None:
    n1, n2, n3 = founded()
    n3.gate = n3.new_gate()
    n3.gate.join(n3)
    n2.meets(n3)
    for other in (n1, n2):
        other.state.members[N3] = MemberRecord(N3, "", "", n3.incarnation, is_up=True)
        other.meets(n3)
    assert n3.refusals == []


def test_a_node_that_decides_alone_is_no_copy_when_its_first_peer_has_heard_of_its_start() -> None:
    n1, _, n3 = founded()
    n3.gate = n3.new_gate()
    n3.gate.join(n3)
    for voter in n3.core.log.configuration:
        if voter.name != N3:
            n3.core.log.append([Entry(n3.core.log.last_index + 1, 2, EntryKind.REMOVE_VOTER, voter.pack())])
    assert n3.core.voters == (N3,)
    n1.state.members[N3] = MemberRecord(N3, "", "", n3.incarnation, is_up=True)
    n3.gate.heed(N1, n1.gate.credentials(N3))
    assert not any("older copy" in refusal for refusal in n3.refusals)
