"""D20, D21 and P1 to P8 of the conformance cases on real processes: mirrors come and go with policies.

RabbitMQ gave them up as flaky; on the simulator they run with thousands of seeds (`tests.conformance.ha`, where it is
said what is asked and why). What a copy holds is asked of it by making its node the master.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pika
import pytest

from cluster.metadata.records import PolicyRecord
from tests.support.countdown_clients import Writers
from tests.support.live_cluster import LiveCluster, QueueView, numbered, publish_confirmed, run_cluster
from tests.support.pika_clients import drain, get

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

Definition = Mapping[str, Any]

AUTOMATIC: Definition = {"ha-sync-mode": "automatic"}
ALL: Definition = {"ha-mode": "all", **AUTOMATIC}
ALONE: Definition = {"ha-mode": "nodes", "ha-params": ["n1"]}
PAIR: Definition = {"ha-mode": "nodes", "ha-params": ["n1", "n2"]}
#: Above any ``x-max-priority``.
HIGH = 200


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: LiveCluster) -> LiveCluster:
    running.all_up()
    return running


@pytest.fixture
def queue(cluster: LiveCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A durable queue on n1 alone."""
    name = request.node.name
    set_policy(cluster, "n1", ALONE)
    with cluster.channel("n1") as channel:
        channel.queue_declare(name, durable=True)
    yield name
    cluster.all_up()
    with cluster.admin() as client:
        client.delete_queue("/", name)


def set_policy(cluster: LiveCluster, node: str, definition: Definition | None) -> None:
    """Have an operator ask this node. ``None``: no policy."""
    with cluster.admin(node) as client:
        if definition is None:
            client.clear_policy("/", "ha")
        else:
            client.set_policy(PolicyRecord("/", "ha", "", definition, 0, "queues"))


def publish_with_priority(cluster: LiveCluster, queue: str, bodies: Sequence[bytes], priority: int) -> None:
    properties = pika.BasicProperties(delivery_mode=2, priority=priority)  # type: ignore[no-untyped-call]
    with cluster.channel("n1", confirm=True) as channel:
        for body in bodies:
            channel.basic_publish("", queue, body, properties, mandatory=True)


def mirror_on_n2(cluster: LiveCluster, queue: str) -> None:
    """New, without anything of what was published before."""
    set_policy(cluster, "n1", PAIR)
    view = cluster.wait_queue(queue, lambda view: view.streaming == ("n2",), "a mirror that follows")
    assert view.synchronised == ()


def synchronise(cluster: LiveCluster, queue: str, node: str = "n1") -> None:
    with cluster.admin(node) as client:
        *_, last = client.sync_queue("/", queue)
        assert last.is_finished
    cluster.wait_queue(queue, lambda view: view.synchronised == ("n2",), "synchronised")


def content_of(cluster: LiveCluster, queue: str, node: str) -> list[bytes]:
    """What the copy on a node holds, once it is the master's."""
    set_policy(cluster, node, {"ha-mode": "nodes", "ha-params": [node]})
    cluster.wait_queue(queue, lambda view: view.master == node and view.state == "running", f"{node} is the master")
    with cluster.channel("n3") as channel:
        return drain(channel, queue)


# --- mirrors of what a queue holds ---


def test_p1_a_mirror_without_the_head_and_with_unacked_messages_is_synchronised(
    cluster: LiveCluster, queue: str
) -> None:
    publish_confirmed(cluster, "n1", queue, numbered(50))
    mirror_on_n2(cluster, queue)
    publish_confirmed(cluster, "n1", queue, numbered(100, first=50))
    with cluster.channel("n3") as channel:
        taken = [get(channel, queue) for _ in range(70)]
        channel.basic_ack(taken[0][0].delivery_tag)
        synchronise(cluster, queue, "n3")
    cluster.wait_queue(queue, lambda view: view.ready == 149, "what was taken is back")
    assert content_of(cluster, queue, "n2") == numbered(149, first=1)


