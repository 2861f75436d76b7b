"""What the whole cluster speaks: it rises when every member has shown that it speaks more, and never falls."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cluster.metadata.codec import CodecError, decode
from cluster.metadata.commands import (
    AddUser,
    AdmitNode,
    ChangeTopology,
    ForgetNode,
    NodeUp,
    RaiseProtocol,
    Request,
    RequestId,
)
from cluster.metadata.errors import MalformedCommandError, OlderReleaseError, ProtocolNotRaisedError
from cluster.metadata.events import Applied
from cluster.metadata.requests import AppliedRequests
from cluster.metadata.state import MetadataState
from node.ids import Incarnation, NodeName
from node.topology.commands import CreateVhost, DeclareQueue
from tests.support.metadata_state import N1, N2, N3, StateUnderTest


def raised(**lives: int) -> RaiseProtocol:
    return RaiseProtocol(3, tuple((NodeName(name), Incarnation(life)) for name, life in lives.items()))


def up(node: NodeName, incarnation: int = 1, protocol: int = 3) -> NodeUp:
    return NodeUp(node, Incarnation(incarnation), f"{node}:1", f"{node}:2", protocol)


def members(*protocols: int) -> StateUnderTest:
    cluster = StateUnderTest()
    for number, protocol in enumerate(protocols, 1):
        cluster.apply(up(NodeName(f"n{number}"), protocol=protocol))
    return cluster


def why_not(applied: Applied) -> str:
    assert isinstance(applied.error, ProtocolNotRaisedError)
    return str(applied.error)


def restored(state: MetadataState) -> MetadataState:
    copy = MetadataState()
    copy.restore(state.snapshot())
    copy.check_invariants()
    return copy


def test_members_are_taken_for_protocol_2_until_it_is_raised() -> None:
    cluster = members(3, 3)
    assert cluster.state.protocol == 2
    cluster.apply(raised(n1=1, n2=1))
    assert cluster.last.error is None
    assert cluster.state.protocol == 3
    assert cluster.state.versions.announced == {N1: 3, N2: 3}


@pytest.mark.parametrize(
    "command", [raised(n1=1), raised(n1=1, n2=2), raised(n1=1, n2=1, n3=1), raised(n2=1, n1=1), raised()]
)
def test_all_members_have_to_be_named_each_in_its_present_start(command: RaiseProtocol) -> None:
    cluster = members(3, 3)
    assert "meanwhile" in why_not(cluster.apply(command))
    assert cluster.state.protocol == 2


def test_nobody_may_be_away() -> None:
    """It may come back with any release."""
    cluster = members(3, 3)
    cluster.down("n2")
    assert "meanwhile" in why_not(cluster.apply(raised(n1=1, n2=1)))
    assert "meanwhile" in why_not(cluster.apply(raised(n1=1)))


def test_who_was_admitted_and_has_not_come_holds_it_back() -> None:
    cluster = members(3, 3)
    cluster.apply(AdmitNode(N3, "f" * 32, "n3:1"))
    assert "n3 has not come yet" in why_not(cluster.apply(raised(n1=1, n2=1)))
    cluster.apply(up(N3))
    cluster.apply(raised(n1=1, n2=1, n3=1))
    assert cluster.state.protocol == 3


def test_it_never_falls_and_an_older_release_is_refused() -> None:
    cluster = members(3, 3)
    cluster.apply(raised(n1=1, n2=1))
    cluster.down("n2")
    cluster.apply(up(N2, 2, protocol=2))
    assert isinstance(cluster.last.error, OlderReleaseError)
    assert str(cluster.last.error) == (
        "n2 speaks protocol 2, and the cluster needs 3 at least: start n2 with the release of the other nodes"
    )
    assert cluster.state.protocol == 3
    assert not cluster.state.members[N2].is_up
    cluster.apply(up(N2, 3, protocol=4))
    assert cluster.state.versions.announced == {N1: 3, N2: 4}


def test_a_node_that_is_forgotten_counts_no_longer() -> None:
    cluster = members(3, 3)
    cluster.apply(raised(n1=1, n2=1))
    cluster.down("n2")
    cluster.apply(ForgetNode(N2))
    assert cluster.state.versions.announced == {N1: 3}
    assert cluster.state.protocol == 3


def test_under_protocol_2_a_snapshot_is_one_that_its_releases_read() -> None:
    """Byte for byte: what they do not know they would not carry on, and the replicas would differ."""
    content = decode(members(3, 3).state.snapshot())
    assert content["version"] == 2
    assert not {"protocol", "announced"} & set(content)


def test_from_protocol_3_on_a_snapshot_is_one_that_they_refuse() -> None:
    cluster = members(3, 3)
    cluster.apply(raised(n1=1, n2=1))
    assert decode(cluster.state.snapshot())["version"] == 3
    copy = restored(cluster.state)
    assert (copy.protocol, copy.versions.announced) == (3, {N1: 3, N2: 3})
    assert copy.snapshot() == cluster.state.snapshot()


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (raised(n1=1), ProtocolNotRaisedError),
        (raised(n1=1, n2=1, n3=1), ProtocolNotRaisedError),
        (RaiseProtocol(3, "n1"), MalformedCommandError),  # type: ignore[arg-type]
        (RaiseProtocol("3", ((N1, Incarnation(1)), (N2, Incarnation(1)))), MalformedCommandError),  # type: ignore[arg-type]
        (RaiseProtocol(3, ((N1, True), (N2, True))), MalformedCommandError),  # type: ignore[arg-type]
    ],
)
def test_a_raise_that_is_refused_leaves_no_trace(command: Any, refusal: type[Exception]) -> None:
    """Releases of protocol 2 pass it over: not even its id is remembered there."""
    cluster, older = members(3, 3), members(3, 3)
    assert isinstance(cluster.apply(command).error, refusal)
    older.state.pass_over(cluster.index)
    assert cluster.state.snapshot() == older.state.snapshot()


def test_what_decides_over_commands_is_the_same_in_every_release() -> None:
    """Golden values: a release that draws one of these lines elsewhere carries out what the others refuse, or forgets
    another request than they do, and holds another state from then on."""
    cluster = members(3)
    cluster.apply(ChangeTopology(CreateVhost("/"), N1))
    for last, beyond in (
        (AddUser("u" * 65_536, "hash"), AddUser("u" * 65_537, "hash")),
        (declaration({"k": Decimal("1e1000")}), declaration({"k": Decimal("1e1001")})),
        (declaration(nested_tables(65)), declaration(nested_tables(66))),
    ):
        assert not isinstance(cluster.apply(last).error, MalformedCommandError)
        assert isinstance(cluster.apply(beyond).error, MalformedCommandError)
    for last_data, data_beyond in (
        (b"l\x01" * 80 + b"N", b"l\x01" * 81 + b"N"),
        (b"i" + b"\x80" * 1023 + b"\x01", b"i" + b"\x80" * 1024 + b"\x01"),
    ):
        decode(last_data)
        with pytest.raises(CodecError):
            decode(data_beyond)
    for newest, is_heard in ((1024, True), (1025, False)):
        requests = AppliedRequests()
        requests.admit(RequestId(N1, Incarnation(1), newest))
        assert requests.admit(RequestId(N1, Incarnation(1), 1)) is is_heard


def declaration(arguments: dict[str, Any]) -> ChangeTopology:
    return ChangeTopology(DeclareQueue("/", "q", arguments=arguments), N1)


def nested_tables(depth: int) -> dict[str, Any]:
    return {} if depth == 1 else {"k": nested_tables(depth - 1)}


def test_a_raise_that_is_repeated_counts_once() -> None:
    cluster = members(3)
    request = Request(RequestId(N1, Incarnation(1), 1), raised(n1=1))
    first = cluster.state.apply(50, request)
    second = cluster.state.apply(51, request)
    assert (first.error, cluster.state.protocol) == (None, 3)
    assert isinstance(second.error, ProtocolNotRaisedError)
