"""What Raft nodes say to each other, and what they keep.

Every message is a frozen value with its sender and receiver; the transport carries it unchanged and may lose,
delay, repeat or reorder it. ``term`` 0 means that the message stands outside of terms (a forwarded request).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from node.ids import NodeName


class EntryKind(IntEnum):
    """What an entry of the log means. The values are stored on disk: never renumber them."""

    #: First entry of a term; carries nothing, makes the entries of earlier terms committable.
    NOOP = 0
    #: A payload for the state machine.
    COMMAND = 1
    #: The payload is a `Voter` that votes from this entry on; under a name that votes already, its identity.
    ADD_VOTER = 2
    #: The payload is the name (UTF-8) of a node that no longer votes from this entry on.
    REMOVE_VOTER = 3


class Voter(NamedTuple):
    """A member of the group as the log names it.

    ``identity`` is that of the data directory; empty in what was written before directories had one. It counts votes
    and acknowledgements of nobody else who goes by the name.
    """

    name: NodeName
    identity: str = ""

    def pack(self) -> bytes:
        """As in the payload of an entry and in the file of a snapshot: the name alone, or both with a zero between."""
        return f"{self.name}\0{self.identity}".encode() if self.identity else self.name.encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Voter:
        """What `pack` made."""
        name, _, identity = packed.decode().partition("\0")
        return cls(NodeName(name), identity)


@dataclass(frozen=True, slots=True)
class Entry:
    """One position of the replicated log. ``(index, term)`` names its content in the whole cluster."""

    index: int
    term: int
    kind: EntryKind
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must not forget: its term and its vote in it. ``commit`` only saves work after a restart."""

    term: int = 0
    voted_for: NodeName | None = None
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the state machine after the entry ``index``, and who votes as of that entry.

    A log begins with an empty snapshot at index 0, without voters.
    """

    index: int
    term: int
    voters: tuple[NodeName, ...]
    data: bytes = b""
    #: Of ``voters``, one for each, or none at all if nothing is known of them (see `Voter`).
    identities: tuple[str, ...] = ()
    #: The entry by which ``voters`` are who they are; zeros if whoever made the snapshot did not say.
    configuration_index: int = 0
    configuration_term: int = 0

    @property
    def configuration(self) -> tuple[Voter, ...]:
        """The voters with their identities."""
        return tuple(map(Voter, self.voters, self.identities or ("",) * len(self.voters)))


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Would you vote for me in ``term`` (one above mine)? Nobody changes its state for the question."""

    sender: NodeName
    receiver: NodeName
    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteResponse:
    """``term`` is the term asked for if granted, else the term of the responder."""

    sender: NodeName
    receiver: NodeName
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class VoteRequest:
    sender: NodeName
    receiver: NodeName
    term: int
    last_index: int
    last_term: int
    #: The leader itself asked for this election, so it does not count as disturbing a live leader.
    is_transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    sender: NodeName
    receiver: NodeName
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries that follow ``(previous_index, previous_term)``; may be empty (a probe, or news of ``commit``)."""

    sender: NodeName
    receiver: NodeName
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """``accepted``: everything up to ``index`` is on the responder's disk and equals the leader's log.

    Refused: ``index`` is the ``previous_index`` that did not fit, and the responder's log has
    ``conflict_term`` from ``conflict_index`` on (0: its log ends before ``conflict_index``).
    """

    sender: NodeName
    receiver: NodeName
    term: int
    accepted: bool
    index: int
    conflict_index: int = 0
    conflict_term: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``commit`` never exceeds what the leader knows the receiver to hold.

    The rest is for `cluster.raft.currency`. Leaders of before that say 0.
    """

    sender: NodeName
    receiver: NodeName
    term: int
    commit: int
    #: What the leader has committed, whether or not the receiver holds it; 0 until it has committed in its term.
    committed: int
    #: When it was sent, by the sender's clock.
    stamp_ms: int
    #: The latest stamp that the leader has from the receiver; 0 if none.
    echo_ms: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """``stamp_ms``: when it was sent, by the sender's clock; ``echo_ms``: the stamp of the heartbeat it answers."""

    sender: NodeName
    receiver: NodeName
    term: int
    stamp_ms: int
    echo_ms: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The whole state, for a follower that lacks entries the leader has compacted. Answer: `AppendResponse`."""

    sender: NodeName
    receiver: NodeName
    term: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once: the leader wants the receiver to take over."""

    sender: NodeName
    receiver: NodeName
    term: int


@dataclass(frozen=True, slots=True)
class ForwardedProposal:
    """Commands proposed at a follower. May get lost; the proposer repeats them under the same request id."""

    sender: NodeName
    receiver: NodeName
    payloads: tuple[bytes, ...]
    #: Of when they are, by the receiver's clock: see `cluster.raft.forwarding`. Releases of before say nothing.
    as_of_ms: int | None = None
    term: int = 0


@dataclass(frozen=True, slots=True)
class AppliedUpTo:
    """The sender's state machine has applied everything up to ``index``. For the shells; the core does not ask.

    The rest is for `cluster.runtime.pause_notice`. Releases of before say nothing of it.
    """

    sender: NodeName
    receiver: NodeName
    index: int
    #: Odd while the sender serves no clients and need not be waited for.
    standing: int = 0
    #: The latest standing that the sender has from the receiver; ``None``: it heeds none.
    heard_standing: int | None = None
    term: int = 0


Message = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | InstallSnapshot
    | TimeoutNow
    | ForwardedProposal
    | AppliedUpTo
)


@dataclass(frozen=True, slots=True)
class Ready:
    """What the shell has to do, in this order.

    1. Send ``messages_now``.
    2. Write ``snapshot`` (replaces the log), ``entries_to_append`` (from the first one's index on they replace what
       the disk has) and ``hard_state``; sync them if ``needs_sync``.
    3. Once this and every earlier `Ready` are durable: send ``messages_after_append`` and call
       `RaftCore.appended` with this object. Sending them earlier breaks Raft.
    4. Restore the state machine from ``snapshot``, then apply ``committed``; this need not wait for the disk, but
       keeps the order of the `Ready` objects.
    """

    number: int
    messages_now: tuple[Message, ...]
    snapshot: Snapshot | None
    entries_to_append: tuple[Entry, ...]
    hard_state: HardState | None
    needs_sync: bool
    messages_after_append: tuple[Message, ...]
    committed: tuple[Entry, ...]
