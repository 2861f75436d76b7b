"""The rules of mastership, each as a short history and the record it leaves.

Records are written ``master | mirrors, oldest first (* synchronised) | epoch | ...`` by `show`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.metadata.commands import (
    AddMirror,
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    ForgetNode,
    MirrorSynchronised,
    MirrorUnsynchronised,
    MoveMaster,
)
from cluster.metadata.errors import NodeStillUpError, NoSuchNodeError, StaleMastershipError
from cluster.metadata.events import MastershipChanged, QueueCreated, QueueDeleted
from node.errors import ConnectionFailure
from node.ids import Epoch, NodeName
from node.topology.commands import DeclareQueue
from tests.support.metadata_state import StateUnderTest, show

N1, N2, N3, N4 = (NodeName(f"n{number}") for number in range(1, 5))
ALL = {"ha-mode": "all"}


def reasons(cluster: StateUnderTest) -> list[str]:
    """Reasons of the mastership changes of the last command."""
    return [event.reason for event in cluster.last.events if isinstance(event, MastershipChanged)]


def synchronised(cluster: StateUnderTest, node: NodeName, name: str = "q") -> None:
    record = cluster.record(name)
    cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, node, cluster.index))


def mirrored(policy: dict[str, Any] | None = None, *up: str, **options: Any) -> StateUnderTest:
    cluster = StateUnderTest(*(up or ("n1", "n2", "n3")))
    cluster.policy(policy or ALL)
    cluster.declare(**options)
    return cluster


# --- new queues


@pytest.mark.parametrize(
    ("policy", "record"),
    [
        (None, "n2 | - | epoch 1"),
        ({"ha-mode": "all"}, "n2 | n1* n3* n4* | epoch 1"),
        ({"ha-mode": "exactly", "ha-params": 2}, "n2 | n1* | epoch 1"),
        ({"ha-mode": "exactly", "ha-params": 9}, "n2 | n1* n3* n4* | epoch 1"),
        ({"ha-mode": "nodes", "ha-params": ["n4", "n2"]}, "n2 | n4* | epoch 1"),
        ({"ha-mode": "nodes", "ha-params": ["n3", "n4", "n9"]}, "n3 | n4* | epoch 1"),
        ({"ha-mode": "nodes", "ha-params": ["n9"]}, "n2 | - | epoch 1"),
    ],
)
def test_a_new_queue_is_placed_by_policy_and_every_mirror_is_synchronised(
    policy: dict[str, Any] | None, record: str
) -> None:
    cluster = StateUnderTest("n1", "n2", "n3", "n4")
    if policy:
        cluster.policy(policy)
    created = cluster.declare(origin="n2")
    assert show(created) == record
    assert [event for event in cluster.last.events if isinstance(event, QueueCreated)]


def test_mirrors_are_spread_over_the_nodes_with_the_fewest_replicas() -> None:
    cluster = StateUnderTest("n1", "n2", "n3", "n4")
    cluster.policy({"ha-mode": "exactly", "ha-params": 2})
    mirrors = [cluster.declare(f"q{number}", origin="n1").mirrors for number in range(3)]
    assert mirrors == [(N2,), (N3,), (N4,)]


def test_exclusive_queues_are_never_mirrored() -> None:
    cluster = mirrored(durable=False, exclusive_owner="n1/c1")
    assert show(cluster.record()) == "n1 | - | epoch 1"


@pytest.mark.parametrize("through_policy", [True, False])
def test_min_masters_takes_the_node_with_the_fewest(through_policy: bool) -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare("a", origin="n1")
    cluster.declare("b", origin="n2")
    arguments = {} if through_policy else {"x-queue-master-locator": "min-masters"}
    if through_policy:
        cluster.policy({"queue-master-locator": "min-masters"})
    assert cluster.declare("c", origin="n1", arguments=arguments).master == N3


def test_random_spreads_masters() -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.policy({"queue-master-locator": "random"})
    assert {cluster.declare(f"q{number}", origin="n1").master for number in range(20)} == {N1, N2, N3}


def test_a_node_that_was_declared_down_cannot_declare() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.down("n2")
    applied = cluster.apply(ChangeTopology(DeclareQueue("/", "q"), N2))
    assert isinstance(applied.error, ConnectionFailure)
    assert not cluster.exists()


# --- a node goes


def test_a_dead_mirror_leaves_the_record() -> None:
    cluster = mirrored()
    cluster.down("n2")
    assert show(cluster.record()) == "n1 | n3* | epoch 1"
    assert reasons(cluster) == ["mirrors"]


def test_the_oldest_synchronised_mirror_is_promoted() -> None:
    cluster = mirrored()
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3* | epoch 2"
    assert reasons(cluster) == ["promoted"]


def test_an_older_but_unsynchronised_mirror_is_passed_over() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(MirrorUnsynchronised(record.queue_id, record.epoch, N2))
    cluster.down("n1")
    assert show(cluster.record()) == "n3 | n2 | epoch 2"


def unsynchronised(**policy: str) -> StateUnderTest:
    """Master n1, mirrors n2 and n3 that lack what was there before the policy."""
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy({**ALL, **policy})
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1"
    return cluster


@pytest.mark.parametrize(
    ("policy", "reason", "record", "change"),
    [
        ({}, "failure", "n2 | n3 | epoch 2 | lossy 1", "promoted_lossy"),
        ({"ha-promote-on-failure": "always"}, "failure", "n2 | n3 | epoch 2 | lossy 1", "promoted_lossy"),
        (
            {"ha-promote-on-failure": "when-synced"},
            "failure",
            "n1 | n2 n3 | epoch 1 | down, recoverable n1",
            "master_down",
        ),
        ({}, "shutdown", "n1 | n2 n3 | epoch 1 | down, recoverable n1", "master_down"),
        ({"ha-promote-on-shutdown": "always"}, "shutdown", "n2 | n3 | epoch 2 | lossy 1", "promoted_lossy"),
        (
            {"ha-promote-on-failure": "when-synced", "ha-promote-on-shutdown": "always"},
            "shutdown",
            "n2 | n3 | epoch 2 | lossy 1",
            "promoted_lossy",
        ),
    ],
)
def test_without_a_synchronised_mirror_the_policy_decides(
    policy: dict[str, str], reason: str, record: str, change: str
) -> None:
    cluster = unsynchronised(**policy)
    cluster.down("n1", reason=reason)
    assert show(cluster.record()) == record
    assert reasons(cluster) == [change]


def test_the_last_replica_to_go_is_the_recoverable_one() -> None:
    cluster = mirrored(ALL, "n1", "n2", "n3")
    cluster.down("n1")
    cluster.down("n3")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | - | epoch 2 | down, recoverable n2"


def test_an_old_master_is_not_taken_back_while_the_last_one_is_missing() -> None:
    cluster = mirrored()
    for node in ("n1", "n3", "n2"):
        cluster.down(node)
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | - | epoch 2 | down, recoverable n2"
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n2 | n1 | epoch 3"


def test_exactly_replaces_a_dead_mirror_at_once() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n2")
    assert show(cluster.record()) == "n1 | n3 | epoch 1"


def test_exactly_replaces_a_promoted_mirror_at_once() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3 | epoch 2"


def test_an_unmirrored_durable_queue_waits_for_its_node() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare()
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | - | epoch 1 | down, recoverable n1"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | - | epoch 2"
    assert reasons(cluster) == ["master_returned"]


def test_an_unmirrored_transient_queue_dies_with_its_node() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare(durable=False)
    cluster.down("n1")
    assert not cluster.exists()
    assert [event.queue.name for event in cluster.last.events if isinstance(event, QueueDeleted)] == ["q"]


def test_exclusive_queues_go_with_the_node_of_their_connection() -> None:
    cluster = StateUnderTest("n1", "n2", "n11")
    cluster.declare("a", exclusive_owner="n1/7", durable=False)
    cluster.declare("b", origin="n11", exclusive_owner="n11/7", durable=False)
    cluster.down("n1")
    assert not cluster.exists("a")
    assert cluster.exists("b"), "n11 is another node although its name begins the same"


def test_a_mirrored_transient_queue_survives_its_master() -> None:
    cluster = mirrored(durable=False)
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3* | epoch 2"


def test_news_of_an_earlier_life_changes_nothing() -> None:
    cluster = mirrored()
    cluster.up("n1", 2)
    before = cluster.record()
    cluster.down("n1", incarnation=1)
    cluster.up("n1", 1)
    assert cluster.record() == before
    assert cluster.state.members[N1].incarnation == 2


# --- a node comes


def test_a_returning_node_becomes_the_youngest_mirror_unsynchronised() -> None:
    cluster = mirrored()
    cluster.down("n2")
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1"


def test_a_new_node_gets_mirrors_where_the_policy_says_all() -> None:
    cluster = mirrored()
    cluster.declare("exclusive", exclusive_owner="n1/1", durable=False)
    cluster.up("n4")
    assert show(cluster.record()) == "n1 | n2* n3* n4 | epoch 1"
    assert show(cluster.record("exclusive")) == "n1 | - | epoch 1"


def test_an_old_master_that_returns_is_only_a_mirror() -> None:
    cluster = mirrored()
    cluster.down("n1")
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | n3* n1 | epoch 2"


def test_a_master_that_restarted_unnoticed_keeps_its_queue_under_a_new_epoch_if_nobody_else_has_it() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 1})
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | - | epoch 2"
    assert reasons(cluster) == ["master_restarted"]


def test_a_master_that_restarted_unnoticed_gives_way_to_a_mirror_that_still_has_the_transient_messages() -> None:
    cluster = mirrored()
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | n3* n1 | epoch 2"
    assert reasons(cluster) == ["promoted", "mirrors"]


def test_a_mirror_that_restarted_unnoticed_stays_in_a_durable_record() -> None:
    cluster = mirrored()
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n2* n3* | epoch 1"


def test_a_transient_queue_does_not_survive_an_unnoticed_restart_of_its_master() -> None:
    cluster = mirrored(durable=False)
    cluster.declare("alone", durable=False)
    record = cluster.record("alone")
    for node in (N2, N3):
        cluster.apply(DropMirror(record.queue_id, record.epoch, node))
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | n3* n1 | epoch 2"
    assert not cluster.exists("alone")


def test_a_transient_mirror_that_restarted_unnoticed_begins_anew() -> None:
    cluster = mirrored(durable=False)
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1"


def test_exclusive_queues_go_when_the_node_restarted_unnoticed() -> None:
    cluster = StateUnderTest("n1")
    cluster.declare(exclusive_owner="n1/7", durable=False)
    cluster.up("n1", 2)
    assert not cluster.exists()


def test_a_paused_node_that_comes_back_in_the_same_life_is_up_again() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare()
    cluster.down("n1")
    cluster.up("n1", 1)
    assert show(cluster.record()) == "n1 | - | epoch 2"


def test_the_content_of_a_transient_queue_that_waited_for_another_process_is_lost() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare(durable=False)
    cluster.policy({**ALL, "ha-promote-on-failure": "when-synced"})
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2 | epoch 1 | down, recoverable n1"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | n2 | epoch 2 | lossy 1"


# --- policies


def test_a_new_policy_adds_unsynchronised_mirrors() -> None:
    assert show(unsynchronised().record()) == "n1 | n2 n3 | epoch 1"


def test_clearing_the_policy_drops_all_mirrors_and_disturbs_nobody() -> None:
    cluster = mirrored()
    cluster.apply(ClearPolicy("/", "ha"))
    assert show(cluster.record()) == "n1 | - | epoch 1"


def test_fewer_replicas_cost_the_unsynchronised_first_and_then_the_youngest() -> None:
    cluster = mirrored(ALL, "n1", "n2", "n3", "n4")
    record = cluster.record()
    cluster.apply(MirrorUnsynchronised(record.queue_id, record.epoch, N2))
    cluster.policy({"ha-mode": "exactly", "ha-params": 3})
    assert show(cluster.record()) == "n1 | n3* n4* | epoch 1"
    cluster.policy({"ha-mode": "exactly", "ha-params": 2})
    assert show(cluster.record()) == "n1 | n3* | epoch 1"


def test_a_master_that_is_not_wanted_hands_over_to_a_synchronised_mirror() -> None:
    cluster = mirrored()
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n3", "n2"]})
    assert show(cluster.record()) == "n3 | n2* | epoch 2"
    assert reasons(cluster) == ["moved"]


def test_a_master_that_is_not_wanted_stays_until_a_listed_mirror_is_synchronised() -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n2", "n3"]})
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1"
    synchronised(cluster, N3)
    assert show(cluster.record()) == "n3 | n2 | epoch 2"
    assert cluster.record().lossy_promotions == 0


def test_a_policy_changes_nothing_on_a_queue_that_is_down() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare()
    cluster.down("n1")
    cluster.policy(ALL)
    assert show(cluster.record()) == "n1 | - | epoch 1 | down, recoverable n1"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | n2 | epoch 2"


# --- what masters report


def test_a_synchronised_mirror_is_noted_in_the_order_of_mirrors() -> None:
    cluster = unsynchronised()
    synchronised(cluster, N3)
    assert show(cluster.record()) == "n1 | n2 n3* | epoch 1"
    synchronised(cluster, N2)
    assert show(cluster.record()) == "n1 | n2* n3* | epoch 1"
    assert cluster.record().synchronised == (N2, N3)


@pytest.mark.parametrize("command", [MirrorUnsynchronised, DropMirror, AddMirror, MoveMaster])
def test_reports_of_another_epoch_are_refused(command: Any) -> None:
    cluster = mirrored()
    record = cluster.record()
    for epoch in (record.epoch - 1, record.epoch + 1):
        assert isinstance(cluster.apply(command(record.queue_id, Epoch(epoch), N2)).error, StaleMastershipError)
    assert cluster.record() == record


def test_a_sync_of_another_epoch_is_refused() -> None:
    cluster = unsynchronised()
    record = cluster.record()
    applied = cluster.apply(MirrorSynchronised(record.queue_id, Epoch(record.epoch - 1), N2, cluster.index))
    assert isinstance(applied.error, StaleMastershipError)
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1"


def test_a_sync_from_before_the_mirror_left_and_came_back_does_not_count() -> None:
    """The dangerous one: the report is late, and meanwhile the mirror missed what was confirmed without it."""
    cluster = unsynchronised()
    record, as_of_index = cluster.record(), cluster.index
    cluster.down("n2")
    cluster.up("n2", 1)
    late = cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, N2, as_of_index))
    assert isinstance(late.error, StaleMastershipError)
    assert show(cluster.record()) == "n1 | n3 n2 | epoch 1"
    synchronised(cluster, N2)
    assert show(cluster.record()) == "n1 | n3 n2* | epoch 1"


def test_a_dropped_mirror_comes_back_as_the_youngest() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    assert show(cluster.record()) == "n1 | n3* | epoch 1"
    cluster.apply(AddMirror(record.queue_id, record.epoch, N2))
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1"


def test_a_mirror_that_no_policy_wants_is_not_added() -> None:
    cluster = StateUnderTest("n1", "n2")
    record = cluster.declare()
    assert isinstance(cluster.apply(AddMirror(record.queue_id, record.epoch, N2)).error, StaleMastershipError)


def test_a_move_keeps_the_old_master_as_a_synchronised_mirror() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N3))
    assert show(cluster.record()) == "n3 | n2* n1* | epoch 2"


def test_a_move_to_an_unsynchronised_mirror_is_refused() -> None:
    cluster = unsynchronised()
    record = cluster.record()
    applied = cluster.apply(MoveMaster(record.queue_id, record.epoch, N2))
    assert isinstance(applied.error, StaleMastershipError)
    assert cluster.record() == record


# --- forgetting a node


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
    assert show(cluster.record()) == "n2 | n3 | epoch 2 | lossy 1"
    assert not cluster.exists("alone")
    assert N1 not in cluster.state.members
