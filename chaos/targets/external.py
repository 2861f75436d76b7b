"""A cluster that somebody else runs, see `chaos.targets.outside`.

It is neither begun nor ended: a run takes it as it is, is a guest there (`chaos.targets.guest`), and leaves its nodes
running. How a node is brought back is in the journal before it is hurt, so that `heal` does it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chaos.harm import commands
from chaos.harm.commands import CommandFailed
from chaos.harm.journal import Journal
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets.answering import answers
from chaos.targets.guest import Guest
from chaos.targets.management import ManagementOperator
from chaos.targets.outside import PAIRS, OutsideCluster, OutsideNode
from chaos.targets.passive import PassiveOperator
from chaos.targets.target import READY_TIMEOUT_S, Endpoint, Lines, NodeFacts, NotNow, Operator, TargetError

_POLL_INTERVAL_S = 0.2
_FAULTS: Mapping[str, Capability] = {
    "disconnect": Capability.DISCONNECT,
    "fill disk": Capability.FILL_DISK,
    "slow disk": Capability.SLOW_DISK,
    "memory alarm": Capability.MEMORY_ALARM,
}


class ExternalTarget:
    """`chaos.targets.target.Target`; see there for what the methods promise."""

    kind = "external"

    def __init__(self, cluster: OutsideCluster, journal: Journal, run: str = "run") -> None:
        self._cluster = cluster
        self._guest = Guest(cluster, journal, run)
        self._journal = journal
        self._numbers = {node.name: number for number, node in enumerate(cluster.nodes, 1)}
        #: Nodes that were ended, or stand still, and by which command: as far as we know.
        self._ended: set[int] = set()
        self._paused: set[int] = set()
        #: What is in the journal, by node and by the command that undoes it.
        self._entries: dict[tuple[int, str], int] = {}
        self._operator: ManagementOperator | None = None
        #: By node, of a cluster without management.
        self._passive: dict[int, PassiveOperator] = {}

    # --- facts ---

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._cluster.capabilities

    @property
    def missing(self) -> Mapping[Capability, str]:
        return self._cluster.missing

    @property
    def nodes_max(self) -> int:
        return len(self._cluster.nodes)

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        return [NodeFacts(number, name) for name, number in self._numbers.items()]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(number, node.amqp) for number, node in enumerate(self._cluster.nodes, 1)]

    @property
    def lines(self) -> Lines | None:
        return None

    @property
    def guest(self) -> Guest:
        return self._guest

    def is_running(self, node: int) -> bool:
        return node not in self._ended | self._paused

    def _node(self, number: int) -> OutsideNode:
        return self._cluster.nodes[number - 1]

    # --- the cluster ---

    async def start(self, plan: ClusterPlan, needs: Collection[Capability] = frozenset()) -> None:
        lacking = sorted(set(needs) - self.capabilities)
        if lacking:
            raise TargetError("; ".join(f"{each}: {self.missing[each]}" for each in lacking))
        if plan.nodes > self.nodes_max:
            raise TargetError(f"{self._cluster.name} has {self.nodes_max} nodes, and {plan.nodes} are wanted")
        if plan.settings:
            names = ", ".join(sorted(plan.settings))
            raise TargetError(f"settings of a cluster that somebody else runs are not ours to make: {names}")

    async def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        wanted = [number for number in self._numbers.values() if self.is_running(number)] if nodes is None else nodes
        silent = list(wanted)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    silent = await self._not_ready(wanted)
                    if not silent:
                        return
                    await asyncio.sleep(_POLL_INTERVAL_S)
        except TimeoutError:
            names = ", ".join(self._node(number).name for number in silent)
            raise TimeoutError(f"{names} of {self._cluster.name} did not serve clients in time") from None

    async def _not_ready(self, wanted: Sequence[int]) -> list[int]:
        return [number for number in wanted if not await self._serves(number)] or await self._unseen(wanted)

    async def _serves(self, number: int) -> bool:
        return await asyncio.to_thread(answers, self._node(number).amqp)

    async def _unseen(self, wanted: Sequence[int]) -> list[int]:
        """Nodes that an operator does not see, if there is one to be asked."""
        if self._cluster.management is None or not wanted:
            return []
        try:
            running = await self.operator(wanted[0]).running()
        except NotNow:
            return list(wanted)
        return [number for number in wanted if number not in running]

    async def close(self) -> None:
        if self._operator is not None:
            await self._operator.close()
            self._operator = None
        for passive in self._passive.values():
            await passive.close()
        self._passive.clear()

    # --- nodes ---

    async def _do(self, node: int, name: str) -> None:
        command = self._node(node).commands.get(name)
        if command is None:
            raise TargetError(f"{self._node(node).name} has no command {name!r}")
        try:
            await asyncio.to_thread(commands.run, command)
        except CommandFailed as error:
            raise TargetError(f"{self._node(node).name}: {error}") from error

    async def _hurt(self, node: int, name: str, undo: str) -> None:
        """Do it, with its end in the journal before."""
        if (node, undo) not in self._entries:
            what = f"{name} {self._node(node).name}"
            self._entries[node, undo] = self._journal.will_do(
                commands.HOW, what, command=self._node(node).commands.get(undo, "")
            )
        await self._do(node, name)

    async def _heal(self, node: int, undo: str) -> None:
        await self._do(node, undo)
        entry = self._entries.pop((node, undo), None)
        if entry is not None:
            self._journal.undone(entry)

    async def kill(self, nodes: Sequence[int]) -> None:
        self._ended.update(nodes)
        await asyncio.gather(*(self._hurt(node, "kill", "start") for node in nodes))
        self._paused.difference_update(nodes)

    async def stop(self, node: int) -> None:
        self._ended.add(node)
        await self._hurt(node, "stop", "start")

    async def start_node(self, node: int) -> None:
        if self.is_running(node):
            raise TargetError(f"{self._node(node).name} runs already")
        await self._heal(node, "start")
        self._ended.discard(node)

    async def pause(self, node: int) -> None:
        self._paused.add(node)
        await self._hurt(node, "pause", "resume")

    async def resume(self, node: int) -> None:
        if node in self._paused:
            await self._heal(node, "resume")
            self._paused.discard(node)

    async def hurt(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        begin, end = PAIRS[_FAULTS[name]]
        if arguments:
            told = ", ".join(f"{key} = {value}" for key, value in arguments.items())
            raise TargetError(f"{name}: a command of {self._cluster.name} does what it does, and not {told}")
        await self._hurt(node, begin, end)

    async def unhurt(self, name: str, node: int) -> None:
        await self._heal(node, PAIRS[_FAULTS[name]][1])

    async def wipe(self, node: int) -> None:
        raise TargetError(f"nobody empties disks of {self._cluster.name}, not even {self._node(node).name}'s")

    def operator(self, node: int) -> Operator:
        if self._cluster.management is None:
            if node not in self._passive:
                self._passive[node] = PassiveOperator(self._node(node).amqp, lambda: self._guest.queues)
            return self._passive[node]
        if self._operator is None:
            self._operator = ManagementOperator(self._cluster.management, self._numbers)
        return self._operator
