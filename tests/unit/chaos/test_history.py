from __future__ import annotations

from pathlib import Path

import pytest

from chaos.history import SCHEMA, Event, HistoryWriter, Kind, ProcKind, read_events


def open_writer(path: Path, rows_per_part: int = 10) -> HistoryWriter:
    return HistoryWriter(path, "run", 1, "test", rows_per_part)


def test_schema_has_the_runs_columns_and_then_every_field_of_an_event() -> None:
    assert SCHEMA.names == ["run_id", "seed", "scenario", *Event._fields]


def test_what_was_recorded_can_be_read_and_is_numbered_densely(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        first, second = writer.process(1, ProcKind.PUBLISHER), writer.process(2, ProcKind.CONSUMER)
        for seq in range(1, 26):
            first.record(Kind.PUB_INVOKE, queue_id=0, pub_id=3, seq=seq, attempt=1, body_bytes=256)
            second.record(Kind.DELIVER, seq=seq, redelivered=seq == 7, crc_ok=True)
            writer.check_invariants()
    events = list(read_events(tmp_path))
    assert len(list((tmp_path / "events").iterdir())) == 6
    for proc_id in (1, 2):
        assert [event.ev_seq for event in events if event.proc_id == proc_id] == list(range(1, 27))
    assert [event.kind for event in events[-2:]] == ["PROC_END", "PROC_END"]
    published = events[0]
    assert (published.pub_id, published.seq, published.bytes, published.redelivered) == (3, 1, 256, None)
    assert [event.seq for event in events if event.redelivered] == [7]


def test_run_cut_short_leaves_whole_parts_and_no_end(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    log = writer.process(1, ProcKind.PUBLISHER)
    for seq in range(15):
        log.record(Kind.PUB_INVOKE, seq=seq)
    writer._encoder.shutdown()  # the process dies here: five events were never handed on
    events = list(read_events(tmp_path))
    assert [event.seq for event in events] == list(range(10))
    assert all(event.kind != "PROC_END" for event in events)


def test_times_do_not_run_backwards_and_an_observed_interval_is_kept(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        log = writer.process(1, ProcKind.OBSERVER)
        begun = log.now_us()
        log.record(Kind.PROMOTE, t_lo_us=begun - 30_000)
        log.record(Kind.JOIN)
    promote, join, end = read_events(tmp_path)
    assert promote.t_lo_us == begun - 30_000
    assert promote.t_lo_us < promote.t_hi_us <= join.t_lo_us == join.t_hi_us <= end.t_hi_us


def test_nothing_may_follow_the_end_of_a_process(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        log = writer.process(1, ProcKind.CONSUMER)
        log.end()
        log.end()
        with pytest.raises(AssertionError, match="after its end"):
            log.record(Kind.DELIVER)
    assert [event.kind for event in read_events(tmp_path)] == ["PROC_END"]


def test_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.process(1, ProcKind.HARNESS)
    with pytest.raises(FileExistsError, match="another directory"):
        open_writer(tmp_path)


def test_error_of_the_encoder_reaches_the_recorder(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    log = writer.process(1, ProcKind.PUBLISHER)
    log.record(Kind.PUB_INVOKE, seq="not a number")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="not a number"):
        writer.close()
