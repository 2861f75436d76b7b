"""From findings to a verdict.

What is found is asked first: proof that something is wrong holds however incomplete the record is. Then whether
anything may be concluded from what was *not* found. Then whether enough was at risk for that to mean anything.

- FAIL: a violation (`chaos.judge.findings.VIOLATIONS`), but for LOST and VANISHED where loss is permitted; or service
  was missing for longer than the scenario allows.
- UNKNOWN: the run broke, or was interrupted; a process' record is incomplete; of a queue it is not known what was left
  in it; or it was not drained, so what is left says nothing.
- VACUOUS: a step's condition did not come to pass, or less was at risk than the scenario wants.
- EXPECTED LOSS: messages were lost or vanished, and it is permitted.
- PASS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from chaos.judge.findings import LOSSES, VIOLATIONS, Name


class Verdict(StrEnum):
    """What a run shows. See the module."""

    PASS = "PASS"
    EXPECTED_LOSS = "EXPECTED LOSS"
    FAIL = "FAIL"
    VACUOUS = "VACUOUS"
    UNKNOWN = "UNKNOWN"


class ExitCode(IntEnum):
    """What a command that ends with a verdict returns to the shell."""

    PASS = 0
    FAIL = 1
    UNKNOWN = 3
    VACUOUS = 5
    EXPECTED_LOSS = 10

    @classmethod
    def of(cls, verdict: Verdict) -> ExitCode:
        return cls[verdict.name]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict goes by."""

    #: How many there are of each, whatever they mean.
    counts: Mapping[Name, int]
    #: Processes whose record is incomplete.
    incomplete: Collection[int] = ()
    #: Why the run did not come to its end; empty if it did.
    problem: str = ""
    #: Queues of which nobody knows what was left, and queues that were not drained.
    unknown_queues: Sequence[str] = ()
    undrained_queues: Sequence[str] = ()
    #: Conditions that did not come to pass.
    not_reached: Sequence[str] = ()
    wanted_at_risk: Mapping[str, int] | None = None
    at_risk: Mapping[str, int] | None = None
    #: Why loss is permitted; empty if it is not.
    loss_permitted: str = ""
    #: In words: service that was missing for longer than it may.
    gaps: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and every reason for it; none for PASS."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


def judge(evidence: Evidence) -> Judged:
    """See the module."""
    counts = {name: count for name, count in evidence.counts.items() if count}
    permitted = LOSSES if evidence.loss_permitted else frozenset()
    violations = [f"{count} {name}" for name, count in sorted(counts.items()) if name in VIOLATIONS - permitted]
    if violations or evidence.gaps:
        return Judged(Verdict.FAIL, (*violations, *evidence.gaps))
    if unknown := _unknown(evidence):
        return Judged(Verdict.UNKNOWN, tuple(unknown))
    if vacuous := _vacuous(evidence):
        return Judged(Verdict.VACUOUS, tuple(vacuous))
    losses = [f"{counts[name]} {name}" for name in sorted(LOSSES & counts.keys())]
    if losses:
        return Judged(Verdict.EXPECTED_LOSS, (*losses, f"permitted: {evidence.loss_permitted}"))
    return Judged(Verdict.PASS)


def _unknown(evidence: Evidence) -> list[str]:
    reasons = [evidence.problem] if evidence.problem else []
    if evidence.incomplete:
        processes = ", ".join(map(str, sorted(evidence.incomplete)))
        reasons.append(f"the record is incomplete: process {processes}")
    if evidence.unknown_queues:
        reasons.append(f"nobody knows what was left in {', '.join(evidence.unknown_queues)}")
    if evidence.undrained_queues:
        reasons.append(f"not drained: {', '.join(evidence.undrained_queues)}")
    return reasons


def _vacuous(evidence: Evidence) -> list[str]:
    at_risk = evidence.at_risk or {}
    less = [
        f"{name}: {at_risk.get(name, 0)} were at risk, and {wanted} were wanted"
        for name, wanted in (evidence.wanted_at_risk or {}).items()
        if at_risk.get(name, 0) < wanted
    ]
    return [*evidence.not_reached, *less]
