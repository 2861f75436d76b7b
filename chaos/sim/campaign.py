"""Many seeds, side by side in processes of their own: which fail, and how fast it goes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
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
    #: No seed begins after so many seconds; ``None``: all of them are run.
    seconds: float | None = None
    #: Of `chaos.sim.scenarios`; empty: from everything there is.
    scenario: str = ""

    def run(self) -> Iterator[SeedResult]:
        """Results as they come; not in the order of the seeds if there are several jobs."""
        end_s = None if self.seconds is None else time.monotonic() + self.seconds
        if self.jobs == 1:
            for seed in self.seeds:
                if is_over(end_s):
                    return
                yield run_seed(seed, self.nodes, self.operations, self.length_ms, self.scenario)
            return
        # Forked workers would share the parent's threads' locks; a new interpreter also has another hash seed.
        pool = ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn"), max_tasks_per_child=200)
        is_done = False
        try:
            yield from self._spread(pool, end_s)
            is_done = True
        finally:
            if not is_done:
                # Somebody has had enough: what the workers are at is of no use to anybody.
                for worker in list(pool._processes.values()):
                    worker.terminate()
            pool.shutdown(cancel_futures=True)

    def _spread(self, pool: ProcessPoolExecutor, end_s: float | None) -> Iterator[SeedResult]:
        """No more than a few tasks are made ahead: a campaign of millions takes no more memory than one of ten."""
        waiting = (self.seeds[at : at + SEEDS_PER_TASK] for at in task_begins(len(self.seeds)))
        under_way: set[Future[list[SeedResult]]] = set()
        is_more = True
        while is_more or under_way:
            while is_more and len(under_way) < 2 * self.jobs:
                seeds = None if is_over(end_s) else next(waiting, None)
                is_more = seeds is not None
                if seeds is not None:
                    with _interrupts_wait():
                        task = (list(seeds), self.nodes, self.operations, self.length_ms, self.scenario, end_s)
                        under_way.add(pool.submit(run_seeds, *task))
            if under_way:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()


def task_begins(seeds: int) -> range:
    """Where the tasks of so many seeds begin."""
    return range(0, seeds, SEEDS_PER_TASK)


def is_over(end_s: float | None) -> bool:
    """Whether it is too late to begin, on the clock that all processes of a machine share."""
    return end_s is not None and time.monotonic() >= end_s


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C goes to every process of a terminal, and the campaign ends its workers itself. What is started meanwhile,
    workers and the thread that starts their successors, never hears of one; and nobody is left half started.

    To be called on the main thread, where interrupts are raised whichever thread was given the signal.
    """
    heard: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if heard and handler is not signal.SIG_IGN:
            raise KeyboardInterrupt


def run_seeds(
    seeds: Sequence[int],
    nodes: int,
    operations: int | None,
    length_ms: int | None,
    scenario: str = "",
    end_s: float | None = None,
) -> list[SeedResult]:
    """Those that can still begin."""
    results: list[SeedResult] = []
    for seed in seeds:
        if is_over(end_s):
            break
        results.append(run_seed(seed, nodes, operations, length_ms, scenario))
    return results


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
