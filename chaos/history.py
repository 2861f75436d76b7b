"""The history of a run: one row per event, one schema, every writer the same.

Rows come from *processes*: each publisher, consumer, observer and the harness itself is one (``proc_id``). A process
numbers its events densely from 1 (``ev_seq``, anew in each ``incarnation``) and ends with `PROC_END`. So a hole or a
missing end is visible, and the analysis then says UNKNOWN instead of guessing: a confirmed message whose delivery was
not recorded must never be called lost.

Order that the rows promise: `PUB_INVOKE` is recorded before the bytes leave, `DELIVER` before the application sees the
message, `ACK_SENT` before the acknowledgement is written. "Before" across processes may only be claimed as
``t_hi_us(x) < t_lo_us(y)``; an event seen by polling carries the interval in which it must have happened.

Files: ``DIR/events/part-NNNNNN.parquet``, zstd, one row group each. A part is written under another name and renamed
when it is whole, so a run that is cut short leaves only readable parts. Encoding runs on one thread beside the event
loop; when it falls behind by `MAX_PENDING_PARTS`, the recorder waits rather than grow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows of one part: encoding it takes some tens of milliseconds, and a crash of the harness loses at most this many.
ROWS_PER_PART = 16_384
#: Parts being encoded at once before recording waits: about 30 MB of rows.
MAX_PENDING_PARTS = 4


class Kind(StrEnum):
    """What happened. Names as in the laboratory's event schema."""

    PUB_INVOKE = "PUB_INVOKE"  # about to publish (publisher)
    CONFIRM = "CONFIRM"  # basic.ack from the broker
    NACK = "NACK"  # basic.nack from the broker: definitely refused
    RETURN = "RETURN"  # basic.return: no queue took it
    PUB_UNKNOWN = "PUB_UNKNOWN"  # connection gone before an answer: may or may not be stored
    CONFIRM_STRAY = "CONFIRM_STRAY"  # answer for a publish that is not outstanding
    DELIVER = "DELIVER"
    BROWSE = "BROWSE"  # seen in a queue by a non-destructive look
    ACK_SENT = "ACK_SENT"
    NACK_SENT = "NACK_SENT"
    CANCELLED = "CANCELLED"  # the broker cancelled the consumer
    CONN_OPEN = "CONN_OPEN"
    CONN_LOST = "CONN_LOST"
    CH_CLOSE = "CH_CLOSE"
    CONN_CLOSE = "CONN_CLOSE"  # closed by us
    EXPIRE = "EXPIRE"  # removed legally: expired, dropped by a limit, purged, dead-lettered
    DROP = "DROP"
    PURGE = "PURGE"
    DEADLETTER = "DEADLETTER"
    PROMOTE = "PROMOTE"
    JOIN = "JOIN"
    LEAVE = "LEAVE"
    SYNC_BEGIN = "SYNC_BEGIN"
    SYNC_END = "SYNC_END"
    FAULT_BEGIN = "FAULT_BEGIN"
    FAULT_END = "FAULT_END"
    PHASE = "PHASE"
    DEPTH = "DEPTH"
    STALL = "STALL"  # the harness itself stood still: times around it are not the broker's
    PROC_END = "PROC_END"


class ProcKind(StrEnum):
    """Who recorded it."""

    PUBLISHER = "pub"
    CONSUMER = "con"
    OBSERVER = "observer"
    NEMESIS = "nemesis"
    HARNESS = "harness"


class Event(NamedTuple):
    """One row. Fields that do not apply are None."""

    #: Dense per (proc_id, incarnation), from 1.
    ev_seq: int
    proc_id: int
    proc_kind: str
    incarnation: int
    #: Monotonic clock of the harness machine.
    t_mono_ns: int
    #: The event happened within [t_lo_us, t_hi_us], microseconds since the Unix epoch.
    t_lo_us: int
    t_hi_us: int
    kind: str
    #: Index into ``queues`` of run.json.
    queue_id: int | None = None
    #: Message identity: publisher, its message number from 1, attempt from 1.
    pub_id: int | None = None
    seq: int | None = None
    attempt: int | None = None
    #: Unique in the run: a reopened channel gets another one.
    channel_id: int | None = None
    consumer_id: int | None = None
    delivery_tag: int | None = None
    redelivered: bool | None = None
    multiple: bool | None = None
    requeue: bool | None = None
    #: Index into ``nodes`` of run.json: connected to, promoted, hurt, ...
    node_id: int | None = None
    #: Generation of the queue's mastership, counted by the observer from 1.
    epoch: int | None = None
    fault_id: int | None = None
    #: Kind-specific number: DEPTH messages, STALL microseconds, PROMOTE 1 when the oldest synchronised mirror won.
    result: int | None = None
    bytes: int | None = None
    crc_ok: bool | None = None
    err: str | None = None
    #: JSON, rare.
    detail: str | None = None


