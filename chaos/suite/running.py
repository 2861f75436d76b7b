"""One run of one scenario: from the target to the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.conduct.conductor import Conductor
from chaos.conduct.sheet import Sheet
from chaos.harm.journal import Journal, heal, outstanding
from chaos.judge.findings import LOSSES
from chaos.judge.judgement import Judgement
from chaos.judge.ledger import Row
from chaos.judge.verdict import Evidence, Verdict
from chaos.judge.verdict import judge as verdict_of
from chaos.judge.windows import Service, Window, longest_us
from chaos.plan.model import Scenario
from chaos.plan.variants import renamed
from chaos.report import page
from chaos.report.assembling import assemble, windows_of
from chaos.report.drawing import duration
from chaos.suite import chaos_toolkit
from chaos.suite.results import Result, write_result
from chaos.suite.undoers import EVERY_UNDOER
from chaos.targets.target import Target

#: Below the directory of a run: what the cluster keeps.
CLUSTER_DIRECTORY = "cluster"
#: Beside the page: what is in the directory of a run, if it is there.
FILES = {
    "record": "events/",
    "findings": "findings/",
    "the run": "run.json",
    "judgement": "judgement.json",
    "clients": "clients/",
    "cluster": f"{CLUSTER_DIRECTORY}/",
}


#: Of a run: the page has all.
FAILOVERS_TOLD = 10


class CannotJudge(Exception):
    """Nothing was concluded of a record, which is whole; the text says why, and what to do with it."""


class Judge(Protocol):
    """Judges the record in a directory."""

    def prepare(self) -> None:
        """There will be something to judge in a while."""
        ...

    def __call__(self, directory: Path, sheet: Sheet) -> Judgement:
        """Raises `CannotJudge`."""
        ...


#: Makes a target in a directory.
TargetMaker = Callable[[Path, Journal], Target]


@dataclass(frozen=True, slots=True)
class TargetKind:
    """What is broken."""

    name: str
    make: TargetMaker
    #: A scenario as it is there, if it is of any sense.
    adapt: Callable[[Scenario], Scenario] = lambda scenario: scenario
    #: Why it is of none; empty if it is.
    lacks: Callable[[Scenario], str] = lambda _: ""


class Watcher(Protocol):
    """Who watches a run hears of it while it goes on."""

    def say(self, text: str) -> None: ...

    def follow(self, conductor: Conductor | None) -> None:
        """It begins; None: it is over."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how scenarios are run."""

    target: TargetKind
    judge: Judge
    watcher: Watcher
    #: The command by which a scenario is run again, from a seed.
    replay: Callable[[int], str]


async def run_scenario(scenario: Scenario, directory: Path, seed: int, setting: Setting) -> Result:
    """Run and judge it. ``directory``, which is there and empty, becomes the run's."""
    began_s = time.monotonic()
    try:
        sheet = await _conduct(scenario, directory, seed, setting)
    finally:
        # It may have a loop of its own.
        await asyncio.to_thread(_heal, directory, setting.watcher)
    if isinstance(sheet, Result):
        return sheet
    setting.watcher.say("judge")
    return result_of(directory, sheet, setting.judge, began_s)


def result_of(directory: Path, sheet: Sheet, judge: Judge, began_s: float) -> Result:
    """Of a run that began then, on the monotonic clock. Without a judgement it proves nothing; the next may."""
    try:
        judgement = judge(directory, sheet)
    except CannotJudge as error:
        took_s = round(time.monotonic() - began_s, 3)
        reasons = (str(error),)
        return Result(sheet.scenario, sheet.title, sheet.target, sheet.seed, Verdict.UNKNOWN, reasons, took_s=took_s)
    return conclude(directory, sheet, judgement, time.monotonic() - began_s)


async def _conduct(scenario: Scenario, directory: Path, seed: int, setting: Setting) -> Sheet | Result:
    """A result at once if it is skipped."""
    watcher = setting.watcher
    with Journal(directory) as journal:
        kind = setting.target
        target = kind.make(directory / CLUSTER_DIRECTORY, journal)
        lacking = scenario.lacks(target.capabilities, target.nodes_max, target.missing)
        if reason := kind.lacks(scenario) or lacking:
            return Result(scenario.id, scenario.title, kind.name, seed, None, (reason,))
        planned = kind.adapt(scenario)
        if target.guest is not None:
            planned = renamed(planned, target.guest.name)
        replay = setting.replay(seed)
        setting.judge.prepare()
        conductor = Conductor(planned, target, directory, seed, watcher.say, replay)
        conductor.sheet.target = kind.name
        try:
            watcher.follow(conductor)
            return await conductor.run()
        finally:
            watcher.follow(None)
            await target.close()


