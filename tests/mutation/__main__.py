"""Are mistakes noticed? ``python -m tests.mutation --minutes 30 --jobs 2``, or ``make mutants``.

Draws mutants of each package (`tests.mutation.mutator`), tries each in a private copy of the tree with the fast tests
that execute its line, and those that survive with a minute of the simulator. Results are kept in ``--out``; the next
run goes on where this one ended. The working tree is not touched, but for the table of docs/mutants.md.

Exits 1 if fewer were noticed than promised, or an entry of ``equivalent.toml`` is stale.
"""

from __future__ import annotations

import argparse
import hashlib
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation import report
from tests.mutation.covering import Covering, covering, digest_of, test_files
from tests.mutation.mutator import Mutant, mutants_of, sample
from tests.mutation.recording import ROOT
from tests.mutation.trial import SURVIVED, Result, Workshop, difference

PACKAGES = {
    "mirroring": "cluster/mirroring",
    "raft": "cluster/raft",
    "metadata": "cluster/metadata",
    "sessions": "cluster/sessions",
    "queues": "node/queues",
    "store": "node/store",
}
EQUIVALENTS = Path(__file__).with_name("equivalent.toml")
DOCUMENT = ROOT / "docs" / "mutants.md"


class Task(NamedTuple):
    package: str
    mutant: Mutant
    #: Names the result: of this mutant in this text of its module.
    key: str


def tasks_of(packages: Sequence[str], count: int, seed: int) -> list[Task]:
    """``count`` in all, as many of each package; one of each in turn, so that a run that ends early is fair."""
    columns = [list(_tasks_of_package(name, -(-count // len(packages)), seed)) for name in packages]
    longest = max(map(len, columns))
    return [column[row] for row in range(longest) for column in columns if row < len(column)][:count]


def _tasks_of_package(name: str, count: int, seed: int) -> Iterator[Task]:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / PACKAGES[name]).rglob("*.py"))
    }
    mutants = [mutant for path, source in sources.items() for mutant in mutants_of(path, source)]
    for mutant in sample(mutants, count, seed, name):
        content = f"{mutant.name}\0{sources[mutant.path]}"
        yield Task(name, mutant, f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}")


def named(mutant: Mutant) -> tuple[str, str, str]:
    """As in ``equivalent.toml``."""
    return mutant.path, mutant.function, difference(mutant, (ROOT / mutant.path).read_bytes())


class Run:
    """Workers that take tasks until there are none or the time is over."""

    def __init__(
        self, kept: report.Results, tests: str, covered: Covering, end_s: float, not_simulated: Container[Task]
    ) -> None:
        """``tests``: digest of all that are asked. ``not_simulated``: of these the simulator is not asked."""
        self._kept, self._tests, self._covered = kept, tests, covered
        self._end_s, self._not_simulated = end_s, not_simulated
        self.results: dict[str, Result] = {}
        self.failures: list[BaseException] = []

    def all(self, tasks: Sequence[Task], jobs: int) -> None:
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            known = self._kept.get(task.key, self._tests)
            if known is not None:
                self.results[task.key] = known
            else:
                waiting.put(task)
        print(f"{len(tasks)} mutants, {len(self.results)} known from earlier", flush=True)
        workers = [threading.Thread(target=self._work, args=(waiting,)) for _ in range(jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.failures:
            raise self.failures[0]

    def _work(self, waiting: queue.SimpleQueue[Task]) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
                workshop = Workshop(ROOT, Path(directory) / "tree")
                while time.monotonic() < self._end_s and not self.failures:
                    task = waiting.get_nowait()
                    simulate = task not in self._not_simulated
                    result = workshop.attempt(task.package, task.mutant, self._covered, simulate=simulate)
                    self._kept.put(task.key, self._tests, result)
                    self.results[task.key] = result
                    tell(result)
        except queue.Empty:
            return
        except BaseException as error:
            self.failures.append(error)


def tell(result: Result) -> None:
    killer = result.killer.rpartition("::")[2] or f"of {result.tests} tests, none"
    print(f"{result.status}: {result.path}:{result.line}: {result.diff}  [{killer}]", flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES), metavar="NAME")
    parser.add_argument("--count", type=int, default=400, help="mutants in all (400)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants side by side")
    parser.add_argument("--minutes", type=float, default=60, help="no mutant is begun after so long (60)")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="only tests below these (all fast ones)")
    parser.add_argument("--no-simulator", action="store_true", help="ask the tests only")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants", help="results, a JSON file each")
    parser.add_argument("--write-table", action="store_true", help="write the table of docs/mutants.md")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    end_s = time.monotonic() + 60 * chosen.minutes
    equivalents = report.read_equivalents(EQUIVALENTS)
    tasks = tasks_of(chosen.packages, chosen.count, chosen.seed)
    paths = [PACKAGES[name] for name in chosen.packages]
    files = [name for name in test_files(ROOT) if not chosen.tests or name.startswith(tuple(chosen.tests))]
    covered = covering(ROOT, files, paths, chosen.out / "covering.json.gz", chosen.jobs)
    alike = {entry[:3] for entry in equivalents}
    # The tests are asked about what is listed as equivalent, too; a minute of the simulator would be wasted on it.
    not_simulated = [task for task in tasks if chosen.no_simulator or named(task.mutant) in alike]
    run = Run(report.Results(chosen.out), digest_of(ROOT, files), covered, end_s, not_simulated)
    run.all(tasks, chosen.jobs)

    done = [(task.package, run.results[task.key]) for task in tasks if task.key in run.results]
    results = [result for _, result in done]
    scores = {
        name: report.score_of([result for package, result in done if package == name], equivalents)
        for name in chosen.packages
    }
    total = report.score_of(results, equivalents)
    lines = report.table(scores, total)
    missed = report.survivors(results, equivalents)
    print("", *lines, "", *missed, sep="\n")
    if chosen.write_table:
        how = f"{len(results)} of {len(tasks)} mutants, seed {chosen.seed}"
        how += ", without the simulator." if chosen.no_simulator else "."
        report.write_document(
            DOCUMENT, [how, "", *lines, "", "Survivors:" if missed else "No survivors.", *[""][: len(missed)], *missed]
        )
    old = report.stale(equivalents, ROOT)
    for entry in old:
        print(f"stale in {EQUIVALENTS.name}: {entry.module}, {entry.function}: {entry.diff}")
    for result in results:
        if result.status != SURVIVED and (result.path, result.function, result.diff) in alike:
            print(f"not equivalent, {result.killer} noticed it: {result.diff}")
    sys.exit(0 if report.is_enough(scores, total) and not old else 1)


if __name__ == "__main__":
    main()
