"""One of the in-memory sub-queues Q1, Q2, Q3, Q4: messages in the order of their positions.

A dict by seq id, and the same seq ids in *runs*, each ascending: a long one, `_order`, at whose ends messages come and
go, and short ones of what came in between (requeued messages, batches of a synchronisation). Without short runs, the
usual case, nothing is compared. With them, the next message is the least of their heads. A new run is merged with those
before it that are not at least twice as long, so there are few, and a message is moved a logarithmic number of times
however many pieces it comes in.

Positions that are taken out of the middle stay in their run as tombstones until the ends pass them. A position that is
used again may stand in two runs; it has one message all the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace, merge

from node.message import Message
from node.store.index.index import PagedMessage

#: Tombstones beyond twice the messages that are put up with.
TOMBSTONES_MAX = 1024

Entry = Message | PagedMessage


class SubQueue:
    """See the module text."""

    __slots__ = ("_order", "_runs", "messages")

    def __init__(self) -> None:
        #: By seq id, in no particular order.
        self.messages: dict[int, Entry] = {}
        self._order: deque[int] = deque()
        #: What came in between, the longest first.
        self._runs: list[deque[int]] = []

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def first(self) -> int:
        """Lowest position; the queue is not empty."""
        if self._runs:
            return min([run[0] for run in self._live_ends()])
        order = self._order
        messages = self.messages
        while order[0] not in messages:
            order.popleft()
        return order[0]

    @property
    def last(self) -> int:
        """Highest position; the queue is not empty."""
        if self._runs:
            return max([run[-1] for run in self._live_ends()])
        order = self._order
        messages = self.messages
        while order[-1] not in messages:
            order.pop()
        return order[-1]

    def append(self, seq_ids: Sequence[int], messages: Iterable[Entry]) -> None:
        """Ascending positions above all that are here."""
        if not seq_ids:
            return
        order = self._order
        while order and order[-1] >= seq_ids[0]:
            order.pop()  # a tombstone: its position is used again
        order.extend(seq_ids)
        self.messages.update(zip(seq_ids, messages, strict=True))

    def prepend(self, seq_ids: Sequence[int], messages: Iterable[Entry]) -> None:
        """Ascending positions below all that are here."""
        if not seq_ids:
            return
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
        if not self.messages:
            self.clear()
        if not self.messages or seq_ids[0] > self.last:
            self.append(seq_ids, [items[seq_id] for seq_id in seq_ids])
        elif seq_ids[-1] < self.first:
            self.prepend(seq_ids, [items[seq_id] for seq_id in seq_ids])
        else:
            self.messages.update(items)
            self._add_run(seq_ids)

    def _add_run(self, run: list[int]) -> None:
        runs = self._runs
        while runs and len(runs[-1]) < 2 * len(run):
            run = sorted([*runs.pop(), *run])  # of two runs, so in linear time
        if not runs and len(self._order) < 2 * len(run):
            self._put_in_order()
        else:
            runs.append(deque(run))

    def absorb(self, other: SubQueue) -> None:
        """Take over everything of ``other``, whose positions are above all that are here; ``other`` is empty then."""
        if not self.messages:
            self.messages, self._order, self._runs = other.messages, other._order, other._runs
        else:
            seq_ids = [seq_id for seq_id, _ in other.peek(len(other))]
            self.append(seq_ids, [other.messages[seq_id] for seq_id in seq_ids])
        other.messages, other._order, other._runs = {}, deque(), []

    def take(self, count_max: int) -> tuple[list[int], list[Entry]]:
        """Remove up to ``count_max`` messages from the front."""
        if self._runs:
            return self._take_from_runs(count_max)
        return self._take(self._order.popleft, count_max)

    def take_last(self, count_max: int) -> tuple[list[int], list[Entry]]:
        """Remove up to ``count_max`` messages from the back; ascending."""
        if self._runs:
            self._put_in_order()
        seq_ids, messages = self._take(self._order.pop, count_max)
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

    def _take_from_runs(self, count_max: int) -> tuple[list[int], list[Entry]]:
        """The least of the heads, again and again."""
        pop = self.messages.pop
        count = min(count_max, len(self.messages))
        runs = [run for run in (self._order, *self._runs) if run]
        heads = [(run[0], number) for number, run in enumerate(runs)]
        heapify(heads)
        seq_ids: list[int] = []
        messages: list[Entry] = []
        while count > 0:
            seq_id, number = heads[0]
            run = runs[number]
            run.popleft()
            if run:
                heapreplace(heads, (run[0], number))
            else:
                heads.remove((seq_id, number))
                heapify(heads)
            message = pop(seq_id, None)
            if message is None:
                continue
            seq_ids.append(seq_id)
            messages.append(message)
            count -= 1
        self._runs = [run for run in self._runs if run]
        return seq_ids, messages

    def peek(self, count_max: int) -> Iterator[tuple[int, Entry]]:
        """The first messages, ascending, up to ``count_max``; nothing may change meanwhile."""
        messages = self.messages
        last = -1
        for seq_id in merge(self._order, *self._runs) if self._runs else self._order:
            if count_max <= 0:
                return
            message = messages.get(seq_id)
            if message is not None and seq_id != last:
                last = seq_id
                count_max -= 1
                yield seq_id, message

    def trim(self) -> None:
        """After removals from the middle: keep the tombstones few."""
        positions = len(self._order) + sum([len(run) for run in self._runs])
        if positions > 2 * len(self.messages) + TOMBSTONES_MAX:
            self._put_in_order()

    def clear(self) -> dict[int, Entry]:
        """Remove everything and return it."""
        messages, self.messages = self.messages, {}
        self._order.clear()
        self._runs.clear()
        return messages

    def _put_in_order(self) -> None:
        """One run, without tombstones."""
        self._order = deque(sorted(self.messages))
        self._runs = []

    def _live_ends(self) -> list[deque[int]]:
        """The runs, with a message at either end of each."""
        messages = self.messages
        for run in (self._order, *self._runs):
            while run and run[0] not in messages:
                run.popleft()
            while run and run[-1] not in messages:
                run.pop()
        self._runs = [run for run in self._runs if run]
        return [self._order, *self._runs] if self._order else self._runs

    def check_invariants(self) -> None:
        """Raise `AssertionError` if order and messages contradict each other."""
        known: set[int] = set()
        for run in (self._order, *self._runs):
            assert list(run) == sorted(set(run)), "a run is ascending and names every position once"
            known.update(run)
        assert self.messages.keys() <= known, "every message has its place in a run"
        assert all(self._runs), "no run is empty but the long one"
