"""A consumer that can prove what it has settled, without its connection.

**A delivery's way.** `DELIVER`; *held*; settled by a run of deliveries in the order of their tags, `ACK` or `REQUEUE`;
*unproven*; `ACK_PROVEN`. Runs are always the oldest of what is held. So one frame with ``multiple`` settles exactly a
run, and what is settled is always a prefix of what was delivered.

**Proof.** Behind each group it asks, on the same channel, for a passive queue.declare of its queue, and does not wait:
one question is on its way at a time, and what is settled meanwhile is proven by the next. Why does the answer prove
that whoever leads the queue has heard the settlement? Because the answer has to hold the number of ready messages,
which only the leader of the queue has, and because the question takes the way of the settlement:

- *RabbitMQ, classic queues.* The channel's process handles the methods of a channel in turn. It casts ``ack`` and
  ``requeue`` to the queue's process on the master, and calls it with ``stat``: signals between two processes keep their
  order, and what goes to another node goes through the same delegate there, chosen by the sender. So the settlement is
  in the mailbox of the queue's process before the question. The mailbox has priorities, and ``stat`` (7) is answered
  before ``ack`` (4 at most) and ``requeue`` (0) that lie there: *heard* is all that is proven, not *done*. For ``ack``
  that suffices: what could give its message to another, the word that the channel is down, has priority 0 and lies
  behind it, and only the death of the queue's process loses it, which is a change of masters or a restart. A
  ``requeue`` that is proven may still be done a little later; that is what ``slack_us`` is for.
- *Warren.* A node says everything that its channels want of a queue through one session with the queue's master, in
  order: settlements and questions too (`cluster.sessions.backlog`). The master hears the settlement first, and does an
  acknowledgement at once.
- With both, a master may die between the two, and its successor answers, who has never heard the settlement. That
  leaves a `PROMOTED` between the `ACK` and whatever follows, and the definitions ask for that. It is not so with quorum
  queues of RabbitMQ: their leader answers from what it has applied, and an acknowledgement may still be on its way
  through the log; nothing should be concluded from a proof there.

What no answer shows: a link *inside* the cluster, between the node of this connection and the master, that broke behind
the settlement and was whole again before the question. Then the settlement was lost, nobody was promoted, the queue has
taken the messages back, and the question is answered all the same, by both brokers (RabbitMQ cancels the consumer then,
which is recorded; Warren keeps it). Where such links are cut, a RESURRECTED that has no other support is to be read
together with the faults.

If the declare fails (404: the queue is down) the broker closes the channel: a loss like any other.

**Loss.** When the channel goes, `RELEASE` for everything held and every unproven `ACK`: it may come again to somebody
else. Not for an unproven `REQUEUE`: it was given back already, and gives a reason for one further delivery, not two.

**Bounds.** Held is at most the prefetch, if the broker keeps to it. Unproven are at most `UNPROVEN_MAX`: beyond,
nothing is settled until there is an answer, and the prefetch stops the broker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from chaos.clients.options import ConsumerOptions, QueueTarget
from chaos.clients.ports import Recorder
from chaos.record.kinds import Ending, Flag, Kind
from chaos.record.message_key import QUEUE_SHIFT

UNPROVEN_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Ack:
    """basic.ack."""

    tag: int
    is_multiple: bool


@dataclass(frozen=True, slots=True)
class Nack:
    """basic.nack with requeue, of several."""

    tag: int


@dataclass(frozen=True, slots=True)
class Reject:
    """basic.reject with requeue, of one."""

    tag: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A passive queue.declare of the queue."""


Frame = Ack | Nack | Reject | Ask


class _Held(NamedTuple):
    tag: int
    key: int
    at_us: int


class _Unproven(NamedTuple):
    tag: int
    key: int
    kind: Kind


