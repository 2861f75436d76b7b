"""Where lines, bars and numbers are on a picture: pure geometry, in the units of its own view box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, log10

#: Steps between ticks, times a power of ten.
_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places. ``is_log``: equal factors are equally far; values below ``low`` are at ``low``."""

    low: float
    high: float
    #: Where ``low`` and ``high`` are.
    first: float
    last: float
    is_log: bool = False

    def __post_init__(self) -> None:
        assert self.low < self.high, "a scale has a length"
        assert self.low > 0 or not self.is_log, "there is no logarithm of nothing"

    def place(self, value: float) -> float:
        """Rounded to tenths; a value beyond an end is at that end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def ticks(self, count: int) -> list[float]:
        """About so many round values, ascending; of a logarithmic scale powers of ten."""
        if self.is_log:
            return [10.0**power for power in range(ceil(log10(self.low)), floor(log10(self.high)) + 1)]
        rough = (self.high - self.low) / max(count, 1)
        power = 10.0 ** floor(log10(rough))
        step = next(each * power for each in _STEPS if each * power >= rough)
        first = ceil(self.low / step - 1e-9)
        return [round(number * step, 10) for number in range(first, floor(self.high / step + 1e-9) + 1)]


def curve(points: Iterable[tuple[float, float | None]], across: Scale, up: Scale) -> str:
    """The ``d`` of a path through all points; where there is no value the line is broken."""
    parts: list[str] = []
    for is_there, run in groupby(points, key=lambda point: point[1] is not None):
        if is_there:
            places = [f"{across.place(x):g} {up.place(y):g}" for x, y in run if y is not None]
            parts.append("M" + " L".join(places))
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """A time on a lane."""

    x: float
    width: float
    row: int
    text: str


#: So that a moment can be seen.
BAR_WIDTH_MIN = 2.0


def bars(spans: Iterable[tuple[float, float, str]], across: Scale, gap: float = 2.0) -> Iterator[Bar]:
    """Each span in the first row in which it has room beside those before it."""
    ends: list[float] = []
    for begin, end, text in sorted(spans):
        x = across.place(begin)
        width = round(max(across.place(end) - x, BAR_WIDTH_MIN), 1)
        row = next((row for row, taken in enumerate(ends) if taken + gap <= x), len(ends))
        if row == len(ends):
            ends.append(0.0)
        ends[row] = x + width
        yield Bar(x, width, row, text)


def rows_of(drawn: Sequence[Bar]) -> int:
    """How many rows they take."""
    return max((bar.row + 1 for bar in drawn), default=0)


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not less; 1 for what is less."""
    if value <= 1:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(each * power for each in _STEPS if each * power >= value - 1e-9 * power)


def duration(value_us: float) -> str:
    """As people read it: "0", "850 us", "12 ms", "3.4 s", "2 min 5 s"."""
    if value_us == 0:
        return "0"
    if value_us < 1_000:
        return f"{value_us:.0f} us"
    if value_us < 999_500:
        return f"{value_us / 1e3:.0f} ms"
    seconds = value_us / 1e6
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def count(value: float) -> str:
    """As people read it: "950", "12 k", "3.4 M"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:g}"
