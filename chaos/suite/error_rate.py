"""How often the judge is wrong: known anomalies at random places in histories without any other, and what it finds.

*Recall* is the share of the planted findings that are found, each in its row; *precision* the share of the violations
found that were planted. Both belong to what is planted: an anomaly that nobody thought of is in neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from chaos.generator.history import History
from chaos.generator.planted import Planted
from chaos.generator.run import write_run
from chaos.generator.shape import Shape
from chaos.judge.facts_file import FACTS_FILE
from chaos.judge.findings import VIOLATIONS, Finding, Name
from chaos.judge.judgement import Judgement
from chaos.spark_judge.evidence import FINDINGS_DIRECTORY, judge_run
from chaos.spark_judge.session import open_session

#: Below it a judgement is over before Java has warmed up.
_SMALL_MESSAGES = 100_000


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """Of one history."""

    rows: int
    messages: int
    #: By anomaly: planted, and found of these.
    planted: dict[str, int]
    found: dict[str, int]
    #: Violations that nobody planted.
    extra: Sequence[Finding]

    @property
    def recall(self) -> float:
        return _share(sum(self.found.values()), sum(self.planted.values()))

    @property
    def precision(self) -> float:
        right = sum(self.found.values())
        return _share(right, right + len(self.extra))

    @property
    def is_perfect(self) -> bool:
        """Everything that was planted was found, and nothing else."""
        return self.found == self.planted and not self.extra

    def table(self) -> str:
        """As Markdown."""
        lines = ["| anomaly | planted | found | recall |", "| --- | ---: | ---: | ---: |"]
        for name, planted in sorted(self.planted.items()):
            found = self.found.get(name, 0)
            lines.append(f"| {name} | {planted:,} | {found:,} | {_share(found, planted):.3f} |")
        total, found = sum(self.planted.values()), sum(self.found.values())
        lines.append(f"| all {len(self.planted)} classes | {total:,} | {found:,} | {self.recall:.3f} |")
        lines += ["", f"Found, and not planted: {len(self.extra):,}. Precision: {self.precision:.3f}."]
        return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def compare(planted: Iterable[Planted], found: Iterable[Finding], judgement: Judgement) -> ErrorRate:
    """``found``: the violations, in whatever order. One that was planted once, and is found twice, is one too many."""
    left = Counter(found)
    counts: Counter[str] = Counter()
    right: dict[str, int] = {}
    for each in planted:
        counts[each.anomaly] += 1
        right.setdefault(each.anomaly, 0)
        if left[each.finding] > 0:
            left[each.finding] -= 1
            right[each.anomaly] += 1
    return ErrorRate(judgement.rows, judgement.messages, dict(counts), right, sorted(left.elements()))


def violations(directory: Path) -> list[Finding]:
    """All that a judge has found in a run."""
    table = pq.read_table(
        directory / FINDINGS_DIRECTORY,
        columns=["name", "message", "process", "event"],
        filters=[("name", "in", [str(name) for name in VIOLATIONS])],
    )
    return [Finding(Name(row["name"]), row["message"], row["process"], row["event"]) for row in table.to_pylist()]


def measure(directory: Path, shape: Shape, plant: int, master_url: str | None = None) -> ErrorRate:
    """Generate a history with ``plant`` anomalies of each class in an empty directory, and judge it with Spark."""
    history = History(shape, plant)
    generated = write_run(history, directory)
    with open_session(master_url, is_small=shape.messages < _SMALL_MESSAGES) as spark:
        uri = directory.resolve().as_uri()
        judgement = judge_run(spark, uri, f"{uri}/{FACTS_FILE}")
    return compare(generated.planted, violations(directory), judgement)
