"""What the state machine does with entries that cannot be carried out: refuse, and be what it was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest

from cluster.metadata import errors
from cluster.metadata.commands import (
    AddUser,
    ChangeTopology,
    Command,
    ForgetNode,
    MoveMaster,
    NodeDown,
    NodeUp,
    Request,
    RequestId,
    SetPermissions,
    SetPolicy,
    TakeService,
)
from cluster.metadata.errors import ChangeFailedError, MalformedCommandError, NoSuchUserError, OutcomeUnknownError
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.metadata.wellformed import ARGUMENTS_DEPTH_MAX
from cluster.policy.validation import PolicyError
from cluster.runtime.metadata_group import MetadataGroup
from node.amqp.values import Timestamp
from node.auth import UserDirectory
from node.errors import ConfigError, ConnectionFailure, WarrenError
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.queues.options import queue_settings
from node.topology.commands import Bind, CreateVhost, DeclareExchange, DeclareQueue, DeleteQueue, DeleteVhost
from node.topology.topology import TopologyObserver
from tests.support.hostile import BreakingEvents, Mistake, SilentListener
from tests.support.metadata_state import PROPOSER, StateUnderTest

N1, N2 = NodeName("n1"), NodeName("n2")


@pytest.fixture
def cluster() -> StateUnderTest:
    """Three nodes, one of which is down, mirrored queues, bindings, an exchange that goes with its last binding."""
    cluster = StateUnderTest("n1", "n2", "n3", "n4")
    cluster.policy({"ha-mode": "exactly", "ha-params": 2})
    for name in ("a", "b", "c"):
        cluster.declare(name, "n1")
    cluster.declare("mine", "n2", durable=False, exclusive_owner="n2/1")
    cluster.apply(ChangeTopology(DeclareExchange("/", "x", "topic", auto_delete=True), N1))
    # What follows is made again from the log, what precedes from here.
    cluster.state.begin_history(cluster.state.snapshot(), cluster.index)
    cluster.apply(ChangeTopology(Bind("/", "x", "a", "queue", "#"), N1))
    cluster.apply(AddUser("alice", "hash"))
    cluster.down("n4")
    return cluster


def content(state: MetadataState) -> bytes:
    """All but how far the log is applied, and which requests are known."""
    copy = MetadataState()
    copy.restore(state.snapshot())
    copy.applied_index = 0
    copy._requests.restore([])
    return copy.snapshot()


def run_until_whole(cluster: StateUnderTest, command: Command, after_each: Callable[[], None]) -> int:
    """Apply ``command`` so that it breaks at its first event, at its second ..., at its end; then it is carried out.

    Returns how often it broke.
    """
    for takes in range(100):
        cluster.state._events = BreakingEvents(takes)
        applied = cluster.apply(command)
        cluster.state._events = []
        if not isinstance(applied.error, ChangeFailedError):
            assert applied.error is None
            return takes
        assert isinstance(applied.error.__cause__, Mistake)
        assert not applied.events
        after_each()
    raise AssertionError("it broke a hundred times")


@pytest.mark.parametrize(
    ("command", "breaks"),
    [
        (ChangeTopology(DeclareQueue("/", "new", True), N1), 2),
        (ChangeTopology(DeleteQueue("/", "a"), N1), 2),
        (ChangeTopology(DeleteVhost("/"), N1), 5),
        (ChangeTopology(CreateVhost("v"), N1), 1),
        (SetPolicy(PolicyRecord("/", "all", "^", {"ha-mode": "all"}, 1, "all")), 5),
        (NodeDown(N2, Incarnation(1)), 3),
        (NodeUp(NodeName("n4"), Incarnation(2), "n4:1", "n4:2", NEWEST_PROTOCOL), 2),
        (ForgetNode(NodeName("n4")), 2),
        (AddUser("bob", "hash"), 1),
        (SetPermissions("/", "alice", ".*", "", ""), 1),
    ],
)
def test_a_change_that_breaks_off_anywhere_is_taken_back_whole(
    cluster: StateUnderTest, command: Command, breaks: int
) -> None:
    before = content(cluster.state)

    def is_as_before() -> None:
        assert content(cluster.state) == before

    assert run_until_whole(cluster, command, is_as_before) >= breaks
    assert content(cluster.state) != before


def test_a_request_that_broke_off_is_not_tried_again_and_later_ones_are_carried_out(cluster: StateUnderTest) -> None:
    cluster.state._events = BreakingEvents(0)
    assert isinstance(cluster.apply(ChangeTopology(DeclareQueue("/", "new"), N1)).error, ChangeFailedError)
    cluster.state._events = []
    _, request = cluster.log[-1]
    cluster.index += 1
    assert isinstance(cluster.state.apply(cluster.index, request).error, OutcomeUnknownError)
    assert not cluster.exists("new")
    assert cluster.declare("new").queue_id == cluster.index


def test_what_was_made_again_is_not_told_again(cluster: StateUnderTest) -> None:
    """Those who hear events have heard of it once: a queue would be opened anew, a node's end answered twice."""
    cluster.state._events = BreakingEvents(0)
    assert isinstance(cluster.apply(ChangeTopology(DeclareQueue("/", "new"), N1)).error, ChangeFailedError)
    assert cluster.apply(AddUser("bob", "hash")).events == ()


