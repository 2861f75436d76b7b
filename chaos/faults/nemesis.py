"""Hurts nodes on purpose and writes down when each hurt began and ended."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from chaos.cluster_under_test.protocol import ClusterUnderTest
from chaos.history import Kind, ProcessLog


class Nemesis:
    """Faults on the nodes of one cluster. A fault has a number; it ends when the node serves again."""

    def __init__(self, cluster: ClusterUnderTest, log: ProcessLog) -> None:
        self._cluster = cluster
        self._log = log
        self._fault_count = 0
        #: Faults that have not ended: node -> (fault_id, type).
        self.active: dict[str, tuple[int, str]] = {}

    async def kill(self, node: str) -> int:
        """SIGKILL; ends with `restart`. Returns the fault's number."""
        return await self._begin("kill", node, self._cluster.kill)

    async def stop(self, node: str) -> int:
        """Orderly shutdown; ends with `restart`."""
        return await self._begin("stop", node, self._cluster.stop)

    async def pause(self, node: str) -> int:
        """SIGSTOP; ends with `resume`."""
        return await self._begin("pause", node, self._cluster.pause)

    async def restart(self, node: str, timeout_s: float) -> None:
        """Start a killed or stopped node and wait until it serves."""
        await self._cluster.restart(node)
        await self._cluster.wait_ready([node], timeout_s)
        self._end(node)

    async def resume(self, node: str) -> None:
        """Let a paused node run on."""
        await self._cluster.resume(node)
        self._end(node)

    async def heal(self, timeout_s: float) -> None:
        """End every fault that is still active."""
        for node, (_, fault_type) in list(self.active.items()):
            if fault_type == "pause":
                await self.resume(node)
            else:
                await self.restart(node, timeout_s)

    async def _begin(self, fault_type: str, node: str, action: Callable[[str], Awaitable[None]]) -> int:
        assert node not in self.active, f"{node} already suffers from a fault"
        self._fault_count += 1
        fault_id = self._fault_count
        self.active[node] = (fault_id, fault_type)
        begun_us = self._log.now_us()
        await action(node)
        self._record(Kind.FAULT_BEGIN, fault_id, fault_type, node, t_lo_us=begun_us)
        return fault_id

    def _end(self, node: str) -> None:
        fault_id, fault_type = self.active.pop(node)
        self._record(Kind.FAULT_END, fault_id, fault_type, node)

    def _record(self, kind: Kind, fault_id: int, fault_type: str, node: str, t_lo_us: int | None = None) -> None:
        self._log.record(
            kind,
            t_lo_us=t_lo_us,
            fault_id=fault_id,
            node_id=list(self._cluster.nodes).index(node),
            detail=json.dumps({"type": fault_type, "node": node}),
        )
