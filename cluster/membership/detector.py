"""Which peers are down, from what their links show.

| seen                                            | verdict                                              |
|-------------------------------------------------|------------------------------------------------------|
| connection reset, and the reconnect refused     | `DOWN` at once: no process listens there any more    |
| connection reset only                           | `SUSPECT`; down if it stays silent                   |
| silence beyond ``suspect_after_ms``             | `SUSPECT`                                            |
| silence beyond ``down_after_ms``                | `DOWN`: dead, frozen or cut off, nobody can tell     |
| anything heard                                  | `UP`                                                 |

A refused connection alone proves nothing (the peer may be starting); a reset alone neither (a proxy or a broken path
does that too). Both together mean that the process is gone. Whether the cluster believes it is another matter:
`proposes_node_down` says who may ask for a `NodeDown` to be committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from node.ids import NodeName


class Verdict(Enum):
    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


class VerdictChange(NamedTuple):
    """``is_certain``: the process is known to be gone (refused), not merely silent."""

    peer: NodeName
    verdict: Verdict
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """``suspect_after_ms`` a few heartbeats; ``down_after_ms`` longer than any pause a healthy node makes (garbage
    collection, a slow disk), and not shorter than the Raft election timeout, or a leader would be declared down that
    its followers still obey."""

    suspect_after_ms: int = 1000
    down_after_ms: int = 5000


class _Peer:
    __slots__ = ("heard_ms", "is_reset", "verdict")

    def __init__(self, now_ms: int) -> None:
        #: When anything last came from the peer (or we began to watch it).
        self.heard_ms = now_ms
        #: The last link was reset and nothing was heard since.
        self.is_reset = False
        self.verdict = Verdict.UP


class FailureDetector:
    """Verdicts about the peers of one node. Each input returns the verdicts that it changed."""

    def __init__(self, config: DetectorConfig, peers: Iterable[NodeName], now_ms: int) -> None:
        self._config = config
        self._peers = {peer: _Peer(now_ms) for peer in peers}

    def verdict(self, peer: NodeName) -> Verdict:
        """Who is not watched is no part of anything."""
        return self._peers[peer].verdict if peer in self._peers else Verdict.DOWN

    def is_at_work(self, peer: NodeName, now_ms: int) -> bool:
        """It is up, and not silent by now, which a verdict says a tick later."""
        state = self._peers.get(peer)
        return (
            state is not None
            and state.verdict is Verdict.UP
            and now_ms - state.heard_ms < self._config.suspect_after_ms
        )

    def watch(self, peers: Iterable[NodeName], now_ms: int) -> None:
        """These from now on, and no others."""
        self._peers = {peer: self._peers.get(peer) or _Peer(now_ms) for peer in peers}

    def excuse(self, pause_ms: int, now_ms: int) -> None:
        """This node itself stood still for ``pause_ms``: it could not hear anybody, so nobody was silent."""
        for state in self._peers.values():
            state.heard_ms = min(now_ms, state.heard_ms + pause_ms)

    def heard(self, peer: NodeName, now_ms: int) -> list[VerdictChange]:
        """Anything came from the peer."""
        state = self._peers.get(peer)
        if state is None:
            return []
        state.heard_ms = max(state.heard_ms, now_ms)
        state.is_reset = False
        return self._judge(peer, state, Verdict.UP)

    def begins_anew(self, peer: NodeName, now_ms: int) -> None:
        """The peer is known, from others, to have started again: the verdict was about its life before, and so were the
        silence and the link. It is neither dead nor silent before it has had as long as anybody to be heard."""
        state = self._peers.get(peer)
        if state is not None:
            state.heard_ms = max(state.heard_ms, now_ms)
            state.is_reset = False  # that nobody listened there may be told late
            if state.verdict is Verdict.DOWN:
                state.verdict = Verdict.SUSPECT

    def link_reset(self, peer: NodeName) -> list[VerdictChange]:
        """The connection to or from the peer broke (reset or closed without goodbye)."""
        state = self._peers.get(peer)
        if state is None:
            return []
        state.is_reset = True
        return self._judge(peer, state, Verdict.SUSPECT) if state.verdict is Verdict.UP else []

    def reconnect_refused(self, peer: NodeName) -> list[VerdictChange]:
        """A new connection was refused: nothing listens at the peer's address."""
        state = self._peers.get(peer)
        if state is None or not state.is_reset:
            return []
        return self._judge(peer, state, Verdict.DOWN, is_certain=True)

    def tick(self, now_ms: int) -> list[VerdictChange]:
        """Time has passed."""
        changes: list[VerdictChange] = []
        for peer, state in self._peers.items():
            silence_ms = now_ms - state.heard_ms
            if silence_ms >= self._config.down_after_ms:
                changes += self._judge(peer, state, Verdict.DOWN)
            elif silence_ms >= self._config.suspect_after_ms and state.verdict is Verdict.UP:
                changes += self._judge(peer, state, Verdict.SUSPECT)
        return changes

    @staticmethod
    def _judge(peer: NodeName, state: _Peer, verdict: Verdict, is_certain: bool = False) -> list[VerdictChange]:
        if state.verdict is verdict:
            return []
        state.verdict = verdict
        return [VerdictChange(peer, verdict, is_certain)]

    def check_invariants(self) -> None:
        for state in self._peers.values():
            assert not (state.is_reset and state.verdict is Verdict.UP), "a broken link is at least suspicious"


def proposes_node_down(node: NodeName, leader: NodeName | None, down: NodeName) -> bool:
    """True if ``node`` is the one to ask for `NodeDown` of ``down``: the Raft leader is.

    If the leader itself is down, its followers first elect another one (`RaftCore.peer_down` makes them stand at once),
    which then finds the verdict in its own detector and proposes it.
    """
    return leader == node and down != node
