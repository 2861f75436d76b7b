"""``python -m chaos.conduct SCENARIO DIRECTORY``: one run, judged by the reference."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

from chaos.conduct.conductor import Conductor
from chaos.harm.journal import Journal
from chaos.judge.reference import Reference
from chaos.plan.reading import catalogue
from chaos.record.reading import read_events
from chaos.targets.local import LocalTarget


async def _run(scenario: str, directory: Path, seed: int) -> None:
    with Journal(directory) as journal:
        target = LocalTarget(directory / "cluster", journal)
        try:
            conductor = Conductor(
                catalogue()[scenario], target, directory, seed, lambda text: print(text, file=sys.stderr, flush=True)
            )
            sheet = await conductor.run()
        finally:
            await target.close()
    print(sheet)
    reference = Reference(read_events(directory), sheet.facts())
    print(Counter(str(finding.name) for finding in reference.findings()), reference.incomplete)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.directory.mkdir(parents=True)
    asyncio.run(_run(options.scenario, options.directory, options.seed))


main()
