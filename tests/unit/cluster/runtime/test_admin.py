"""What operators are answered: exit codes of changes that are not made, and the status of all nodes by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.cli.reports import cluster_status_text
from cluster.metadata.commands import ChangeTopology, Command, ForcePromote, MoveMaster, NodeUp, Request, RequestId
from cluster.metadata.errors import (
    NodeStillUpError,
    NoQuorumError,
    NoSuchPolicyError,
    NoSuchUserError,
    NoSuchVhostError,
    RefusedChangeError,
    UserExistsError,
)
from cluster.metadata.mastership import last_served_epoch
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.raft.config import ProposalRefusedError
from cluster.runtime.admin import NodeAdmin
from cluster.runtime.outside import SystemFacts
from cluster.runtime.standing import Hindrance, Pause
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, exit_code_of
from node.amqp.server.listing import ConnectionListing
from node.auth import UserDirectory
from node.config import build_config, parse_settings
from node.errors import StorageError, WarrenError
from node.ids import Incarnation, NodeName
from node.topology.commands import DeleteQueue, DeleteVhost
from tests.support.metadata_state import N2, N3, StateUnderTest, synchronised, unsynchronised
from tests.support.resources import FakeProbe

POLICY = PolicyRecord("/", "ha", "^", {"ha-mode": "all"}, 0, "queues")
CHANGES: dict[str, Callable[[NodeAdmin], Awaitable[object]]] = {
    "set_policy": lambda admin: admin.set_policy(POLICY),
    "clear_policy": lambda admin: admin.clear_policy("/", "ha"),
    "add_user": lambda admin: admin.add_user("u", "p", ()),
    "delete_user": lambda admin: admin.delete_user("u"),
    "change_password": lambda admin: admin.change_password("u", "p"),
    "set_user_tags": lambda admin: admin.set_user_tags("u", ("t",)),
    "set_permissions": lambda admin: admin.set_permissions("/", "u", "", "", ""),
    "clear_permissions": lambda admin: admin.clear_permissions("/", "u"),
    "add_vhost": lambda admin: admin.add_vhost("v"),
}


class RefusingGroup:
    """A metadata group that commits nothing."""

    def __init__(self, refusal: WarrenError, state: MetadataState | None = None) -> None:
        self.refusal = refusal
        self.state = state or MetadataState(UserDirectory(frozenset()))
        self.proposed: list[Command] = []
        self.consensus = SimpleNamespace(pause=None, leader=None)

    async def change_everywhere(self, command: Command) -> Any:
        self.proposed.append(command)
        raise self.refusal


def admin_of(group: RefusingGroup) -> NodeAdmin:
    runtime = SimpleNamespace(metadata=group, node=NodeName("n1"))
    return node_admin(runtime)


def node_admin(
    runtime: object,
    peers: object = None,
    connections: Sequence[ConnectionListing] = (),
    version: str = "0",
    *,
    has_roles: bool = True,
) -> NodeAdmin:
    """For as much of a node as the test has made."""
    clients = SimpleNamespace(is_serving=has_roles, has_roles=has_roles, connections=lambda: connections)
    return NodeAdmin(
        cast(Any, runtime),
        cast(Any, peers),
        cast(Any, clients),
        lambda: None,
        FakeProbe(),
        SystemFacts(1, "Linux", "3.12.1", version, 1 << 20),
        Random(1),
        cast(Any, SimpleNamespace(document=dict)),
    )


async def refused(change: str, refusal: WarrenError) -> WarrenError:
    with pytest.raises(WarrenError) as caught:
        await CHANGES[change](admin_of(RefusingGroup(refusal)))
    return caught.value


async def test_a_deletion_of_a_vhost_says_which_one_the_operator_means() -> None:
    cluster = StateUnderTest("n1")
    group = RefusingGroup(NoQuorumError("the cluster has not decided"), cluster.state)
    with pytest.raises(NoQuorumError):
        await admin_of(group).delete_vhost("/")
    assert group.proposed == [ChangeTopology(DeleteVhost("/", cluster.index), NodeName("n1"))]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("refusal", "exit_code"),
    [
        (ProposalRefusedError("20000 proposals of this node wait already"), ExitCode.TEMPORARY),
        (NoQuorumError("the cluster has not decided"), ExitCode.TEMPORARY),
        (NoSuchUserError("u"), ExitCode.NO_USER),
        (NoSuchVhostError("v"), ExitCode.DATA),
        (UserExistsError("u"), ExitCode.SOFTWARE),
        (NoSuchPolicyError(), ExitCode.SOFTWARE),
        (StorageError("input/output error"), ExitCode.SOFTWARE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WarrenError) else "",
)
async def test_a_change_that_is_not_made_says_whether_it_is_worth_trying_again(
    change: str, refusal: WarrenError, exit_code: ExitCode
) -> None:
    error = await refused(change, refusal)
    assert exit_code_of(error) == exit_code
    assert str(error) == str(refusal)


async def test_a_policy_that_makes_no_sense_is_not_proposed() -> None:
    group = RefusingGroup(ProposalRefusedError("no leader"))
    bad = PolicyRecord("/", "ha", "^", {"ha-mode": "some"}, 0, "queues")
    with pytest.raises(AdminRefused, match="is not a valid ha-mode value") as caught:
        await admin_of(group).set_policy(bad)
    assert caught.value.exit_code is ExitCode.SOFTWARE


@pytest.mark.parametrize(
    "definition",
    [
        {"message-ttl": 5000},
        {"expires": 5000},
        {"max-length": 5, "dead-letter-exchange": "x"},
        {"ha-mode": "all", "dead-letter-routing-key": "k"},
    ],
)
async def test_a_policy_that_would_not_be_carried_out_is_not_proposed(definition: dict[str, Any]) -> None:
    group = RefusingGroup(ProposalRefusedError("no leader"))
    with pytest.raises(AdminRefused, match="in this release") as caught:
        await admin_of(group).set_policy(PolicyRecord("/", "p", "^", definition, 0, "queues"))
    assert caught.value.exit_code is ExitCode.SOFTWARE
    assert group.proposed == []


async def test_a_promotion_by_force_names_the_queue_by_its_id_and_hands_on_why_it_is_refused() -> None:
    cluster = StateUnderTest("n1", "n2")
    record = cluster.declare("q")
    group = RefusingGroup(RefusedChangeError("the queue is being served: there is nothing to give up"), cluster.state)
    with pytest.raises(RefusedChangeError, match="is being served") as caught:
        await admin_of(group).force_promote("/", "q", "n2")
    assert exit_code_of(caught.value) is ExitCode.SOFTWARE
    assert group.proposed == [ForcePromote(record.queue_id, NodeName("n2"), last_served_epoch(record))]


async def test_a_node_that_counts_as_up_is_not_forgotten_and_nothing_of_it_given_away() -> None:
    """Its link has just gone down, and the cluster has yet to find it dead."""
    cluster = StateUnderTest("n1", "n2")
    group = RefusingGroup(ProposalRefusedError("no leader"), cluster.state)
    runtime = SimpleNamespace(metadata=group, node=NodeName("n1"), links=SimpleNamespace(linked_nodes=list))
    with pytest.raises(NodeStillUpError, match="n2"):
        await node_admin(runtime).forget_cluster_node("n2")
    assert group.proposed == []


@pytest.mark.parametrize(
    ("vhost", "name", "text"),
    [
        ("/", "missing", "no queue 'missing' in vhost '/' (not_found)"),
        ("nowhere", "q", "Virtual host 'nowhere' does not exist"),
    ],
)
async def test_a_promotion_by_force_of_what_does_not_exist_is_not_proposed(vhost: str, name: str, text: str) -> None:
    cluster = StateUnderTest("n1")
    cluster.declare("q")
    group = RefusingGroup(ProposalRefusedError("no leader"), cluster.state)
    with pytest.raises(AdminRefused) as caught:
        await admin_of(group).force_promote(vhost, name, "n1")
    assert (caught.value.exit_code, caught.value.message) == (ExitCode.DATA, text)
    assert group.proposed == []


CONFIG = """
node_name = n1
listeners.tcp.default = 127.0.0.1:5001
cluster.listener = 127.0.0.1:7001
cluster_formation.classic_config.nodes.1 = n1@127.0.0.1:7001
cluster_formation.classic_config.nodes.2 = n2@127.0.0.1:7002
cluster_formation.classic_config.nodes.3 = n3@127.0.0.1:7003
cluster.cookie = correct horse battery
"""
AMQP_OF_N2 = {"interface": "127.0.0.1", "port": 5002, "protocol": "amqp", "purpose": "AMQP 0-9-1"}


class AnsweringPeers:
    """Peers whose status is known."""

    def __init__(self, **documents: dict[str, Any]) -> None:
        self.documents = documents

    async def statuses(self, nodes: Sequence[NodeName]) -> dict[NodeName, dict[str, Any]]:
        return {node: self.documents[node] for node in nodes if node in self.documents}


def admin_in_cluster(peers: AnsweringPeers, *up: str, pause: Pause | None = None, has_roles: bool = True) -> NodeAdmin:
    state = MetadataState(UserDirectory(frozenset()))
    for index, node in enumerate(("n1", *up), 1):
        request_id = RequestId(NodeName("test"), Incarnation(1), index)
        state.apply(index, Request(request_id, NodeUp(NodeName(node), Incarnation(1), f"{node}:1", f"{node}:2")))
    config = build_config(parse_settings(CONFIG, "n1.conf"))
    runtime = SimpleNamespace(
        node=NodeName("n1"),
        metadata=SimpleNamespace(
            state=state,
            consensus=SimpleNamespace(leader="n1", pause=pause),
            spoken=3,
            held_back_by=lambda: ["n2 still runs protocol 2"],
        ),
        config=config,
        member_names=lambda: sorted(member.name for member in config.members),
        alarms=SimpleNamespace(listing=list),
        links=SimpleNamespace(linked_nodes=lambda: [NodeName(node) for node in peers.documents]),
        now_ms=lambda: 15_000,
        gateway=SimpleNamespace(purge=None, delete_if=None),
    )
    return node_admin(runtime, peers, version="0.1.0", has_roles=has_roles)


async def cluster_status(peers: AnsweringPeers, *up: str) -> Mapping[str, Any]:
    return await admin_in_cluster(peers, *up).cluster_status()


async def test_the_status_of_a_cluster_shows_versions_and_listeners_of_every_running_node() -> None:
    n2 = {"warren_version": "0.2.0", "python_version": "3.13.1", "listeners": [AMQP_OF_N2]}
    document = await cluster_status(AnsweringPeers(n2=n2), "n2")
    assert document["running_nodes"] == ["n1", "n2"]
    assert document["versions"] == {
        "n1": {"warren_version": "0.1.0", "python_version": "3.12.1", "protocol": 3},
        "n2": {"warren_version": "0.2.0", "python_version": "3.13.1", "protocol": 2},
    }, "a release that does not say what it speaks speaks protocol 2"
    assert document["protocol"] == {"version": 2, "held_back_by": ["n2 still runs protocol 2"]}
    assert document["listeners"]["n2"] == [AMQP_OF_N2]
    assert [(each["port"], each["protocol"]) for each in document["listeners"]["n1"]] == [
        (5001, "amqp"),
        (7001, "grpc"),
    ]


async def test_a_node_that_does_not_answer_is_left_out_of_versions_and_listeners() -> None:
    document = await cluster_status(AnsweringPeers(), "n2", "n3")
    assert document["running_nodes"] == ["n1", "n2", "n3"]
    assert list(document["versions"]) == list(document["listeners"]) == ["n1"]


REFUSAL = NoQuorumError("no")
NO_QUORUM = Pause(Hindrance.NO_QUORUM, "it has no quorum: it reaches no majority of the members", 3_000)
FULL = Pause(Hindrance.STORAGE, "its disk does not take the log of the cluster's metadata (no space)", 3_000)
ASKED: dict[str, Callable[[NodeAdmin], Awaitable[object]]] = {
    **CHANGES,
    "list_queues": lambda admin: admin.list_queues("/", (), QueueSelection()),
    "list_policies": lambda admin: admin.list_policies("/", ()),
    "list_exchanges": lambda admin: admin.list_exchanges("/", ()),
    "list_users": lambda admin: admin.list_users(()),
    "list_vhosts": lambda admin: admin.list_vhosts(()),
    "list_permissions": lambda admin: admin.list_permissions("/", ()),
    "purge_queue": lambda admin: admin.purge_queue("/", "q"),
    "delete_queue": lambda admin: admin.delete_queue("/", "q", if_empty=False, if_unused=False),
    "delete_vhost": lambda admin: admin.delete_vhost("/"),
}


@pytest.mark.parametrize("command", ASKED)
async def test_a_node_without_a_quorum_refuses_with_the_reason_whatever_the_cluster_would_have_to_know(
    command: str,
) -> None:
    with pytest.raises(AdminRefused) as caught:
        await ASKED[command](admin_in_cluster(AnsweringPeers(), "n2", "n3", pause=NO_QUORUM))
    assert caught.value.exit_code is ExitCode.TEMPORARY
    assert caught.value.message == (
        "node n1 is paused for 12 s: it has no quorum: it reaches no majority of the members "
        "(it reaches nobody, and lacks n2, n3)"
    )


async def test_a_node_that_has_not_joined_does_not_say_that_a_vhost_does_not_exist() -> None:
    with pytest.raises(AdminRefused, match="node n1 is not ready: it has not joined the cluster yet") as caught:
        await admin_in_cluster(AnsweringPeers(n2={}), has_roles=False).list_queues("/", (), QueueSelection())
    assert caught.value.exit_code is ExitCode.TEMPORARY
    assert "it reaches n2, and lacks n3" in caught.value.message


async def test_the_status_of_the_cluster_says_who_pauses_and_why_and_who_is_really_there() -> None:
    document = await admin_in_cluster(AnsweringPeers(), "n2", "n3", pause=NO_QUORUM).cluster_status()
    assert document["running_nodes"] == ["n1"], "the records still say that all are up"
    assert document["paused"] == {
        "n1": {
            "hindrance": "no_quorum",
            "reason": NO_QUORUM.reason,
            "seconds": 12,
            "reaches": [],
            "lacks": ["n2", "n3"],
            "serves_clients": False,
        }
    }
    text = cluster_status_text(document)
    assert "Node n1 serves no clients, since " in text
    assert "(12 seconds): it has no quorum" in text
    assert "It lacks: n2, n3" in text


async def test_any_node_tells_of_another_one_that_pauses() -> None:
    n3 = (await admin_in_cluster(AnsweringPeers(), pause=FULL).cluster_status())["paused"]["n1"]
    document = await admin_in_cluster(AnsweringPeers(n2={}, n3={"paused": n3}), "n2", "n3").cluster_status()
    assert document["running_nodes"] == ["n1", "n2", "n3"]
    assert list(document["paused"]) == ["n3"]
    assert "no space" in cluster_status_text(document)


async def test_the_status_of_the_cluster_names_the_links_that_are_cut_as_each_node_sees_it() -> None:
    """n1 asks whom it reaches: n3 reaches n2 and n1, n1 does not reach n2."""
    document = await cluster_status(AnsweringPeers(n3={"cut_off": []}), "n2", "n3")
    assert document["partitions"] == {"n1": ["n2"]}
    assert "Node n1 cannot communicate with n2" in cluster_status_text(document)
    document = await cluster_status(AnsweringPeers(n2={"cut_off": ["n3"]}, n3={"cut_off": ["n2"]}), "n2", "n3")
    assert document["partitions"] == {"n2": ["n3"], "n3": ["n2"]}
    whole = await cluster_status(AnsweringPeers(n2={}, n3={"cut_off": []}), "n2", "n3")
    assert whole["partitions"] == {}, "n2 is of a release that does not say"
    assert (await cluster_status(AnsweringPeers(n2={}), "n2"))["partitions"] == {}, "who is down is not cut off"


async def test_a_change_is_given_up_when_the_node_finds_itself_without_a_quorum() -> None:
    admin = admin_in_cluster(AnsweringPeers())
    group: Any = admin._runtime.metadata
    group.change_everywhere = lambda _command: asyncio.Event().wait()
    asking = asyncio.create_task(admin.add_vhost("v"))
    await asyncio.sleep(0)
    group.consensus.pause = NO_QUORUM
    with pytest.raises(AdminRefused, match=r"no quorum.*it is not known whether the change will be made"):
        await asking


class SilentPeers:
    """The master has taken the command, and says nothing any more; whoever waits for it looks at the queue."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.is_there: Callable[[], bool] = lambda: True

    async def sync_queue(
        self, node: NodeName, vhost: str, name: str, is_there: Callable[[], bool]
    ) -> AsyncIterator[SyncProgress]:
        self.asked.append((node, vhost, name))
        self.is_there = is_there
        yield SyncProgress(1, 2, is_finished=False)