def _heal(directory: Path, watcher: Watcher) -> None:
    """Undo what is left, however the run ended: of a cluster that others use nothing ends with its target."""
    if not outstanding(directory):
        return
    for each in heal(directory, EVERY_UNDOER):
        watcher.say(f"undone: {each.entry.what}" if not each.problem else f"LEFT: {each.entry.what}: {each.problem}")


def conclude(directory: Path, sheet: Sheet, judgement: Judgement, took_s: float) -> Result:
    """What came of a run that is judged: its result, and its page beside the record."""
    windows = windows_of(judgement.figures)
    evidence = evidence_of(sheet, judgement, windows)
    judged = verdict_of(evidence)
    files = {name: address for name, address in FILES.items() if (directory / address).exists()}
    report = assemble(sheet, judgement, judged, windows, files, directory)
    page.write(report, directory)
    chaos_toolkit.write(sheet, judgement, judged, directory)
    counts = {str(name): count for name, count in judgement.counts.items() if count}
    result = Result(
        sheet.scenario,
        sheet.title,
        sheet.target,
        sheet.seed,
        judged.verdict,
        judged.reasons,
        str(directory),
        round(took_s, 3),
        counts,
        dict(evidence.at_risk or {}),
        {str(service): longest_us(windows, service) for service in Service},
        tuple(_in_words(sheet, row) for row in report.ledger[:FAILOVERS_TOLD]),
    )
    write_result(directory, result)
    return result


def _in_words(sheet: Sheet, row: Row) -> str:
    """What a failover cost."""
    queue, node = sheet.queues[row.failover.queue - 1].name, row.failover.node
    whom = f"n{node}" if node else "a master that nobody saw"
    costs = [f"noticed within {duration(row.detected_us[1])}"]
    costs += [
        f"{what} for {duration(gap_us)}"
        for what, gap_us in (("no confirm", row.publish_gap_us), ("no delivery", row.consume_gap_us))
        if gap_us
    ]
    costs += [f"{count:,} {what}" for what, count in (("lost", row.lost), ("repeats", row.repeats)) if count]
    return f"{queue} to {whom}: {', '.join(costs)}"


def evidence_of(sheet: Sheet, judgement: Judgement, windows: Sequence[Window]) -> Evidence:
    """What a verdict goes by."""
    return Evidence(
        counts=judgement.counts,
        incomplete=judgement.incomplete,
        problem=sheet.problem,
        unknown_queues=_names(sheet, [queue.is_known for queue in sheet.queues]),
        undrained_queues=_names(sheet, [queue.is_drained for queue in sheet.queues]),
        not_reached=sheet.not_reached,
        wanted_at_risk=sheet.wanted_at_risk,
        at_risk={
            **sheet.at_risk,
            "pairs": judgement.pairs_compared,
            "lost": sum(judgement.counts.get(name, 0) for name in LOSSES),
        },
        loss_permitted=sheet.loss_permitted,
        gaps=_gaps(sheet, windows),
    )


def _gaps(sheet: Sheet, windows: Sequence[Window]) -> list[str]:
    limits = {Service.PUBLISH: sheet.publish_gap_us_max, Service.CONSUME: sheet.consume_gap_us_max}
    missing = {Service.PUBLISH: "no confirm", Service.CONSUME: "no delivery"}
    told = []
    for window in windows:
        limit_us = limits[window.service]
        if limit_us is not None and window.length_us > limit_us:
            name = sheet.queues[window.queue - 1].name
            length, most = duration(window.length_us), duration(limit_us)
            told.append(f"{name}: {missing[window.service]} for {length}, and {most} at most are permitted")
    return told


def _names(sheet: Sheet, are_good: Sequence[bool]) -> list[str]:
    return [queue.name for queue, is_good in zip(sheet.queues, are_good, strict=True) if not is_good]
