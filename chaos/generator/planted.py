"""What was planted, and the files that say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.judge.findings import Finding, Name

PLANTED_FILE = "planted.parquet"


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
