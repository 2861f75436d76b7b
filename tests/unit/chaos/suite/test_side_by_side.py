"""The table that compares targets."""

from __future__ import annotations

from chaos.judge.verdict import Verdict
from chaos.suite.results import Result
from chaos.suite.side_by_side import table


def result(target: str, verdict: Verdict | None, **others: object) -> Result:
    return Result("K01", "The master is killed", target, 1, verdict, **others)  # type: ignore[arg-type]


def test_runs_of_one_target_are_added_up_and_the_longest_gap_counts() -> None:
    runs = [
        result("local", Verdict.PASS, counts={"caused": 3, "copies": 9}, longest_gap_us={"publish": 300_000}),
        result("local", Verdict.PASS, counts={"after_ack": 2}, longest_gap_us={"publish": 900_000, "consume": 0}),
        result("rabbitmq", Verdict.FAIL, counts={"lost": 7, "vanished": 1}, longest_gap_us={"consume": 2_000_000}),
        result("quorum", None, reasons=("it is about mirrors",)),
    ]
    assert table(runs).splitlines() == [
        "| scenario | local | quorum | rabbitmq |",
        "| --- | --- | --- | --- |",
        "| K01 The master is killed | PASS (2 runs): 0 lost, 5 repeated; no confirm 900 ms, no delivery short "
        "| skipped: it is about mirrors | FAIL: 8 lost, 0 repeated; no confirm short, no delivery 2 s |",
    ]


def test_what_was_not_run_on_a_target_is_told() -> None:
    other = Result("Z01", "The master stands still", "rabbitmq", 1, Verdict.PASS)
    rows = table([result("local", Verdict.PASS), other]).splitlines()
    assert rows[2].endswith("| not run |")
    assert rows[3].startswith("| Z01 The master stands still | not run |")
