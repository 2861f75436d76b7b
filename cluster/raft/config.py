"""Identity, timing and starting state of a Raft node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from cluster.raft.messages import Entry, EntryKind, HardState, Snapshot, Voter
from node.errors import WarrenError
from node.ids import NodeName


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ProposalRefusedError(WarrenError):
    """Nobody can take the proposal now (no leader known, a transfer runs, too much is uncommitted): try again later."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Identity and timing of one node. The same timing on every node."""

    node: NodeName
    #: Between two heartbeats of a leader.
    heartbeat_interval_ms: int = 100
    #: A follower that hears nothing for a random time from ``min`` to ``max`` stands for election; ``min`` is also how
    #: long a word from the leader is trusted. At least three heartbeats, or one lost packet would unseat a leader.
    election_timeout_min_ms: int = 1000
    election_timeout_max_ms: int = 2000
    #: What a follower has forwarded is dropped by the leader if it is older: `cluster.raft.forwarding`.
    proposal_age_max_ms: int = 3000
    #: After `peer_down` of the leader: stand within a random time up to this. Spreads followers that learn it at once.
    peer_down_delay_max_ms: int = 50


@dataclass(frozen=True, slots=True)
class RestoredState:
    """What a node read from its disk."""

    snapshot: Snapshot
    entries: tuple[Entry, ...]
    hard_state: HardState


def founding_state(voters: Sequence[NodeName]) -> RestoredState:
    """State of a node that starts for the first time.

    ``voters`` are the founding members, the same set on each of them: so began the logs of releases whose directories
    had no identity. Without any, which is how nodes start now, a node waits until `RaftCore.found` is called on one of
    them, or until `RaftCore.propose_add_voter` names it.
    """
    entries = founding_entries(Voter(voter) for voter in voters)
    return RestoredState(Snapshot(0, 0, ()), entries, HardState(term=min(1, len(entries)), commit=len(entries)))


def founding_entries(voters: Iterable[Voter]) -> tuple[Entry, ...]:
    """How the log of a new group begins."""
    return tuple(
        Entry(position, 1, EntryKind.ADD_VOTER, voter.pack()) for position, voter in enumerate(sorted(voters), 1)
    )
