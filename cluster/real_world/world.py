"""The world of a node that is a process: see `cluster.composition.World`."""

from __future__ import annotations

import asyncio
import os
import platform
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version

from cluster.composition import ClusterNetwork, World
from cluster.real_world.data_lock import DataLock
from cluster.real_world.system_probe import SystemProbe
from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.outside import SystemFacts
from cluster.transport.admin_port import AdminPort
from cluster.transport.admin_server import AdminService
from cluster.transport.mesh import Mesh, MeshHandler, MeshTiming
from node.amqp.server.sockets import listen_on_sockets
from node.config import NodeConfig
from node.ids import Incarnation, NodeName
from node.store.disk.disk import RealDisk


class ThreadWorker:
    """`cluster.runtime.outside.Worker`: a thread of its own."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._executor, job)

    def close(self) -> None:
        self._executor.shutdown()


class GrpcNetwork:
    """`cluster.composition.ClusterNetwork` over gRPC: mesh and admin service share one port."""

    def __init__(self, cookie: str) -> None:
        self._cookie = cookie
        self._mesh: Mesh

    def mesh(self, config: NodeConfig, incarnation: Incarnation, handler: MeshHandler) -> Mesh:
        self._mesh = Mesh(
            config.node_name,
            incarnation,
            str(config.cluster_listener),
            _addresses(config),
            handler,
            cookie=self._cookie,
            timing=MeshTiming(silence_timeout_ms=config.cluster_silence_timeout_ms),
        )
        return self._mesh

    async def start(self, admin: AdminPort) -> None:
        await self._mesh.start([AdminService(admin, self._cookie).add_to_server])

    def admin_peers(self, config: NodeConfig) -> AdminPeers:
        return AdminPeers(_addresses(config).__getitem__, self._cookie)


def _addresses(config: NodeConfig) -> dict[NodeName, str]:
    return {NodeName(member.name): str(member.cluster_address) for member in config.members}


def product_version() -> str:
    """Of this program, as it is installed."""
    try:
        return version("warren-mq")
    except PackageNotFoundError:
        return "unknown"


def real_world(config: NodeConfig) -> World:
    """This machine and this process, for the node that ``config`` describes."""
    disk = RealDisk()
    network: ClusterNetwork = GrpcNetwork(config.cluster_cookie)
    return World(
        disk=disk,
        lock=DataLock,
        probe=SystemProbe(disk, str(config.data_dir)),
        system=SystemFacts(os.getpid(), platform.platform(), platform.python_version(), product_version()),
        chance=random.SystemRandom(),
        clock=time.monotonic,
        worker=ThreadWorker,
        listen=listen_on_sockets,
        network=network,
    )
