"""A process that stood still says so."""

from __future__ import annotations

from chaos.clients.stall_watch import STALL_US, StallWatch
from chaos.record.kinds import Kind
from tests.support.recorded_rows import RecordedRows


def test_only_what_was_long_is_told_from_the_last_tick_to_the_next() -> None:
    record = RecordedRows()
    watch = StallWatch(record, 1_000)
    for now_us in (50_000, 50_000 + STALL_US - 1, 50_000 + 2 * STALL_US, 3 * STALL_US + 60_000):
        watch.tick(now_us)
    assert [row.kind for row in record.rows] == [Kind.STALL, Kind.STALL]
    assert record.times_us == [
        (50_000 + STALL_US - 1, 50_000 + 2 * STALL_US),
        (50_000 + 2 * STALL_US, 60_000 + 3 * STALL_US),
    ]
