"""Taking safeguards away one by one, each until a seed shows what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from chaos.sim.ablation.catalogue import SAFEGUARDS
from chaos.sim.ablation.safeguard import Safeguard, without
from chaos.sim.run import run_schedule
from chaos.sim.scenarios.catalogue import draw
from chaos.sim.schedule import Schedule
from chaos.sim.shrink import shrink

#: Of the judgement, in the table.
SAID_CHARACTERS_MAX = 160
NODES = 3


class Finding(NamedTuple):
    """What came of one safeguard's absence."""

    safeguard: str
    scenario: str
    #: Seeds that were run, from 1 on.
    seeds: int
    #: The last of them failed.
    is_found: bool
    #: What it was judged to be, in a line.
    said: str = ""
    #: Steps as drawn, and when shrunk.
    steps: int = 0
    steps_left: int = 0
    #: The shrunk one, for who wants to keep it.
    schedule: Schedule | None = None


def find(
    safeguard: Safeguard,
    seeds_max: int,
    shrink_runs_max: int,
    on_progress: Callable[[str], None] = lambda _what: None,
) -> Finding:
    """Run seeds of its scenario without it until one fails that does not fail with it, and shrink that."""
    for seed in range(1, seeds_max + 1):
        on_progress(f"{safeguard.name}: seed {seed}")
        schedule = draw(seed, NODES, scenario=safeguard.scenario)
        with without(safeguard):
            is_failed = run_schedule(schedule).is_failed
        if not is_failed or run_schedule(schedule).is_failed:
            continue
        with without(safeguard):
            smallest, outcome = shrink(
                schedule,
                runs_max=shrink_runs_max,
                on_progress=lambda runs, steps: on_progress(f"{safeguard.name}: {runs} runs, {steps} steps are left"),
            )
        said = str(outcome.violations[0])[:SAID_CHARACTERS_MAX]
        return Finding(
            safeguard.name, safeguard.scenario, seed, True, said, len(schedule.steps), len(smallest.steps), smallest
        )
    return Finding(safeguard.name, safeguard.scenario, seeds_max, False)


def find_by_name(name: str, seeds_max: int, shrink_runs_max: int) -> Finding:
    """In a process of its own."""
    return find(SAFEGUARDS[name], seeds_max, shrink_runs_max)


def find_all(
    names: Sequence[str],
    seeds_max: int,
    shrink_runs_max: int,
    jobs: int,
    on_progress: Callable[[str], None] = lambda _what: None,
) -> Iterator[Finding]:
    """Findings as they come; each safeguard has one process, so its seeds are run in their order."""
    if jobs == 1:
        for name in names:
            yield find(SAFEGUARDS[name], seeds_max, shrink_runs_max, on_progress)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = [pool.submit(find_by_name, name, seeds_max, shrink_runs_max) for name in names]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
