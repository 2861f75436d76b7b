"""A world for one node alone: a simulated disk, workers that work at once; the test plays clients and operators."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from cluster.composition import World
from cluster.raft.messages import Message
from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.outside import SystemFacts
from cluster.transport.admin_port import AdminPort
from cluster.transport.mesh import MeshHandler
from cluster.wire.convert import QueueFrameMessage
from node.config import NodeConfig, build_config, parse_settings
from node.ids import Incarnation, NodeName
from node.store.disk.simulated import SimulatedDisk
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


class MemoryListener:
    """Implements `node.amqp.server.sockets.Listener`."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Lock:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def release(self) -> None: ...


class LoneNetwork:
    """Implements `ClusterNetwork` and `NodeMesh` for a node without peers."""

    def __init__(self) -> None:
        self.up_peers: list[NodeName] = []
        self.admin: AdminPort | None = None
        #: Why nobody can listen, if nobody can.
        self.failure: OSError | None = None
        self.is_stopped = False

    def mesh(self, config: NodeConfig, incarnation: Incarnation, handler: MeshHandler) -> LoneNetwork:
        return self

    async def start(self, admin: AdminPort) -> None:
        if self.failure is not None:
            raise self.failure
        self.admin = admin

    def admin_peers(self, config: NodeConfig) -> AdminPeers:
        peers: Any = self  # of which only `close` is called
        return cast(AdminPeers, peers)

    async def close(self) -> None: ...

    async def stop(self) -> None:
        self.is_stopped = True

    def is_congested(self, peer: NodeName) -> bool:
        return False

    def send_queue_frames(self, peer: NodeName, messages: Sequence[QueueFrameMessage]) -> None:
        raise AssertionError("there are no peers")

    def send_consensus(self, peer: NodeName, messages: Sequence[Message]) -> None:
        raise AssertionError("there are no peers")

    def reset_link(self, peer: NodeName, reason: str) -> None:
        raise AssertionError("there are no peers")

    def check_invariants(self) -> None: ...


class SmallWorld:
    """Everything round one node, through its starts. `world` is what the next start gets."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = SimulatedDisk()
        self.probe = FakeProbe()
        self.network = LoneNetwork()
        self.listeners: list[MemoryListener] = []
        self.has_listener = asyncio.Event()
        self.workers: dict[str, InlineWorker] = {}
        #: Why clients cannot be listened for, if they cannot.
        self.listen_failure: OSError | None = None
        self.world = World(
            disk=self.disk,
            lock=Lock,
            probe=self.probe,
            system=SystemFacts(1, "Linux", "3.12.1", "0.1.0"),
            chance=Random(seed),
            clock=lambda: 0.0,
            worker=self.make_worker,
            listen=self.listen,
            network=self.network,
        )

    def make_worker(self, name: str) -> InlineWorker:
        self.workers[name] = InlineWorker()
        return self.workers[name]

    async def listen(
        self,
        make_connection: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        ssl_context: ssl.SSLContext | None,
    ) -> MemoryListener:
        if self.listen_failure is not None:
            raise self.listen_failure
        self.listeners.append(MemoryListener(host, port))
        self.has_listener.set()
        return self.listeners[-1]
