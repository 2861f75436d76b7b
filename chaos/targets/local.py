"""Warren, as processes of this machine.

The cluster is a `LocalCluster` in a directory of the run, as `warren cluster up` makes one, so `warrenctl --dir` talks
to it while it runs.

**Proxies between nodes.** A node announces one address to all, so there is no telling each of the others another one:
what is announced counts first. But what is announced and leads nowhere is tried in turn with what a node's own
configuration says (docs/membership.md, Move). So with proxies every node announces a port on which nobody listens, and
its configuration has, for each of the others, the proxy on the line to it. Both connections of a link are on the lines
of who opens them.

A proxy cannot tell that a process is gone as the system does. The lines to a node that this target has killed or
stopped refuse connections; those to one that has ended by itself are not known to, and the others notice by its
silence.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.cluster_under_test.local import ClusterRunningError, LocalCluster, NodeNotReadyError
from chaos.cluster_under_test.ports import PortInUseError
from chaos.cluster_under_test.protocol import NodeEndedError
from chaos.harm.journal import Journal
from chaos.harm.lines import CLIENTS, Line
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets.machine import NEVER, NODES_MAX, OF_PROCESSES, Machine, missing_here, name_of, require
from chaos.targets.target import READY_TIMEOUT_S, Endpoint, Lines, NodeFacts, NotNow, TargetError
from chaos.targets.warren_operator import WarrenOperator
from node.alarms.limits import MemoryWatermark
from node.config import NodeConfig, parse_address
from node.errors import ConfigError

OFFERED = OF_PROCESSES | {
    Capability.NODE_LINES,
    Capability.CLIENT_LINES,
    Capability.FILL_DISK,
    Capability.SLOW_DISK,
    Capability.WIPE_DISK,
    Capability.MEMORY_ALARM,
    Capability.POLICY,
    Capability.MASTER,
    Capability.SYNC,
    Capability.CANCEL_SYNC,
}
#: Announced by nodes behind proxies. A port of the system on which no system listens any more (tcpmux).
NOWHERE = "127.0.0.1:1"
#: For the others to notice that a node is gone, and to let go of it.
FORGET_TIMEOUT_S = 60.0
_PAUSE_S = 0.2


def detours(node: int, proxies: Mapping[Line, str]) -> list[str]:
    """Settings by which a node reaches the others through the proxies, and is reached by them; see the top."""
    members = {line.destination: address for line, address in proxies.items() if line.source == node}
    if not members:
        return []
    key = "cluster_formation.classic_config.nodes"
    lines = [f"{key}.{number} = {name_of(number)}@{address}" for number, address in sorted(members.items())]
    return [f"cluster.advertised_address = {NOWHERE}", *lines]


class LocalTarget:
    """`chaos.targets.target.Target`; see there for what the methods promise."""

    kind = "local"

    def __init__(self, directory: Path, journal: Journal) -> None:
        """``directory`` becomes the cluster's; nothing may be in it."""
        self._machine = Machine(directory.absolute(), journal)
        self._cluster: LocalCluster | None = None
        self._numbers: dict[str, int] = {}
        self._configs: dict[int, NodeConfig] = {}
        self._operators: dict[int, WarrenOperator] = {}

    # --- facts ---

    @property
    def capabilities(self) -> frozenset[Capability]:
        return OFFERED - self.missing.keys()

    @property
    def missing(self) -> Mapping[Capability, str]:
        return {**NEVER, Capability.EXPIRY: "messages do not expire in this release of Warren", **missing_here(OFFERED)}

    @property
    def nodes_max(self) -> int:
        return NODES_MAX

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        log_path = self._begun.directory.log_path
        return [NodeFacts(number, name, str(log_path(name))) for name, number in self._numbers.items()]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        proxies = self.lines.addresses() if self.lines is not None else {}
        urls = {number: self._begun.amqp_url(name) for name, number in self._numbers.items()}
        for line, address in proxies.items():
            if line.source == CLIENTS:
                urls[line.destination] = f"amqp://guest:guest@{address}/"
        return [Endpoint(number, url) for number, url in urls.items()]

    @property
    def lines(self) -> Lines | None:
        return self._machine.lines

    @property
    def guest(self) -> None:
        return None

    def is_running(self, node: int) -> bool:
        return node not in self._machine.paused and self._begun.is_running(name_of(node))

    @property
    def _begun(self) -> LocalCluster:
        if self._cluster is None:
            raise TargetError("there is no cluster yet")
        return self._cluster

    # --- the cluster ---

    async def start(self, plan: ClusterPlan, needs: Collection[Capability] = frozenset()) -> None:
        assert self._cluster is None, "a target is begun once"
        require(self, plan, needs)
        try:
            await self._start(plan, needs)
        except BaseException:
            await self.close()
            raise

    async def _start(self, plan: ClusterPlan, needs: Collection[Capability]) -> None:
        settings = [f"{key} = {_written(value)}" for key, value in plan.settings.items()]
        numbers = range(1, plan.nodes + 1)
        await self._machine.begin(numbers, needs)
        try:
            cluster = LocalCluster.create(self._machine.directory, plan.nodes, settings=settings)
            self._cluster = cluster
            self._numbers = {name_of(number): number for number in numbers}
            entries = cluster.directory.nodes
            ports = [parse_address(at).port for each in entries for at in (each.amqp_address, each.cluster_address)]
            await self._machine.open_lines(numbers, needs, self._upstream, ports)
            proxies = self.lines.addresses() if self.lines is not None else {}
            for name, number in self._numbers.items():
                own = [f"data_dir = {self._machine.data_path(number)}", *detours(number, proxies)]
                self._configs[number] = cluster.configure_node(name, [*settings, *own])
                cluster.environments[name] = self._machine.environment(number)
            await cluster.start()
        except (ConfigError, PortInUseError, ClusterRunningError) as error:
            raise TargetError(str(error)) from error

    def _upstream(self, line: Line) -> str:
        entry = self._begun.directory.node(name_of(line.destination))
        return entry.amqp_address if line.source == CLIENTS else entry.cluster_address

    async def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        wanted = [number for number in self._numbers.values() if self.is_running(number)] if nodes is None else nodes
        names = [name_of(number) for number in wanted]
        try:
            await self._begun.wait_ready(names, timeout_s)
        except NodeEndedError as error:
            raise TargetError(str(error)) from error
        except NodeNotReadyError as error:
            logs = ", ".join(str(self._begun.directory.log_path(name)) for name in names)
            raise TimeoutError(f"{error} (logs: {logs})") from error

    async def close(self) -> None:
        for operator in self._operators.values():
            await operator.close()
        self._operators.clear()
        try:
            await self._machine.close()
        finally:
            if self._cluster is not None:
                # They are gone, and are to be reaped.
                await self._cluster.close()

    # --- nodes ---

    async def kill(self, nodes: Sequence[int]) -> None:
        await self._machine.kill(nodes)
        await asyncio.gather(*(self._begun.kill(name_of(node)) for node in nodes))
        await self._note_down()

    async def stop(self, node: int) -> None:
        await self._begun.stop(name_of(node))
        self._machine.paused.discard(node)
        await self._note_down()

    async def start_node(self, node: int) -> None:
        name = name_of(node)
        if self._begun.is_running(name):
            raise TargetError(f"{name} runs already")
        try:
            await self._begun.restart(name)
        except PortInUseError as error:
            raise TargetError(str(error)) from error
        await self._note_down()

    async def _note_down(self) -> None:
        running = self._begun.running_nodes()
        await self._machine.note_down([number for name, number in self._numbers.items() if name not in running])

    async def pause(self, node: int) -> None:
        await self._machine.pause(node)

    async def resume(self, node: int) -> None:
        await self._machine.resume(node)

    async def wipe(self, node: int) -> None:
        await self.kill([node])
        await asyncio.to_thread(shutil.rmtree, self._machine.data_path(node))
        await self._forget(node)
        await self.start_node(node)

    async def _forget(self, node: int) -> None:
        """The others, asked in turn, may yet have to notice that it is gone."""
        deadline = time.monotonic() + FORGET_TIMEOUT_S
        reasons: dict[int, str] = {}
        while time.monotonic() < deadline:
            for other in (number for number in self._numbers.values() if number != node and self.is_running(number)):
                try:
                    await self.operator(other).forget(name_of(node))
                except (NotNow, TargetError) as error:
                    reasons[other] = str(error)
                else:
                    return
            await asyncio.sleep(_PAUSE_S)
        said = "; ".join(f"{name_of(other)} said: {reason}" for other, reason in reasons.items())
        raise TargetError(f"{name_of(node)} was not forgotten: {said or 'no other node runs'}")

    # --- faults of nodes ---

    async def hurt(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        if name == "memory alarm":
            await self.operator(node).set_memory_watermark(MemoryWatermark(relative=0.0))
        else:
            await self._machine.hurt_disk(name, node, arguments)

    async def unhurt(self, name: str, node: int) -> None:
        if name != "memory alarm":
            await self._machine.unhurt_disk(name, node)
        elif self._begun.is_running(name_of(node)):
            # One that was begun anew has it from its configuration.
            await self.operator(node).set_memory_watermark(_watermark_of(self._configs[node]))

    # --- operators ---

    def operator(self, node: int) -> WarrenOperator:
        if node not in self._operators:
            cluster = self._begun
            address = cluster.admin_address(name_of(node))
            self._operators[node] = WarrenOperator(address, cluster.cookie, self._numbers)
        return self._operators[node]


def _written(value: object) -> str:
    """As a line of a configuration says it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _watermark_of(config: NodeConfig) -> MemoryWatermark:
    relative = config.memory_watermark_relative
    if relative is None:
        return MemoryWatermark(absolute_bytes=config.memory_watermark_absolute_bytes)
    return MemoryWatermark(relative=relative)
