"""Every kind of command says since when there is it, and nothing is used that a member may not know."""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, get_args

import pytest

from cluster.metadata import codec, commands, kinds, records
from cluster.metadata.codec import CodecError, NewerKindError, decode, decode_request, encode, encode_request
from cluster.metadata.commands import ChangeTopology, ForgetNode, NodeDown, RaiseProtocol, Request, RequestId
from cluster.metadata.errors import NewerReleaseError, TooNewCommandError
from cluster.metadata.kinds import ADDED_FIELDS, FIRST_PROTOCOL, NEWEST_PROTOCOL, SINCE, protocol_of
from cluster.metadata.state import MetadataState
from cluster.runtime.metadata_group import MetadataGroup
from node.auth import UserDirectory
from node.ids import Incarnation, NodeName, QueueId
from node.topology import commands as topology
from node.topology.commands import CreateVhost, DeleteVhost
from tests.support.metadata_state import StateUnderTest

N1 = NodeName("n1")
#: What a release of protocol 2 reads: code and number of fields of every class. This list never changes.
CLASSES_OF_PROTOCOL_2 = {
    **{1: ("Request", 2), 2: ("RequestId", 3), 3: ("ChangeTopology", 2), 4: ("NodeUp", 5), 5: ("NodeDown", 3)},
    **{6: ("ForgetNode", 2), 7: ("SetPolicy", 1), 8: ("ClearPolicy", 2), 9: ("AddUser", 3), 10: ("DeleteUser", 1)},
    **{11: ("ChangePassword", 2), 12: ("SetUserTags", 2), 13: ("SetPermissions", 5), 14: ("ClearPermissions", 2)},
    **{15: ("MirrorSynchronised", 4), 17: ("DropMirror", 3), 18: ("AddMirror", 3), 19: ("MoveMaster", 4)},
    **{20: ("PolicyRecord", 6), 21: ("MemberRecord", 5), 22: ("MastershipRecord", 11), 23: ("MirrorFollows", 4)},
    **{24: ("TakeService", 2), 25: ("ForcePromote", 2), 26: ("FoundCluster", 4), 27: ("AdmitNode", 3)},
    **{28: ("AdmittedRecord", 4), 40: ("CreateVhost", 1), 41: ("DeleteVhost", 1), 42: ("DeclareExchange", 7)},
    **{43: ("DeleteExchange", 3), 44: ("DeclareQueue", 6), 45: ("DeleteQueue", 4), 46: ("Bind", 6), 47: ("Unbind", 6)},
}
NO_COMMANDS = (Request, RequestId, records.PolicyRecord, records.MemberRecord, records.MastershipRecord)


def test_whatever_protocol_2_does_not_know_says_which_protocol_does() -> None:
    """Fails for a command or a field that was added without a line in `cluster.metadata.kinds`."""
    for code, cls in codec._CLASSES.items():
        name, count = CLASSES_OF_PROTOCOL_2.get(code, (cls.__name__, 0))
        assert cls.__name__ == name, f"code {code} was that of {name}, and is used for nothing else"
        if not count:
            assert SINCE.get(cls, 0) > FIRST_PROTOCOL, f"{name} is newer than protocol 2: add it to SINCE"
            continue
        assert SINCE.get(cls, FIRST_PROTOCOL) == FIRST_PROTOCOL
        added = [field.name for field in fields(cls)][count:]
        assert added == list(ADDED_FIELDS.get(cls, ())), f"{name} has fields that protocol 2 does not know: {added}"
    assert set(CLASSES_OF_PROTOCOL_2) <= set(codec._CLASSES), "what is in old logs can be read for ever"


def test_every_command_there_is_has_a_protocol() -> None:
    assert set(SINCE) == {*get_args(commands.Command), *get_args(topology.TopologyCommand)}
    assert max(SINCE.values()) <= NEWEST_PROTOCOL


