"""What a process records can be read back, whole, at every moment."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaos.record import process_record
from chaos.record.kinds import Flag, Kind
from chaos.record.process_record import PART_AGE_MAX_US, ProcessRecord, RunClock, event_table, write_table
from chaos.record.reading import event_files, read_events
from chaos.record.schema import SCHEMA, Event, EventClass

RUN = "run-1"


class StoodClock(RunClock):
    """Moved by hand."""

    def __init__(self) -> None:
        super().__init__(0)
        self.at_us = 1_000

    def now_us(self) -> int:
        return self.at_us


@pytest.fixture
def clock() -> StoodClock:
    return StoodClock()


def opened(directory: Path, clock: RunClock, process: int = 1, rows_per_part: int = 4) -> ProcessRecord:
    return ProcessRecord(directory, RUN, process, EventClass.CLIENT, clock, rows_per_part)


def test_every_column_comes_back(tmp_path: Path, clock: StoodClock) -> None:
    with opened(tmp_path, clock) as record:
        record.add(Kind.PUBLISH, 5, message=1 << 62, channel=1 << 40, tag=7, flags=Flag.MANDATORY)
        record.note(Kind.CHANNEL_OVER, since_us=900, channel=3, node=2, number=-4, detail="told to")
        record.note(Kind.PROMOTED, at_us=2_000, queue=9, epoch=3, fault=1)
        record.check_invariants()
    assert list(read_events(tmp_path)) == [
        Event(1, 1, Kind.PUBLISH, 5, 5, 1 << 62, channel=1 << 40, tag=7, flags=Flag.MANDATORY),
        Event(1, 2, Kind.CHANNEL_OVER, 900, 1_000, channel=3, node=2, number=-4, detail="told to"),
        Event(1, 3, Kind.PROMOTED, 2_000, 2_000, queue=9, epoch=3, fault=1),
        Event(1, 4, Kind.PROCESS_END, 1_000, 1_000),
    ]
    [path] = event_files(tmp_path)
    assert pq.read_schema(path).equals(SCHEMA)
    assert path.parent.name == "class=client"


def test_events_are_numbered_over_all_parts(tmp_path: Path, clock: StoodClock) -> None:
    with opened(tmp_path, clock) as record:
        for tag in range(10):
            record.add(Kind.DELIVER, clock.now_us(), tag=tag)
        assert len(record) == 10
    assert len(event_files(tmp_path)) == 3
    assert [event.event for event in read_events(tmp_path)] == list(range(1, 12))
    assert len(record) == 11, "the end is one of them"


def test_what_is_rare_stays_with_its_row_when_a_part_is_full(tmp_path: Path, clock: StoodClock) -> None:
    with opened(tmp_path, clock) as record:
        for number in range(1, 9):
            record.note(Kind.DEPTH, queue=1, number=number)
    assert [event.number for event in read_events(tmp_path)][:8] == list(range(1, 9))


def test_a_part_is_written_when_it_is_old(tmp_path: Path, clock: StoodClock) -> None:
    """Who watches a quiet run sees what happens in it."""
    record = opened(tmp_path, clock, rows_per_part=1_000)
    record.add(Kind.DELIVER, clock.now_us())
    clock.at_us += PART_AGE_MAX_US
    record.add(Kind.DELIVER, clock.now_us())
    record.add(Kind.DELIVER, clock.now_us())
    record.close()
    assert [pq.read_metadata(path).num_rows for path in event_files(tmp_path)] == [2, 2]


def test_a_process_records_once(tmp_path: Path, clock: StoodClock) -> None:
    opened(tmp_path, clock).close()
    with pytest.raises(FileExistsError, match="every life is another process"):
        opened(tmp_path, clock)
    opened(tmp_path, clock, process=2).close()


def test_an_end_is_the_last_event(tmp_path: Path, clock: StoodClock) -> None:
    record = opened(tmp_path, clock)
    record.close()
    record.close()
    with pytest.raises(AssertionError, match="after its end"):
        record.add(Kind.DELIVER, clock.now_us())
    assert [event.kind for event in read_events(tmp_path)] == [Kind.PROCESS_END]


def test_what_the_writing_meets_is_raised(tmp_path: Path, clock: StoodClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with a hole must not look like a run that went well."""

    def refuse(*_arguments: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(process_record, "write_table", refuse)
    record = opened(tmp_path, clock)
    record.add(Kind.DELIVER, 1)
    with pytest.raises(OSError, match="no space"):
        record.close()


def test_a_file_that_is_not_whole_is_not_read(tmp_path: Path, clock: StoodClock) -> None:
    opened(tmp_path, clock).close()
    [path] = event_files(tmp_path)
    path.rename(path.with_suffix(".unfinished"))
    assert list(read_events(tmp_path)) == []


def test_rows_at_hand_make_the_same_table(tmp_path: Path) -> None:
    events = [Event(3, 1, Kind.DEPTH, 1, 2, queue=1, number=5, detail="x"), Event(3, 2, Kind.PROCESS_END, 3, 3)]
    path = tmp_path / "events" / "class=control" / "000003-000000.parquet"
    path.parent.mkdir(parents=True)
    write_table(path, event_table(RUN, events))
    assert list(read_events(tmp_path)) == events
    assert pq.read_schema(path).equals(SCHEMA)
    assert event_table(RUN, []).schema == SCHEMA


def test_two_clocks_with_one_offset_agree() -> None:
    first = RunClock()
    second = RunClock(first.offset_us)
    before = first.now_us()
    between = second.now_us()
    assert before <= between <= first.now_us()
