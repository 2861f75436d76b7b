"""What is published to one queue in a block, and how it is answered.

Everything is first laid out by place in the order of publishing, where what a broken connection makes its publisher try
again is simply put in, and only then in time: moments are sums of gaps, and a pause is a longer gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from chaos.generator.rows import Column, Mask, Numbers
from chaos.generator.shape import Layout
from chaos.record.message_key import PUBLISHER_SHIFT, QUEUE_SHIFT, SEQUENCE_SHIFT

#: Between the last publish on a connection that goes and the first on the next.
RECONNECT_US = 3_000
#: Until an answer is read, at least and at most, when all is well.
ANSWER_US = (400, 600)
#: What of a publisher is unanswered when its connection goes, at most.
WINDOW_MAX = 16
#: Messages between two incidents of publishing in one queue.
SPACING = 48
#: A master is gone for so long.
OUTAGE_US = (40_000, 250_000)
#: Before the pause that a failover makes in publishing, the master is dead already.
UNNOTICED_US = 1_000


class Outcome(IntEnum):
    """What became of a publish."""

    TAKEN = 0
    #: No answer came; it was taken all the same, or not.
    UNRESOLVED_TAKEN = 1
    UNRESOLVED = 2
    REFUSED = 3
    RETURNED = 4
    #: Taken, and removed by the queue.
    EXPIRED = 5
    #: Taken, and there in the end.
    LEFT = 6


class Outage(NamedTuple):
    """A failover: the master is dead from ``began_us``, and another serves from ``ended_us``."""

    began_us: int
    ended_us: int

    @property
    def promoted_us(self) -> tuple[int, int]:
        """The interval in which the other was promoted."""
        return self.began_us + 20_000, self.ended_us - 10_000


class Break(NamedTuple):
    """A publisher's connection went."""

    slot: int
    last_sign_us: int
    over_us: int
    reopened_us: int


@dataclass(slots=True)
class Published:
    """Columns, in the order of publishing."""

    slot: Numbers
    key: Numbers
    #: Connections that its publisher had lost before in this block.
    life: Numbers
    t_us: Numbers
    outcome: Numbers
    #: Zero if it is unresolved.
    answered_us: Numbers
    is_multiple: Mask
    #: It is another attempt.
    is_copy: Mask
    breaks: list[Break]
    outages: list[Outage]

    def __len__(self) -> int:
        return len(self.key)


@dataclass(slots=True)
class _Window:
    """What is unanswered when a connection goes, by place; its copies come behind ``place``."""

    slot: int
    place: int
    places: Numbers


