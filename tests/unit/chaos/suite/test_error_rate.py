"""Comparing what was planted with what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos.generator.planted import Planted
from chaos.judge.figures import figures_of
from chaos.judge.findings import Finding, Name
from chaos.judge.judgement import Judgement
from chaos.suite.error_rate import ErrorRate, compare

JUDGEMENT = Judgement(900, 100, 0, {}, {}, {}, 0, frozenset(), figures_of([], ()))
LOST, OTHER = Finding(Name.LOST, 7, 1, 2), Finding(Name.LOST, 8, 1, 3)
CORRUPT = Finding(Name.CORRUPT, 7, 2, 9)
PLANTED = [Planted("lost_middle", LOST), Planted("lost_prefix", OTHER), Planted("corrupt", CORRUPT)]


def compared(*found: Finding) -> ErrorRate:
    return compare(PLANTED, found, JUDGEMENT)


def test_everything_and_nothing_else() -> None:
    rate = compared(CORRUPT, OTHER, LOST)
    assert rate.is_perfect
    assert (rate.recall, rate.precision, rate.extra) == (1.0, 1.0, [])


@pytest.mark.parametrize(
    ("found", "recall", "precision", "extra"),
    [
        ([LOST, OTHER], 2 / 3, 1.0, []),
        ([LOST, OTHER, CORRUPT, LOST], 1.0, 3 / 4, [LOST]),
        ([LOST, OTHER, CORRUPT._replace(event=10)], 2 / 3, 2 / 3, [CORRUPT._replace(event=10)]),
        ([], 0.0, 1.0, []),
    ],
)
def test_what_is_missing_too_much_or_in_another_row_is_wrong(
    found: Sequence[Finding], recall: float, precision: float, extra: list[Finding]
) -> None:
    rate = compared(*found)
    assert (rate.recall, rate.precision, rate.extra) == (recall, precision, extra)
    assert not rate.is_perfect


def test_the_table_has_a_row_for_each_class() -> None:
    table = compared(LOST, CORRUPT).table()
    assert "| lost_prefix | 1 | 0 | 0.000 |" in table
    assert "| all 3 classes | 3 | 2 | 0.667 |" in table
    assert "Found, and not planted: 0. Precision: 1.000." in table


def test_where_nothing_is_planted_nothing_can_be_missed() -> None:
    rate = compare([], [], JUDGEMENT)
    assert (rate.recall, rate.precision, rate.is_perfect) == (1.0, 1.0, True)
    assert not replace(rate, extra=[LOST]).is_perfect
