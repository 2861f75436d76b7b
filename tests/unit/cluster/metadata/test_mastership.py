"""The rules of mastership, each as a short history and the record it leaves.

Records are written ``master | mirrors, oldest first (* synchronised, + following) | epoch | ...`` by `show`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.metadata.commands import (
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    MirrorSynchronised,
)
from cluster.metadata.errors import (
    StaleMastershipError,
)
from cluster.metadata.events import MastershipChanged, QueueCreated, QueueDeleted
from cluster.metadata.mastership import last_served_epoch
from node.errors import ConnectionFailure
from node.ids import Epoch
from node.topology.commands import DeclareQueue
from tests.support.metadata_state import (
    ALL,
    N1,
    N2,
    N3,
    N4,
    StateUnderTest,
    follows,
    mirrored,
    reasons,
    show,
    synchronised,
    unsynchronised,
)

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


def test_the_oldest_synchronised_mirror_is_elected_and_takes_service() -> None:
    cluster = mirrored()
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3* | epoch 2 | elected | complete n1 n2 n3"
    assert reasons(cluster) == ["elected"]
    cluster.serve("n2")
    assert show(cluster.record()) == "n2 | n3* | epoch 2"
    assert reasons(cluster) == ["in_service"]


def test_an_older_but_unsynchronised_mirror_is_passed_over() -> None:
    cluster = unsynchronised()
    synchronised(cluster, N3)
    cluster.down("n1")
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2 | epoch 2"


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
        ({"ha-promote-on-failure": "always", "ha-promote-on-shutdown": "always"}, "shutdown", LOST),
        ({"ha-promote-on-failure": "when-synced", "ha-promote-on-shutdown": "always"}, "shutdown", WAITS),
        ({"ha-promote-on-failure": "always", "ha-promote-on-shutdown": "when-synced"}, "shutdown", WAITS),
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


def test_the_record_remembers_in_which_epoch_anything_may_have_been_delivered_last() -> None:
    cluster = mirrored()
    assert last_served_epoch(cluster.record()) == 0, "a new queue has delivered nothing before"
    cluster.down("n1")
    assert (cluster.record().epoch, last_served_epoch(cluster.record())) == (2, 1)
    cluster.down("n2")
    assert (cluster.record().epoch, last_served_epoch(cluster.record())) == (3, 1), "n2 was only elected"
    cluster.serve("n3")
    assert last_served_epoch(cluster.record()) == 1
    cluster.down("n3")
    assert cluster.record().is_down
    assert (cluster.record().epoch, last_served_epoch(cluster.record())) == (3, 3)
    cluster.up("n3", 2)
    assert (cluster.record().epoch, last_served_epoch(cluster.record())) == (4, 3)


def test_a_master_that_restarts_unnoticed_may_have_delivered_in_its_epoch_before() -> None:
    cluster = StateUnderTest("n1")
    cluster.declare()
    for incarnation in (2, 3):
        cluster.up("n1", incarnation)
        record = cluster.record()
        assert record.in_service
        assert last_served_epoch(record) == record.epoch - 1


def test_of_a_record_of_an_older_release_the_epoch_before_may_have_been_served() -> None:
    cluster = mirrored()
    cluster.down("n1")
    assert last_served_epoch(replace(cluster.record(), epoch=Epoch(7), served_epoch=None)) == 6


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


@pytest.mark.parametrize("durable", [True, False])
def test_exclusive_queues_go_with_the_node_of_their_connection(durable: bool) -> None:
    cluster = StateUnderTest("n1", "n2", "n11")
    cluster.declare("a", exclusive_owner="n1/7", durable=durable)
    cluster.declare("b", origin="n11", exclusive_owner="n11/7", durable=durable)
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


@pytest.mark.parametrize("durable", [True, False])
def test_exclusive_queues_go_when_the_node_restarted_unnoticed(durable: bool) -> None:
    cluster = StateUnderTest("n1")
    cluster.declare(exclusive_owner="n1/7", durable=durable)
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


def test_a_transient_queue_that_waited_for_a_process_that_lives_has_lost_what_only_that_one_had() -> None:
    """It closed its copy when it heard that it was declared down."""
    cluster = waiting_and_transient()
    cluster.up("n1", 1)
    cluster.serve()
    assert show(cluster.record()) == "n2 | n1 | epoch 2 | lossy 1"


def test_a_transient_queue_whose_content_is_lost_waits_for_nobody_whatever_the_policy_says() -> None:
    """To refuse whoever lacks something makes sense only as long as somebody has everything."""
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.declare(durable=False)
    cluster.policy({**ALL, "ha-promote-on-failure": "when-synced"})
    follows(cluster, N3)
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n3 | n2 | epoch 2 | elected | complete nobody"


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
    cluster = StateUnderTest("n1", "n2", "n3", "n4")
    cluster.declare()
    cluster.policy(ALL)
    for node in (N3, N4):
        synchronised(cluster, node)
    assert show(cluster.record()) == "n1 | n2 n3* n4* | epoch 1"
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
    assert [event.discarded for event in cluster.last.events if isinstance(event, MastershipChanged)] == [(N3, N2)]
    assert show(cluster.record()) == "n1 | - | epoch 1"


def test_a_policy_changes_nothing_on_a_queue_that_is_down() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare()
    cluster.down("n1")
    cluster.policy(ALL)
    assert show(cluster.record()) == "n1 | - | epoch 1 | down"
    cluster.up("n1", 2)
    assert show(cluster.record()) == "n1 | n2 | epoch 2"
