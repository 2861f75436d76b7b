"""What is told of a run while it goes on."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chaos.conduct.sheet import State
from chaos.harm.journal import Journal
from chaos.judge.findings import Finding, Name
from chaos.record.schema import Event
from chaos.spark_judge.watching import Glimpse
from chaos.suite.by_reference import judgement_by_reference
from chaos.suite.live import Disagreement, compare, is_over, line, tell_first
from tests.support.recorded_run import recorded_run
from tests.support.told import PUBLISHING, Told, key

LOST = Finding(Name.LOST, key(1), PUBLISHING, 1)
GLIMPSE = Glimpse(
    rows=2,
    messages=1,
    confirmed=1,
    delivered=0,
    at_risk={"without an answer": 0, "confirmed, not delivered": 1_200},
    counts={Name.LOST: 1, Name.CAUSED: 9},
    examples={Name.LOST: [LOST]},
    incomplete=frozenset(),
)


def printed(console: Console) -> str:
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_one_line_says_what_is_open_and_what_is_wrong() -> None:
    told = Console(file=StringIO(), width=200)
    told.print(line(GLIMPSE))
    assert printed(told) == "1 confirmed, 0 delivered; open: 1,200 confirmed, not delivered; 1 lost\n"


def test_the_first_violation_comes_with_all_that_is_known_of_its_message(tmp_path: Path) -> None:
    told = Told().confirmed(1)
    sheet = recorded_run(tmp_path, told)
    asked: list[int] = []

    def rows_of(message: int) -> list[Event]:
        asked.append(message)
        return told.events

    console = Console(file=StringIO(), width=200)
    tell_first(GLIMPSE, rows_of, sheet, console)
    assert asked == [key(1)]
    assert "lost: the first of 1" in printed(console)
    assert "> 00:00:01.000  publisher 1  publishes it" in printed(console)
    assert "hears that it was taken" in printed(console)


def test_of_what_is_about_no_message_the_row_is_told(tmp_path: Path) -> None:
    foreign = Glimpse(1, 0, 0, 0, {}, {Name.FOREIGN: 1}, {Name.FOREIGN: [Finding(Name.FOREIGN, 0, 2, 7)]}, frozenset())
    console = Console(file=StringIO(), width=200)
    tell_first(foreign, lambda _: [], recorded_run(tmp_path, Told().confirmed(1)), console)
    assert "row 7 of process 2" in printed(console)


def test_the_stream_and_the_record_must_agree(tmp_path: Path) -> None:
    told = Told().confirmed(1)
    judgement = judgement_by_reference(told.complete(), recorded_run(tmp_path, told).facts())
    seen = Glimpse(3, 1, 1, 0, {}, {Name.LOST: 1}, {}, frozenset())
    compare(seen, judgement)
    with pytest.raises(Disagreement, match="this is a defect"):
        compare(Glimpse(3, 1, 1, 0, {}, {}, {}, frozenset()), judgement)


def test_a_run_is_over_when_it_says_so_or_nobody_conducts_it(tmp_path: Path) -> None:
    recorded_run(tmp_path, Told().confirmed(1), state=State.RUNNING)
    with Journal(tmp_path):
        assert not is_over(tmp_path)
    assert is_over(tmp_path), "whoever conducted it is gone"


def test_a_run_that_says_so_is_over_while_it_is_cleared_up(tmp_path: Path) -> None:
    recorded_run(tmp_path, Told().confirmed(1), state=State.FINISHED)
    with Journal(tmp_path):
        assert is_over(tmp_path)
