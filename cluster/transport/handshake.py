"""How two nodes come to speak: each proves that it knows the cluster's secret, neither says it, and they agree on a
protocol.

On every stream, before anything else::

      dialer                                                        acceptor
        | Hello(who, whom, link, protocols spoken, nonce)  ----------> |  is it me that is meant? can we speak?
        | <---------- Challenge(who, protocol, nonce, proof A)         |
        |  is A right? then it is one of us                            |
        | proof D  --------------------------------------------------> |  is D right? then it is one of us
        | <---------- Verdict(accepted, or refused and why)            |  only now does the hello count for anything

A proof is an HMAC-SHA256 under the secret, over everything that both have said, both nonces among it, the stream, and
which of the two is speaking. So

- whoever takes the place of a dead node learns nothing that it could use: no secret, and no proof that anybody else
  would accept;
- nothing recorded can be used again, because the other side's nonce is new each time, and nothing can be sent back to
  its sender, because the dialer's proof is another than the acceptor's;
- a hello cannot be changed on the way (another sender, an older protocol) by somebody who does not know the secret.

The acceptor proves first: it has shown nobody anything but an HMAC over a nonce that the caller chose, and a caller
that reached the wrong place hears it before it proves anything itself.

What this cannot do: hide what is said later, or keep somebody between the two from changing that. Who must fear that
configures TLS. And a secret that can be guessed can be guessed from a recorded proof: it has to be a long random one.

**Protocols** are numbered. A node speaks all from that of its cluster (`cluster.metadata.protocol`) to that of its
release; two nodes speak the newest that both know, and both streams of a link the same (`Link.protocol`). Nodes that
have none in common refuse each other, and say so: a release that does not know what its cluster uses finds no way in.
Protocol 1 sent the secret in its hello, and is not spoken any more.

Sources: RFC 2104 (HMAC); ISO/IEC 9798-4, three-pass mutual authentication, which this follows.
"""

from __future__ import annotations

import hmac
import struct
from enum import Enum

from cluster.metadata.errors import older_release
from cluster.transport.carrier import StreamKind
from cluster.transport.mesh_port import HandshakeError, Spoken
from cluster.wire.convert_handshake import Challenge, Hello, Verdict, decode_hello
from node.ids import Incarnation, NodeName

NONCE_BYTES = 32
#: Of the first frame of a stream: its longest part is the names of all members.
HELLO_BYTES_MAX = 64 * 1024
#: Of a text that somebody has sent who proved nothing yet, so many characters are looked at.
_STRANGER_TEXT_MAX = 200
_PART = struct.Struct(">I")


class Side(Enum):
    """Who proves."""

    DIALER = b"warren mesh: dialer"
    ACCEPTOR = b"warren mesh: acceptor"


def prove(
    secret: bytes,
    side: Side,
    kind: StreamKind,
    hello_frame: bytes,
    acceptor: NodeName,
    incarnation: Incarnation,
    protocol: int,
    nonce: bytes,
) -> bytes:
    """The proof of ``side`` for one stream. The hello is as it crossed; the last four are what the challenge says."""
    said = (
        side.value,
        kind.value.encode(),
        hello_frame,
        acceptor.encode(),
        b"%d" % incarnation,
        b"%d" % protocol,
        nonce,
    )
    # Each part behind its length: no two lists of parts give the same bytes.
    return hmac.digest(secret, b"".join(_PART.pack(len(part)) + part for part in said), "sha256")


