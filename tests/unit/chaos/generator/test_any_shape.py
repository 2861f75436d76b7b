"""Whatever the shape: what is found is what was planted."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from chaos.generator import History, Shape
from chaos.judge.findings import LEGAL, VIOLATIONS, Name
from chaos.judge.reference import Reference
from tests.support.amounts import few_examples
from tests.support.generated_histories import events_of

UNCOUNTED = {Name.MISORDERED_EXCUSED, Name.OVERTAKEN_EXCUSED}

shapes = st.builds(
    Shape,
    seed=st.integers(0, 2**32 - 1),
    messages=st.integers(1, 3_000),
    queues=st.integers(3, 5),
    publishers=st.integers(1, 4),
    consumers=st.integers(1, 5),
    prefetch=st.sampled_from([1, 2, 3, 10, 50, 1_000]),
    rate=st.sampled_from([500, 3_000, 20_000, 1_000_000]),
    failovers=st.integers(0, 8),
    redelivered=st.sampled_from([0.0, 0.05, 0.5]),
    requeued=st.sampled_from([0.0, 0.05, 0.5]),
    unresolved=st.sampled_from([0.0, 0.05, 0.5]),
    discarded=st.sampled_from([0.0, 0.5]),
    left=st.sampled_from([0.0, 0.05]),
    expired=st.sampled_from([0.0, 0.1]),
    tap=st.booleans(),
    slack_us=st.sampled_from([10_000, 50_000, 300_000]),
    block_messages=st.integers(300, 4_000),
)


@few_examples(3, 150, shapes, st.integers(0, 3))
def test_exactly_what_is_planted_is_found(shape: Shape, plant: int) -> None:
    history = History(shape, plant)
    events = list(events_of(history))
    reference = Reference(events, history.layout.facts())
    findings = reference.findings()
    assert not reference.incomplete
    found = Counter(finding for finding in findings if finding.name in VIOLATIONS)
    assert found == Counter(label.finding for label in history.generated.planted)
    counts = Counter(finding.name for finding in findings if finding.name in LEGAL - UNCOUNTED)
    assert counts == +history.generated.legal
    moments: dict[int, int] = {}
    for event in events:
        assert moments.get(event.process, 0) <= event.t_hi_us
        moments[event.process] = event.t_hi_us
