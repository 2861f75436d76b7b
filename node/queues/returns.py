"""Deliveries on their way back to ready, when they are too many for one turn of the loop.

A channel may hold a million messages of a queue when it dies, or gives them all back by one method. Returning one costs
some microseconds, so that many go in steps, of `RETURN_MAX` each. What nobody may see is the middle of it: while a step
is outstanding the head of the queue is not known, and whoever got a message now might get one that is behind others
that are about to return. So **nothing is delivered until all are back** (`is_under_way`), neither from the queue nor
past it, and consumers see the order that one single requeue would have given. Nor is anything dropped for a length
limit: a drop between two steps would take other messages than a drop after the last one.

Who gives back
  - a dead channel: what it held is taken over here, whole, and goes back step by step with the drains of the queue;
  - a live one, piece by piece: the pieces come from the channel with ``more_follow``, and an empty one ends it. Should
    the rest never come, then because the channel, or the link from its node, is dead, and that ends it, too.

To everybody who asks, what is taken over here is ready already. A purge takes it along, step by step as well. Whether
there is room behind it for a publish (overflow ``reject-publish``) is known when it is back: so long the publish waits.

Crash behaviour: nothing here outlives the process; its successor finds everything unacked ready again. So what was
purged goes at once when the mastership ends in an orderly way (`finish_purge`).
"""

from __future__ import annotations

from collections import deque

from node.ids import ChannelKey, SeqId
from node.queues.backing_queue import BackingQueue
from node.queues.consumers import Consumer

#: Messages that go back in one step: two or three milliseconds.
RETURN_MAX = 1024


#: Positions that somebody held, and who had been given them.
Held = dict[SeqId, Consumer | None]


class Returns:
    """See the module text."""

    __slots__ = ("_backing_queue", "_purged", "_taken_over", "_unfinished", "is_under_way", "purged_messages", "ready")

    def __init__(self, backing_queue: BackingQueue) -> None:
        self._backing_queue = backing_queue
        #: What dead channels held, each no smaller than one step when it came.
        self._taken_over: deque[Held] = deque()
        #: Of these, what was purged before it was back.
        self._purged: deque[Held] = deque()
        #: Channels that have said that they give back more.
        self._unfinished: dict[ChannelKey, None] = {}
        #: Nothing may be delivered or dropped. (A field: every batch asks.)
        self.is_under_way = False
        #: Taken over and not yet back, nor purged.
        self.ready = 0
        #: Taken over, and purged.
        self.purged_messages = 0

    @property
    def has_steps(self) -> bool:
        """There is something for `step`."""
        return bool(self._taken_over or self._purged)

    def take_over(self, held: Held) -> None:
        """A channel is gone that held these. Few are back at once."""
        if len(held) <= RETURN_MAX and not self._taken_over:
            self._backing_queue.requeue(sorted(held))
            return
        self._taken_over.append(held)
        self.ready += len(held)
        self._changed()

    def expect_more(self, channel: ChannelKey) -> None:
        """This channel gives back more."""
        self._unfinished[channel] = None
        self._changed()

    def expect_no_more(self, channel: ChannelKey) -> None:
        """It has given back everything that was to be expected, or is gone."""
        if self._unfinished.pop(channel, self) is not self:
            self._changed()

    def step(self) -> None:
        """Bring some back, or get rid of some that were purged, if there are any."""
        if self._taken_over:
            seq_ids = _take(self._taken_over)
            self.ready -= len(seq_ids)
            self._backing_queue.requeue(seq_ids, more_follow=self.ready > 0)
            self._changed()
        elif self._purged:
            self._purge_some()

    def _purge_some(self) -> None:
        seq_ids = _take(self._purged)
        self.purged_messages -= len(seq_ids)
        self._backing_queue.ack(seq_ids)

    def purge(self) -> int:
        """What is taken over does not come back. Returns how many messages."""
        purged, self.ready = self.ready, 0
        self.purged_messages += purged
        self._purged += self._taken_over
        self._taken_over.clear()
        self._changed()
        return purged

    def finish_purge(self) -> None:
        """Get rid of all that was purged: what is live when the queue is closed comes back."""
        while self._purged:
            self._purge_some()

    def _changed(self) -> None:
        self.is_under_way = bool(self._taken_over or self._unfinished)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the counters are wrong."""
        assert self.ready == sum(map(len, self._taken_over)), "what is taken over is counted"
        assert self.purged_messages == sum(map(len, self._purged)), "and so is what of it was purged"
        assert all((*self._taken_over, *self._purged)), "nothing is left to take of what is empty"
        assert self.is_under_way == bool(self._taken_over or self._unfinished), "the flag says what is outstanding"


def _take(backlog: deque[Held]) -> list[SeqId]:
    """Up to `RETURN_MAX` positions of the first, which goes when it is empty."""
    held = backlog[0]
    seq_ids = [held.popitem()[0] for _ in range(min(len(held), RETURN_MAX))]
    if not held:
        backlog.popleft()
    return seq_ids
