"""How current this node is: as of when it has applied whatever the group had committed.

A node that does not hear of what is committed answers its clients out of an old state, and does not know it. That the
leader is heard proves little: its words may have waited in a socket for as long as this process was frozen, and they
may come without what it has committed. So heartbeats and their answers carry stamps, each by its sender's own clock,
and the other side sends them back:

- A *leader* stamps its heartbeats with its time x. Once a majority has answered that stamp within the leader's term,
  nobody else had been elected by x, so what this leader has committed was everything there was.
- A *follower* answers with its time x. The leader sends it back as soon as it has that proof for the time when it heard
  x (a leader that was deposed and does not know it would vouch for what it cannot know), together with all that it
  has committed: whoever has applied that much has applied everything that was committed at x.

Neither says anything before the leader has committed an entry of its own term: until then it does not know itself how
far its predecessors came. Nothing is assumed of clocks but that they go at the same speed.

A release of before sends no stamps; from such a peer any word counts at the time when it was heard.
"""

from __future__ import annotations

from typing import NamedTuple

#: As of which a node is current that has no proof at all.
NEVER_MS = -1


class _Claim(NamedTuple):
    """Whoever has applied up to ``committed`` is current as of ``as_of_ms``."""

    as_of_ms: int
    committed: int


class Currency:
    """See the top of this module. Times are those of this node's clock."""

    def __init__(self) -> None:
        self._proven_ms = NEVER_MS
        #: As of when this node would be current if it had applied everything that it has heard of.
        self.heard_as_of_ms = NEVER_MS
        #: Claims whose entries are not applied yet: the first, which is kept until they are, and the latest.
        self._first: _Claim | None = None
        self._latest: _Claim | None = None

    def note(self, as_of_ms: int, committed: int) -> None:
        """At ``as_of_ms`` nothing above ``committed`` was committed."""
        self.heard_as_of_ms = max(self.heard_as_of_ms, as_of_ms)
        if as_of_ms <= self._proven_ms:
            return
        if self._first is None:
            self._first = _Claim(as_of_ms, committed)
        elif committed <= self._first.committed:
            self._first = _Claim(max(as_of_ms, self._first.as_of_ms), self._first.committed)
        elif self._latest is None or as_of_ms > self._latest.as_of_ms:
            self._latest = _Claim(as_of_ms, committed)

    def as_of_ms(self, applied_index: int) -> int:
        """As of when a node that has applied up to ``applied_index`` is current; `NEVER_MS` before the first proof."""
        if self._latest is not None and self._latest.committed <= applied_index:
            self._proven_ms = max(self._proven_ms, self._latest.as_of_ms)
            self._first = self._latest = None
        elif self._first is not None and self._first.committed <= applied_index:
            self._proven_ms = max(self._proven_ms, self._first.as_of_ms)
            self._first, self._latest = self._latest, None
        return self._proven_ms

    @property
    def missing_index(self) -> int | None:
        """Known to be committed and, when last looked at, not applied; ``None`` if nothing is."""
        claim = self._latest or self._first
        return None if claim is None else claim.committed

    def check_invariants(self) -> None:
        if self._latest is not None:
            assert self._first is not None, "there is a latest only besides a first"
            assert self._latest.committed > self._first.committed, "what the first implies needs no second"
