"""A group that was given up offline, and lives: who belongs to it stays."""

from __future__ import annotations

import logging

import pytest

from cluster.metadata.commands import ForgetNode
from cluster.metadata.records import AdmittedRecord
from cluster.raft.messages import AppendRequest, Heartbeat
from cluster.runtime.living_group import LIFE_GRACE_MS
from cluster.transport.mesh_port import HandshakeError
from node.ids import Incarnation
from tests.support.gates import N1, N3, N4, Node, founded

#: Longer than a follower waits for its leader.
MISSED_MS = 2001
LOOK_MS = 1000


def given_up() -> tuple[Node, Node, Node]:
    """n1 forgot n2 and n3 offline; n2 has just started, and is linked with n3."""
    n1, n2, n3 = founded()
    n2.gate.unlinked(N1)
    n3.gate.unlinked(N1)
    n2.meets(n3)
    n1.file.begin_forgetting("the survivor's group")
    n1.file.end_forgetting()
    for node in (n2, n3):
        n1.state.admissions.forget(ForgetNode(node.name, is_voter=True), None)
    n1.applied_index = n1.core.log.last_index
    return n1, n2, n3


def follow(node: Node, leader: Node) -> None:
    node.core.step(
        node.now_ms, Heartbeat(leader.name, node.name, max(2, node.core.term), node.core.log.commit, 1, 0, 0)
    )
    assert node.core.leader == leader.name


def pass_time(node: Node, by_ms: int) -> None:
    """It looks about once in a second."""
    end_ms = node.now_ms + by_ms
    while node.now_ms < end_ms:
        node.now_ms = min(end_ms, node.now_ms + LOOK_MS)
        node.core.tick(node.now_ms)
        node.gate.look()


def hear_of(node: Node, survivor: Node) -> str:
    """What the survivor is refused with."""
    with pytest.raises(HandshakeError) as refused:
        node.hears(survivor)
    return str(refused.value)


def test_who_elects_together_with_a_majority_stays_however_long_that_takes(caplog: pytest.LogCaptureFixture) -> None:
    n1, n2, n3 = given_up()
    follow(n2, n3)
    for _ in range(3):
        pass_time(n2, LIFE_GRACE_MS + MISSED_MS)
        assert n2.core.leader is None
        with caplog.at_level(logging.ERROR):
            refusal = hear_of(n2, n1)
        assert (n2.refusals, n2.begun_again_after) == ([], [])
    for text in (refusal, caplog.text):
        assert "`warrenctl forget_cluster_node n1`" in text
        assert "delete the data directory of n1" in text
    assert caplog.text.count("ERROR") == 1


def test_who_has_lost_its_majority_a_moment_ago_stays_and_gives_way_later() -> None:
    n1, n2, n3 = given_up()
    follow(n2, n3)
    pass_time(n2, LIFE_GRACE_MS)
    n2.gate.unlinked(N3)
    pass_time(n2, LIFE_GRACE_MS - 1)
    hear_of(n2, n1)
    assert n2.refusals == []
    pass_time(n2, 1)
    hear_of(n2, n1)
    assert "n2 was forgotten while n1 was down" in n2.refusals[0]


@pytest.mark.parametrize("is_looked_first", [False, True])
def test_who_stood_still_after_it_had_lost_its_majority_gives_that_the_time_to_come_back(is_looked_first: bool) -> None:
    """The survivor's word is the first, or the second, of what has waited for it."""
    n1, n2, n3 = given_up()
    follow(n2, n3)
    n2.gate.unlinked(N3)
    pass_time(n2, 2 * LOOK_MS)
    n2.now_ms += 2 * LIFE_GRACE_MS
    if is_looked_first:
        pass_time(n2, 1)
    hear_of(n2, n1)
    assert n2.refusals == []
    n2.meets(n3)
    pass_time(n2, LIFE_GRACE_MS)
    hear_of(n2, n1)
    assert n2.refusals == []


def test_who_follows_a_leader_stays() -> None:
    n1, n2, n3 = given_up()
    n2.gate.unlinked(N3)
    follow(n2, n3)
    hear_of(n2, n1)
    assert n2.refusals == []


def test_who_only_learns_gives_way_too() -> None:
    """It never stands, and keeps in mind a leader that has gone without a word."""
    n1, _, n3 = given_up()
    n4 = Node(N4, told_to_join=n3.file.current.group)
    n4.file.join(n3.file.current.group, (), 1)
    log = n3.core.log
    entries = log.slice(1, log.last_index + 1, 1 << 20)
    n4.core.step(0, AppendRequest(N3, N4, n3.core.term, 0, 0, entries, log.commit))
    follow(n4, n3)
    n1.state.admissions.admitted[N4] = AdmittedRecord(N4, n4.identity, "n4:1", Incarnation(0))
    pass_time(n4, LIFE_GRACE_MS)
    hear_of(n4, n1)
    assert n4.begun_again_after == []
    pass_time(n4, LOOK_MS)
    hear_of(n4, n1)
    assert (n4.refusals, n4.begun_again_after) == ([], [n4.incarnation])


def test_who_has_just_started_waits_for_its_leader_and_stands_for_nothing_meanwhile() -> None:
    """A majority that was started where it meets the survivor is none that lives, and is to elect nobody."""
    n1, n2, _ = given_up()
    wait_ms = 2 * n2.core.config.election_timeout_max_ms
    for _ in range(wait_ms // 100 - 1):
        hear_of(n2, n1)
        pass_time(n2, 100)
        n2.core.check_invariants()
        assert not n2.core.take_ready().messages_now
    hear_of(n2, n1)
    assert n2.refusals == []
    pass_time(n2, 100)
    hear_of(n2, n1)
    assert "n2 was forgotten while n1 was down" in n2.refusals[0]


def test_who_has_just_started_and_finds_its_leader_stays_and_stands_again() -> None:
    n1, n2, n3 = given_up()
    hear_of(n2, n1)
    follow(n2, n3)
    pass_time(n2, MISSED_MS)
    assert n2.core.take_ready().messages_now, "it misses its leader"
    hear_of(n2, n1)
    assert n2.refusals == []
    n2.gate.check_invariants()
