"""One simulated machine: a disk that outlives processes, and the world that it gives to the node that runs on it.

A machine runs one process of its node at a time (`chaos.sim.loop.Process`). What happens to the process does not happen
to the disk: a killed process leaves the page cache behind, a loss of power only what was synced, some of the rest or a
torn piece of it. A disk can be slow, full, or fail a sync.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from chaos.sim.carrier import SimulatedCarrier, address_of
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.network import Network
from chaos.sim.schedule import Personality, node_name
from chaos.sim.sockets import SimulatedServer, listen
from cluster.composition import World
from cluster.runtime.outside import SystemFacts
from cluster.transport.admin_port import AdminPort, AdminRefused, ExitCode, SyncProgress, Table
from cluster.transport.carrier import AdminEndpoint
from node.config import NodeConfig, build_config, parse_settings
from node.store.disk.simulated import SimulatedDisk

_T = TypeVar("_T")

AMQP_PORT = 5672
CLUSTER_PORT = 25672
DATA_DIR = "/data"
COOKIE = "the secret of a simulated cluster"
#: So much passes each time a node looks at its clock, so that slices of work end also where time stands still.
CLOCK_STEP_S = 2e-6


class SimulatedWorker:
    """A thread that syncs: each job takes effect half-way through the time it takes. Satisfies `Worker`."""

    def __init__(self, loop: SimulatedLoop, process: Process, takes_s: Callable[[], float]) -> None:
        self._loop = loop
        self._process = process
        self._takes_s = takes_s
        self._free_at_s = 0.0

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        begin_s = max(self._loop.now_s, self._free_at_s)
        takes_s = self._takes_s()
        self._free_at_s = begin_s + takes_s

        def work() -> None:
            error: BaseException | None = None
            try:
                job()
            except Exception as raised:
                error = raised
            self._process.call_later(takes_s / 2, end, error)

        def end(error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._process.call_later(begin_s - self._loop.now_s + takes_s / 2, work)
        return future

    def close(self) -> None:
        """Its jobs come to their end by themselves."""


class SimulatedProbe:
    """As much memory as there may be, and what the disk says. Satisfies `ResourceProbe`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.used_bytes = 100 * 1024 * 1024

    def used_memory_bytes(self) -> int:
        return self.used_bytes

    def free_disk_bytes(self) -> int:
        return max(0, self._disk.free_bytes(DATA_DIR))

    def return_memory(self) -> None:
        """Nothing was taken."""

    def physical_memory_bytes(self) -> int:
        return 4 * 1024**3

    def memory_group_limits(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


class _Lock:
    """One process at a time is the machine's own rule."""

    def release(self) -> None:
        """See above."""


class AdminDoor:
    """The admin service of a node, for those outside of it: what they ask is done by the node's own process."""

    def __init__(self, process: Process, port: AdminPort) -> None:
        self._process = process
        self._port = port

    async def ask(self, request: Callable[[AdminPort], Coroutine[Any, Any, _T]]) -> _T:
        """For ever, if the node dies meanwhile."""
        return await self._process.carry_out(request(self._port))


class MemoryAdminCaller:
    """Asks the admin service of other simulated nodes, as far as the network lets it. Satisfies `AdminCaller`."""

    def __init__(self, loop: SimulatedLoop, network: Network, here: str, doors: Mapping[str, AdminDoor]) -> None:
        self._loop = loop
        self._network = network
        self._here = here
        self._doors = doors

    async def _door(self, address: str) -> AdminDoor:
        host = address_of(address)[0]
        there, back = self._network.link(self._here, host), self._network.link(host, self._here)
        await asyncio.sleep(there.delay_s() + back.delay_s())
        door = self._doors.get(host)
        if door is None or there.is_cut or back.is_cut or there.is_refusing:
            raise AdminRefused(ExitCode.UNAVAILABLE, f"{address} does not answer")
        return door

    async def _ask(self, address: str, request: Callable[[AdminPort], Coroutine[Any, Any, _T]], timeout_s: float) -> _T:
        try:
            async with asyncio.timeout(timeout_s):
                door = await self._door(address)
                return await door.ask(request)
        except TimeoutError:
            raise AdminRefused(ExitCode.UNAVAILABLE, f"{address} did not answer in time") from None

    async def listing(
        self, address: str, listing: str, vhost: str, columns: Sequence[str], *, timeout_s: float
    ) -> Table:
        await self._door(address)
        return Table((), ())

    async def status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        return dict(await self._ask(address, status_of, timeout_s))

    async def sync_queue(self, address: str, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        door = await self._door(address)
        await door.ask(lambda port: sync_queue(port, vhost, name))
        yield SyncProgress(0, 0, is_finished=True)

    async def cancel_sync_queue(self, address: str, vhost: str, name: str, *, timeout_s: float) -> None:
        await self._ask(address, lambda port: port.cancel_sync_queue(vhost, name), timeout_s)

    async def close(self) -> None:
        """There is nothing to hang up."""


async def status_of(port: AdminPort) -> Mapping[str, Any]:
    """What a node says of itself."""
    return await port.status()


async def sync_queue(port: AdminPort, vhost: str, name: str) -> None:
    """Synchronise a queue, to the end."""
    async for _ in port.sync_queue(vhost, name):
        pass


class Machine:
    """A host of the network with a disk, and the process of its node while there is one."""

    def __init__(
        self,
        name: str,
        loop: SimulatedLoop,
        network: Network,
        personality: Personality,
        chance: Random,
        admin_doors: dict[str, AdminDoor],
    ) -> None:
        self.name = name
        self._loop = loop
        self._network = network
        self._personality = personality
        #: Of delays and of the node's own choices; others draw from others.
        self._chance = chance
        self._admin_doors = admin_doors
        self.disk = SimulatedDisk()
        #: The disk before this one, if the node was given an empty one.
        self.disk_before: SimulatedDisk | None = None
        self.config = node_config(name, personality)
        #: Of the disk: so many times slower than it is.
        self.disk_slowness = 1.0
        self.process: Process | None = None
        self.probe = SimulatedProbe(self.disk)

    def start_process(self) -> Process:
        """A new process, for the next life of the node."""
        assert self.process is None, "one process at a time"
        self.process = self._loop.start_process(self.name, lambda: self._draw_ms(self._personality.turn_cost_ms))
        return self.process

    def world(self) -> World:
        """What the node of this life touches."""
        process = self.process
        assert process is not None, "the node runs in a process"
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            return self._loop.time() + looks * CLOCK_STEP_S

        async def listen_for_clients(
            make_connection: Callable[[], asyncio.Protocol],
            host: str,
            port: int,
            *,
            backlog: int,
            ssl_context: ssl.SSLContext | None,
        ) -> SimulatedServer:
            return listen(self._network, process, (self.name, port), make_connection)

        def offer(admin: AdminEndpoint) -> None:
            self._admin_doors[self.name] = AdminDoor(process, admin.port)

        self.probe = SimulatedProbe(self.disk)
        return World(
            disk=self.disk,
            lock=lambda _path: _Lock(),
            probe=self.probe,
            system=SystemFacts(process.number, "simulated", "3", "simulated"),
            chance=Random(self._chance.getrandbits(64)),
            clock=clock,
            worker=lambda _name: SimulatedWorker(self._loop, process, self._sync_s),
            listen=listen_for_clients,
            carrier=SimulatedCarrier(self._network, process, self.name, offer),
            admin_caller=MemoryAdminCaller(self._loop, self._network, self.name, self._admin_doors),
        )

    def wipe_disk(self) -> None:
        """An empty disk in place of the one there is, which is kept aside."""
        assert self.process is None, "nobody uses it"
        self.disk_before, self.disk = self.disk, SimulatedDisk()

    def restore_disk(self) -> None:
        """As it was before `wipe_disk`."""
        assert self.process is None, "nobody uses it"
        assert self.disk_before is not None, "it was taken away"
        self.disk = self.disk_before
        self.disk_before = None

    def process_ended(self) -> None:
        """It is gone, in whatever way."""
        self.process = None
        self._admin_doors.pop(self.name, None)

    def _sync_s(self) -> float:
        return self._draw_ms(self._personality.sync_ms) * self.disk_slowness

    def _draw_ms(self, bounds: tuple[float, float]) -> float:
        """Seconds, of a number of milliseconds between two."""
        return self._chance.uniform(*bounds) / 1000


def node_config(name: str, personality: Personality) -> NodeConfig:
    """As an operator would write it."""
    lines = [
        f"node_name = {name}",
        f"data_dir = {Path(DATA_DIR)}",
        f"listeners.tcp.default = {name}:{AMQP_PORT}",
        f"cluster.listener = {name}:{CLUSTER_PORT}",
        f"cluster.cookie = {COOKIE}",
        "disk_free_limit.absolute = 1MB",
        "loopback_users = none",
        f"classic_queue.default_version = {personality.queue_version}",
        f"msg_store_compaction = {personality.compaction}",
        f"durability = {'flush' if personality.is_flush else 'fsync'}",
    ]
    lines += [
        f"cluster_formation.classic_config.nodes.{number} = {node_name(number)}@{node_name(number)}:{CLUSTER_PORT}"
        for number in range(1, personality.nodes + 1)
    ]
    # Files smaller than an operator may have them, so that few messages meet what otherwise takes millions.
    return replace(
        build_config(parse_settings("\n".join(lines), "simulation")),
        queue_index_embed_msgs_below_bytes=personality.embed_below_bytes,
        msg_store_file_size_limit_bytes=personality.file_size_limit_bytes,
        queue_index_segment_entries=personality.segment_entries,
        queue_index_v2_segment_entries=personality.segment_entries,
        queue_index_journal_entries_max=2 * personality.segment_entries,
    )
