"""What the cases of partitions on real processes have in common."""

from __future__ import annotations

import pika.exceptions

from tests.support.countdown_clients import Writers
from tests.support.linked_cluster import LinkedCluster
from tests.support.live_cluster import publish_confirmed
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

LAST = b"at last, "


def declare(cluster: LinkedCluster, name: str, node: str = "n1", mirror_count: int = 2) -> str:
    """A durable queue whose master is there, with so many synchronised mirrors."""
    with cluster.channel(node) as channel:
        channel.queue_declare(name, durable=True)
    cluster.wait_queue(
        name,
        lambda view: len(view.mirrors) == len(view.synchronised) == mirror_count and view.state == "running",
        f"{mirror_count} synchronised mirrors",
    )
    return name


def promised_survive(cluster: LinkedCluster, writers: Writers, queue: str, drain_at: str) -> None:
    """The cluster is whole and takes messages through every node. All that was confirmed is there, what came through
    one channel in its order, and nothing twice."""
    cluster.links.heal()
    promised = writers.finish()
    cluster.wait_whole()
    cluster.wait_queue(queue, lambda view: view.state == "running", "in service")
    for node in cluster.nodes:
        publish_confirmed(cluster, node, queue, [LAST + node.encode()])
    with cluster.channel(drain_at) as channel:
        found = drain(channel, queue)
    assert sorted(body for body in found if body.startswith(LAST)) == [LAST + node.encode() for node in cluster.nodes]
    survived = [body for body in found if not body.startswith(LAST)]
    missing = sorted(set(promised) - set(survived))
    assert not missing, f"{len(missing)} of {len(promised)} confirmed messages are gone: {missing[:5]}"
    assert promised, "something was promised"
    assert len(survived) == len(set(survived)), "none twice"
    for channel_name in {body[:-7] for body in survived}:
        numbers = [body for body in survived if body[:-7] == channel_name]
        assert numbers == sorted(numbers), f"{channel_name.decode()}: in order"


def closing_of(connection: pika.BlockingConnection) -> pika.exceptions.AMQPConnectionError:
    """Why a node closes a connection, once it does."""

    def closed() -> pika.exceptions.AMQPConnectionError | None:
        try:
            connection.process_data_events(0.05)
        except pika.exceptions.AMQPConnectionError as error:
            return error
        return None

    error = eventually(closed, "the connection is closed")
    assert error is not None
    return error
