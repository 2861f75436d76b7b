"""One run of one scenario: from the target to the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.conduct.conductor import Conductor
from chaos.conduct.sheet import Sheet
from chaos.harm.journal import Journal
from chaos.judge.findings import Name
from chaos.judge.verdict import LOSSES, Evidence, judge
from chaos.plan.model import Scenario
from chaos.suite.results import Result
from chaos.targets.target import Target

#: Below the directory of a run: what the cluster keeps.
CLUSTER_DIRECTORY = "cluster"


class Judgement(Protocol):
    """What a judge found in a record."""

    @property
    def counts(self) -> Mapping[Name, int]: ...

    @property
    def incomplete(self) -> Collection[int]:
        """Processes of which something is missing."""
        ...

    @property
    def pairs_compared(self) -> int: ...


#: Judges the record in a directory.
Judge = Callable[[Path, Sheet], Judgement]
#: Makes a target in a directory.
TargetMaker = Callable[[Path, Journal], Target]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how scenarios are run."""

    make_target: TargetMaker
    judge: Judge
    #: Tells whoever watches.
    say: Callable[[str], None]


async def run_scenario(scenario: Scenario, directory: Path, seed: int, setting: Setting) -> Result:
    """Run and judge it. ``directory``, which is there and empty, becomes the run's."""
    began_s = time.monotonic()
    with Journal(directory) as journal:
        target = setting.make_target(directory / CLUSTER_DIRECTORY, journal)
        common = (scenario.id, scenario.title, target.kind, seed)
        if reason := scenario.lacks(target.capabilities, target.nodes_max, target.missing):
            return Result(*common, None, (reason,))
        try:
            sheet = await Conductor(scenario, target, directory, seed, setting.say).run()
        finally:
            await target.close()
    setting.say("judge")
    judgement = setting.judge(directory, sheet)
    evidence = evidence_of(sheet, judgement)
    judged = judge(evidence)
    counts = {str(name): count for name, count in judgement.counts.items() if count}
    took_s = round(time.monotonic() - began_s, 3)
    at_risk = dict(evidence.at_risk or {})
    return Result(*common, judged.verdict, judged.reasons, str(directory), took_s, counts, at_risk)


def evidence_of(sheet: Sheet, judgement: Judgement) -> Evidence:
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
    )


def _names(sheet: Sheet, are_good: Sequence[bool]) -> list[str]:
    return [queue.name for queue, is_good in zip(sheet.queues, are_good, strict=True) if not is_good]
