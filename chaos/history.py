"""The history of a simulated run: one row per event, one schema, every writer the same.

Rows come from *processes*: each publisher, consumer, observer and the harness itself is one (``proc_id``). A process
numbers its events densely from 1 (``ev_seq``, anew in each ``incarnation``) and ends with `PROC_END`. So a hole or a
missing end is visible, and the analysis then says UNKNOWN instead of guessing: a confirmed message whose delivery was
not recorded must never be called lost.

Order that the rows promise: `PUB_INVOKE` is recorded before the bytes leave, `DELIVER` before the application sees the
message, `ACK_SENT` before the acknowledgement is written. "Before" across processes may only be claimed as
``t_hi_us(x) < t_lo_us(y)``; an event seen by polling carries the interval in which it must have happened.

It is what simulated runs record, in memory; those on real clusters have `chaos.record`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol


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


class History(Protocol):
    """What processes record to."""

    def now(self) -> tuple[int, int]:
        """(monotonic nanoseconds, microseconds since the Unix epoch) of this moment."""

    def append(self, event: Event) -> None:
        """Take one row."""


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
