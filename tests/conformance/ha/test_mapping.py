"""The mapping of RabbitMQ's cases is whole, true, and what the document says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.conformance.ha import table
from tests.conformance.ha.cases import CASES, HERE
from tests.conformance.ha.on_processes import ON_PROCESSES, REAL
from tests.conformance.ha.revived import MODULES, SEEDED
from tests.conformance.ha.runs import simulate

TESTS = Path(__file__).parents[2]
#: Letter -> how many cases are named so.
NAMED = {"S": 15, "D": 21, "Y": 2, "E": 5, "M": 1, "P": 8, "G": 7, "T": 4, "L": 4, "K": 4, "N": 19, "C": 4}
REAL_MIN = 80


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_case_is_there_once() -> None:
    wanted = {f"{letter}{number}" for letter, count in NAMED.items() for number in range(1, count + 1)}
    assert len(wanted) == 94
    assert set(CASES) == wanted


def test_a_case_has_tests_or_says_why_not() -> None:
    assert [case_id for case_id, case in CASES.items() if bool(case.tests) == bool(case.pending)] == []
    assert sum(bool(case.tests) for case in CASES.values()) >= REAL_MIN


def test_every_named_test_exists() -> None:
    named = [test.split("::") for case in CASES.values() for test in case.tests]
    assert [f"{path}::{name}" for path, name in named if name not in functions(path)] == []


def test_every_test_of_a_case_is_named_by_it() -> None:
    there = {
        f"{HERE}{path.name}::{name}"
        for path in sorted((TESTS / HERE).glob("test_*.py"))
        for name in functions(HERE + path.name)
        if re.match(r"test_[a-z]\d+_", name)
    }
    named = {test for case in CASES.values() for test in case.tests}
    assert there - named == set()
    for case_id, case in CASES.items():
        own = [test for test in case.tests if test.startswith(HERE)]
        assert all(f"::test_{case_id.lower()}_" in test for test in own), case_id


def test_whatever_was_given_up_as_flaky_is_a_function_of_a_seed() -> None:
    seeded = {case_id.partition("-")[0] for case_id in SEEDED}
    revived = {case_id for case_id, case in CASES.items() if case.is_revived}
    assert len(revived) == 33
    assert revived <= seeded <= set(CASES)


def test_whatever_was_given_up_as_flaky_runs_on_real_processes_too() -> None:
    assert set(ON_PROCESSES) == {case_id for case_id, case in CASES.items() if case.is_revived}
    there = {
        f"{REAL}{path.name}::{name}"
        for path in sorted((TESTS / REAL).glob("test_*.py"))
        for name in functions(REAL + path.name)
        if name.startswith("test_")
    }
    assert there == set(ON_PROCESSES.values())


def test_the_same_seed_does_the_same() -> None:
    assert simulate(SEEDED["N2"](4)) == simulate(SEEDED["N2"](4)) != simulate(SEEDED["N2"](6))


def test_a_campaign_knows_every_module_with_such_cases() -> None:
    using = {path.stem for path in (TESTS / HERE).glob("test_*.py") if "\n@seeded(" in path.read_text(encoding="utf-8")}
    assert using == {module.__name__.rpartition(".")[2] for module in MODULES}


def test_the_document_has_the_table() -> None:
    assert table.in_document() == table.text(), "python -m tests.conformance.ha --write-table"
