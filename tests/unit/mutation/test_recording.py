"""Marks before statements: they say what was executed, and change nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.covering import Covering, importers, record
from tests.mutation.mutator import mutants_of
from tests.mutation.recording import MARKS, ROOT, LineNumbers, as_bits, marked

SOURCE = '''\
def f(n):
    """Says what it does."""
    try:
        for i in range(n):
            if i:
                break
        else:
            return "none"
        return "some"
    finally:
        def inner():
            return 1
        inner()
'''


def lines_of(argument: int) -> set[int]:
    """Which lines of `SOURCE` a call executes."""
    marks = bytearray(100)
    names: dict[str, object] = {MARKS: marks}
    exec(compile(marked(ast.parse(SOURCE), 50), "m.py", "exec"), names)  # our own text
    function = names["f"]
    assert callable(function)
    assert function.__doc__ == "Says what it does."
    assert function(argument) == ("some" if argument > 1 else "none")
    bits = int(as_bits(marks), 16)
    return {line for line in range(50) if bits >> (50 + line) & 1}


def test_every_executed_statement_of_a_function_is_marked() -> None:
    assert lines_of(0) == {3, 4, 8, 11, 12, 13}
    assert lines_of(1) == {3, 4, 5, 8, 11, 12, 13}
    assert lines_of(2) == {3, 4, 5, 6, 9, 11, 12, 13}


def test_tests_are_found_by_the_line_that_they_execute_the_quickest_first(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.py").write_text("def f():\n    return 5\n")
    source = "LIMIT = 7\n\ndef g(a):\n    if a:\n        h(a)\n"
    (tmp_path / "p" / "b.py").write_text(source)
    numbers = LineNumbers(tmp_path, ["p"])
    first = numbers.first("p/b.py")
    assert first is not None
    recorded = {
        "t.py::slow": (2.0, f"{1 << (first + 4) | 1 << (first + 5):x}"),
        "t.py::quick": (1.0, f"{1 << (first + 4):x}"),
        "t.py::other": (0.1, f"{1 << 2:x}"),
    }
    covering = Covering(numbers, recorded)
    names = {mutant.after: [test.name for test in covering.of(mutant)] for mutant in mutants_of("p/b.py", source)}
    assert names["True"] == ["t.py::quick", "t.py::slow"]
    assert names["None"] == ["t.py::slow"]
    own, package = ["t.py::quick", "t.py::slow"], ["t.py::other"]
    assert names["8"] == own + package, "a constant concerns whoever runs anything of its module, then of its package"


def test_a_function_that_is_called_by_the_import_concerns_whoever_runs_anything_of_its_module(tmp_path: Path) -> None:
    """Or whatever it does wrong would never be noticed: no test is there to execute it."""
    (tmp_path / "p").mkdir()
    source = "def table():\n    return {1: 2}\n\nTABLE = table()\n\ndef f():\n    return TABLE\n"
    (tmp_path / "p" / "a.py").write_text(source)
    numbers = LineNumbers(tmp_path, ["p"])
    first = numbers.first("p/a.py")
    assert first is not None
    covering = Covering(numbers, {"t.py::f": (1.0, f"{1 << (first + 7):x}")})
    names = {mutant.line: [test.name for test in covering.of(mutant)] for mutant in mutants_of("p/a.py", source)}
    assert names == {2: ["t.py::f"], 7: ["t.py::f"]}


def test_a_module_without_functions_concerns_whoever_runs_anything_of_its_package(tmp_path: Path) -> None:
    for package in ("p", "q"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "records.py").write_text("LIMIT = 7\n")
        (tmp_path / package / "code.py").write_text("def f():\n    return 5\n")
    numbers = LineNumbers(tmp_path, ["p", "q"])
    recorded = {}
    for package in ("p", "q"):
        first = numbers.first(f"{package}/code.py")
        assert first is not None
        recorded[f"t.py::{package}"] = (1.0, f"{1 << (first + 2):x}")
    [mutant] = mutants_of("p/records.py", "LIMIT = 7\n")
    assert [test.name for test in Covering(numbers, recorded).of(mutant)] == ["t.py::p"]


def test_a_constant_concerns_whoever_names_its_module_too(tmp_path: Path) -> None:
    """A test that only looks at a default value executes no statement of a function."""
    (tmp_path / "p").mkdir()
    source = "LIMIT = 7\n\ndef f():\n    return LIMIT\n"
    (tmp_path / "p" / "limits.py").write_text(source)
    texts = {
        "t_from.py": "from p.limits import LIMIT\n",
        "t_module.py": "from p import limits\n",
        "t_whole.py": "import p.limits\n",
        "t_other.py": "from p.other import limits\nimport p\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    recorded = {f"{name}::test": (1.0, "0") for name in texts}
    covering = Covering(LineNumbers(tmp_path, ["p"]), recorded, importers(tmp_path, list(texts)))
    names = {mutant.after: [test.file for test in covering.of(mutant)] for mutant in mutants_of("p/limits.py", source)}
    assert names["8"] == ["t_from.py", "t_module.py", "t_whole.py"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_package_that_a_conftest_imports_is_recorded_too(jobs: int) -> None:
    """pytest imports the conftest of a file that it is given before anything else: the marks must be quicker."""
    recorded = record(ROOT, ["tests/unit/cluster/sessions/test_session_deliveries.py"], ["cluster/sessions"], jobs)
    assert recorded
    assert all(int(bits, 16) for _, bits in recorded.values())
