"""When the queues of a node are drained: those that were called, once per turn of the loop.

Calls into a queue only mark it (`DrainTurns.touch`). At the end of the turn each marked queue is drained, then one
group commit is asked for all of them, if somebody waits for one. So a thousand publishes of one socket read cost one
drain, one frame per mirror and a share of one fsync. No queue is drained after `TURN_S` of a turn; the others wait for
the next one.

Durability comes back as generations (`node.store.disk.group_commit`): a queue touched while generation g was open is
looked at again when g is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable

from node.ids import QueueId
from node.store.disk.group_commit import GroupCommit

#: No queue is drained after so much of a turn: the others of this node wait for the next one, after the sockets.
TURN_S = 0.002


class DrainTurns:
    """Marks queues and has them drained. ``held``: the queues in which this node has a part now.

    ``call_soon`` as of a loop; ``clock`` (seconds) goes on within a turn of it; ``request_sync`` asks for a group
    commit; ``drain`` does not raise.
    """

    def __init__(
        self,
        held: Container[QueueId],
        drain: Callable[[QueueId], None],
        group_commit: GroupCommit,
        request_sync: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._held = held
        self._drain = drain
        self._group_commit = group_commit
        self._request_sync = request_sync
        self._call_soon = call_soon
        self._clock = clock
        self._marked: set[QueueId] = set()
        #: In the order in which they were marked. Some may be forgotten.
        self._order: deque[QueueId] = deque()
        self._is_scheduled = False
        #: generation -> queues touched while it was open.
        self._touched: dict[int, set[QueueId]] = {}

    def touch(self, queue_id: QueueId) -> None:
        """The queue was called and may have written: drain it in this turn, look again when that is on disk."""
        self._touched.setdefault(self._group_commit.open_generation, set()).add(queue_id)
        if queue_id not in self._marked:
            self.drain_soon(queue_id)

    def drain_soon(self, queue_id: QueueId) -> None:
        """In this turn, or the next if this is one of the drains."""
        if queue_id not in self._marked:
            self._marked.add(queue_id)
            self._order.append(queue_id)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._turn)

    def forget(self, queue_id: QueueId) -> None:
        """There is nothing to drain any more."""
        self._marked.discard(queue_id)

    def durable_advanced(self) -> None:
        """A group commit round is on disk: those who wrote in it may have confirms or acknowledgements to give."""
        durable = self._group_commit.durable_generation
        for generation in [generation for generation in self._touched if generation <= durable]:
            self._look_again(generation)

    def nothing_written(self) -> None:
        """No round comes of the open generation: what was collected for it was settled again, or there was nothing."""
        self._look_again(self._group_commit.open_generation)

    def _look_again(self, generation: int) -> None:
        for queue_id in self._touched.pop(generation, ()):
            if queue_id in self._held:
                self.drain_soon(queue_id)  # a mirror looks for itself when it is drained

    def _turn(self) -> None:
        self._is_scheduled = False
        try:
            self._drain_some()
        finally:  # also after a mistake in one of them: who is marked is not scheduled by being touched again
            if self._order:
                self._schedule()
        if self._group_commit.has_dirty or self._group_commit.open_generation in self._touched:
            self._request_sync()

    def _drain_some(self) -> None:
        end_s = self._clock() + TURN_S
        order, marked = self._order, self._marked
        # What is touched meanwhile comes behind what is left, and may be the same again and again.
        for _ in range(len(order)):
            if self._clock() >= end_s:
                break
            queue_id = order.popleft()
            if queue_id in marked:
                marked.discard(queue_id)
                if queue_id in self._held:
                    self._drain(queue_id)

    def check_invariants(self, awaited: Iterable[tuple[QueueId, int]] = ()) -> None:
        """``awaited``: queues with the last generation in which they wrote what somebody waits for."""
        assert not self._marked or self._is_scheduled, "what is marked has a turn coming"
        assert self._marked <= set(self._order), "and a place in it"
        durable = self._group_commit.durable_generation
        assert all(generation > durable for generation in self._touched), "what is durable was looked at again"
        for queue_id, generation in awaited:
            is_looked_at = any(queue_id in self._touched[each] for each in self._touched if each >= generation)
            assert generation <= durable or is_looked_at, "whoever waits for a round is looked at when it is on disk"
