"""What strangers may send to the metadata group: hypothesis strategies, and two states that must stay the same.

`client_tables` are tables as an AMQP client can really produce them: made of bytes by our own encoder, read by our own
decoder, and made plain as the broker does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

from hypothesis import strategies as st

from cluster.metadata import commands as metadata
from cluster.metadata.codec import encode
from cluster.metadata.commands import ChangeTopology, Command, Request, RequestId
from cluster.metadata.errors import ChangeFailedError
from cluster.metadata.events import Event
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.runtime.metadata_group import MetadataGroup
from cluster.runtime.raft_driver import Applied
from node.amqp.values import Timestamp, pack_table, read_table
from node.auth import UserDirectory
from node.ids import Incarnation, NodeName
from node.routing.properties import plain_table
from node.topology import commands as topology
from node.topology.arguments import COMPARED_QUEUE_ARGUMENTS

NODES = ("n1", "n2", "n3", "n9")
NAMES = ("", "a", "b", "amq.x", "amq.gen-1", "ä", "\x00", "x" * 255)
KEYS = (*COMPARED_QUEUE_ARGUMENTS, "max-length", "x-match", "alternate-exchange", "x-alternate-exchange", "ha-mode")
PATTERNS = (
    "^",
    "a|b",
    "(",
    "[",
    "a{4294967295}",
    "(" * 300 + ")" * 300,
    "[[]",
    "(?i)a",
    "x" * 2000,
    "^$",
    "a{" + "9" * 5000,
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


client_tables = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), values, max_size=4).map(through_amqp)
definitions = st.dictionaries(st.sampled_from(POLICY_KEYS), st.sampled_from(USABLE) | values, max_size=4)

names = st.sampled_from(NAMES)
vhosts = st.sampled_from(("/", "/", "/", "v"))
nodes = st.sampled_from(NODES).map(NodeName)
epochs = st.integers(0, 3)
indexes = st.integers(0, 40)
kinds = st.sampled_from(("queue", "exchange"))
exchange_types = st.sampled_from(("direct", "fanout", "topic", "headers", "x-odd"))
topology_commands = st.one_of(
    st.builds(topology.CreateVhost, vhosts),
    st.builds(topology.DeleteVhost, st.sampled_from(("v", "v", "/"))),
    st.builds(
        topology.DeclareExchange,
        vhosts,
        names,
        exchange_types,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        client_tables,
    ),
    st.builds(topology.DeleteExchange, vhosts, names, st.booleans()),
    st.builds(
        topology.DeclareQueue,
        vhosts,
        names,
        st.booleans(),
        st.none() | st.builds("{}/{}".format, st.sampled_from(NODES), st.integers(1, 2)),
        st.booleans(),
        client_tables,
    ),
    st.builds(topology.DeleteQueue, vhosts, names, st.none() | indexes),
    st.builds(topology.Bind, vhosts, names, names, kinds, st.sampled_from(("", "a.#", "*")), client_tables),
    st.builds(topology.Unbind, vhosts, names, names, kinds, st.sampled_from(("", "a.#", "*")), client_tables),
)
policies = st.builds(
    PolicyRecord,
    vhosts,
    st.sampled_from(("p", "q", "")),
    st.sampled_from(PATTERNS),
    definitions,
    st.integers(-3, 3),
    st.sampled_from(("all", "queues", "exchanges", "odd")),
)
patterns = st.sampled_from(PATTERNS)
member_commands = st.one_of(
    st.builds(metadata.NodeUp, nodes, st.integers(0, 3), st.just("h:1"), st.just("h:2")),
    st.builds(metadata.NodeDown, nodes, st.integers(0, 3), st.sampled_from(("failure", "shutdown"))),
    st.builds(metadata.ForgetNode, nodes),
)
well_formed_commands: st.SearchStrategy[Any] = st.one_of(
    st.builds(ChangeTopology, topology_commands, nodes),
    st.builds(ChangeTopology, topology_commands, nodes),
    member_commands,
    st.builds(metadata.SetPolicy, policies),
    st.builds(metadata.ClearPolicy, vhosts, st.sampled_from(("p", "q"))),
    st.builds(metadata.AddUser, names, st.text(max_size=4), st.lists(names, max_size=2).map(tuple)),
    st.builds(metadata.DeleteUser, names),
    st.builds(metadata.ChangePassword, names, st.text(max_size=4)),
    st.builds(metadata.SetUserTags, names, st.lists(names, max_size=2).map(tuple)),
    st.builds(metadata.SetPermissions, vhosts, names, patterns, patterns, patterns),
    st.builds(metadata.ClearPermissions, vhosts, names),
    st.builds(metadata.MirrorSynchronised, indexes, epochs, nodes, indexes),
    st.builds(metadata.MirrorUnsynchronised, indexes, epochs, nodes),
    st.builds(metadata.DropMirror, indexes, epochs, nodes),
    st.builds(metadata.AddMirror, indexes, epochs, nodes),
    st.builds(metadata.MoveMaster, indexes, epochs, nodes),
    st.builds(metadata.MirrorFollows, indexes, epochs, nodes, indexes),
    st.builds(metadata.TakeService, nodes, st.lists(st.tuples(indexes, epochs), max_size=2).map(tuple)),
    st.builds(metadata.ForcePromote, indexes, nodes),
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


class _NoListener:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_committed(self, events: Sequence[Event]) -> None:
        self.events += events

    def on_restored(self) -> None: ...

    def linked_nodes(self) -> Sequence[NodeName]:
        return ()


class TwoGroups:
    """One log and two nodes that apply it, the second of which begins again from a snapshot when the test says so.

    After every entry both hold the same bytes, the invariants hold, and nothing has been raised.
    """

    def __init__(self) -> None:
        self.index = 0
        self.listener = _NoListener()
        self.first = MetadataGroup(NodeName("n1"), Incarnation(1), self.listener, UserDirectory())
        self.second = MetadataGroup(NodeName("n2"), Incarnation(1), _NoListener(), UserDirectory())
        self.apply(ChangeTopology(topology.CreateVhost("/"), NodeName("n1")))
        for node in NODES[:3]:
            self.apply(metadata.NodeUp(NodeName(node), Incarnation(1), "h:1", "h:2"))

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

    def restore_second(self) -> None:
        data = self.second.snapshot()
        self.second = MetadataGroup(NodeName("n2"), Incarnation(2), _NoListener(), UserDirectory())
        self.second.restore(data, self.index)
        assert self.second.snapshot() == data, "a snapshot comes back"
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
