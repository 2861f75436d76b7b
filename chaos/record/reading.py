"""Reading a record: for small tools and tests. Whoever has millions of rows reads the files with Spark or Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from chaos.record.schema import EVENTS_DIRECTORY, Event, EventClass


def event_files(run_directory: Path, event_class: EventClass | None = None) -> list[Path]:
    """The files of a record that are whole, in their order; those of one class only, if it is named."""
    directory = run_directory / EVENTS_DIRECTORY
    return sorted(directory.glob(f"class={event_class or '*'}/*.parquet"))


def read_events(run_directory: Path) -> Iterator[Event]:
    """Every event of a run, process by process, in its order there."""
    for path in sorted(event_files(run_directory), key=lambda path: path.name):
        # Not as a part of a data set: the class in the directory's name is not a column.
        columns = pq.ParquetFile(path).read(columns=list(Event._fields)).to_pydict()
        for values in zip(*(columns[name] for name in Event._fields), strict=True):
            yield Event(*values)
