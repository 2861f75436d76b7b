"""What is kept of a run besides its events."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.conduct.sheet import FILE_NAME, NoRun, QueueEntry, RosterEntry, Sheet, State, read_sheet
from chaos.judge.findings import QueueFacts, RunFacts

SHEET = Sheet(
    run="r1",
    scenario="K01",
    title="The master is killed",
    holds="Nothing is lost",
    target="local",
    seed=7,
    began_at="2026-01-01T00:00:00+00:00",
    nodes=[{"number": 1, "name": "n1", "log": ""}],
    queues=[QueueEntry("a", may_remove=True, is_drained=True, is_known=False), QueueEntry("b", may_remove=False)],
    roster=[RosterEntry(1, "conductor"), RosterEntry(2, "publisher", [1, 2])],
    state=State.BROKEN,
    problem="n1 did not start",
    at_risk={"stored": 7},
    slack_us=5,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    SHEET.write(tmp_path)
    assert read_sheet(tmp_path) == SHEET
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_facts_for_a_judge() -> None:
    queues = [QueueFacts(True, True, False), QueueFacts(False, False, False)]
    assert SHEET.facts() == RunFacts({1: frozenset(), 2: frozenset({1, 2})}, queues, slack_us=5)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "there is no run.json"),
        ("{", "is no JSON"),
        ('{"run_id": "x"}', "not of a run of this"),
        ("[]", "not of"),
    ],
)
def test_a_directory_without_a_run_is_refused(tmp_path: Path, content: str | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(NoRun, match=complaint):
        read_sheet(tmp_path)
