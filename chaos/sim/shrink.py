"""Making a failing schedule small: steps are left out as long as it fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): first halves, then
quarters, and so on down to single steps; whatever can go goes. Every step carries all it needs, so any part of a
schedule is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chaos.sim.checks import CHECKS_EVERY
from chaos.sim.run import Outcome, run_schedule
from chaos.sim.schedule import Schedule

#: A schedule with fewer steps has other turns: what its seed's distance between two checks finds would come and go.
run_closely = partial(run_schedule, checks_every=CHECKS_EVERY[0])


def shrink(
    schedule: Schedule,
    *,
    runs_max: int = 400,
    run: Callable[[Schedule], Outcome] = run_closely,
    on_progress: Callable[[int, int], None] = lambda _runs, _steps: None,
) -> tuple[Schedule, Outcome]:
    """The smallest schedule that was found with a first violation of the same kind, and what it shows.

    ``on_progress`` hears the number of runs so far and of the steps left. Raises `ValueError` if it does not fail.
    """
    outcome = run(schedule)
    if not outcome.is_failed:
        raise ValueError(f"seed {schedule.seed} does not fail: there is nothing to shrink")
    kind = outcome.violations[0].kind
    runs, pieces = 1, 2
    while runs < runs_max and schedule.steps:
        size = max(1, -(-len(schedule.steps) // pieces))
        has_shrunk = False
        # From the end: what comes last is seldom the cause, and most of it follows from what is kept.
        for begin in range(((len(schedule.steps) - 1) // size) * size, -1, -size):
            tried = schedule.without(frozenset(range(begin, begin + size)))
            result = run(tried)
            runs += 1
            if result.is_failed and result.violations[0].kind == kind:
                schedule, outcome, has_shrunk = tried, result, True
            on_progress(runs, len(schedule.steps))
            if runs >= runs_max:
                break
        if not has_shrunk and size == 1:
            break
        pieces = min(2 * pieces, max(2, len(schedule.steps))) if not has_shrunk else max(2, pieces)
    return schedule, outcome
