"""What a node has on its disk is served before a queue is given up: forgetting nodes, and promotions by force."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaos.sim.machine import DATA_DIR
from cluster.runtime.offline_forgetting import plan_forgetting
from tests.support.sim_lab import NAMES, Lab

QUEUE = "ha.x"
TITLE = "queue 'ha.x' in vhost '/'"
MESSAGES = 50


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def stop_in_order(lab: Lab, names: Sequence[str]) -> None:
    for name in names:
        lab.cluster.stop(name)
        lab.pass_time(0.3)
    lab.pass_time(10)
    assert not lab.cluster.nodes, "all have stopped"


def fill_everywhere(lab: Lab) -> None:
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    lab.declare("n1", QUEUE)
    lab.publish("n1", QUEUE, MESSAGES)
    lab.until_converged()


@pytest.mark.parametrize(("order", "survivor"), [(("n2", "n3", "n1"), "n2"), (("n3", "n1", "n2"), "n1")])
def test_a_copy_that_went_first_serves_what_its_directory_has(lab: Lab, order: Sequence[str], survivor: str) -> None:
    """The master goes on without a mirror that says goodbye, so the record knows of the last copies only."""
    fill_everywhere(lab)
    stop_in_order(lab, order)
    gone = [name for name in NAMES if name != survivor]
    plan = plan_forgetting(lab.cluster.machines[survivor].disk, DATA_DIR, gone)
    assert (plan.deleted_queues, plan.lossy_queues, plan.waiting_queues) == ((), (TITLE,), ())
    assert set(plan.last_complete[TITLE]) <= set(gone)
    lab.cluster.forget_offline(survivor, *gone)
    lab.start(survivor)
    lab.pass_time(5)
    lab.check_invariants()
    assert lab.ready(survivor, QUEUE) == MESSAGES
    record = lab.record(survivor, QUEUE)
    assert record is not None
    assert (record.master, record.in_service, record.lossy_promotions) == (survivor, True, 1)


def test_the_copy_that_went_last_serves_and_waits_for_nobody(lab: Lab) -> None:
    fill_everywhere(lab)
    stop_in_order(lab, ("n1", "n3", "n2"))
    plan = plan_forgetting(lab.cluster.machines["n2"].disk, DATA_DIR, ["n1", "n3"])
    assert (plan.deleted_queues, plan.lossy_queues, plan.waiting_queues, plan.last_complete) == ((), (), (), {})
    lab.cluster.forget_offline("n2", "n1", "n3")
    lab.start("n2")
    lab.pass_time(5)
    assert lab.ready("n2", QUEUE) == MESSAGES


def test_the_complete_copy_of_a_member_that_is_left_is_waited_for(lab: Lab) -> None:
    lab.declare("n3", QUEUE)
    lab.publish("n3", QUEUE, MESSAGES)
    lab.cluster.kill("n3")
    lab.pass_time(10)
    stop_in_order(lab, ("n2", "n1"))
    plan = plan_forgetting(lab.cluster.machines["n2"].disk, DATA_DIR, ["n1"])
    assert (plan.deleted_queues, plan.lossy_queues, plan.waiting_queues) == ((), (), (TITLE,))
    lab.cluster.forget_offline("n2", "n1")
    lab.start("n2", "n3")
    lab.pass_time(20)
    assert lab.ready("n2", QUEUE) == MESSAGES


def fill_half_on_n3(lab: Lab) -> None:
    """n1 has everything, n3 what was there when it stopped, n2 nothing; n2 and n3 are up."""
    lab.set_policy("n1", {"ha-mode": "nodes", "ha-params": ["n1", "n3"], "ha-sync-mode": "automatic"})
    lab.declare("n1", QUEUE)
    lab.publish("n1", QUEUE, MESSAGES)
    lab.until_converged()
    lab.cluster.stop("n3")
    lab.pass_time(5)
    lab.publish("n1", QUEUE, MESSAGES)
    lab.cluster.kill("n1")
    lab.start("n3")
    lab.pass_time(10)
    record = lab.record("n2", QUEUE)
    assert record is not None
    assert (record.is_down, record.complete, record.mirrors) == (True, ("n1",), ())


def test_who_is_forgotten_with_the_only_complete_copy_leaves_the_queue_to_the_copy_on_another_disk(lab: Lab) -> None:
    fill_half_on_n3(lab)
    answer = lab.ask("n2", lambda admin: admin.forget_cluster_node("n1"))
    assert answer == {"deleted_queues": [], "lossy_queues": {TITLE: "n3"}, "unheard_nodes": []}
    lab.pass_time(5)
    record = lab.record("n2", QUEUE)
    assert record is not None
    assert (record.master, record.in_service, record.lossy_promotions) == ("n3", True, 1)
    assert lab.ready("n2", QUEUE) == MESSAGES


def test_a_promotion_by_force_is_refused_where_there_is_nothing_of_the_queue(lab: Lab) -> None:
    fill_half_on_n3(lab)
    with pytest.raises(
        Exception,
        match=r"n2 has nothing of queue 'ha\.x'.* a complete copy was on n1.* n3 has something of it.*--empty",
    ):
        lab.ask("n3", lambda admin: admin.force_promote("/", QUEUE, "n2"))
    lab.ask("n2", lambda admin: admin.force_promote("/", QUEUE, "n3"))
    lab.pass_time(5)
    assert lab.ready("n2", QUEUE) == MESSAGES


def test_an_operator_may_insist_on_an_empty_queue(lab: Lab) -> None:
    fill_half_on_n3(lab)
    lab.ask("n3", lambda admin: admin.force_promote("/", QUEUE, "n2", may_be_empty=True))
    lab.pass_time(5)
    assert lab.ready("n2", QUEUE) == 0


def test_a_queue_is_deleted_if_nobody_that_is_left_has_anything(lab: Lab) -> None:
    lab.declare("n1", "plain")
    lab.publish("n1", "plain", 1)
    lab.cluster.kill("n1")
    lab.pass_time(10)
    answer = lab.ask("n2", lambda admin: admin.forget_cluster_node("n1"))
    assert answer["deleted_queues"] == ["queue 'plain' in vhost '/'"]
