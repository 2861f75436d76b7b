"""Scores, what is equivalent, and results that are kept."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.__main__ import EQUIVALENTS
from tests.mutation.recording import ROOT
from tests.mutation.report import (
    BEGIN,
    END,
    Equivalent,
    Results,
    is_enough,
    read_equivalents,
    score_of,
    stale,
    survivors,
    write_document,
)
from tests.mutation.trial import NOTICED_BY_SIMULATOR, NOTICED_BY_TESTS, SURVIVED, Result

SOURCE = "def f(a):\n    return a < 2\n"
DIFF = "return a < 2  ->  return (a <= 2)"


def result(status: str, diff: str = DIFF) -> Result:
    return Result("m", "raft", "p/m.py", "f", 2, "comparison", diff, status, "t.py::t", 3)


def test_every_entry_of_the_file_fits_the_code_and_has_a_reason() -> None:
    equivalents = read_equivalents(EQUIVALENTS)
    assert stale(equivalents, ROOT) == []
    assert [entry for entry in equivalents if len(entry.reason) < 20] == []
    assert len({entry[:3] for entry in equivalents}) == len(equivalents), "none is named twice"


def test_an_entry_that_no_longer_fits_is_stale(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "m.py").write_text(SOURCE)
    fits = Equivalent("p/m.py", "f", DIFF, "why")
    old = [fits._replace(diff="gone"), fits._replace(function="g"), fits._replace(module="p/gone.py")]
    assert stale([fits, *old], tmp_path) == old


def test_what_is_equivalent_does_not_count() -> None:
    results = [result(NOTICED_BY_TESTS), result(NOTICED_BY_SIMULATOR), result(SURVIVED), result(SURVIVED, "other")]
    score = score_of(results, [Equivalent("p/m.py", "f", DIFF, "why")])
    assert score == (4, 1, 1, 1, 1)
    assert score.share == 2 / 3
    assert survivors(results, [Equivalent("p/m.py", "f", DIFF, "why")]) == ["- `p/m.py`, `f`: `other`"]


def test_the_sum_and_each_package_must_be_good_enough() -> None:
    good, fair = score_of([result(NOTICED_BY_TESTS)] * 100, []), score_of([*[result(NOTICED_BY_TESTS)] * 9], [])
    bad = score_of([*[result(NOTICED_BY_TESTS)] * 8, *[result(SURVIVED)] * 2], [])
    assert is_enough({"raft": good, "store": fair}, good)
    assert not is_enough({"raft": good, "store": bad}, good)
    assert not is_enough({"raft": good}, bad)


def test_a_noticed_mutant_stays_noticed_and_a_survivor_is_tried_by_new_tests(tmp_path: Path) -> None:
    kept = Results(tmp_path)
    assert kept.get("a", "tests 1") is None
    kept.put("a", "tests 1", result(NOTICED_BY_TESTS))
    kept.put("b", "tests 1", result(SURVIVED))
    assert kept.get("a", "tests 2") == result(NOTICED_BY_TESTS)
    assert kept.get("b", "tests 1") == result(SURVIVED)
    assert kept.get("b", "tests 2") is None


def test_the_document_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    path = tmp_path / "mutants.md"
    path.write_text(f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    write_document(path, ["new"])
    write_document(path, ["newer"])
    assert path.read_text() == f"Before.\n\n{BEGIN}\n\nnewer\n\n{END}\n\nAfter.\n"
