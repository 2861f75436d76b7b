"""What a run shows, by what was found, what was at risk, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.judge.findings import LEGAL, LOSSES, VIOLATIONS, Name
from chaos.judge.verdict import Evidence, ExitCode, Judged, Verdict, judge

GOOD = Evidence(dict.fromkeys(Name, 0), wanted_at_risk={"failovers": 2}, at_risk={"failovers": 2, "held": 0})


def with_count(name: Name, count: int, **others: object) -> Evidence:
    return replace(GOOD, counts={**GOOD.counts, name: count}, **others)  # type: ignore[arg-type]


def test_everything_held_and_enough_was_at_risk() -> None:
    assert judge(GOOD) == Judged(Verdict.PASS)


@pytest.mark.parametrize("name", sorted(VIOLATIONS))
def test_every_violation_fails(name: Name) -> None:
    assert judge(with_count(name, 3)) == Judged(Verdict.FAIL, (f"3 {name}",))


@pytest.mark.parametrize("name", sorted(LEGAL))
def test_what_is_legal_does_not(name: Name) -> None:
    assert judge(with_count(name, 3)).verdict is Verdict.PASS


@pytest.mark.parametrize("name", sorted(VIOLATIONS))
def test_only_losses_can_be_permitted(name: Name) -> None:
    judged = judge(with_count(name, 3, loss_permitted="the policy promotes anybody"))
    if name in LOSSES:
        assert judged == Judged(Verdict.EXPECTED_LOSS, (f"3 {name}", "permitted: the policy promotes anybody"))
    else:
        assert judged.verdict is Verdict.FAIL


UNKNOWN = {
    "the run broke": replace(GOOD, problem="n1 did not start"),
    "a record is incomplete": replace(GOOD, incomplete={3, 2}),
    "a queue was down": replace(GOOD, unknown_queues=["orders"]),
    "a queue was not drained": replace(GOOD, undrained_queues=["orders"]),
}
VACUOUS = {
    "a condition was not reached": replace(GOOD, not_reached=["ready of orders >= 9: it is 5"]),
    "too little was at risk": replace(GOOD, at_risk={"failovers": 1}),
    "nobody counted what was at risk": replace(GOOD, at_risk={}),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_what_is_not_known_is_no_pass(why: str) -> None:
    assert judge(UNKNOWN[why]).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("why", VACUOUS)
def test_what_proves_nothing_is_no_pass(why: str) -> None:
    assert judge(VACUOUS[why]).verdict is Verdict.VACUOUS


@pytest.mark.parametrize("why", [*UNKNOWN, *VACUOUS])
def test_proof_counts_whatever_is_missing(why: str) -> None:
    counts = {**GOOD.counts, Name.PHANTOM: 1}
    assert judge(replace((UNKNOWN | VACUOUS)[why], counts=counts)).verdict is Verdict.FAIL


def test_not_to_know_is_worse_than_to_prove_nothing() -> None:
    judged = judge(replace(GOOD, problem="broken", not_reached=["x"], loss_permitted="yes"))
    assert judged == Judged(Verdict.UNKNOWN, ("broken",))


def test_service_that_was_missing_too_long_fails() -> None:
    assert judge(replace(GOOD, gaps=["publish: 9 s"])) == Judged(Verdict.FAIL, ("publish: 9 s",))


def test_reasons_say_what_to_look_at() -> None:
    assert judge(UNKNOWN["a record is incomplete"]).reasons == ("the record is incomplete: process 2, 3",)
    assert judge(VACUOUS["too little was at risk"]).reasons == ("failovers: 1 were at risk, and 2 were wanted",)


def test_every_verdict_has_its_exit_code() -> None:
    codes = [ExitCode.of(verdict) for verdict in Verdict]
    assert len(set(codes)) == len(codes)
    assert ExitCode.of(Verdict.PASS) == 0
