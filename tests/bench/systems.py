"""Warren's three-node cluster and RabbitMQ's behind one face, for measurements that take both in turn.

Nodes are numbered 1, 2, 3 and speak AMQP on ports 5672, 5673, 5674 of the loopback address.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

AMQP_PORT = 5672
NODES = (1, 2, 3)
#: Above this a command is taken for hung.
COMMAND_TIMEOUT_S = 300.0
#: A queue is given so long to get all its mirrors synchronised, or a master.
SETTLE_TIMEOUT_S = 120.0
_NODE = re.compile(r"\b[nr](\d)\b")


def port_of(node: int) -> int:
    """The AMQP port of a node."""
    return AMQP_PORT + node - 1


def run(arguments: list[str], **options: object) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(  # type: ignore[call-overload]
        arguments, check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, **options
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


class Replicas(NamedTuple):
    """Who has a queue, as an operator sees it."""

    master: int | None
    mirrors: frozenset[int]
    synchronised: frozenset[int]


class System(Protocol):
    """A running cluster of three nodes."""

    name: str

    def control(self, *arguments: str, node: int = 1) -> str:
        """Output of ``warrenctl`` or ``rabbitmqctl``, asked of ``node``."""
        ...

    def pid(self, node: int) -> int:
        """Process id of a running node."""
        ...

    def restart(self, node: int) -> None:
        """Start a node that was killed, on its data; returns when it serves."""
        ...


class _Warren:
    name = "warren"

    def __init__(self, python: str, directory: str) -> None:
        self._python, self._directory = python, directory

    def cluster(self, *arguments: str) -> None:
        run([self._python, "-m", "chaos.cli", "cluster", *arguments, "--dir", self._directory])

    def control(self, *arguments: str, node: int = 1) -> str:
        tool = str(Path(self._python).with_name("warrenctl"))
        environment = {**os.environ, "WARREN_CLUSTER_DIR": self._directory}
        return run([tool, "-q", "-n", f"n{node}", *arguments], env=environment)

    def pid(self, node: int) -> int:
        return int(json.loads((Path(self._directory) / f"n{node}.process").read_text())["pid"])

    def restart(self, node: int) -> None:
        self.cluster("restart", f"n{node}")


class _RabbitMQ:
    name = "rabbitmq"

    def __init__(self, script: str, directory: str) -> None:
        self._script, self._directory = script, directory

    def reference(self, *arguments: str) -> str:
        return run(["bash", self._script, *arguments], env={**os.environ, "RABBIT_DIR": self._directory})

    def control(self, *arguments: str, node: int = 1) -> str:
        return self.reference("ctl", str(node), "-q", *arguments)

    def pid(self, node: int) -> int:
        return int((Path(self._directory) / str(node) / "pid").read_text())

    def restart(self, node: int) -> None:
        self.reference("start", str(node))


@contextmanager
def _scratch(name: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=f"{name}-bench-", dir=os.environ.get("WARREN_BENCH_DIR")) as directory:
        yield directory


@contextmanager
def warren(python: str = sys.executable) -> Iterator[System]:
    """A three-node local cluster of the code that ``python`` imports."""
    with _scratch("warren") as directory:
        system = _Warren(python, directory)
        system.cluster("up", "--nodes", str(len(NODES)), "--amqp-port", str(AMQP_PORT))
        try:
            yield system
        finally:
            system.cluster("down")


@contextmanager
def rabbitmq(script: str) -> Iterator[System]:
    """The reference cluster: a script with ``up``, ``down``, ``start NODE`` and ``ctl NODE ARGS...``."""
    with _scratch("rabbitmq") as directory:
        system = _RabbitMQ(script, directory)
        try:
            system.reference("up")
            yield system
        finally:
            system.reference("down")


def set_policy(system: System, name: str, pattern: str, definition: dict[str, object]) -> None:
    """The same policy in either system."""
    system.control("set_policy", name, pattern, json.dumps(definition))


def replicas_of(system: System, queue: str, node: int = 1) -> Replicas:
    """Master and mirrors of ``queue``, as ``node`` says."""
    columns = ("name", "pid", "slave_pids", "synchronised_slave_pids")
    for line in system.control("list_queues", "-s", *columns, node=node).splitlines():
        cells = [*line.split("\t"), "", "", ""]
        if cells[0].strip() == queue:
            master, mirrors, synchronised = (frozenset(map(int, _NODE.findall(cell))) for cell in cells[1:4])
            return Replicas(next(iter(master), None), mirrors, synchronised)
    return Replicas(None, frozenset(), frozenset())


def wait_synchronised(system: System, queue: str, mirrors: int, node: int = 1) -> Replicas:
    """Wait until ``queue`` has so many mirrors that have everything."""
    give_up_s = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        replicas = replicas_of(system, queue, node)
        if replicas.master is not None and len(replicas.synchronised) >= mirrors:
            return replicas
        if time.monotonic() > give_up_s:
            raise SystemExit(f"{system.name}: {queue} has {replicas} after {SETTLE_TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def kill(system: System, node: int) -> float:
    """SIGKILL; returns the moment, in seconds of the monotonic clock."""
    pid = system.pid(node)
    now_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return now_s