async def test_who_waits_for_the_master_of_a_queue_looks_whether_it_still_is() -> None:
    cluster = unsynchronised()
    peers = SilentPeers()
    group = RefusingGroup(NoQuorumError("nothing is to be decided"), cluster.state)
    admin = node_admin(SimpleNamespace(metadata=group, node=NodeName("n2")), peers)
    assert [each async for each in admin.sync_queue("/", "q")] == [SyncProgress(1, 2, is_finished=False)]
    assert peers.asked == [("n1", "/", "q")]
    assert peers.is_there()
    cluster.down("n1")
    with pytest.raises(AdminRefused) as caught:
        peers.is_there()
    assert (caught.value.exit_code, caught.value.message) == (
        ExitCode.TEMPORARY,
        "queue 'q' has moved to n2: ask again",
    )
    cluster.down("n3")
    cluster.down("n2")
    with pytest.raises(AdminRefused, match="queue 'q' is down: no live node may act as its master") as caught:
        peers.is_there()
    assert caught.value.exit_code is ExitCode.TEMPORARY
    cluster.apply(ChangeTopology(DeleteQueue("/", "q", cluster.record().queue_id), NodeName("n2")))
    with pytest.raises(AdminRefused, match="queue 'q' was deleted meanwhile") as caught:
        peers.is_there()
    assert caught.value.exit_code is ExitCode.DATA


