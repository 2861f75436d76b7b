"""The world of a node that is a process: see `cluster.composition.World`."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version

from cluster.composition import World
from cluster.real_world.data_lock import DataLock
from cluster.real_world.system_probe import SystemProbe, open_files_limit
from cluster.runtime.outside import SystemFacts
from cluster.transport.grpc_admin_caller import GrpcAdminCaller
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.grpc_tls import read_tls
from node.amqp.server.sockets import listen_on_sockets
from node.config import NodeConfig
from node.errors import StorageError
from node.store.disk.disk import RealDisk

log = logging.getLogger(__name__)


class ThreadWorker:
    """`cluster.runtime.outside.Worker`: a thread of its own, which is there from the beginning."""

    def __init__(self, name: str) -> None:
        """Raises `StorageError` if the system has no thread left."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        try:
            self._executor.submit(_nothing)  # starts it
        except RuntimeError as error:
            raise StorageError(
                f'the thread "{name}" cannot be started ({error}): this user has as many threads as it may (`ulimit '
                "-u`), or this service (TasksMax of systemd, pids.max of a container), or there is no memory for it"
            ) from error

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, job)
        except Exception as error:
            refused: asyncio.Future[None] = loop.create_future()
            refused.set_exception(error)
            return refused

    def close(self) -> None:
        self._executor.shutdown()


def _nothing() -> None:
    """The first job of a thread."""


def product_version() -> str:
    """Of this program, as it is installed."""
    try:
        return version("warren-mq")
    except PackageNotFoundError:
        return "unknown"


def real_world(config: NodeConfig) -> World:
    """This machine and this process, for the node that ``config`` describes. Raises `ConfigError`."""
    disk = RealDisk()
    tls = None if config.cluster_tls is None else read_tls(config.cluster_tls)
    if tls is not None and tls.time_problem:
        log.error(
            "%s; no node and no warrenctl speaks with this node before it has another, and was started again",
            tls.time_problem,
        )
    return World(
        disk=disk,
        lock=DataLock,
        probe=SystemProbe(disk, str(config.data_dir)),
        system=SystemFacts(
            os.getpid(),
            platform.platform(),
            platform.python_version(),
            product_version(),
            open_files_limit(),
            time.time,
        ),
        chance=random.SystemRandom(),
        clock=time.monotonic,
        worker=ThreadWorker,
        listen=listen_on_sockets,
        carrier=GrpcCarrier(tls),
        admin_caller=GrpcAdminCaller(
            config.cluster_cookie,
            None if tls is None else tls.channel,
            silence_timeout_ms=config.cluster_silence_timeout_ms,
        ),
    )