def test_p2_priorities_above_any_maximum_do_not_hold_a_synchronisation_up(cluster: LiveCluster, queue: str) -> None:
    for number, body in enumerate(numbered(3)):
        publish_with_priority(cluster, queue, [body], HIGH - number)
    mirror_on_n2(cluster, queue)
    synchronise(cluster, queue)
    assert content_of(cluster, queue, "n2") == numbered(3)


def test_p3_nor_do_they_with_unacked_messages(cluster: LiveCluster, queue: str) -> None:
    publish_with_priority(cluster, queue, numbered(3), HIGH)
    with cluster.channel("n3") as channel:
        get(channel, queue)
        get(channel, queue)
        mirror_on_n2(cluster, queue)
        synchronise(cluster, queue)
    cluster.wait_queue(queue, lambda view: view.ready == 3, "what was taken is back")
    assert content_of(cluster, queue, "n2") == numbered(3)


def test_p4_gets_without_acks_leave_a_mirror_standing_while_its_neighbour_restarts(
    cluster: LiveCluster, queue: str
) -> None:
    set_policy(cluster, "n1", ALL)
    cluster.wait_synchronised(queue, 2)
    published = numbered(100)
    publish_confirmed(cluster, "n1", queue, published)
    restarting = threading.Thread(target=lambda: cluster.restart("n3"), daemon=True)
    taken: list[bytes] = []
    with cluster.channel("n1") as channel:
        restarting.start()
        while restarting.is_alive():
            _, _, body = channel.basic_get(queue, auto_ack=True)
            if body is not None:
                taken.append(body)
                continue
            view = cluster.queue(queue, "n1")
            assert view is not None
            assert "n2" in view.synchronised
            more = numbered(100, first=len(published))
            publish_confirmed(cluster, "n1", queue, more)
            published += more
        assert taken + drain(channel, queue) == published
    cluster.wait_synchronised(queue, 2)
    publish_confirmed(cluster, "n1", queue, [b"last"])
    assert content_of(cluster, queue, "n2") == [b"last"], "nothing else is left on the mirror"


def test_p5_after_a_synchronisation_and_a_stop_the_order_is_that_of_publishing(
    cluster: LiveCluster, queue: str
) -> None:
    numbers = numbered(60)
    for at, priority in ((0, 3), (20, 9), (40, 0)):
        publish_with_priority(cluster, queue, numbers[at : at + 20], priority)
    mirror_on_n2(cluster, queue)
    synchronise(cluster, queue, "n2")
    asyncio.run(cluster.local.stop("n1"))
    cluster.wait_queue(queue, lambda view: view.master == "n2" and view.state == "running", "n2 serves")
    with cluster.channel("n3") as channel:
        assert drain(channel, queue) == numbers


def flip(cluster: LiveCluster, queue: str, count: int, settle: Callable[[Definition], object]) -> None:
    """Policies come and go over a loaded queue: it never moves, and in the end a mirror has all."""
    publish_confirmed(cluster, "n1", queue, numbered(300))
    masters: list[object] = []
    with cluster.channel("n1") as channel:
        tag = channel.basic_consume(queue, lambda *_: None, arguments={"x-cancel-on-ha-failover": True})
        channel.add_on_cancel_callback(masters.append)
        for number in range(count):
            definition = ALL if number % 2 == 0 else {"ha-mode": "exactly", "ha-params": 1}
            set_policy(cluster, cluster.nodes[number % 3], definition)
            settle(definition)
        set_policy(cluster, "n1", ALL)
        view = cluster.wait_synchronised(queue, 2)
        assert view.master == "n1"
        channel.connection.process_data_events(0)
        assert masters == [], "the master has never been another"
        channel.basic_cancel(tag)
    cluster.wait_queue(queue, lambda view: view.ready == 300, "what was delivered is back")
    assert content_of(cluster, queue, "n3") == numbered(300)