@pytest.fixture
def newer_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the next release had brought `DeleteVhost`, and the fields of `ForgetNode`."""
    added = [field.name for field in fields(ForgetNode)][1:]
    monkeypatch.setattr(kinds, "SINCE", {**SINCE, DeleteVhost: 4})
    monkeypatch.setattr(kinds, "ADDED_FIELDS", {ForgetNode: dict.fromkeys(added, 4)})


@pytest.mark.usefixtures("newer_kind")
def test_a_newer_kind_a_newer_field_and_what_is_within_a_change_of_the_topology_are_recognised() -> None:
    assert protocol_of(ChangeTopology(CreateVhost("v"), N1)) == 2
    assert protocol_of(ChangeTopology(DeleteVhost("v"), N1)) == 4
    assert protocol_of(ForgetNode(N1)) == 2
    assert protocol_of(ForgetNode(N1, is_voter=True)) == 4


def test_what_raises_the_protocol_may_be_proposed_before_it_is_raised() -> None:
    assert protocol_of(RaiseProtocol(3, ())) == 2


def test_a_newer_meaning_of_an_old_command_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    meanings = {NodeDown: ((4, lambda command: command.reason == "shutdown"),)}
    monkeypatch.setattr(kinds, "NEW_MEANINGS", meanings)
    assert protocol_of(NodeDown(N1, Incarnation(1))) == 2
    assert protocol_of(NodeDown(N1, Incarnation(1), "shutdown")) == 4


@pytest.mark.usefixtures("newer_kind")
async def test_what_a_member_may_not_know_is_not_proposed_and_the_error_says_who_it_is() -> None:
    group = MetadataGroup(N1, Incarnation(1), UserDirectory())
    group.held_back_by = lambda: ["n2 still runs protocol 2", "n3 is not running"]
    with pytest.raises(TooNewCommandError) as caught:
        await group.change(ChangeTopology(DeleteVhost("v"), N1))
    assert str(caught.value) == (
        "ChangeTopology needs protocol 4, and the cluster has 2: n2 still runs protocol 2; n3 is not running. "
        "It is possible when all nodes run a release that knows it"
    )


@pytest.mark.usefixtures("newer_kind")
def test_what_is_in_the_log_all_the_same_is_refused_without_a_trace() -> None:
    """Older nodes pass it over."""
    cluster, older = StateUnderTest("n1"), StateUnderTest("n1")
    assert isinstance(cluster.apply(ChangeTopology(DeleteVhost("/"), N1)).error, TooNewCommandError)
    older.state.pass_over(cluster.index)
    assert cluster.state.snapshot() == older.state.snapshot()


@pytest.mark.usefixtures("newer_kind")
def test_a_newer_field_is_not_written_as_long_as_it_says_nothing_new() -> None:
    assert encode(ForgetNode(N1)) == b"c\x06\x01s\x02n1"
    assert encode(ForgetNode(N1, is_voter=True)) == b"c\x06\x02s\x02n1T"
    assert decode(b"c\x06\x01s\x02n1") == ForgetNode(N1)


def test_what_a_release_of_before_wrote_about_a_node_to_forget_means_what_it_meant() -> None:
    for payload in (b"c\x06\x02s\x02n1T", b"c\x06\x03s\x02n1Ti\x0e"):
        command = decode(payload)
        assert command.is_confirmed, "queues were deleted unasked"
        assert encode(command) == payload
    assert protocol_of(ForgetNode(N1, is_confirmed=False)) == 3
    assert protocol_of(ForgetNode(N1, lost_queues=(QueueId(7),))) == 3


@pytest.mark.parametrize("odd", [Decimal("sNaN"), [Decimal("sNaN")], None])
def test_a_field_that_cannot_be_compared_is_none_that_was_not_given(odd: Any) -> None:
    command = ForgetNode(N1, as_of_index=odd)
    assert protocol_of(command) == 3
    assert str(decode(encode(command)).as_of_index) == str(odd)


@dataclass(frozen=True, slots=True)
class OfTheNextRelease:
    """A command that nobody here knows."""

    text: str


def payload_of_a_newer_release(monkeypatch: pytest.MonkeyPatch, *, has_more_fields: bool) -> bytes:
    with monkeypatch.context() as patched:
        if has_more_fields:
            written = ("node", "queues", "node")
            patched.setattr(codec, "_FIELDS", {**codec._FIELDS, commands.TakeService: written})
            command: Any = commands.TakeService(N1, ())
        else:
            patched.setattr(codec, "_CODES", {**codec._CODES, OfTheNextRelease: 200})
            patched.setattr(codec, "_FIELDS", {**codec._FIELDS, OfTheNextRelease: ("text",)})
            command = OfTheNextRelease("x")
        return encode_request(Request(RequestId(N1, Incarnation(1), 1), command))


@pytest.mark.parametrize("has_more_fields", [False, True])
def test_a_node_that_finds_what_it_does_not_know_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, has_more_fields: bool
) -> None:
    """To pass it over would be to differ from the others for ever."""
    payload = payload_of_a_newer_release(monkeypatch, has_more_fields=has_more_fields)
    with pytest.raises(NewerKindError):
        decode_request(payload)
    group = MetadataGroup(N1, Incarnation(1), UserDirectory())
    with pytest.raises(NewerReleaseError, match=r"entry 7 of the metadata log .*: upgrade this node"):
        group.apply(7, payload)
    assert group.state.applied_index == 0


def test_bytes_that_are_no_request_are_no_news_of_a_newer_release() -> None:
    for data in (b"c\x7f\x00", b"c\x01\x02Nc\x7f\x00", b"c\x01\x02c\x02\x03s\x01ai\x02i\x02c\x7f"):
        with pytest.raises(CodecError) as caught:
            decode_request(data)
        assert not isinstance(caught.value, NewerKindError)


@pytest.mark.parametrize(("version", "protocol"), [(3, 4), (4, 3)])
def test_a_snapshot_of_a_newer_release_is_refused_and_changes_nothing(version: int, protocol: int) -> None:
    state = MetadataState()
    before = state.snapshot()
    content = {**decode(before), "version": version, "protocol": protocol, "announced": []}
    with pytest.raises(NewerReleaseError, match=r"a snapshot of the metadata needs .*: upgrade this node"):
        state.restore(encode(content))
    assert state.snapshot() == before


def test_a_node_does_not_follow_its_cluster_beyond_what_it_speaks() -> None:
    cluster = StateUnderTest("n1")
    with pytest.raises(NewerReleaseError, match="the log of the metadata needs protocol 4"):
        cluster.apply(RaiseProtocol(4, ((N1, Incarnation(1)),)))
    assert cluster.state.protocol == 3


def test_a_queue_is_written_as_the_release_before_reads_it() -> None:
    cluster = StateUnderTest("n1", protocol=2)
    cluster.declare("q")
    (queue,) = decode(cluster.state.snapshot())["topology"]["vhosts"][0]["queues"]
    assert set(queue) == {"queue_id", "name", "durable", "exclusive_owner", "auto_delete", "arguments"}
