"""What is delivered of one queue in a block, and what its consumers do with it.

The broker sends in the order of the queue; each consumer reads a little later, in the order of its channel, and settles
in groups before its prefetch count is reached. At a *boundary* of a consumer its channel goes, or its queue gets
another master, or both. What it held then, and part of what it had acknowledged just before, is delivered again. Where
a boundary is decides what is in that zone, by place in the consumer's own order, so nothing has to be played through:
deliveries again are rows that are added, and boundaries lie so far apart that they never meet in one zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from chaos.generator.publishing import Outage, Outcome, Published, ascending, counted_within, push_back
from chaos.generator.rows import Mask, Numbers
from chaos.generator.shape import Layout

#: From the reading of a group's last delivery to the acknowledgement, and on to its proof, at most.
ACK_US = 2_000
PROOF_US = 1_000
#: From the last sign of life of a channel to its end, as its client sees it.
SILENCE_US = 1_500
#: At most so often a message is given back by its consumers.
HOPS_MAX = 3
#: The broker sends no faster, and a client reads no faster.
STEP_US = 2


class Fate(IntEnum):
    """What became of a delivery."""

    #: Settled and proven.
    PLAIN = 0
    #: Held when the channel went.
    HELD = 1
    #: Sent to a channel that went before it was read.
    UNREAD = 2
    #: Acknowledged, and the channel went before a proof.
    UNPROVEN = 3
    #: Held over a failover; acknowledged when it had been delivered again.
    LATE = 4
    GIVEN_BACK = 5


class Boundary(NamedTuple):
    """``consumer`` begins anew."""

    consumer: int
    at_us: int
    #: Its next channel is open from here on.
    back_us: int
    #: Its channel went. If not, only the master did.
    is_over: bool
    is_failover: bool


@dataclass(slots=True)
class Deliveries:
    """Columns; first those of the first time, in the order of the queue, then those again."""

    #: Place of the message in `Published`.
    entry: Numbers
    consumer: Numbers
    sent_us: Numbers
    is_flagged: Mask
    #: Place of the delivery that it repeats, or -1.
    origin: Numbers
    fate: Numbers
    #: The acknowledgement was heard, and forgotten in a failover, or not heard: it is delivered again.
    is_lost_ack: Mask
    is_discarded: Mask
    read_us: Numbers
    #: Boundaries of its consumer before it.
    chunk: Numbers
    #: Settled or given back; zero if not.
    ended_us: Numbers
    proven_us: Numbers
    is_multiple: Mask
    boundaries: list[Boundary]

    def __len__(self) -> int:
        return len(self.entry)

    def boundaries_of(self, consumer: int) -> list[Boundary]:
        """By time."""
        return [boundary for boundary in self.boundaries if boundary.consumer == consumer]


class Delivering:
    """Lays out one queue's block."""

    def __init__(self, layout: Layout, queue: int, rng: np.random.Generator) -> None:
        self._layout = layout
        self._shape = layout.shape
        self._queue = queue
        self._rng = rng
        self._read_us = self._shape.slack_us // 10
        #: Behind the last sending on a channel that goes, its client knows it and has said everything.
        self._quiet_us = self._read_us + ACK_US + PROOF_US
        self._back_us = self._quiet_us + SILENCE_US + 1_500
        # So many deliveries again at most, one by one.
        self._again_us = 2 * STEP_US * (self._shape.consumers + 1) * (2 * self._shape.prefetch + 1)

    def deliver(self, published: Published) -> Deliveries:
        """What was taken and not kept."""
        outcome = published.outcome
        entry = np.flatnonzero((outcome == Outcome.TAKEN) | (outcome == Outcome.UNRESOLVED_TAKEN))
        ready_us = published.t_us[entry] + self._rng.integers(150, 250, len(entry))
        sent_us = self._sent(ready_us, published.outages)
        cuts = self._cuts(sent_us, published.outages)
        if self._shape.consumers == 1:
            for cut in cuts:
                sent_us = push_back(sent_us, cut.at_us, cut.back_us + self._again_us)
            sent_us = self._sent(sent_us, [])
        boundaries = sorted([*cuts, *self._failovers(published.outages)], key=lambda boundary: boundary.at_us)
        count = len(entry)
        first = Deliveries(
            entry=entry,
            consumer=self._consumers(sent_us, boundaries),
            sent_us=sent_us,
            is_flagged=np.zeros(count, np.bool_),
            origin=np.full(count, -1, np.int64),
            fate=np.zeros(count, np.int64),
            is_lost_ack=np.zeros(count, np.bool_),
            is_discarded=self._rng.random(count) < self._shape.discarded,
            read_us=np.zeros(count, np.int64),
            chunk=np.zeros(count, np.int64),
            ended_us=np.zeros(count, np.int64),
            proven_us=np.zeros(count, np.int64),
            is_multiple=np.zeros(count, np.bool_),
            boundaries=boundaries,
        )
        again = self._again_at_boundaries(first)
        given_back = self._given_back(first, count + sum(len(each) for each in again))
        deliveries = _with_more(first, [*again, *given_back])
        self._read(deliveries)
        self._settle(deliveries)
        return deliveries

    # --- sending

    def _sent(self, ready_us: Numbers, outages: Sequence[Outage]) -> Numbers:
        for outage in outages:
            since_us = outage.began_us - self._quiet_us
            ready_us = push_back(ready_us, since_us, outage.ended_us + self._again_us)
        return ascending(ready_us, np.zeros_like(ready_us), STEP_US)

    def _cuts(self, sent_us: Numbers, outages: Sequence[Outage]) -> list[Boundary]:
        """Consumers whose channels go by themselves."""
        shape, rng = self._shape, self._rng
        count = round(shape.redelivered * len(sent_us) * 2 / shape.prefetch)
        gap_us = max(2.0, 1e6 * shape.queues / shape.rate)
        spacing = int(max(4 * shape.consumers * shape.prefetch, 4 * (self._back_us + self._again_us) / gap_us))
        count = min(count, len(sent_us) // spacing - 1)
        if count <= 0:
            return []
        share = len(sent_us) / count
        places = ((np.arange(count) + rng.uniform(0.3, 0.7, count)) * share).astype(np.int64)
        cuts = []
        for at_us in (sent_us[places] + 1).tolist():
            if all(abs(at_us - moment) > spacing * gap_us for outage in outages for moment in outage):
                consumer = int(rng.integers(shape.consumers))
                cuts.append(Boundary(consumer, at_us, at_us + self._back_us, is_over=True, is_failover=False))
        return cuts

    def _failovers(self, outages: Sequence[Outage]) -> list[Boundary]:
        """Half of the consumers were connected to the node that died."""
        return [
            Boundary(consumer, outage.began_us, outage.ended_us - 1_000, bool(self._rng.random() < 0.5), True)
            for outage in outages
            for consumer in range(self._shape.consumers)
        ]

    def _consumers(self, sent_us: Numbers, boundaries: Sequence[Boundary]) -> Numbers:
        """In turn; what would be sent to one that is away goes to another."""
        count = self._shape.consumers
        consumer = np.arange(len(sent_us)) % count
        if count == 1:
            return consumer
        for each in boundaries:
            since, until = np.searchsorted(sent_us, [each.at_us, each.back_us])
            among = slice(int(since), int(until))
            other = (each.consumer + 1 + np.arange(until - since) % (count - 1)) % count
            consumer[among] = np.where(consumer[among] == each.consumer, other, consumer[among])
        return consumer

    # --- again

    def _again_at_boundaries(self, first: Deliveries) -> list[Deliveries]:
        """Marks what happens to the last deliveries before each boundary. Returns those that follow from it."""
        again: dict[int, list[Numbers]] = {}
        since = np.zeros(self._shape.consumers, np.int64)
        lists = [np.flatnonzero(first.consumer == each) for each in range(self._shape.consumers)]
        for boundary in first.boundaries:
            places = lists[boundary.consumer]
            until = int(np.searchsorted(first.sent_us[places], boundary.at_us))
            zone = places[since[boundary.consumer] : until]
            since[boundary.consumer] = until
            again.setdefault(boundary.at_us, []).append(self._mark(first, boundary, zone))
        found = []
        for boundary in {each.at_us: each for each in first.boundaries}.values():
            origins = np.sort(np.concatenate(again[boundary.at_us]))
            if len(origins):
                found.append(self._delivered_again(first, boundary, origins))
        return found

    def _mark(self, first: Deliveries, boundary: Boundary, chunk: Numbers) -> Numbers:
        """The end of one chunk. Returns what of it is delivered again."""
        rng, prefetch = self._rng, self._shape.prefetch
        held = min(int(rng.integers(0, prefetch + 1)), len(chunk))
        acked = min(int(rng.integers(0, prefetch // 2 + 1)), len(chunk) - held)
        lost = int(rng.integers(0, acked + 1))
        split = len(chunk) - held
        tail, before = chunk[split:], chunk[split - acked : split]
        first.is_discarded[chunk[split - acked :]] = False
        first.fate[tail] = Fate.HELD if boundary.is_over else Fate.LATE
        if boundary.is_over:
            unread = int(rng.integers(0, held // 4 + 1))
            first.fate[tail[held - unread :]] = Fate.UNREAD
            first.fate[before] = Fate.UNPROVEN
        first.is_lost_ack[before[acked - lost :]] = True
        return chunk[split - lost :]

    def _delivered_again(self, first: Deliveries, boundary: Boundary, origins: Numbers) -> Deliveries:
        """One behind the other, before anything that is new."""
        consumers = self._shape.consumers
        turn = np.arange(len(origins))
        if boundary.is_failover:
            since_us, consumer = boundary.back_us + 1_000, turn % consumers
        elif consumers == 1:
            since_us, consumer = boundary.back_us, turn * 0
        else:
            since_us = boundary.at_us + self._quiet_us + 200
            consumer = (boundary.consumer + 1 + turn % (consumers - 1)) % consumers
        # Nobody has read it, and the heir does not know that it was handed out: late, if others were read.
        is_unknown = (first.fate[origins] == Fate.UNREAD) & (self._rng.random(len(origins)) < 0.5)
        is_flagged = ~is_unknown if boundary.is_failover else np.ones(len(origins), np.bool_)
        return _more(first, origins, consumer, since_us + turn * STEP_US, is_flagged)

    def _given_back(self, first: Deliveries, place: int) -> list[Deliveries]:
        """Hop by hop from consumer to consumer, where no boundary is near. ``place`` is that of the first of them."""
        rng = self._rng
        hop_us = self._read_us + 1_000
        is_far = np.ones(len(first), np.bool_)
        for boundary in first.boundaries:
            since_us = min(boundary.at_us, boundary.back_us) - (HOPS_MAX + 2) * hop_us - self._again_us
            is_far &= (first.sent_us < since_us) | (first.sent_us > boundary.back_us + self._again_us + hop_us)
        is_free = (first.fate == Fate.PLAIN) & ~first.is_discarded & ~first.is_lost_ack & is_far
        source, source_place = first, 0
        chosen = np.flatnonzero(is_free & (rng.random(len(first)) < self._shape.requeued))
        found: list[Deliveries] = []
        for _ in range(HOPS_MAX):
            if not len(chosen):
                break
            source.fate[chosen] = Fate.GIVEN_BACK
            consumer = (source.consumer[chosen] + 1) % self._shape.consumers
            every = np.ones(len(chosen), np.bool_)
            more = _more(source, chosen, consumer, source.sent_us[chosen] + hop_us, every)
            found.append(replace(more, origin=chosen + source_place))
            source, source_place = more, place
            place += len(more)
            chosen = np.flatnonzero(rng.random(len(more)) < 0.2)
        return found

    # --- reading and settling

    def _read(self, deliveries: Deliveries) -> None:
        order = np.lexsort((deliveries.sent_us, deliveries.consumer))
        consumer, sent_us = deliveries.consumer[order], deliveries.sent_us[order]
        read_us = sent_us + self._rng.integers(100, self._read_us, len(order))
        deliveries.read_us[order] = ascending(read_us, consumer, STEP_US)
        for each in range(self._shape.consumers):
            is_its = deliveries.consumer == each
            moments = [boundary.at_us for boundary in deliveries.boundaries_of(each)]
            deliveries.chunk[is_its] = np.searchsorted(moments, deliveries.sent_us[is_its], side="right")

    def _settle(self, deliveries: Deliveries) -> None:
        rng, prefetch = self._rng, self._shape.prefetch
        order = np.lexsort((deliveries.read_us, deliveries.consumer))
        consumer, chunk = deliveries.consumer[order], deliveries.chunk[order]
        read_us, fate = deliveries.read_us[order], deliveries.fate[order]
        size = rng.integers(1, max(1, prefetch // 2) + 1, self._shape.consumers)[consumer]
        is_first = np.zeros(len(order), np.bool_)
        for column in (consumer, chunk, (fate == Fate.UNPROVEN) * 1, counted_within(consumer) // size):
            is_first |= np.diff(column, prepend=-1) != 0
        starts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(starts, len(order)))
        is_acked = (fate == Fate.PLAIN) | (fate == Fate.UNPROVEN)
        last_us = np.maximum.reduceat(np.where(is_acked, read_us, 0), starts) if len(starts) else starts
        full = np.minimum(starts + prefetch, len(order) - 1)
        is_full = (starts + prefetch < len(order)) & (consumer[full] == consumer[starts])
        acked_us = last_us + rng.integers(20, ACK_US, len(starts))
        acked_us = np.where(is_full, np.minimum(acked_us, read_us[full] - 1), acked_us)
        proven_us = acked_us + rng.integers(200, PROOF_US, len(starts))
        is_several = np.add.reduceat(is_acked * 1, starts) > 1 if len(starts) else is_acked
        ended_us, proven_us = np.repeat(acked_us, lengths), np.repeat(proven_us, lengths)
        deliveries.ended_us[order] = np.where(is_acked, ended_us, 0)
        is_proven = is_acked & (fate != Fate.UNPROVEN)
        deliveries.proven_us[order] = np.where(is_proven, ascending(proven_us, consumer, 0), 0)
        deliveries.is_multiple[order] = is_acked & np.repeat(is_several, lengths) & ~deliveries.is_discarded[order]
        again = np.flatnonzero(deliveries.origin >= 0)
        origin = deliveries.origin[again]
        is_given_back, is_late = (deliveries.fate[origin] == each for each in (Fate.GIVEN_BACK, Fate.LATE))
        for chosen, moments in ((is_given_back, deliveries.sent_us - 300), (is_late, deliveries.read_us + 300)):
            deliveries.ended_us[origin[chosen]] = moments[again[chosen]]
            deliveries.proven_us[origin[chosen]] = moments[again[chosen]] + 500

    def check(self, deliveries: Deliveries) -> None:
        """Raise `AssertionError` if something happened before what it follows from."""
        is_ended = deliveries.ended_us > 0
        assert np.all(deliveries.read_us > deliveries.sent_us), "what is read was sent"
        assert np.all(deliveries.ended_us[is_ended] > deliveries.read_us[is_ended]), "what is settled was read"
        assert np.all(is_ended == ~np.isin(deliveries.fate, (Fate.HELD, Fate.UNREAD))), "nothing is forgotten"


def _more(source: Deliveries, origins: Numbers, consumer: Numbers, sent_us: Numbers, is_flagged: Mask) -> Deliveries:
    """Deliveries of the same messages again, settled like any other."""
    count = len(origins)
    none, nothing = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    return Deliveries(
        source.entry[origins], consumer, sent_us, is_flagged, origins, none.copy(), nothing.copy(), nothing.copy(),
        none.copy(), none.copy(), none.copy(), none.copy(), nothing.copy(), source.boundaries,
    )  # fmt: skip


def _with_more(first: Deliveries, more: Sequence[Deliveries]) -> Deliveries:
    parts = [first, *more]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Deliveries.__slots__
        if name != "boundaries"
    }
    return Deliveries(**columns, boundaries=first.boundaries)
