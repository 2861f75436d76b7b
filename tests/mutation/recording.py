"""Which test executes which line: a plugin of pytest.

``PYTEST_PLUGINS=tests.mutation.recording python -m pytest ...`` (not ``-p``, which processes that xdist starts read too
late) with ``MUTATION_RECORD`` naming a directory writes one file there for each process. Every statement within a
function of the recorded packages is preceded by a mark in a byte array, put there when the module is imported, and
looked at after each test: that costs less than a tracing function, in time (about a third more) and in dependencies
(none). Tests that fail are not recorded.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import time
from collections.abc import Generator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MARKS = "__mutation_marks__"
DIRECTORY_VARIABLE = "MUTATION_RECORD"
#: Separated by blanks, as ``cluster/raft node/store``.
PACKAGES_VARIABLE = "MUTATION_PACKAGES"


class LineNumbers:
    """Lines of all modules of some packages, numbered through: the same in every process that sees the same files."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        self._first: dict[str, int] = {}
        self.total = 0
        for package in packages:
            for path in sorted((root / package).rglob("*.py")):
                self._first[path.relative_to(root).as_posix()] = self.total
                self.total += path.read_bytes().count(b"\n") + 2

    def first(self, path: str) -> int | None:
        """Number of the line 0 of a module; None if it is none of these."""
        return self._first.get(path)

    def range_of(self, path: str) -> range:
        firsts = [*self._first.values(), self.total]
        first = self._first[path]
        return range(first, min(each for each in firsts if each > first))

    def package_of(self, path: str) -> list[str]:
        """The modules in the same folder, this one included."""
        return [each for each in self._first if each.rpartition("/")[0] == path.rpartition("/")[0]]


def marked(tree: ast.Module, first: int) -> ast.Module:
    """With a mark before each statement of each function."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for block in _blocks(node):
            block[:] = [each for statement in block for each in _with_mark(statement, first)]
    return ast.fix_missing_locations(tree)


def _blocks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[list[ast.stmt]]:
    """Lists of statements of a function, without those of functions within."""
    found: list[list[ast.stmt]] = []
    pending: list[ast.AST] = [function]
    while pending:
        node = pending.pop()
        for _, value in ast.iter_fields(node):
            if not isinstance(value, list) or not value:
                continue
            if isinstance(value[0], ast.stmt):
                found.append(value)
            pending.extend(each for each in value if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return found


def _with_mark(statement: ast.stmt, first: int) -> list[ast.stmt]:
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if is_docstring or isinstance(statement, ast.Global | ast.Nonlocal):
        return [statement]
    mark = ast.parse(f"{MARKS}[{first + statement.lineno}] = 1").body[0]
    for node in ast.walk(mark):
        ast.copy_location(node, statement)
    return [mark, statement]


class _MarkingLoader(SourceFileLoader):
    """Never from a cache, never into one."""

    first_line = 0

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = marked(ast.parse(self.get_data(path), filename=path), self.first_line)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


class _MarkingFinder(MetaPathFinder):
    def __init__(self, numbers: LineNumbers) -> None:
        self._numbers = numbers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(ROOT):
            return None
        first = self._numbers.first(Path(spec.origin).relative_to(ROOT).as_posix())
        if first is None:
            return None
        loader = _MarkingLoader(fullname, spec.origin)
        loader.first_line = first
        spec.loader = loader
        return spec


class Recorder:
    """Keeps for each test that passed its CPU seconds and the numbers of its lines."""

    def __init__(self, numbers: LineNumbers) -> None:
        self.marks = bytearray(numbers.total)
        self.tests: dict[str, tuple[float, str]] = {}
        #: The test that is run; stays so where others run the tests and only report.
        self._passed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.marks[:] = bytes(len(self.marks))
        self._passed = True
        begin_s = time.process_time()
        result = yield
        if self._passed:
            took_s = round(time.process_time() - begin_s, 4)
            self.tests[item.nodeid] = (took_s, as_bits(self.marks))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and report.passed

    def pytest_sessionfinish(self) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        path = Path(os.environ[DIRECTORY_VARIABLE]) / f"{worker}.json"
        path.write_text(json.dumps(self.tests), encoding="utf-8")


def as_bits(marks: bytes | bytearray) -> str:
    """Hexadecimal, bit n for the line of number n."""
    return f"{int(marks[::-1].translate(_DIGITS), 2):x}"


#: A mark as a binary digit.
_DIGITS = bytes([ord("0"), ord("1"), *[ord("1")] * 254])


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest imports what is to be marked."""
    manager = early_config.pluginmanager
    if DIRECTORY_VARIABLE not in os.environ or manager.has_plugin("mutation-recorder"):
        return
    packages = os.environ[PACKAGES_VARIABLE].split()
    prefixes = tuple(package.replace("/", ".") for package in packages)
    early = [
        name for name in sys.modules if name in prefixes or name.startswith(tuple(f"{each}." for each in prefixes))
    ]
    assert not early, f"imported before the recording began: {early}"
    numbers = LineNumbers(ROOT, packages)
    recorder = Recorder(numbers)
    setattr(builtins, MARKS, recorder.marks)
    sys.meta_path.insert(0, _MarkingFinder(numbers))
    manager.register(recorder, "mutation-recorder")
