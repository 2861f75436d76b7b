"""Clients and operators who send what makes no sense: they are refused or ignored, and no node stops, now or later."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika.exceptions
import pytest

from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_client import AdminError
from tests.support.live_cluster import PERSISTENT, LiveCluster, run_cluster
from tests.support.pika_clients import drain
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LIMIT = 5


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"k": [value]}
    return value


#: Arguments that mean nothing to a queue, with values that would be wrong if they did.
IGNORED: list[dict[str, Any]] = [
    {"max-length": "x"},
    {"max-length": 1, "max-length-bytes": 1, "overflow": "reject-publish"},
    {"message-ttl": {}, "expires": None, "queue-mode": 5, "queue-version": [9]},
    {"queue-master-locator": ["random"], "ha-mode": "all", "ha-params": "x"},
    {"x-alternate-exchange": 5, "alternate-exchange": {"k": [1]}},
    {"x-colour": Decimal("1.5"), "when": datetime(2024, 5, 1, tzinfo=UTC)},
    {"bytes": b"\xff\x00", "": "", "ä" * 100: None, "big": 2**63 - 1, "deep": nested(31)},
]
#: Arguments that mean something, with values that cannot be used.
REFUSED: list[dict[str, Any]] = [
    {"x-max-length": "x"},
    {"x-max-length": datetime(2024, 5, 1, tzinfo=UTC)},
    {"x-max-length-bytes": [5]},
    {"x-expires": -1},
    {"x-queue-version": Decimal(1)},
    {"x-queue-master-locator": {"random": True}},
    {"x-overflow": ["drop-head"]},
    {"x-single-active-consumer": 1},
]
POLICIES = [
    PolicyRecord("/", "p", "a{4294967295}", {"max-length": 5}, 0, "all"),
    PolicyRecord("/", "p", "(" * 400 + ")" * 400, {"max-length": 5}, 0, "all"),
    PolicyRecord("/", "p", "^", {"max-length": float("nan")}, 0, "all"),
    PolicyRecord("/", "p", "^", {"queue-version": 1.0}, 0, "all"),
    PolicyRecord("/", "p", "^", {"max-length": 2**70}, 0, "all"),
    PolicyRecord("/", "p", "^", {"alternate-exchange": "\ud800"}, 0, "all"),
    PolicyRecord("/", "p", "^", {"ha-mode": ["all"]}, 0, "all"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.set_policy("limit", "^", max_length=LIMIT, ha_mode="all")
        yield cluster


def queue_name(node: str, number: int) -> str:
    return f"odd-{node}-{number}"


def all_run(cluster: LiveCluster) -> None:
    assert [node for node in cluster.nodes if not cluster.local.is_running(node)] == []
    cluster.wait_running(*cluster.nodes)


def is_usable(cluster: LiveCluster, node: str, name: str) -> None:
    """The queue takes messages, keeps as many as the policy says, and gives them out."""
    with cluster.channel(node, confirm=True) as channel:
        for number in range(LIMIT + 2):
            channel.basic_publish("", name, b"%d" % number, PERSISTENT, mandatory=True)
        assert drain(channel, name) == [b"%d" % number for number in range(2, LIMIT + 2)]


def test_declarations_that_make_no_sense_stop_no_node(cluster: LiveCluster) -> None:
    for node in cluster.nodes:
        for number, arguments in enumerate(IGNORED):
            with cluster.channel(node) as channel:
                channel.queue_declare(queue_name(node, number), durable=True, arguments=arguments)
                channel.exchange_declare(f"x-{node}-{number}", "headers", arguments={"x-alternate-exchange": 5})
                channel.queue_bind(queue_name(node, number), f"x-{node}-{number}", "", arguments)
        for arguments in REFUSED:
            with cluster.channel(node) as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                channel.queue_declare("refused", durable=True, arguments=arguments)
            assert caught.value.reply_code == 406
    all_run(cluster)
    for node in cluster.nodes:
        assert cluster.queue("refused", node) is None
        for number in range(len(IGNORED)):
            is_usable(cluster, node, queue_name(node, number))
    with cluster.admin() as client:
        listed = {row["name"] for row in client.list_queues("/", ("name", "arguments")).as_dicts()}
        assert len(client.list_bindings("/", ("source_name", "arguments")).as_dicts()) >= len(listed)
    assert queue_name("n1", 0) in listed


def test_policies_that_make_no_sense_stop_no_node(cluster: LiveCluster) -> None:
    for node in cluster.nodes:
        with cluster.admin(node) as client:
            for policy in POLICIES:
                with pytest.raises(AdminError):
                    client.set_policy(policy)
            with pytest.raises(AdminError):
                client.set_permissions("/", "guest", ".*", "a{4294967295}", ".*")
            with pytest.raises(AdminError, match="more than 255 bytes"):
                client.add_vhost("v" * 300)
            with pytest.raises(AdminError, match="a virtual host needs a name"):
                client.add_vhost("")
            with pytest.raises(AdminError, match="a user needs a name"):
                client.add_user("", "secret")
    all_run(cluster)
    with cluster.admin() as client:
        assert [row["name"] for row in client.list_policies("/", ("name",)).as_dicts()] == ["limit"]


def test_only_the_argument_whose_permission_is_checked_names_an_alternate_exchange(cluster: LiveCluster) -> None:
    with cluster.channel("n2", confirm=True) as channel:
        channel.queue_declare("secret", durable=True)
        channel.exchange_declare("outer", "direct", arguments={"x-alternate-exchange": "amq.fanout"})
        channel.queue_bind("secret", "amq.fanout")
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("outer", "nowhere", b"not for you", mandatory=True)
        channel.exchange_declare("open", "direct", arguments={"alternate-exchange": "amq.fanout"})
        channel.basic_publish("open", "nowhere", b"for you", mandatory=True)
        assert drain(channel, "secret") == [b"for you"]


def test_all_nodes_come_back_with_what_was_declared(cluster: LiveCluster) -> None:
    name = "kept"
    with cluster.channel("n1", confirm=True) as channel:
        channel.queue_declare(name, durable=True, arguments=IGNORED[0])
        channel.basic_publish("", name, b"kept", PERSISTENT, mandatory=True)
    cluster.wait_synchronised(name, 2)
    cluster.kill(*cluster.nodes)
    cluster.restart(*cluster.nodes)
    all_run(cluster)
    cluster.wait_queue(name, lambda view: view.state == "running", "running")
    with cluster.channel("n2") as channel:
        assert drain(channel, name) == [b"kept"]
    for node in cluster.nodes:
        with cluster.channel(node) as channel:  # declared again under every name, equivalent as before
            for number, arguments in enumerate(IGNORED):
                channel.queue_declare(queue_name("n1", number), durable=True, arguments=arguments)
        eventually(lambda node=node: cluster.queue(name, node) is not None, f"{node} lists queues")  # type: ignore[misc]
        is_usable(cluster, node, name)
