"""What many runs show together."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.judge.verdict import Verdict
from chaos.suite.junit import junit_xml
from chaos.suite.results import FILE_NAME, Result, append, read, summarise, upper_bound


def result(verdict: Verdict | None, seed: int = 1, **others: object) -> Result:
    return Result("K01", "The master is killed", "local", seed, verdict, **others)  # type: ignore[arg-type]


GOOD = result(
    Verdict.PASS, took_s=40.0, counts={"caused": 3}, at_risk={"stored": 2000, "failovers": 2}, directory="/runs/1"
)
BAD = result(
    Verdict.FAIL, 2, reasons=("1 lost", "2 phantom"), counts={"lost": 1}, at_risk={"stored": 1000, "failovers": 1}
)
SKIPPED = result(None, reasons=("the target cannot do: node lines",))


def test_what_is_added_is_read_also_behind_an_unfinished_line(tmp_path: Path) -> None:
    for each in (GOOD, BAD, SKIPPED):
        append(tmp_path, each)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"scenario": "K0')
    assert read(tmp_path) == [GOOD, BAD, SKIPPED]


def test_the_sums_of_runs_without_those_that_were_skipped() -> None:
    summary = summarise([GOOD, GOOD, BAD, SKIPPED])
    assert summary.verdicts == {"PASS": 2, "FAIL": 1}
    assert (summary.runs, summary.skipped, summary.took_s) == (3, 1, 80.0)
    assert summary.counts == {"caused": 6, "lost": 1}
    assert summary.at_risk == {"stored": 5000, "failovers": 5}
    assert summary.bounds == {
        "lost for each message at risk": upper_bound(1, 5000),
        "loss for each failover": upper_bound(1, 5),
    }


def test_where_nothing_was_at_risk_there_is_no_bound() -> None:
    assert summarise([SKIPPED]).bounds == {}


@pytest.mark.parametrize(
    ("events", "trials", "bound"),
    [
        (0, 1, 0.95),
        (0, 100, 0.02951),  # 1 - 0.05 ** (1 / 100)
        (0, 1_000_000, 2.9957e-6),
        (1, 10, 0.39416),  # Table of Clopper and Pearson, one-sided
        (5, 5, 1.0),
    ],
)
def test_upper_bounds(events: int, trials: int, bound: float) -> None:
    assert upper_bound(events, trials) == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize(
    ("verdict", "is_bad"),
    [(None, False), (Verdict.PASS, False), (Verdict.EXPECTED_LOSS, False), (Verdict.FAIL, True),
     (Verdict.VACUOUS, True), (Verdict.UNKNOWN, True)],
)  # fmt: skip
def test_what_is_bad(verdict: Verdict | None, is_bad: bool) -> None:
    assert result(verdict).is_bad == is_bad


def test_junit_tells_failures_from_what_proved_nothing_and_from_what_was_skipped() -> None:
    vacuous = result(Verdict.VACUOUS, 3, reasons=("nothing was at risk",))
    root = ElementTree.fromstring(junit_xml("smoke", [GOOD, BAD, vacuous, SKIPPED]))
    counted = {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    outcomes = [[child.tag for child in case] for case in root]
    assert outcomes == [[], ["failure"], ["error"], ["skipped"]]
    failure = root.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "1 lost; 2 phantom"
