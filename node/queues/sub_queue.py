"""One of the in-memory sub-queues Q1, Q2, Q3, Q4: messages in the order of their positions.

A dict by seq id and a deque of the same seq ids, ascending. Positions that are taken out of the middle stay in the
deque as tombstones until the ends pass them; what comes in between is sorted in when the order is next needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from node.message import Message
from node.store.index.index import PagedMessage

#: Tombstones beyond twice the messages that are put up with.
TOMBSTONES_MAX = 1024

Entry = Message | PagedMessage


class SubQueue:
    """See the module text."""

    __slots__ = ("_is_stale", "_order", "messages")

    def __init__(self) -> None:
        #: By seq id, in no particular order.
        self.messages: dict[int, Entry] = {}
        self._order: deque[int] = deque()
        #: True while `_order` must be sorted afresh.
        self._is_stale = False

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def first(self) -> int:
        """Lowest position; the queue is not empty."""
        order = self._sorted()
        messages = self.messages
        while order[0] not in messages:
            order.popleft()
        return order[0]

    @property
    def last(self) -> int:
        """Highest position; the queue is not empty."""
        order = self._sorted()
        messages = self.messages
        while order[-1] not in messages:
            order.pop()
        return order[-1]

    def append(self, seq_ids: Sequence[int], messages: Iterable[Entry]) -> None:
        """Ascending positions above all that are here."""
        if not seq_ids:
            return
        if not self._is_stale:
            order = self._order
            while order and order[-1] >= seq_ids[0]:
                order.pop()  # a tombstone: its position is used again
            order.extend(seq_ids)
        self.messages.update(zip(seq_ids, messages, strict=True))

    def prepend(self, seq_ids: Sequence[int], messages: Iterable[Entry]) -> None:
        """Ascending positions below all that are here."""
        if not self._is_stale:
            order = self._order
            while order and order[0] <= seq_ids[-1]:
                order.popleft()
            order.extendleft(reversed(seq_ids))
        self.messages.update(zip(seq_ids, messages, strict=True))

    def merge(self, items: Mapping[int, Entry]) -> None:
        """Any positions that are not here."""
        if not items:
            return
        seq_ids = sorted(items)
        messages = [items[seq_id] for seq_id in seq_ids]
        if not self.messages:
            self.clear()
        if self._is_stale:
            self.messages.update(items)
        elif not self.messages or seq_ids[0] > self.last:
            self.append(seq_ids, messages)
        elif seq_ids[-1] < self.first:
            self.prepend(seq_ids, messages)
        else:
            self._is_stale = True
            self.messages.update(items)

    def absorb(self, other: SubQueue) -> None:
        """Take over everything of ``other``, whose positions are above all that are here; ``other`` is empty then."""
        if not self.messages:
            self.messages, self._order, self._is_stale = other.messages, other._order, other._is_stale
        else:
            seq_ids = [seq_id for seq_id in other._sorted() if seq_id in other.messages]
            self.append(seq_ids, [other.messages[seq_id] for seq_id in seq_ids])
        other.messages, other._order, other._is_stale = {}, deque(), False

    def take(self, count_max: int) -> tuple[list[int], list[Entry]]:
        """Remove up to ``count_max`` messages from the front."""
        order = self._sorted()
        return self._take(order.popleft, count_max)

    def take_last(self, count_max: int) -> tuple[list[int], list[Entry]]:
        """Remove up to ``count_max`` messages from the back; ascending."""
        order = self._sorted()
        seq_ids, messages = self._take(order.pop, count_max)
        seq_ids.reverse()
        messages.reverse()
        return seq_ids, messages

    def _take(self, next_position: object, count_max: int) -> tuple[list[int], list[Entry]]:
        assert callable(next_position), "one end of the order"
        pop = self.messages.pop
        count = min(count_max, len(self.messages))
        seq_ids: list[int] = []
        messages: list[Entry] = []
        while count > 0:
            seq_id = next_position()
            message = pop(seq_id, None)
            if message is None:
                continue
            seq_ids.append(seq_id)
            messages.append(message)
            count -= 1
        return seq_ids, messages

    def peek(self, count_max: int) -> Iterable[tuple[int, Entry]]:
        """The first messages, ascending, up to ``count_max``; nothing may change meanwhile."""
        messages = self.messages
        for seq_id in self._sorted():
            if count_max <= 0:
                return
            message = messages.get(seq_id)
            if message is not None:
                count_max -= 1
                yield seq_id, message

    def trim(self) -> None:
        """After removals from the middle: keep the tombstones few."""
        if len(self._order) > 2 * len(self.messages) + TOMBSTONES_MAX:
            self._is_stale = True
            self._sorted()

    def clear(self) -> dict[int, Entry]:
        """Remove everything and return it."""
        messages, self.messages = self.messages, {}
        self._order.clear()
        self._is_stale = False
        return messages

    def _sorted(self) -> deque[int]:
        if self._is_stale:
            self._order = deque(sorted(self.messages))
            self._is_stale = False
        return self._order

    def check_invariants(self) -> None:
        """Raise `AssertionError` if order and messages contradict each other."""
        if not self._is_stale:
            order = list(self._order)
            assert order == sorted(set(order)), "the order is ascending and names every position once"
            assert self.messages.keys() <= set(order), "every message has its place in the order"
