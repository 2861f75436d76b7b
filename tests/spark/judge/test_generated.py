"""Records with planted anomalies: what Spark finds is what the plain reference finds, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.generator import History
from chaos.judge.figures import figures_of
from chaos.judge.findings import LOSSES, VIOLATIONS, Name
from chaos.judge.reference import Reference
from chaos.spark_judge import session
from tests.spark.judge.conftest import Judge
from tests.support.generated_histories import SMALL, events_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

PLANTED = replace(SMALL, left=0.01, failovers=6, tap=True)
SHAPES = {
    "some of everything": PLANTED,
    "one consumer, and the broker does not tell": replace(PLANTED, seed=7, consumers=1, prefetch=4, tap=False),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_spark_finds_what_the_reference_finds(judge: Judge, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them with the settings of a large record: compiled plans, that change as they run, in several parts."""
    shape = SHAPES[name]
    if shape.tap:
        monkeypatch.setattr(session, "COMPILED_ROWS_MIN", 0)
        monkeypatch.setattr(session, "ROWS_PER_PARTITION", 15_000)
    history = History(shape, 2)
    events, facts = list(events_of(history)), history.layout.facts()
    reference = Reference(events, facts)
    found = judge(events, facts)
    expected = reference.findings()
    assert found.findings == expected
    assert found.judgement.pairs_compared == reference.pairs_compared
    assert found.judgement.incomplete == reference.incomplete
    assert found.judgement.figures == figures_of(events, {each.message for each in expected if each.name in LOSSES})
    assert found.places == reference.places(each for each in expected if each.name is Name.LOST)
    # Otherwise this proves nothing.
    assert {each.name for each in expected} >= (VIOLATIONS if shape.tap else {Name.LOST, Name.MISORDERED})
