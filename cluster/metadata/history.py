"""How a state of the metadata came about: a snapshot, and what was applied since.

For the one case in which carrying out a command breaks off in the middle. To note how each elementary change is
undone would be code in every handler that is never used; to copy the state before each command would cost more than
most commands. But a state follows from its log, so what was before is made again from the last snapshot and the
entries since. Both are in memory anyway: consensus keeps them for followers that are behind. Therefore the entries are
kept here as the very bytes that consensus keeps, not as the many objects that they decode to.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.metadata.commands import RequestId


class PastRequest(NamedTuple):
    """One request that was admitted."""

    at_index: int
    request_id: RequestId
    #: The entry of the log; ``None`` if the request was refused: then only its id is remembered.
    payload: bytes | None


class History:
    """Grows with every entry until the next snapshot, as the log does."""

    __slots__ = ("base", "begin", "past")

    def __init__(self, base: bytes, begin: int) -> None:
        #: A snapshot.
        self.base = base
        #: Index of the last entry that is in it.
        self.begin = begin
        #: What was applied on top of it, in order.
        self.past: list[PastRequest] = []

    def add(self, index: int, request_id: RequestId, payload: bytes | None) -> None:
        self.past.append(PastRequest(index, request_id, payload))

    def from_snapshot(self, base: bytes, begin: int) -> History:
        """The same from a later snapshot on, which has all up to the entry at ``begin``."""
        later = History(base, begin)
        later.past = [past for past in self.past if past.at_index > begin]
        return later
