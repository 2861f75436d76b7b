"""What the records become when a node is forgotten, and when it is not to be. Records as in `test_mastership`."""

from __future__ import annotations

from cluster.metadata.commands import ForgetNode
from cluster.metadata.errors import NodeStillUpError, NoSuchNodeError, QueuesWouldBeDeletedError
from tests.support.metadata_state import ALL, N1, N2, N3, StateUnderTest, mirrored, reasons, show, unsynchronised


def test_only_a_known_node_that_is_down_can_be_forgotten() -> None:
    cluster = StateUnderTest("n1", "n2")
    assert isinstance(cluster.apply(ForgetNode(N2)).error, NodeStillUpError)
    assert isinstance(cluster.apply(ForgetNode(N3)).error, NoSuchNodeError)


def test_forgetting_a_node_gives_up_what_only_it_held() -> None:
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    cluster.policy({"max-length": 9}, name="plain", pattern="^alone$", priority=1)
    cluster.declare("alone")
    cluster.down("n1")
    cluster.apply(ForgetNode(N1))
    assert reasons(cluster) == ["forced"]
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | elected | lossy 1"
    assert not cluster.exists("alone")
    assert N1 not in cluster.state.members
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | down | lossy 1", "another loss would have to be wanted again"
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n2 | n3 | epoch 3 | lossy 1"


def test_forgetting_one_of_two_complete_copies_leaves_the_other_to_be_waited_for() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n1")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | - | epoch 2 | down | complete n1 n2"
    cluster.apply(ForgetNode(N2))
    assert show(cluster.record()) == "n1 | - | epoch 2 | down"


def test_forgetting_a_node_that_nobody_waits_for_changes_no_record() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    for node in ("n1", "n2", "n3"):
        cluster.down(node)
    before = cluster.record()
    assert show(before) == "n2 | - | epoch 2 | down | complete n1 n2"
    cluster.apply(ForgetNode(N3))
    assert cluster.record() == before


def test_forgetting_the_only_complete_copy_leaves_the_elected_master_what_it_has() -> None:
    cluster = unsynchronised()
    cluster.down("n1")
    cluster.apply(ForgetNode(N1))
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | elected | lossy 1"
    cluster.serve()
    assert cluster.record().lossy_promotions == 1, "one loss is counted once"


def test_a_node_is_not_forgotten_if_that_deletes_a_queue_that_nobody_has_agreed_to_lose() -> None:
    cluster = StateUnderTest("n1", "n2")
    lost = cluster.declare("lost", origin="n2")
    cluster.declare("kept", origin="n2")
    cluster.declare("other")
    cluster.declare("transient", origin="n2", durable=False)
    cluster.policy(ALL, pattern="^transient$")
    cluster.down("n2")
    admissions, records = cluster.state.admissions.snapshot(), dict(cluster.state.masterships)
    applied = cluster.apply(ForgetNode(N2, is_confirmed=False, lost_queues=(lost.queue_id,)))
    assert isinstance(applied.error, QueuesWouldBeDeletedError)
    assert "queue 'kept' in vhost '/' would be deleted" in str(applied.error)
    assert "--confirm" in str(applied.error)
    assert applied.events == ()
    assert (cluster.state.admissions.snapshot(), dict(cluster.state.masterships)) == (admissions, records)
    assert cluster.up("n2", 2).error is None, "it is a member as before"
    assert cluster.record("kept").in_service


def test_of_many_queues_the_first_are_named_and_the_others_counted() -> None:
    cluster = StateUnderTest("n1", "n2")
    for number in range(12):
        cluster.declare(f"q{number:02}", origin="n2")
    cluster.down("n2")
    said = str(cluster.apply(ForgetNode(N2, is_confirmed=False)).error)
    assert "queue 'q09' in vhost '/' and 2 more would be deleted" in said
    assert "q10" not in said


def test_what_is_known_to_be_lost_or_agreed_to_be_is_deleted() -> None:
    unconfirmed, confirmed = StateUnderTest("n1", "n2"), StateUnderTest("n1", "n2")
    for cluster in (unconfirmed, confirmed):
        cluster.declare(origin="n2")
        cluster.down("n2")
    lost = unconfirmed.record().queue_id
    for cluster, command in (
        (unconfirmed, ForgetNode(N2, is_confirmed=False, lost_queues=(lost,))),
        (confirmed, ForgetNode(N2)),
    ):
        assert cluster.apply(command).result == ("queue 'q' in vhost '/'",)
        assert not cluster.exists()


def test_who_is_no_member_or_up_is_refused_for_that() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare(origin="n2")
    assert isinstance(cluster.apply(ForgetNode(N2, is_confirmed=False)).error, NodeStillUpError)
    assert isinstance(cluster.apply(ForgetNode(N3, is_confirmed=False)).error, NoSuchNodeError)
