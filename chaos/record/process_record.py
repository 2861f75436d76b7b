"""What one process records: it numbers its events and writes them in parts.

A client process records five rows for each message and must not be slowed down by it: a row is a few appends to arrays
of numbers, and a part is encoded from those arrays, without an object for each row, on a thread beside. When that
thread falls behind by `PENDING_PARTS_MAX`, who records waits, rather than grow.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.record.kinds import Kind
from chaos.record.schema import EVENTS_DIRECTORY, SCHEMA, Event, EventClass

#: Rows of a part. Encoding them takes some tens of milliseconds; a process that is killed loses at most so many.
ROWS_PER_PART = 65_536
#: A part is written after so long even if it is not full: who watches a run wants to see it.
PART_AGE_MAX_US = 2_000_000
#: Parts that are being encoded: some 40 MB.
PENDING_PARTS_MAX = 4
#: Codes of `array` for the columns of numbers.
_CODES = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}
#: Set in almost every row; the others are kept for the rows that have them.
_DENSE = ("kind", "t_lo_us", "t_hi_us", "message", "channel", "tag", "flags")
_SPARSE = ("queue", "node", "epoch", "fault", "number", "detail")


class RunClock:
    """Microseconds since the Unix epoch, by the monotonic clock of this machine.

    Whoever conducts a run makes one, and hands ``offset_us`` to every process of it: all read the same clock.
    """

    def __init__(self, offset_us: int | None = None) -> None:
        """Tied to the calendar now, unless ``offset_us`` is that of another."""
        self.offset_us = (time.time_ns() - time.monotonic_ns()) // 1000 if offset_us is None else offset_us

    def now_us(self) -> int:
        """This moment."""
        return time.monotonic_ns() // 1000 + self.offset_us


class _Part:
    """Rows by columns."""

    def __init__(self, first_event: int) -> None:
        self.first_event = first_event
        self.kind = array("b")
        self.t_lo_us = array("q")
        self.t_hi_us = array("q")
        self.message = array("q")
        self.channel = array("q")
        self.tag = array("q")
        self.flags = array("h")
        #: Values that are not zero by their row.
        self.sparse: dict[str, dict[int, int | str]] = {name: {} for name in _SPARSE}

    def __len__(self) -> int:
        return len(self.kind)

    def table(self, run: str, process: int) -> pa.Table:
        """As a table of `SCHEMA`."""
        rows = len(self)
        columns = {
            "run": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()).take(_zeros(rows)), [run]),
            "process": pa.repeat(pa.scalar(process, pa.int32()), rows),
            "event": _numbers("event", array("q", range(self.first_event, self.first_event + rows))),
        }
        for name in _DENSE:
            columns[name] = _numbers(name, getattr(self, name))
        for name, values in self.sparse.items():
            columns[name] = _spread(name, values, rows)
        return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _zeros(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int32()), rows)


def _numbers(name: str, values: array[int]) -> pa.Array:
    column_type = SCHEMA.field(name).type
    assert values.typecode == _CODES[column_type], f"the array of {name} has the width of its column"
    return pa.Array.from_buffers(column_type, len(values), [None, pa.py_buffer(values)])


def _spread(name: str, values: dict[int, int | str], rows: int) -> pa.Array:
    """A column that is zero, or empty, but for these rows."""
    column_type = SCHEMA.field(name).type
    empty = "" if pa.types.is_string(column_type) else 0
    if not values:
        return pa.repeat(pa.scalar(empty, column_type), rows)
    column = [empty] * rows
    for row, value in values.items():
        column[row] = value
    return pa.array(column, column_type)


class ProcessRecord:
    """Records one process of a run. Close it, or leave its context: without an end the record counts as cut off."""

    def __init__(
        self,
        run_directory: Path,
        run: str,
        process: int,
        event_class: EventClass,
        clock: RunClock,
        rows_per_part: int = ROWS_PER_PART,
    ) -> None:
        """``process`` is in the roster of the run. Raises `FileExistsError` if it has recorded something already."""
        directory = run_directory / EVENTS_DIRECTORY / f"class={event_class}"
        directory.mkdir(parents=True, exist_ok=True)
        if next(directory.glob(f"{process:06d}-*"), None) is not None:
            raise FileExistsError(
                f"process {process} has recorded in {directory} already; every life is another process"
            )
        self._directory = directory
        self._run = run
        self._rows_per_part = rows_per_part
        self._part = _Part(1)
        self._part_since_us = clock.now_us()
        self._part_number = 0
        self._encoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record")
        self._pending: deque[Future[None]] = deque()
        self._has_ended = False
        self.process = process
        self.clock = clock

    def __len__(self) -> int:
        """Events so far."""
        return self._part.first_event - 1 + len(self._part)

    def add(self, kind: Kind, at_us: int, message: int = 0, channel: int = 0, tag: int = 0, flags: int = 0) -> None:
        """An event of a message at ``at_us`` (`RunClock.now_us`, which a caller asks once for many)."""
        part = self._part
        part.kind.append(kind)
        part.t_lo_us.append(at_us)
        part.t_hi_us.append(at_us)
        part.message.append(message)
        part.channel.append(channel)
        part.tag.append(tag)
        part.flags.append(flags)
        if len(part.kind) >= self._rows_per_part or at_us - self._part_since_us >= PART_AGE_MAX_US:
            self.flush()

    def note(
        self,
        kind: Kind,
        at_us: int | None = None,
        since_us: int | None = None,
        message: int = 0,
        channel: int = 0,
        tag: int = 0,
        flags: int = 0,
        **others: int | str,
    ) -> None:
        """An event with any of the columns, now or at ``at_us``; it may have happened from ``since_us`` on."""
        at_us = self.clock.now_us() if at_us is None else at_us
        part = self._part
        row = len(part)
        for name, value in others.items():
            if value:
                part.sparse[name][row] = value
        if since_us is None:
            self.add(kind, at_us, message, channel, tag, flags)
            return
        assert since_us <= at_us, "an interval begins before it ends"
        self.add(kind, at_us, message, channel, tag, flags)
        part.t_lo_us[row] = since_us

    def flush(self) -> None:
        """Write what was recorded so far."""
        part = self._part
        if not part:
            return
        assert not self._has_ended, "a process recorded something after its end"
        self._part = _Part(part.first_event + len(part))
        self._part_since_us = self.clock.now_us()
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        while len(self._pending) >= PENDING_PARTS_MAX:
            self._pending.popleft().result()
        path = self._directory / f"{self.process:06d}-{self._part_number:06d}.parquet"
        self._part_number += 1
        self._pending.append(self._encoder.submit(_write, path, part, self._run, self.process))

    def close(self) -> None:
        """Record the end and write what is left. Raises what the writing met. May be called twice."""
        if self._has_ended:
            return
        self.note(Kind.PROCESS_END)
        self.flush()
        self._has_ended = True
        self._rows_per_part = 0  # so that any row is noticed
        try:
            while self._pending:
                self._pending.popleft().result()
        finally:
            self._encoder.shutdown()

    def __enter__(self) -> ProcessRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the record contradicts itself."""
        part = self._part
        assert len(part) < self._rows_per_part or self._has_ended, "a full part is handed over"
        assert len(self._pending) <= PENDING_PARTS_MAX, "who records waits for who encodes"
        assert {len(getattr(part, name)) for name in _DENSE} == {len(part)}, "every column has every row"


def _write(path: Path, part: _Part, run: str, process: int) -> None:
    write_table(path, part.table(run, process))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a file that is either whole or absent."""
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def event_table(run: str, events: list[Event]) -> pa.Table:
    """Rows that are at hand, as a table of `SCHEMA`."""
    columns = [list(column) for column in zip(*events, strict=True)] if events else [[] for _ in Event._fields]
    arrays = [pa.array(values, SCHEMA.field(name).type) for name, values in zip(Event._fields, columns, strict=True)]
    runs = pa.DictionaryArray.from_arrays(_zeros(len(events)), [run])
    return pa.Table.from_arrays([runs, *arrays], schema=SCHEMA)