class Consumer:
    """What one consumer has of its queue, and what follows.

    It is told what happens, with the time, records it, and is asked what to write (`take`).
    """

    def __init__(self, options: ConsumerOptions, queue: QueueTarget, record: Recorder, chance: Random) -> None:
        options.check()
        self._options = options
        self._queue = queue
        self._record = record
        self._chance = chance
        #: Zero while there is none.
        self._channel = 0
        self._held: deque[_Held] = deque()
        self._unproven: deque[_Unproven] = deque()
        #: The first so many of `_unproven` are proven by the next answer; zero: no question is on its way.
        self._asked = 0
        self._is_draining = False
        self._is_holding = False
        self._is_over = False
        self.is_subscribed = False
        self.delivered = 0
        #: Of those, the flagged ones.
        self.redelivered = 0
        self.acknowledged = 0
        self.proven = 0

    # --- what it is told

    def channel_opened(self, channel: int, node: int, since_us: int, now_us: int) -> None:
        assert not self._channel, "one channel after the other"
        assert not self._is_over, "nothing comes behind the end"
        self._channel = channel
        self._record.note(Kind.CHANNEL_OPEN, now_us, channel=channel, node=node, number=now_us - since_us)

    def subscribed(self, now_us: int) -> None:
        """basic.consume-ok came."""
        self.is_subscribed = True
        self._record.note(
            Kind.SUBSCRIBED, now_us, channel=self._channel, queue=self._queue.index, number=self._options.prefetch
        )

    def received(self, tag: int, key: int, is_sound: bool, is_redelivered: bool, now_us: int) -> bool:
        """basic.deliver came. True if `take` has something to say of it now already."""
        flags = Flag.REDELIVERED * is_redelivered | Flag.CORRUPT * (not is_sound)
        if not key or key >> QUEUE_SHIFT == self._queue.index:
            self._record.add(Kind.DELIVER, now_us, key, self._channel, tag, flags)
        else:
            self._record.note(Kind.DELIVER, now_us, None, key, self._channel, tag, flags, queue=self._queue.index)
        self.delivered += 1
        self.redelivered += is_redelivered
        self._held.append(_Held(tag, key, now_us))
        return len(self._held) >= self._options.group and not self._options.hold_ms and not self._is_holding

    def answered(self, now_us: int) -> None:
        """The answer to the `Ask` on its way."""
        assert self._asked, "nobody answers what was not asked"
        for _ in range(self._asked):
            settled = self._unproven.popleft()
            self._record.add(Kind.ACK_PROVEN, now_us, settled.key, self._channel, settled.tag)
        self.proven += self._asked
        self._asked = 0

    def cancelled(self, now_us: int) -> None:
        """basic.cancel came from the broker."""
        self.is_subscribed = False
        self._record.note(Kind.CANCELLED, now_us, channel=self._channel, queue=self._queue.index)

    def unsubscribed(self, now_us: int) -> None:
        """basic.cancel-ok came."""
        self.is_subscribed = False
        self._record.note(Kind.UNSUBSCRIBED, now_us, channel=self._channel, queue=self._queue.index)

    def blocked(self, is_blocked: bool, now_us: int) -> None:
        """connection.blocked or connection.unblocked came. It stops nothing here."""
        self._record.note(Kind.BLOCKED if is_blocked else Kind.UNBLOCKED, now_us, channel=self._channel)

    def hold(self) -> None:
        """Settle nothing until `release`, or `drain`."""
        self._is_holding = True

    def release(self) -> None:
        """Settle again, as the options say."""
        self._is_holding = False

    def drain(self) -> None:
        """Hold nothing and give nothing back from now on."""
        self._is_draining = True

    def channel_over(self, ending: Ending, detail: str, since_us: int, now_us: int) -> None:
        """It went between the two times."""
        assert self._channel, "a channel that is over was there"
        channel = self._channel
        for settled in self._unproven:
            if settled.kind is Kind.ACK:
                self._record.note(Kind.RELEASE, now_us, since_us, settled.key, channel, settled.tag)
        for held in self._held:
            self._record.note(Kind.RELEASE, now_us, since_us, held.key, channel, held.tag)
        self._record.note(Kind.CHANNEL_OVER, now_us, since_us, channel=channel, number=int(ending), detail=detail)
        self._held.clear()
        self._unproven.clear()
        self._asked = 0
        self._channel = 0
        self.is_subscribed = False

    def connect_failed(self, node: int, detail: str, now_us: int) -> None:
        self._record.note(Kind.CONNECT_FAILED, now_us, node=node, detail=detail)

    def end(self) -> None:
        """No channel will be opened any more."""
        assert not self._channel, "who ends has closed its channel"
        self._is_over = True

    # --- what it wants

    def take(self, now_us: int) -> list[Frame]:
        """What is to be written now, in this order. It is recorded already."""
        frames: list[Frame] = []
        while count := self._settleable(now_us):
            self._settle(count, now_us, frames)
        if len(self._unproven) > self._asked == 0:
            self._asked = len(self._unproven)
            frames.append(Ask())
        return frames

    def _settleable(self, now_us: int) -> int:
        """How many of those held are to be settled together now."""
        held, options = self._held, self._options
        if not held or not self._channel or len(self._unproven) >= UNPROVEN_MAX:
            return 0
        if self._is_draining:
            return min(len(held), options.group)
        if self._is_holding:
            return 0
        held_until_us = now_us - options.hold_ms * 1000
        if len(held) >= options.group and held[options.group - 1].at_us <= held_until_us:
            return options.group
        if held[0].at_us > held_until_us - options.group_wait_ms * 1000:
            return 0
        return sum(1 for _, each in zip(range(options.group), held, strict=False) if each.at_us <= held_until_us)

    def _settle(self, count: int, now_us: int, frames: list[Frame]) -> None:
        """In runs of the same fate."""
        share = 0.0 if self._is_draining else self._options.requeue_share
        run: list[_Held] = []
        is_run_requeued = False
        for _ in range(count):
            is_requeued = share > 0 and self._chance.random() < share
            if run and is_requeued != is_run_requeued:
                frames.append(self._settle_run(run, is_run_requeued, now_us))
                run = []
            is_run_requeued = is_requeued
            run.append(self._held.popleft())
        frames.append(self._settle_run(run, is_run_requeued, now_us))

    def _settle_run(self, run: list[_Held], is_requeued: bool, now_us: int) -> Frame:
        kind = Kind.REQUEUE if is_requeued else Kind.ACK
        is_multiple = len(run) > 1
        flags = Flag.MULTIPLE if is_multiple else 0
        for held in run:
            self._record.add(kind, now_us, held.key, self._channel, held.tag, flags)
            self._unproven.append(_Unproven(held.tag, held.key, kind))
        if is_requeued:
            return Nack(run[-1].tag) if is_multiple else Reject(run[-1].tag)
        self.acknowledged += len(run)
        return Ack(run[-1].tag, is_multiple)

    # --- how it stands

    @property
    def outstanding(self) -> int:
        """Deliveries that are not settled, or not proven to be."""
        return len(self._held) + len(self._unproven)

    @property
    def held(self) -> int:
        """Deliveries that are not settled."""
        return len(self._held)

    @property
    def is_asking(self) -> bool:
        """A question is on its way."""
        return self._asked > 0

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        tags = [each.tag for each in self._unproven] + [each.tag for each in self._held]
        assert tags == sorted(set(tags)), "what is settled comes before what is held, each once"
        assert self._asked <= len(self._unproven), "a question proves what was settled"
        assert len(self._unproven) < UNPROVEN_MAX + self._options.group, "nothing is settled beyond the bound"
        assert self._channel or not tags, "without a channel nothing is held"
        assert self._channel or not self._is_over or not self.is_subscribed, "who has ended gets nothing"
