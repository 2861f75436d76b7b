"""What came of a run, and of many runs together."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.judge.verdict import Verdict
from chaos.whole_file import write_whole

#: Of all runs of a suite, and in the directory of one run.
FILE_NAME = "results.jsonl"
RESULT_FILE_NAME = "result.json"
#: Of the interval that a bound belongs to.
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run, or of a scenario that was skipped."""

    scenario: str
    title: str
    target: str
    seed: int
    #: None: it was skipped, and proves nothing.
    verdict: Verdict | None
    reasons: tuple[str, ...] = ()
    #: Of the run; empty if there was none.
    directory: str = ""
    took_s: float = 0.0
    #: Findings by their names.
    counts: Mapping[str, int] = field(default_factory=dict)
    at_risk: Mapping[str, int] = field(default_factory=dict)
    #: By service: the longest time without it, microseconds; zero if it was shorter than the shortest that is told.
    longest_gap_us: Mapping[str, int] = field(default_factory=dict)
    #: What each failover cost, in words: the first of them.
    failovers: tuple[str, ...] = ()

    @property
    def is_bad(self) -> bool:
        """True if it was run, and did not hold."""
        return self.verdict not in (None, Verdict.PASS, Verdict.EXPECTED_LOSS)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, line: str) -> Result:
        values = json.loads(line)
        verdict = values.pop("verdict")
        reasons, failovers = (tuple(values.pop(name, ())) for name in ("reasons", "failovers"))
        verdict = None if verdict is None else Verdict(verdict)
        return cls(verdict=verdict, reasons=reasons, failovers=failovers, **values)


def append(directory: Path, result: Result) -> None:
    """Add it to the file of a suite: what was run stays known if the next run ends everything."""
    with (directory / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(result.to_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_result(directory: Path, result: Result) -> None:
    """Into the directory of its run, whole or not at all."""
    write_whole(directory / RESULT_FILE_NAME, result.to_json() + "\n")


def read(directory: Path) -> list[Result]:
    """All of a suite, in order; a last line that was not finished is left out."""
    text = (directory / FILE_NAME).read_text(encoding="utf-8")
    return [Result.from_json(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def upper_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The largest probability of an event under which so few among so many are not yet unlikely.

    One-sided, exact: the probability at which at most ``events`` come with ``1 - confidence``. Without events it is
    ``1 - (1 - confidence) ** (1 / trials)``, about 3 / trials (the rule of three). Source: Clopper and Pearson, 1934.
    """
    if events >= trials:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if _at_most(events, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(events: int, trials: int, probability: float) -> float:
    """Probability of at most so many among so many."""
    if probability <= 0.0:
        return 1.0
    if probability >= 1.0:
        return 0.0
    term = total = (1 - probability) ** trials
    for count in range(1, events + 1):
        term *= (trials - count + 1) / count * probability / (1 - probability)
        total += term
    return total


@dataclass(frozen=True, slots=True)
class Summary:
    """Of many runs."""

    verdicts: Mapping[str, int]
    skipped: int
    #: Sums over all runs.
    counts: Mapping[str, int]
    at_risk: Mapping[str, int]
    took_s: float

    @property
    def runs(self) -> int:
        return sum(self.verdicts.values())

    @property
    def bounds(self) -> Mapping[str, float]:
        """Upper bounds of the probability that a message at risk is lost, and that a failover loses any."""
        lost = self.counts.get("lost", 0) + self.counts.get("vanished", 0)
        found = {}
        if stored := self.at_risk.get("stored", 0):
            found["lost for each message at risk"] = upper_bound(min(lost, stored), stored)
        if failovers := self.at_risk.get("failovers", 0):
            found["loss for each failover"] = upper_bound(min(lost, failovers), failovers)
        return found


def summarise(results: Iterable[Result]) -> Summary:
    """All together."""
    results = list(results)
    run = [result for result in results if result.verdict is not None]
    return Summary(
        verdicts=dict(Counter(str(result.verdict) for result in run)),
        skipped=len(results) - len(run),
        counts=_sums([result.counts for result in run]),
        at_risk=_sums([result.at_risk for result in run]),
        took_s=sum(result.took_s for result in run),
    )


def _sums(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)
