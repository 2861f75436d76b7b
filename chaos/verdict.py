"""From findings to a verdict, without Spark.

UNKNOWN is stronger than PASS and FAIL: a record with a hole, or a queue that was not drained, allows no claim about
what is missing. VACUOUS means that everything held but too little happened to prove anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from chaos.scenarios.model import Expectation, LossRule


class Outcome(StrEnum):
    """How the run itself ended. Stored in run.json."""

    RUNNING = "running"
    #: All steps done, queue drained.
    COMPLETED = "completed"
    #: A step or the drain did not finish in time.
    HANG = "hang"
    #: The laboratory or the cluster broke in a way the scenario does not know.
    CRASHED = "crashed"
    #: The cluster could not be brought into the state that the scenario is about.
    NOT_REACHED = "not-reached"
    INTERRUPTED = "interrupted"


class Verdict(StrEnum):
    """What the run shows."""

    PASS = "PASS"
    FAIL = "FAIL"
    #: The policy permits the loss, and the lost messages are exactly those it predicts.
    EXPECTED_LOSS = "EXPECTED LOSS"
    UNKNOWN = "UNKNOWN"
    VACUOUS = "VACUOUS"
    HANG = "HANG"
    CRASHED = "CRASHED"
    INTERRUPTED = "INTERRUPTED"


class ExitCode(IntEnum):
    """What the command returns to the shell."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    UNKNOWN = 3
    HANG = 4
    VACUOUS = 5
    CRASHED = 6
    EXPECTED_LOSS = 10
    NO_JAVA = 69
    INTERRUPTED = 130


EXIT_CODES: Mapping[Verdict, ExitCode] = {
    Verdict.PASS: ExitCode.PASS,
    Verdict.FAIL: ExitCode.FAIL,
    Verdict.EXPECTED_LOSS: ExitCode.EXPECTED_LOSS,
    Verdict.UNKNOWN: ExitCode.UNKNOWN,
    Verdict.VACUOUS: ExitCode.VACUOUS,
    Verdict.HANG: ExitCode.HANG,
    Verdict.CRASHED: ExitCode.CRASHED,
    Verdict.INTERRUPTED: ExitCode.INTERRUPTED,
}

#: Findings of which a single one is a violation, with the words for the reason.
VIOLATIONS: Mapping[str, str] = {
    "vanished": "confirmed messages were delivered, never acknowledged and are gone",
    "phantom": "deliveries of messages that nobody published, or with an altered body",
    "duplicates_unflagged": "repeated deliveries were not flagged as redelivered",
    "inversions": "deliveries out of publishing order without an excuse",
    "confirm_violations": "confirms that the protocol forbids",
    "wrong_promotions": "promotions of another node than the oldest synchronised mirror",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the reasons for it, the weightiest first."""

    verdict: Verdict
    reasons: tuple[str, ...]


#: Runs that did not complete: their verdict does not depend on what was found.
_ENDED_BADLY: Mapping[Outcome, tuple[Verdict, str]] = {
    Outcome.HANG: (Verdict.HANG, "a step or the drain did not finish in time"),
    Outcome.CRASHED: (Verdict.CRASHED, "the run broke off with an error"),
    Outcome.NOT_REACHED: (Verdict.VACUOUS, "the cluster was not in the state that the scenario is about"),
    Outcome.INTERRUPTED: (Verdict.INTERRUPTED, "the run was interrupted"),
    Outcome.RUNNING: (Verdict.UNKNOWN, "the run did not write its end"),
}


def judge_outcome(outcome: Outcome) -> Judgement | None:
    """The verdict on a run that did not complete; None for one that did."""
    if outcome is Outcome.COMPLETED:
        return None
    verdict, reason = _ENDED_BADLY[outcome]
    return Judgement(verdict, (reason,))


def judge(findings: Mapping[str, int], expectation: Expectation, outcome: Outcome) -> Judgement:
    """The verdict on a run. ``findings`` are the counts of the analysis, by name."""
    if (judgement := judge_outcome(outcome)) is not None:
        return judgement
    if findings["incomplete_logs"]:
        return Judgement(Verdict.UNKNOWN, (f"the record of {findings['incomplete_logs']} processes is incomplete",))
    reasons = [
        f"{findings[name]} {words}" for name, words in VIOLATIONS.items() if _counts(name, findings, expectation)
    ]
    reasons[:0] = _loss_reasons(findings, expectation)
    if reasons:
        return Judgement(Verdict.FAIL, tuple(reasons))
    if missing := _vacuous_reasons(findings, expectation):
        return Judgement(Verdict.VACUOUS, missing)
    if expectation.loss is LossRule.EXACTLY_UNSYNCHRONISED:
        reason = f"{findings['lost']} messages lost: exactly those that the promoted mirror did not have"
        return Judgement(Verdict.EXPECTED_LOSS, (reason,))
    return Judgement(Verdict.PASS, ())


def _counts(name: str, findings: Mapping[str, int], expectation: Expectation) -> bool:
    if name == "wrong_promotions" and expectation.loss is LossRule.EXACTLY_UNSYNCHRONISED:
        # The point of that scenario is a promotion without any synchronised mirror.
        return False
    return findings[name] > 0


def _loss_reasons(findings: Mapping[str, int], expectation: Expectation) -> list[str]:
    if expectation.loss is LossRule.FORBIDDEN:
        return [f"{findings['lost']} confirmed messages were lost"] if findings["lost"] else []
    reasons = []
    if findings["lost_unexpectedly"]:
        reasons.append(f"{findings['lost_unexpectedly']} messages were lost that the promoted mirror had")
    if findings["not_lost"]:
        reasons.append(f"{findings['not_lost']} messages survived that no surviving replica should have had")
    return reasons


def _vacuous_reasons(findings: Mapping[str, int], expectation: Expectation) -> tuple[str, ...]:
    reasons = []
    if findings["confirmed"] < expectation.min_confirmed:
        reasons.append(f"only {findings['confirmed']} messages were confirmed, {expectation.min_confirmed} are needed")
    if findings["promotions"] < expectation.min_promotions:
        reasons.append(f"only {findings['promotions']} promotions were seen, {expectation.min_promotions} are needed")
    if expectation.loss is LossRule.EXACTLY_UNSYNCHRONISED and not findings["lost"]:
        reasons.append("nothing was lost although the scenario is built to lose")
    return tuple(reasons)


def loss_bound(findings: Mapping[str, Any]) -> float | None:
    """Upper 95% bound on the probability of losing one confirmed message, when none was lost: the rule of three."""
    if findings["lost"] or not findings["confirmed"]:
        return None
    return float(3 / findings["confirmed"])
