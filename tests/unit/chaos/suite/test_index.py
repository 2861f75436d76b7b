"""The page over many runs."""

from __future__ import annotations

from pathlib import Path

from chaos.judge.verdict import Verdict
from chaos.suite import index
from chaos.suite.results import Result


def result(verdict: Verdict | None, target: str, seed: int, directory: str = "", **others: object) -> Result:
    return Result("K01", "The <b>master</b>", target, seed, verdict, directory=directory, **others)  # type: ignore[arg-type]


def test_each_run_is_there_and_leads_to_its_page(tmp_path: Path) -> None:
    runs = [
        result(Verdict.PASS, "local", 1, str(tmp_path / "K01-1"), at_risk={"stored": 1000, "failovers": 2}),
        result(Verdict.PASS, "local", 2, str(tmp_path / "K01-2")),
        result(Verdict.FAIL, "rabbitmq", 1, str(tmp_path / "K01-3"), reasons=("7 lost",), counts={"lost": 7}),
        result(None, "rabbitmq", 2, reasons=("the target cannot do: node lines",)),
    ]
    page = index.write(runs, tmp_path).read_text(encoding="utf-8")
    assert '<a href="K01-2/report.html">PASS</a>' in page
    assert '<span class="good">PASS</span> x 2' in page
    assert "7 lost" in page
    assert "the target cannot do: node lines" in page
    assert "3 runs, and 1 skipped" in page
    assert "<b>master</b>" not in page


def test_without_runs_there_is_a_page(tmp_path: Path) -> None:
    assert "0 runs" in index.render([], tmp_path)
