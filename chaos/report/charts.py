"""The pictures of the page: curves over the time of the run, and lanes of what was done to it.

All of them have the same axis of time, and a view box of `WIDTH`; how high one is follows from what is on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chaos.report.drawing import Bar, Scale, bars, count, curve, duration, round_up, rows_of
from chaos.report.model import Depth, Lane, Mark, Moment, Report

WIDTH = 1000.0
#: Room for the numbers of an axis.
LEFT, RIGHT = 86.0, 24.0
CURVE_HEIGHT = 150.0
ROW_HEIGHT, LANE_GAP = 16.0, 8.0
_TOP, _BOTTOM = 10.0, 20.0
#: The lowest latency that is drawn.
_LOWEST_US = 100.0
_TIME_TICKS = 8
_VALUE_TICKS = 4


@dataclass(frozen=True, slots=True)
class Tick:
    """A number at an axis, and where."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A curve, by the class of its style."""

    style: str
    label: str
    path: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over time."""

    title: str
    height: float
    lines: Sequence[Line]
    ticks: Sequence[Tick]
    times: Sequence[Tick]
    #: Faults behind the curves: where each begins, and how wide it is.
    shades: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class DrawnLane:
    """One lane of marks."""

    lane: Lane
    top: float
    height: float
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes that have something on them."""

    height: float
    lanes: Sequence[DrawnLane]
    times: Sequence[Tick]


class Charts:
    """Of one report."""

    def __init__(self, report: Report) -> None:
        moments = [moment.at_us for moment in report.moments]
        marked = [at for mark in report.marks for at in (mark.begin_us, mark.end_us)]
        # How long a cluster takes to begin is told elsewhere.
        begin = min(moments or marked, default=0)
        end = max([*moments, *marked], default=0)
        self._report = report
        self._begin_us = begin
        self._across = Scale(begin, max(end, begin + 1_000_000), LEFT, WIDTH - RIGHT)
        step_us = min((later - earlier for earlier, later in itertools.pairwise(moments)), default=1_000_000)
        self._per_second = 1_000_000 / step_us

    def _times(self) -> list[Tick]:
        length = Scale(0, self._across.high - self._across.low, LEFT, WIDTH - RIGHT)
        seconds = Scale(0, length.high / 1e6, LEFT, WIDTH - RIGHT)
        return [Tick(seconds.place(at), f"{at:g} s") for at in seconds.ticks(_TIME_TICKS)]

    def _shades(self) -> list[tuple[float, float]]:
        faults = [mark for mark in self._report.marks if mark.lane is Lane.FAULTS]
        return [
            (bar.x, bar.width)
            for bar in bars(((mark.begin_us, mark.end_us, mark.text) for mark in faults), self._across)
        ]

    def _chart(
        self, title: str, up: Scale, series: Sequence[tuple[str, str, Sequence[tuple[float, float | None]]]],
        written: Callable[[float], str],
    ) -> Chart:  # fmt: skip
        lines = [Line(style, label, curve(points, self._across, up)) for style, label, points in series]
        ticks = [Tick(up.place(value), written(value)) for value in up.ticks(_VALUE_TICKS)]
        return Chart(title, CURVE_HEIGHT + _TOP + _BOTTOM, lines, ticks, self._times(), self._shades())

    def rates(self) -> Chart:
        """Confirms, deliveries and repeats a second."""
        moments, scaled = self._report.moments, self._per_second
        highest = max((max(each.confirms, each.deliveries) for each in moments), default=0) * scaled
        up = Scale(0, round_up(highest), CURVE_HEIGHT + _TOP, _TOP)
        kinds: Mapping[str, Callable[[Moment], int]] = {
            "confirms": lambda each: each.confirms,
            "deliveries": lambda each: each.deliveries,
            "repeats": lambda each: each.repeats,
        }
        series = [(name, name, [(each.at_us, of(each) * scaled) for each in moments]) for name, of in kinds.items()]
        return self._chart("Messages a second", up, series, count)

    def latencies(self) -> Chart:
        """From the intended time of a publish to its confirm."""
        moments = self._report.moments
        highest = max((each.longest_us or 0 for each in moments), default=0)
        up = Scale(_LOWEST_US, max(10 * _LOWEST_US, highest), CURVE_HEIGHT + _TOP, _TOP, is_log=True)
        kinds: Mapping[str, tuple[str, Callable[[Moment], int | None]]] = {
            "median": ("half of them within", lambda each: each.median_us),
            "p99": ("99 of 100 within", lambda each: each.p99_us),
            "longest": ("longest", lambda each: each.longest_us),
        }
        series = [(style, label, [(each.at_us, of(each)) for each in moments]) for style, (label, of) in kinds.items()]
        return self._chart("Time to a confirm", up, series, duration)

    def depths(self) -> Chart:
        """Lengths of queues."""
        depths: Mapping[str, Sequence[Depth]] = self._report.depths
        highest = max((each.messages for found in depths.values() for each in found), default=0)
        up = Scale(0, round_up(highest), CURVE_HEIGHT + _TOP, _TOP)
        series = [
            (f"queue{number % 6}", name, [(each.at_us, float(each.messages)) for each in found])
            for number, (name, found) in enumerate(sorted(depths.items()))
        ]
        return self._chart("Messages in queues", up, series, count)

    def lanes(self) -> Lanes:
        """What was done, and what became of it."""
        top, drawn = _TOP, []
        for lane in Lane:
            marks: list[Mark] = [
                mark for mark in self._report.marks if mark.lane is lane and mark.end_us >= self._begin_us
            ]
            if not marks:
                continue
            found = list(bars(((mark.begin_us, mark.end_us, mark.text) for mark in marks), self._across))
            height = rows_of(found) * ROW_HEIGHT
            drawn.append(DrawnLane(lane, top, height, found))
            top += height + LANE_GAP
        return Lanes(top + _BOTTOM, drawn, self._times())
