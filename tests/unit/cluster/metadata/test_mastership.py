"""The rules of mastership, each as a short history and the record it leaves.

Records are written ``master | mirrors, oldest first (* synchronised, + following) | epoch | ...`` by `show`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.metadata.commands import (
    AddMirror,
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    ForcePromote,
    ForgetNode,
    MirrorFollows,
    MirrorSynchronised,
    MirrorUnsynchronised,
    MoveMaster,
    TakeService,
)
from cluster.metadata.errors import (
    NodeNotUpError,
    NodeStillUpError,
    NoSuchNodeError,
    StaleMastershipError,
    StillServedError,
)
from cluster.metadata.events import MastershipChanged, QueueCreated, QueueDeleted
from node.errors import ConnectionFailure
from node.ids import Epoch, NodeName, QueueId
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


def follows(cluster: StateUnderTest, *nodes: NodeName, name: str = "q") -> None:
    for node in nodes:
        record = cluster.record(name)
        cluster.apply(MirrorFollows(record.queue_id, record.epoch, node, cluster.index))


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


def test_a_dead_mirror_is_complete_until_the_master_goes_on_without_it() -> None:
    cluster = mirrored()
    cluster.down("n2")
    assert show(cluster.record()) == "n1 | n3* | epoch 1 | complete n1 n2 n3"
    assert reasons(cluster) == ["mirrors"]
    cluster.serve("n1")
    assert show(cluster.record()) == "n1 | n3* | epoch 1"
    assert reasons(cluster) == ["in_service"]


def test_the_oldest_synchronised_mirror_is_elected_and_takes_service() -> None:
    cluster = mirrored()
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3* | epoch 2 | elected | complete n1 n2 n3"
    assert reasons(cluster) == ["elected"]
    cluster.serve("n2")
    assert show(cluster.record()) == "n2 | n3* | epoch 2"
    assert reasons(cluster) == ["in_service"]


def test_only_the_elected_master_of_the_epoch_takes_service() -> None:
    cluster = mirrored()
    cluster.down("n1")
    elected = cluster.record()
    for node, epoch in ((N3, elected.epoch), (N2, elected.epoch - 1), (N2, elected.epoch + 1)):
        cluster.apply(TakeService(node, ((elected.queue_id, Epoch(epoch)), (QueueId(99), Epoch(1)))))
        assert cluster.record() == elected


def test_a_master_that_dies_before_it_takes_service_has_made_nobody_incomplete() -> None:
    cluster = mirrored()
    cluster.down("n1")
    cluster.down("n2")
    assert show(cluster.record()) == "n3 | - | epoch 3 | elected | complete n1 n2 n3"
    cluster.down("n3")
    assert show(cluster.record()) == "n3 | - | epoch 3 | down | complete n1 n2 n3"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | - | epoch 4 | elected | complete n1 n2 n3"


def test_an_older_but_unsynchronised_mirror_is_passed_over() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(MirrorUnsynchronised(record.queue_id, record.epoch, N2))
    cluster.down("n1")
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2 | epoch 2"


def unsynchronised(**policy: str) -> StateUnderTest:
    """Master n1, mirrors n2 and n3 that follow it, and lack what was there before the policy."""
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy({**ALL, **policy})
    follows(cluster, N2, N3)
    assert show(cluster.record()) == "n1 | n2+ n3+ | epoch 1"
    return cluster


LOST = "n2 | n3 | epoch 2 | lossy 1"
WAITS = "n1 | n2+ n3+ | epoch 1 | down"


@pytest.mark.parametrize(
    ("policy", "reason", "record"),
    [
        ({}, "failure", LOST),
        ({"ha-promote-on-failure": "always"}, "failure", LOST),
        ({"ha-promote-on-failure": "when-synced"}, "failure", WAITS),
        ({}, "shutdown", WAITS),
        ({"ha-promote-on-shutdown": "always"}, "shutdown", LOST),
        ({"ha-promote-on-failure": "when-synced", "ha-promote-on-shutdown": "always"}, "shutdown", LOST),
    ],
)
def test_without_a_complete_mirror_the_policy_decides(policy: dict[str, str], reason: str, record: str) -> None:
    cluster = unsynchronised(**policy)
    cluster.down("n1", reason=reason)
    assert reasons(cluster) == ["master_down" if record is WAITS else "elected"]
    cluster.serve()
    assert show(cluster.record()) == record
    if record is LOST:
        assert reasons(cluster) == ["in_service_lossy"]


def test_a_mirror_that_the_master_never_reached_is_not_promoted_whatever_the_policy_says() -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy({**ALL, "ha-promote-on-failure": "always"})
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1 | down"


def test_a_mirror_has_followed_nobody_since_it_restarted() -> None:
    cluster = unsynchronised()
    as_of_index = cluster.index
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3+ n2 | epoch 1"
    record = cluster.record()
    late = cluster.apply(MirrorFollows(record.queue_id, record.epoch, N2, as_of_index))
    assert isinstance(late.error, StaleMastershipError)
    cluster.up("n3", 2)
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1 | down"


def test_who_followed_the_master_before_has_yet_to_follow_this_one() -> None:
    cluster = unsynchronised()
    synchronised(cluster, N2)
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | elected | complete n1 n2"
    cluster.serve("n2")
    assert show(cluster.record()) == "n2 | n3 | epoch 2"


def test_an_incomplete_master_that_has_not_taken_service_gives_way_to_a_complete_copy() -> None:
    cluster = unsynchronised()
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | elected | complete n1"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | n3+ n2 | epoch 3 | elected"
    cluster.serve()
    assert cluster.record().lossy_promotions == 0


def test_an_incomplete_master_that_restarted_before_it_took_service_waits_for_a_complete_copy() -> None:
    cluster = mirrored({"ha-mode": "nodes", "ha-params": ["n1"]})
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n1", "n2"]})
    follows(cluster, N2)
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | - | epoch 2 | elected | complete n1"
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | - | epoch 2 | down"


def test_the_last_copy_in_service_is_the_one_that_is_waited_for() -> None:
    cluster = mirrored()
    for node in ("n1", "n3", "n2"):
        cluster.down(node)
        cluster.serve()
    assert show(cluster.record()) == "n2 | - | epoch 2 | down"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | - | epoch 2 | down"
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n2 | n1 | epoch 3"


@pytest.mark.parametrize("first", ["n1", "n2", "n3"])
def test_after_a_loss_of_power_the_first_complete_copy_serves(first: str) -> None:
    """All three were synchronised and none was seen to die: whichever comes first has everything."""
    cluster = mirrored()
    cluster.up("n4")
    cluster.up("n5")
    for node in ("n4", "n5", first):
        cluster.up(node, 2)
    for node in ("n1", "n2", "n3"):
        if node != first:
            cluster.down(node)
    assert cluster.record().master == first
    cluster.serve()
    assert cluster.record().lossy_promotions == 0


def test_after_a_loss_of_power_an_incomplete_copy_waits_for_a_complete_one() -> None:
    """Master n1 and its mirror n2 had everything; n3 followed, and is the first to return."""
    cluster = unsynchronised()
    synchronised(cluster, N2)
    cluster.up("n4")
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n1", "n2", "n3"]})
    cluster.up("n3", 2)
    cluster.up("n4", 2)
    cluster.down("n1")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | n3 | epoch 2 | down | complete n1 n2"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | n3 | epoch 3 | elected | complete n1 n2"
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3 n2 | epoch 3 | elected | complete n1 n2"
    cluster.serve()
    assert show(cluster.record()) == "n1 | n3 n2 | epoch 3 | complete n1 n2", (
        "n2 has to be filled before it is confirmed"
    )


def test_no_newcomer_is_placed_while_complete_copies_are_only_down() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2}, "n1", "n2", "n3", "n4", "n5")
    for node in ("n3", "n4", "n5"):
        cluster.up(node, 2)
    cluster.down("n1")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | - | epoch 2 | down | complete n1 n2"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | - | epoch 3 | elected | complete n1 n2"
    cluster.serve()
    assert show(cluster.record()) == "n1 | n3 | epoch 3"


def test_exactly_replaces_a_dead_mirror_at_once() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n2")
    assert show(cluster.record()) == "n1 | n3 | epoch 1 | complete n1 n2"
    cluster.serve()
    assert show(cluster.record()) == "n1 | n3 | epoch 1"


def test_exactly_replaces_an_elected_mirror_when_it_takes_service() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | - | epoch 2 | elected | complete n1 n2"
    cluster.serve()
    assert show(cluster.record()) == "n2 | n3 | epoch 2"


def test_an_unmirrored_durable_queue_waits_for_its_node() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare()
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | - | epoch 1 | down"
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
    cluster.serve()
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
    cluster.serve()
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1"


def test_a_mirror_that_returns_before_anybody_went_on_without_it_is_still_complete() -> None:
    cluster = mirrored()
    cluster.down("n2")
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1 | complete n1 n2 n3"
    cluster.down("n3")
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | - | epoch 2 | elected | complete n1 n2 n3"


def test_a_new_node_gets_mirrors_where_the_policy_says_all() -> None:
    cluster = mirrored()
    cluster.declare("exclusive", exclusive_owner="n1/1", durable=False)
    cluster.up("n4")
    assert show(cluster.record()) == "n1 | n2* n3* n4 | epoch 1"
    assert show(cluster.record("exclusive")) == "n1 | - | epoch 1"


def test_an_old_master_that_returns_is_only_a_mirror() -> None:
    cluster = mirrored()
    cluster.down("n1")
    cluster.serve()
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
    assert show(cluster.record()) == "n2 | n3* n1 | epoch 2 | elected | complete n1 n2 n3"
    assert reasons(cluster) == ["elected"]
    cluster.serve()
    assert show(cluster.record()) == "n2 | n3* n1 | epoch 2 | complete n2 n3 n1"


def test_a_mirror_that_restarted_unnoticed_lacks_the_transient_messages() -> None:
    """Another mirror has them still: that one is elected, older or not."""
    cluster = mirrored()
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1 | complete n1 n2 n3"
    cluster.down("n1")
    assert cluster.record().master == N3


def test_news_of_a_mirror_from_before_its_restart_do_not_count() -> None:
    cluster = mirrored()
    record, as_of_index = cluster.record(), cluster.index
    cluster.up("n2", 2)
    late = cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, N2, as_of_index))
    assert isinstance(late.error, StaleMastershipError)
    synchronised(cluster, N2)
    assert show(cluster.record()) == "n1 | n3* n2* | epoch 1"


def test_a_transient_queue_does_not_survive_an_unnoticed_restart_of_its_master() -> None:
    cluster = mirrored(durable=False)
    cluster.declare("alone", durable=False)
    record = cluster.record("alone")
    for node in (N2, N3):
        cluster.apply(DropMirror(record.queue_id, record.epoch, node))
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | n3* | epoch 2 | elected"
    cluster.serve()
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


def waiting_and_transient() -> StateUnderTest:
    """Nobody but n1 has what is in the queue, in its memory."""
    cluster = StateUnderTest("n1", "n2")
    cluster.declare(durable=False)
    cluster.policy({**ALL, "ha-promote-on-failure": "when-synced"})
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2 | epoch 1 | down"
    return cluster


def test_a_transient_queue_whose_content_is_lost_is_served_by_whoever_has_some_of_it() -> None:
    cluster = waiting_and_transient()
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n2 | - | epoch 2 | elected | complete nobody"
    cluster.serve()
    assert show(cluster.record()) == "n2 | n1 | epoch 2 | lossy 1"


def test_a_transient_queue_that_waited_for_a_process_that_lives_has_lost_nothing() -> None:
    cluster = waiting_and_transient()
    cluster.up("n1", 1)
    assert show(cluster.record()) == "n1 | n2 | epoch 2"


def test_a_transient_queue_that_nobody_else_has_comes_back_empty() -> None:
    cluster = waiting_and_transient()
    cluster.down("n2")
    cluster.up("n1", 2)
    cluster.serve()
    assert show(cluster.record()) == "n1 | - | epoch 2 | lossy 1"


# --- policies


def test_a_new_policy_adds_unsynchronised_mirrors() -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy(ALL)
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1"


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
    assert show(cluster.record()) == "n3 | n2* n1* | epoch 2 | elected"
    assert reasons(cluster) == ["moved"]
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2* | epoch 2"
    assert reasons(cluster) == ["in_service", "mirrors"]
    assert [event.discarded for event in cluster.last.events if isinstance(event, MastershipChanged)] == [(), (N1,)]


def test_a_master_that_is_not_wanted_stays_until_a_listed_mirror_is_synchronised() -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare()
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n2", "n3"]})
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 1"
    synchronised(cluster, N3)
    assert show(cluster.record()) == "n3 | n2 n1* | epoch 2 | elected"
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2 | epoch 2"
    assert cluster.record().lossy_promotions == 0


def test_only_the_policy_discards_copies() -> None:
    """Who is dropped because it did not answer, or is down, keeps its files: when it returns, only the difference
    travels."""
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    cluster.serve()
    cluster.down("n3")
    assert not any(event.discarded for event in cluster.last.events if isinstance(event, MastershipChanged))
    cluster.up("n3", 2)
    cluster.policy({"ha-mode": "exactly", "ha-params": 1})
    assert [event.discarded for event in cluster.last.events if isinstance(event, MastershipChanged)] == [(N2, N3)]
    assert show(cluster.record()) == "n1 | - | epoch 1"


def test_a_policy_changes_nothing_on_a_queue_that_is_down() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare()
    cluster.down("n1")
    cluster.policy(ALL)
    assert show(cluster.record()) == "n1 | - | epoch 1 | down"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | n2 | epoch 2"


# --- what masters report


def test_a_synchronised_mirror_is_noted_in_the_order_of_mirrors() -> None:
    cluster = unsynchronised()
    synchronised(cluster, N3)
    assert show(cluster.record()) == "n1 | n2+ n3* | epoch 1"
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
    assert show(cluster.record()) == "n1 | n2+ n3+ | epoch 1"


def test_a_sync_from_before_the_mirror_left_and_came_back_does_not_count() -> None:
    """The dangerous one: the report is late, and meanwhile the mirror missed what was confirmed without it."""
    cluster = unsynchronised()
    record, as_of_index = cluster.record(), cluster.index
    cluster.down("n2")
    cluster.up("n2", 1)
    late = cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, N2, as_of_index))
    assert isinstance(late.error, StaleMastershipError)
    assert show(cluster.record()) == "n1 | n3+ n2 | epoch 1"
    synchronised(cluster, N2)
    assert show(cluster.record()) == "n1 | n3+ n2* | epoch 1"


def test_a_sync_that_is_heard_of_when_its_master_is_dead_ends_the_wait() -> None:
    """The master confirmed nothing without the mirror since it said so, and confirms nothing any more."""
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    record, as_of_index = cluster.record(), cluster.index
    cluster.down("n1")
    assert show(cluster.record()) == WAITS
    cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, N3, as_of_index))
    assert show(cluster.record()) == "n3 | n2+ | epoch 2 | elected | complete n1 n3"


@pytest.mark.parametrize("command", [MirrorSynchronised, MirrorFollows])
def test_nobody_hears_of_mirrors_from_a_master_that_is_not_in_service(command: Any) -> None:
    cluster = unsynchronised()
    cluster.down("n1")
    record = cluster.record()
    applied = cluster.apply(command(record.queue_id, record.epoch, N3, cluster.index))
    assert isinstance(applied.error, StaleMastershipError)
    assert cluster.record() == record


def test_a_dropped_mirror_comes_back_as_the_youngest() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    cluster.serve()
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
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2* n1* | epoch 2"


def test_the_copy_of_a_master_whose_disk_failed_counts_no_longer() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N3, is_old_lost=True))
    assert show(cluster.record()) == "n3 | n2* n1 | epoch 2 | elected"
    cluster.down("n3")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | n1 | epoch 3 | down | complete n2 n3"


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
    assert reasons(cluster) == ["forced"]
    cluster.serve()
    assert show(cluster.record()) == "n2 | n3 | epoch 2 | lossy 1"
    assert not cluster.exists("alone")
    assert N1 not in cluster.state.members


def test_forgetting_one_of_two_complete_copies_leaves_the_other_to_be_waited_for() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n1")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | - | epoch 2 | down | complete n1 n2"
    cluster.apply(ForgetNode(N2))
    assert show(cluster.record()) == "n1 | - | epoch 2 | down"


def test_forgetting_the_only_complete_copy_leaves_the_elected_master_what_it_has() -> None:
    cluster = unsynchronised()
    cluster.down("n1")
    cluster.apply(ForgetNode(N1))
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | elected | lossy 1"
    cluster.serve()
    assert cluster.record().lossy_promotions == 1, "one loss is counted once"


# --- an operator gives up waiting


def test_an_operator_may_have_an_incomplete_copy_serve() -> None:
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    cluster.down("n1")
    cluster.apply(ForcePromote(cluster.record().queue_id, N3))
    assert show(cluster.record()) == "n3 | n2+ | epoch 2 | elected | complete n1"
    assert reasons(cluster) == ["forced"]
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2 | epoch 2 | lossy 1"


def test_an_operator_may_have_a_queue_begin_empty_where_it_never_was() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.down("n1")
    cluster.down("n2")
    cluster.apply(ForcePromote(cluster.record().queue_id, N3))
    cluster.serve()
    assert show(cluster.record()) == "n3 | - | epoch 3 | lossy 1"


def test_an_operator_may_take_another_than_the_elected_master() -> None:
    """For instance because its disk does not let it take service."""
    cluster = mirrored()
    cluster.down("n1")
    cluster.apply(ForcePromote(cluster.record().queue_id, N3))
    assert show(cluster.record()) == "n3 | n2 | epoch 3 | elected | complete n1 n2 n3"
    cluster.serve()
    assert cluster.record().lossy_promotions == 0


def test_force_is_refused_where_it_is_not_needed_or_cannot_help() -> None:
    cluster = mirrored()
    queue_id = cluster.record().queue_id
    assert isinstance(cluster.apply(ForcePromote(queue_id, N2)).error, StillServedError)
    cluster.down("n3")
    cluster.down("n1")
    before = cluster.record()
    assert isinstance(cluster.apply(ForcePromote(queue_id, N3)).error, NodeNotUpError)
    assert isinstance(cluster.apply(ForcePromote(queue_id, N4)).error, NoSuchNodeError)
    assert isinstance(cluster.apply(ForcePromote(QueueId(99), N2)).error, StaleMastershipError)
    assert cluster.record() == before
