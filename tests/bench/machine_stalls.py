"""Moments in which the machine itself stood still: a processor ran nothing, however urgent.

A measurement of pauses must know them, for a virtual machine may be taken off its processors for tens of milliseconds,
of all or of one. One process per processor sleeps a millisecond at a time, with real-time priority if it may have it,
and notes when it woke late. What all of them missed at the same time was nobody's work here. What one of them missed
may be the kernel at work for the process that is measured, but not for long: beside a process that wrote and cut 16 MiB
with one call, which took up to 60 ms, they woke at most 8 ms late. So only longer stalls of one processor count.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

#: Shorter ones are not noted.
STALL_S = 0.0005
#: Shorter ones of a single processor may be the kernel at work.
LONE_STALL_S = 0.010
_NAP_S = 0.001
_PRIORITY = 50

Interval = tuple[float, float]


class MachineStalls:
    """Watches while it is open; `seconds_within` may be asked afterwards."""

    def __init__(self) -> None:
        self._processors = sorted(os.sched_getaffinity(0))
        self._watchers: list[subprocess.Popen[bytes]] = []
        #: Times of `time.monotonic` between which no processor ran.
        self._common: list[Interval] = []
        #: And between which this one did not, if for long.
        self._lone: dict[int, list[Interval]] = {}
        self.worst_s = 0.0

    def __enter__(self) -> MachineStalls:
        for processor in self._processors:
            command = [sys.executable, str(Path(__file__).resolve()), str(processor)]
            self._watchers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = [[tuple(pair) for pair in json.loads(watcher.communicate()[0] or b"[]")] for watcher in self._watchers]
        self._common = found[0]
        for others in found[1:]:
            self._common = common(self._common, others)
        for processor, stalls in zip(self._processors, found, strict=True):
            self._lone[processor] = [(start, end) for start, end in stalls if end - start >= LONE_STALL_S]
        every = [stall for stalls in (self._common, *self._lone.values()) for stall in stalls]
        self.worst_s = max([end - start for start, end in every], default=0.0)

    def seconds_within(self, start: float, end: float, processor: int | None) -> float:
        """How much of the time between two moments a thread on this processor could not run. ``None``: it is not known
        where it was."""
        lone = self._lone.get(processor, []) if processor is not None else []
        within = common(self._common, [(start, end)]) + common(lone, [(start, end)])
        seconds, until = 0.0, start
        for left, right in sorted(within):
            seconds += max(0.0, right - max(left, until))
            until = max(until, right)
        return seconds


#: The processor on which the calling thread is right now.
current_processor = ctypes.CDLL(None).sched_getcpu


def common(some: list[Interval], others: list[Interval]) -> list[Interval]:
    """Where intervals of both lists overlap."""
    found = [(max(a, c), min(b, d)) for a, b in some for c, d in others]
    return sorted([(start, end) for start, end in found if start < end])


def watch(processor: int) -> None:
    """Until the standard input ends; then print the stalls."""
    os.sched_setaffinity(0, {processor})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    stalls: list[Interval] = []
    while True:
        started = time.monotonic()
        if select.select([sys.stdin], [], [], _NAP_S)[0]:
            break
        woken = time.monotonic()
        if woken - started > _NAP_S + STALL_S:
            stalls.append((started + _NAP_S, woken))
    print(json.dumps(stalls))


if __name__ == "__main__":
    watch(int(sys.argv[1]))
