"""Small schedules for the simulator, written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chaos.sim.drawing import draw_schedule
from chaos.sim.schedule import Personality, Schedule, Step

#: Mirrors everywhere, filled at once, and nothing may be lost.
SAFE_POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-promote-on-failure": "when-synced"}


def personality(**changes: Any) -> Personality:
    """Three quick nodes with one queue, one publisher of persistent messages and one consumer; no faults."""
    drawn = draw_schedule(1).personality
    calm = replace(
        drawn,
        nodes=3,
        queues=1,
        publishers=1,
        consumers=1,
        policy=SAFE_POLICY,
        queue_version=2,
        is_lazy=False,
        is_flush=False,
        link_delay_ms=(0.1, 0.3),
        slow_chunks_percent=0,
        sync_ms=(0.1, 0.5),
        turn_cost_ms=(0.02, 0.05),
        prefetch=10,
        persistent_percent=100,
        requeue_percent=0,
        hold_percent=0,
        faults=(),
        overflow="",
        length_max=0,
        log_entries_kept=0,
        credit=(0, 0),
        sync_throughput_bytes=0,
        transactors=0,
        mandatory_percent=0,
        guests=0,
        odd_percent=0,
        replacements=0,
        has_conditional_deletes=False,
        reject_percent=0,
        wirings=0,
        has_flow=False,
    )
    return replace(calm, **changes)


def schedule(*steps: tuple[Any, ...], lasts_ms: int = 3_000, quiet_ms: int = 12_000, **changes: Any) -> Schedule:
    """``steps``: time in milliseconds, kind and arguments each. ``changes``: of `personality`."""
    listed = tuple(Step(at_ms, kind, tuple(args)) for at_ms, kind, *args in sorted(steps, key=lambda step: step[0]))
    return Schedule(1, personality(**changes), listed, lasts_ms, quiet_ms)


def publish(at_ms: int, burst: int = 5, *, queue: int = 0, is_persistent: bool = True) -> tuple[Any, ...]:
    """A step: so many messages of 100 bytes by the first publisher."""
    return (at_ms, "publish", 0, queue, burst, 100, int(is_persistent), 0)
