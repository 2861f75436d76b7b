"""A proposal of this node, until it is applied here or the time of whoever waits for it is up."""

from __future__ import annotations

import asyncio
from typing import Any


class WaitingProposal:
    """Kept by `cluster.runtime.raft_driver.RaftDriver`."""

    __slots__ = ("after_index", "future", "last_try_ms", "next_try_ms", "number", "payload", "tried_term")

    def __init__(
        self, number: int, payload: bytes, future: asyncio.Future[Any], after_index: int, last_try_ms: int
    ) -> None:
        #: Counts the proposals of this driver.
        self.number = number
        self.payload = payload
        self.future = future
        #: Committed before: another's, who had a copy of this directory and so the same number of starts.
        self.after_index = after_index
        self.next_try_ms = 0
        #: After this it is forwarded no more: who waits is about to hear that nobody knows, and no copy is to come
        #: behind that (`cluster.raft.forwarding`).
        self.last_try_ms = last_try_ms
        #: Term in which this node, as leader, put it into its log: there it cannot get lost while the term lasts.
        self.tried_term = 0
