"""Logs and snapshots from before masters took service: a promotion was the service, and made the rest incomplete."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import pytest

from cluster.metadata.commands import AddMirror, DropMirror, MoveMaster, NodeUp
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from node.ids import Epoch, Incarnation, NodeName
from tests.support.metadata_state import N1, N2, N3, StateUnderTest, follows, show

#: Snapshot that the release before made: n1 has died; it was the master of the mirrored queue ``ha``, and only it has
#: the queue ``alone``.
SNAPSHOT_OF_VERSION_1 = zlib.decompress(
    base64.b85decode(
        "c-pO$&2HN;499K7v7IH$iecSbWJ8kM9w5h^a-N~cY)n8Ot|+C=+mEunZtHDXVL%Z7l7Av8k!C^F1w5g%DCoWHdyUXGXj^#3JF0{0"
        "op$G|$*H__jsof26jWGgfby@jfM?Z7dj`^#DJMOnB3yf*vPBOnP}N2+Pa2N2lrgxb1q}fXRHF^xt<(ovNPmt7Y#@`paNbGt_+?_e"
        "A@M<47hi~zbt`d^h@2%<6L3BnxAK;W*MV&LQYK>c%lt1NjSQ-LE8@pQ<UdasQutmf_{Z>%e}Sodj1c(|2|l78<_)&EnvN5l{Db&`"
        "-<*zw7iip*1^@lk8LvG4jayH+xzx_WjYO(XTpei7q%)dF;xrmDO;}m>;0;nLsAN_K%qgwR)cu@<-LebYZ{xT_aTwJd+q*&CCG|L}"
        "d$#w3x*t@kxfW3&rzuyT%2a+SF|!|?WDlxNZj5VzW>RaqXRG(lxBwexHxCkZ^!&P>I<OnMS_Lg;<JP5-#CJj+_MCt9xyBV1$*Gtp"
        "C#EqwV3yX_+$K1TnDLiZwnyfy40`W;L&#t)w7`|lW7@dqnZPw?qV~WSF*Fcea44QT3+D_4-s$Wo<o%I="
    )
)


def old_node_up(cluster: StateUnderTest, node: str, incarnation: int = 1) -> None:
    """As nodes of the release before announced themselves."""
    cluster.apply(NodeUp(NodeName(node), Incarnation(incarnation), f"{node}:1", f"{node}:2"))


def old_cluster() -> StateUnderTest:
    cluster = StateUnderTest()
    for node in ("n1", "n2", "n3"):
        old_node_up(cluster, node)
    cluster.policy({"ha-mode": "all", "ha-promote-on-failure": "when-synced"}, pattern="^ha")
    cluster.declare("ha")
    cluster.declare("alone")
    return cluster


def records_of(state: MetadataState) -> dict[str, MastershipRecord]:
    return {queue.name: state.masterships[queue.queue_id] for queue in state.topology.all_queues()}


def test_a_snapshot_of_version_1_is_read_as_it_was_meant() -> None:
    state = MetadataState()
    state.restore(SNAPSHOT_OF_VERSION_1)
    state.check_invariants()
    records = records_of(state)
    assert show(records["ha"]) == "n2 | n3* | epoch 2"
    assert show(records["alone"]) == "n1 | - | epoch 1 | down"
    assert state.rules_version == 1
    assert state.is_founded, "what was not said then follows from its vhosts"


def test_a_log_of_version_1_leads_to_the_same() -> None:
    cluster = old_cluster()
    cluster.down("n1")
    restored = MetadataState()
    restored.restore(SNAPSHOT_OF_VERSION_1)
    # What the rules of before did not remember is not known to whoever begins with what they left.
    forgetful = {name: replace(record, served_epoch=None) for name, record in records_of(cluster.state).items()}
    assert forgetful == records_of(restored)


def test_the_first_node_of_the_new_release_brings_the_new_rules() -> None:
    """n1 was left behind under the old ones: it must not pass for complete because nobody took service then."""
    cluster = old_cluster()
    cluster.down("n1")
    cluster.up("n2", 2)
    assert cluster.state.rules_version == 2
    assert show(cluster.record("ha")) == "n3 | n2 | epoch 3 | elected | complete n2 n3"
    cluster.up("n1", 2)
    assert show(cluster.record("ha")) == "n3 | n2 | epoch 3 | elected | complete n2 n3"
    assert show(cluster.record("alone")) == "n1 | - | epoch 2"


@pytest.mark.parametrize(("announced", "version"), [(2, 2), (3, 2), (7, 2)])
def test_the_version_only_rises_and_is_one_that_is_known(announced: int, version: int) -> None:
    cluster = old_cluster()
    cluster.apply(NodeUp(NodeName("n4"), Incarnation(1), "n4:1", "n4:2", announced))
    old_node_up(cluster, "n5")
    assert cluster.state.rules_version == version
    restored = MetadataState()
    restored.restore(cluster.state.snapshot())
    assert restored.rules_version == version


def cluster_of_version(version: int) -> StateUnderTest:
    """From 3 on the version is the protocol that all speak."""
    cluster = StateUnderTest("n1", "n2", "n3", protocol=version)
    assert cluster.state.rules_version == version
    return cluster


@pytest.mark.parametrize(("version", "is_down"), [(2, False), (3, True)])
def test_each_reason_decided_by_itself_up_to_version_2(version: int, is_down: bool) -> None:
    cluster = cluster_of_version(version)
    cluster.declare()
    cluster.policy({"ha-mode": "all", "ha-promote-on-shutdown": "always", "ha-promote-on-failure": "when-synced"})
    follows(cluster, N2)
    cluster.down("n1", reason="shutdown")
    assert cluster.record().is_down is is_down


@pytest.mark.parametrize(("version", "record"), [(2, "n1 | -"), (3, "n1 | n3")])
def test_nobody_was_replaced_who_left_by_himself_up_to_version_2(version: int, record: str) -> None:
    cluster = cluster_of_version(version)
    cluster.policy({"ha-mode": "exactly", "ha-params": 2})
    queue_id = cluster.declare().queue_id
    cluster.apply(DropMirror(queue_id, Epoch(1), N2))
    assert show(cluster.record()) == f"{record} | epoch 1 | complete n1 n2"


@pytest.mark.parametrize(("version", "mirrors"), [(2, ()), (3, (N3,))])
def test_a_free_place_was_only_for_whom_the_policy_would_choose_up_to_version_2(
    version: int, mirrors: tuple[NodeName, ...]
) -> None:
    """Which is n2, by its name; but it is n3 that asks."""
    cluster = cluster_of_version(version)
    cluster.policy({"ha-mode": "exactly", "ha-params": 2})
    queue_id = cluster.declare().queue_id
    for node in (N2, N3):
        cluster.apply(DropMirror(queue_id, Epoch(1), node))
    assert cluster.record().mirrors == ()
    cluster.apply(AddMirror(queue_id, Epoch(1), N3))
    assert cluster.record().mirrors == mirrors


@pytest.mark.parametrize(("version", "master"), [(2, N2), (3, N1)])
def test_up_to_version_2_a_master_handed_over_to_any_complete_mirror(version: int, master: NodeName) -> None:
    """n2 has restarted since it was asked for, and n3 is synchronised still."""
    cluster = cluster_of_version(version)
    cluster.policy({"ha-mode": "all"})
    queue_id = cluster.declare().queue_id
    cluster.up("n2", 2)
    cluster.apply(MoveMaster(queue_id, Epoch(1), N2))
    assert cluster.record().master == master


def test_rules_that_older_members_do_not_know_come_with_the_protocol() -> None:
    """One node that knows them must not bring them, and the last one must."""
    cluster = StateUnderTest("n1", "n2", protocol=2)
    assert cluster.state.rules_version == 2
    cluster.raise_protocol()
    assert cluster.state.rules_version == 3
    restored = MetadataState()
    restored.restore(cluster.state.snapshot())
    assert restored.rules_version == 3


def test_under_the_old_rules_any_mirror_took_over_at_once_and_the_loss_was_counted() -> None:
    """``always`` is what holds without a word, and no old log says who follows: who was promoted has served since."""
    cluster = old_cluster()
    cluster.policy({"ha-mode": "all"}, pattern="^alone")
    assert show(cluster.record("alone")).startswith("n1 | n2")
    cluster.down("n1")
    assert show(cluster.record("alone")) == "n2 | n3+ | epoch 2 | lossy 1"


def test_under_the_old_rules_a_move_gave_up_the_old_copy_at_once() -> None:
    """Its node has deleted it."""
    cluster = old_cluster()
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n2", "n3"]}, pattern="^ha")
    assert show(cluster.record("ha")) == "n2 | n3* | epoch 2"
