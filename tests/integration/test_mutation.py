"""The whole way of a mutant, in a small tree of its own: one that a test notices, one that no test asks about."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mutation.covering import covering
from tests.mutation.mutator import mutants_of
from tests.mutation.recording import ROOT
from tests.mutation.trial import NOTICED_BY_TESTS, SURVIVED, Workshop

pytestmark = pytest.mark.integration

SOURCE = """\
def is_full(count, limit):
    return count >= limit


def next_number(number):
    return number + 1


def until(number):
    while number > 0:
        number -= 1
    return number
"""
TESTS = """\
from small.queue import is_full, next_number, until

def test_a_queue_with_room_is_not_full():
    assert not is_full(1, 5)
    assert is_full(6, 5)

def test_numbers_go_up():
    assert next_number(1) == 2

def test_it_ends():
    assert until(3) == 0

def test_that_fails_as_it_is():
    assert next_number(1) == 3
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package, its tests and the plugins."""
    root = tmp_path / "tree"
    shutil.copytree(ROOT / "tests" / "mutation", root / "tests" / "mutation")
    for name, text in {"small/queue.py": SOURCE, "small/__init__.py": "", "tests/unit/test_queue.py": TESTS}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_mutant_is_noticed_by_whoever_asks_and_survives_if_nobody_does(tree: Path, tmp_path: Path, jobs: int) -> None:
    covered = covering(tree, ["tests/unit/test_queue.py"], ["small"], tmp_path / "covering.json.gz", jobs)
    workshop = Workshop(tree, tmp_path / "copy")
    results = {
        mutant.after: workshop.attempt("small", mutant, covered, simulate=False)
        for mutant in mutants_of("small/queue.py", SOURCE)
        if mutant.after in {"(number)", "(count > limit)", "(count < limit)"}
    }
    noticed, turned, survived = results["(number)"], results["(count < limit)"], results["(count > limit)"]
    assert (noticed.status, noticed.killer) == (NOTICED_BY_TESTS, "tests/unit/test_queue.py::test_numbers_go_up")
    assert turned.status == NOTICED_BY_TESTS
    assert (survived.status, survived.killer, survived.tests) == (SURVIVED, "", 1)
    assert survived.diff == "return count >= limit  ->  return (count > limit)"
    assert (tmp_path / "copy" / "small" / "queue.py").read_text() == SOURCE, "one at a time"
    assert (tree / "small" / "queue.py").read_text() == SOURCE, "the tree itself is never touched"
