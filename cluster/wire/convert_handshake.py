"""The words of a handshake as frames of a link, and back. What they mean: `cluster.transport.handshake`.

Whatever a stranger sends that we cannot read is `WireError`. Nothing here is believed before the proofs are checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from cluster.wire import mesh_pb2 as pb
from cluster.wire.errors import WireError
from node.ids import Incarnation, NodeName


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a node says of itself; the fields are explained in ``proto/mesh.proto``."""

    identity: str = ""
    group: str = ""
    configuration_term: int = 0
    configuration_index: int = 0
    members: tuple[NodeName, ...] = ()
    receiver_identity: str = ""
    receiver_incarnation: Incarnation = field(default=Incarnation(0))
    cluster_address: str = ""
    superseded_groups: tuple[str, ...] = ()
    applied_index: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """The dialer's first frame; the fields are explained in ``proto/mesh.proto``."""

    sender: NodeName
    sender_incarnation: Incarnation
    receiver: NodeName
    receiver_incarnation: Incarnation
    link: int
    oldest_protocol: int
    newest_protocol: int
    nonce: bytes
    credentials: Credentials = Credentials()


@dataclass(frozen=True, slots=True)
class Challenge:
    """The acceptor's answer to a hello: who it is, what will be spoken, its proof, what the dialer's is made for."""

    node: NodeName
    incarnation: Incarnation
    protocol: int
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The acceptor's last word before it only listens; ``refused`` is empty if the dialer is accepted.

    ``protocol`` is the newest that it speaks, if it refuses; 0 from nodes that speak protocol 1. The credentials are
    for dialers only that have proved themselves.
    """

    node: NodeName
    incarnation: Incarnation
    refused: str = ""
    protocol: int = 0
    credentials: Credentials = Credentials()


def encode_hello(hello: Hello) -> bytes:
    """The frame."""
    return pb.LinkFrame(
        hello=pb.Hello(
            sender=hello.sender,
            sender_incarnation=hello.sender_incarnation,
            receiver=hello.receiver,
            receiver_incarnation=hello.receiver_incarnation,
            link=hello.link,
            oldest_protocol=hello.oldest_protocol,
            newest_protocol=hello.newest_protocol,
            nonce=hello.nonce,
            credentials=_credentials_to_wire(hello.credentials),
        )
    ).SerializeToString()


def decode_hello(frame: bytes) -> Hello:
    wire = _parse_frame(frame)
    if not wire.HasField("hello"):
        raise WireError("a stream begins with a hello")
    hello = wire.hello
    return Hello(
        NodeName(hello.sender),
        Incarnation(hello.sender_incarnation),
        NodeName(hello.receiver),
        Incarnation(hello.receiver_incarnation),
        hello.link,
        hello.oldest_protocol,
        hello.newest_protocol,
        hello.nonce,
        _credentials_from_wire(hello.credentials),
    )


def encode_proof(proof: bytes) -> bytes:
    """The dialer's second frame."""
    return pb.LinkFrame(proof=proof).SerializeToString()


def decode_proof(frame: bytes) -> bytes:
    """Empty if there is none in the frame."""
    return _parse_frame(frame).proof


def encode_challenge(challenge: Challenge) -> bytes:
    return pb.HelloReply(
        node=challenge.node,
        incarnation=challenge.incarnation,
        protocol=challenge.protocol,
        nonce=challenge.nonce,
        proof=challenge.proof,
    ).SerializeToString()


def encode_verdict(verdict: Verdict) -> bytes:
    return pb.HelloReply(
        node=verdict.node,
        incarnation=verdict.incarnation,
        refused=verdict.refused,
        protocol=verdict.protocol,
        credentials=_credentials_to_wire(verdict.credentials),
    ).SerializeToString()


def decode_answer(answer: bytes) -> Challenge | Verdict:
    """Whatever an acceptor says. What is neither complete nor a refusal is taken for a verdict."""
    try:
        wire = pb.HelloReply.FromString(answer)
    except DecodeError as error:
        raise WireError(f"not an answer to a hello: {error}") from None
    node, incarnation = NodeName(wire.node), Incarnation(wire.incarnation)
    if wire.nonce and not wire.refused:
        return Challenge(node, incarnation, wire.protocol, wire.nonce, wire.proof)
    return Verdict(node, incarnation, wire.refused, wire.protocol, _credentials_from_wire(wire.credentials))


def _credentials_to_wire(m: Credentials) -> pb.Credentials:
    return pb.Credentials(
        identity=m.identity,
        group=m.group,
        configuration_term=m.configuration_term,
        configuration_index=m.configuration_index,
        members=m.members,
        receiver_identity=m.receiver_identity,
        receiver_incarnation=m.receiver_incarnation,
        cluster_address=m.cluster_address,
        superseded_groups=m.superseded_groups,
        applied_index=m.applied_index,
    )


def _credentials_from_wire(w: pb.Credentials) -> Credentials:
    return Credentials(
        w.identity,
        w.group,
        w.configuration_term,
        w.configuration_index,
        tuple(NodeName(member) for member in w.members),
        w.receiver_identity,
        Incarnation(w.receiver_incarnation),
        w.cluster_address,
        tuple(w.superseded_groups),
        w.applied_index,
    )


def _parse_frame(frame: bytes) -> pb.LinkFrame:
    try:
        return pb.LinkFrame.FromString(frame)
    except DecodeError as error:
        raise WireError(f"not a link frame: {error}") from None
