"""From a record to a result, and what is written beside it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from chaos.conduct.sheet import Sheet, State
from chaos.judge.judgement import Judgement
from chaos.judge.verdict import Verdict
from chaos.record.kinds import Kind
from chaos.suite.by_reference import PlainJudge
from chaos.suite.results import RESULT_FILE_NAME, Result
from chaos.suite.running import CannotJudge, conclude, result_of
from tests.support.recorded_run import recorded_run
from tests.support.told import HARNESS, Told


def concluded(directory: Path, told: Told, **values: object) -> Result:
    sheet = recorded_run(directory, told, **values)
    return conclude(directory, sheet, PlainJudge()(directory, sheet), 12.0)


def test_all_is_well(tmp_path: Path) -> None:
    result = concluded(tmp_path, Told().confirmed(1).settled(1), wanted_at_risk={"stored": 1}, at_risk={"stored": 3})
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    assert result.at_risk == {"stored": 3, "pairs": 0, "lost": 0}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"events", "run.json", "judgement.json", "report.html", "journal.json", "result.json"}
    assert Result.from_json((tmp_path / RESULT_FILE_NAME).read_text(encoding="utf-8")) == result


LOST = Told().confirmed(1)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, Verdict.FAIL),
        ({"loss_permitted": "the policy lets it be"}, Verdict.EXPECTED_LOSS),
        ({"loss_permitted": "the policy lets it be", "wanted_at_risk": {"lost": 2}}, Verdict.VACUOUS),
    ],
)
def test_what_is_lost_counts_as_it_may(tmp_path: Path, values: dict[str, object], verdict: Verdict) -> None:
    assert concluded(tmp_path, LOST, **values).verdict is verdict


def test_a_run_that_broke_tells_why(tmp_path: Path) -> None:
    result = concluded(tmp_path, Told().confirmed(1).settled(1), state=State.BROKEN, problem="n1 did not start")
    assert (result.verdict, result.reasons) == (Verdict.UNKNOWN, ("n1 did not start",))
    assert "n1 did not start" in (tmp_path / "report.html").read_text(encoding="utf-8")


class WithoutMemory(PlainJudge):
    def __call__(self, directory: Path, sheet: Sheet) -> Judgement:
        raise CannotJudge(f"no memory for {sheet.run} in {directory}")


def test_what_cannot_be_judged_proves_nothing_and_does_not_end_a_suite(tmp_path: Path) -> None:
    result = result_of(tmp_path, recorded_run(tmp_path, LOST), WithoutMemory(), time.monotonic())
    assert (result.verdict, result.reasons) == (Verdict.UNKNOWN, (f"no memory for {tmp_path.name} in {tmp_path}",))
    assert not result.directory, "there is no page to be shown"


@pytest.mark.parametrize(
    ("limits", "reasons"),
    [
        ({"publish_gap_us_max": 4_000_000}, ()),
        ({"publish_gap_us_max": 2_000_000}, ("orders: no confirm for 4 s, and 2 s at most are permitted",)),
        ({"consume_gap_us_max": 1_000_000}, ("orders: no delivery for 3 s, and 1 s at most are permitted",)),
    ],
)
def test_service_that_was_missing_for_too_long_is_a_failure(
    tmp_path: Path, limits: dict[str, int], reasons: tuple[str, ...]
) -> None:
    told = Told().add(HARNESS, Kind.CONSUMING, number=1).publish(1)
    for _ in range(3):
        told.add(HARNESS, Kind.PHASE)
    told.confirm(1).add(HARNESS, Kind.PHASE).add(HARNESS, Kind.PHASE).settled(1)
    result = concluded(tmp_path, told, **limits)
    assert result.reasons == reasons
    assert result.verdict is (Verdict.FAIL if reasons else Verdict.PASS)


def test_the_journal_that_the_chaos_toolkit_knows(tmp_path: Path) -> None:
    told = Told().confirmed(1)
    detail = json.dumps({"type": "pause", "nodes": [2]})
    told.add(HARNESS, Kind.FAULT_BEGIN, fault=1, node=2, detail=detail).settled(1)
    concluded(tmp_path, told.add(HARNESS, Kind.FAULT_END, fault=1), replay="warren chaos run K01 --seed 7")
    journal = json.loads((tmp_path / "journal.json").read_text(encoding="utf-8"))
    assert (journal["status"], journal["deviated"]) == ("completed", False)
    assert journal["steady_states"]["after"]["steady_state_met"] is True
    [action] = journal["run"]
    assert (action["activity"]["name"], action["duration"]) == ("fault 1: pause of n2", 4.0)
    assert action["start"] == "1970-01-01T00:00:03.000+00:00"
