"""The table of docs/conformance.md, out of `cases`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.conformance.ha.cases import SUITES, Case

DOCUMENT = Path(__file__).parents[3] / "docs" / "conformance.md"
BEGIN = "<!-- the table begins: python -m tests.conformance.ha --write-table -->"
END = "<!-- the table ends -->"


def lines() -> Iterator[str]:
    for suite, cases in SUITES.items():
        yield f"### {suite}"
        yield ""
        yield "| id | asks | here | difference |"
        yield "|---|---|---|---|"
        for case_id, case in cases.items():
            mark = " X" if case.is_revived else ""
            yield f"| {case_id}{mark} | {case.asks} | {_tests(case)} | {_remarks(case)} |"
        yield ""


def _tests(case: Case) -> str:
    if case.pending:
        return "*pending*"
    return "<br>".join(f"`{test.removeprefix('conformance/ha/')}`" for test in case.tests)


def _remarks(case: Case) -> str:
    words = [case.difference, case.pending, case.defect and f"**Defect:** {case.defect}"]
    return " ".join(word for word in words if word)


def text() -> str:
    return "\n".join([BEGIN, "", *lines(), END])


def in_document() -> str:
    """The part of the document that stands between the marks, marks included."""
    document = DOCUMENT.read_text(encoding="utf-8")
    return document[document.index(BEGIN) : document.index(END) + len(END)]


def write() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(document.replace(in_document(), text()), encoding="utf-8")
