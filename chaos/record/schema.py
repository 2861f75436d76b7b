"""The columns of a record, declared once.

No column is ever null: zero means that there is nothing, and everything that has a number counts from 1. Columns that
are constant in a file cost nothing there.

Files: ``RUN/events/class=CLASS/PROCESS-NUMBER.parquet``, zstd. A file is written under another name and renamed when it
is whole, so what can be read is whole at every moment, also after a crash and while the run goes on.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

EVENTS_DIRECTORY = "events"


class EventClass(StrEnum):
    """Who writes. A partition of the files: most questions need only one of them."""

    CLIENT = "client"
    BROKER = "broker"
    CONTROL = "control"


class Event(NamedTuple):
    """One row."""

    #: Number of the recording process in the roster.
    process: int
    #: Dense in its process, from 1.
    event: int
    #: See `chaos.record.kinds.Kind`.
    kind: int
    #: It happened within these, microseconds since the Unix epoch.
    t_lo_us: int
    t_hi_us: int
    #: See `chaos.record.message_key`.
    message: int = 0
    #: Index in the run's queues, from 1. In rows with a message only if it is not that message's own.
    queue: int = 0
    channel: int = 0
    tag: int = 0
    #: See `chaos.record.kinds.Flag`.
    flags: int = 0
    #: Index in the run's nodes, from 1.
    node: int = 0
    epoch: int = 0
    fault: int = 0
    #: What the kind says.
    number: int = 0
    #: Words or JSON, rare.
    detail: str = ""


_TYPES = {
    "process": pa.int32(),
    "event": pa.int64(),
    "kind": pa.int8(),
    "t_lo_us": pa.int64(),
    "t_hi_us": pa.int64(),
    "message": pa.int64(),
    "queue": pa.int16(),
    "channel": pa.int64(),
    "tag": pa.int64(),
    "flags": pa.int16(),
    "node": pa.int16(),
    "epoch": pa.int32(),
    "fault": pa.int32(),
    "number": pa.int64(),
    "detail": pa.string(),
}
#: Of every file: the columns of `Event` behind the name of the run.
SCHEMA = pa.schema(
    [pa.field("run", pa.dictionary(pa.int32(), pa.string()), nullable=False)]
    + [pa.field(name, _TYPES[name], nullable=False) for name in Event._fields]
)
