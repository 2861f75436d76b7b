"""One simulated machine: a disk that outlives processes, and the world that it gives to the node that runs on it.

A machine runs one process of its node at a time (`chaos.sim.loop.Process`). What happens to the process does not happen
to the disk: a killed process leaves the page cache behind, a loss of power only what was synced, some of the rest or a
torn piece of it. A disk can be slow, full, fail a sync or refuse to write; and a process can end within an operation of
its disk (`Machine.crash_in`): what was on its way then is half done, and whoever made the call never learns of it.
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
from chaos.sim.link_sizes import link_limits
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.network import Link, Network
from chaos.sim.schedule import Personality, node_name
from chaos.sim.sockets import SimulatedServer, listen
from cluster.composition import World
from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.runtime.applier import SLICE_PIECES
from cluster.runtime.outside import SystemFacts
from cluster.transport.admin_port import (
    AdminPort,
    AdminRefused,
    ExitCode,
    QueueSelection,
    SyncProgress,
    Table,
    WrongCookie,
    exit_code_of,
)
from cluster.transport.carrier import AdminEndpoint
from node.config import NodeConfig, build_config, parse_settings
from node.errors import StorageError, WarrenError
from node.ids import QueueId
from node.store.disk.simulated import SimulatedCrashError, SimulatedDisk

_T = TypeVar("_T")

AMQP_PORT = 5672
CLUSTER_PORT = 25672
DATA_DIR = "/data"
COOKIE = "the secret of a simulated cluster"
MEMORY_BYTES = 4 * 1024**3
#: Of a node that is not short of memory.
USED_MEMORY_BYTES = 100 * 1024**2
#: More than any run writes.
DISK_BYTES = 1 << 40
#: More files and sockets than a node makes use of.
OPEN_FILES_MAX = 1 << 20
#: So much passes each time a node looks at its clock, so that slices of work end also where time stands still.
CLOCK_STEP_S = 2e-6


class SimulatedWorker:
    """A thread that syncs: each job takes effect half-way through the time it takes. Satisfies `Worker`."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: Process,
        takes_s: Callable[[], float],
        on_done: Callable[[float], None] = lambda _begin_s: None,
        until_moving: Callable[[Callable[[], object]], bool] = lambda _go_on: False,
    ) -> None:
        """``on_done`` is told, when a job has taken effect, when it began. ``until_moving``: whether the disk hangs; if
        it does it calls what it was given when it moves again."""
        self._loop = loop
        self._process = process
        self._takes_s = takes_s
        self._on_done = on_done
        self._until_moving = until_moving
        #: It has done by then what it was asked to; unless the disk hangs.
        self.free_at_s = 0.0

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        asked_s = self._loop.now_s
        begin_s = max(asked_s, self.free_at_s)
        takes_s = self._takes_s()
        self.free_at_s = begin_s + takes_s

        def work() -> None:
            if self._until_moving(lambda: self._process.call_soon(work)):
                return
            error: BaseException | None = None
            try:
                job()
                self._on_done(asked_s)
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
    """As much memory and as many files as there may be, and what the disk says that is in the machine now.

    Satisfies `ResourceProbe`.
    """

    def __init__(self, disk: Callable[[], SimulatedDisk]) -> None:
        self._disk = disk
        self.used_bytes = USED_MEMORY_BYTES

    def used_memory_bytes(self) -> int:
        return self.used_bytes

    def free_disk_bytes(self) -> int:
        return max(0, self._disk().free_bytes(DATA_DIR))

    def can_open_files(self, count: int) -> bool:
        return self._disk().descriptors.has_room_for(count)

    def return_memory(self) -> None:
        """Nothing was taken."""

    def physical_memory_bytes(self) -> int:
        return MEMORY_BYTES

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

    def __init__(self, process: Process, port: AdminPort, cookie: str = COOKIE) -> None:
        self._process = process
        self._port = port
        self.cookie = cookie

    async def ask(self, request: Callable[[AdminPort], Coroutine[Any, Any, _T]]) -> _T:
        """For ever, if the node dies meanwhile."""
        return await self._process.carry_out(request(self._port))


