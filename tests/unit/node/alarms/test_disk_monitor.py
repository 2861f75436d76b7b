"""When the disk is looked at, and what follows."""

from __future__ import annotations

import pytest

from node.alarms.disk_monitor import DiskMonitor

LIMIT = 50_000_000
MB = 1_000_000


def next_check_ms(monitor: DiskMonitor, now_ms: int) -> int:
    """How long the monitor looks away from ``now_ms`` on."""
    monitor.check_invariants()
    return next(wait_ms for wait_ms in range(20_000) if monitor.is_due(now_ms + wait_ms))


def test_the_first_look_is_due_at_once() -> None:
    monitor = DiskMonitor(LIMIT)
    assert monitor.is_due(0)
    assert monitor.free_bytes is None
    assert not monitor.is_alarmed


@pytest.mark.parametrize(
    ("above_limit_bytes", "wait_ms"),
    [(0, 100), (12 * MB, 100), (25 * MB, 200), (250 * MB, 2000), (1250 * MB, 10_000), (10**12, 10_000)],
)
def test_the_nearer_to_the_limit_the_sooner_it_looks_again(above_limit_bytes: int, wait_ms: int) -> None:
    """Twice the time that 250 MB/s would take to the limit, from 0.1 s to 10 s."""
    monitor = DiskMonitor(LIMIT)
    monitor.measured(LIMIT + above_limit_bytes, 5000)
    assert not monitor.is_alarmed
    assert next_check_ms(monitor, 5000) == wait_ms


def test_the_alarm_is_set_below_the_limit_and_cleared_at_it() -> None:
    monitor = DiskMonitor(LIMIT)
    monitor.measured(LIMIT - 1, 0)
    assert monitor.is_alarmed
    assert next_check_ms(monitor, 0) == 1000
    monitor.measured(LIMIT, 1000)
    assert not monitor.is_alarmed


def test_a_new_limit_is_judged_at_once() -> None:
    monitor = DiskMonitor(LIMIT)
    monitor.measured(10**12, 0)
    monitor.set_limit(2 * 10**12)
    assert monitor.is_due(0)
    monitor.measured(10**12, 0)
    assert monitor.is_alarmed
    assert monitor.limit_bytes == 2 * 10**12


def test_a_disk_that_cannot_be_measured_keeps_its_alarm_and_is_tried_again() -> None:
    monitor = DiskMonitor(LIMIT)
    monitor.measured(0, 0)
    assert monitor.could_not_measure("timeout", 1000), "said once"
    assert (monitor.is_alarmed, monitor.free_bytes, monitor.failure) == (True, None, "timeout")
    assert next_check_ms(monitor, 1000) == 10_000
    assert not monitor.could_not_measure("timeout", 11_000)
    monitor.measured(10**12, 21_000)
    assert (monitor.is_alarmed, monitor.failure) == (False, "")
    assert monitor.could_not_measure("timeout", 31_000), "and again after it worked"
