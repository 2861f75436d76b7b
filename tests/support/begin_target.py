"""``python -m tests.support.begin_target KIND DIRECTORY``: begins a cluster, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from chaos.harm.journal import Journal
from chaos.plan.model import ClusterPlan
from chaos.targets.local import LocalTarget
from chaos.targets.rabbitmq import RabbitMqTarget
from chaos.targets.target import Target

TARGETS: Mapping[str, Callable[[Path, Journal], Target]] = {"local": LocalTarget, "rabbitmq": RabbitMqTarget}
BEGUN = "begun"


async def begin(kind: str, run_directory: Path) -> None:
    with Journal(run_directory) as journal:
        target = TARGETS[kind](run_directory / "cluster", journal)
        # Whatever can be prepared is to be cleared away.
        await target.start(ClusterPlan(nodes=2), target.capabilities)
        # They use their disks.
        await target.wait_ready()
        await target.pause(2)
        print(BEGUN, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(begin(sys.argv[1], Path(sys.argv[2])))