async def test_who_waits_for_a_master_reports_the_end_though_the_record_has_it_first() -> None:
    cluster = unsynchronised()
    group = RefusingGroup(NoQuorumError("nothing is to be decided"), cluster.state)
    admin = node_admin(SimpleNamespace(metadata=group, node=NodeName("n2")), SilentPeers())
    reports = admin.sync_queue("/", "q")
    assert await anext(reports) == SyncProgress(1, 2, is_finished=False)
    for node in (N2, N3):
        synchronised(cluster, node)
    assert [each async for each in reports] == [SyncProgress(2, 2, is_finished=True)]


async def test_a_queue_that_moves_when_its_mirrors_are_synchronised_is_what_was_waited_for() -> None:
    """As a policy may have it that names nodes."""
    cluster = unsynchronised()
    peers = SilentPeers()
    group = RefusingGroup(NoQuorumError("nothing is to be decided"), cluster.state)
    admin = node_admin(SimpleNamespace(metadata=group, node=NodeName("n2")), peers)
    async for _ in admin.sync_queue("/", "q"):
        pass
    assert peers.is_there()
    for node in (N2, N3):
        synchronised(cluster, node)
    assert not peers.is_there()
    cluster.apply(MoveMaster(cluster.record().queue_id, cluster.record().epoch, N2))
    assert cluster.record().master == "n2"
    assert not peers.is_there()


