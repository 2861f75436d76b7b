"""What clients and operators see when masters die: redelivery, confirms, promotion rules, placement, restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika.exceptions
import pytest

from tests.support.live_cluster import (
    PERSISTENT,
    LiveCluster,
    QueueView,
    SteadyPublisher,
    numbered,
    publish_confirmed,
    run_cluster,
)
from tests.support.pika_clients import drain, get, pump
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.set_policy("all", r"^ha\.", ha_mode="all")
        yield cluster


@pytest.fixture
def cluster(running: LiveCluster) -> LiveCluster:
    running.all_up()
    return running


@pytest.fixture
def queue(cluster: LiveCluster, request: pytest.FixtureRequest) -> str:
    """A durable queue with its master on n1 and synchronised mirrors on n2 and n3."""
    name = f"ha.{request.node.name}"
    declare(cluster, "n1", name)
    cluster.wait_synchronised(name, 2)
    return name


def declare(cluster: LiveCluster, node: str, name: str) -> None:
    with cluster.channel(node) as channel:
        channel.queue_declare(name, durable=True)


def is_master(node: str) -> Callable[[QueueView], bool]:
    return lambda view: view.master == node and view.state == "running"


def wait_moved(cluster: LiveCluster, queue: str) -> QueueView:
    """Until n1 is not the master any more."""
    return cluster.wait_queue(queue, lambda view: view.master != "n1" and view.state == "running", "a new master")


# --- consumers ---


def test_unacked_messages_keep_their_place_and_are_marked(cluster: LiveCluster, queue: str) -> None:
    publish_confirmed(cluster, "n1", queue, numbered(10))
    with cluster.channel("n1") as channel:
        for _ in range(3):
            get(channel, queue)
        cluster.kill("n1")
    wait_moved(cluster, queue)
    with cluster.channel("n2") as channel:
        taken = [get(channel, queue) for _ in range(10)]
        assert [body for _, body in taken] == numbered(10)
        assert [method.redelivered for method, _ in taken[:3]] == [True] * 3
        channel.basic_ack(taken[-1][0].delivery_tag, multiple=True)
        assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_consumer_on_a_surviving_node_goes_on(cluster: LiveCluster, queue: str) -> None:
    """Without a word: what it had not acknowledged comes again, then everything else."""
    publish_confirmed(cluster, "n1", queue, numbered(10))
    received: list[tuple[bytes, bool, int]] = []
    with cluster.channel("n2") as channel:
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume(
            queue, lambda _c, method, _p, body: received.append((body, method.redelivered, method.delivery_tag))
        )
        pump(channel, lambda: len(received) == 3, "three messages")
        cluster.kill("n1")
        pump(channel, lambda: len(received) == 6, "the same three again")
        again = received[3:]
        assert [(body, redelivered) for body, redelivered, _ in again] == [(body, True) for body in numbered(3)]
        while len(received) < 13:
            channel.basic_ack(received[-1][2], multiple=True)
            pump(channel, lambda last=received[-1]: received[-1] != last, "more messages")  # type: ignore[misc]
        channel.basic_ack(received[-1][2], multiple=True)
        assert [body for body, _, _ in received] == numbered(3) + numbered(10)
        assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_consumer_that_asked_for_it_is_cancelled(cluster: LiveCluster, queue: str) -> None:
    cancelled: list[str] = []
    received: list[bytes] = []
    with cluster.channel("n2") as channel:
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        nervous = channel.basic_consume(
            queue, lambda *_: None, auto_ack=True, arguments={"x-cancel-on-ha-failover": True}
        )
        patient = channel.basic_consume(queue, lambda _c, _m, _p, body: received.append(body), auto_ack=True)
        cluster.kill("n1")
        pump(channel, lambda: cancelled, "basic.cancel")
        assert cancelled == [nervous]
        assert channel.consumer_tags == [patient]
        channel.basic_publish("", queue, b"to whoever is left", PERSISTENT)
        pump(channel, lambda: received, "the message")
        assert received == [b"to whoever is left"]


# --- publishers ---


def test_a_publisher_on_a_surviving_node_gets_every_confirm(cluster: LiveCluster, queue: str) -> None:
    with SteadyPublisher(cluster, "n2", queue) as publisher:
        publisher.wait_confirms(200)
        cluster.kill("n1")
        wait_moved(cluster, queue)
        publisher.wait_confirms(200)
    assert publisher.failed == []
    with cluster.channel("n3") as channel:
        assert drain(channel, queue) == publisher.confirmed, "everything once, in order"


def test_a_confirmed_message_survives_the_master_at_once(cluster: LiveCluster) -> None:
    for number in range(3):
        name = f"ha.at-once-{number}"
        cluster.all_up()
        with cluster.channel("n1", confirm=True) as channel:
            channel.queue_declare(name, durable=True)
            channel.basic_publish("", name, b"only one", PERSISTENT, mandatory=True)
            cluster.kill("n1")
        wait_moved(cluster, name)
        with cluster.channel("n2") as channel:
            assert drain(channel, name) == [b"only one"]


def test_redeclaring_quickly_never_fails(cluster: LiveCluster) -> None:
    name = "ha.redeclared"
    with cluster.channel("n1", confirm=True) as first, cluster.channel("n2", confirm=True) as second:
        for round_number in range(20):
            channel = (first, second)[round_number % 2]
            channel.queue_declare(name, durable=True)
            channel.basic_publish("", name, b"%d" % round_number, PERSISTENT, mandatory=True)
            assert channel.queue_declare(name, durable=True).method.message_count == 1
            assert channel.queue_delete(name).method.message_count == 1


# --- who may be promoted ---


@pytest.fixture
def behind(cluster: LiveCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue with 100 messages on n1 whose only mirror, on n2, was away while they came."""
    name = f"pair.{request.node.name}"
    cluster.set_policy("pair", r"^pair\.", ha_mode="nodes", ha_params=["n1", "n2"], ha_promote_on_failure=request.param)
    declare(cluster, "n1", name)
    cluster.wait_synchronised(name, 1)
    cluster.kill_and_notice("n2")
    publish_confirmed(cluster, "n1", name, numbered(100))
    cluster.restart("n2")
    cluster.wait_queue(
        name,
        lambda view: view.mirrors == view.streaming == ("n2",) and not view.synchronised,
        "an unsynchronised mirror that follows, as the cluster knows",
    )
    yield name
    cluster.all_up()
    cluster.clear_policy("pair")


