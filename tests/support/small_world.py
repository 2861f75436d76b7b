"""A world for one node alone: a simulated disk, workers that work at once; the test plays clients and operators.

A harness: the node is real, and its world says yes at once or refuses, as the test wants; nothing in it takes time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import cast

from cluster.composition import Node, World, compose_node
from cluster.runtime.outside import SystemFacts
from cluster.transport.admin_caller import AdminCaller
from cluster.transport.carrier import Acceptor, AdminEndpoint, Connection, ProbeResult
from node.config import NodeConfig, build_config, parse_settings
from node.ids import ChannelKey
from node.store.disk.simulated import SimulatedDisk
from node.topology.commands import DeclareQueue
from node.topology.records import QueueRecord
from tests.support.memory_ports import MemoryPorts
from tests.support.messages import make_message
from tests.support.resources import FakeProbe

CONFIG = """
node_name = n1
data_dir = /data
listeners.tcp.default = 127.0.0.1:5672
raft.heartbeat_ms = 10
raft.election_timeout_ms = 50
default_pass = secret
"""


def small_config(*settings: str) -> NodeConfig:
    return build_config(parse_settings("\n".join((CONFIG, *settings)), "node.conf"))


class InlineWorker:
    """Does its jobs while it is told of them."""

    def __init__(self) -> None:
        self.is_closed = False

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        assert not self.is_closed, "no job follows the end"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            job()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def close(self) -> None:
        self.is_closed = True


class HeldWorker(InlineWorker):
    """Has no time for its jobs."""

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        assert not self.is_closed, "no job follows the end"
        return asyncio.get_running_loop().create_future()


class Lock:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def release(self) -> None: ...


class LoneCarrier:
    """Implements `cluster.transport.carrier.Carrier` for a node without peers."""

    def __init__(self) -> None:
        self.admin: AdminEndpoint | None = None
        #: Why nobody can listen, if nobody can.
        self.failure: OSError | None = None
        self.is_stopped = False

    async def serve(
        self, address: str, acceptor: Acceptor, *, silence_timeout_ms: int, admin: AdminEndpoint | None = None
    ) -> int:
        if self.failure is not None:
            raise self.failure
        self.admin = admin
        return 25672

    async def stop(self) -> None:
        self.is_stopped = True

    def connect(self, address: str, *, silence_timeout_ms: int) -> Connection:
        raise AssertionError("there are no peers")

    async def probe(self, address: str, timeout_s: float) -> ProbeResult:
        raise AssertionError("there are no peers")


class LoneCaller:
    """Of `cluster.transport.admin_caller.AdminCaller` what a node without peers calls."""

    async def close(self) -> None: ...


#: More than a node can make use of.
OPEN_FILES_MAX = 1 << 20


class SmallWorld:
    """Everything round one node, through its starts. `world` is what the next start gets."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = SimulatedDisk()
        self.probe = FakeProbe()
        self.carrier = LoneCarrier()
        self.ports = MemoryPorts()
        self.workers: dict[str, InlineWorker] = {}
        #: Which of them have no time, from the next start on.
        self.held: list[str] = []
        self.world = World(
            disk=self.disk,
            lock=Lock,
            probe=self.probe,
            system=SystemFacts(1, "Linux", "3.12.1", "0.1.0", OPEN_FILES_MAX),
            chance=Random(seed),
            clock=lambda: 0.0,
            worker=self.make_worker,
            listen=self.ports,
            carrier=self.carrier,
            admin_caller=cast(AdminCaller, LoneCaller()),
        )

    def make_worker(self, name: str) -> InlineWorker:
        self.workers[name] = HeldWorker() if name in self.held else InlineWorker()
        return self.workers[name]


@asynccontextmanager
async def running(small: SmallWorld, *settings: str) -> AsyncIterator[Node]:
    """A node that has joined its cluster of one; closed in an orderly way."""
    node = compose_node(small_config(*settings), small.world)
    async with asyncio.timeout(30):
        await (await node.start())
    node.check_invariants()
    yield node
    await node.close()


async def leave_seven_messages(small: SmallWorld) -> QueueRecord:
    """In a queue ``orders`` of a node that was stopped in an orderly way."""
    async with running(small) as node:
        orders: QueueRecord = await node.runtime.metadata.submit(DeclareQueue("/", "orders", durable=True))
        process = node.runtime.queues.process(orders.queue_id)
        assert process is not None
        process.publish(ChannelKey(node.config.node_name, 1), [make_message(n) for n in range(1, 8)], list(range(1, 8)))
        node.runtime.queues.touch(orders.queue_id)
    return orders
