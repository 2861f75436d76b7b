"""Judging small records in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.conduct.sheet import Sheet
from chaos.judge.findings import Finding, Name
from chaos.judge.reference import Reference
from chaos.record.reading import read_events


@dataclass(frozen=True, slots=True)
class ByReference:
    """`chaos.suite.running.Judgement`, with every finding."""

    findings: tuple[Finding, ...]
    incomplete: Collection[int]
    pairs_compared: int

    @property
    def counts(self) -> Mapping[Name, int]:
        return Counter(finding.name for finding in self.findings)


def judge_by_reference(directory: Path, sheet: Sheet) -> ByReference:
    """All of it is in memory."""
    reference = Reference(read_events(directory), sheet.facts())
    findings = tuple(reference.findings())
    return ByReference(findings, frozenset(reference.incomplete), reference.pairs_compared)
