"""Meshes of a few nodes over the simulator's carrier and network: a harness, without a model of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from chaos.sim.carrier import SimulatedCarrier
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.network import Link, Network
from cluster.transport.carrier import Carrier, Connection, OutgoingStream, StreamKind
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import Gatekeeper, MeshTiming
from cluster.transport.outbox import OutboxLimits
from node.ids import Incarnation, NodeName
from tests.support.mesh_listener import Listener

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
TIMING = MeshTiming()
#: Virtual: longer than any timeout of the mesh, several times.
PATIENCE_S = 60.0


def now() -> float:
    """Seconds of the loop's time."""
    return asyncio.get_running_loop().time()


class MeshNodes:
    """Nodes that know each other; each is a host of its name, and its address is port 1 there.

    To be made on a running `SimulatedLoop`.
    """

    def __init__(self, *names: NodeName, seed: int = 0) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop), "see the conftest of the tests of the mesh"
        self._loop = loop
        self._chance = Random(seed)
        #: The least and the most that a chunk takes on its way.
        self._delay_s = 0.0001, 0.0001
        self.network = Network(loop, lambda _source, _target: Link(lambda: self._chance.uniform(*self._delay_s)))
        self.addresses = {name: f"{name}:1" for name in names}
        #: The last one that ran on each host.
        self._processes: dict[str, Process] = {}
        self.carriers: dict[NodeName, SimulatedCarrier] = {}
        self.meshes: dict[NodeName, Mesh] = {}
        self.listeners: dict[NodeName, Listener] = {}
        self._dialed: list[Connection] = []

    # --- the network ---

    def set_delay(self, min_s: float, max_s: float) -> None:
        """Of every link."""
        self._delay_s = min_s, max_s

    def cut(self, *hosts: NodeName) -> None:
        """The way from the first to the second."""
        self.network.link(*hosts).is_cut = True

    def heal(self, *hosts: NodeName) -> None:
        """The way from the first to the second."""
        self.network.link(*hosts).is_cut = False
        self.network.changed()

    def refuse(self, source: NodeName, target: NodeName, is_refusing: bool = True) -> None:
        """New connections, as by a firewall that says so."""
        self.network.link(source, target).is_refusing = is_refusing

    def cut_both(self, one: NodeName, other: NodeName) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal_both(self, one: NodeName, other: NodeName) -> None:
        self.heal(one, other)
        self.heal(other, one)

    def reset(self, one: NodeName, other: NodeName) -> None:
        """Break every connection between the two; an unknown suffix of what was said is lost."""
        self.network.reset(one, other, lambda count: self._chance.randint(0, count), told=(one, other))

    # --- nodes ---

    def carrier(self, host: str) -> SimulatedCarrier:
        """Of a process that starts on ``host``."""
        self.network.host_back(host)
        process = self._processes[host] = self._loop.start_process(host)
        return SimulatedCarrier(self.network, process, host, lambda _admin: None)

    def dial(self, carrier: Carrier, target: NodeName, kind: StreamKind) -> OutgoingStream:
        """A stream to a node that no mesh has opened."""
        connection = carrier.connect(self.addresses[target], silence_timeout_ms=TIMING.silence_timeout_ms)
        self._dialed.append(connection)
        return connection.open_stream(kind)

    async def start(
        self,
        name: NodeName,
        incarnation: int = 1,
        *,
        cookie: str = "secret",
        limits: OutboxLimits | None = None,
        listener: Listener | None = None,
        gate: Gatekeeper | None = None,
    ) -> Mesh:
        self.listeners[name] = listener or Listener()
        self.carriers[name] = self.carrier(name)
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
            gate=gate,
        )
        await self._processes[name].carry_out(mesh.start())
        return mesh

    async def start_all(self) -> None:
        for name in self.addresses:
            await self.start(name)
        await self.until_all_up(1)

    async def stop(self, name: NodeName) -> None:
        await self._processes[name].carry_out(self.meshes.pop(name).stop())

    async def kill(self, name: NodeName) -> None:
        """Its process ends; its system hangs up. What `stop` says is not heard any more."""
        self.network.process_died(self._processes[name])
        await self.stop(name)

    async def lose(self, name: NodeName) -> None:
        """Its machine loses its power."""
        self.network.host_lost(self._processes[name], name)
        await self.stop(name)

    async def stop_all(self) -> None:
        for name in list(self.meshes):
            await self.stop(name)
        processes = [self._loop.harness, *(self._processes[name] for name in self.carriers)]
        left = [task for process in processes for task in process.tasks if not task.done()]
        assert left == [asyncio.current_task()], "a stopped mesh leaves no task"
        for connection in self._dialed:
            await connection.close()
        await asyncio.sleep(3 * self._delay_s[1])  # what is being established is given up when it is there
        assert not any(map(self.network.connections_of, processes)), "a stopped mesh leaves no connection"

    async def until_all_up(self, times: int) -> None:
        """Every node has heard so often that a link is up."""
        await self.until(lambda: all(each.count("up") == times for each in self.listeners.values()))
        self.check_invariants()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - any condition will do, and waiting costs no time
                await asyncio.sleep(0.001)

    def check_invariants(self) -> None:
        self.network.check_invariants()
        for mesh in self.meshes.values():
            mesh.check_invariants()
