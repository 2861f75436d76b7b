"""Shrinking what a run has shown: each candidate is run, judged and compared, and the smallest is written as a file."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from chaos.judge.findings import VIOLATIONS
from chaos.judge.verdict import Verdict
from chaos.plan.reading import scenario
from chaos.suite.results import Result
from chaos.suite.running import Setting, run_scenario
from chaos.suite.shrinking import Document, shrink

#: How often a candidate may fail to show it, and how many runs there are at most: they take half a minute each.
TRIES, RUNS_MAX = 2, 60
#: Below the directory of the run that showed it.
DIRECTORY = "smaller"
FILE_NAME = "smallest.toml"


async def smallest(document: Document, shown: Result, setting: Setting) -> tuple[Path, int]:
    """Where the smallest is that was seen to show the same, and how many runs it took."""
    directory = Path(shown.directory) / DIRECTORY
    directory.mkdir()
    runs = 0

    async def shows(candidate: Document) -> bool:
        nonlocal runs
        runs += 1
        own = directory / str(runs)
        own.mkdir()
        left = sum(len(each.get("step", ())) * each.get("times", 1) for each in candidate.get("round", ()))
        setting.watcher.say(f"run {runs} of at most {RUNS_MAX}: {left} steps")
        result = await run_scenario(scenario(candidate), own, shown.seed + runs, setting)
        return is_same(shown, result)

    found, _ = await shrink(document, shows, TRIES, RUNS_MAX)
    path = directory / FILE_NAME
    path.write_text(tomli_w.dumps(found), encoding="utf-8")
    return path, runs


def is_same(shown: Result, other: Result) -> bool:
    """True if both came to the same verdict, and a failure to one violation at least that is the same."""
    if other.verdict is not shown.verdict:
        return False
    if shown.verdict is not Verdict.FAIL:
        return True
    violations = {str(name) for name in VIOLATIONS}
    mine, others = violations & shown.counts.keys(), violations & other.counts.keys()
    return bool(mine & others) if mine else not others
