"""What was planted, and the files that say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.judge.findings import Finding, Name, QueueFacts, RunFacts

PLANTED_FILE = "planted.parquet"
FACTS_FILE = "facts.json"


class Planted(NamedTuple):
    """One label: some anomalies show in two findings."""

    anomaly: str
    finding: Finding


@dataclass(slots=True)
class Sown:
    """A label whose row has no number yet: ``place`` is that of the row in its block."""

    anomaly: str
    name: Name
    message: int
    place: int


_SCHEMA = pa.schema(
    [
        pa.field("anomaly", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("event", pa.int64(), nullable=False),
    ]
)


def write_planted(path: Path, planted: Iterable[Planted]) -> None:
    """As a table: the anomaly, and the columns of its finding."""
    rows = [(each.anomaly, *each.finding) for each in planted]
    columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
    arrays = [pa.array([str(value) if field.type == pa.string() else value for value in column], field.type)
              for column, field in zip(columns, _SCHEMA, strict=True)]  # fmt: skip
    pq.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA), path)


def read_planted(path: Path) -> list[Planted]:
    rows = pq.read_table(path).to_pylist()
    return [
        Planted(row["anomaly"], Finding(Name(row["name"]), row["message"], row["process"], row["event"]))
        for row in rows
    ]


def facts_document(facts: RunFacts) -> dict[str, object]:
    """As JSON has it."""
    return {
        "processes": {str(process): sorted(publishers) for process, publishers in facts.processes.items()},
        "queues": [{"may_remove": queue.may_remove, "is_drained": queue.is_drained} for queue in facts.queues],
        "slack_us": facts.slack_us,
    }


def facts_of(document: dict[str, object]) -> RunFacts:
    """The facts that `facts_document` made it of."""
    processes, queues, slack_us = document["processes"], document["queues"], document["slack_us"]
    assert isinstance(processes, dict)
    assert isinstance(queues, list)
    assert slack_us is None or isinstance(slack_us, int)
    return RunFacts(
        {int(process): frozenset(publishers) for process, publishers in processes.items()},
        [QueueFacts(**queue) for queue in queues],
        slack_us,
    )
