"""Whatever is in the log, applying it either changes the state or refuses, alike on every node, and never raises.

One log is applied by two nodes (`tests.support.hostile.TwoGroups`); one of them is restored from its snapshot now and
then. Catastrophic regular expressions are no subject here: they take time, they do not raise.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.metadata.codec import CodecError, NewerKindError, decode, decode_request, encode, encode_request
from cluster.metadata.commands import ChangeTopology, Request, RequestId
from cluster.metadata.errors import MalformedCommandError
from node.amqp.values import TABLE_DEPTH_MAX, pack_table
from node.ids import Incarnation, NodeName
from node.topology.commands import Bind, DeclareExchange, DeclareQueue
from tests.support.hostile import TwoGroups, is_defect, odd_commands, request_ids, through_amqp, well_formed_commands

N1 = NodeName("n1")
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))


def is_of_newer_release(payload: bytes) -> bool:
    """A request by all signs, for something that this release does not know: the one thing that stops a node."""
    try:
        decode_request(payload)
    except NewerKindError:
        return True
    except CodecError:
        pass
    return False


def check_bytes(payloads: list[bytes]) -> None:
    groups = TwoGroups()
    for payload in payloads:
        if is_of_newer_release(payload):
            groups.refuse_to_go_on(payload)
            return
        groups.commit(payload)
    assert groups.apply(ChangeTopology(DeclareQueue("/", "after"), N1)).error is None


def check_commands(commands: list[Any], restore_at: int) -> None:
    groups = TwoGroups()
    for position, command in enumerate(commands):
        applied = groups.apply(command)
        assert not is_defect(applied), applied.error
        if position == restore_at:
            groups.restore_second()


def check_odd(commands: list[Any], ids: list[Any]) -> None:
    groups = TwoGroups()
    for command in commands:
        groups.apply(command)
    for request_id in ids:
        groups.apply(ChangeTopology(DeclareQueue("/", "q"), N1), request_id)
    groups.restore_second()


#: Bytes that begin like a request, so that the decoder gets somewhere.
cut_requests = st.builds(
    lambda command, at, junk: (
        (data := encode(Request(RequestId(N1, Incarnation(1), 1), command)))[: at % len(data)] + junk
    ),
    well_formed_commands,
    st.integers(0, 500),
    st.binary(max_size=12),
)
payloads = st.lists(st.binary(max_size=40) | cut_requests, max_size=6)
histories = st.lists(well_formed_commands, min_size=8, max_size=25)


@QUICK
@given(payloads)
def test_any_bytes_are_applied_or_refused(payloads: list[bytes]) -> None:
    check_bytes(payloads)


@QUICK
@given(histories, st.integers(0, 25))
def test_whatever_clients_and_operators_may_send_is_applied_or_refused(commands: list[Any], restore_at: int) -> None:
    check_commands(commands, restore_at)


@QUICK
@given(st.lists(odd_commands, max_size=6), st.lists(request_ids, max_size=3))
def test_commands_with_fields_of_any_type_are_applied_or_refused(commands: list[Any], ids: list[Any]) -> None:
    check_odd(commands, ids)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@MANY
@given(payloads)
def test_many_bytes(payloads: list[bytes]) -> None:
    check_bytes(payloads)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@MANY
@given(histories, st.integers(0, 25))
def test_many_histories(commands: list[Any], restore_at: int) -> None:
    check_commands(commands, restore_at)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@MANY
@given(st.lists(odd_commands, max_size=6), st.lists(request_ids, max_size=3))
def test_many_odd_commands(commands: list[Any], ids: list[Any]) -> None:
    check_odd(commands, ids)


def test_a_command_of_a_newer_release_stops_a_node_and_changes_nothing() -> None:
    """As the first release after this one may write it: a code that nobody has here."""
    known = encode(Request(RequestId(N1, Incarnation(1), 1), ChangeTopology(DeclareQueue("/", "q"), N1)))
    head = encode(RequestId(N1, Incarnation(1), 1))
    unknown = known[: known.index(head) + len(head)] + b"c\x7f\x00"
    assert is_of_newer_release(unknown)
    check_bytes([unknown])


# --- the edges of what a client can produce ---


def nested(levels: int, *, in_lists: bool) -> dict[str, Any]:
    """A table with so many tables (or arrays) in it, one within the other."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if in_lists else {"k": value}
    return {"k": value}


@pytest.mark.parametrize("in_lists", [False, True])
def test_the_deepest_table_of_a_client_is_kept_and_survives_a_snapshot(in_lists: bool) -> None:
    deepest = through_amqp(nested(TABLE_DEPTH_MAX, in_lists=in_lists))
    groups = TwoGroups()
    for command in (
        DeclareQueue("/", "q", True, None, False, deepest),
        DeclareExchange("/", "x", "headers", arguments=deepest),
        Bind("/", "x", "q", "queue", "", deepest),
        Bind("/", "x", "q", "queue", "", deepest),
    ):
        assert groups.apply(ChangeTopology(command, N1)).error is None
    groups.restore_second()
    assert len(groups.state.topology.bindings_from("/", "x")) == 1


def test_a_table_that_a_snapshot_could_not_hold_is_refused() -> None:
    groups = TwoGroups()
    declare = DeclareQueue("/", "q", arguments=nested(TABLE_DEPTH_MAX + 6, in_lists=False))
    assert isinstance(groups.apply(ChangeTopology(declare, N1)).error, MalformedCommandError)


def test_what_cannot_be_decoded_cannot_be_encoded() -> None:
    for value in (nested(100, in_lists=True), "\ud800", {"k": "\ud800"}, 1 << 100_000):
        with pytest.raises(CodecError):
            encode(value)
    with pytest.raises(CodecError):
        encode_request(Request(RequestId(N1, Incarnation(1), 1), ChangeTopology(DeclareQueue("/", "\ud800"), N1)))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CodecError):
        encode(endless)


def test_a_number_without_end_is_refused_at_once() -> None:
    with pytest.raises(CodecError):
        decode(b"i" + b"\xff" * 5_000_000)


def test_not_a_number_is_one_value_in_the_arguments_of_a_binding() -> None:
    groups = TwoGroups()
    groups.apply(ChangeTopology(DeclareQueue("/", "q"), N1))
    for _ in range(3):
        bind = Bind("/", "amq.headers", "q", "queue", "", through_amqp({"k": float("nan")}))
        assert groups.apply(ChangeTopology(bind, N1)).error is None
    assert len(groups.state.topology.bindings_from("/", "amq.headers")) == 1
    assert pack_table({"k": float("nan")})
