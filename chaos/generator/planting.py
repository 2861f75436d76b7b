"""Planting anomalies in a block that is valid.

What a checker is worth is known only where the truth is: so anomalies are put into a history in which nothing is wrong,
each with the finding that must come of it and no other. It has to cost little, however long the record is.

**On columns.** A block is laid out before it is told (`chaos.generator.telling`), so it is known of every message, in
columns, what it went through, and at which places its rows are. An anomaly is a mask of the messages in which it can be
planted, and a few assignments at the places of those that are drawn: rows are taken out, changed, or added, for all
that are planted of a class in one go. Nothing is searched for, no row becomes an object, and neighbours need no care: a
block is sorted, and its events and tags are counted, once and behind all planting (`chaos.generator.rows`). A block
costs the same for one anomaly as for a thousand, some masks over its messages; ten million rows are fifteen blocks.

**Only what was planted.** Who is drawn is *plain*: confirmed, delivered once, acknowledged and proven. Whoever is drawn
for one anomaly, with the companion that an order needs (what overtakes it), is out of reach for all others. Neighbours
need not be: what is moved is only ever moved back, so that whoever was in order with what stays is still. No anomaly
comes within reach of a failover unless it needs one, since a failover would excuse it.
What is delivered once more is delivered to a *guest*: a channel of its own in another consumer's process, so that no
order, prefetch count or tag of anybody else changes.

Anomalies are spread over the blocks by lot. What finds no place in a block is tried in the next; what finds none at all
is told as missing, never left out silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chaos.generator.candidates import Candidates, candidates_of
from chaos.generator.planted import Sown
from chaos.generator.rows import Counters, Mask, Numbers, Rows
from chaos.generator.shape import NODES, Layout
from chaos.generator.telling import NET_US, Told
from chaos.judge.findings import Name
from chaos.record.kinds import Ending, Flag, Kind
from chaos.record.message_key import QUEUE_SHIFT

#: At the beginning and the end of each queue's part of a block, for what must be lost first or last: so many messages,
#: or more for more anomalies.
MARGIN = 32
#: A guest acknowledges and leaves so soon.
GUEST_US = 20
#: Replica of the run in which what is left is missing.
REPLICA_LOST = "replica_lost"


class Remainder(NamedTuple):
    """Messages that must be found in their queue in the end."""

    anomaly: str
    keys: Numbers


class Shown(NamedTuple):
    """What a checker must find of the anomalies of one class in one block."""

    #: Of the rows that show it; None if they will be there only in the end.
    places: Numbers | None
    #: Of the messages that it names.
    keys: Numbers


class Anomaly(NamedTuple):
    """One class."""

    name: str
    finding: Name
    #: Where it can be planted, of all messages.
    eligible: Callable[[Bench], Mask]
    #: Plants it in these messages.
    plant: Callable[[Bench, Numbers], Shown]
    #: For each message the other that it needs, or -1.
    companion: Callable[[Bench], Numbers] | None = None
    needs_tap: bool = False
    needs_failover: bool = False
    #: It shows in this, too; and in this, which is legal.
    also: Name | None = None
    legal: Name | None = None
    #: Only in the first, or the last block, at the first or last messages, next to others.
    edge_block: int | None = None


class Bench:
    """A block on which is planted."""

    def __init__(
        self, layout: Layout, rows: Rows, candidates: Candidates, counters: Counters, rng: np.random.Generator,
        until_us: int, epochs: Sequence[int], margin: int = MARGIN,
    ) -> None:  # fmt: skip
        """``until_us``: nothing may happen later. ``epochs`` of the queues when the block began."""
        self.layout = layout
        self.shape = layout.shape
        shape_queues = layout.shape.queues
        self.rows = rows
        self.messages = candidates
        self.counters = counters
        self.rng = rng
        self.until_us = until_us
        self.epoch = np.array([0, *epochs], np.int64)[candidates.queue]
        self.margin = margin
        #: Messages that something was planted in, and their companions.
        self.is_used = np.zeros(len(candidates), np.bool_)
        self.is_edge: Mask = (candidates.from_first < margin) | (candidates.to_last < margin)
        #: What most anomalies are planted in.
        self.is_plain: Mask = candidates.is_plain & candidates.is_calm & ~self.is_edge
        #: Numbers of messages that are never published go on from here.
        self.beyond = 0
        self.is_ordinary: Mask = np.array(
            [not layout.is_expiring(queue) and not layout.is_undrained(queue) for queue in range(shape_queues + 1)]
        )[candidates.queue]
        self.is_expiring: Mask = np.array([layout.is_expiring(queue) for queue in range(shape_queues + 1)])[
            candidates.queue
        ]
        #: The companions of those that are planted now.
        self.companion = np.zeros(0, np.int64)

    def draw(self, mask: Mask, count: int, companion: Numbers | None) -> Numbers:
        """Up to ``count`` messages, by lot; nobody draws them or their companions again."""
        is_free = mask & ~self.is_used
        if companion is not None:
            is_free &= (companion >= 0) & ~self.is_used[companion]
        drawn: list[int] = []
        for message in self._by_lot(np.flatnonzero(is_free), count):
            if len(drawn) == count:
                break
            other = message if companion is None else int(companion[message])
            if self.is_used[message] or self.is_used[other]:
                continue
            drawn.append(message)
            self.is_used[[message, other]] = True
        chosen = np.array(drawn, np.int64)
        self.companion = chosen if companion is None else companion[chosen]
        return chosen

    def _by_lot(self, messages: Numbers, count: int) -> Iterator[int]:
        """All of them in any order, the first ones cheaply: most of the time they will do."""
        few = self.rng.choice(messages, min(len(messages), 4 * count), replace=False) if len(messages) else messages
        yield from few.tolist()
        yield from self.rng.permutation(np.setdiff1d(messages, few)).tolist()

    # --- changing what is there

    def take_out(self, at: Numbers, *kinds: Kind) -> None:
        for kind in kinds:
            self.rows.take_out(self.messages.places[kind][at])

    def unsettle(self, at: Numbers) -> None:
        self.take_out(at, Kind.ACK, Kind.ACK_PROVEN, Kind.SETTLED)

    def undeliver(self, at: Numbers) -> None:
        self.take_out(at, Kind.DELIVER, Kind.HANDED_OUT)
        self.unsettle(at)

    def put(self, at: Numbers, kind: Kind, column: str, values: npt.ArrayLike) -> None:
        """Set a column of a row of each."""
        places = self.messages.places[kind][at]
        is_there = places >= 0
        self.rows.columns[column][places[is_there]] = np.broadcast_to(np.asarray(values), at.shape)[is_there]

    def move(self, at: Numbers, kind: Kind, moments: Numbers) -> None:
        self.put(at, kind, "t_lo_us", moments)
        self.put(at, kind, "t_hi_us", moments)

    def requeue(self, at: Numbers) -> None:
        """Their acknowledgements become what gives them back."""
        self.put(at, Kind.ACK, "flags", 0)
        self.put(at, Kind.ACK, "kind", int(Kind.REQUEUE))
        self.put(at, Kind.SETTLED, "flags", 0)
        self.put(at, Kind.SETTLED, "kind", int(Kind.REQUEUED))

    # --- adding

    def process(self, at: Numbers) -> Numbers:
        """Who consumed them."""
        first = np.array([self.layout.consumer_process(queue, 0) for queue in range(1, self.shape.queues + 1)])
        return first[self.messages.queue[at] - 1] + self.messages.consumer[at]

    def publisher_process(self, at: Numbers) -> Numbers:
        first = np.array([self.layout.publisher_process(queue, 0) for queue in range(1, self.shape.queues + 1)])
        return first[self.messages.queue[at] - 1] + self.messages.slot[at]

    def beside(self, at: Numbers, message: npt.ArrayLike, flags: int = 0, is_settled: bool = True) -> Numbers:
        """Another delivery in the same channel, just behind theirs. Returns the places of the deliveries."""
        messages, process = self.messages, self.process(at)
        channel, line = messages.consumer_channel[at], self.rows.new_lines(len(at))
        others = {"message": message, "channel": channel, "line": line}
        delivered = self.rows.add(Kind.DELIVER, process, messages.read_us[at] + 1, flags=flags, **others)
        if is_settled:
            self.rows.add(Kind.ACK, process, messages.ended_us[at] + 1, **others)
            self.rows.add(Kind.ACK_PROVEN, process, messages.proven_us[at] + 1, **others)
        return delivered

    def guest(
        self, at: Numbers, moments: Numbers, flags: int = 0, *, is_gone: bool = False, held_us: int = GUEST_US,
        failovers: int = 0,
    ) -> Numbers:  # fmt: skip
        """Deliver them to channels of their own, which acknowledge, or go, so many failovers later. Returns the places
        of the deliveries."""
        shape, messages, rows = self.shape, self.messages, self.rows
        process = self.process(at) - messages.consumer[at] + (messages.consumer[at] + 1) % shape.consumers
        channel, line = self.counters.new_channels(len(at)), rows.new_lines(len(at))
        queue, message = messages.queue[at], messages.key[at]
        rows.add(Kind.CHANNEL_OPEN, process, moments - 10, channel=channel, node=process % NODES + 1)
        rows.add(Kind.SUBSCRIBED, process, moments - 9, channel=channel, queue=queue, number=shape.prefetch)
        delivered = rows.add(Kind.DELIVER, process, moments, message=message, channel=channel, line=line, flags=flags)
        others = {"message": message, "channel": channel, "line": line}
        over_us, ending = moments + held_us + 40, Ending.BY_CLIENT
        if is_gone:
            over_us, ending = moments + 1_500, Ending.LOST
            rows.add(Kind.RELEASE, process, over_us, since_us=moments + 1, **others)
        else:
            rows.add(Kind.ACK, process, moments + held_us, **others)
            rows.add(Kind.ACK_PROVEN, process, moments + held_us + 20, **others)
        since_us = moments + 1 if is_gone else over_us
        rows.add(Kind.CHANNEL_OVER, process, over_us, since_us=since_us, channel=channel, number=int(ending))
        if shape.tap:
            self.tell(Kind.HANDED_OUT, at, moments - NET_US, failovers, flags=flags & Flag.REDELIVERED)
            if not is_gone:
                self.tell(Kind.SETTLED, at, moments + held_us + 10, failovers)
        return delivered

    def tell(self, kind: Kind, at: Numbers, moments: Numbers, failovers: int = 0, **others: npt.ArrayLike) -> Numbers:
        """The broker's word on them."""
        epoch = self.epoch[at] + self.messages.era[at] + failovers
        node = (self.messages.queue[at] + epoch) % NODES + 1
        return self.rows.add(kind, Layout.TAP, moments, message=self.messages.key[at], epoch=epoch, node=node, **others)


