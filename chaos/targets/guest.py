"""Being a guest on a cluster that others use: what a run makes there has names of its own, and is removed behind it.

Before anything is made, the journal says what will be: so a run that was killed is cleared up by `chaos.harm.journal`.
The journal names the file that tells of the cluster, not what is in it: no password gets there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pika.exceptions

from chaos.harm.journal import CannotUndo, Journal
from chaos.targets.answering import connected
from chaos.targets.management import ManagementOperator
from chaos.targets.outside import OutsideCluster, OutsideError, read_outside
from chaos.targets.target import NotNow, TargetError

HOW = "belongings"


class Guest:
    """Of one run."""

    def __init__(self, cluster: OutsideCluster, journal: Journal, run: str) -> None:
        self._cluster = cluster
        self._journal = journal
        self._prefix = f"chaos.{run}."
        self._entry: int | None = None
        #: On the cluster, as they were claimed.
        self.queues: Sequence[str] = ()
        #: Of the policy that the run may set.
        self.policy = f"chaos-{run}"

    def name(self, queue: str) -> str:
        """On the cluster, of one of the scenario's."""
        return f"{self._prefix}{queue}"

    def claim(self, queues: Sequence[str]) -> None:
        """These will be made, by the names that they have on the cluster."""
        self.queues = list(queues)
        what = f"queues {', '.join(queues)} and policy {self.policy} on {self._cluster.name}"
        self._entry = self._journal.will_do(
            HOW, what, file=str(self._cluster.source), queues=self.queues, policy=self.policy
        )

    async def clear(self) -> None:
        """Remove them. Raises `TargetError` if something is left: it stays in the journal."""
        if self._entry is None:
            return
        await clear(self._cluster, self.queues, self.policy)
        self._journal.undone(self._entry)
        self._entry = None


async def clear(cluster: OutsideCluster, queues: Sequence[str], policy: str) -> None:
    """Does no harm where nothing is. Raises `TargetError`."""
    await asyncio.to_thread(_delete, cluster, queues)
    if cluster.management is None:
        return
    operator = ManagementOperator(cluster.management, {})
    try:
        await operator.clear_policy(policy)
    except NotNow as error:
        raise TargetError(str(error)) from None
    finally:
        await operator.close()


def clear_told(told: Mapping[str, Any]) -> None:
    """The undoer."""
    try:
        cluster = read_outside(Path(told["file"]))
        asyncio.run(clear(cluster, told["queues"], told["policy"]))
    except (OutsideError, TargetError) as error:
        raise CannotUndo(str(error)) from None


def _delete(cluster: OutsideCluster, queues: Sequence[str]) -> None:
    """At the first node that answers. Blocks."""
    problems = []
    for node in cluster.nodes:
        try:
            connection = connected(node.amqp)
            channel = connection.channel()
            for queue in queues:
                channel.queue_delete(queue)
            connection.close()
        except (pika.exceptions.AMQPError, OSError) as error:
            problems.append(f"{node.name}: {type(error).__name__} {error}".rstrip())
        else:
            return
    names = ", ".join(queues)
    raise TargetError(f"nobody deletes {names} on {cluster.name} ({'; '.join(problems)}): delete them by hand")
