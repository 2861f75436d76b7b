"""The page: what is on it, and that it needs nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from chaos.judge.findings import VIOLATIONS, Name
from chaos.judge.verdict import Judged, Verdict
from chaos.report.charts import Charts
from chaos.report.model import Lane, Report
from chaos.report.page import MEANINGS, TONES, render
from tests.support.sample_report import at, sample_report


def empty(report: Report) -> Report:
    """A run that came to nothing."""
    return replace(
        report, counts={}, places={}, moments=[], depths={}, marks=[], windows=[], ledger=[], coverage={}, stories=[]
    )


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_verdict_and_what_was_at_risk_come_first(verdict: Verdict) -> None:
    page = render(sample_report(verdict))
    place = page.index(f'<p class="verdict {TONES[verdict]}">{verdict}</p>')
    assert place < page.index("What was at risk") < page.index("<svg")
    assert f"<title>{verdict}: K01" in page


def test_nothing_is_loaded_and_nothing_runs() -> None:
    page = render(sample_report())
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?:|javascript:", page)


def test_what_others_said_is_only_text() -> None:
    page = render(sample_report(title='<b onload="x">'))
    assert "<b onload" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_every_finding_has_a_meaning_and_every_verdict_a_look() -> None:
    assert MEANINGS.keys() == set(Name)
    assert TONES.keys() == set(Verdict)


def test_a_run_that_came_to_nothing_has_a_page_too() -> None:
    report = replace(empty(sample_report()), judged=Judged(Verdict.UNKNOWN, ("n1 did not start",)))
    page = render(report)
    assert "n1 did not start" in page
    assert "No queue got another master." in page


def test_violations_are_all_there_and_legal_findings_if_there_are_any() -> None:
    page = render(sample_report())
    assert '<td class="number bad">3</td><td>confirmed, never delivered' in page
    assert "(2 middle, 1 postfix)" in page
    assert page.count('<td class="number good">0</td>') == len(VIOLATIONS) - 1
    assert "<td>caused</td>" in page
    assert "<td>recovered</td>" not in page


def test_each_failover_has_its_row() -> None:
    page = render(sample_report())
    assert "<td>100 ms to 600 ms</td>" in page
    assert page.count("<td>n2</td>") == 1
    assert '<td class="bad">3</td>' in page


# --- pictures


def test_curves_are_per_second_and_broken_where_nothing_was_confirmed() -> None:
    charts = Charts(sample_report())
    rates, latencies = charts.rates(), charts.latencies()
    assert rates.ticks[-1].text == "1 k", "131 in a quarter of a second are more than 500 a second"
    assert [line.path.count("M") for line in rates.lines] == [1, 1, 1]
    assert [line.path.count("M") for line in latencies.lines] == [2, 2, 2]


def test_faults_shade_the_curves() -> None:
    assert len(Charts(sample_report()).rates().shades) == 2


def test_lanes_that_have_nothing_on_them_are_left_out() -> None:
    report = sample_report()
    marks = [mark for mark in report.marks if mark.lane in (Lane.FAULTS, Lane.STALLS)]
    lanes = Charts(replace(report, marks=marks)).lanes()
    assert [drawn.lane for drawn in lanes.lanes] == [Lane.FAULTS, Lane.STALLS]
    assert lanes.lanes[0].top + lanes.lanes[0].height < lanes.lanes[1].top


def test_everything_of_a_run_is_on_the_axis_of_time() -> None:
    report = sample_report()
    late = replace(report.marks[0], begin_us=at(100), end_us=at(100))
    times = Charts(replace(report, marks=[late])).rates().times
    assert times[-1].text == "100 s"
    assert Charts(empty(report)).rates().times
