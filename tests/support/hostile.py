"""What strangers may send to the metadata group: hypothesis strategies, and two states that must stay the same.

`client_tables` are tables as an AMQP client can really produce them: made of bytes by our own encoder, read by our own
decoder, and made plain as the broker does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from cluster.metadata import commands as metadata
from cluster.metadata.codec import encode
from cluster.metadata.commands import ChangeTopology, Command, Request, RequestId
from cluster.metadata.errors import ChangeFailedError, NewerReleaseError
from cluster.metadata.events import Event
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.runtime.applier import Applied
from cluster.runtime.metadata_group import MetadataGroup
from node.amqp.values import Timestamp, pack_table, read_table
from node.auth import UserDirectory
from node.ids import Incarnation, NodeName, QueueId
from node.pieces import Pieces
from node.routing.properties import plain_table
from node.topology import commands as topology
from node.topology.arguments import COMPARED_QUEUE_ARGUMENTS

NODES = ("n1", "n2", "n3", "n9")
NAMES = ("a", "a", "a", "b", "b", "", "amq.x", "amq.topic", "amq.gen-1", "ä", "\x00", "x" * 255)
#: Of the queue "a" in every history; "b" has the next one.
FIRST_QUEUE_ID = 6
KEYS = (*COMPARED_QUEUE_ARGUMENTS, "max-length", "x-match", "alternate-exchange", "x-alternate-exchange", "ha-mode")
PATTERNS = (
    *("^", "^", "^", "a|b", "^$", "(?i)A", "[[]"),
    *("(", "a{4294967295}", "a{" + "9" * 5000 + "}", "(" * 300 + ")" * 300, "x" * 2000),
)
POLICY_KEYS = (
    *("alternate-exchange", "dead-letter-exchange", "message-ttl", "expires", "max-length", "max-length-bytes"),
    *("queue-mode", "queue-version", "overflow", "queue-master-locator", "ha-mode", "ha-params", "ha-sync-mode"),
    *("ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure", "colour"),
)
USABLE: tuple[Any, ...] = (
    *("all", "exactly", "nodes", "lazy", "random", "min-masters", "reject-publish", "always", "automatic"),
    *(0, 1, 2, 5, ["n1"], ["n2", "n9"], [], True, None),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 2**64 - 1).map(Timestamp)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(USABLE)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def through_amqp(table: dict[str, Any]) -> dict[str, Any]:
    return plain_table(read_table(pack_table(table))[0])


usable_arguments = st.sampled_from(
    (
        {},
        {"x-max-length": 5},
        {"max-length": "x"},
        {"x-queue-mode": "lazy", "x-queue-version": 1},
        {"x-queue-master-locator": "min-masters"},
        {"x-queue-master-locator": "random", "queue-master-locator": ["random"]},
        {"alternate-exchange": "b", "x-alternate-exchange": 5},
        {"x-match": "any", "k": 1.0},
    )
)
client_tables = usable_arguments | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), values, max_size=3).map(
    through_amqp
)
usable_definitions = st.sampled_from(
    (
        {"max-length": 5},
        {"ha-mode": "all"},
        {"ha-mode": "all", "ha-promote-on-failure": "when-synced"},
        {"ha-mode": "exactly", "ha-params": 2, "queue-master-locator": "random"},
        {"ha-mode": "exactly", "ha-params": 2**63 - 1},
        {"ha-mode": "nodes", "ha-params": ["n2", "n3", "n2"]},
        {"ha-mode": "nodes", "ha-params": ["n9"], "max-length": 0},
    )
)
definitions = usable_definitions | st.dictionaries(
    st.sampled_from(POLICY_KEYS), st.sampled_from(USABLE) | values, max_size=3
)

names = st.sampled_from(NAMES)
vhosts = st.sampled_from(("/", "/", "/", "v"))
nodes = st.sampled_from(NODES).map(NodeName)
flags = st.booleans()
#: Those of the queues that `TwoGroups` begins with, and others.
queue_ids = st.sampled_from((FIRST_QUEUE_ID, FIRST_QUEUE_ID, FIRST_QUEUE_ID + 1, FIRST_QUEUE_ID + 8, 0))
epochs = st.sampled_from((1, 1, 1, 2, 3, 0))
indexes = st.sampled_from((0, FIRST_QUEUE_ID, 1000))
incarnations = st.sampled_from((1, 1, 2, 0))
routing_keys = st.sampled_from(("", "a.#", "*"))
owners = st.none() | st.builds("{}/{}".format, st.sampled_from(NODES), st.integers(1, 2))
tags = st.lists(names, max_size=2).map(tuple)
patterns = st.sampled_from(PATTERNS)
ends = st.tuples(vhosts, names, names, st.sampled_from(("queue", "exchange")), routing_keys, client_tables)
declarations = st.builds(topology.DeclareQueue, vhosts, names, flags, owners, flags, client_tables)
exchange_types = st.sampled_from(("direct", "fanout", "topic", "headers", "x-odd"))
topology_commands: tuple[st.SearchStrategy[Any], ...] = (
    declarations,
    declarations,
    st.builds(topology.DeleteQueue, vhosts, names, st.none() | queue_ids),
    st.builds(topology.NoteConsumer, vhosts, names, queue_ids),
    st.builds(topology.DeclareExchange, vhosts, names, exchange_types, flags, flags, flags, client_tables),
    st.builds(topology.DeleteExchange, vhosts, names, flags),
    ends.map(lambda fields: topology.Bind(*fields)),
    ends.map(lambda fields: topology.Bind(*fields)),
    ends.map(lambda fields: topology.Unbind(*fields)),
    st.builds(topology.CreateVhost, vhosts),
    st.builds(topology.DeleteVhost, st.sampled_from(("v", "v", "v", "/")), st.integers(0, 50)),
)
policies = st.builds(
    PolicyRecord,
    vhosts,
    st.sampled_from(("p", "q", "")),
    patterns,
    definitions,
    st.integers(-3, 3),
    st.sampled_from(("all", "queues", "all", "exchanges", "odd")),
)
#: Each as likely as the others.
KINDS_OF_COMMANDS: tuple[st.SearchStrategy[Any], ...] = (
    *(st.builds(ChangeTopology, each, nodes) for each in topology_commands),
    st.builds(metadata.NodeUp, nodes, incarnations, st.just("h:1"), st.just("h:2")),
    st.builds(metadata.NodeDown, nodes, incarnations, st.sampled_from(("failure", "shutdown"))),
    st.builds(metadata.NodeDown, nodes, incarnations, st.just("failure")),
    st.builds(metadata.ForgetNode, nodes),
    st.builds(metadata.ForgetNode, nodes, flags, indexes, flags, st.lists(queue_ids, max_size=2).map(tuple)),
    st.builds(metadata.SetPolicy, policies),
    st.builds(metadata.SetPolicy, policies),
    st.builds(metadata.ClearPolicy, vhosts, st.sampled_from(("p", "q"))),
    st.builds(metadata.AddUser, names, st.text(max_size=4), tags),
    st.builds(metadata.DeleteUser, names),
    st.builds(metadata.ChangePassword, names, st.text(max_size=4)),
    st.builds(metadata.SetUserTags, names, tags),
    st.builds(metadata.SetPermissions, vhosts, names, patterns, patterns, patterns),
    st.builds(metadata.ClearPermissions, vhosts, names),
    st.builds(metadata.MirrorSynchronised, queue_ids, epochs, nodes, indexes),
    st.builds(metadata.DropMirror, queue_ids, epochs, nodes),
    st.builds(metadata.AddMirror, queue_ids, epochs, nodes),
    st.builds(metadata.MoveMaster, queue_ids, epochs, nodes),
    st.builds(metadata.MirrorFollows, queue_ids, epochs, nodes, indexes),
    st.builds(metadata.TakeService, nodes, st.lists(st.tuples(queue_ids, epochs), max_size=2).map(tuple)),
    st.builds(metadata.ForcePromote, queue_ids, nodes),
)
well_formed_commands: st.SearchStrategy[Any] = st.integers(0, len(KINDS_OF_COMMANDS) - 1).flatmap(
    lambda number: KINDS_OF_COMMANDS[number]
)

#: Whatever the codec can carry, in any place.
odd_values = st.recursive(
    scalars
    | st.integers()
    | st.decimals(allow_nan=True, allow_infinity=True)
    | st.just(Decimal("sNaN"))
    | st.datetimes(timezones=st.just(UTC), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)),  # noqa: DTZ001
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


def _records(annotation: Any) -> list[Any]:
    return [cls for cls in get_args(annotation) if is_dataclass(cls)]


COMMANDS: Sequence[Any] = tuple(
    dict.fromkeys((*_records(Command), *_records(topology.TopologyCommand), PolicyRecord, RequestId, Request))
)
assert len(COMMANDS) > 25, "every command is looked at"


@st.composite
def _spoilt(draw: st.DrawFn, whole: st.SearchStrategy[Any]) -> Any:
    """A command in which one field, at any depth, was replaced by something else."""
    value = draw(whole)
    if not is_dataclass(value) or isinstance(value, type):
        return draw(odd_values | well_formed_commands)
    field = draw(st.sampled_from([each.name for each in fields(value)]))
    return replace(value, **{field: draw(_spoilt(st.just(getattr(value, field))))})


#: Commands of which something has the wrong type, or all of it.
odd_commands = st.one_of(
    _spoilt(well_formed_commands),
    st.sampled_from(COMMANDS).flatmap(lambda cls: st.builds(cls, *[odd_values] * len(fields(cls)))),
    odd_values,
)
request_ids = (
    st.builds(RequestId, odd_values, odd_values, odd_values)
    | odd_values
    | _spoilt(st.builds(RequestId, nodes, st.integers(0, 3), st.integers(1, 9)))
)


class SilentListener:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_committed(self, events: Sequence[Event]) -> Pieces[None]:
        self.events += events
        yield

    def on_restored(self) -> Iterator[QueueId | None]:
        yield None


class Mistake(Exception):
    """Of ours."""


class BreakingEvents(list[Event]):
    """Takes some events, then breaks once: a mistake that strikes in the middle of a change, or at its very end, when
    the events are collected."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes
        self.has_broken = False

    def append(self, event: Event) -> None:
        self._break_if_full()
        super().append(event)

    def __iter__(self) -> Iterator[Event]:
        self._break_if_full()
        return super().__iter__()

    def _break_if_full(self) -> None:
        if len(self) >= self.takes and not self.has_broken:
            self.has_broken = True
            raise Mistake


