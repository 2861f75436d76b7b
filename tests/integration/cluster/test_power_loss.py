"""All nodes lose power at once and some return: whoever holds everything confirmed is waited for, however often.

The queue of most of these tests is on three nodes: a master and a synchronised mirror, which are *complete*, and a
mirror that *lags*: it came late, so it has the second half of the messages only, until somebody fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode
from tests.support.live_cluster import LiveCluster, QueueView, numbered, publish_confirmed, run_cluster
from tests.support.pika_clients import drain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

QUEUE = "power.queue"
PATTERN = r"^power\."
HALF = 200
EVERYTHING = numbered(2 * HALF)
SECOND_HALF = numbered(HALF, HALF)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def five(tmp_path: Path) -> Iterator[LiveCluster]:
    """Three of these are a majority, so two copies can be missed while the cluster works."""
    with run_cluster(tmp_path / "cluster", node_count=5) as cluster:
        yield cluster


# --- what the tests are made of ---


def declare(cluster: LiveCluster, node: str) -> None:
    with cluster.channel(node) as channel:
        channel.queue_declare(QUEUE, durable=True)


def replicate_on(cluster: LiveCluster, *nodes: str) -> None:
    cluster.set_policy("power", PATTERN, ha_mode="nodes", ha_params=list(nodes))


def fill(cluster: LiveCluster, complete: list[str], lagging: str) -> None:
    """Make the queue, its master on the first of ``complete``: these have everything, ``lagging`` the second half."""
    master, *others = complete
    declare(cluster, master)
    publish_confirmed(cluster, master, QUEUE, numbered(HALF))
    replicate_on(cluster, *complete)
    with cluster.admin(master) as client:
        list(client.sync_queue("/", QUEUE))
    replicate_on(cluster, *complete, lagging)
    cluster.wait_queue(
        QUEUE, lambda view: lagging in view.streaming and set(view.synchronised) == set(others), f"{lagging} follows"
    )
    publish_confirmed(cluster, master, QUEUE, SECOND_HALF)
    view = cluster.queue(QUEUE, master)
    assert view is not None
    assert (view.master, set(view.synchronised), view.ready) == (master, set(others), len(EVERYTHING))
    assert set(view.mirrors) == {*others, lagging}


def lose_power(cluster: LiveCluster) -> None:
    cluster.kill(*cluster.nodes)


def bring_back(cluster: LiveCluster, *nodes: str) -> None:
    """Start ``nodes``, and wait until all that run count the others as down: whoever that would promote is promoted."""
    cluster.restart(*nodes)
    cluster.wait_running(*cluster.local.running_nodes())


def served_by(node: str, messages: int, losses: int = 0) -> Callable[[QueueView], bool]:
    """``losses``: times that messages may have been lost, as far as the node that is asked knows."""
    wanted = (node, "running", messages, losses)
    return lambda view: (view.master, view.state, view.ready, view.lossy_promotions) == wanted


def serves(messages: int) -> Callable[[QueueView], bool]:
    return lambda view: (view.state, view.ready) == ("running", messages)


def drained(cluster: LiveCluster, node: str) -> list[bytes]:
    """Everything in the queue, as a client of ``node`` gets it."""
    with cluster.channel(node) as channel:
        return drain(channel, QUEUE)


def assert_waits(cluster: LiveCluster) -> None:
    """Every node counts the queue as down, also after a change that places queues anew."""
    for node in cluster.local.running_nodes():
        cluster.wait_queue(QUEUE, lambda view: view.state == "down", "down", node)
    with cluster.admin() as client:
        (policy,) = client.list_policies("/", ("name", "definition")).as_dicts()
    cluster.set_policy(policy["name"], PATTERN, **policy["definition"])
    for node in cluster.local.running_nodes():
        view = cluster.queue(QUEUE, node)
        assert view is not None
        assert (view.state, view.ready, view.lossy_promotions) == ("down", None, 0)


def assert_refused(cluster: LiveCluster, member: str, text: str) -> None:
    with cluster.admin() as client, pytest.raises(AdminError, match=text) as refused:
        client.force_promote("/", QUEUE, member)
    assert refused.value.exit_code == ExitCode.SOFTWARE


# --- a complete copy returns ---


@pytest.mark.parametrize(("master", "synchronised"), [("n2", "n1"), ("n1", "n2")])
def test_a_synchronised_mirror_serves_if_the_master_stays_away(
    three: LiveCluster, master: str, synchronised: str
) -> None:
    fill(three, [master, synchronised], "n3")
    three.set_policy("power", PATTERN, ha_mode="all")
    lose_power(three)
    bring_back(three, synchronised, "n3")
    three.wait_queue(QUEUE, served_by(synchronised, len(EVERYTHING)), "served with everything")
    bring_back(three, master)
    three.wait_queue(QUEUE, serves(len(EVERYTHING)), "served with everything")
    assert drained(three, master) == EVERYTHING


@pytest.mark.parametrize(("master", "synchronised"), [("n2", "n1"), ("n1", "n2")])
def test_the_master_serves_if_the_synchronised_mirror_stays_away(
    three: LiveCluster, master: str, synchronised: str
) -> None:
    fill(three, [master, synchronised], "n3")
    three.set_policy("power", PATTERN, ha_mode="all")
    lose_power(three)
    bring_back(three, master, "n3")
    three.wait_queue(QUEUE, served_by(master, len(EVERYTHING)), "served with everything")
    bring_back(three, synchronised)
    three.wait_queue(QUEUE, serves(len(EVERYTHING)), "served with everything")
    assert drained(three, synchronised) == EVERYTHING


@pytest.mark.parametrize(("first", "second"), [("n2", "n1"), ("n1", "n2")])
def test_a_queue_waits_for_a_complete_copy_and_not_for_the_first_that_returns(
    five: LiveCluster, first: str, second: str
) -> None:
    fill(five, ["n1", "n2"], "n3")
    lose_power(five)
    bring_back(five, "n3", "n4", "n5")
    assert_waits(five)
    bring_back(five, first)
    five.wait_queue(QUEUE, served_by(first, len(EVERYTHING)), "served with everything")
    bring_back(five, second)
    five.wait_queue(QUEUE, serves(len(EVERYTHING)), "served with everything")
    assert drained(five, "n3") == EVERYTHING


def test_what_an_idle_majority_believes_of_the_dead_costs_nothing(five: LiveCluster) -> None:
    """It counts every copy as up at first; if the master is missed first, the lagging mirror seems to be left."""
    fill(five, ["n1"], "n3")
    lose_power(five)
    bring_back(five, "n2", "n4", "n5")
    assert_waits(five)
    bring_back(five, "n3")
    assert_waits(five)
    bring_back(five, "n1")
    five.wait_queue(QUEUE, served_by("n1", len(EVERYTHING)), "served with everything")
    assert drained(five, "n3") == EVERYTHING


def test_nothing_is_lost_when_the_power_fails_again_and_again_before_anybody_used_the_queue(three: LiveCluster) -> None:
    """Each time the nodes return in another order; those that came first serve for a moment, or wait, alone."""
    fill(three, ["n1", "n2"], "n3")
    for order in (("n3", "n2", "n1"), ("n3", "n1", "n2"), ("n2", "n3", "n1")):
        lose_power(three)
        three.start_one(order[0])
        bring_back(three, order[1])
        bring_back(three, order[2])
        view = three.wait_queue(QUEUE, serves(len(EVERYTHING)), f"served with everything after {order}")
        assert view.lossy_promotions == 0
    assert drained(three, "n1") == EVERYTHING


def test_nothing_is_lost_when_the_power_fails_while_the_nodes_are_returning(three: LiveCluster) -> None:
    """Each pair of nodes is a majority for a moment and gets no time to settle."""
    fill(three, ["n1", "n2"], "n3")
    for pair in (("n3", "n2"), ("n1", "n3"), ("n2", "n3")):
        lose_power(three)
        three.restart(*pair)
    lose_power(three)
    bring_back(three, *three.nodes)
    three.wait_queue(QUEUE, serves(len(EVERYTHING)), "served with everything")
    assert drained(three, "n2") == EVERYTHING


# --- exactly two, and nodes that never had a copy ---


def fill_two(cluster: LiveCluster) -> tuple[str, str]:
    """A queue on exactly two nodes, with the first half: the nodes of its master and of its synchronised mirror.

    The master is on the last node, so that idle ones come before it wherever nodes are looked at in their order.
    """
    master = cluster.nodes[-1]
    cluster.set_policy("power", PATTERN, ha_mode="exactly", ha_params=2)
    declare(cluster, master)
    (mirror,) = cluster.wait_synchronised(QUEUE, 1).mirrors
    publish_confirmed(cluster, master, QUEUE, numbered(HALF))
    return master, mirror


@pytest.mark.parametrize("returning", [0, 1], ids=["master", "mirror"])
def test_a_copy_serves_and_not_an_idle_node_that_returns_with_it(three: LiveCluster, returning: int) -> None:
    copies = fill_two(three)
    (idle,) = set(three.nodes) - set(copies)
    lose_power(three)
    bring_back(three, copies[returning], idle)
    three.wait_queue(QUEUE, served_by(copies[returning], HALF), "served by the copy")
    bring_back(three, copies[1 - returning])
    three.wait_queue(QUEUE, serves(HALF), "served with everything")
    assert drained(three, idle) == numbered(HALF)


@pytest.mark.parametrize("returning", [0, 1], ids=["master", "mirror"])
def test_idle_nodes_do_not_fill_a_queue_from_nothing(five: LiveCluster, returning: int) -> None:
    copies = fill_two(five)
    idle = sorted(set(five.nodes) - set(copies))
    lose_power(five)
    bring_back(five, *idle)
    assert_waits(five)
    bring_back(five, copies[returning])
    five.wait_queue(QUEUE, served_by(copies[returning], HALF), "served by the copy")
    assert drained(five, idle[0]) == numbered(HALF)


# --- copies that lack something ---


def test_a_mirror_that_follows_still_takes_over_when_only_the_master_dies(three: LiveCluster) -> None:
    fill(three, ["n2"], "n3")
    with three.admin("n2") as client:
        client.add_vhost("later")  # so what n2 has said before, that n3 follows, is committed, too
    three.kill_and_notice("n2")
    three.wait_queue(QUEUE, served_by("n3", HALF, losses=1), "n3 took over with what it had")
    three.restart("n2")
    three.wait_queue(QUEUE, lambda view: view.mirrors == ("n2",), "n2 is a mirror")
    assert drained(three, "n1") == SECOND_HALF


def test_an_operator_may_have_an_incomplete_copy_served(five: LiveCluster) -> None:
    fill(five, ["n1", "n2"], "n3")
    assert_refused(five, "n3", "served")
    lose_power(five)
    bring_back(five, "n3", "n4", "n5")
    assert_waits(five)
    assert_refused(five, "n2", "n2 is not running")
    assert_refused(five, "n9", "n9 is no member")
    assert_waits(five)

    assert five.warrenctl("-n", "n4", "force_promote", QUEUE, "n3") == (
        0,
        f"Promoting n3 to master of queue '{QUEUE}' in vhost '/' whatever it lacks ...\n"
        "n3 is the master now; what it lacked is lost\n",
        "",
    )
    five.wait_queue(QUEUE, served_by("n3", HALF, losses=1), "n3 serves what it has")
    code, _, errors = five.warrenctl("-n", "n4", "force_promote", QUEUE, "n3")
    assert (code, "served" in errors) == (ExitCode.SOFTWARE, True), errors

    bring_back(five, "n1", "n2")
    view = five.wait_queue(QUEUE, lambda view: set(view.mirrors) == {"n1", "n2"}, "the complete copies are mirrors")
    assert (view.master, view.lossy_promotions) == ("n3", 1)
    assert drained(five, "n1") == SECOND_HALF, "what was given up does not come back"


def test_a_forced_master_serves_publishers(three: LiveCluster) -> None:
    fill(three, ["n1"], "n3")
    lose_power(three)
    bring_back(three, "n2", "n3")
    assert_waits(three)
    with three.admin("n2") as client:
        client.force_promote("/", QUEUE, "n3")
    three.wait_queue(QUEUE, served_by("n3", HALF, losses=1), "n3 serves what it has")
    publish_confirmed(three, "n2", QUEUE, [b"after"])
    bring_back(three, "n1")
    three.wait_queue(QUEUE, lambda view: view.mirrors == ("n1",), "n1 is a mirror")
    assert drained(three, "n1") == [*SECOND_HALF, b"after"]
