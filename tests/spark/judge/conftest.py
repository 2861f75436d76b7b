"""One Spark session for the tests of the judge, and records as it reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.judge.findings import Finding, Name, RunFacts
from chaos.judge.judgement import Judgement
from chaos.record.process_record import event_table, write_table
from chaos.record.schema import EVENTS_DIRECTORY, Event
from chaos.spark_judge.judge import judged
from chaos.spark_judge.record import read_events
from chaos.spark_judge.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with open_session("local[1]", is_small=True, memory_mb=1_024) as session:
        yield session


class JudgedBySpark:
    """All findings of a record, and what is told of it in few words."""

    def __init__(self, spark: SparkSession, run: Path, facts: RunFacts) -> None:
        with judged(read_events(spark, run.as_uri()), facts) as found:
            findings = found.findings.persist()
            rows = findings.collect()
            self.judgement: Judgement = found.judgement(findings)
            findings.unpersist()
        self.findings = sorted(Finding(Name(row["name"]), row["message"], row["process"], row["event"]) for row in rows)
        self.places = {row["message"]: row["place"] for row in rows if row["place"]}


Judge = Callable[[Iterable[Event], RunFacts], JudgedBySpark]


@pytest.fixture(scope="session")
def judge(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Judges events, by way of a file as a recorder writes it."""
    numbers = count(1)

    def judge(events: Iterable[Event], facts: RunFacts) -> JudgedBySpark:
        run = tmp_path_factory.mktemp("run")
        directory = run / EVENTS_DIRECTORY / "class=client"
        directory.mkdir(parents=True)
        write_table(directory / f"{next(numbers):06d}-000000.parquet", event_table("run", list(events)))
        return JudgedBySpark(spark, run, facts)

    return judge
