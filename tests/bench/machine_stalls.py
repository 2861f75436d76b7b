"""Moments in which the machine itself stood still: no processor ran anything, however urgent.

A measurement of pauses must know them, for a virtual machine may be taken off its processors for tens of milliseconds.
One process per processor sleeps a millisecond at a time, with real-time priority if it may have it, and notes when it
woke late. What all of them missed at the same time was nobody's work here. (A stall of one processor alone does not
count: there the kernel may have worked for the process that is measured.)
"""

from __future__ import annotations

import contextlib
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
_NAP_S = 0.001
_PRIORITY = 50

Interval = tuple[float, float]


class MachineStalls:
    """Watches while it is open; `seconds_within` may be asked afterwards."""

    def __init__(self) -> None:
        self._watchers: list[subprocess.Popen[bytes]] = []
        #: Times of `time.monotonic` between which no processor ran.
        self._stalls: list[Interval] = []
        self.worst_s = 0.0

    def __enter__(self) -> MachineStalls:
        for processor in sorted(os.sched_getaffinity(0)):
            command = [sys.executable, str(Path(__file__).resolve()), str(processor)]
            self._watchers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = [[tuple(pair) for pair in json.loads(watcher.communicate()[0] or b"[]")] for watcher in self._watchers]
        stalls = found[0]
        for others in found[1:]:
            stalls = common(stalls, others)
        self._stalls = stalls
        self.worst_s = max([end - start for start, end in stalls], default=0.0)

    def seconds_within(self, start: float, end: float) -> float:
        """How much of the time between two moments the machine stood still."""
        return sum([right - left for left, right in common(self._stalls, [(start, end)])])


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
