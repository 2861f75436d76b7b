"""One mutant, tried in a private copy of the tree: do the tests notice it, does the simulator?"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutation.covering import Covering, Test
from tests.mutation.mutator import Mutant
from tests.mutation.selection import TESTS_VARIABLE, killer_file

#: Tests that are asked first: most mutants are noticed by one of the quickest, and fewer files are imported for them.
FIRST_TESTS = 30
#: A mutant that makes a test take this many times as long (and this much longer) hangs.
SLOWER_FACTOR, SLOWER_S = 20.0, 60.0
#: What one that allocates without end may take.
MEMORY_BYTES = 4 << 30
#: About a minute of simulated clusters.
SIMULATED_SEEDS = "1..60"
SIMULATOR_TIMEOUT_S = 900.0

NOTICED_BY_TESTS = "noticed by tests"
NOTICED_BY_SIMULATOR = "noticed by the simulator"
SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant."""

    mutant: str
    package: str
    path: str
    function: str
    line: int
    kind: str
    diff: str
    status: str
    #: The test that failed, or how the simulator ended; empty if nothing did.
    killer: str
    #: How many tests execute the line.
    tests: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def difference(mutant: Mutant, source: bytes) -> str:
    """Old and new line, without indentation; several lines are put on one."""
    first = source.rfind(b"\n", 0, mutant.begin) + 1
    last = source.find(b"\n", mutant.end)
    old = source[first:last].decode()
    new = source[first : mutant.begin].decode() + mutant.after + source[mutant.end : last].decode()
    return f"{' '.join(old.split())}  ->  {' '.join(new.split())}"


class Workshop:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, root: Path, directory: Path) -> None:
        """``root`` is only read."""
        self.directory = directory
        self.log = directory.with_suffix(".log")
        named = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in named.stdout.decode().split("\0"):
            source = root / name
            if name and source.is_file() and not source.is_symlink():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)

    def attempt(self, package: str, mutant: Mutant, covering: Covering, *, simulate: bool) -> Result:
        path = self.directory / mutant.path
        source = path.read_bytes()
        tests = covering.of(mutant)
        path.write_bytes(mutant.applied(source))
        try:
            status, killer = NOTICED_BY_TESTS, self._first_failure(tests)
            if not killer and simulate:
                status, killer = NOTICED_BY_SIMULATOR, self._simulate()
        finally:
            path.write_bytes(source)
        return Result(
            mutant.name,
            package,
            mutant.path,
            mutant.function,
            mutant.line,
            mutant.kind,
            difference(mutant, source),
            status if killer else SURVIVED,
            killer,
            len(tests),
        )

    def _first_failure(self, tests: Sequence[Test]) -> str:
        """Name of the first test that fails; empty if all pass."""
        return next(
            (killer for some in (tests[:FIRST_TESTS], tests[FIRST_TESTS:]) if some and (killer := self._run(some))), ""
        )

    def _run(self, tests: Sequence[Test]) -> str:
        wanted = self.directory.with_suffix(".tests")
        wanted.write_text("\n".join(test.name for test in tests), encoding="utf-8")
        killer_file(wanted).unlink(missing_ok=True)
        files = list(dict.fromkeys(test.file for test in tests))
        patience_s = SLOWER_S + SLOWER_FACTOR * sum(test.seconds for test in tests)
        plugins = ["-p", "tests.mutation.selection", "-p", "no:cacheprovider"]
        code = self._call(
            [sys.executable, "-m", "pytest", "-x", *plugins, *files], patience_s, {TESTS_VARIABLE: str(wanted)}
        )
        if code == 0:
            return ""
        if code is None:
            return "no end"
        assert code not in {4, 5}, f"the tests could not be run:\n{self.log.read_text(encoding='utf-8')[-2000:]}"
        killer = killer_file(wanted)
        return killer.read_text(encoding="utf-8") if killer.exists() else f"exit code {code}"

    def _simulate(self) -> str:
        command = [sys.executable, "-m", "chaos.cli", "sim", "--seeds", SIMULATED_SEEDS, "--jobs", "1"]
        code = self._call(command, SIMULATOR_TIMEOUT_S, {})
        return "" if code == 0 else f"seeds {SIMULATED_SEEDS}: " + ("no end" if code is None else f"exit code {code}")

    def _call(self, command: Sequence[str], timeout_s: float, variables: dict[str, str]) -> int | None:
        """The exit code; None if it took too long."""
        environment = os.environ | {"PYTHONPATH": str(self.directory), "PYTHONDONTWRITEBYTECODE": "1"} | variables
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=limit_memory,  # noqa: PLW1509 - it calls the kernel only
            )
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