@pytest.mark.parametrize("behind", ["when-synced"], indirect=True)
def test_a_queue_waits_for_its_messages_if_the_policy_says_so(cluster: LiveCluster, behind: str) -> None:
    cluster.kill_and_notice("n1")
    view = cluster.wait_queue(behind, lambda view: view.state == "down", "down")
    assert view.ready is None
    with (
        cluster.channel("n3") as channel,
        pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused,
    ):
        channel.queue_declare(behind, durable=True)
    assert refused.value.reply_code == 404
    assert refused.value.reply_text.startswith(
        f"NOT_FOUND - home node 'n1' of durable queue '{behind}' in vhost '/' is down"
    )

    cluster.restart("n1")
    cluster.wait_queue(behind, is_master("n1"), "running again")
    with cluster.channel("n3") as channel:
        assert drain(channel, behind) == numbered(100)


@pytest.mark.parametrize("behind", ["always"], indirect=True)
def test_an_incomplete_mirror_takes_over_if_the_policy_says_so(cluster: LiveCluster, behind: str) -> None:
    cluster.kill_and_notice("n1")
    view = cluster.wait_queue(behind, is_master("n2"), "n2 is the master")
    assert view.ready == 0, "the listing shows that the messages are gone"
    cluster.wait_queue(behind, lambda view: view.lossy_promotions == 1, "the other node counts the loss, too", "n3")
    publish_confirmed(cluster, "n3", behind, [b"after"])
    cluster.restart("n1")
    cluster.wait_queue(behind, lambda view: view.mirrors == ("n1",), "n1 is a mirror")
    with cluster.channel("n1") as channel:
        assert drain(channel, behind) == [b"after"], "what was lost does not come back from the old master"


