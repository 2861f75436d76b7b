"""A lane diagram as one HTML file: inline SVG, no script, nothing loaded from anywhere.

The drawing is cut into strips, each with the names of the lanes at its top: what is read on a screen keeps its heading,
and a printer has places to cut. Every mark has the lines of the log that it stands for as its title, which a browser
shows under the pointer, and leads to them in the log at the end of the page, for those who cannot point.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from chaos.history import Kind
from chaos.sim.happenings import DOWN, message_text
from chaos.sim.lane_style import STYLE as REPORT_STYLE
from chaos.sim.lanes import Layout, Mark, Row, Span

ROWS_PER_STRIP = 56
ROW_PX = 17
HEAD_PX = 26
TIME_PX = 76
LANE_PX = 148
#: Of a column of spans; those beside all lanes are wider.
COLUMN_PX = 7
LINK_PX = 16
#: Letters of a label that fit in a lane.
LABEL_LETTERS = 23
#: Lines in a title at most.
TITLE_LINES = 12

STYLE = """
body { max-width: none; } .strip { break-inside: avoid; margin: 0 0 1.2rem; overflow-x: auto; }
.strip svg { max-width: none; display: block; } .strip svg text { font-size: 10.5px; }
svg a { text-decoration: none; } svg text.label { fill: var(--ink); }
svg text.head { font-weight: 700; fill: var(--ink); }
svg text.time, svg text.gap { fill: var(--muted); font-variant-numeric: tabular-nums; } .lane { stroke: var(--line); }
.span { fill: var(--fault); opacity: .4; } .span.down { opacity: .1; } .dot { fill: var(--muted); }
.dot.step, .dot.phase { fill: var(--ink); } .dot.fault, .dot.error, .dot.violation { fill: var(--bad); }
.dot.record { fill: var(--odd); } .dot.warning { fill: var(--odd); opacity: .7; } .dot.confirm { fill: var(--confirm); }
.dot.deliver { fill: var(--deliver); } .concerned { fill: var(--bad); opacity: .14; }
svg text.violation { fill: var(--bad); font-weight: 700; }
.path { fill: none; stroke: var(--bad); stroke-width: 1.4; stroke-dasharray: 5 3; }
ol.log { font: 12px/1.45 ui-monospace, monospace; padding-left: 4.5rem; } ol.log li:target { background: var(--soft); }
ol.log .violation { color: var(--bad); font-weight: 700; } ol.log .step { font-weight: 600; }
@media print { @page { size: landscape; margin: 10mm; } body { margin: 0; font-size: 11px; }
  .strip { overflow: visible; } .strip svg { width: 100%; height: auto; } ol.log { font-size: 8px; } }
