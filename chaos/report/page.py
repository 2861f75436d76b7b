"""Putting the page together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from chaos.judge.findings import VIOLATIONS, Name
from chaos.judge.verdict import Verdict
from chaos.report import charts
from chaos.report.charts import Charts
from chaos.report.drawing import count, duration
from chaos.report.model import Report

FILE_NAME = "report.html"
#: How a verdict looks.
TONES: Mapping[Verdict, str] = {
    Verdict.PASS: "good",
    Verdict.EXPECTED_LOSS: "odd",
    Verdict.FAIL: "bad",
    Verdict.VACUOUS: "odd",
    Verdict.UNKNOWN: "odd",
}
#: What each finding means, in a line. The definitions are in `chaos.judge`.
MEANINGS: Mapping[Name, str] = {
    Name.LOST: "confirmed, never delivered, and not in the queue at the end",
    Name.VANISHED: "delivered, given back, and never seen again",
    Name.PHANTOM: "delivered, and never published",
    Name.REPLICA_LOST: "missing in a replica that counts as complete",
    Name.FOREIGN: "delivered, and not of this run",
    Name.CORRUPT: "delivered with another body than was published",
    Name.MISROUTED: "delivered from another queue",
    Name.REFUSED_DELIVERED: "refused to its publisher, and delivered",
    Name.RETURNED_DELIVERED: "returned to its publisher, and delivered",
    Name.CONFIRM_TWICE: "answered twice",
    Name.CONFIRM_CONTRADICTION: "answered in two ways",
    Name.CONFIRM_UNKNOWN: "an answer for what was not published",
    Name.FALSE_CONFIRM: "confirmed by who was no longer master",
    Name.STUCK: "left in the queue when consumers got no more",
    Name.UNFLAGGED: "delivered again without the flag that says so",
    Name.RESURRECTED: "delivered again after its acknowledgement was proven",
    Name.DOUBLE_OWNER: "delivered again while another consumer held it",
    Name.SPONTANEOUS: "delivered again without any cause",
    Name.MISORDERED: "out of order in one consumer's channel",
    Name.OVERTAKEN: "out of order between consumers",
    Name.REQUEUE_OVERTAKEN: "given back, and delivered behind what was published later",
    Name.CAUSED: "delivered again, flagged, for a reason",
    Name.AFTER_ACK: "delivered again because its acknowledgement was lost",
    Name.MISORDERED_EXCUSED: "out of order in a channel, across a failover",
    Name.OVERTAKEN_EXCUSED: "out of order between consumers, across a failover",
    Name.RECOVERED: "never answered, and delivered all the same",
    Name.SETTLED_UNPROVEN: "acknowledged, and nothing proves that it arrived",
    Name.COPIES: "a further attempt of what had been delivered already",
    Name.FLAGGED_FIRST: "flagged though nobody saw a delivery before",
    Name.REMOVED_UNPROVEN: "not seen again, in a queue that removes messages by itself",
}


def render(report: Report) -> str:
    """The page as a text."""
    return environment().get_template("report.html.j2").render(_values(report))


def environment(*packages: str) -> Environment:
    """Of templates of these packages and of ours: what others said is escaped, and what is not there is a mistake."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "chaos.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"duration": duration, "count": count, "clock": clock, "grouped": grouped}
    return made


def write(report: Report, directory: Path) -> Path:
    """Write it; returns where."""
    path = directory / FILE_NAME
    path.write_text(render(report), encoding="utf-8")
    return path


def clock(at_us: int) -> str:
    """The time of day, in UTC, with milliseconds."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]


def grouped(number: int) -> str:
    """12345 as 12 345, with narrow spaces that do not break."""
    return f"{number:,}".replace(",", "\u202f")


def _values(report: Report) -> dict[str, Any]:
    drawn = Charts(report)
    counts = {name: report.counts.get(name, 0) for name in Name}
    at_risk = {**dict.fromkeys(report.sheet.wanted_at_risk, 0), **report.sheet.at_risk}
    return {
        "report": report,
        "sheet": report.sheet,
        "judged": report.judged,
        "tone": TONES[report.judged.verdict],
        "at_risk": at_risk,
        "violations": {name: counts[name] for name in Name if name in VIOLATIONS},
        "legal": {name: counts[name] for name in Name if name not in VIOLATIONS},
        "meanings": MEANINGS,
        "charts": [drawn.rates(), drawn.latencies(), drawn.depths()],
        "lanes": drawn.lanes(),
        "width": charts.WIDTH,
        "left": charts.LEFT,
        "right": charts.WIDTH - charts.RIGHT,
        "row_height": charts.ROW_HEIGHT,
        "states": sorted({state for states in report.coverage.values() for state in states}),
    }
