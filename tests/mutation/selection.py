"""A plugin of pytest that runs certain tests in a certain order, and says which failed first.

``MUTATION_TESTS`` names a file with their names, one to a line; the first that fails is written beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS_VARIABLE = "MUTATION_TESTS"


def killer_file(tests: Path) -> Path:
    return tests.with_suffix(".killer")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = Path(os.environ[TESTS_VARIABLE]).read_text(encoding="utf-8").splitlines()
    by_name = {item.nodeid: item for item in items}
    chosen = [by_name[name] for name in wanted if name in by_name]
    names = {item.nodeid for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = chosen


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = killer_file(Path(os.environ[TESTS_VARIABLE]))
    if report.failed and not path.exists():
        path.write_text(report.nodeid, encoding="utf-8")
