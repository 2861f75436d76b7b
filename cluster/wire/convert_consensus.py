"""Raft messages as protobuf and back. See `cluster.wire.convert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.raft.messages import (
    AppendRequest,
    AppendResponse,
    AppliedUpTo,
    Entry,
    EntryKind,
    ForwardedProposal,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from cluster.wire import consensus_pb2 as pb
from node.ids import NodeName


def _append_request_to_wire(m: AppendRequest) -> pb.AppendRequest:
    return pb.AppendRequest(
        term=m.term,
        previous_index=m.previous_index,
        previous_term=m.previous_term,
        entries=[pb.Entry(index=e.index, term=e.term, kind=e.kind.value, payload=e.payload) for e in m.entries],
        commit=m.commit,
    )


def _append_request_from_wire(w: pb.AppendRequest, sender: NodeName, receiver: NodeName) -> AppendRequest:
    entries = tuple(Entry(e.index, e.term, EntryKind(e.kind), e.payload) for e in w.entries)
    return AppendRequest(sender, receiver, w.term, w.previous_index, w.previous_term, entries, w.commit)


def _append_response_to_wire(m: AppendResponse) -> pb.AppendResponse:
    return pb.AppendResponse(
        term=m.term,
        accepted=m.accepted,
        index=m.index,
        conflict_index=m.conflict_index,
        conflict_term=m.conflict_term,
    )


def _install_snapshot_to_wire(m: InstallSnapshot) -> pb.InstallSnapshot:
    s = m.snapshot
    return pb.InstallSnapshot(
        term=m.term,
        snapshot=pb.Snapshot(
            index=s.index,
            term=s.term,
            voters=s.voters,
            data=s.data,
            identities=s.identities,
            configuration_index=s.configuration_index,
            configuration_term=s.configuration_term,
        ),
    )


def _install_snapshot_from_wire(w: pb.InstallSnapshot, sender: NodeName, receiver: NodeName) -> InstallSnapshot:
    s = w.snapshot
    voters = tuple(NodeName(voter) for voter in s.voters)
    if len(s.identities) not in (0, len(voters)):
        raise ValueError(f"{len(s.identities)} identities of {len(voters)} voters")
    made_by = (s.configuration_index, s.configuration_term)
    snapshot = Snapshot(s.index, s.term, voters, s.data, tuple(s.identities), *made_by)
    return InstallSnapshot(sender, receiver, w.term, snapshot)


def _forwarded_proposal_from_wire(w: pb.ForwardedProposal, sender: NodeName, receiver: NodeName) -> ForwardedProposal:
    return ForwardedProposal(sender, receiver, tuple(w.payloads), w.as_of_ms if w.HasField("as_of_ms") else None)


def _applied_up_to_from_wire(w: pb.AppliedUpTo, sender: NodeName, receiver: NodeName) -> AppliedUpTo:
    heard = w.heard_standing if w.HasField("heard_standing") else None
    return AppliedUpTo(sender, receiver, w.index, w.standing, heard)


_ToWire = Callable[[Any], Any]
_FromWire = Callable[[Any, NodeName, NodeName], Message]

#: Per message type: its field of the wire's ``oneof``, and the conversion each way.
_CONVERSIONS: dict[type[Message], tuple[str, _ToWire, _FromWire]] = {
    PreVoteRequest: (
        "pre_vote_request",
        lambda m: pb.PreVoteRequest(term=m.term, last_index=m.last_index, last_term=m.last_term),
        lambda w, s, r: PreVoteRequest(s, r, w.term, w.last_index, w.last_term),
    ),
    PreVoteResponse: (
        "pre_vote_response",
        lambda m: pb.PreVoteResponse(term=m.term, granted=m.granted),
        lambda w, s, r: PreVoteResponse(s, r, w.term, w.granted),
    ),
    VoteRequest: (
        "vote_request",
        lambda m: pb.VoteRequest(
            term=m.term, last_index=m.last_index, last_term=m.last_term, is_transfer=m.is_transfer
        ),
        lambda w, s, r: VoteRequest(s, r, w.term, w.last_index, w.last_term, w.is_transfer),
    ),
    VoteResponse: (
        "vote_response",
        lambda m: pb.VoteResponse(term=m.term, granted=m.granted),
        lambda w, s, r: VoteResponse(s, r, w.term, w.granted),
    ),
    AppendRequest: ("append_request", _append_request_to_wire, _append_request_from_wire),
    AppendResponse: (
        "append_response",
        _append_response_to_wire,
        lambda w, s, r: AppendResponse(s, r, w.term, w.accepted, w.index, w.conflict_index, w.conflict_term),
    ),
    Heartbeat: (
        "heartbeat",
        lambda m: pb.Heartbeat(
            term=m.term, commit=m.commit, committed=m.committed, stamp_ms=m.stamp_ms, echo_ms=m.echo_ms
        ),
        lambda w, s, r: Heartbeat(s, r, w.term, w.commit, w.committed, w.stamp_ms, w.echo_ms),
    ),
    HeartbeatResponse: (
        "heartbeat_response",
        lambda m: pb.HeartbeatResponse(term=m.term, stamp_ms=m.stamp_ms, echo_ms=m.echo_ms),
        lambda w, s, r: HeartbeatResponse(s, r, w.term, w.stamp_ms, w.echo_ms),
    ),
    InstallSnapshot: ("install_snapshot", _install_snapshot_to_wire, _install_snapshot_from_wire),
    TimeoutNow: ("timeout_now", lambda m: pb.TimeoutNow(term=m.term), lambda w, s, r: TimeoutNow(s, r, w.term)),
    ForwardedProposal: (
        "forwarded_proposal",
        lambda m: pb.ForwardedProposal(payloads=m.payloads, as_of_ms=m.as_of_ms),
        _forwarded_proposal_from_wire,
    ),
    AppliedUpTo: (
        "applied_up_to",
        lambda m: pb.AppliedUpTo(index=m.index, standing=m.standing, heard_standing=m.heard_standing),
        _applied_up_to_from_wire,
    ),
}
_FROM_WIRE = {field: from_wire for field, _, from_wire in _CONVERSIONS.values()}


def consensus_to_wire(message: Message) -> pb.ConsensusMessage:
    field, to_wire, _ = _CONVERSIONS[type(message)]
    fields: dict[str, Any] = {field: to_wire(message)}
    return pb.ConsensusMessage(**fields)


def consensus_from_wire(wire: pb.ConsensusMessage, sender: NodeName, receiver: NodeName) -> Message:
    """Raises `ValueError` for a message this version does not know."""
    field = wire.WhichOneof("message")
    if field is None:
        raise ValueError("a consensus message of an unknown kind")
    return _FROM_WIRE[field](getattr(wire, field), sender, receiver)
