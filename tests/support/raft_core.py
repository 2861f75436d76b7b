"""One Raft node driven by hand, with a disk that is infinitely fast."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from cluster.raft.core import RaftConfig, RaftCore, RestoredState, founding_state
from cluster.raft.messages import AppendResponse, Entry, EntryKind, HardState, Message, PreVoteResponse, VoteResponse
from node.ids import NodeName

N1, N2, N3, N4 = (NodeName(f"n{number}") for number in range(1, 5))
TRIO = [N1, N2, N3]
MessageT = TypeVar("MessageT", bound=Message)


def make_core(node: NodeName = N1, state: RestoredState | None = None) -> RaftCore:
    core = RaftCore(RaftConfig(node), state or founding_state(TRIO), Random(1), now_ms=0)
    drain(core)
    return core


def drain(core: RaftCore) -> list[Message]:
    """Carry out everything at once, as with an infinitely fast disk; returns all messages."""
    messages: list[Message] = []
    while core.has_work:
        ready = core.take_ready()
        messages += ready.messages_now + ready.messages_after_append
        core.appended(ready)
        core.check_invariants()
    return messages


def of_type(messages: list[Message], kind: type[MessageT]) -> list[MessageT]:
    return [message for message in messages if isinstance(message, kind)]


def win_election(core: RaftCore, now_ms: int = 5000, voters: tuple[NodeName, ...] = (N2,)) -> None:
    """With these votes; nobody has its no-op yet."""
    core.tick(now_ms)
    drain(core)
    for voter in voters:
        core.step(now_ms, PreVoteResponse(voter, core.node, core.term + 1, True))
    drain(core)
    for voter in voters:
        core.step(now_ms, VoteResponse(voter, core.node, core.term, True))
    drain(core)
    assert core.is_leader


def make_leader(core: RaftCore, now_ms: int = 5000, followers: tuple[NodeName, ...] = (N2, N3)) -> RaftCore:
    """Elect ``core`` and let the followers hold its no-op."""
    win_election(core, now_ms, followers)
    for follower in followers:
        core.step(now_ms, AppendResponse(follower, core.node, core.term, True, core.log.last_index))
    drain(core)
    return core


def command(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.COMMAND, f"{term}.{index}".encode())


def log_of(*terms: int, commit: int = 3, term: int | None = None) -> RestoredState:
    """The founding entries (1 to 3) and then one command per given term."""
    founding = founding_state(TRIO)
    entries = founding.entries + tuple(command(4 + offset, t) for offset, t in enumerate(terms))
    last_term = entries[-1].term if term is None else term
    return RestoredState(founding.snapshot, entries, HardState(last_term, None, commit))