"""

#: Kinds that share a colour; others have that of their own name.
_COLOURS: Mapping[str, str] = {
    Kind.CONFIRM: "confirm",
    Kind.PUB_INVOKE: "confirm",
    Kind.DELIVER: "deliver",
    Kind.ACK_SENT: "deliver",
    Kind.NACK: "warning",
    Kind.RETURN: "warning",
    Kind.PUB_UNKNOWN: "warning",
    Kind.NACK_SENT: "warning",
    Kind.CONN_LOST: "warning",
}
#: What a mark of so many says.
_COUNTED: Mapping[str, str] = {
    "log": "lines",
    "warning": "warnings",
    Kind.PUB_INVOKE: "published",
    Kind.CONFIRM: "confirmed",
    Kind.NACK: "refused",
    Kind.RETURN: "returned",
    Kind.PUB_UNKNOWN: "unanswered",
    Kind.DELIVER: "delivered",
    Kind.ACK_SENT: "acked",
    Kind.NACK_SENT: "given back",
    Kind.DROP: "dropped",
    Kind.PURGE: "purged",
}


def render_lanes(
    layout: Layout, *, title: str, violations: Sequence[str], replay: str, facts: Mapping[str, object] | None = None
) -> str:
    """The page. ``replay``: the command that shows the same run again; ``facts``: what else to say of it."""
    numbers = {id(each): number for number, each in enumerate(layout.log, 1)}
    strips = [
        _strip(layout, layout.rows[begin : begin + ROWS_PER_STRIP], numbers)
        for begin in range(0, len(layout.rows), ROWS_PER_STRIP)
    ]
    found = "".join(f"<li>{html.escape(violation)}</li>" for violation in violations)
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in (facts or {}).items()
    )
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f'<div class="verdict {"bad" if violations else "good"}">'
        + (f"{len(violations)} broken promises" if violations else "every promise was kept")
        + f"</div><ul>{found}</ul>",
        f'<p class="muted">again: <code>{html.escape(replay)}</code></p>',
        f'<div class="wide"><table>{rows}</table></div>' if rows else "",
        "<h2>Lanes</h2>",
        '<p class="muted">Time runs downwards; each row is a moment, and long pauses between two are told. Point at a '
        "mark to read its lines of the log. Shaded: what a fault lasts; links are at the right.</p>",
        *strips,
        "<h2>Log</h2>",
        _log(layout),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{REPORT_STYLE}\n.strip svg {{ width: {_width_px(layout)}px; }}{STYLE}</style></head>\n<body>"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def _log(layout: Layout) -> str:
    lines = [
        f'<li id="l{number}" class="{html.escape(each.kind)}">{html.escape(each.line)}</li>'
        for number, each in enumerate(layout.log, 1)
    ]
    return f'<ol class="log">{"".join(lines)}</ol>'


# --- one strip ---


def _width_px(layout: Layout) -> int:
    columns = max((span.column + 1 for span in layout.spans if not span.lane), default=0)
    return TIME_PX + LANE_PX * len(layout.lanes) + LINK_PX * columns + 8


def _strip(layout: Layout, rows: Sequence[Row], numbers: Mapping[int, int]) -> str:
    first, last = rows[0].number, rows[-1].number
    width = _width_px(layout)
    height = HEAD_PX + ROW_PX * len(rows) + 6
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="rows {first + 1} to {last + 1}">'
    ]
    parts += _heads(layout.lanes, height)
    parts += [_span(layout, span, first, last) for span in layout.spans if _is_in(span, first, last)]
    parts += _times(rows, width)
    for path in layout.paths.values():
        parts += _path(layout, path, first, last)
    parts += [_mark(layout, mark, first, numbers) for mark in layout.marks if first <= mark.row <= last]
    return '<div class="strip">' + "\n".join([*parts, "</svg>"]) + "</div>"


def _heads(lanes: Sequence[str], height: int) -> list[str]:
    parts = []
    for number, lane in enumerate(lanes):
        x = _lane_px(number)
        parts.append(f'<text class="head" x="{x}" y="14">{html.escape(lane)}</text>')
        parts.append(f'<line class="lane" x1="{x}" y1="{HEAD_PX - 6}" x2="{x}" y2="{height}"/>')
    return parts


def _times(rows: Sequence[Row], width: int) -> list[str]:
    parts = []
    first = rows[0].number
    for row in rows:
        y = _row_px(row.number, first)
        if row.gap_us:
            parts.append(f'<line class="grid" x1="0" y1="{y - 12}" x2="{width}" y2="{y - 12}"/>')
            parts.append(
                f'<text class="gap" x="{width - 4}" y="{y - 3}" text-anchor="end">{row.gap_us / 1e6:.1f} s later</text>'
            )
        parts.append(f'<text class="time" x="{TIME_PX - 16}" y="{y}" text-anchor="end">{row.begin_us / 1e6:.4f}</text>')
    return parts


def _span(layout: Layout, span: Span, first: int, last: int) -> str:
    top = max(span.first_row, first)
    bottom = min(span.last_row, last)
    y = HEAD_PX + ROW_PX * (top - first)
    height = ROW_PX * (bottom - top + 1)
    if span.lane in layout.lanes:
        x, width = _lane_px(layout.lanes.index(span.lane)) + COLUMN_PX * span.column, COLUMN_PX - 1
        if span.name == DOWN:
            x, width = x - 3, LANE_PX - 8
    else:
        x, width = TIME_PX + LANE_PX * len(layout.lanes) + LINK_PX * span.column, LINK_PX - 3
    css = "span down" if span.name == DOWN else "span"
    text = html.escape(f"{span.name}\n{span.line}")
    label = ""
    if span.lane not in layout.lanes:
        turned = f'transform="rotate(90 {x + 3} {y + 4})"'
        label = f'<text class="label" x="{x + 3}" y="{y + 4}" {turned}>{html.escape(span.name)}</text>'
    return f'<g><title>{text}</title><rect class="{css}" x="{x}" y="{y}" width="{width}" height="{height}"/>{label}</g>'


def _is_in(span: Span, first: int, last: int) -> bool:
    return span.first_row <= last and span.last_row >= first


def _mark(layout: Layout, mark: Mark, first: int, numbers: Mapping[int, int]) -> str:
    x, y = _lane_px(layout.lanes.index(mark.lane)), _row_px(mark.row, first)
    colour = _COLOURS.get(mark.kind, mark.kind)
    shown = [each.line for each in mark.happenings[:TITLE_LINES]]
    left = len(mark.happenings) - len(shown)
    title = html.escape("\n".join([*shown, *([f"... and {left} more"] if left else [])]))
    behind = (
        f'<rect class="concerned" x="{x - 5}" y="{y - 12}" width="{LANE_PX - 6}" height="{ROW_PX - 1}" rx="3"/>'
        if mark.is_concerned
        else ""
    )
    css = html.escape(colour)
    return (
        f'<a href="#l{numbers[id(mark.happenings[0])]}"><g><title>{title}</title>{behind}'
        f'<circle class="dot {css}" cx="{x}" cy="{y - 4}" r="{4 if mark.is_concerned else 3}"/>'
        f'<text class="label {css}" x="{x + 8}" y="{y}">{html.escape(label_of(mark))}</text></g></a>'
    )


def _path(layout: Layout, marks: Sequence[Mark], first: int, last: int) -> Iterable[str]:
    """From each mark of a message to the next, as far as both are in this strip."""
    for one, other in pairwise(marks):
        if first <= one.row <= last and first <= other.row <= last:
            ends = [(_lane_px(layout.lanes.index(each.lane)), _row_px(each.row, first) - 4) for each in (one, other)]
            yield f'<polyline class="path" points="{" ".join(f"{x},{y}" for x, y in ends)}"/>'


def _lane_px(number: int) -> int:
    return TIME_PX + LANE_PX * number


def _row_px(row: int, first: int) -> int:
    """Of the foot of its letters."""
    return HEAD_PX + ROW_PX * (row - first) + 13


def label_of(mark: Mark) -> str:
    """What a mark says beside its dot, in few letters."""
    first, count = mark.happenings[0], len(mark.happenings)
    word = _COUNTED.get(mark.kind)
    if word is None or (count == 1 and first.key is None):
        text = first.text
        for lane in (f"{mark.lane} info: ", f"{mark.lane} warning: ", f"{mark.lane} error: ", f"{mark.lane} "):
            text = text.removeprefix(lane)
        return shortened(text)
    if first.key is None:
        return f"{count} {word}"
    if count > 1:
        return shortened(f"{count} {word} (q{first.key[0]})")
    return shortened(f"{word} {message_text(first.key)}")


def shortened(text: str) -> str:
    """As much of it as fits in a lane."""
    return text if len(text) <= LABEL_LETTERS else text[: LABEL_LETTERS - 1] + "…"