class TwoGroups:
    """One log and two nodes that apply it, the second of which begins again from a snapshot when the test says so.

    After every entry both hold the same bytes, the invariants hold, and nothing has been raised.
    """

    def __init__(self) -> None:
        self.index = 0
        self.listener = SilentListener()
        self.first = MetadataGroup(NodeName("n1"), Incarnation(1), UserDirectory())
        self.first.follow(self.listener)
        self.second = MetadataGroup(NodeName("n2"), Incarnation(1), UserDirectory())
        self.second.follow(SilentListener())
        self.apply(ChangeTopology(topology.CreateVhost("/"), NodeName("n1")))
        for node in NODES[:3]:
            self.apply(metadata.NodeUp(NodeName(node), Incarnation(1), "h:1", "h:2"))
        self.apply(metadata.SetPolicy(PolicyRecord("/", "p", "^", {"ha-mode": "all", "max-length": 5}, 0, "all")))
        for name in ("a", "b"):
            self.apply(ChangeTopology(topology.DeclareQueue("/", name, True), NodeName("n1")))
        assert FIRST_QUEUE_ID in self.state.masterships, "the strategies know the ids of these queues"
        self.apply(ChangeTopology(topology.DeclareExchange("/", "a", "headers", auto_delete=True), NodeName("n1")))
        self.apply(metadata.AddUser("a", "hash"))

    @property
    def state(self) -> MetadataState:
        return self.first.state

    def apply(self, command: Any, request_id: Any = None) -> Applied:
        if request_id is None:
            request_id = RequestId(NodeName("proposer"), Incarnation(1), self.index + 1)
        return self.commit(encode(Request(request_id, command)))

    def commit(self, payload: bytes) -> Applied:
        self.index += 1
        before = self.state.snapshot()
        events = len(self.listener.events)
        applied = self.first.apply(self.index, payload)
        again = self.second.apply(self.index, payload)
        assert type(applied.error) is type(again.error)
        assert str(applied.error) == str(again.error)
        after = self.state.snapshot()
        assert after == self.second.state.snapshot(), "one log, one state"
        self.state.check_invariants()
        self.second.state.check_invariants()
        assert not self.state._events, "no event is left for the next command"
        if applied.error is not None:
            assert len(self.listener.events) == events, "a refused change tells nothing"
            assert _content(after) == _content(before), f"a refused change changes nothing: {applied.error}"
        return applied

    def refuse_to_go_on(self, payload: bytes) -> None:
        """Neither node applies this, and both say so alike; nothing can be committed after it."""
        before = self.state.snapshot()
        for group in (self.first, self.second):
            with pytest.raises(NewerReleaseError, match="upgrade this node"):
                group.apply(self.index + 1, payload)
            assert group.state.snapshot() == before, "what it has stays as it is"
            group.state.check_invariants()

    def restore_second(self) -> None:
        data = self.second.state.snapshot()
        self.second = MetadataGroup(NodeName("n2"), Incarnation(2), UserDirectory())
        self.second.follow(SilentListener())
        self.second.restore(data)
        assert self.second.state.snapshot() == data, "a snapshot comes back"
        self.second.state.check_invariants()


def _content(snapshot: bytes) -> bytes:
    """A snapshot without what every entry changes: how far the log is applied, and which requests are known."""
    state = MetadataState()
    state.restore(snapshot)
    state.applied_index = 0
    state._requests.restore([])
    return state.snapshot()


def is_defect(applied: Applied) -> bool:
    """The change was refused because carrying it out failed, which is a mistake of ours."""
    return isinstance(applied.error, ChangeFailedError)