# --- placement ---


def test_exactly_two_recruits_a_replacement(cluster: LiveCluster) -> None:
    cluster.set_policy("two", r"^two\.", ha_mode="exactly", ha_params=2, ha_sync_mode="automatic")
    declare(cluster, "n1", "two.queue")
    (mirror,) = cluster.wait_synchronised("two.queue", 1).mirrors
    publish_confirmed(cluster, "n1", "two.queue", numbered(50))
    cluster.kill_and_notice(mirror)
    (spare,) = {"n2", "n3"} - {mirror}
    cluster.wait_queue("two.queue", lambda view: view.synchronised == (spare,), f"{spare} was recruited and filled")
    cluster.kill("n1")  # now no majority is left: the spare's copy must wait for one
    cluster.restart(mirror)
    cluster.wait_queue("two.queue", is_master(spare), f"{spare} is the master")
    with cluster.channel(mirror) as channel:
        assert drain(channel, "two.queue") == numbered(50)


def test_a_policy_names_nodes_and_its_end_drops_mirrors(cluster: LiveCluster) -> None:
    declare(cluster, "n1", "named.queue")
    publish_confirmed(cluster, "n1", "named.queue", numbered(20))
    cluster.set_policy("named", r"^named\.", ha_mode="nodes", ha_params=["n1", "n3"], ha_sync_mode="automatic")
    assert cluster.wait_synchronised("named.queue", 1).mirrors == ("n3",)

    # The master moves off n1 once somebody on the list has everything.
    cluster.set_policy("named", r"^named\.", ha_mode="nodes", ha_params=["n2", "n3"], ha_sync_mode="automatic")
    cluster.wait_queue(
        "named.queue",
        lambda view: (view.master, view.mirrors, view.synchronised) == ("n3", ("n2",), ("n2",)),
        "moved to n3 and n2",
    )

    cluster.clear_policy("named")
    cluster.wait_queue("named.queue", lambda view: (view.master, view.mirrors) == ("n3", ()), "no mirrors")
    with cluster.channel("n1") as channel:
        assert drain(channel, "named.queue") == numbered(20)


# --- the whole cluster ---


def test_everything_confirmed_is_there_after_all_nodes_were_killed(cluster: LiveCluster, queue: str) -> None:
    declare(cluster, "n2", "plain.all-killed")
    publish_confirmed(cluster, "n3", queue, numbered(2_000))
    publish_confirmed(cluster, "n3", "plain.all-killed", numbered(500))
    cluster.kill("n1", "n2", "n3")
    cluster.restart("n1", "n2", "n3")
    cluster.wait_queue(queue, lambda view: view.state == "running", "the mirrored queue runs")
    cluster.wait_queue("plain.all-killed", is_master("n2"), "the queue without mirrors runs")
    with cluster.channel("n2") as channel:
        assert drain(channel, queue) == numbered(2_000)
        assert drain(channel, "plain.all-killed") == numbered(500)


def test_a_minority_stops_serving_until_it_is_none(cluster: LiveCluster, queue: str) -> None:
    publish_confirmed(cluster, "n3", queue, numbered(10))
    connection = cluster.connect("n3")
    channel = connection.channel()
    cluster.kill("n1", "n2")

    def is_closed() -> bool:
        try:
            connection.process_data_events(0.1)
        except pika.exceptions.AMQPConnectionError:
            return True
        return connection.is_closed

    eventually(is_closed, "the connection is closed")
    assert channel.is_closed
    with pytest.raises(pika.exceptions.AMQPError):
        cluster.connect("n3", connection_attempts=1, socket_timeout=5, stack_timeout=5)

    cluster.restart("n1")
    cluster.wait_queue(queue, lambda view: view.state == "running", "the queue runs again", node="n3")
    with cluster.channel("n3") as channel:
        assert drain(channel, queue) == numbered(10)