def challenge(
    secret: bytes,
    kind: StreamKind,
    hello_frame: bytes,
    node: NodeName,
    incarnation: Incarnation,
    nonce: bytes,
    spoken: Spoken,
) -> tuple[Hello, Challenge]:
    """The answer of an acceptor that has this ``spoken`` to a hello.

    Raises `HandshakeError` if it is for somebody else, or speaks nothing that we do, and `WireError`.
    """
    hello = decode_hello(hello_frame)
    protocol = min(hello.newest_protocol, spoken.newest)
    if protocol < max(hello.oldest_protocol, spoken.oldest):
        raise HandshakeError(_nothing_in_common(hello, node, spoken))
    if hello.receiver != node:
        raise HandshakeError(f"this is {node}, not {printable(hello.receiver)}: an address is wrong")
    if len(hello.nonce) != NONCE_BYTES:
        raise HandshakeError(f"a nonce has {NONCE_BYTES} bytes")
    proof = prove(secret, Side.ACCEPTOR, kind, hello_frame, node, incarnation, protocol, nonce)
    return hello, Challenge(node, incarnation, protocol, nonce, proof)


def answer(secret: bytes, kind: StreamKind, hello_frame: bytes, said: Challenge | Verdict) -> bytes:
    """The proof of the dialer, whose hello this is, if the acceptor's is right. Raises `HandshakeError`."""
    if isinstance(said, Verdict):
        raise HandshakeError(refusal_of(said) or "the peer accepts us without a proof that it is one of us")
    offered = decode_hello(hello_frame)
    if not offered.oldest_protocol <= said.protocol <= offered.newest_protocol:
        raise HandshakeError(f"the peer wants to speak protocol {said.protocol}, which was not offered")
    terms = (kind, hello_frame, said.node, said.incarnation, said.protocol, said.nonce)
    if not hmac.compare_digest(said.proof, prove(secret, Side.ACCEPTOR, *terms)):
        raise HandshakeError(WRONG_COOKIE)
    return prove(secret, Side.DIALER, *terms)


def check(secret: bytes, kind: StreamKind, hello_frame: bytes, said: Challenge, proof: bytes) -> None:
    """Is the dialer's proof right? Raises `HandshakeError`."""
    terms = (kind, hello_frame, said.node, said.incarnation, said.protocol, said.nonce)
    if not hmac.compare_digest(proof, prove(secret, Side.DIALER, *terms)):
        raise HandshakeError(WRONG_COOKIE)


def verdict_of(said: Challenge | Verdict) -> Verdict:
    """The acceptor's last word. Raises `HandshakeError` if it is none."""
    if isinstance(said, Challenge):
        raise HandshakeError("the peer answers a proof with another challenge")
    return said


def printable(text: str) -> str:
    """What somebody says who proved nothing yet, fit for a log: short, and without line breaks."""
    shown = text[:_STRANGER_TEXT_MAX]
    return shown if shown.isprintable() else repr(shown)


WRONG_COOKIE = "wrong cookie: the nodes belong to different clusters"
_UPGRADE = "these releases cannot be mixed; stop all nodes, and start them with one release"


def refusal_of(said: Verdict) -> str:
    """Empty if the acceptor accepts."""
    if not said.refused:
        return ""
    if not said.protocol and "wrong cookie" in said.refused:
        # What a node of protocol 1 says to every hello without a secret in it.
        return f"refused by the peer, which may speak protocol 1: {printable(said.refused)}; if so, {_UPGRADE}"
    return f"refused by the peer: {printable(said.refused)}"


def _nothing_in_common(hello: Hello, node: NodeName, spoken: Spoken) -> str:
    """In words, and what to do: of two releases the older one has to go."""
    theirs, sender = Spoken(hello.oldest_protocol, hello.newest_protocol), printable(hello.sender)
    if not theirs.newest:
        return f"{sender} speaks protocol 1, {node} {_in_words(spoken)}: {_UPGRADE}"
    older, newest, lowest = (
        (sender, theirs.newest, spoken.oldest)
        if theirs.newest < spoken.oldest
        else (node, spoken.newest, theirs.oldest)
    )
    return older_release(older, newest, lowest)


def _in_words(spoken: Spoken) -> str:
    oldest, newest = spoken
    return f"protocol {newest}" if oldest == newest else f"protocols {oldest} to {newest}"
