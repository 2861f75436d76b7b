"""Publishes that wait until their queue takes them, in the order in which they came.

They wait for the fate of a queue that is closed, or for what returns to a full one (`QueueProcess.publish`); and
whoever publishes meanwhile, or while they are taken, is behind them. Their publishers have credit, so there is a bound
to it, but those of a hundred channels are many: they are taken in pieces. And all of these may come in one turn, sent
again to a new master; then the most of them wait, too (`HeldBack.must_wait`).

A purge takes along what waits, for it was published before. It would cost as much to take all of that at once as to let
it in. So it waits on, and is *purged* when it is its turn: accepted and gone at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from node.flow.credit import Tally
from node.ids import ChannelKey
from node.message import Message


class HeldBatch(NamedTuple):
    """As `QueueProcess.publish` is given it."""

    channel: ChannelKey
    messages: Sequence[Message]
    publish_seqs: Sequence[int]
    is_resent: bool
    #: What the channel was owed by when this came (`node.queues.queue_flow`).
    tally: Tally | None


class HeldBack:
    """See the module text."""

    __slots__ = ("_batches", "_first_taken", "messages", "purged", "taken")

    def __init__(self) -> None:
        #: None is empty.
        self._batches: deque[HeldBatch] = deque()
        #: So many messages of the first are taken.
        self._first_taken = 0
        #: How many wait.
        self.messages = 0
        #: The first so many of them are purged.
        self.purged = 0
        #: So many were taken at once since the last drain.
        self.taken = 0

    @property
    def unpurged(self) -> int:
        """Those that will be in the queue, if it takes them."""
        return self.messages - self.purged

    def must_wait(self, count: int, at_once_max: int) -> bool:
        """If others do, or if so many were taken at once in this turn; else these are. Batches are not cut for that."""
        if self.messages or self.taken >= at_once_max:
            return True
        self.taken += count
        return False

    def add(self, batch: HeldBatch) -> None:
        """It has one message at least."""
        self._batches.append(batch)
        self.messages += len(batch.messages)

    def take(self, count_max: int) -> HeldBatch:
        """The first, so many at most, and of one channel: all purged, or none."""
        # What was purged was so with all that waited, so to the end of a batch.
        channel, messages, publish_seqs, is_resent, tally = self._batches[0]
        first, end = self._first_taken, min(self._first_taken + count_max, len(messages))
        if end == len(messages):
            self._batches.popleft()
            self._first_taken = 0
        else:
            self._first_taken = end
        self.messages -= end - first
        self.purged = max(0, self.purged - (end - first))
        return HeldBatch(channel, messages[first:end], publish_seqs[first:end], is_resent, tally)

    def take_all(self) -> Iterator[HeldBatch]:
        """What waits, purged or not."""
        while self.messages:
            yield self.take(self.messages)

    def purge(self) -> int:
        """Whatever waits is purged. Returns how many were not so before."""
        count, self.purged = self.unpurged, self.messages
        return count

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the counters are wrong."""
        assert self.messages == sum(len(each.messages) for each in self._batches) - self._first_taken, (
            "what waits is counted"
        )
        assert 0 <= self.purged <= self.messages, "what was purged waits, too"
        assert not self._batches or self._first_taken < len(self._batches[0].messages), (
            "nothing is left of what is taken"
        )
