from __future__ import annotations

import pytest

from chaos.scenarios.catalogue import SCENARIOS
from chaos.scenarios.model import Expectation, LossRule, loss_rule
from chaos.verdict import EXIT_CODES, VIOLATIONS, Outcome, Verdict, judge, loss_bound

NODES = ("n1", "n2", "n3")
SAFE = Expectation(LossRule.FORBIDDEN, None, min_confirmed=100, min_promotions=2)
UNSAFE = Expectation(LossRule.EXACTLY_UNSYNCHRONISED, "mirror absent", min_confirmed=100, min_promotions=1)


def findings(**changed: int) -> dict[str, int]:
    clean = dict.fromkeys((*VIOLATIONS, "lost", "incomplete_logs", "lost_unexpectedly", "not_lost"), 0)
    return clean | {"confirmed": 100, "promotions": 2} | changed


def test_clean_run_passes() -> None:
    assert judge(findings(), SAFE, Outcome.COMPLETED).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["lost", *VIOLATIONS])
def test_one_violation_fails(name: str) -> None:
    judgement = judge(findings(**{name: 1}), SAFE, Outcome.COMPLETED)
    assert judgement.verdict is Verdict.FAIL
    assert len(judgement.reasons) == 1


def test_incomplete_record_is_unknown_even_with_losses() -> None:
    assert judge(findings(lost=5, incomplete_logs=1), SAFE, Outcome.COMPLETED).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome.HANG, Verdict.HANG),
        (Outcome.CRASHED, Verdict.CRASHED),
        (Outcome.NOT_REACHED, Verdict.VACUOUS),
        (Outcome.INTERRUPTED, Verdict.INTERRUPTED),
        (Outcome.RUNNING, Verdict.UNKNOWN),
    ],
)
def test_run_that_did_not_complete_never_passes(outcome: Outcome, verdict: Verdict) -> None:
    assert judge(findings(), SAFE, outcome).verdict is verdict


@pytest.mark.parametrize("changed", [{"confirmed": 99}, {"promotions": 1}])
def test_too_little_proves_nothing(changed: dict[str, int]) -> None:
    assert judge(findings(**changed), SAFE, Outcome.COMPLETED).verdict is Verdict.VACUOUS


def test_permitted_loss_must_be_exact_and_must_happen() -> None:
    def verdict(**changed: int) -> Verdict:
        return judge(findings(**changed), UNSAFE, Outcome.COMPLETED).verdict

    assert verdict(lost=50, wrong_promotions=1) is Verdict.EXPECTED_LOSS
    assert verdict(lost=51, lost_unexpectedly=1) is Verdict.FAIL
    assert verdict(lost=49, not_lost=1) is Verdict.FAIL
    assert verdict(lost=0) is Verdict.VACUOUS
    assert verdict(lost=50, phantom=1) is Verdict.FAIL


def test_every_verdict_has_an_exit_code_of_its_own_and_only_pass_is_zero() -> None:
    assert set(EXIT_CODES) == set(Verdict)
    assert len(set(EXIT_CODES.values())) == len(Verdict)
    assert [verdict for verdict, code in EXIT_CODES.items() if code == 0] == [Verdict.PASS]


def test_loss_is_permitted_only_when_an_unsynchronised_mirror_may_lead() -> None:
    always, when_synced = {"ha-promote-on-failure": "always"}, {"ha-promote-on-failure": "when-synced"}
    assert loss_rule({}, is_master_killed_while_unsynchronised=True) is LossRule.EXACTLY_UNSYNCHRONISED
    assert loss_rule(always, is_master_killed_while_unsynchronised=True) is LossRule.EXACTLY_UNSYNCHRONISED
    assert loss_rule(when_synced, is_master_killed_while_unsynchronised=True) is LossRule.FORBIDDEN
    assert loss_rule(always, is_master_killed_while_unsynchronised=False) is LossRule.FORBIDDEN


def test_expectations_of_the_catalogue_follow_from_its_policies() -> None:
    rules = {name: scenario.expectation(NODES, scenario.defaults).loss for name, scenario in SCENARIOS.items()}
    assert rules == {
        "kill-master": LossRule.FORBIDDEN,
        "control": LossRule.FORBIDDEN,
        "unsafe-promotion": LossRule.EXACTLY_UNSYNCHRONISED,
    }
    kill_master = SCENARIOS["kill-master"]
    assert kill_master.expectation(NODES, kill_master.defaults).min_confirmed >= 20_000
    assert kill_master.policy(NODES) == {"ha-mode": "all", "ha-sync-mode": "automatic"}


def test_expectation_survives_its_json() -> None:
    assert Expectation.from_json(UNSAFE.to_json()) == UNSAFE


def test_rule_of_three_needs_a_run_without_loss() -> None:
    assert loss_bound({"lost": 0, "confirmed": 30_000}) == pytest.approx(1e-4)
    assert loss_bound({"lost": 1, "confirmed": 30_000}) is None
    assert loss_bound({"lost": 0, "confirmed": 0}) is None
