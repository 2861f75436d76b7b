"""Runs judged by Spark as the commands have it: in a process of its own, and while they go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chaos.conduct.sheet import Sheet
from chaos.judge.findings import Name
from chaos.judge.verdict import ExitCode
from chaos.suite.by_reference import PlainJudge
from chaos.suite.by_spark import SparkJudge
from chaos.suite.results import RESULT_FILE_NAME, Result
from chaos.suite.running import CannotJudge
from tests.support.recorded_run import recorded_run
from tests.support.told import Told

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

#: One is lost, one comes twice for a reason.
TOLD = Told().promote(2).confirmed(1, 2, 3).settled(1).deliver(2).release(2).again(2).ack(2, on="B").prove(2, on="B")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJudge]:
    with SparkJudge(tmp_path_factory.mktemp("log")) as spark_judge:
        yield spark_judge


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    return recorded_run(tmp_path, TOLD)


def test_both_judges_say_the_same(judge: SparkJudge, sheet: Sheet, tmp_path: Path) -> None:
    judgement = judge(tmp_path, sheet)
    assert judgement.counts == {Name.LOST: 1, Name.CAUSED: 1}
    assert judgement == PlainJudge()(tmp_path, sheet)
    assert judge(tmp_path, sheet) == judgement, "the process is there for the next"


def test_what_cannot_be_judged_is_told_and_the_next_is_judged(judge: SparkJudge, sheet: Sheet, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CannotJudge, match="events"):
        judge(empty, sheet)
    assert judge(tmp_path, sheet).counts[Name.LOST] == 1


def killed_but(others: set[psutil.Process]) -> set[psutil.Process]:
    """Children of this process, killed."""
    killed = set(psutil.Process().children(recursive=True)) - others
    for process in killed:
        process.kill()
    psutil.wait_procs(killed)
    return killed


def test_a_process_that_is_gone_is_told_of_and_replaced_and_none_is_left(sheet: Sheet, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with SparkJudge(tmp_path) as mortal:
        mortal.prepare()
        begun = killed_but(before)
        with pytest.raises(CannotJudge, match=r"judge\.log"):
            mortal(tmp_path, sheet)
        assert mortal(tmp_path, sheet).counts[Name.LOST] == 1
        begun |= killed_but(before)
        with pytest.raises(CannotJudge, match=r"judge\.log"):
            mortal(tmp_path, sheet)
    assert set(psutil.Process().children(recursive=True)) <= before | begun


def test_a_run_that_is_over_is_watched_to_its_verdict(sheet: Sheet, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos.suite", "watch", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})
    assert ended.returncode == ExitCode.FAIL, ended.stderr
    assert "3 confirmed, 2 delivered; open: 1 confirmed, not delivered; 1 lost" in ended.stdout
    assert "lost: the first of 1" in ended.stdout
    result = Result.from_json((tmp_path / RESULT_FILE_NAME).read_text(encoding="utf-8"))
    assert (result.scenario, result.counts) == (sheet.scenario, {"lost": 1, "caused": 1})
