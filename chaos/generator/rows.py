"""The rows of a block, as columns.

Rows are added by the thousand, in any order, and known by the order in which they were added (their *place*). Until
they are numbered nothing depends on their neighbours: an event's number and a delivery's tag are counted in the end, so
that whoever adds a row, or takes one out, has nothing to put right behind it. What belongs together is tied by a
*line*: all rows of one publish, or of one delivery, name the same, and get the tag of the `PUBLISH` or `DELIVER` among
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chaos.record.kinds import Kind
from chaos.record.schema import SCHEMA

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[Any]

#: No line: the tag stays what it is.
NO_LINE = -1
_OPENING = (Kind.PUBLISH, Kind.DELIVER)
_COLUMNS: dict[str, npt.DTypeLike] = {
    "process": np.int32,
    "kind": np.int8,
    "t_lo_us": np.int64,
    "t_hi_us": np.int64,
    "message": np.int64,
    "queue": np.int16,
    "channel": np.int64,
    "tag": np.int64,
    "flags": np.int16,
    "node": np.int16,
    "epoch": np.int32,
    "fault": np.int32,
    "number": np.int64,
    "line": np.int64,
}
#: Moments of a block are packed behind the process to be sorted in one go: some nine hours of them.
_TIME_BITS = 45


@dataclass(slots=True)
class Counters:
    """How far a record has come: what its blocks hand on."""

    #: By process, and deliveries or publishes by channel.
    events: dict[int, int] = field(default_factory=dict)
    tags: dict[int, int] = field(default_factory=dict)
    channels: int = 0

    def new_channels(self, count: int) -> Numbers:
        """Numbers of channels that are opened now."""
        self.channels += count
        return np.arange(self.channels - count + 1, self.channels + 1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Numbered:
    """Rows in the order of their processes and events."""

    columns: Mapping[str, Column]
    details: Mapping[int, str]
    #: By place in `Rows`; zero for what was taken out.
    event_of_place: Numbers

    def process_tables(self, run: str) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each process as a table of `SCHEMA`."""
        processes = self.columns["process"]
        starts = np.flatnonzero(np.diff(processes, prepend=-1)) if len(processes) else np.zeros(0, np.int64)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(processes)], strict=True):
            yield int(processes[start]), self._table(run, start, end)

    def _table(self, run: str, start: int, end: int) -> pa.Table:
        details = [""] * (end - start) if self.details else None
        for row in self.details:
            if details is not None and start <= row < end:
                details[row - start] = self.details[row]
        arrays = []
        for name in SCHEMA.names:
            column_type = SCHEMA.field(name).type
            if name == "run":
                zeros = pa.repeat(pa.scalar(0, pa.int32()), end - start)
                arrays.append(pa.DictionaryArray.from_arrays(zeros, [run]))
            elif name == "detail":
                empty = pa.repeat(pa.scalar("", column_type), end - start)
                arrays.append(pa.array(details, column_type) if details and any(details) else empty)
            else:
                arrays.append(pa.array(self.columns[name][start:end], column_type))
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


class Rows:
    """Rows of a block."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[Column]] = {name: [] for name in _COLUMNS}
        self._rows = 0
        self._lines = 0
        #: Of the rows that were there when they were sealed.
        self.columns: dict[str, Column] = {}
        self._taken_out: list[Numbers] = []
        self._details: dict[int, str] = {}

    def __len__(self) -> int:
        return self._rows

    def new_lines(self, count: int) -> Numbers:
        """Lines that nobody has."""
        self._lines += count
        return np.arange(self._lines - count, self._lines, dtype=np.int64)

    def add(
        self,
        kind: Kind | npt.ArrayLike,
        process: npt.ArrayLike,
        t_us: npt.ArrayLike,
        *,
        since_us: npt.ArrayLike | None = None,
        **others: npt.ArrayLike,
    ) -> Numbers:
        """Add rows, one for each moment. Returns their places."""
        moments = np.atleast_1d(np.asarray(t_us, np.int64))
        count = len(moments)
        values: dict[str, npt.ArrayLike] = {
            "kind": kind,
            "process": process,
            "t_hi_us": moments,
            "t_lo_us": moments if since_us is None else since_us,
            "line": NO_LINE,
            **others,
        }
        assert values.keys() <= _COLUMNS.keys(), "every name is one of a column"
        for name, width in _COLUMNS.items():
            self._chunks[name].append(np.broadcast_to(np.asarray(values.get(name, 0), width), (count,)))
        self._rows += count
        return np.arange(self._rows - count, self._rows, dtype=np.int64)

    def describe(self, places: Numbers, words: str) -> None:
        """Give rows their detail."""
        self._details.update(dict.fromkeys(places.tolist(), words))

    def seal(self) -> None:
        """Make `columns` of what is there, so that it can be changed in place."""
        for name, chunks in self._chunks.items():
            self.columns[name] = np.concatenate(chunks) if chunks else np.zeros(0, _COLUMNS[name])
            self._chunks[name] = [self.columns[name]]

    def take_out(self, places: Numbers) -> None:
        """Rows that will not have been; negative places are nobody's."""
        self._taken_out.append(places[places >= 0])

    def numbered(self, counters: Counters) -> Numbered:
        """Count what has to be counted. Rows of one moment keep their order."""
        self.seal()
        is_kept = np.ones(self._rows, np.bool_)
        for places in self._taken_out:
            is_kept[places] = False
        t_us, processes = self.columns["t_hi_us"], self.columns["process"]
        since_us = t_us.min() if self._rows else 0
        sort_key = (processes.astype(np.int64) << _TIME_BITS) + (t_us - since_us)
        order = np.argsort(sort_key, kind="stable")
        order = order[is_kept[order]]
        columns = {name: column[order] for name, column in self.columns.items()}
        columns["event"] = _counted(columns["process"], counters.events)
        self._tag(columns, counters)
        event_of_place = np.zeros(self._rows, np.int64)
        event_of_place[order] = columns["event"]
        rank = np.full(self._rows, -1, np.int64)
        rank[order] = np.arange(len(order))
        details = {int(rank[place]): words for place, words in self._details.items() if rank[place] >= 0}
        return Numbered(columns, details, event_of_place)

    def _tag(self, columns: dict[str, Column], counters: Counters) -> None:
        lines = columns["line"].astype(np.int64)
        opening = np.flatnonzero(np.isin(columns["kind"], _OPENING) & (lines != NO_LINE))
        tag_of_line = np.zeros(self._lines, np.int64)
        by_channel = opening[np.argsort(columns["channel"][opening], kind="stable")]
        tag_of_line[lines[by_channel]] = _counted(columns["channel"][by_channel], counters.tags)
        is_tied = lines != NO_LINE
        columns["tag"][is_tied] = tag_of_line[lines[is_tied]]


def _counted(groups: Column, so_far: dict[int, int]) -> Numbers:
    """Numbers from 1 within each group; groups lie together, and go on where they were."""
    starts = np.flatnonzero(np.diff(groups.astype(np.int64), prepend=-1))
    lengths = np.diff(np.append(starts, len(groups)))
    names = groups[starts].tolist()
    before = np.array([so_far.get(name, 0) for name in names], np.int64)
    numbers = np.arange(1, len(groups) + 1, dtype=np.int64) - np.repeat(starts - before, lengths)
    for name, length in zip(names, lengths.tolist(), strict=True):
        so_far[name] = so_far.get(name, 0) + length
    return numbers
