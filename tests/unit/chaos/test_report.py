from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from chaos.analysis.report import CARDS, excess_note, render_report, write_report
from chaos.analysis.timeline import Axis, render_timeline
from chaos.java import java_version
from chaos.run_file import NoRunError, RunFile, read_run_file
from chaos.scenarios.model import Expectation, LossRule
from chaos.verdict import Outcome

BUCKET_US = 100_000
RATES = [{"bucket_us": 1_000_000 + number * BUCKET_US, "confirms": 200, "deliveries": 190} for number in range(20)]
FAULT = json.dumps({"type": "kill", "node": "n1"})
EVENTS: list[dict[str, Any]] = [
    {"kind": "FAULT_BEGIN", "t_lo_us": 1_500_000, "t_hi_us": 1_500_100, "fault_id": 1, "detail": FAULT},
    {"kind": "PROMOTE", "t_lo_us": 1_700_000, "t_hi_us": 1_720_000, "fault_id": None,
     "detail": json.dumps({"new_master": "<n2>"})},
    {"kind": "FAULT_END", "t_lo_us": 2_000_000, "t_hi_us": 2_000_000, "fault_id": 1, "detail": FAULT},
]  # fmt: skip


class _Links(HTMLParser):
    """Collects what the page would load, and checks that elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "srcset"}]
        self.loads += [tag] if tag in {"script", "link", "iframe"} else []
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes another element"


def run_file() -> RunFile:
    return RunFile(
        run_id="r", scenario="kill-master", seed=7, nodes=["n1", "n2"], queues=["q"], policy={"ha-mode": "all"},
        expectation=Expectation(LossRule.FORBIDDEN, None, 1, 1), traffic={}, started_at="2026-01-01T00:00:00+00:00",
        replay="warren chaos run kill-master --seed 7", outcome=Outcome.COMPLETED, duration_s=1.5,
    )  # fmt: skip


def verdict(**changed: Any) -> dict[str, Any]:
    return {
        "verdict": "PASS", "reasons": [], "findings": {name: 0 for name, _, _ in CARDS}, "loss_bound_95": 1e-4,
        "confirm_latency_us": [1000, 2000, 3000, 4000], "failovers": [], "witnesses": {},
    } | changed  # fmt: skip


def test_page_is_whole_loads_nothing_and_shows_the_verdict_before_all_else() -> None:
    page = render_report(verdict(), run_file(), RATES, EVENTS, BUCKET_US)
    parser = _Links()
    parser.feed(page)
    assert parser.loads == []
    assert parser.open == []
    assert "http" not in page
    assert page.index("PASS") < page.index("<h2>")
    assert "prefers-color-scheme: dark" in page
    assert "warren chaos run kill-master --seed 7" in page


def test_failed_run_shows_reasons_and_witnesses() -> None:
    lost = [{"queue_id": 0, "pub_id": 1, "seq": 4711, "attempt": 1, "ack_us": None}]
    failed = verdict(verdict="FAIL", reasons=["1 <b> lost"], witnesses={"lost": lost}, loss_bound_95=None)
    page = render_report(failed, run_file(), RATES, EVENTS, BUCKET_US)
    assert '<div class="verdict bad">FAIL' in page
    assert "1 &lt;b&gt; lost" in page
    assert "<td>4711</td>" in page
    assert "ack_us" not in page


@pytest.mark.parametrize(
    ("synchronised", "is_oldest", "shown"),
    [(["n3", "n2"], False, "NO"), (["n2"], True, "yes"), ([], False, "none was")],
)
def test_failover_is_one_row(synchronised: list[str], is_oldest: bool, shown: str) -> None:
    row = {
        "epoch": 2, "cause": FAULT, "old_master": "n1", "new_master": "n2", "is_oldest_synchronised": is_oldest,
        "synchronised_before": json.dumps(synchronised),
        "detect_us": 220_000, "rto_publish_us": 345_000, "rto_consume_us": None, "rpo": 0, "redeliveries": 12,
        "resync_us": 1_500_000,
    }  # fmt: skip
    page = render_report(verdict(failovers=[row]), run_file(), RATES, EVENTS, BUCKET_US)
    cells = re.findall(r"<td>([^<]*)</td>", page)
    first = cells.index("kill n1")
    assert cells[first : first + 10] == ["kill n1", "n1", "n2", shown, "220 ms", "345 ms", "-", "0", "12", "1,500 ms"]


def test_timeline_shades_the_fault_and_marks_the_promotion() -> None:
    drawing = render_timeline(RATES, EVENTS, BUCKET_US)
    rect = re.search(r'class="fault" x="([\d.]+)" y="\d+" width="([\d.]+)"', drawing)
    line = re.search(r'class="promotion" x1="([\d.]+)"', drawing)
    assert rect is not None
    assert line is not None
    begin, width, promoted = float(rect[1]), float(rect[2]), float(line[1])
    assert begin < promoted < begin + width
    assert width == pytest.approx(250, abs=1)  # 0.5 of 2.0 seconds on 1000 pixels
    assert "&lt;n2&gt; promoted" in drawing


def test_silence_is_drawn_as_zero() -> None:
    drawing = render_timeline([RATES[0], RATES[-1]], [], BUCKET_US)
    points = re.search(r'class="confirms" points="([^"]*)"', drawing)
    assert points is not None
    heights = [float(point.split(",")[1]) for point in points[1].split()]
    assert len(heights) == 20
    assert len(set(heights[1:-1])) == 1
    assert heights[1] > heights[0]


def test_nothing_to_draw() -> None:
    assert "No confirm" in render_timeline([], [], BUCKET_US)


@pytest.mark.parametrize("high", [0.003, 1.0, 7.3, 61.0, 12_345.0])
def test_axis_has_few_round_ticks_inside(high: float) -> None:
    ticks = Axis(0.0, high, 0.0, 100.0).ticks()
    assert 2 <= len(ticks) <= 9
    assert all(0 <= tick <= high for tick in ticks)


def test_report_and_run_file_on_disk(tmp_path: Path) -> None:
    run = run_file()
    run.write(tmp_path)
    assert read_run_file(tmp_path) == run
    assert write_report(tmp_path, "<p>").read_text() == "<p>"
    with pytest.raises(NoRunError, match="holds no run"):
        read_run_file(tmp_path / "report")


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("command not found", None),
    ],
)
def test_java_version(printed: str, major: int | None) -> None:
    assert java_version(printed) == major


def test_deliveries_without_a_confirm_are_explained() -> None:
    assert excess_note({"confirmed": 10, "delivered": 10}) == ""
    assert excess_note({"confirmed": 10, "delivered": 9}) == ""
    note = (
        "delivered exceeds confirmed by 2: messages whose confirm a fault cut off were stored and came through all the "
        "same; nobody had been promised them"
    )
    assert excess_note({"confirmed": 10, "delivered": 12}) == note
    counts: dict[str, int] = {name: 0 for name, _, _ in CARDS} | {"confirmed": 10, "delivered": 12}
    assert note in render_report(verdict(findings=counts), run_file(), RATES, EVENTS, BUCKET_US)
