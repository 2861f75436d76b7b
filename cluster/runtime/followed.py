"""How far this node has followed the metadata log, queue by queue.

A command that changes all queues is followed in pieces (`cluster.runtime.applier`): for some turns a part of the queues
here plays the roles that it gives them, and the others do not yet. What a master says of its mirrors is said as of an
index of the log (`cluster.mirroring.early`, `MirrorSynchronised.as_of_index`), and must not be said as of an entry
whose consequences for that queue are still to come: it would be believed of a life of the mirror of which it is not
true. So the index is one of each queue. For a queue, an entry is followed in one turn, as if there were nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from node.ids import QueueId


class Followed:
    """See the top of this module."""

    __slots__ = ("_are_all_behind", "_before", "_behind", "index")

    def __init__(self) -> None:
        #: Of the last entry that was followed, or is.
        self.index = 0
        #: And of the one before it.
        self._before = 0
        #: Queues that have yet to follow the entry at `index` (a dict for its order).
        self._behind: dict[QueueId, None] = {}
        #: What does not belong to one queue comes first.
        self._are_all_behind = False

    def of(self, queue_id: QueueId) -> int:
        """Index of the last entry that this queue has followed."""
        return self._before if self._are_all_behind or queue_id in self._behind else self.index

    def is_behind(self, queue_id: QueueId) -> bool:
        """What the entry under way makes of this queue is still to come."""
        return queue_id in self._behind

    def begin(self, index: int, queue_ids: Iterable[QueueId]) -> None:
        """The entry at ``index`` is applied, and changes these queues."""
        self._before, self.index = self.index, index
        self._behind = dict.fromkeys(queue_ids)
        self._are_all_behind = True

    def begin_queues(self) -> None:
        """What concerns all queues is followed: now those that the entry changes, one by one."""
        self._are_all_behind = False

    def caught_up(self, queue_id: QueueId) -> None:
        """This queue has followed."""
        self._behind.pop(queue_id, None)

    def reach(self, index: int) -> None:
        """Every entry up to ``index`` is followed by every queue."""
        self.index = index
        self._behind.clear()
        self._are_all_behind = False

    def check_invariants(self) -> None:
        assert self._before <= self.index, "the log is followed in its order"