class Planter:
    """Plants ``count`` of each class in a record."""

    def __init__(self, layout: Layout, count: int, anomalies: Sequence[Anomaly]) -> None:
        self._layout = layout
        self._blocks = layout.shape.blocks
        self._anomalies = [each for each in anomalies if layout.shape.tap or not each.needs_tap]
        self._count = count
        self._beyond = 0
        self._epochs = [1] * layout.shape.queues
        self._rng = np.random.default_rng([layout.shape.seed, 2**32 - 1])
        #: By class and block.
        self._due = {each.name: self._spread(each) for each in self._anomalies if count}
        self._owed: Counter[str] = Counter()
        self._replicas_lacking: dict[tuple[int, int], Numbers] = {}
        self.remainders: list[Remainder] = []
        #: By name, what found no place; and what is legal, and follows from what was planted.
        self.missing: Counter[str] = Counter()
        self.legal: Counter[Name] = Counter()

    def _spread(self, anomaly: Anomaly) -> Numbers:
        if anomaly.edge_block is not None:
            due = np.zeros(self._blocks, np.int64)
            due[anomaly.edge_block] = self._count
            return due
        chances = np.ones(self._blocks)
        if anomaly.needs_failover:
            shape = self._layout.shape
            chances[:] = 0
            chances[[shape.block_of_failover(number) for number in range(shape.failovers)]] = 1
            if not chances.any():
                chances[-1] = 1
        return self._rng.multinomial(self._count, chances / chances.sum())

    def plant(self, block: int, rows: Rows, told: Sequence[Told], counters: Counters, until_us: int) -> list[Sown]:
        """Plant what is due in this block. The rows are sealed."""
        epochs = list(self._epochs)
        self._epochs = [epoch + len(each.published.outages) for epoch, each in zip(epochs, told, strict=True)]
        if not self._count:
            return []
        rng = np.random.default_rng([self._layout.shape.seed, block, 2**32 - 1])
        candidates = candidates_of(self._layout, told)
        margin = max(MARGIN, self._count)
        bench = Bench(self._layout, rows, candidates, counters, rng, until_us, epochs, margin)
        bench.beyond = self._beyond
        sown: list[Sown] = []
        for anomaly in self._anomalies:
            due = int(self._due[anomaly.name][block]) + self._owed[anomaly.name]
            if not due:
                continue
            planted = self._plant(bench, anomaly, due, sown)
            if anomaly.legal is not None:
                self.legal[anomaly.legal] += planted
            # What must be first or last cannot be made up for.
            late = self.missing if anomaly.edge_block is not None else self._owed
            late[anomaly.name] = due - planted
        self._beyond = bench.beyond
        if block == self._blocks - 1:
            self.missing.update(self._owed)
        self.missing = +self.missing
        return sown

    def _plant(self, bench: Bench, anomaly: Anomaly, due: int, sown: list[Sown]) -> int:
        companion = anomaly.companion(bench) if anomaly.companion else None
        if anomaly.edge_block is not None:
            at = self._edge(bench, np.flatnonzero(anomaly.eligible(bench)), due, anomaly.edge_block == 0)
        else:
            at = bench.draw(anomaly.eligible(bench), due, companion)
        if not len(at):
            return 0
        shown = anomaly.plant(bench, at)
        if shown.places is None:
            self.remainders.append(Remainder(anomaly.name, shown.keys))
            return len(at)
        for key, place in zip(shown.keys.tolist(), shown.places.tolist(), strict=True):
            names = [anomaly.finding, *([anomaly.also] if anomaly.also else [])]
            sown += [Sown(anomaly.name, name, key, place) for name in names]
        return len(at)

    @staticmethod
    def _edge(bench: Bench, at: Numbers, due: int, is_first: bool) -> Numbers:
        """The first, or the last, of each publisher, in turn."""
        messages = bench.messages
        distance = messages.from_first if is_first else messages.to_last
        at = at[np.lexsort((messages.queue[at], distance[at]))][:due]
        bench.is_used[at] = True
        return at

    def lacking(self, queue: int, node: int, left: Numbers) -> Numbers:
        """What of ``left`` the replica of ``queue`` on ``node`` lost."""
        if not self._count or not self._layout.is_undrained(queue):
            return left[:0]
        return self._replicas_lacking.get((queue, node), left[:0])

    def take_from_replicas(self, left: Numbers) -> None:
        """Draw what replicas lost of everything that is ``left``."""
        if not self._count or not self._layout.shape.tap:
            return
        undrained = [queue for queue in range(1, self._layout.shape.queues + 1) if self._layout.is_undrained(queue)]
        legal = left[np.isin(left >> QUEUE_SHIFT, undrained)]
        pairs = self._rng.permutation(len(legal) * NODES)[: self._count]
        for pair in pairs.tolist():
            key, node = int(legal[pair // NODES]), pair % NODES + 1
            place = (key >> QUEUE_SHIFT, node)
            self._replicas_lacking[place] = np.append(self._replicas_lacking.get(place, legal[:0]), key)
        if len(pairs) < self._count:
            self.missing[REPLICA_LOST] = self._count - len(pairs)
