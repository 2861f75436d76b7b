"""The time line of a run as one inline SVG: confirms and deliveries a second, faults shaded, promotions marked."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 1080
HEIGHT = 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 66, 34
#: Grid lines at most, on each axis.
_MAX_TICKS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """Linear map of [low, high] to pixels."""

    low: float
    high: float
    first_px: float
    last_px: float

    def px(self, value: float) -> float:
        """Pixel of a value, kept inside the drawing."""
        share = (value - self.low) / (self.high - self.low)
        return self.first_px + (self.last_px - self.first_px) * min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round numbers between low and high, `_MAX_TICKS` at most."""
        span = self.high - self.low
        step = next(
            base * 10.0**power
            for power in range(-3, 13)
            for base in (1, 2, 5)
            if span / (base * 10.0**power) <= _MAX_TICKS
        )
        first = int(self.low // step) + (self.low % step > 0)
        return [number * step for number in range(first, int(self.high // step) + 1)]


def render_timeline(
    rates: Sequence[Mapping[str, Any]], control_events: Sequence[Mapping[str, Any]], bucket_us: int
) -> str:
    """The drawing; an explanation instead when there is nothing to draw."""
    if not rates:
        return "<p>No confirm and no delivery was recorded.</p>"
    begin_us = min(rates[0]["bucket_us"], min((event["t_lo_us"] for event in control_events), default=2**62))
    end_us = max(rates[-1]["bucket_us"] + bucket_us, max((event["t_hi_us"] for event in control_events), default=0))
    time_axis = Axis(0.0, (end_us - begin_us) / 1e6, _LEFT, WIDTH - _RIGHT)
    per_second = 1e6 / bucket_us
    peak = max(max(row["confirms"], row["deliveries"]) for row in rates) * per_second
    rate_axis = Axis(0.0, peak * 1.05 or 1.0, HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="confirms and deliveries per second over time">',
        *_faults(control_events, begin_us, time_axis),
        *_grid(time_axis, rate_axis),
        _curve(rates, "deliveries", "deliveries", (begin_us, bucket_us), (time_axis, rate_axis)),
        _curve(rates, "confirms", "confirms", (begin_us, bucket_us), (time_axis, rate_axis)),
        *_promotions(control_events, begin_us, time_axis),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts)


def _grid(time_axis: Axis, rate_axis: Axis) -> list[str]:
    parts = []
    for second in time_axis.ticks():
        x = time_axis.px(second)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{second:g} s</text>')
    for rate in rate_axis.ticks():
        y = rate_axis.px(rate)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:,.0f}/s</text>')
    return parts


def _curve(
    rates: Sequence[Mapping[str, Any]], column: str, css: str, origin: tuple[int, int], axes: tuple[Axis, Axis]
) -> str:
    """One line; buckets in which nothing happened are not in ``rates`` and are drawn as zero."""
    begin_us, bucket_us = origin
    time_axis, rate_axis = axes
    by_bucket = {int(row["bucket_us"]): row[column] for row in rates}
    points = []
    for bucket in range(min(by_bucket), max(by_bucket) + bucket_us, bucket_us):
        x = time_axis.px((bucket + bucket_us / 2 - begin_us) / 1e6)
        y = rate_axis.px(by_bucket.get(bucket, 0) * 1e6 / bucket_us)
        points.append(f"{x:.1f},{y:.1f}")
    return f'<polyline class="{css}" points="{" ".join(points)}"/>'


def _faults(control_events: Sequence[Mapping[str, Any]], begin_us: int, time_axis: Axis) -> list[str]:
    ends = {event["fault_id"]: event["t_hi_us"] for event in control_events if event["kind"] == "FAULT_END"}
    parts = []
    for event in control_events:
        if event["kind"] != "FAULT_BEGIN":
            continue
        first = time_axis.px((event["t_lo_us"] - begin_us) / 1e6)
        end_us = ends.get(event["fault_id"])
        last = time_axis.last_px if end_us is None else time_axis.px((end_us - begin_us) / 1e6)
        fault = json.loads(event["detail"])
        label = html.escape(f"{fault['type']} {fault['node']}")
        parts.append(
            f'<rect class="fault" x="{first:.1f}" y="{_TOP - 22}" width="{max(last - first, 2):.1f}" '
            f'height="{HEIGHT - _BOTTOM - _TOP + 22}"><title>{label}</title></rect>'
        )
        parts.append(f'<text class="fault-label" x="{first + 10:.1f}" y="{_TOP - 8}">{label}</text>')
    return parts


def _promotions(control_events: Sequence[Mapping[str, Any]], begin_us: int, time_axis: Axis) -> list[str]:
    parts = []
    for event in control_events:
        if event["kind"] != "PROMOTE":
            continue
        x = time_axis.px((event["t_hi_us"] - begin_us) / 1e6)
        name = html.escape(str(json.loads(event["detail"])["new_master"]))
        parts.append(f'<line class="promotion" x1="{x:.1f}" y1="{_TOP - 34}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="promotion-label" x="{x + 4:.1f}" y="{_TOP - 28}">{name} promoted</text>')
    return parts


def _legend() -> list[str]:
    entries = (("confirms", "confirms"), ("deliveries", "deliveries"), ("promotion", "promotion"))
    parts = []
    for number, (css, text) in enumerate(entries):
        x = _LEFT + 120 * number
        parts.append(f'<line class="{css}" x1="{x}" y1="14" x2="{x + 24}" y2="14"/>')
        parts.append(f'<text class="axis" x="{x + 30}" y="18">{text}</text>')
    x = _LEFT + 120 * len(entries)
    parts.append(f'<rect class="fault" x="{x}" y="8" width="24" height="12"/>')
    parts.append(f'<text class="axis" x="{x + 30}" y="18">node down</text>')
    return parts
