"""Moments in which the machine itself stood still or was slow, whatever the program did that is measured.

A measurement of pauses must know them. A virtual machine may be taken off its processors for tens of milliseconds, of
all or of one. And while it gives memory back to its host (or takes it again, page by page), the simplest code may take
a hundred times as long. One process per processor, with real-time priority, sleeps a millisecond at a time and then
does the same small piece of work. (Without the right to that priority nothing is excused: the measured process might
have been in the way.)

**Stalls**: it woke late. What all of them missed at the same time was nobody's work here. What one of them missed may
be the kernel at work for the process that is measured, but not for long: beside a process that wrote and cut 16 MiB
with one call, which took up to 60 ms, they woke at most 8 ms late. So only longer stalls of one processor count.

**Slowness**: how long the pieces of work took that fall into a pause, as a multiple of what they usually take; medians
of both, for single pieces meet an interrupt. They touch little memory, but other pages each time, as a program does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import statistics
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import TracebackType

#: Shorter ones are not noted.
STALL_S = 0.0005
#: Shorter ones of a single processor may be the kernel at work.
LONE_STALL_S = 0.010
_NAP_S = 0.001
_PRIORITY = 50
#: What a piece of work touches: so many pages of so many.
_TOUCHED, _PAGES, _PAGE_BYTES = 16, 4096, 4096

Interval = tuple[float, float]


class MachineStalls:
    """Watches while it is open; the rest may be asked afterwards. Times are of `time.monotonic`."""

    def __init__(self) -> None:
        self._processors = sorted(os.sched_getaffinity(0))
        self._watchers: list[subprocess.Popen[bytes]] = []
        #: When no processor ran.
        self._common: list[Interval] = []
        #: When this one did not, if for long.
        self._lone: dict[int, list[Interval]] = {}
        self.worst_s = 0.0
        #: When a piece of work began and ended, and how many times the median of its processor it took.
        self._works: list[tuple[float, float, float]] = []
        self.have_priority = False

    def __enter__(self) -> MachineStalls:
        for processor in self._processors:
            command = [sys.executable, str(Path(__file__).resolve()), str(processor)]
            self._watchers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reports = [json.loads(watcher.communicate()[0] or b"{}") for watcher in self._watchers]
        self.have_priority = all(report.get("has_priority") for report in reports)
        if not self.have_priority:
            return
        every: list[list[Interval]] = []
        for processor, report in zip(self._processors, reports, strict=True):
            stalls = [(start, end) for start, end in report["stalls"]]
            every.append(stalls)
            self._lone[processor] = [(start, end) for start, end in stalls if end - start >= LONE_STALL_S]
            usual_s = statistics.median([seconds for _, seconds in report["works"]] or [1.0])
            self._works += [(began, began + seconds, seconds / usual_s) for began, seconds in report["works"]]
        self._common = every[0]
        for others in every[1:]:
            self._common = common(self._common, others)
        counted = [stall for stalls in (self._common, *self._lone.values()) for stall in stalls]
        self.worst_s = max([end - start for start, end in counted], default=0.0)

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

    def slowness_within(self, start: float, end: float) -> float:
        """How many times as long as usual the pieces of work took that were under way between two moments; 1 if there
        was none."""
        within = [times for began, ended, times in self._works if began < end and ended > start]
        return statistics.median(within or [1.0])


#: The processor on which the calling thread is right now.
current_processor = ctypes.CDLL(None).sched_getcpu


def common(some: list[Interval], others: list[Interval]) -> list[Interval]:
    """Where intervals of both lists overlap."""
    found = []
    left, right = sorted(some), sorted(others)
    while left and right:
        start, end = max(left[0][0], right[0][0]), min(left[0][1], right[0][1])
        if start < end:
            found.append((start, end))
        (left if left[0][1] <= right[0][1] else right).pop(0)
    return found


def watch(processor: int) -> None:
    """Until the standard input ends; then print what was seen."""
    os.sched_setaffinity(0, {processor})
    has_priority = False
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        has_priority = True
    stalls: list[Interval] = []
    began, took = array("d"), array("d")
    memory = bytearray(b"\1") * (_PAGES * _PAGE_BYTES)
    page = 0
    while True:
        started = time.monotonic()
        if select.select([sys.stdin], [], [], _NAP_S)[0]:
            break
        woken = time.monotonic()
        if woken - started > _NAP_S + STALL_S:
            stalls.append((started + _NAP_S, woken))
        total = 0
        for _ in range(_TOUCHED):
            # A step that has no divisor in common with the number of pages comes to each of them.
            page = (page + 1021) % _PAGES
            total += memory[page * _PAGE_BYTES]
        began.append(woken)
        took.append(time.monotonic() - woken)
    works = list(zip(began, took, strict=True))
    print(json.dumps({"has_priority": has_priority, "stalls": stalls, "works": works}))


if __name__ == "__main__":
    watch(int(sys.argv[1]))
