"""What one process of a simulated run records."""

from __future__ import annotations

import pytest

from chaos.history import Event, Kind, ProcessLog, ProcKind


class Memory:
    """Satisfies `chaos.history.History`; every moment is a millisecond after the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_us = 0

    def now(self) -> tuple[int, int]:
        self._now_us += 1000
        return self._now_us * 1000, self._now_us

    def append(self, event: Event) -> None:
        self.events.append(event)


def test_events_are_numbered_densely_and_end() -> None:
    memory = Memory()
    logs = [ProcessLog(memory, number, ProcKind.PUBLISHER, 1) for number in (1, 2)]
    for seq in range(1, 4):
        for log in logs:
            log.record(Kind.PUB_INVOKE, queue_id=0, pub_id=3, seq=seq, attempt=1, body_bytes=256)
    for log in logs:
        log.end()
        log.end()
    for number in (1, 2):
        assert [event.ev_seq for event in memory.events if event.proc_id == number] == [1, 2, 3, 4]
    assert [event.kind for event in memory.events[-2:]] == [Kind.PROC_END, Kind.PROC_END]
    assert (memory.events[0].pub_id, memory.events[0].bytes, memory.events[0].redelivered) == (3, 256, None)


def test_an_observed_interval_is_kept() -> None:
    memory = Memory()
    log = ProcessLog(memory, 1, ProcKind.OBSERVER, 1)
    begun_us = log.now_us()
    log.record(Kind.PROMOTE, t_lo_us=begun_us)
    log.record(Kind.JOIN)
    promote, join = memory.events
    assert promote.t_lo_us == begun_us < promote.t_hi_us <= join.t_lo_us == join.t_hi_us


def test_nothing_may_follow_the_end_of_a_process() -> None:
    log = ProcessLog(Memory(), 1, ProcKind.CONSUMER, 1)
    log.end()
    with pytest.raises(AssertionError, match="after its end"):
        log.record(Kind.DELIVER)
