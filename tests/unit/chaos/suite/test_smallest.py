"""What counts as the same, and that what is left can be run again."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
import tomli_w

from chaos.judge.verdict import Verdict
from chaos.plan.reading import catalogue_documents, scenario
from chaos.suite.results import Result
from chaos.suite.smallest import is_same

LOST = Result("K01", "", "local", 1, Verdict.FAIL, counts={"lost": 3, "caused": 7})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (replace(LOST, counts={"lost": 1}), True),
        (replace(LOST, counts={"lost": 1, "phantom": 4}), True),
        (replace(LOST, counts={"phantom": 4, "caused": 7}), False),
        (replace(LOST, verdict=Verdict.PASS), False),
        (replace(LOST, verdict=None), False),
    ],
)
def test_a_failure_is_the_same_if_a_violation_is(other: Result, expected: bool) -> None:
    assert is_same(LOST, other) is expected


def test_a_gap_is_the_same_as_a_gap_alone() -> None:
    gap = replace(LOST, counts={"caused": 1})
    assert is_same(gap, replace(gap, counts={}))
    assert not is_same(gap, LOST)


def test_what_is_vacuous_is_so_whatever_was_found() -> None:
    assert is_same(replace(LOST, verdict=Verdict.VACUOUS, counts={}), replace(LOST, verdict=Verdict.VACUOUS))


@pytest.mark.parametrize("name", list(catalogue_documents()))
def test_a_scenario_that_is_written_is_the_same_scenario(name: str) -> None:
    document = catalogue_documents()[name]
    assert scenario(tomllib.loads(tomli_w.dumps(document))) == scenario(document)
