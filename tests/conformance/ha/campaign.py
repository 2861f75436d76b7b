"""Many seeds of seeded cases (`tests.conformance.ha.revived`), over several processes."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import NamedTuple

from tests.conformance.ha.revived import SEEDED
from tests.conformance.ha.runs import simulate

SEEDS_PER_TASK = 5
#: Of a campaign, so many failures are told in full.
TOLD_MAX = 20
PROGRESS_S = 5.0


class Result(NamedTuple):
    """Of one seed of one case."""

    case_id: str
    seed: int
    fingerprint: int
    took_s: float
    #: Why it failed; empty if it did not.
    failure: str


def run_one(case_id: str, seed: int) -> Result:
    begin_s = time.perf_counter()
    fingerprint, failure = 0, ""
    try:
        fingerprint = simulate(SEEDED[case_id](seed))
    except Exception as error:
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if "/conformance/" in frame.filename]
        where = "".join(f"\n    {frame.name}: {frame.line}" for frame in places[-3:])
        failure = f"{type(error).__name__}: {error}{where}"
    return Result(case_id, seed, fingerprint, time.perf_counter() - begin_s, failure)


def run_some(case_id: str, seeds: Sequence[int]) -> list[Result]:
    return [run_one(case_id, seed) for seed in seeds]


def run_all(case_ids: Sequence[str], seeds: range, jobs: int) -> Iterator[Result]:
    """As they come."""
    tasks = [
        (case_id, seeds[at : at + SEEDS_PER_TASK])
        for at in range(0, len(seeds), SEEDS_PER_TASK)
        for case_id in case_ids
    ]
    if jobs == 1:
        for case_id, some in tasks:
            yield from run_some(case_id, some)
        return
    tasks.reverse()
    # New interpreters: a campaign is worth more under several hash seeds, and no lock of a parent is inherited.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=50) as pool:
        under_way: set[Future[list[Result]]] = set()
        while tasks or under_way:
            while tasks and len(under_way) < 2 * jobs:
                under_way.add(pool.submit(run_some, *tasks.pop()))
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()


def tell(result: Result, *, in_full: bool) -> None:
    lines = result.failure.splitlines()
    chosen = lines if in_full else [*lines[:1], *lines[1:][-3:]]
    print(f"{result.case_id} seed {result.seed}:", *chosen, sep="\n  ", flush=True)


def campaign(case_ids: Sequence[str], seeds: range, jobs: int) -> int:
    total, ran, told_s = len(case_ids) * len(seeds), 0, time.monotonic()
    begin_s = told_s
    failed: dict[str, list[int]] = {}
    for result in run_all(case_ids, seeds, jobs):
        ran += 1
        if result.failure:
            failed.setdefault(result.case_id, []).append(result.seed)
            if sum(map(len, failed.values())) <= TOLD_MAX:
                tell(result, in_full=total == 1)
        now_s = time.monotonic()
        if now_s - told_s > PROGRESS_S:
            told_s = now_s
            print(f"{ran} of {total}, {sum(map(len, failed.values()))} failed", file=sys.stderr, flush=True)
    took_s = time.monotonic() - begin_s
    number = sum(map(len, failed.values()))
    print(f"{ran} runs of {len(case_ids)} cases, {number} failed, in {took_s:.0f} s, {ran / took_s:.1f} a second")
    for case_id, seeds_of_case in failed.items():
        print(f"  {case_id}: seeds {' '.join(map(str, sorted(seeds_of_case)))}")
    return 1 if failed else 0
