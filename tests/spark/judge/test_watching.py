"""A record that is judged while it is written: what is seen meanwhile, and that the end is that of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from chaos.generator import History
from chaos.judge.findings import OF_THE_END, Name, QueueFacts, RunFacts
from chaos.judge.reference import Reference
from chaos.record.message_key import unpack
from chaos.record.process_record import event_table, write_table
from chaos.record.schema import EVENTS_DIRECTORY, Event
from chaos.spark_judge import watching
from chaos.spark_judge.watching import Watch
from tests.spark.judge.conftest import Judge
from tests.spark.judge.test_generated import PLANTED
from tests.support.generated_histories import events_of
from tests.support.told import CONSUMING, PUBLISHER, PUBLISHING, Told, key

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]


class GrowingRecord:
    """Parts appear in it one by one."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._directory = run / EVENTS_DIRECTORY / "class=client"
        self._directory.mkdir(parents=True)
        self._numbers = count(1)

    def add(self, events: Sequence[Event]) -> None:
        """A part with these."""
        write_table(self._directory / f"{next(self._numbers):06d}-000000.parquet", event_table("run", list(events)))


@contextmanager
def watched(spark: SparkSession, tmp_path: Path, facts: RunFacts) -> Iterator[tuple[GrowingRecord, Watch]]:
    record = GrowingRecord(tmp_path / "run")
    work = tmp_path / "work"
    work.mkdir()
    with Watch(spark, record.run.as_uri(), work.as_uri(), lambda: facts) as watch:
        yield record, watch


def test_what_is_found_in_parts_is_what_is_found_in_the_whole(
    spark: SparkSession, judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PARTIALS_MAX", 2)
    history = History(PLANTED, 2)
    events, facts = list(events_of(history)), history.layout.facts()
    expected = judge(events, facts).judgement
    chance = Random(7)
    # Whoever records does not ask in which order.
    chance.shuffle(events)
    cuts = sorted(chance.sample(range(len(events)), 5))
    with watched(spark, tmp_path, facts) as (record, watch):
        for begin, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
            record.add(events[begin:end])
            watch.take_all()
            glimpse = watch.look()
            assert glimpse is not None
            assert glimpse.rows == end, "every row is taken once"
    assert glimpse is not None
    assert glimpse.messages == expected.messages
    assert glimpse.counts == expected.counts
    assert glimpse.examples == expected.examples
    assert glimpse.incomplete == frozenset()


def test_what_holds_is_told_at_once_and_what_is_not_there_yet_is_not_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    facts = RunFacts({PUBLISHING: frozenset({PUBLISHER}), CONSUMING["A"]: frozenset()}, [QueueFacts()])
    told = Told().confirmed(1, 2).publish(3).deliver(1).deliver(1)
    with watched(spark, tmp_path, facts) as (record, watch):
        assert watch.look() is None
        record.add(told.events)
        watch.take_all()
        glimpse = watch.look()
        assert glimpse is not None
        assert glimpse.counts == {Name.UNFLAGGED: 1}
        assert (glimpse.confirmed, glimpse.delivered) == (2, 1)
        assert glimpse.at_risk == {
            "without an answer": 1,
            "confirmed, not delivered": 1,
            "delivered, not settled": 1,
        }
        [finding] = glimpse.examples[Name.UNFLAGGED]
        assert [event.kind for event in watch.rows_of(finding.message)] == [
            event.kind for event in told.events if event.message == key(1)
        ]
        record.add(told.complete()[len(told.events) :])
        watch.take_all()
        glimpse = watch.look()
        assert glimpse is not None
        assert glimpse.counts[Name.LOST] == 1
        reference = Reference(told.complete(), facts).findings()
        assert glimpse.counts == {
            name: sum(each.name is name for each in reference) for name in {each.name for each in reference}
        }
        assert {unpack(each.message).sequence for each in reference if each.name in OF_THE_END} == {1, 2}
