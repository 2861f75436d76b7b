"""What each failover cost: one row for each master that a queue got.

A failover is put down to the fault that last began before it, if that one still held, or had ended a short time before
(`chaos.judge.windows.AFTERMATH_US`); an operator's order (a policy, a move) has none. All times of a row count from the
beginning of that fault, and without one from the failover.

- *detected*: until there was another master, at the earliest and at the latest.
- *publish gap*, *consume gap*: until the window ended (`chaos.judge.windows`) that the failover lies in or touches;
  nothing if there is none: service went on.
- *lost*: messages LOST or VANISHED that were confirmed before this failover, and behind the one before. Whoever was
  promoted did not have them.
- *repeats*: deliveries of messages that had been delivered before, from the earliest moment at which this failover may
  have been to that of the next one.
- *at risk*: what was at risk when the fault began.
- *caught up*: until the last mirror had everything again, before the next failover; None if none did, or none had to.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.judge.windows import BUCKET_US, Bucket, Service, Span, Window


class Failover(NamedTuple):
    """A `PROMOTED` of the record."""

    queue: int
    epoch: int
    #: The new master.
    node: int
    t_lo_us: int
    t_hi_us: int


@dataclass(frozen=True, slots=True)
class FaultTime:
    """A fault of the record; ``end_us`` None: it held to the end."""

    number: int
    begin_us: int
    end_us: int | None
    at_risk: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One failover, see the module. Microseconds."""

    failover: Failover
    fault: int | None
    detected_us: tuple[int, int]
    publish_gap_us: int
    consume_gap_us: int
    lost: int
    repeats: int
    at_risk: Mapping[str, int]
    caught_up_us: int | None


def ledger(
    failovers: Iterable[Failover],
    faults: Sequence[FaultTime],
    windows: Sequence[Window],
    buckets: Mapping[int, Sequence[Bucket]],
    synchronised_us: Mapping[int, Sequence[int]],
) -> list[Row]:
    """Rows by queue and time.

    By queue, each ascending: ``buckets``, and ``synchronised_us``, when a mirror had everything (`SYNC_END`).
    """
    by_queue: dict[int, list[Failover]] = defaultdict(list)
    for failover in failovers:
        by_queue[failover.queue].append(failover)
    rows = []
    for queue, found in sorted(by_queue.items()):
        found.sort(key=lambda each: (each.t_hi_us, each.epoch))
        lost = _Counted((each.begin_us, each.lost) for each in buckets.get(queue, ()))
        repeats = _Counted((each.begin_us, each.repeats) for each in buckets.get(queue, ()))
        # Several may lie in one interval, between two looks: the later ones have what came since.
        for place, failover in enumerate(found):
            before_us = found[place - 1].t_hi_us if place else None
            following = found[place + 1] if place + 1 < len(found) else None
            next_us = following.t_hi_us if following is not None else None
            fault = _fault_of(failover, faults)
            begin_us = fault.begin_us if fault is not None else failover.t_lo_us
            last_us = _last(synchronised_us.get(queue, ()), failover.t_hi_us, next_us)
            rows.append(
                Row(
                    failover,
                    fault.number if fault is not None else None,
                    (max(failover.t_lo_us - begin_us, 0), failover.t_hi_us - begin_us),
                    _gap_us(failover, begin_us, windows, Service.PUBLISH),
                    _gap_us(failover, begin_us, windows, Service.CONSUME),
                    lost.between(before_us, failover.t_hi_us),
                    repeats.between(failover.t_lo_us, following.t_lo_us if following is not None else None),
                    dict(fault.at_risk) if fault is not None else {},
                    None if last_us is None else last_us - begin_us,
                )
            )
    return rows


class _Counted:
    """How much there was up to which moment."""

    def __init__(self, counts: Iterable[tuple[int, int]]) -> None:
        """By time."""
        found = [(at_us, count) for at_us, count in counts if count]
        self._moments_us = [at_us for at_us, _ in found]
        self._sums = [0, *itertools.accumulate(count for _, count in found)]

    def between(self, after_us: int | None, until_us: int | None) -> int:
        """What lies behind the one, and not behind the other."""
        first = 0 if after_us is None else bisect_right(self._moments_us, after_us)
        last = len(self._moments_us) if until_us is None else bisect_right(self._moments_us, until_us)
        return max(self._sums[last] - self._sums[first], 0)


def _fault_of(failover: Failover, faults: Sequence[FaultTime]) -> FaultTime | None:
    possible = [
        fault
        for fault in faults
        if Span(fault.begin_us, fault.end_us).may_have_caused(failover.t_lo_us, failover.t_hi_us)
    ]
    return max(possible, key=lambda fault: fault.begin_us, default=None)


def _gap_us(failover: Failover, begin_us: int, windows: Sequence[Window], service: Service) -> int:
    """Windows have borders of buckets, so one that touches it may lie a bucket beside it."""
    touching = [
        window.end_us
        for window in windows
        if (window.service, window.queue) == (service, failover.queue)
        and window.begin_us <= failover.t_hi_us + BUCKET_US
        and min(begin_us, failover.t_lo_us) <= window.end_us + BUCKET_US
    ]
    return max(max(touching, default=begin_us) - begin_us, 0)


def _last(moments_us: Sequence[int], after_us: int, before_us: int | None) -> int | None:
    """The last behind the one and before the other."""
    end = len(moments_us) if before_us is None else bisect_left(moments_us, before_us)
    return moments_us[end - 1] if end and moments_us[end - 1] > after_us else None
