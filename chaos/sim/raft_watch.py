"""Judging Raft from outside: in one term a node votes for one candidate, whatever became of its process or its disk."""

from __future__ import annotations

from collections.abc import Callable

from cluster.raft.core import RaftCore
from cluster.raft.messages import VoteResponse


class RaftWatch:
    """Hears of the votes that candidates count."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        #: Term and voter -> for whom.
        self._votes: dict[tuple[int, str], str] = {}

    def counted(self, candidate: RaftCore, _result: None, response: VoteResponse) -> None:
        """A candidate has heard of a vote."""
        if response.granted and response.term == candidate.term:
            voted = self._votes.setdefault((response.term, response.sender), candidate.node)
            if voted != candidate.node:
                text = f"{response.sender} has voted for {voted} and for {candidate.node} in term {response.term}"
                self._violate("votes", text)
