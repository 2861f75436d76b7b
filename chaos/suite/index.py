"""One page over many runs: what each scenario came to, on each target, and what all of them show together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.report import page
from chaos.suite.results import Result, summarise

FILE_NAME = "index.html"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class _Row:
    """One run."""

    result: Result
    verdict: str
    tone: str
    #: Of its page, from the index.
    address: str


@dataclass(frozen=True, slots=True)
class _Scenario:
    """One scenario; how often it came to what, by target."""

    id: str
    title: str
    cells: Mapping[str, Mapping[str, int]]


def write(results: Sequence[Result], directory: Path) -> Path:
    """Write it; returns where."""
    path = directory / FILE_NAME
    path.write_text(render(results, directory), encoding="utf-8")
    return path


def render(results: Sequence[Result], directory: Path) -> str:
    """The page as a text. ``directory``: where it will be."""
    summary = summarise(results)
    targets = sorted({result.target for result in results})
    return (
        page.environment("chaos.suite")
        .get_template("index.html.j2")
        .render(
            summary=summary,
            bounds={what: f"{bound:.2g}" for what, bound in summary.bounds.items()},
            tones={str(verdict): tone for verdict, tone in page.TONES.items()},
            targets=targets,
            scenarios=_scenarios(results, targets),
            runs=[_row(result, directory) for result in reversed(results)],
        )
    )


def _scenarios(results: Sequence[Result], targets: Sequence[str]) -> list[_Scenario]:
    titles = {result.scenario: result.title for result in results}
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        counts.setdefault((result.scenario, result.target), Counter())[_verdict(result)] += 1
    return [
        _Scenario(name, title, {target: counts.get((name, target), {}) for target in targets})
        for name, title in sorted(titles.items())
    ]


def _row(result: Result, directory: Path) -> _Row:
    tone = "muted" if result.verdict is None else page.TONES[result.verdict]
    address = ""
    if result.directory:
        address = os.path.relpath(Path(result.directory) / page.FILE_NAME, directory)
    return _Row(result, _verdict(result), tone, address)


def _verdict(result: Result) -> str:
    return SKIPPED if result.verdict is None else str(result.verdict)
