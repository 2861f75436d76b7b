"""When memory is short, and how long queues may keep messages then."""

from __future__ import annotations

import math

import pytest

from node.alarms.memory_monitor import QUEUES_PER_STEP, MemoryMonitor, PagingSweep, target_duration_s
from node.ids import QueueId
from tests.support.resources import FakePagingQueues

INFINITE = math.inf


def test_the_alarm_is_set_at_once_and_cleared_a_second_after_the_last_excess() -> None:
    monitor = MemoryMonitor(1000, 0.5)
    for now_ms, used_bytes, is_alarmed in (
        (0, 1000, False),
        (100, 1001, True),
        (200, 999, True),
        (700, 1001, True),
        (1600, 999, True),
        (1700, 1000, False),
        (1800, 1000, False),
        (1900, 1001, True),
    ):
        monitor.measured(used_bytes, now_ms)
        monitor.check_invariants()
        assert monitor.is_alarmed is is_alarmed, now_ms


def test_a_new_limit_is_judged_at_once() -> None:
    monitor = MemoryMonitor(1000, 0.5)
    monitor.measured(500, 0)
    monitor.set_limit(0)
    monitor.measured(500, 1)
    assert monitor.is_alarmed, "a limit of 0 blocks publishers whatever is in use"
    monitor.set_limit(1000)
    monitor.measured(500, 2)
    assert not monitor.is_alarmed


@pytest.mark.parametrize(
    ("used_bytes", "durations_s", "target_s"),
    [
        (499, [10.0], INFINITE),
        (500, [10.0], 22.0),
        (500, [10.0, 30.0], 41.0),
        (500, [10.0, INFINITE], 22.0),
        (900, [0.0, 0.0], 1 / 2 / 0.9),
        (950, [19.0], 20.0),
        (1000, [19.0], 19.0),
        (1001, [19.0], 0.0),
        (1001, [], 0.0),
        (900, [INFINITE], INFINITE),
        (900, [], INFINITE),
    ],
)
def test_the_target_is_the_references(used_bytes: int, durations_s: list[float], target_s: float) -> None:
    assert target_duration_s(used_bytes, 1000, 0.5, durations_s, is_disk_alarmed=False) == pytest.approx(target_s)
    assert target_duration_s(used_bytes, 1000, 0.5, durations_s, is_disk_alarmed=True) == INFINITE


def test_a_limit_of_nothing_is_no_division_by_it() -> None:
    assert target_duration_s(1, 0, 0.5, [1.0], is_disk_alarmed=False) == 0.0
    assert target_duration_s(0, 0, 0.5, [1.0], is_disk_alarmed=False) == INFINITE


class Bench:
    """A node with 1000 bytes of memory, half of it without paging."""

    def __init__(self, queues: FakePagingQueues) -> None:
        self.queues = queues
        self.monitor = MemoryMonitor(1000, 0.5)
        self.sweep = PagingSweep()
        self.now_ms = 0
        self.is_disk_alarmed = False

    def step(self, used_bytes: int) -> dict[QueueId, float]:
        """A step at the next tick; what queues were told in it."""
        self.now_ms += 200
        self.queues.targets_s.clear()
        self.monitor.measured(used_bytes, self.now_ms)
        self.sweep.step(self.monitor, self.queues, self.now_ms, is_disk_alarmed=self.is_disk_alarmed)
        self.sweep.check_invariants()
        return dict(self.queues.targets_s)


def test_few_queues_are_asked_and_told_in_one_step() -> None:
    bench = Bench(FakePagingQueues(q1=10.0, q2=30.0, q3=INFINITE))
    assert bench.step(400) == {}
    assert bench.queues.calls == [], "nobody is troubled while there is room"
    assert bench.step(500) == dict.fromkeys(bench.queues.durations_s, 41.0)
    assert bench.step(1001) == dict.fromkeys(bench.queues.durations_s, 0.0)
    assert bench.step(499) == dict.fromkeys(bench.queues.durations_s, INFINITE)
    assert bench.step(499) == {}
    assert bench.queues.calls == [("ask", 3), ("tell", 3)] * 3


def test_queues_without_traffic_are_left_alone_until_the_limit_is_passed() -> None:
    bench = Bench(FakePagingQueues(q1=INFINITE))
    assert bench.step(900) == {}
    assert bench.queues.calls == [("ask", 1)]
    assert bench.step(1001) == {QueueId(1): 0.0}


def test_a_full_disk_lets_queues_keep_what_they_have() -> None:
    bench = Bench(FakePagingQueues(q1=10.0))
    assert bench.step(1001) == {QueueId(1): 0.0}
    bench.is_disk_alarmed = True
    assert bench.step(1001) == {QueueId(1): INFINITE}
    assert bench.step(1001) == {}


def test_sweeps_keep_their_distance() -> None:
    bench = Bench(FakePagingQueues(q1=10.0))
    bench.step(900)
    bench.sweep.step(bench.monitor, bench.queues, bench.now_ms + 199, is_disk_alarmed=False)
    assert bench.queues.calls == [("ask", 1), ("tell", 1)]


def test_many_queues_are_swept_in_portions() -> None:
    count = QUEUES_PER_STEP + 100
    bench = Bench(FakePagingQueues(**{f"q{number}": 5.0 for number in range(count)}))
    assert bench.step(900) == {}
    target_s = (5.0 * count + 1) / count / 0.9
    # The rest is asked, then the first are told with what is left of the portion.
    assert bench.step(900) == {QueueId(number): pytest.approx(target_s) for number in range(QUEUES_PER_STEP - 100)}
    assert len(bench.step(900)) == 200
    assert bench.queues.calls == [("ask", 500), ("ask", 100), ("tell", 400), ("tell", 200)]


def test_no_queue_is_no_work_and_no_target() -> None:
    bench = Bench(FakePagingQueues())
    assert bench.step(1001) == {}
    assert bench.sweep.target_s == math.inf