_DICTIONARY = pa.dictionary(pa.int16(), pa.string())
#: Columns of a part, in order: the run's own three, then those of `Event`.
SCHEMA = pa.schema(
    [
        ("run_id", _DICTIONARY),
        ("seed", pa.int64()),
        ("scenario", _DICTIONARY),
        ("ev_seq", pa.int64()),
        ("proc_id", pa.int32()),
        ("proc_kind", _DICTIONARY),
        ("incarnation", pa.int32()),
        ("t_mono_ns", pa.int64()),
        ("t_lo_us", pa.int64()),
        ("t_hi_us", pa.int64()),
        ("kind", _DICTIONARY),
        ("queue_id", pa.int32()),
        ("pub_id", pa.int32()),
        ("seq", pa.int64()),
        ("attempt", pa.int32()),
        ("channel_id", pa.int64()),
        ("consumer_id", pa.int32()),
        ("delivery_tag", pa.int64()),
        ("redelivered", pa.bool_()),
        ("multiple", pa.bool_()),
        ("requeue", pa.bool_()),
        ("node_id", pa.int32()),
        ("epoch", pa.int32()),
        ("fault_id", pa.int32()),
        ("result", pa.int64()),
        ("bytes", pa.int32()),
        ("crc_ok", pa.bool_()),
        ("err", pa.string()),
        ("detail", pa.string()),
    ]
)
_RUN_COLUMNS = 3


class History(Protocol):
    """What processes record to: files (`HistoryWriter`), or the memory of a simulation."""

    def now(self) -> tuple[int, int]:
        """(monotonic nanoseconds, microseconds since the Unix epoch) of this moment."""

    def append(self, event: Event) -> None:
        """Take one row."""


