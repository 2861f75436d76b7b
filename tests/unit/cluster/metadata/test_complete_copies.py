"""Who is known to hold everything, through losses of power, and what happens while nobody like that is up.

Records as in `test_mastership`. The last part tries every order of starting after every loss of power.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import pytest

from cluster.metadata.commands import (
    AddMirror,
    DropMirror,
    ForcePromote,
    MirrorFollows,
    MirrorSynchronised,
    MoveMaster,
    TakeService,
)
from cluster.metadata.errors import (
    CompleteMasterError,
    NodeNotUpError,
    NoSuchNodeError,
    StaleMastershipError,
    StillServedError,
)
from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.metadata.mastership import last_served_epoch
from cluster.metadata.records import MastershipRecord
from node.ids import Epoch, NodeName, QueueId
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


def test_a_dead_mirror_is_complete_until_the_master_goes_on_without_it() -> None:
    cluster = mirrored()
    cluster.down("n2")
    assert show(cluster.record()) == "n1 | n3* | epoch 1 | complete n1 n2 n3"
    assert reasons(cluster) == ["mirrors"]
    cluster.serve("n1")
    assert show(cluster.record()) == "n1 | n3* | epoch 1"
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


def dropped_beside_a_follower(protocol: int = NEWEST_PROTOCOL, **options: Any) -> StateUnderTest:
    """Master n1 has had n2 dropped, which has everything, and is yet to go on without it; n3 only follows."""
    cluster = StateUnderTest("n1", "n2", "n3", protocol=protocol)
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n1", "n2"]})
    record = cluster.declare(**options)
    cluster.policy(ALL)
    follows(cluster, N3)
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    assert show(cluster.record()) == "n1 | n3+ | epoch 1 | complete n1 n2"
    return cluster


def test_a_complete_copy_that_was_dropped_goes_before_one_that_may_lack_something() -> None:
    cluster = dropped_beside_a_follower()
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | n3+ | epoch 2 | elected | complete n1 n2"
    cluster.serve()
    assert show(cluster.record()) == "n2 | n3 | epoch 2"


def test_a_dropped_mirror_that_dies_before_it_serves_leaves_the_queue_to_who_follows() -> None:
    cluster = dropped_beside_a_follower()
    cluster.down("n1")
    cluster.down("n2")
    cluster.serve()
    assert show(cluster.record()) == "n3 | - | epoch 3 | lossy 1"


@pytest.mark.parametrize("options", [{"durable": False}, {"protocol": FIRST_PROTOCOL}])
def test_who_was_dropped_is_passed_over_if_it_has_nothing_left_or_not_all_know_the_rule(options: Any) -> None:
    cluster = dropped_beside_a_follower(**options)
    cluster.down("n1")
    assert show(cluster.record()) == "n3 | - | epoch 2 | elected | complete n1 n2"


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


def test_a_complete_copy_that_was_dropped_is_offered_when_its_master_dies_before_it_went_on() -> None:
    """The node never went, so its `NodeUp` is no news, only the offer."""
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    record = cluster.record()
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n3 | epoch 1 | down | complete n1 n2"
    cluster.up("n2", 1)
    assert show(cluster.record()) == "n2 | n3 | epoch 2 | elected | complete n1 n2"


def test_an_elected_master_whose_disk_fails_hands_over_to_another_complete_copy() -> None:
    cluster = mirrored()
    for node in ("n1", "n2", "n3"):
        cluster.up(node, 2)
    cluster.down("n3", 2)
    record = cluster.record()
    assert show(record) == "n1 | n2 | epoch 5 | elected | complete n1 n2 n3"
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N2, is_old_lost=True))
    assert show(cluster.record()) == "n2 | n1 | epoch 6 | elected | complete n2 n3"


def test_an_elected_master_that_cannot_serve_hands_over_and_stays_complete_if_its_disk_is_sound() -> None:
    cluster = mirrored()
    for node in ("n1", "n2", "n3"):
        cluster.up(node, 2)
    record = cluster.record()
    assert show(record) == "n3 | n1 n2 | epoch 4 | elected | complete n1 n2 n3"
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N1))
    assert show(cluster.record()) == "n1 | n2 n3 | epoch 5 | elected | complete n1 n2 n3"


def test_a_master_does_not_hand_over_to_a_mirror_that_restarted_while_another_is_synchronised() -> None:
    """The restart was committed behind the question; transient messages were in the memory of its life before only."""
    cluster = mirrored()
    record = cluster.record()
    cluster.up("n2", 2)
    late = cluster.apply(MoveMaster(record.queue_id, record.epoch, N2))
    assert isinstance(late.error, StaleMastershipError)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1 | complete n1 n2 n3"
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N3))
    assert show(cluster.record()) == "n3 | n2 n1* | epoch 2 | elected | complete n1 n2 n3"


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


def test_a_mirror_that_returns_before_anybody_went_on_without_it_is_still_complete() -> None:
    cluster = mirrored()
    cluster.down("n2")
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1 | complete n1 n2 n3"
    cluster.down("n3")
    cluster.down("n1")
    assert show(cluster.record()) == "n2 | - | epoch 2 | elected | complete n1 n2 n3"


@pytest.mark.parametrize("command", [MirrorSynchronised, MirrorFollows])
def test_nobody_hears_of_mirrors_from_a_master_that_is_not_in_service(command: Any) -> None:
    cluster = unsynchronised()
    cluster.down("n1")
    record = cluster.record()
    applied = cluster.apply(command(record.queue_id, record.epoch, N3, cluster.index))
    assert isinstance(applied.error, StaleMastershipError)
    assert cluster.record() == record


def test_a_sync_that_is_heard_of_when_its_master_is_dead_ends_the_wait() -> None:
    """The master confirmed nothing without the mirror since it said so, and confirms nothing any more."""
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    record, as_of_index = cluster.record(), cluster.index
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2+ n3+ | epoch 1 | down"
    cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, N3, as_of_index))
    assert show(cluster.record()) == "n3 | n2+ | epoch 2 | elected | complete n1 n3"


def test_a_smaller_number_of_copies_keeps_those_that_are_complete() -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 2})
    cluster.policy({"ha-mode": "exactly", "ha-params": 3})
    cluster.up("n2", 2)
    assert show(cluster.record()) == "n1 | n3 n2 | epoch 1 | complete n1 n2"
    cluster.policy({"ha-mode": "exactly", "ha-params": 2})
    assert show(cluster.record()) == "n1 | n2 | epoch 1 | complete n1 n2", "n3 has nothing yet"


# --- queues that are not durable: a copy ends with its part in the record


def test_a_mirror_of_memory_that_was_dropped_has_nothing_when_it_is_back_in_the_same_life() -> None:
    """It has closed its copy when it heard that it was declared down, though it never died."""
    cluster = mirrored(durable=False)
    cluster.down("n2")
    cluster.down("n3")
    cluster.up("n2", 1)
    assert show(cluster.record()) == "n1 | n2 | epoch 1 | complete n1 n3"
    cluster.serve()
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2 | epoch 1 | down", "n2 has yet to be filled"


def test_a_mirror_of_memory_that_is_taken_back_has_nothing() -> None:
    cluster = mirrored(durable=False)
    record = cluster.record()
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    cluster.apply(AddMirror(record.queue_id, record.epoch, N2))
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1"


def test_a_master_of_memory_that_was_declared_down_has_nothing_when_it_is_back_in_the_same_life() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.declare(durable=False)
    cluster.policy({**ALL, "ha-promote-on-failure": "when-synced"})
    cluster.down("n1")
    assert show(cluster.record()) == "n1 | n2 | epoch 1 | down"
    cluster.up("n1", 1)
    cluster.serve()
    assert cluster.record().lossy_promotions == 1


def test_a_queue_of_memory_waits_for_its_oldest_copy_when_the_one_it_waited_for_has_come_back_empty() -> None:
    cluster = mirrored({**ALL, "ha-promote-on-failure": "when-synced"}, durable=False)
    cluster.up("n4")
    for node in ("n1", "n2", "n3"):
        cluster.down(node)
    assert show(cluster.record()) == "n3 | n4 | epoch 3 | down | complete n1 n2 n3"
    cluster.up("n3", 2)
    assert show(cluster.record()) == "n1 | n4 | epoch 3 | down | complete n1 n2"


def test_a_master_of_memory_that_was_taken_for_dead_has_nothing_when_its_heir_has_yet_to_serve() -> None:
    cluster = mirrored(durable=False)
    cluster.down("n1")
    cluster.up("n1", 1)
    assert show(cluster.record()) == "n2 | n3* | epoch 2 | elected", "it closed its copy when it heard that it was dead"


def test_a_node_of_which_it_is_said_again_that_it_is_up_loses_nothing() -> None:
    cluster = mirrored(durable=False)
    record = cluster.record()
    for node in ("n1", "n2"):
        assert cluster.up(node, 1).events == ()
    assert cluster.record() == record


# --- an operator gives up waiting


def force_to(node: NodeName, looked_at: MastershipRecord) -> ForcePromote:
    return ForcePromote(looked_at.queue_id, node, last_served_epoch(looked_at))


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


def test_nobody_is_forced_over_a_complete_copy_that_is_about_to_serve() -> None:
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    synchronised(cluster, N2)
    cluster.down("n1")
    before = cluster.record()
    assert before.master == N2
    assert isinstance(cluster.apply(ForcePromote(before.queue_id, N3)).error, CompleteMasterError)
    assert cluster.record() == before


def test_force_is_of_the_time_in_which_nobody_served() -> None:
    """Nobody decided, and the complete copy came back, confirmed more, and went again."""
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    cluster.down("n1")
    asked = force_to(N3, cluster.record())
    cluster.up("n1", 2)
    cluster.serve()
    cluster.down("n1", 2)
    before = cluster.record()
    assert before.is_down
    assert isinstance(cluster.apply(asked).error, StaleMastershipError)
    assert cluster.record() == before
    assert cluster.apply(force_to(N3, before)).error is None


@pytest.mark.parametrize("is_served", [False, True])
def test_force_that_was_asked_for_before_an_end_of_service_is_of_another_time(is_served: bool) -> None:
    """Whoever asked was cut off. What was confirmed until the end the master alone has, and the epoch is the same."""
    cluster = unsynchronised(**{"ha-promote-on-failure": "when-synced"})
    cluster.down("n1")
    cluster.apply(ForcePromote(cluster.record().queue_id, N2))
    looked_at = cluster.record()
    assert not looked_at.is_down
    cluster.serve()
    if is_served:
        looked_at = cluster.record()
    cluster.down("n2")
    before = cluster.record()
    assert before.is_down
    assert before.epoch == looked_at.epoch
    assert isinstance(cluster.apply(force_to(N3, looked_at)).error, StaleMastershipError)
    assert cluster.record() == before
    assert cluster.apply(force_to(N3, before)).error is None


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


# --- every order of starting

NAMES = tuple(NodeName(f"n{number}") for number in range(1, 6))


class PowerLoss:
    """A queue of which some copies are complete; then every node stops at once, and some start again one by one.

    A master takes service only if its process lives: what the records say of dead ones is a mistake of theirs.
    """

    def __init__(self, node_count: int, policy: dict[str, Any], holders: Sequence[NodeName], lacking: int) -> None:
        """The master is the first of ``holders``, the others are mirrors; ``lacking``: bit set of those that only
        follow."""
        self.nodes = NAMES[:node_count]
        cluster = self.cluster = StateUnderTest(*self.nodes)
        cluster.declare(origin=holders[0])
        cluster.policy(policy)
        record = cluster.record()
        assert {record.master, *record.mirrors} == set(holders)
        follows(cluster, *record.mirrors)
        self.complete = {record.master}
        for number, node in enumerate(record.mirrors):
            if not lacking >> number & 1:
                synchronised(cluster, node)
                self.complete.add(node)
        self.living: list[NodeName] = []

    def start(self, node: NodeName) -> None:
        self.living.append(node)
        self.cluster.up(node, 2)

    def notice_the_dead(self) -> None:
        for node in self.nodes:
            if node not in self.living:
                self.cluster.down(node)

    def serve(self) -> None:
        if self.living:
            self.cluster.serve(*self.living)

    def check(self) -> None:
        """Nothing is lost, and whoever is in service has everything."""
        record = self.cluster.record()
        assert record.lossy_promotions == 0
        if not record.in_service or record.master not in self.living:
            return
        assert record.master in self.complete, f"{record.master} serves what it has only a part of"

    @property
    def is_served(self) -> bool:
        record = self.cluster.record()
        return record.in_service and record.master in self.living


def run_power_loss(power: PowerLoss, order: Sequence[NodeName], noticed_after: int, *, is_served_late: bool) -> None:
    """Start in this order; that the others are dead is noticed once, when so many are up."""
    for count, node in enumerate(order, 1):
        power.start(node)
        if count == noticed_after:
            power.notice_the_dead()
        if not is_served_late:
            power.serve()
        power.check()
        if count >= noticed_after and not is_served_late:
            assert power.is_served == bool(power.complete & set(power.living)), "the first complete copy serves"
    power.serve()
    power.check()
    assert power.is_served, "with everybody back it is served"


PLACEMENTS: list[tuple[dict[str, Any], int]] = [
    ({"ha-mode": "all"}, 5),
    ({"ha-mode": "exactly", "ha-params": 2}, 2),
    ({"ha-mode": "exactly", "ha-params": 3}, 3),
    ({"ha-mode": "nodes", "ha-params": ["n1", "n2", "n3"]}, 3),
]


def power_losses() -> Iterator[Any]:
    """Nodes, policy, and which of the holders are complete; the last is one of ``2 ** (holders - 1)``."""
    for node_count in (3, 5):
        marks = [pytest.mark.slow] if node_count > 3 else []
        for policy, copies in PLACEMENTS:
            holders = NAMES[: min(copies, node_count)]
            for lacking in range(2 ** (len(holders) - 1)):
                mode = "-".join(str(value) for key, value in policy.items() if key != "ha-params")
                name = f"{node_count}-{mode}-{len(holders)}-{lacking}"
                yield pytest.param(node_count, policy, holders, lacking, marks=marks, id=name)


@pytest.mark.parametrize(("node_count", "policy", "holders", "lacking"), list(power_losses()))
def test_nothing_is_lost_in_whatever_order_nodes_start_after_a_loss_of_power(
    node_count: int, policy: dict[str, Any], holders: Sequence[NodeName], lacking: int
) -> None:
    majority = node_count // 2 + 1
    for order in permutations(NAMES[:node_count]):
        for noticed_after in range(majority, node_count + 1):
            for is_served_late in (False, True):
                power = PowerLoss(node_count, policy, holders, lacking)
                try:
                    run_power_loss(power, order, noticed_after, is_served_late=is_served_late)
                except AssertionError as error:
                    story = f"complete {sorted(power.complete)}, order {order}, noticed after {noticed_after}"
                    error.add_note(f"{story}, served late: {is_served_late}")
                    raise
