"""What the mesh tells whoever uses it, whom it asks about its peers, and how quickly it acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.raft.messages import Message as RaftMessage
from cluster.wire.convert import QueueFrameMessage
from cluster.wire.convert_handshake import Credentials
from node.ids import Incarnation, NodeName


class HandshakeError(Exception):
    """A hello was not accepted; the text says why."""


class QuestionAnswered(HandshakeError):
    """A hello that only asked: it gets its answer, and no link."""


class Spoken(NamedTuple):
    """The protocols that a node speaks, these two among them."""

    #: That of its cluster: whoever speaks no newer one does not know what the cluster uses.
    oldest: int = FIRST_PROTOCOL
    newest: int = NEWEST_PROTOCOL


class Gatekeeper(Protocol):
    """Who decides which nodes a mesh links with. Called on the loop, at handshakes only."""

    def spoken(self) -> Spoken:
        """Which protocols links may have now."""

    def credentials(self, peer: NodeName) -> Credentials:
        """What this node says of itself to a peer."""

    def heed(self, peer: NodeName, credentials: Credentials) -> None:
        """What a peer says of itself: called for every word of a handshake, also for a refusal.

        Raises `StorageError` if what follows from it cannot be written down: there is no link, for this time.
        """

    def admit(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> None:
        """Then, a node that says this of itself wants a link, or accepts ours.

        Raises `HandshakeError`, and `StorageError` as `heed` does.
        """

    def is_known(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> bool:
        """Whether a node that says this of itself is the one that is meant by its name: then it is where it says."""

    def must_ask(self) -> bool:
        """Whether peers are to be asked for their credentials also by a node that does not open links to them."""

    def linked(self, peer: NodeName, identity: str) -> None:
        """A link is up, and from now on frames that come from the peer come from this identity."""

    def unlinked(self, peer: NodeName) -> None:
        """That link is down."""


class OpenGate:
    """A gatekeeper for whom names will do."""

    def spoken(self) -> Spoken:
        return Spoken()

    def credentials(self, peer: NodeName) -> Credentials:
        return Credentials()

    def heed(self, peer: NodeName, credentials: Credentials) -> None: ...

    def admit(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> None: ...

    def is_known(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> bool:
        return True

    def must_ask(self) -> bool:
        return False

    def linked(self, peer: NodeName, identity: str) -> None: ...

    def unlinked(self, peer: NodeName) -> None: ...


class MeshHandler(Protocol):
    """Who listens. Called on the loop; must not raise (an exception closes the link and reaches the loop's handler)."""

    def on_consensus(self, peer: NodeName, messages: list[RaftMessage]) -> None:
        """No messages: only a sign of life, at least every `MeshTiming.heartbeat_interval_ms`."""

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None: ...

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        """Both directions work. Begin every conversation with the peer anew."""

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        """The link that was up is gone, with an unknown part of what was last said, in both directions."""

    def on_peer_refused(self, peer: NodeName) -> None:
        """No process listens at the peer's address: it is dead (or not started). Once per absence."""

    def on_link_uncongested(self, peer: NodeName) -> None:
        """`Mesh.is_congested` was true for the peer and is no longer."""

    def on_link_room(self, peer: NodeName) -> None:
        """`Mesh.is_full` was true for the peer and is no longer."""


@dataclass(frozen=True, slots=True)
class MeshTiming:
    """How quickly the mesh notices and retries."""

    #: A link that delivers nothing, not even an answer to a ping, for this long is cut.
    silence_timeout_ms: int = 6000
    #: Pause after which an idle peer is told that we live; a fraction of what makes a peer suspect.
    heartbeat_interval_ms: int = 300
    #: From the first connection to a link that is up; as long as a loaded machine may take to answer.
    handshake_timeout_ms: int = 5000
    #: A connection attempt that tells refused from silent.
    probe_timeout_ms: int = 1000
    #: Pause between attempts: doubled from ``min`` to ``max``.
    backoff_min_ms: int = 20
    backoff_max_ms: int = 250
