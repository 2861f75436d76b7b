"""Meshes of a few nodes on a network in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from cluster.transport.outbox import OutboxLimits
from node.ids import Incarnation, NodeName
from tests.support.memory_carrier import MemoryCarrier, MemoryNetwork
from tests.support.memory_path import pass_time
from tests.support.mesh_listener import Listener

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
TIMING = MeshTiming()
#: Virtual: longer than any timeout of the mesh, several times.
PATIENCE_S = 60.0


def now() -> float:
    """Seconds of the loop's time."""
    return asyncio.get_running_loop().time()


class MeshNodes:
    """Nodes that know each other; each is a host of its name, and its address is port 1 there."""

    def __init__(self, *names: NodeName, seed: int = 0, window_bytes: int = 256 * 1024) -> None:
        self.network = MemoryNetwork(Random(seed), window_bytes=window_bytes)
        self.addresses = {name: f"{name}:1" for name in names}
        self.carriers: dict[NodeName, MemoryCarrier] = {}
        self.meshes: dict[NodeName, Mesh] = {}
        self.listeners: dict[NodeName, Listener] = {}

    def set_delay(self, min_s: float, max_s: float) -> None:
        """Of every path."""
        for source in self.addresses:
            for target in self.addresses:
                path = self.network.path(source, target)
                path.delay_min_s, path.delay_max_s = min_s, max_s

    async def start(
        self,
        name: NodeName,
        incarnation: int = 1,
        *,
        cookie: str = "secret",
        limits: OutboxLimits | None = None,
        listener: Listener | None = None,
    ) -> Mesh:
        self.listeners[name] = listener or Listener()
        self.carriers[name] = self.network.carrier(name)
        mesh = self.meshes[name] = Mesh(
            name,
            Incarnation(incarnation),
            self.addresses[name],
            self.addresses,
            self.listeners[name],
            self.carriers[name],
            random_bytes=Random(name).randbytes,
            cookie=cookie,
            timing=TIMING,
            limits=limits,
        )
        await mesh.start()
        return mesh

    async def start_all(self) -> None:
        for name in self.addresses:
            await self.start(name)
        await self.until_all_up(1)

    async def stop(self, name: NodeName) -> None:
        await self.meshes.pop(name).stop()

    async def kill(self, name: NodeName) -> None:
        """Its process ends; its system hangs up."""
        self.carriers[name].kill()
        await self.stop(name)

    async def lose(self, name: NodeName) -> None:
        """Its machine loses its power."""
        self.network.vanish(name)
        await self.stop(name)

    async def stop_all(self) -> None:
        for name in list(self.meshes):
            await self.stop(name)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == [], "a stopped mesh leaves no task"

    async def until_all_up(self, times: int) -> None:
        """Every node has heard so often that a link is up."""
        await self.until(lambda: all(each.count("up") == times for each in self.listeners.values()))
        self.check_invariants()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await pass_time(0.001)

    def check_invariants(self) -> None:
        for mesh in self.meshes.values():
            mesh.check_invariants()