def test_p6_ten_changes_of_the_policy(cluster: LiveCluster, queue: str) -> None:
    def until_it_is_so(definition: Definition) -> None:
        count = 2 if definition == ALL else 0
        cluster.wait_queue(queue, lambda view: len(view.synchronised) == count, f"{count} mirrors")

    flip(cluster, queue, 10, until_it_is_so)


def test_p7_ten_changes_of_the_policy_in_quick_succession(cluster: LiveCluster, queue: str) -> None:
    flip(cluster, queue, 10, lambda _: None)


def test_p8_fifteen_changes_that_nobody_waits_for(cluster: LiveCluster, queue: str) -> None:
    """Each asked by an operator of its own while the one before is still to be answered."""
    publish_confirmed(cluster, "n1", queue, numbered(300))
    definitions = [ALL if number % 2 == 0 else {"ha-mode": "exactly", "ha-params": 1} for number in range(15)]
    operators = [
        threading.Thread(target=set_policy, args=(cluster, cluster.nodes[number % 3], definition), daemon=True)
        for number, definition in enumerate(definitions)
    ]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join(30)
        assert not operator.is_alive(), "every operator is answered"
    set_policy(cluster, "n1", ALL)
    assert cluster.wait_synchronised(queue, 2).master == "n1"
    assert content_of(cluster, queue, "n2") == numbered(300)


# --- any policies ---


def is_as_wanted(view: QueueView, definition: Definition | None) -> bool:
    """Whether the queue is where the policy wants it, with everything on every copy."""
    copies = {view.master, *view.mirrors}
    mode = None if definition is None else definition["ha-mode"]
    params = None if definition is None else definition.get("ha-params")
    if mode == "nodes":
        is_there = copies == set(params or ())
    else:
        is_there = len(copies) == {None: 1, "all": 3, "exactly": params}[mode]
    return is_there and set(view.synchronised) == set(view.mirrors) and view.state == "running"


def apply_policies(cluster: LiveCluster, queue: str, definitions: Sequence[Definition | None]) -> None:
    """One after the other, through one node after the other, while messages come: the last counts in the end, and no
    message is lost."""
    writers = Writers(cluster, cluster.nodes, queue)
    writers.wait_progress("n2")
    has_policy = True
    for position, definition in enumerate(definitions):
        if definition is not None or has_policy:
            set_policy(cluster, cluster.nodes[position % 3], definition and {**definition, **AUTOMATIC})
        has_policy = definition is not None
        writers.wait_progress("n2")
    promised = writers.finish()
    last = definitions[-1]
    cluster.wait_queue(queue, lambda view: is_as_wanted(view, last), f"as {last} wants it")
    with cluster.channel("n3") as channel:
        assert sorted(drain(channel, queue)) == sorted(promised)
    set_policy(cluster, "n1", ALONE)


def nodes(*names: str) -> Definition:
    return {"ha-mode": "nodes", "ha-params": list(names)}


TWO, THREE = ({"ha-mode": "exactly", "ha-params": number} for number in (2, 3))
EVERYWHERE: Definition = {"ha-mode": "all"}


def test_d20_whatever_policies_come_the_last_one_holds(cluster: LiveCluster, queue: str) -> None:
    apply_policies(cluster, queue, [TWO, nodes("n3"), EVERYWHERE, None, nodes("n2", "n3"), THREE, nodes("n1", "n3")])


@pytest.mark.parametrize(
    "definitions",
    [
        pytest.param([nodes("n1", "n2"), nodes("n1")], id="shrinks"),
        pytest.param([THREE, None, EVERYWHERE, nodes("n2")], id="elsewhere"),
        pytest.param([EVERYWHERE, None, TWO, EVERYWHERE, THREE, THREE, None, THREE, EVERYWHERE], id="nine"),
    ],
)
def test_d21_sequences_that_once_failed(
    cluster: LiveCluster, queue: str, definitions: Sequence[Definition | None]
) -> None:
    apply_policies(cluster, queue, definitions)
