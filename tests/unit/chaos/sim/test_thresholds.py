"""Numbers of the product that are small in some seeds."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from random import Random

import cluster
import node
from chaos.sim.drawing import draw_schedule
from chaos.sim.run import run_schedule
from chaos.sim.schedule import read_schedule, write_schedule
from chaos.sim.thresholds import SHARE, THRESHOLDS, draw_thresholds, thresholds_of


def test_each_is_a_number_of_the_product_and_smaller_than_that() -> None:
    assert len({threshold.key for threshold in THRESHOLDS}) == len(THRESHOLDS)
    for threshold in THRESHOLDS:
        ordinary = getattr(import_module(threshold.module), threshold.name)
        assert isinstance(ordinary, int | float)
        assert threshold.small
        assert all(size < ordinary and type(size) is type(ordinary) for size in threshold.small), threshold.key


def test_whoever_has_taken_one_over_by_name_is_listed() -> None:
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for package in (node, cluster):
        root = Path(package.__path__[0])
        for path in root.rglob("*.py"):
            for found in ast.walk(ast.parse(path.read_text())):
                if isinstance(found, ast.ImportFrom):
                    name = ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
                    for alias in found.names:
                        users[found.module or "", alias.name].add(name)
    for threshold in THRESHOLDS:
        assert set(threshold.users) == users[threshold.module, threshold.name], threshold.key


def test_none_is_bound_before_a_run_begins() -> None:
    """A default of a parameter or of a field would keep the ordinary number."""
    names_bound = {}
    for module in {name for threshold in THRESHOLDS for name in (threshold.module, *threshold.users)}:
        nodes = list(ast.walk(ast.parse(Path(import_module(module).__file__ or "").read_text())))
        bound: list[ast.expr] = []
        for each in nodes:
            if isinstance(each, ast.FunctionDef):
                bound += [default for default in (*each.args.defaults, *each.args.kw_defaults) if default]
            elif isinstance(each, ast.Module | ast.ClassDef):
                assigned = [line for line in each.body if isinstance(line, ast.Assign | ast.AnnAssign)]
                bound += [line.value for line in assigned if line.value]
        names_bound[module] = {each.id for value in bound for each in ast.walk(value) if isinstance(each, ast.Name)}
    for threshold in THRESHOLDS:
        for name in (threshold.module, *threshold.users):
            assert threshold.name not in names_bound[name], f"{threshold.key} in {name}"


def test_they_are_in_force_as_long_as_that_lasts() -> None:
    module = import_module("cluster.transport.turns")
    user = import_module("cluster.runtime.admin_rows")
    ordinary = module.ROWS_PER_TURN
    with thresholds_of({"cluster.transport.turns.ROWS_PER_TURN": 1, "of a release before": 1}):
        assert module.ROWS_PER_TURN == user.ROWS_PER_TURN == 1
    assert module.ROWS_PER_TURN == user.ROWS_PER_TURN == ordinary


def test_every_one_is_drawn_and_most_seeds_have_none() -> None:
    drawn = [draw_thresholds(Random(seed)) for seed in range(300)]
    assert Counter(key for each in drawn for key in each).keys() == {threshold.key for threshold in THRESHOLDS}
    assert 0.5 < 1 - SHARE < sum(not each for each in drawn) / len(drawn) + 0.1 < 0.9


def test_a_kept_schedule_has_those_of_its_seed_and_does_the_same(tmp_path: Path) -> None:
    schedule = next(each for seed in range(100) if (each := draw_schedule(seed, 3, 15, 2_000)).personality.thresholds)
    write_schedule(schedule, tmp_path / "kept.json", "nothing")
    kept = read_schedule(tmp_path / "kept.json")
    assert kept == schedule
    assert run_schedule(kept).fingerprint == run_schedule(schedule).fingerprint