class MemoryAdminCaller:
    """Asks the admin service of other simulated nodes, as far as the network lets it. Satisfies `AdminCaller`.

    Where a link is cut nothing is heard, neither a refusal nor an answer.
    """

    def __init__(
        self, loop: SimulatedLoop, network: Network, here: str, doors: Mapping[str, AdminDoor], cookie: str = COOKIE
    ) -> None:
        self._loop = loop
        self._network = network
        self._here = here
        self._doors = doors
        self._cookie = cookie

    async def _ask(self, address: str, request: Callable[[AdminPort], Coroutine[Any, Any, _T]]) -> _T:
        host = address_of(address)[0]
        there, back = self._network.link(self._here, host), self._network.link(host, self._here)
        there_s, back_s = there.delay_s(), back.delay_s()
        await _cross(there, there_s)
        refusal: AdminRefused | None = None
        try:
            if there.is_refusing or host not in self._doors:
                raise AdminRefused(ExitCode.UNAVAILABLE, f"{address} does not answer")
            if self._doors[host].cookie != self._cookie:
                raise WrongCookie
            answer = await self._doors[host].ask(request)
        except WarrenError as error:
            refusal = _refusal(error)
        await _cross(back, back_s)
        if refusal is not None:
            raise refusal
        return answer

    async def _ask_in_time(
        self, address: str, request: Callable[[AdminPort], Coroutine[Any, Any, _T]], timeout_s: float
    ) -> _T:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(address, request)
        except TimeoutError:
            raise AdminRefused(ExitCode.UNAVAILABLE, "Deadline Exceeded") from None

    async def listing(
        self, address: str, listing: str, vhost: str, columns: Sequence[str], *, timeout_s: float
    ) -> Table:
        questions: dict[str, Callable[[AdminPort], Coroutine[Any, Any, Table]]] = {
            "ListQueues": lambda port: port.list_queues(vhost, columns, QueueSelection(local=True)),
            "ListConnections": lambda port: port.list_connections(columns, local=True),
            "ListChannels": lambda port: port.list_channels(columns, local=True),
            "ListFlow": lambda port: port.list_flow(columns, local=True),
            "ListConsumers": lambda port: port.list_consumers(vhost, columns, local=True),
        }
        return await self._ask_in_time(address, questions[listing], timeout_s)

    async def status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        return dict(await self._ask_in_time(address, status_of, timeout_s))

    async def cluster_status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        return dict(await self._ask_in_time(address, cluster_status_of, timeout_s))

    async def sync_queue(self, address: str, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        """What it says of its progress comes with the end of it, or with its refusal."""
        said: list[SyncProgress] = []
        refusal: AdminRefused | None = None
        try:
            await self._ask(address, lambda port: _note_progress(port, vhost, name, said))
        except AdminRefused as error:
            refusal = error
        for progress in said:
            yield progress
        if refusal is not None:
            raise refusal

    async def cancel_sync_queue(self, address: str, vhost: str, name: str, *, timeout_s: float) -> None:
        await self._ask_in_time(address, lambda port: port.cancel_sync_queue(vhost, name), timeout_s)

    async def held_copies(
        self, address: str, queue_ids: Sequence[QueueId], *, timeout_s: float
    ) -> Mapping[QueueId, int]:
        return await self._ask_in_time(address, lambda port: port.held_copies(queue_ids), timeout_s)

    async def close(self) -> None:
        """There is nothing to hang up."""


async def _cross(link: Link, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    if link.is_cut:
        await asyncio.Event().wait()


def _refusal(error: WarrenError) -> AdminRefused:
    return error if isinstance(error, AdminRefused) else AdminRefused(exit_code_of(error), str(error))


async def _note_progress(port: AdminPort, vhost: str, name: str, said: list[SyncProgress]) -> None:
    async for progress in port.sync_queue(vhost, name):
        said.append(progress)  # noqa: PERF401 - what was said before a refusal is kept


async def status_of(port: AdminPort) -> Mapping[str, Any]:
    """What a node says of itself."""
    return await port.status()


async def cluster_status_of(port: AdminPort) -> Mapping[str, Any]:
    """What a node says of its cluster."""
    return await port.cluster_status()


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
        seed: int,
        admin_doors: dict[str, AdminDoor],
    ) -> None:
        self.name = name
        self._loop = loop
        self._network = network
        self._personality = personality
        self._seed = seed
        self._admin_doors = admin_doors
        self.disk = SimulatedDisk()
        #: The disk before this one, if the node was given an empty one.
        self.disk_before: SimulatedDisk | None = None
        #: It is no member any more, and its disk is of no use: it begins again on an empty one.
        self.is_forgotten = False
        #: Its node is to join as a new one: a peer that has not heard yet refuses it, and it ends.
        self.is_joining = False
        #: It joins, and the cluster has let its directory in.
        self.is_let_in = False
        #: It has not been let in yet, and is a cluster of its own.
        self.is_alone = False
        self.config = node_config(name, personality)
        #: Of the disk: so many times slower than it is.
        self.disk_slowness = 1.0
        #: What goes on when the disk moves again; ``None``: it does not hang.
        self._stuck: list[Callable[[], object]] | None = None
        #: Of this life's node.
        self._workers: list[SimulatedWorker] = []
        #: The disk has been full or refused something in this life of the node.
        self.is_disk_suspect = False
        #: In this life the disk has refused to write or to sync, or is going to.
        self.has_refused = False
        #: Syncs of the queues that have taken effect: when each was asked for and when that was, in microseconds.
        self.syncs: list[tuple[int, int]] = []
        self.process: Process | None = None
        self.probe = SimulatedProbe(lambda: self.disk)
        self._lives = 0
        #: Nodes that this life's process has had before: one that begins again does not draw the same once more.
        self._nodes_before = -1
        #: Of the release that the next life of the node runs.
        self.speaks_protocol = FIRST_PROTOCOL if name in personality.earlier else NEWEST_PROTOCOL
        #: Its operator has put the release before in place again.
        self.is_downgraded = False
        #: To be started as soon as it has stopped.
        self.is_restarting = False

    def start_process(self) -> Process:
        """A new process, for the next life of the node."""
        assert self.process is None, "one process at a time"
        self._lives += 1
        self._nodes_before = -1
        chance = self._chance_of("turns")
        shortest_s, longest_s = (cost_ms / 1000 for cost_ms in self._personality.turn_cost_ms)
        draw, range_s = chance.random, longest_s - shortest_s
        self.process = self._loop.start_process(self.name, lambda: shortest_s + range_s * draw())
        self.is_disk_suspect = self.is_disk_bad
        disk = self.disk
        self.has_refused = disk.fail_writes is not None or disk.fail_reads is not None or disk.fails_syncs
        return self.process

    def _chance_of(self, what: str) -> Random:
        """The generator of one thing in this life."""
        again = f", {self._nodes_before} before" if self._nodes_before > 0 else ""
        return Random(f"{self._seed} {what} of {self.name} in life {self._lives}{again}")

    # --- the disk ---

    @property
    def busy_until_s(self) -> float:
        """Until when syncs last that the node has asked for: a disk that was slow owes them, also when it is not any
        more."""
        return max((worker.free_at_s for worker in self._workers), default=0.0)

    @property
    def is_disk_bad(self) -> bool:
        """It is full, or refuses something."""
        disk = self.disk
        is_short = disk.capacity_bytes < DISK_BYTES or disk.full_for is not None or disk.open_limit is not None
        is_failing = disk.fails_syncs or disk.fail_writes is not None or disk.fail_reads is not None
        return is_short or is_failing or self._stuck is not None

    def mend_disk(self) -> None:
        """As good as new, but for what is on it."""
        disk = self.disk
        self.disk_slowness = 1.0
        disk.capacity_bytes = DISK_BYTES
        disk.fail_sync_after = disk.fail_writes = disk.fail_syncs = disk.fail_reads = disk.on_operation = None
        disk.full_for = disk.open_limit = None
        disk.fails_one_sync = False
        self.move_disk()

    def hang_disk(self) -> None:
        """Whatever is to be synced waits, also of later lives, until `move_disk`."""
        if self._stuck is None:
            self._stuck = []

    def move_disk(self) -> None:
        """What has waited goes on."""
        stuck, self._stuck = self._stuck or (), None
        for go_on in stuck:
            go_on()

    def _until_moving(self, go_on: Callable[[], object]) -> bool:
        """Whether the disk hangs; ``go_on`` is called when it moves again."""
        if self._stuck is None:
            return False
        self._stuck.append(go_on)
        return True

    def crash_in(self, operations: int, end: Callable[[], None]) -> None:
        """In so many operations of the disk from now, the process ends before it hears of the last one.

        ``end`` kills the process. What its turn still does to the disk after that is refused.
        """
        process, left = self.process, operations

        def count() -> None:
            nonlocal left
            if process is None or not process.is_alive:
                if self._loop.current is process:
                    raise StorageError("the process is dead")
                self.disk.on_operation = None
                return
            left -= 1
            if left == 0:
                end()
                raise SimulatedCrashError(f"{self.name} ends in operation {self.disk.operations}")

        self.disk.on_operation = count

    def world(self) -> World:
        """What the node of this life touches."""
        process = self.process
        assert process is not None, "the node runs in a process"
        self._nodes_before += 1
        self._workers.clear()
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

        sync_chance, sync_ms = self._chance_of("syncs"), self._personality.sync_ms

        def sync_s() -> float:
            return sync_chance.uniform(*sync_ms) * self.disk_slowness / 1000

        def synced(begin_s: float) -> None:
            self.syncs.append((1 + int(begin_s * 1e6), 1 + int(self._loop.now_s * 1e6)))

        def worker(name: str) -> SimulatedWorker:
            is_of_queues = name == "sync" and self._personality.is_flush
            on_done = synced if is_of_queues else lambda _begin_s: None
            made = SimulatedWorker(self._loop, process, sync_s, on_done, self._until_moving)
            self._workers.append(made)
            return made

        return World(
            disk=self.disk,
            lock=lambda _path: _Lock(),
            probe=self.probe,
            system=SystemFacts(process.number, "simulated", "3", "simulated", OPEN_FILES_MAX),
            chance=self._chance_of("choices"),
            clock=clock,
            worker=worker,
            listen=listen_for_clients,
            carrier=SimulatedCarrier(self._network, process, self.name, offer),
            admin_caller=MemoryAdminCaller(self._loop, self._network, self.name, self._admin_doors),
            speaks_protocol=self.speaks_protocol,
            slice_pieces=self._personality.slice_pieces or SLICE_PIECES,
            link_limits=link_limits(self._personality.link_bytes),
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
        self.mend_disk()  # what ailed it has ended, perhaps while it was away

    def begin_anew(self) -> None:
        """An empty disk, for ever."""
        self.wipe_disk()
        self.disk_before = None
        self.is_forgotten = self.is_let_in = False

    def process_ended(self) -> None:
        """It is gone, in whatever way."""
        self.process = None
        self._admin_doors.pop(self.name, None)


def node_config(name: str, personality: Personality) -> NodeConfig:
    """As an operator would write it. A node that is none of the cluster's is alone."""
    lines = [
        f"node_name = {name}",
        f"data_dir = {Path(DATA_DIR)}",
        f"listeners.tcp.default = {name}:{AMQP_PORT}",
        f"cluster.listener = {name}:{CLUSTER_PORT}",
        f"cluster.cookie = {COOKIE}",
        "disk_free_limit.absolute = 1MB",
        "loopback_users = none",
        f"raft.heartbeat_ms = {personality.raft_heartbeat_ms}",
        f"classic_queue.default_version = {personality.queue_version}",
        f"msg_store_compaction = {personality.compaction}",
        f"durability = {'flush' if personality.is_flush else 'fsync'}",
    ]
    if personality.sync_throughput_bytes:
        # Slow, but done before a healed cluster is judged: as many large messages a second as small ones.
        throughput_bytes = personality.sync_throughput_bytes * max(1, personality.body_bytes_max // 50)
        lines.append(f"mirroring_sync_max_throughput = {throughput_bytes}")
    if personality.credit[0]:
        names = ("credit_flow_default_credit", "msg_store_credit_disc_bound", "cluster.credit")
        initial, more_after = personality.credit
        lines += [f"{name}.{key}" for name in names for key in (f"initial = {initial}", f"more_after = {more_after}")]
    names_of_cluster = [node_name(number) for number in range(1, personality.nodes + 1)]
    if name in names_of_cluster:
        lines += [
            f"cluster_formation.classic_config.nodes.{number} = {member}@{member}:{CLUSTER_PORT}"
            for number, member in enumerate(names_of_cluster, 1)
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
