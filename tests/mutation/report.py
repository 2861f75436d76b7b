"""What is known of the mutants tried: results by package, what is equivalent, and the table of docs/mutants.md."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutator import mutants_of
from tests.mutation.trial import NOTICED_BY_SIMULATOR, NOTICED_BY_TESTS, SURVIVED, Result, difference

BEGIN, END = "<!-- the table begins: python -m tests.mutation -->", "<!-- the table ends -->"
#: What must be noticed, in sum and of each package.
SUM_MIN, PACKAGE_MIN = 0.95, 0.90


class Equivalent(NamedTuple):
    """A mutant that nobody could notice, and why."""

    module: str
    function: str
    diff: str
    reason: str


def read_equivalents(path: Path) -> list[Equivalent]:
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    return [Equivalent(entry["module"], entry["function"], entry["diff"], entry["reason"]) for entry in entries]


def stale(equivalents: Iterable[Equivalent], root: Path) -> list[Equivalent]:
    """Those that are no mutant of the code as it is now."""
    found = []
    mutants: dict[str, set[tuple[str, str]]] = {}
    for entry in equivalents:
        if entry.module not in mutants:
            path = root / entry.module
            source = path.read_text(encoding="utf-8") if path.exists() else ""
            all_of_it = mutants_of(entry.module, source)
            mutants[entry.module] = {(each.function, difference(each, source.encode())) for each in all_of_it}
        if (entry.function, entry.diff) not in mutants[entry.module]:
            found.append(entry)
    return found


class Score(NamedTuple):
    """Of a package, or in sum."""

    tried: int
    by_tests: int
    by_simulator: int
    equivalent: int
    survived: int

    @property
    def share(self) -> float:
        """Of those that can be noticed."""
        return (self.by_tests + self.by_simulator) / max(1, self.tried - self.equivalent)


def score_of(results: Sequence[Result], equivalents: Sequence[Equivalent]) -> Score:
    statuses = [result.status for result in results]
    alike = {(entry.module, entry.function, entry.diff) for entry in equivalents}
    survived = [each for each in results if each.status == SURVIVED]
    equivalent = sum((each.path, each.function, each.diff) in alike for each in survived)
    return Score(
        len(results),
        statuses.count(NOTICED_BY_TESTS),
        statuses.count(NOTICED_BY_SIMULATOR),
        equivalent,
        len(survived) - equivalent,
    )


def is_enough(scores: Mapping[str, Score], total: Score) -> bool:
    return total.share >= SUM_MIN and all(score.share >= PACKAGE_MIN for score in scores.values())


def table(scores: Mapping[str, Score], total: Score) -> list[str]:
    lines = [
        "| package | mutants | noticed by tests | by the simulator | equivalent | survived | noticed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, score in [*scores.items(), ("in sum", total)]:
        numbers = " | ".join(map(str, score))
        lines.append(f"| {name} | {numbers} | {score.share:.0%} |")
    return lines


def survivors(results: Iterable[Result], equivalents: Sequence[Equivalent]) -> list[str]:
    """A line for each that should have been noticed."""
    alike = {(entry.module, entry.function, entry.diff) for entry in equivalents}
    return [
        f"- `{each.path}`, `{each.function}`: `{each.diff}`"
        for each in results
        if each.status == SURVIVED and (each.path, each.function, each.diff) not in alike
    ]


def write_document(path: Path, lines: Sequence[str]) -> None:
    """Between the two marks; the rest of the document stays."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")


class Results:
    """Of earlier runs, a JSON file each; good as long as what they depend on is the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, tests: str) -> Result | None:
        """A noticed mutant stays noticed; one that survived is tried again by other tests."""
        path = self._directory / f"{key}.json"
        if not path.exists():
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
        result = Result(**kept["result"])
        return result if result.status != SURVIVED or kept["tests"] == tests else None

    def put(self, key: str, tests: str, result: Result) -> None:
        text = json.dumps({"result": result.as_json(), "tests": tests}, indent=1)
        (self._directory / f"{key}.json").write_text(text + "\n", encoding="utf-8")
