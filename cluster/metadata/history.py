"""How a state of the metadata came about: a snapshot, and what was applied since.

For the one case in which carrying out a command breaks off in the middle. To note how each elementary change is
undone would be code in every handler that is never used; to copy the state before each command would cost more than
most commands. But a state follows from its log, so what was before is made again from the last snapshot and the
commands since. Both are in memory anyway: consensus keeps them for followers that are behind.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.metadata.commands import Command, RequestId


class PastRequest(NamedTuple):
    """One request that was admitted."""

    at_index: int
    request_id: RequestId
    #: ``None`` if it was refused: then only its id is remembered.
    command: Command | None


class History:
    """Grows with every command until the next snapshot, as the log does."""

    __slots__ = ("base", "past")

    def __init__(self, base: bytes) -> None:
        #: A snapshot.
        self.base = base
        #: What was applied on top of it, in order.
        self.past: list[PastRequest] = []

    def add(self, index: int, request_id: RequestId, command: Command | None) -> None:
        self.past.append(PastRequest(index, request_id, command))
