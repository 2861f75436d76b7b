"""The rest of the state machine: requests once, errors, users, policies, events, snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.metadata.codec import decode, encode
from cluster.metadata.commands import (
    AddUser,
    AdmitNode,
    ChangePassword,
    ChangeTopology,
    ClearPermissions,
    ClearPolicy,
    Command,
    DeleteUser,
    ForgetNode,
    FoundCluster,
    NodeDown,
    NodeUp,
    RaiseProtocol,
    Request,
    RequestId,
    SetPermissions,
    SetPolicy,
    SetUserTags,
)
from cluster.metadata.errors import (
    AlreadyFoundedError,
    EarlierLifeError,
    ForgottenNodeError,
    NoSuchNodeError,
    NoSuchPolicyError,
    NoSuchUserError,
    NoSuchVhostError,
    OutcomeUnknownError,
    StaleDeletionError,
    StaleNodeChangeError,
    StaleVhostChangeError,
    StillMemberError,
    TooNewCommandError,
    UserExistsError,
)
from cluster.metadata.events import AccessEnded, Applied, PolicyChanged, QueueDeleted
from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.metadata.records import PolicyRecord
from cluster.metadata.requests import MAX_OUTSTANDING_REQUESTS, AppliedRequests
from cluster.metadata.state import MetadataState
from cluster.policy.validation import PolicyError
from node.errors import ChannelError, ConfigError, WarrenError
from node.ids import Incarnation, NodeName
from node.queues.options import queue_settings
from node.topology.commands import (
    Bind,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    TopologyCommand,
    Unbind,
)
from node.topology.topology import BINDINGS_PER_PIECE
from tests.support.metadata_state import StateUnderTest

N1, N2 = NodeName("n1"), NodeName("n2")


def request_id(counter: int, incarnation: int = 1) -> RequestId:
    return RequestId(N1, Incarnation(incarnation), counter)


# --- requests once


def test_a_repeated_request_is_applied_once() -> None:
    state = MetadataState()
    create = Request(request_id(1), ChangeTopology(CreateVhost("/"), N1))
    delete = Request(request_id(2), ChangeTopology(DeleteVhost("/"), N1))
    state.apply(1, create)
    state.apply(2, delete)
    assert isinstance(state.apply(3, create).error, OutcomeUnknownError)
    assert not state.topology.has_vhost("/")


def test_a_snapshot_in_pieces_is_of_the_moment_at_which_it_was_begun() -> None:
    """Everything that a snapshot holds changes between its first piece and its last."""
    cluster = StateUnderTest("n1", "n2")
    cluster.policy({"ha-mode": "all"})
    cluster.declare("q")
    cluster.declare("gone")
    cluster.serve()
    cluster.up("n2", 2)  # it lacks something from here on, and its next restart changes no record
    assert cluster.record("q").mirrors == (N2,)
    cluster.apply(ChangeTopology(DeclareExchange("/", "x", "direct"), N1))
    cluster.apply(ChangeTopology(Bind("/", "x", "q", "queue", "k", {}), N1))
    cluster.apply(AddUser("alice", "hash", ()))
    at_its_beginning = cluster.state.snapshot()
    pieces = cluster.state.snapshot_pieces()
    cluster.up("n2", 3)
    cluster.policy({"max-length": 3})
    cluster.apply(ChangeTopology(DeleteQueue("/", "gone"), N1))
    cluster.apply(ChangeTopology(Unbind("/", "x", "q", "queue", "k", {}), N1))
    cluster.apply(DeleteUser("alice"))
    cluster.declare("new")
    cluster.up("n3")
    cluster.serve()
    assert b"".join(pieces) == at_its_beginning != cluster.state.snapshot()


def test_a_repeat_is_known_after_a_snapshot_too() -> None:
    state = MetadataState()
    create = Request(request_id(1), ChangeTopology(CreateVhost("/"), N1))
    state.apply(1, create)
    state.apply(2, Request(request_id(2), ChangeTopology(DeleteVhost("/"), N1)))
    restored = MetadataState()
    restored.restore(state.snapshot())
    assert isinstance(restored.apply(3, create).error, OutcomeUnknownError)
    assert not restored.topology.has_vhost("/")


def test_a_repeat_of_what_was_refused_is_not_told_as_success() -> None:
    """Its node may have been sent a snapshot in place of the entry that would have told."""
    state = MetadataState()
    refused = Request(request_id(1), ClearPolicy("/", "none"))
    assert isinstance(state.apply(1, refused).error, NoSuchPolicyError)
    restored = MetadataState()
    restored.restore(state.snapshot())
    assert isinstance(restored.apply(2, refused).error, OutcomeUnknownError)


def test_a_forgotten_node_is_not_heard_until_it_was_let_in_and_then_above_its_earlier_starts() -> None:
    cluster = StateUnderTest("n1")
    cluster.up("n2", 3)
    assert ask(cluster, incarnation=3, vhost="v") is None
    cluster.down("n2", 3)
    cluster.apply(ForgetNode(N2))
    assert cluster.state.admissions.is_forgotten(N2)
    error = ask(cluster, incarnation=3, vhost="w")
    assert isinstance(error, EarlierLifeError), "a straggler of the life before"
    assert "n2 has started again since its start 3" in str(error)
    assert isinstance(cluster.up("n2", 4).error, ForgottenNodeError), "the old directory, started once more"
    assert isinstance(cluster.up("n2", 1).error, ForgottenNodeError), "an empty one that nobody let in"
    cluster.apply(AdmitNode(N2, "b2", "n2:1"))
    assert not cluster.state.admissions.is_forgotten(N2)
    assert isinstance(cluster.up("n2", 3).error, ForgottenNodeError), "it has to count on"
    cluster.state.restore(cluster.state.snapshot())
    assert cluster.up("n2", 4).error is None
    assert ask(cluster, incarnation=4, vhost="w") is None
    assert isinstance(cluster.apply(AdmitNode(N2, "c2", "n2:1")).error, StillMemberError)
    assert cluster.state.admissions.forgotten == {}
    assert cluster.state.admissions.admitted[N2].identity == "b2"


def ask(cluster: StateUnderTest, incarnation: int, vhost: str) -> WarrenError | None:
    """As n2, in this life of it."""
    cluster.index += 1
    command = ChangeTopology(CreateVhost(vhost), N2)
    return cluster.state.apply(cluster.index, Request(request_of_n2(cluster.index, incarnation), command)).error


def request_of_n2(counter: int, incarnation: int) -> RequestId:
    return RequestId(N2, Incarnation(incarnation), counter)


def test_a_node_that_has_only_voted_can_be_forgotten() -> None:
    cluster = StateUnderTest("n1")
    assert isinstance(cluster.apply(ForgetNode(N2)).error, NoSuchNodeError)
    assert cluster.apply(ForgetNode(N2, is_voter=True)).error is None
    assert N2 in cluster.state.admissions.forgotten


def test_who_was_to_be_let_in_before_another_came_under_that_name_is_not_meant_any_more() -> None:
    """A second member asks for half a minute for what the first has had decided."""
    cluster = StateUnderTest("n1")
    early = cluster.index
    first = AdmitNode(N2, "first", "n2:1", early)
    assert cluster.apply(first).error is None
    as_of_index = cluster.index
    assert cluster.apply(first).error is None, "nobody else has come"
    assert cluster.apply(AdmitNode(N2, "second", "n2:1", as_of_index)).error is None, "nor was that one new"
    assert isinstance(cluster.apply(first).error, StaleNodeChangeError)
    assert cluster.state.admissions.admitted[N2].identity == "second"
    cluster.apply(ForgetNode(N2, as_of_index=cluster.index))
    restored = StateUnderTest()
    restored.state.restore(cluster.state.snapshot())
    assert restored.state.snapshot() == cluster.state.snapshot()
    for each in (cluster.state, restored.state):
        stale = Request(request_id(1), AdmitNode(N2, "second", "n2:1", early))
        assert isinstance(each.apply(cluster.index + 1, stale).error, StaleNodeChangeError), "it was forgotten since"


def test_who_was_to_be_forgotten_before_it_came_or_ran_again_is_not_meant_any_more() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.down("n2")
    early = cluster.index
    cluster.up("n2", 2)
    cluster.down("n2", 2)
    assert isinstance(cluster.apply(ForgetNode(N2, as_of_index=early)).error, StaleNodeChangeError)
    assert N2 in cluster.state.members
    assert cluster.apply(ForgetNode(N2, as_of_index=cluster.index)).error is None
    early = cluster.index
    cluster.apply(AdmitNode(N2, "next", "n2:1", cluster.index))
    assert isinstance(cluster.apply(ForgetNode(N2, as_of_index=early)).error, StaleNodeChangeError)
    assert N2 in cluster.state.admissions.admitted


def test_while_the_protocol_is_2_nothing_says_of_when_it_is() -> None:
    """Nor is anything kept of which a snapshot of that time has no place."""
    cluster = StateUnderTest("n1", protocol=FIRST_PROTOCOL)
    assert cluster.state.as_of_index == 0
    assert isinstance(cluster.apply(AdmitNode(N2, "first", "n2:1", 1)).error, TooNewCommandError)
    assert cluster.apply(AdmitNode(N2, "first", "n2:1")).error is None
    assert len(cluster.state.admissions.snapshot()) == 2


def test_forgetting_names_the_queues_that_went_with_the_node() -> None:
    cluster = StateUnderTest("n1", "n2")
    cluster.apply(ChangeTopology(DeclareQueue("/", "q", durable=True), N2))
    cluster.down("n2")
    (deleted,) = cluster.apply(ForgetNode(N2)).result
    assert "q" in deleted
    assert cluster.state.topology.queue("/", "q") is None


def test_requests_may_overtake_each_other() -> None:
    requests = AppliedRequests()
    assert [requests.admit(request_id(counter)) for counter in (3, 1, 3, 2, 1)] == [True, True, False, True, False]
    requests.check_invariants()


def test_a_request_that_overtook_others_is_known_after_a_snapshot_and_they_are_not() -> None:
    requests, restored = AppliedRequests(), AppliedRequests()
    for counter in (1, 3):
        assert requests.admit(request_id(counter))
    restored.restore(requests.snapshot())
    restored.check_invariants()
    assert restored.snapshot() == requests.snapshot()
    assert [restored.admit(request_id(counter)) for counter in (1, 2, 3, 4)] == [False, True, False, True]


def test_a_new_incarnation_counts_from_one_and_ends_the_old() -> None:
    requests = AppliedRequests()
    assert requests.admit(request_id(7))
    assert requests.admit(request_id(7, incarnation=2))
    assert not requests.admit(request_id(8, incarnation=1))


def test_who_asks_under_an_earlier_start_is_told_that_it_is_not_heard() -> None:
    """A node that counts its starts anew must not take silence for success."""
    cluster = StateUnderTest("n1")
    for incarnation, is_refused in ((5, False), (5, False), (1, True), (6, False), (5, True)):
        cluster.index += 1
        command = ChangeTopology(CreateVhost("v"), N2)
        applied = cluster.state.apply(
            cluster.index, Request(RequestId(N2, Incarnation(incarnation), cluster.index), command)
        )
        assert isinstance(applied.error, EarlierLifeError) == is_refused
        cluster.state.check_invariants()


def test_the_memory_of_requests_is_bounded() -> None:
    requests = AppliedRequests()
    for counter in range(2, 5 * MAX_OUTSTANDING_REQUESTS, 2):
        assert requests.admit(request_id(counter))
        requests.check_invariants()
    assert not requests.admit(request_id(1))


# --- topology


def test_a_queue_id_is_the_index_of_its_declaration() -> None:
    cluster = StateUnderTest("n1")
    assert cluster.declare().queue_id == cluster.index


def test_declaring_again_changes_nothing_and_a_difference_is_refused() -> None:
    cluster = StateUnderTest("n1", "n2")
    record = cluster.declare()
    again = cluster.apply(ChangeTopology(DeclareQueue("/", "q", durable=True), N2))
    assert again.events == ()
    assert again.result.queue_id == record.queue_id
    refused = cluster.apply(ChangeTopology(DeclareQueue("/", "q", durable=False), N2))
    assert isinstance(refused.error, ChannelError)
    assert refused.error.reply_code == 406


def test_whoever_changes_the_topology_is_given_what_came_of_it() -> None:
    cluster = StateUnderTest("n1")
    topology = cluster.state.topology

    def result_of(command: TopologyCommand) -> Any:
        return cluster.apply(ChangeTopology(command, N1)).result

    assert result_of(DeclareExchange("/", "x", "topic")) == topology.exchange("/", "x")
    queue = result_of(DeclareQueue("/", "q"))
    assert queue == topology.queue("/", "q")
    assert result_of(Bind("/", "x", "q", "queue", "#")) == topology.bindings_from("/", "x")[0]
    assert result_of(DeleteQueue("/", "q")) == queue
    assert result_of(DeleteQueue("/", "q")) is None


def test_deleting_a_queue_is_announced_once() -> None:
    cluster = StateUnderTest("n1")
    record = cluster.declare()
    cluster.apply(ChangeTopology(DeleteQueue("/", "q"), N1))
    (event,) = cluster.last.events
    assert isinstance(event, QueueDeleted)
    assert event.queue.queue_id == record.queue_id
    assert cluster.apply(ChangeTopology(DeleteQueue("/", "q"), N1)).events == ()


@pytest.mark.parametrize(
    "command",
    [
        DeleteExchange("/", "x", if_unused=True),
        DeleteExchange("/", "amq.topic"),
        DeleteQueue("/", "q", epoch=7),
    ],
    ids=["in use", "not to be deleted", "looked at by a master of another epoch"],
)
def test_a_deletion_that_is_refused_leaves_every_binding_however_many_they_are(command: TopologyCommand) -> None:
    """Many are removed in pieces, before what they lead from or to: it has to be certain by then."""
    cluster = StateUnderTest("n1")
    cluster.apply(ChangeTopology(DeclareExchange("/", "x", "topic"), N1))
    cluster.declare("q")
    for number in range(BINDINGS_PER_PIECE + 1):
        for source in ("x", "amq.topic"):
            cluster.apply(ChangeTopology(Bind("/", source, "q", "queue", f"key.{number}"), N1))
    before = cluster.state.topology.snapshot()
    refused = cluster.apply(ChangeTopology(command, N1))
    assert isinstance(refused.error, ChannelError | StaleDeletionError), refused
    assert cluster.state.topology.snapshot() == before


def test_a_queue_declared_anew_is_not_deleted_by_what_was_said_of_the_one_before() -> None:
    cluster = StateUnderTest("n1")
    gone = cluster.declare().queue_id
    cluster.apply(ChangeTopology(DeleteQueue("/", "q", gone, epoch=1), N1))
    assert not cluster.exists()
    cluster.declare()
    assert cluster.apply(ChangeTopology(DeleteQueue("/", "q", gone, epoch=1), N1)) == Applied()
    assert cluster.apply(ChangeTopology(DeleteQueue("/", "q", gone, epoch=9), N1)) == Applied(), (
        "its epoch is no matter"
    )
    assert cluster.exists()


def test_a_vhost_takes_its_queues_policies_and_permissions_along() -> None:
    cluster = StateUnderTest("n1")
    for _ in range(2):
        assert cluster.apply(ChangeTopology(CreateVhost("v"), N1)).error is None, "a vhost may be created again"
    cluster.apply(AddUser("alice", "hash"))
    cluster.apply(SetPermissions("v", "alice", ".*", ".*", ".*"))
    cluster.apply(SetPolicy(PolicyRecord("v", "p", "^", {"max-length": 1}, 0, "all")))
    cluster.apply(ChangeTopology(DeclareQueue("v", "q"), N1))
    applied = cluster.apply(ChangeTopology(DeleteVhost("v"), N1))
    assert [type(event) for event in applied.events] == [QueueDeleted, AccessEnded]
    assert [queue.name for queue in applied.result] == ["q"], "what went with it"
    assert not cluster.state.topology.has_vhost("v")
    assert not cluster.state.policies
    assert not cluster.state.users.may_enter("alice", "v")


def test_a_deletion_means_the_vhost_that_was_there_when_it_was_asked_for() -> None:
    """It came late, over a line that held it; the vhost was deleted through another node meanwhile, and made anew."""
    cluster = StateUnderTest("n1")
    cluster.apply(ChangeTopology(CreateVhost("v"), N1))
    early = cluster.index
    cluster.apply(ChangeTopology(DeleteVhost("v", early), N1))
    assert not cluster.state.topology.has_vhost("v")
    cluster.apply(ChangeTopology(CreateVhost("v"), N1))
    cluster.apply(AddUser("alice", "hash"))
    cluster.apply(SetPermissions("v", "alice", ".*", ".*", ".*"))
    cluster.apply(SetPolicy(PolicyRecord("v", "p", "^", {"max-length": 1}, 0, "all")))
    cluster.apply(ChangeTopology(DeclareQueue("v", "q"), N1))
    restored = StateUnderTest()
    restored.state.restore(cluster.state.snapshot())
    assert restored.state.snapshot() == cluster.state.snapshot()
    for each in (cluster.state, restored.state):
        late = Request(request_id(1), ChangeTopology(DeleteVhost("v", early), N1))
        assert isinstance(each.apply(cluster.index + 1, late).error, StaleVhostChangeError)
        assert each.topology.queue("v", "q") is not None
        assert each.policies
        assert each.users.may_enter("alice", "v")
    cluster.index += 1
    assert cluster.apply(ChangeTopology(DeleteVhost("v", cluster.index), N1)).error is None
    assert not cluster.state.topology.has_vhost("v")


def test_making_a_vhost_that_is_there_does_not_make_it_anew() -> None:
    cluster = StateUnderTest("n1")
    early = cluster.index
    cluster.apply(ChangeTopology(CreateVhost("/"), N1))
    assert cluster.apply(ChangeTopology(DeleteVhost("/", early), N1)).error is None
    assert not cluster.state.topology.has_vhost("/")


def test_a_vhost_of_which_nobody_knows_when_it_was_made_is_older_than_every_deletion() -> None:
    """It is of a snapshot, or a log, of protocol 2, which has no place for that."""
    cluster = StateUnderTest("n1", protocol=FIRST_PROTOCOL)
    cluster.apply(ChangeTopology(CreateVhost("v"), N1))
    assert {tuple(each) for each in decode(cluster.state.snapshot())["topology"]["vhosts"]} == {
        ("name", "exchanges", "queues", "bindings")
    }
    assert isinstance(cluster.apply(ChangeTopology(DeleteVhost("v", 1), N1)).error, TooNewCommandError)
    cluster.raise_protocol()
    restored = MetadataState()
    restored.restore(cluster.state.snapshot())
    for each in (cluster.state, restored):
        request = Request(request_id(1), ChangeTopology(DeleteVhost("v", 1), N1))
        assert each.apply(cluster.index + 1, request).error is None
        assert not each.topology.has_vhost("v")


def test_a_vhost_that_came_with_the_founding_knows_when_it_was_made() -> None:
    """Of a cluster that speaks protocol 3 and never had a vhost."""
    state = MetadataState()
    state.apply(1, Request(request_id(1), NodeUp(N1, Incarnation(1), "n1:1", "n1:2", NEWEST_PROTOCOL)))
    state.apply(2, Request(request_id(2), RaiseProtocol(NEWEST_PROTOCOL, ((N1, Incarnation(1)),))))
    assert found(state, 3) is None
    late = state.apply(4, Request(request_id(4), ChangeTopology(DeleteVhost("/", 2), N1)))
    assert isinstance(late.error, StaleVhostChangeError)


def test_a_deletion_that_does_not_say_of_when_it_is_means_whatever_is_there() -> None:
    """So they are in the logs of releases before."""
    cluster = StateUnderTest("n1")
    cluster.apply(ChangeTopology(CreateVhost("v"), N1))
    assert encode(DeleteVhost("v")) == b"c\x29\x01s\x01v"
    assert decode(b"c\x29\x01s\x01v") == DeleteVhost("v")
    assert cluster.apply(ChangeTopology(DeleteVhost("v"), N1)).error is None
    assert not cluster.state.topology.has_vhost("v")


# --- founding


def found(state: MetadataState, index: int, vhost: str = "/") -> WarrenError | None:
    command = FoundCluster(vhost, "guest", "hash", ("administrator",))
    return state.apply(index, Request(request_id(index), command)).error


def test_a_cluster_that_never_had_a_vhost_is_founded_once() -> None:
    state = MetadataState()
    assert not state.is_founded
    assert found(state, 1) is None
    assert state.topology.has_vhost("/")
    guest = state.users.user("guest")
    assert guest is not None
    assert (guest.password_hash, guest.tags) == ("hash", ("administrator",))
    for kind in ("configure", "write", "read"):
        assert state.users.may("guest", "/", kind, "anything")
    assert isinstance(found(state, 2, "another"), AlreadyFoundedError)
    restored = MetadataState()
    restored.restore(state.snapshot())
    assert isinstance(found(restored, 3, "another"), AlreadyFoundedError)
    assert not restored.topology.has_vhost("another")


def test_a_cluster_whose_only_vhost_an_operator_took_away_is_not_founded_again() -> None:
    cluster = StateUnderTest()
    cluster.apply(ChangeTopology(DeleteVhost("/"), N1))
    assert isinstance(found(cluster.state, cluster.index + 1), AlreadyFoundedError)


def test_what_is_not_a_vhost_founds_nothing() -> None:
    state = MetadataState()
    state.apply(1, Request(request_id(1), AddUser("guest", "of an older release")))
    state.apply(2, Request(request_id(2), ChangeTopology(DeleteQueue("/", "q"), N1)))
    assert found(state, 3) is None
    guest = state.users.user("guest")
    assert guest is not None
    assert guest.password_hash == "of an older release", "who is there already stays as he is"
    assert state.users.may("guest", "/", "read", "anything")


# --- in pieces


@pytest.mark.parametrize(
    "command", [NodeDown(N2, Incarnation(1)), SetPolicy(PolicyRecord("/", "p", "^", {"max-length": 9}, 0, "all"))]
)
def test_whoever_looks_between_two_pieces_sees_every_queue_as_it_was_or_as_it_will_be(command: Command) -> None:
    cluster = StateUnderTest("n1", "n2", "n3")
    cluster.policy({"ha-mode": "all"}, name="p")
    for name in ("a", "b", "c"):
        cluster.declare(name)
    state = cluster.state
    before = dict(state.masterships)
    seen = []
    pieces = state.apply_in_pieces(cluster.index + 1, Request(request_id(1), command))
    for _ in pieces:
        state.check_invariants()
        seen.append(dict(state.masterships))
    after = dict(state.masterships)
    assert not state.is_changing
    assert all(before[queue_id] != after[queue_id] for queue_id in before)
    for records in seen:
        assert all(record in (before[queue_id], after[queue_id]) for queue_id, record in records.items())
    changed = [sum(records[queue_id] == after[queue_id] for queue_id in records) for records in seen]
    assert changed[:3] == [1, 2, 3], "one in each piece"


# --- policies


def test_a_policy_is_announced_and_can_be_cleared_once() -> None:
    cluster = StateUnderTest("n1")
    assert cluster.policy({"max-length": 5}).events == (PolicyChanged("/"),)
    queue = cluster.state.topology.queue_by_id(cluster.declare(arguments={"x-max-length": 9}).queue_id)
    assert queue is not None
    policy = cluster.state.policy_of_queue(queue)
    assert policy is not None
    assert queue_settings(queue.arguments, policy.definition) == {"max-length": 5}
    assert cluster.apply(ClearPolicy("/", "ha")).events == (PolicyChanged("/"),)
    assert isinstance(cluster.apply(ClearPolicy("/", "ha")).error, NoSuchPolicyError)


def test_who_concludes_something_from_policies_hears_of_a_change_before_anybody_sees_a_piece_of_it() -> None:
    cluster = StateUnderTest("n1")
    for number in range(3):
        cluster.declare(f"q{number}")
    state, changed = cluster.state, list[str]()
    state.on_policies_changed = changed.append
    policy = PolicyRecord("/", "detour", "^", {"alternate-exchange": "elsewhere"}, 0, "exchanges")
    pieces = state.apply_in_pieces(cluster.index + 1, Request(request_id(1), SetPolicy(policy)))
    assert changed == []
    assert [(list(changed), state.policy_of_exchange("/", "amq.direct")) for _ in pieces] == [(["/"], policy)] * 3


def test_an_exchange_goes_by_its_arguments_and_then_by_its_policy() -> None:
    cluster = StateUnderTest("n1")
    topology = cluster.state.topology
    cluster.apply(SetPolicy(PolicyRecord("/", "p", "^by", {"alternate-exchange": "of-policy"}, 0, "exchanges")))
    for name, arguments in {"by-policy": {}, "by-both": {"alternate-exchange": "own"}, "alone": {}}.items():
        cluster.apply(ChangeTopology(DeclareExchange("/", name, "topic", arguments=arguments), N1))
    settings = {record.name: cluster.state.exchange_settings(record) for record in topology.exchanges("/")}
    assert settings["by-policy"] == {"alternate-exchange": "of-policy"}
    assert settings["by-both"] == {"alternate-exchange": "own"}
    assert settings["alone"] == {}
    cluster.declare("by-name")
    queue = topology.queue("/", "by-name")
    assert queue is not None
    assert cluster.state.policy_of_queue(queue) is None, "it is for exchanges"


def test_a_policy_for_a_vhost_that_does_not_exist_or_an_invalid_one_is_refused() -> None:
    cluster = StateUnderTest("n1")
    applied = cluster.apply(SetPolicy(PolicyRecord("nowhere", "p", "^", {"max-length": 1}, 0, "all")))
    assert isinstance(applied.error, NoSuchVhostError)
    assert isinstance(cluster.policy({"ha-mode": "exactly", "ha-params": "two"}).error, PolicyError)
    assert not cluster.state.policies


# --- users


def test_users_live_and_die() -> None:
    cluster = StateUnderTest("n1")
    users = cluster.state.users
    cluster.apply(AddUser("alice", "one", ("monitoring",)))
    created = users.user("alice")
    assert created is not None
    assert (created.password_hash, created.tags) == ("one", ("monitoring",))
    assert isinstance(cluster.apply(AddUser("alice", "two")).error, UserExistsError)
    cluster.apply(ChangePassword("alice", "two"))
    cluster.apply(SetUserTags("alice", ("administrator",)))
    user = users.user("alice")
    assert user is not None
    assert (user.password_hash, user.tags) == ("two", ("administrator",))
    cluster.apply(SetPermissions("/", "alice", "^a", ".*", ""))
    assert users.may("alice", "/", "configure", "a1")
    assert not users.may("alice", "/", "read", "a1")
    cluster.apply(ClearPermissions("/", "alice"))
    assert not users.may_enter("alice", "/")
    assert cluster.last.events == (), "who is connected may stay, with less"
    assert cluster.apply(DeleteUser("alice")).events == (AccessEnded(),)
    assert users.user("alice") is None


def test_changes_of_users_that_make_no_sense_are_refused() -> None:
    cluster = StateUnderTest("n1")
    for command in (DeleteUser("bob"), ChangePassword("bob", "x"), SetPermissions("/", "bob", "", "", "")):
        error = cluster.apply(command).error
        assert isinstance(error, NoSuchUserError)
        assert str(error) == 'User "bob" does not exist'
    cluster.apply(AddUser("bob", "x"))
    assert isinstance(cluster.apply(SetPermissions("nowhere", "bob", "", "", "")).error, NoSuchVhostError)
    assert isinstance(cluster.apply(SetPermissions("/", "bob", "(", "", "")).error, ConfigError)
