"""Records that nothing is promised of, hundreds in one: what Spark finds is what the plain reference finds of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos.judge.figures import figures_of
from chaos.judge.findings import LOSSES, Finding, Name
from chaos.judge.reference import Reference
from tests.spark.judge.conftest import Judge
from tests.support.random_records import random_record
from tests.support.records_side_by_side import SideBySide

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

FIRST_SEED, RECORDS = 1, 400
#: A process that has not recorded anything.
MISSING = 1_000_000


def difference(records: SideBySide, found: Sequence[Finding], expected: Sequence[Finding]) -> str:
    """Of a record in which something differs, all that is needed to see why."""
    odd = [*(Counter(found) - Counter(expected)), *(Counter(expected) - Counter(found))]
    if not odd:
        return ""
    number = records.number(odd[0])
    here, there = Counter(records.of(number, found)), Counter(records.of(number, expected))
    rows = sorted(records.events_of(number), key=lambda event: (event.t_lo_us, event.process, event.event))
    return "\n".join(
        [
            f"seed {FIRST_SEED + number}, {records.queue(number)}",
            *(str(event) for event in rows),
            *(f"Spark alone: {each}" for each in here - there),
            *(f"reference alone: {each}" for each in there - here),
        ]
    )


@pytest.mark.parametrize(("slack_us", "is_complete"), [(2, True), (0, False)])
def test_spark_finds_what_the_reference_finds(judge: Judge, slack_us: int, is_complete: bool) -> None:
    records = SideBySide([random_record(FIRST_SEED + number) for number in range(RECORDS)], slack_us)
    facts = records.facts()
    if not is_complete:
        # Of the publishers that it records for nobody knows what they published.
        facts = replace(facts, processes={**facts.processes, MISSING: frozenset(range(1, RECORDS))})
    events = list(records.events())
    reference = Reference(events, facts)
    expected = reference.findings()
    found = judge(events, facts)
    assert difference(records, found.findings, expected) == ""
    assert found.findings == expected
    assert found.judgement.pairs_compared == reference.pairs_compared
    assert found.judgement.incomplete == reference.incomplete
    assert found.judgement.figures == figures_of(events, {each.message for each in expected if each.name in LOSSES})
    assert found.places == reference.places(each for each in expected if each.name is Name.LOST)
    if is_complete:
        assert {each.name for each in expected} == set(Name), "all corners were met"