class HistoryWriter:
    """Collects the events of a whole run and writes them in parts."""

    def __init__(
        self, run_dir: Path, run_id: str, seed: int, scenario: str, rows_per_part: int = ROWS_PER_PART
    ) -> None:
        self._events_dir = run_dir / "events"
        self._events_dir.mkdir(parents=True, exist_ok=True)
        if event_parts(run_dir):
            raise FileExistsError(f"{self._events_dir} already holds a run; choose another directory")
        self._run = (run_id, seed, scenario)
        self._rows_per_part = rows_per_part
        self._rows: list[Event] = []
        self._part_number = 0
        self._logs: list[ProcessLog] = []
        self._encoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._pending: deque[Future[None]] = deque()
        self._is_closed = False
        #: Events recorded so far, for progress display.
        self.event_count = 0
        # One pair of clock readings ties the monotonic clock to the calendar: a step of the wall clock during the
        # run cannot reorder events.
        self._epoch_offset_ns = time.time_ns() - time.monotonic_ns()

    def process(self, proc_id: int, proc_kind: ProcKind, incarnation: int = 1) -> ProcessLog:
        """The log of one process; ends by itself when the writer is closed."""
        log = ProcessLog(self, proc_id, proc_kind, incarnation)
        self._logs.append(log)
        return log

    def now(self) -> tuple[int, int]:
        """(monotonic nanoseconds, microseconds since the Unix epoch) of this moment."""
        mono_ns = time.monotonic_ns()
        return mono_ns, (mono_ns + self._epoch_offset_ns) // 1000

    def append(self, event: Event) -> None:
        """Take one row; every `ROWS_PER_PART` rows a part goes to the encoder."""
        self._rows.append(event)
        self.event_count += 1
        if len(self._rows) >= self._rows_per_part:
            self.flush()

    def flush(self) -> None:
        """Hand the rows collected so far to the encoder as one part."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        while len(self._pending) >= MAX_PENDING_PARTS:
            self._pending.popleft().result()
        path = self._events_dir / f"part-{self._part_number:06d}.parquet"
        self._part_number += 1
        self._pending.append(self._encoder.submit(write_part, path, self._run, rows))

    def close(self) -> None:
        """End every process log, write what is left and wait for the encoder. Raises what the encoder met."""
        if self._is_closed:
            return
        self._is_closed = True
        for log in self._logs:
            log.end()
        self.flush()
        try:
            while self._pending:
                self._pending.popleft().result()
        finally:
            self._encoder.shutdown()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_invariants(self) -> None:
        assert len(self._rows) < self._rows_per_part, "a full buffer was not handed to the encoder"
        assert len(self._pending) <= MAX_PENDING_PARTS, "more parts wait than the bound allows"


class ProcessLog:
    """What one process records; numbers its events."""

    __slots__ = ("_has_ended", "_incarnation", "_proc_kind", "_writer", "ev_seq", "proc_id")

    def __init__(self, writer: History, proc_id: int, proc_kind: ProcKind, incarnation: int) -> None:
        self._writer = writer
        self.proc_id = proc_id
        self._proc_kind = proc_kind.value
        self._incarnation = incarnation
        self._has_ended = False
        #: Number of the last event recorded.
        self.ev_seq = 0

    def record(
        self,
        kind: Kind,
        *,
        t_lo_us: int | None = None,
        queue_id: int | None = None,
        pub_id: int | None = None,
        seq: int | None = None,
        attempt: int | None = None,
        channel_id: int | None = None,
        consumer_id: int | None = None,
        delivery_tag: int | None = None,
        redelivered: bool | None = None,
        multiple: bool | None = None,
        requeue: bool | None = None,
        node_id: int | None = None,
        epoch: int | None = None,
        fault_id: int | None = None,
        result: int | None = None,
        body_bytes: int | None = None,
        crc_ok: bool | None = None,
        err: str | None = None,
        detail: str | None = None,
    ) -> int:
        """Append an event of this moment (or of the interval since ``t_lo_us``). Returns its time in microseconds."""
        assert not self._has_ended, "a process recorded something after its end"
        mono_ns, now_us = self._writer.now()
        self.ev_seq += 1
        self._writer.append(
            Event(
                self.ev_seq, self.proc_id, self._proc_kind, self._incarnation,
                mono_ns, now_us if t_lo_us is None else t_lo_us, now_us, kind.value,
                queue_id, pub_id, seq, attempt, channel_id, consumer_id, delivery_tag, redelivered, multiple, requeue,
                node_id, epoch, fault_id, result, body_bytes, crc_ok, err, detail,
            )
        )  # fmt: skip
        return now_us

    def now_us(self) -> int:
        """This moment on the clock of the events' times."""
        return self._writer.now()[1]

    def end(self) -> None:
        """Record `PROC_END`; nothing may follow. Safe to call twice."""
        if not self._has_ended:
            self.record(Kind.PROC_END)
            self._has_ended = True


def write_part(path: Path, run: tuple[str, int, str], rows: list[Event]) -> None:
    """Write rows as one Parquet file that is either whole or absent."""
    run_columns = [[value] * len(rows) for value in run]
    columns = run_columns + [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def event_parts(run_dir: Path) -> list[Path]:
    """The files that the events of a run are in, in their order; none if it did not get as far as recording any."""
    return sorted((run_dir / "events").glob("part-*.parquet"))


def read_events(run_dir: Path) -> Iterator[Event]:
    """Every event of a stored run, part by part (small tools and tests; the analysis reads with Spark)."""
    for path in event_parts(run_dir):
        columns = pq.read_table(path).to_pydict()
        names = SCHEMA.names[_RUN_COLUMNS:]
        for values in zip(*(columns[name] for name in names), strict=True):
            yield Event(*values)


@contextmanager
def open_history(run_dir: Path, run_id: str, seed: int, scenario: str) -> Iterator[HistoryWriter]:
    """A writer that is closed, and so complete, whatever happens inside."""
    writer = HistoryWriter(run_dir, run_id, seed, scenario)
    try:
        yield writer
    finally:
        writer.close()