def push_back(moments: Numbers, since_us: int, until_us: int) -> Numbers:
    """What would have happened within an outage happens soon behind it, in the same order."""
    is_within = (moments >= since_us) & (moments < until_us)
    return np.where(is_within, until_us + 200 + (moments - since_us) // 100, moments)


def ascending(moments: Numbers, groups: Numbers, step_us: int) -> Numbers:
    """Moments that are put off until they ascend by at least ``step_us`` in each group; groups ascend."""
    if not len(moments):
        return moments
    since_us = moments.min()
    rank = np.arange(len(moments), dtype=np.int64) * step_us
    apart = groups << 44
    put_off: Numbers = np.maximum.accumulate(moments - since_us + apart - rank) + rank - apart + since_us
    return put_off


def counted_within(groups: Numbers) -> Numbers:
    """How many of the same group are before each."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(groups)))
    count = np.empty(len(groups), np.int64)
    count[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return count


class Publishing:
    """Lays out one queue's block."""

    def __init__(self, layout: Layout, queue: int, rng: np.random.Generator, keep_left: bool) -> None:
        """``keep_left``: it is the last block, and what is left in a queue that is not drained is among it."""
        self._layout = layout
        self._shape = layout.shape
        self._queue = queue
        self._rng = rng
        self._keep_left = keep_left and layout.is_undrained(queue)

    def publish(self, counts: Numbers, sequences: Numbers, start_us: int, failovers: int) -> Published:
        """``counts`` by publisher, whose numbers go on behind ``sequences``."""
        slot = self._rng.permutation(np.repeat(np.arange(len(counts)), counts))
        sequence = sequences[slot] + counted_within(slot) + 1
        total = len(slot)
        left = int(np.ceil(self._shape.left * total)) if self._keep_left else 0
        pauses = self._spread(failovers, total, self._spacing, self._spacing + left)
        windows = self._windows(slot, pauses, left)
        # Copies get places between that of the last message before the break and the next.
        copied = np.concatenate([np.zeros(0, np.int64), *(window.places for window in windows)])
        behind = np.repeat([window.place for window in windows], [len(window.places) for window in windows])
        nth = counted_within(behind.astype(np.int64)) + 1
        all_places = np.concatenate([np.arange(total, dtype=np.float64), behind + nth / (len(copied) + 1)])
        order = np.argsort(all_places, kind="stable")
        all_places, source = all_places[order], np.concatenate([np.arange(total), copied])[order]
        is_copy = order >= total
        # What is first behind a break or in a pause comes so much later.
        gaps = self._gaps(len(order))
        reconnects = np.searchsorted(all_places, [window.place for window in windows], side="right")
        gaps[reconnects] += RECONNECT_US
        resumes = np.searchsorted(all_places, pauses - 1, side="right")
        gaps[resumes] += self._rng.integers(*OUTAGE_US, size=len(pauses))
        t_us = start_us + np.cumsum(gaps)
        published = Published(
            slot=slot[source],
            key=self._keys(slot[source], sequence[source], is_copy),
            life=np.zeros(len(order), np.int64),
            t_us=t_us,
            outcome=self._outcomes(len(order), is_copy, left),
            answered_us=np.zeros(len(order), np.int64),
            is_multiple=np.zeros(len(order), np.bool_),
            is_copy=is_copy,
            breaks=[],
            outages=[Outage(int(t_us[at - 1]) - UNNOTICED_US, int(t_us[at]) - 2_000) for at in resumes.tolist()],
        )
        for window, resumed in zip(windows, reconnects.tolist(), strict=True):
            self._break(published, window, all_places, resumed)
        self._answer(published)
        return published

    def _keys(self, slot: Numbers, sequence: Numbers, is_copy: Mask) -> Numbers:
        publisher = slot + self._layout.publisher(self._queue, 0)
        queue = np.int64(self._queue) << QUEUE_SHIFT
        keys: Numbers = queue | (publisher << PUBLISHER_SHIFT) | (sequence << SEQUENCE_SHIFT) | (1 + is_copy)
        return keys

    def _break(self, published: Published, window: _Window, all_places: Column, resumed: int) -> None:
        """Of what is in the window, the first were taken, the others not; the publisher goes on in its next life."""
        at = np.searchsorted(all_places, window.places)
        is_taken = np.arange(len(at)) < self._rng.integers(0, len(at) + 1)
        published.outcome[at] = np.where(is_taken, Outcome.UNRESOLVED_TAKEN, Outcome.UNRESOLVED)
        published.life += (published.slot == window.slot) & (all_places > window.place)
        last_us, first_us = published.t_us[[resumed - 1, resumed]].tolist()
        published.breaks.append(Break(window.slot, last_us, first_us - 1_500, first_us - 500))

    def _spread(self, count: int, total: int, before: int, behind: int) -> Numbers:
        """Places of ``count`` incidents, each somewhere in the middle of its share; fewer if there is no room."""
        room = total - before - behind
        count = min(count, room // (2 * self._spacing))
        if count <= 0:
            return np.zeros(0, np.int64)
        share = room / count
        return (before + (np.arange(count) + self._rng.uniform(0.3, 0.7, count)) * share).astype(np.int64)

    def _windows(self, slot: Numbers, pauses: Numbers, left: int) -> list[_Window]:
        """Connections that go: some by themselves, and half of all when the master goes."""
        rng = self._rng
        total = len(slot)
        count = round(self._shape.unresolved * total * 2 / WINDOW_MAX)
        places_of = [np.flatnonzero(slot == each) for each in range(self._shape.publishers)]
        windows = [
            _Window(int(slot[place]), place, self._last(places_of[slot[place]], place + 1))
            for place in self._spread(count, total, SPACING, SPACING + left).tolist()
            if not len(pauses) or np.abs(pauses - place).min() > self._spacing
        ]
        for place in pauses.tolist():
            for each, places in enumerate(places_of):
                until = int(np.searchsorted(places, place))
                since = int(np.searchsorted(places, place - self._unanswered))
                if until and rng.random() < 0.5:
                    windows.append(_Window(each, place - 1, places[min(since, until - 1) : until]))
        return sorted(windows, key=lambda window: window.place)

    def _last(self, places: Numbers, until_place: int) -> Numbers:
        until = int(np.searchsorted(places, until_place))
        since = np.searchsorted(places, until_place - SPACING)
        return places[max(int(since), until - int(self._rng.integers(1, WINDOW_MAX + 1))) : until]

    @property
    def _unanswered(self) -> int:
        """Places before a failover whose answers do not come any more, if their publisher's connection goes."""
        return int((UNNOTICED_US + 2 * ANSWER_US[1]) / self._gap_us) * 2 + 3

    @property
    def _spacing(self) -> int:
        return SPACING + self._unanswered

    @property
    def _gap_us(self) -> float:
        return max(2.0, 1e6 * self._shape.queues / self._shape.rate)

    def _gaps(self, count: int) -> Numbers:
        return 2 + self._rng.exponential(self._gap_us - 2, count).astype(np.int64)

    def _outcomes(self, count: int, is_copy: Mask, left: int) -> Numbers:
        """Of all that are answered: by lot, but the last stay."""
        shape = self._shape
        outcome = np.full(count, int(Outcome.TAKEN), np.int64)
        lot = self._rng.random(count)
        outcome[lot < shape.refused] = Outcome.REFUSED
        outcome[(lot >= shape.refused) & (lot < shape.refused + shape.returned)] = Outcome.RETURNED
        if self._layout.is_expiring(self._queue):
            outcome[(lot > 1 - shape.expired) & ~is_copy] = Outcome.EXPIRED
        outcome[is_copy] = Outcome.TAKEN
        if left:
            tail = outcome[-left:]
            tail[tail == Outcome.TAKEN] = Outcome.LEFT
        return outcome

    def _answer(self, published: Published) -> None:
        """Answers cover one or several; none of them crosses a break, or is both a confirm and a refusal."""
        rng = self._rng
        is_answered = (published.outcome != Outcome.UNRESOLVED) & (published.outcome != Outcome.UNRESOLVED_TAKEN)
        answered = np.flatnonzero(is_answered)
        answered = answered[np.argsort(published.slot[answered], kind="stable")]
        slot, life = published.slot[answered], published.life[answered]
        is_refused = published.outcome[answered] == Outcome.REFUSED
        is_first = rng.random(len(answered)) < 0.3
        for column in (slot, life, is_refused.astype(np.int64)):
            is_first |= np.diff(column, prepend=-1) != 0
        starts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(starts, len(answered)))
        last_us = published.t_us[answered][starts + lengths - 1]
        moments = np.repeat(last_us + rng.integers(*ANSWER_US, size=len(starts)), lengths)
        for outage in published.outages:
            moments = push_back(moments, outage.began_us, outage.ended_us)
        published.answered_us[answered] = ascending(moments, slot, 0)
        published.is_multiple[answered] = np.repeat(lengths > 1, lengths)
