"""From the memory in use to two answers: is there an alarm, and how long may queues keep messages in memory.

**The alarm** is raised as soon as more than the limit is in use, and cleared by the first measurement at or below it
that comes `ALARM_HOLD_MS` after the last one above: without that pause a node at its limit would block and unblock the
publishers of the whole cluster with every measurement. A new limit is judged at once.

**The target duration** (reference: ``rabbit_memory_monitor``). From `paging_ratio` of the limit on, queues give up
memory, the busy and the idle to the same degree. The common measure is time: a queue reports how many seconds of its
traffic it holds in memory, and is told how many it may hold. Below the ratio, or without a queue that has traffic, the
target is infinite. Above it is::

    (sum of durations + 1 s if used/limit < 0.95) / number of queues / (used/limit)

so that queues together shrink as the ratio rises, and near the limit shrink even if they report nothing to speak of.
A queue without traffic reports infinity and is left out of the average; it has nothing to page by this rule, because
the rule is about the growth of those that move. Above the limit there is no more rule: the target is 0, everything
that can leave memory does, and publishers wait meanwhile. While the disk alarm is set the target is infinite whatever
the memory says: paging would fill the disk.

**The sweep.** Asking and telling all queues is work in proportion to their number, so it is cut into portions of
`QUEUES_PER_STEP`: first all are asked, then the target is computed, then all are told. With fewer queues than one
portion, which is the usual case, one step does all of it. Nothing is swept while the target is and stays infinite.

Pure: the owner measures, calls `MemoryMonitor.measured`, and lends `PagingQueues` to `PagingSweep.step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from node.ids import QueueId

#: After the last measurement above the limit the alarm stays this long: the reference's interval between checks.
ALARM_HOLD_MS = 1000
#: Fraction of the limit from which on nothing is added to the sum of durations any more (reference's value).
ADDITION_BELOW_RATIO = 0.95
#: What is added to the sum of durations below that ratio, in seconds (reference's value).
ADDITION_S = 1.0
#: Pause between sweeps. A publisher of 75 MB/s adds 15 MB meanwhile, a twentieth of a 256 MB limit. The reference
#: asks every 2.5 s; its smallest machines had as much memory as our usual test limit times ten.
SWEEP_INTERVAL_MS = 200
#: Queues asked or told in one step: about a millisecond of the loop.
QUEUES_PER_STEP = 500


class PagingQueue(Protocol):
    """A queue that can move messages out of memory (`node.queues.variable_queue`)."""

    def ram_duration_s(self, now_ms: int) -> float:
        """Seconds of its present traffic that the messages it holds in memory amount to; infinite without traffic."""

    def set_ram_duration_target(self, seconds: float) -> None:
        """From now on hold no more than this in memory; page out at once what is too much. Infinite: no limit."""


class PagingQueues(Protocol):
    """The queues of this node that can page, by id."""

    def paging_queue_ids(self) -> Sequence[QueueId]: ...

    def ram_durations_s(self, queue_ids: Sequence[QueueId], now_ms: int) -> list[float]:
        """What these queues report; those that are gone are left out."""

    def set_ram_duration_targets(self, queue_ids: Sequence[QueueId], seconds: float) -> None:
        """Tell these queues; those that are gone are passed over."""


def target_duration_s(
    used_bytes: int, limit_bytes: int, paging_ratio: float, durations_s: Sequence[float], *, is_disk_alarmed: bool
) -> float:
    """How many seconds of traffic each queue may hold in memory. See the module text."""
    if is_disk_alarmed:
        return math.inf
    if used_bytes > limit_bytes:
        return 0.0
    finite = [duration for duration in durations_s if duration != math.inf]
    ratio = used_bytes / limit_bytes if limit_bytes else 0.0
    if ratio < paging_ratio or not finite:
        return math.inf
    addition = ADDITION_S if ratio < ADDITION_BELOW_RATIO else 0.0
    return (sum(finite) + addition) / len(finite) / ratio


class MemoryMonitor:
    """The alarm. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_above_at_ms", "_limit_bytes", "_paging_ratio", "is_alarmed", "used_bytes")

    def __init__(self, limit_bytes: int, paging_ratio: float) -> None:
        self._limit_bytes = limit_bytes
        self._paging_ratio = paging_ratio
        #: When more than the limit was in use for the last time.
        self._above_at_ms: int | None = None
        self.used_bytes = 0
        self.is_alarmed = False

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    @property
    def is_paging(self) -> bool:
        """So much is in use that queues should give some of it up."""
        return self.used_bytes > self._limit_bytes or self.used_bytes >= self._paging_ratio * self._limit_bytes

    def set_limit(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._above_at_ms = None

    def measured(self, used_bytes: int, now_ms: int) -> None:
        """So much is in use at ``now_ms``."""
        self.used_bytes = used_bytes
        if used_bytes > self._limit_bytes:
            self._above_at_ms = now_ms
            self.is_alarmed = True
        elif self._above_at_ms is None or now_ms - self._above_at_ms >= ALARM_HOLD_MS:
            self.is_alarmed = False

    def target_duration_s(self, durations_s: Sequence[float], *, is_disk_alarmed: bool) -> float:
        """What queues that report these durations are told now."""
        return target_duration_s(
            self.used_bytes, self._limit_bytes, self._paging_ratio, durations_s, is_disk_alarmed=is_disk_alarmed
        )

    def check_invariants(self) -> None:
        assert self.is_alarmed or self.used_bytes <= self._limit_bytes, "what is above the limit is an alarm at once"


class PagingSweep:
    """Asks and tells the queues, a portion at a time."""

    __slots__ = ("_asked_s", "_began_ms", "_queue_ids", "_reached", "_target_s")

    def __init__(self) -> None:
        #: Queues of the sweep under way, empty between sweeps; and how many of them were asked, or told.
        self._queue_ids: Sequence[QueueId] = ()
        self._reached = 0
        #: What they reported; ``None`` while they are told.
        self._asked_s: list[float] | None = None
        self._began_ms = -SWEEP_INTERVAL_MS
        self._target_s = math.inf

    @property
    def target_s(self) -> float:
        """What queues were told last, or are being told."""
        return self._target_s

    def step(self, monitor: MemoryMonitor, queues: PagingQueues, now_ms: int, *, is_disk_alarmed: bool) -> None:
        """One portion of work, if there is any."""
        if not self._queue_ids and not self._begin(monitor, queues, now_ms, is_disk_alarmed=is_disk_alarmed):
            return
        budget = QUEUES_PER_STEP
        while budget > 0 and self._queue_ids:
            portion = self._queue_ids[self._reached : self._reached + budget]
            budget -= len(portion)
            self._reached += len(portion)
            if self._asked_s is not None:
                self._asked_s += queues.ram_durations_s(portion, now_ms)
            else:
                queues.set_ram_duration_targets(portion, self._target_s)
            if self._reached == len(self._queue_ids):
                self._end_of_pass(monitor, is_disk_alarmed=is_disk_alarmed)

    def _begin(self, monitor: MemoryMonitor, queues: PagingQueues, now_ms: int, *, is_disk_alarmed: bool) -> bool:
        is_wanted = (monitor.is_paging and not is_disk_alarmed) or self._target_s != math.inf
        if not is_wanted or now_ms - self._began_ms < SWEEP_INTERVAL_MS:
            return False
        self._began_ms = now_ms
        self._queue_ids = queues.paging_queue_ids()
        self._reached = 0
        self._asked_s = []
        if not self._queue_ids:
            self._target_s = math.inf
        return bool(self._queue_ids)

    def _end_of_pass(self, monitor: MemoryMonitor, *, is_disk_alarmed: bool) -> None:
        self._reached = 0
        if self._asked_s is None:
            self._queue_ids = ()
            return
        target_s = monitor.target_duration_s(self._asked_s, is_disk_alarmed=is_disk_alarmed)
        self._asked_s = None
        if target_s == self._target_s == math.inf:
            self._queue_ids = ()  # they know
        self._target_s = target_s

    def check_invariants(self) -> None:
        assert self._reached <= len(self._queue_ids), "nobody is asked twice in one pass"
        assert self._target_s >= 0, "a duration is not negative"