def connection(name: str, alarmed_ms: int | None) -> ConnectionListing:
    number = 4 if alarmed_ms is None else 7
    return ConnectionListing(
        number,
        name,
        "127.0.0.1",
        1,
        5001,
        "guest",
        "/",
        "blocking",
        (),
        5.0,
        60,
        131072,
        2047,
        0,
        0,
        0,
        {},
        alarmed_ms=alarmed_ms,
    )


async def test_the_flow_lists_publishers_that_an_alarm_has_stopped_and_nobody_else() -> None:
    runtime = SimpleNamespace(
        node=NodeName("n1"),
        incarnation=Incarnation(1),
        metadata=SimpleNamespace(state=MetadataState(UserDirectory(frozenset()))),
        alarms=SimpleNamespace(listing=lambda: [{"resource": "memory", "node": "n3"}]),
    )
    connections = [connection("consumer", None), connection("publisher", 900)]
    admin = node_admin(runtime, connections=connections)
    table = await admin.list_flow(("connection", "name", "slowest_hop", "blocked_ms", "state"), local=True)
    assert table.rows == (("<n1.1.7.0>", "publisher", "alarm: memory on n3", 900, "blocked"),)


async def test_a_connection_keeps_its_process_id_and_shows_its_octets_and_its_beginning() -> None:
    first, second = connection("first", None), connection("second", 5)
    second = replace(second, received_bytes=10, sent_bytes=20, send_pending_bytes=3)
    runtime = SimpleNamespace(
        node=NodeName("n1"), incarnation=Incarnation(1), metadata=RefusingGroup(NoQuorumError(""))
    )
    columns = ("pid", "recv_oct", "send_oct", "send_pend", "connected_at")
    for connections in ([first, second], [second]):
        admin = node_admin(runtime, connections=connections)
        admin._system = replace(admin._system, time_of_day=lambda: 1000.0)
        table = await admin.list_connections(columns, local=True)
        assert table.rows[-1] == ("<n1.1.7.0>", 10, 20, 3, 995_000), "whoever else comes or goes"