def test_readers_of_the_topology_hear_that_it_was_put_back(cluster: StateUnderTest) -> None:
    class Listener(TopologyObserver):
        restored = 0

        def topology_restored(self) -> None:
            self.restored += 1

    listener = Listener()
    cluster.state.topology.observe(listener)
    cluster.state._events = BreakingEvents(0)
    cluster.apply(ChangeTopology(DeleteQueue("/", "a"), N1))
    assert listener.restored == 1
    assert cluster.exists("a")


def test_want_of_memory_is_no_property_of_the_command(cluster: StateUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes may have had it: whoever has not carried it out must not go on."""

    def fail(_command: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cluster.state, "_carry_out", fail)
    with pytest.raises(MemoryError):
        cluster.apply(ChangeTopology(DeleteQueue("/", "a"), N1))


def test_entries_that_are_no_commands_only_move_the_index() -> None:
    group = MetadataGroup(N1, Incarnation(1), UserDirectory())
    group.follow(SilentListener())
    before = content(group.state)
    assert group.apply(1, b"nonsense").error is not None
    assert group.state.applied_index == 1
    assert content(group.state) == before


@pytest.mark.parametrize(
    "command",
    [
        None,
        DeclareQueue("/", "q"),  # a change of the topology, but nobody's
        ChangeTopology(DeclareQueue("/", ["q"]), N1),  # type: ignore[arg-type]
        ChangeTopology(DeclareQueue("/", "q", 1), N1),  # type: ignore[arg-type]
        ChangeTopology(DeclareQueue("/", "q" * 256), N1),
        ChangeTopology(DeclareQueue("/", "\ud800"), N1),
        ChangeTopology(DeclareQueue("/", "q", arguments={"k": 2**70}), N1),
        ChangeTopology(DeclareQueue("/", "q", arguments={5: "k"}), N1),  # type: ignore[dict-item]
        ChangeTopology(DeclareQueue("/", "q", arguments={"k": {1, 2}}), N1),
        ChangeTopology(Bind("/", "amq.topic", "a", "vhost", "#"), N1),  # type: ignore[arg-type]
        ChangeTopology(NodeDown(N1, Incarnation(1)), N1),  # type: ignore[arg-type]
        NodeDown(N1, Incarnation(1), "boredom"),  # type: ignore[arg-type]
        NodeDown(N1, Incarnation(-1)),
        MoveMaster(QueueId(1), Epoch(True), N1),
        SetPolicy(PolicyRecord("/", "p", "^", [], 0, "all")),  # type: ignore[arg-type]
        AddUser("bob", "hash", ["administrator"]),  # type: ignore[arg-type]
        TakeService(N1, ((QueueId(1),),)),  # type: ignore[arg-type]
        TakeService(N1, ([QueueId(1), Epoch(1)],)),  # type: ignore[arg-type]
        TakeService(N1, ((QueueId(1), Epoch(-1)),)),
        TakeService(NodeName("n" * 70_000), ()),
    ],
)
def test_a_command_whose_fields_are_of_other_types_is_refused(cluster: StateUnderTest, command: Any) -> None:
    before = content(cluster.state)
    assert isinstance(cluster.apply(command).error, MalformedCommandError)
    assert content(cluster.state) == before


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (ChangeTopology(CreateVhost("v" * 300), N1), "vhost: more than 255 bytes (a name may have 255)"),
        (ChangeTopology(DeclareQueue("/", "ä" * 200), N1), "name: more than 255 bytes (a name may have 255)"),
        (
            ChangeTopology(Bind("/", "amq.topic", "a", "queue", "k" * 256), N1),
            "routing key: more than 255 bytes (a name may have 255)",
        ),
        (AddUser("b" * 70_000, "hash"), "name: text of more than 65536 bytes"),
        (
            SetPolicy(PolicyRecord("/", "p", "^", {"max-length": 2**70}, 0, "all")),
            "definition: 'max-length': an integer out of its range",
        ),
        (ChangeTopology(DeclareQueue("/", ["q"]), N1), "name: a list where text belongs"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_with_a_command_is_said_to_operators_in_words(
    cluster: StateUnderTest, command: Command, text: str
) -> None:
    assert str(cluster.apply(command).error) == text


def test_an_empty_name_that_is_in_an_old_log_is_carried_out_as_it_was(cluster: StateUnderTest) -> None:
    """It is not proposed any more (`MetadataGroup.change`)."""
    for command in (AddUser("", "hash"), ChangeTopology(CreateVhost(""), N1), SetPermissions("", "", ".*", "", "")):
        assert cluster.apply(command).error is None
    assert cluster.state.topology.has_vhost("")
    assert cluster.state.users.user("") is not None


def nested(depth: int, kind: Literal["list", "table"]) -> Any:
    """Arguments with so many tables or lists within each other, the table of arguments included."""
    value: Any = 1
    for _ in range(depth - 1):
        value = [value] if kind == "list" else {"k": value}
    return {"k": value}


@pytest.mark.parametrize("kind", ["list", "table"])
def test_arguments_are_as_deep_as_clients_may_nest_them_and_no_deeper(
    cluster: StateUnderTest, kind: Literal["list", "table"]
) -> None:
    """A snapshot has them deeper than a command; what it cannot read back must never get in."""
    deepest = nested(ARGUMENTS_DEPTH_MAX, kind)
    assert cluster.apply(ChangeTopology(DeclareQueue("/", "deep", arguments=deepest), N1)).error is None
    restored = MetadataState()
    restored.restore(cluster.state.snapshot())
    assert restored.snapshot() == cluster.state.snapshot()
    too_deep = nested(ARGUMENTS_DEPTH_MAX + 1, kind)
    error = cluster.apply(ChangeTopology(DeclareQueue("/", "deeper", arguments=too_deep), N1)).error
    assert isinstance(error, MalformedCommandError)
    assert f"nested deeper than {ARGUMENTS_DEPTH_MAX}" in str(error)
    assert not cluster.exists("deeper")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (2**64 - 1, ""),
        (2**64, "an integer out of its range"),
        (-(2**63), ""),
        (-(2**63) - 1, "an integer out of its range"),
        (Timestamp(2**64), "an integer out of its range"),
        (Decimal("1e1000"), ""),
        (Decimal("1e1001"), "a decimal out of its range"),
        (Decimal("1e-1001"), "a decimal out of its range"),
        (Decimal("NaN"), "a decimal out of its range"),
        (datetime(2024, 5, 1, tzinfo=UTC), ""),
        (datetime(2024, 5, 1), "a time without a zone"),  # noqa: DTZ001 - that is what is wrong with it
        ("t" * 100_000, ""),
        ("\ud800", "text that has no encoding"),
        ([1, None, 1.5, b"b", True, "t"], ""),
        ([1, {1, 2}], "a set in a table"),
        ({"k" * 255: 1}, ""),
        ({"k" * 256: 1}, "a key: text of more than 255 bytes"),
    ],
)
def test_what_a_table_of_arguments_may_hold(cluster: StateUnderTest, value: Any, problem: str) -> None:
    error = cluster.apply(ChangeTopology(DeclareQueue("/", "new", arguments={"x": value}), N1)).error
    assert (f"arguments: 'x': {problem}" if problem else "None") == str(error)
    if not problem:
        restored = MetadataState()
        restored.restore(cluster.state.snapshot())
        assert restored.snapshot() == cluster.state.snapshot()


@pytest.mark.parametrize(
    ("kind", "about", "words"),
    [
        (errors.NoSuchUserError, ("alice",), ["alice", "does not exist"]),
        (errors.UserExistsError, ("alice",), ["alice", "already exists"]),
        (errors.NoSuchVhostError, ("v",), ["'v'", "does not exist"]),
        (errors.NoSuchPolicyError, (), ["does not exist"]),
        (errors.NodeStillUpError, ("n2",), ["n2", "must be stopped"]),
        (errors.NoSuchNodeError, ("n2",), ["n2", "no member"]),
        (errors.StaleVhostChangeError, ("v",), ["'v'", "made anew", "ask again"]),
        (errors.StillMemberError, ("n2",), ["n2", "a member of this cluster already"]),
        (
            errors.ForgottenNodeError,
            ("n2",),
            ["n2", "delete its data directory and start it again, to join", "join_cluster"],
        ),
        (errors.AlreadyFoundedError, (), ["every cluster has"]),
        (errors.TooNewCommandError, ("NoteConsumer", 3, 2), ["NoteConsumer needs protocol 3", "has 2. "]),
        (
            errors.TooNewCommandError,
            ("NoteConsumer", 3, 2, ["n1 is old", "n2 is old"]),
            ["has 2: n1 is old; n2 is old"],
        ),
        (errors.NewerReleaseError, ("the log", "protocol 9", 3), ["the log", "protocol 9", "3", "upgrade this node"]),
        (errors.OlderReleaseError, ("n2", 2, 3), ["n2 speaks protocol 2", "needs 3", "start n2 with the release"]),
        (errors.EarlierLifeError, ("n2", 5), ["n2", "start 5"]),
        (errors.StillServedError, ("q", "n1"), ["'q'", "served by n1", "stop n1"]),
        (errors.CompleteMasterError, ("q", "n1"), ["'q'", "n1 has everything", "stop n1 and try again"]),
        (errors.NodeNotUpError, ("n2",), ["n2", "start it first"]),
    ],
)
def test_a_refusal_names_what_it_is_about_and_what_would_help(
    kind: type[WarrenError], about: tuple[Any, ...], words: list[str]
) -> None:
    told = str(kind(*about))
    assert [word for word in words if word not in told] == []


def test_a_mistake_of_ours_says_what_to_do() -> None:
    error = ChangeFailedError(AddUser("bob", "hash"), KeyError("k" * 300))
    assert str(error).startswith("AddUser could not be carried out; nothing was changed.")
    seen_by_clients = ConnectionFailure(541, str(error)).reply_text
    assert "a mistake of Warren: report it with the node's log (KeyError('kkk" in seen_by_clients


#: Patterns that Python's compiler answers with something else than ``re.error``.
HOSTILE_PATTERNS = ("a{4294967295}", "a{" + "9" * 900 + "}", "(" * 400 + ")" * 400, "a{" + "9" * 5000 + "}")


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS, ids=range(len(HOSTILE_PATTERNS)))
def test_patterns_on_which_the_compiler_breaks_are_refused(cluster: StateUnderTest, pattern: str) -> None:
    policy = PolicyRecord("/", "p", pattern, {"max-length": 5}, 0, "all")
    assert isinstance(cluster.apply(SetPolicy(policy)).error, PolicyError)
    assert isinstance(cluster.apply(SetPermissions("/", "alice", ".*", pattern, "")).error, ConfigError)


def test_a_stored_pattern_that_cannot_be_used_matches_nothing(cluster: StateUnderTest) -> None:
    cluster.state._matches.put(PolicyRecord("/", "old", "a{4294967295}", {"max-length": 5}, 9, "all"))
    cluster.declare("new")
    queue = cluster.state.topology.queue("/", "new")
    assert queue is not None
    assert cluster.state.policy_of_queue(queue) == cluster.state.policies["/", "ha"]


def test_a_declaration_without_the_prefix_of_arguments_is_applied(cluster: StateUnderTest) -> None:
    """What once stopped every node."""
    cluster.policy({"max-length": 5}, "limit", priority=9)
    cluster.declare("q", arguments={"max-length": "x", "queue-master-locator": ["random"], "ha-mode": 7})
    queue = cluster.state.topology.queue("/", "q")
    assert queue is not None
    policy = cluster.state.policy_of_queue(queue)
    assert policy is not None
    assert queue_settings(queue.arguments, policy.definition) == {"max-length": 5}


def test_an_ordinary_refusal_is_no_mistake_of_ours(cluster: StateUnderTest) -> None:
    request = Request(RequestId(PROPOSER, Incarnation(1), 500), SetPermissions("/", "nobody", "", "", ""))
    assert isinstance(cluster.state.apply(500, request).error, NoSuchUserError)
