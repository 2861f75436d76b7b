"""How long what was handed out may have lain in buffers before its consumer read it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from chaos.record.kinds import Kind
from chaos.record.reading import event_files
from chaos.record.schema import EventClass

#: For the buffers of sockets, and of a reader that has other things to do.
USUAL_US = 2_000_000


def slack_us(run_directory: Path, longest_hold_us: int) -> int:
    """For a run in which faults held bytes up for so long, and clients stood still as they recorded themselves."""
    return USUAL_US + longest_hold_us + _longest_stall_us(run_directory)


def _longest_stall_us(run_directory: Path) -> int:
    longest_us = 0
    for path in event_files(run_directory, EventClass.CLIENT):
        rows = pq.ParquetFile(path).read(columns=["kind", "t_lo_us", "t_hi_us"])
        stalls = rows.filter(pc.equal(rows["kind"], int(Kind.STALL)))
        if stalls.num_rows:
            longest_us = max(longest_us, pc.max(pc.subtract(stalls["t_hi_us"], stalls["t_lo_us"])).as_py())
    return longest_us
