"""The command: all findings beside the record, a few of them in a table."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from chaos.judge.facts_file import FACTS_FILE, facts_document
from chaos.judge.figures import figures_of
from chaos.judge.findings import Name, QueueFacts, RunFacts
from chaos.judge.judgement import Judgement
from chaos.record.process_record import event_table, write_table
from chaos.record.schema import EVENTS_DIRECTORY
from chaos.spark_judge.__main__ import ExitCode, exit_code, show
from chaos.spark_judge.evidence import FINDINGS_DIRECTORY, judge_run
from tests.support.told import CONSUMING, PUBLISHER, PUBLISHING, Told, key

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A message was lost, another is fine."""
    facts = RunFacts({PUBLISHING: frozenset({PUBLISHER}), CONSUMING["A"]: frozenset()}, [QueueFacts()])
    (tmp_path / FACTS_FILE).write_text(json.dumps(facts_document(facts)), encoding="utf-8")
    directory = tmp_path / EVENTS_DIRECTORY / "class=client"
    directory.mkdir(parents=True)
    events = Told().confirmed(1, 2).settled(1).complete()
    for process in facts.processes:
        rows = [event for event in events if event.process == process]
        write_table(directory / f"{process:06d}-000000.parquet", event_table("run", rows))
    (directory / "000007-000000.unfinished").write_bytes(b"somebody is still writing this")
    return tmp_path


def test_findings_are_beside_the_record(spark: SparkSession, run: Path) -> None:
    judgement = judge_run(spark, run.as_uri(), (run / FACTS_FILE).as_uri())
    written = [row for path in (run / FINDINGS_DIRECTORY).glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    lost = {"name": "lost", "message": key(2), "process": PUBLISHING, "event": 2, "place": "postfix"}
    assert written == [lost]
    assert judgement.counts == {Name.LOST: 1}
    console = Console(file=StringIO(), width=120)
    show(judgement, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 messages, 9 rows" in printed
    assert "1/1/2/1 at 1:2" in printed
    assert "lost: 1 postfix" in printed


def test_a_violation_is_one_whatever_is_missing() -> None:
    nothing = Judgement(0, 0, 0, {}, {}, {}, 0, frozenset(), figures_of([], ()))
    assert exit_code(nothing) is ExitCode.PASS
    assert exit_code(replace(nothing, counts={Name.CAUSED: 1})) is ExitCode.PASS
    assert exit_code(replace(nothing, incomplete=frozenset({1}))) is ExitCode.UNKNOWN
    assert exit_code(replace(nothing, unjudged_messages=1)) is ExitCode.UNKNOWN
    assert exit_code(replace(nothing, incomplete=frozenset({1}), counts={Name.STUCK: 1})) is ExitCode.FAIL
