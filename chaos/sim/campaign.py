"""Many seeds, side by side in processes of their own: which fail, and how fast it goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

from chaos.sim.run import run_schedule
from chaos.sim.scenarios.catalogue import draw

#: Seeds of one task of a worker: results come often enough, and tasks cost little beside them.
SEEDS_PER_TASK = 4


class SeedResult(NamedTuple):
    """What a campaign keeps of a run."""

    seed: int
    #: The first violations, as lines.
    violations: tuple[str, ...]
    fingerprint: int
    simulated_s: float
    took_s: float
    turns: int
    #: What of `chaos.sim.sometimes.CATALOGUE` was reached.
    sightings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Campaign:
    """Which seeds are run, and how: `draw` says what the numbers mean."""

    seeds: Sequence[int]
    nodes: int
    operations: int | None
    length_ms: int | None
    jobs: int
    #: Of `chaos.sim.scenarios`; empty: from everything there is.
    scenario: str = ""

    def run(self) -> Iterator[SeedResult]:
        """Results as they come; not in the order of the seeds if there are several jobs."""
        if self.jobs == 1:
            for seed in self.seeds:
                yield run_seed(seed, self.nodes, self.operations, self.length_ms, self.scenario)
            return
        # Forked workers would share the parent's threads' locks; a new interpreter also has another hash seed.
        with ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn"), max_tasks_per_child=50) as pool:
            yield from self._spread(pool)

    def _spread(self, pool: ProcessPoolExecutor) -> Iterator[SeedResult]:
        waiting = [self.seeds[at : at + SEEDS_PER_TASK] for at in range(0, len(self.seeds), SEEDS_PER_TASK)]
        waiting.reverse()
        under_way: set[Future[list[SeedResult]]] = set()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < 2 * self.jobs:
                    what = (self.nodes, self.operations, self.length_ms, self.scenario)
                    under_way.add(pool.submit(run_seeds, list(waiting.pop()), *what))
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        finally:
            for future in under_way:
                future.cancel()


def run_seeds(
    seeds: Sequence[int], nodes: int, operations: int | None, length_ms: int | None, scenario: str = ""
) -> list[SeedResult]:
    return [run_seed(seed, nodes, operations, length_ms, scenario) for seed in seeds]


def run_seed(seed: int, nodes: int, operations: int | None, length_ms: int | None, scenario: str = "") -> SeedResult:
    begin_s = time.perf_counter()
    try:
        outcome = run_schedule(draw(seed, nodes, operations, length_ms, scenario))
    except Exception as error:
        # The simulator's own mistake: it must not end a campaign without the seed.
        return SeedResult(seed, (f"harness: {error!r}",), 0, 0.0, time.perf_counter() - begin_s, 0)
    return SeedResult(
        seed,
        tuple(str(violation) for violation in outcome.violations[:3]),
        outcome.fingerprint,
        outcome.length_s,
        time.perf_counter() - begin_s,
        outcome.turns,
        outcome.sightings,
    )


def jobs_by_default() -> int:
    """One for each core."""
    return len(os.sched_getaffinity(0))
