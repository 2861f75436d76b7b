"""A cluster of real processes on this machine.

Used by `warren cluster up` (the processes stay when the command ends) and by the laboratory (they go when the run
ends). What a node is lives in a `ClusterDirectory`, so whoever comes later, also after the starter died, can `attach`
and find exactly the processes that were started (see `chaos.cluster_under_test.processes`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import chaos
from chaos.cluster_under_test.ports import PortInUseError, choose_amqp_ports, choose_free_ports, is_port_free
from chaos.cluster_under_test.processes import (
    ProcessMark,
    log_tail,
    read_mark,
    running_process,
    send_signal,
    spawn,
    write_mark,
)
from chaos.cluster_under_test.protocol import DEFAULT_READY_TIMEOUT_S, NodeEndedError
from chaos.cluster_under_test.readiness import answers_amqp, hindrance_of, sees_running
from cluster.directory import ClusterDirectory, NodeEntry, read_cluster_directory
from node.config import NodeConfig, build_config, parse_address, parse_override, parse_settings

HOST = "127.0.0.1"
#: More nodes than this on one machine measure the scheduler, not the cluster.
MAX_NODES = 9
#: An orderly stop flushes and says goodbye; after this it counts as hung and is killed.
STOP_TIMEOUT_S = 15.0
#: The kernel needs a moment to end a killed process that has much memory.
KILL_TIMEOUT_S = 10.0
#: Stands for the secret while a configuration is checked that is not written yet.
_PLACEHOLDER_COOKIE = "0" * 32
_POLL_INTERVAL_S = 0.02
_PROBE_INTERVAL_S = 0.1


class ClusterRunningError(Exception):
    """The directory belongs to a cluster that runs."""


class NodeNotReadyError(TimeoutError):
    """A node did not become ready in time; the text shows the end of its log."""


class LocalCluster:
    """A cluster whose nodes are processes, known by their names.

    After `kill` a process is gone and reaped, after `restart` it exists, and may still be starting: see `wait_ready`.
    """

    def __init__(self, directory: ClusterDirectory) -> None:
        self.directory = directory
        self._cookie = directory.read_cookie()
        #: Processes we are the parent of, to be reaped.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        #: Node -> the checkout that it is started from, if that is not ours.
        self.checkouts: dict[str, Path] = {}
        #: Node -> what it is started with in its environment, beyond ours.
        self.environments: dict[str, Mapping[str, str]] = {}

    # --- making one ---

    @classmethod
    def create(
        cls, path: Path, node_count: int = 3, *, first_amqp_port: int | None = None, settings: Sequence[str] = ()
    ) -> LocalCluster:
        """Lay out a new cluster ``n1``, ``n2`` ... in ``path``; nothing is started yet.

        AMQP ports are ``first_amqp_port`` and the following, or any free ones. ``settings`` are ``key=value`` lines for
        every node. Raises `PortInUseError`, `ConfigError` for a bad setting, `ClusterRunningError`.
        """
        assert 1 <= node_count <= MAX_NODES, f"a local cluster has 1 to {MAX_NODES} nodes"
        path = path.absolute()
        amqp_ports = choose_amqp_ports(HOST, node_count, first_amqp_port)
        cluster_ports = choose_free_ports(HOST, node_count, taken=amqp_ports)
        nodes = tuple(
            NodeEntry(f"n{number}", f"{HOST}:{amqp_port}", f"{HOST}:{cluster_port}")
            for number, (amqp_port, cluster_port) in enumerate(zip(amqp_ports, cluster_ports, strict=True), 1)
        )
        directory = ClusterDirectory(path, nodes)
        configurations = {entry.name: _valid_config(directory, entry, settings) for entry in nodes}
        running = [entry.name for entry in nodes if running_process(read_mark(directory.process_path(entry.name)))]
        if running:
            raise ClusterRunningError(f"{', '.join(running)} in {path} already run; stop them: warren cluster down")
        path.mkdir(parents=True, exist_ok=True)
        _write_cookie(directory.cookie_path)
        for name, text in configurations.items():
            directory.config_path(name).write_text(text, encoding="utf-8")
        directory.write()
        return cls(directory)

    @classmethod
    def attach(cls, path: Path) -> LocalCluster:
        """The cluster that was laid out in ``path``, running or not. Raises `ConfigError` if there is none."""
        return cls(read_cluster_directory(path.absolute()))

    def configure_node(self, node: str, settings: Sequence[str]) -> NodeConfig:
        """The configuration of a node becomes the usual one with these ``key=value`` lines, from its next start on.

        Raises `ConfigError`.
        """
        entry = self.directory.node(node)
        text = _valid_config(self.directory, entry, settings)
        self.directory.config_path(node).write_text(text, encoding="utf-8")
        return build_config(parse_settings(text, f"{node}.conf"), lambda _: self._cookie)

    # --- facts ---

    @property
    def nodes(self) -> Sequence[str]:
        return [entry.name for entry in self.directory.nodes]

    @property
    def cookie(self) -> str:
        """The secret that the admin services ask for."""
        return self._cookie

    def running_nodes(self) -> list[str]:
        """Names of the nodes whose process exists."""
        return [name for name in self.nodes if self.is_running(name)]

    def is_running(self, node: str) -> bool:
        return running_process(self._mark(node)) is not None

    def pid(self, node: str) -> int | None:
        """Process id of a node, ``None`` if it does not run."""
        mark = self._mark(node)
        return mark.pid if mark is not None and running_process(mark) is not None else None

    def amqp_url(self, node: str) -> str:
        return f"amqp://guest:guest@{self.directory.node(node).amqp_address}/"

    def admin_address(self, node: str) -> str:
        return self.directory.node(node).cluster_address

    # --- life and death ---

    async def start(self) -> None:
        """Start every node that does not run. Raises `PortInUseError`, and then nothing was started."""
        for name in self.nodes:
            if not self.is_running(name):
                self._check_ports(name)
        for name in self.nodes:
            if not self.is_running(name):
                self._spawn(name)

    async def wait_ready(
        self,
        nodes: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_READY_TIMEOUT_S,
        on_ready: Callable[[str], None] | None = None,
        on_hindrance: Callable[[str, str], None] | None = None,
    ) -> None:
        """As the protocol says. ``on_hindrance`` hears of a node, and why it is not ready, whenever that is new."""
        wanted = self.running_nodes() if nodes is None else list(nodes)
        deadline = time.monotonic() + timeout_s
        waits = [
            asyncio.ensure_future(self._wait_node_ready(name, wanted, deadline, on_ready, on_hindrance))
            for name in wanted
        ]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()

    async def kill(self, node: str) -> None:
        await self._end(node, signal.SIGKILL, KILL_TIMEOUT_S)

    async def pause(self, node: str) -> None:
        send_signal(self._mark(node), signal.SIGSTOP)

    async def resume(self, node: str) -> None:
        send_signal(self._mark(node), signal.SIGCONT)

    async def stop(self, node: str) -> None:
        """SIGTERM, and SIGKILL if the node has not ended within `STOP_TIMEOUT_S`."""
        mark = self._mark(node)
        if send_signal(mark, signal.SIGTERM):
            # A paused node would keep the request for later.
            send_signal(mark, signal.SIGCONT)
        if not await self._wait_gone(node, mark, STOP_TIMEOUT_S):
            await self.kill(node)

    async def restart(self, node: str) -> None:
        """As the protocol says; a node that runs is stopped first."""
        if self.is_running(node):
            await self.stop(node)
        self._check_ports(node)
        self._spawn(node)

    def wait_for_end(self, node: str, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Exit code of a node that this object has started and that ends by itself. Raises `TimeoutExpired`."""
        return self._children.pop(node).wait(timeout_s)

    async def close(self) -> None:
        await asyncio.gather(*(self.stop(name) for name in self.nodes))

    def kill_all(self) -> None:
        """SIGKILL every node at once, without waiting: for a way out that has no event loop any more."""
        for name in self.nodes:
            send_signal(self._mark(name), signal.SIGKILL)

    # --- plumbing ---

    def _mark(self, node: str) -> ProcessMark | None:
        return read_mark(self.directory.process_path(self.directory.node(node).name))

    def _check_ports(self, node: str) -> None:
        entry = self.directory.node(node)
        for text in (entry.amqp_address, entry.cluster_address):
            address = parse_address(text)
            if not is_port_free(address.host, address.port):
                raise PortInUseError(
                    f"port {address.port}, which {node} listens on, is in use; stop what listens there"
                )

    def _spawn(self, node: str) -> None:
        self._reap(node)
        command = [sys.executable, "-m", "cluster", "--config", str(self.directory.config_path(node))]
        environment = {**_environment(self.checkouts.get(node)), **self.environments.get(node, {})}
        child, mark = spawn(command, self.directory.log_path(node), self.directory.path, environment)
        self._children[node] = child
        write_mark(self.directory.process_path(node), mark)

    async def _end(self, node: str, signal_number: signal.Signals, timeout_s: float) -> None:
        mark = self._mark(node)
        send_signal(mark, signal_number)
        if not await self._wait_gone(node, mark, timeout_s):
            raise TimeoutError(
                f"{node} (pid {self.pid(node)}) is still there {timeout_s:g} s after {signal_number.name}"
            )

    async def _wait_gone(self, node: str, mark: ProcessMark | None, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while running_process(mark) is not None:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_INTERVAL_S)
        self._reap(node)
        return True

    def _reap(self, node: str) -> None:
        child = self._children.pop(node, None)
        if child is not None:
            child.wait(KILL_TIMEOUT_S)

    async def _wait_node_ready(
        self,
        node: str,
        wanted: Collection[str],
        deadline: float,
        on_ready: Callable[[str], None] | None,
        on_hindrance: Callable[[str, str], None] | None,
    ) -> None:
        amqp_address = parse_address(self.directory.node(node).amqp_address)
        hindrance = ""
        while True:
            if not self.is_running(node):
                raise NodeEndedError(self._with_log(node, "ended while it was starting"))
            is_ready = await answers_amqp(amqp_address)
            if is_ready and await sees_running(self.admin_address(node), self._cookie, wanted):
                break
            is_late = time.monotonic() > deadline
            if not is_ready and (is_late or on_hindrance is not None):
                before, hindrance = hindrance, await hindrance_of(self.admin_address(node), self._cookie)
                if hindrance not in ("", before) and on_hindrance is not None:
                    on_hindrance(node, hindrance)
            if is_late:
                missing = "see all members running" if is_ready else "answer AMQP clients"
                what = f"did not {missing} in time"
                raise NodeNotReadyError(f"{node} {what}: {hindrance}" if hindrance else self._with_log(node, what))
            await asyncio.sleep(_PROBE_INTERVAL_S)
        if on_ready is not None:
            on_ready(node)

    def _with_log(self, node: str, what: str) -> str:
        path = self.directory.log_path(node)
        return f"{node} {what}; the end of {path}:\n{log_tail(path)}"


def _valid_config(directory: ClusterDirectory, entry: NodeEntry, settings: Sequence[str]) -> str:
    """`render_config`, if a node could start with it. Raises `ConfigError`, which names the setting."""
    own = parse_settings(render_config(directory, entry, ()), f"{entry.name}.conf")
    build_config([*own, *map(parse_override, settings)], lambda _: _PLACEHOLDER_COOKIE)
    return render_config(directory, entry, settings)


def render_config(directory: ClusterDirectory, entry: NodeEntry, settings: Sequence[str]) -> str:
    """The configuration file of a node; what ``settings`` say last of a key counts, and it stands there once."""
    lines = [
        f"node_name = {entry.name}",
        f"data_dir = {_escape(str(directory.data_path(entry.name)))}",
        f"listeners.tcp.default = {entry.amqp_address}",
        f"cluster.listener = {entry.cluster_address}",
    ]
    for number, member in enumerate(directory.nodes, 1):
        lines.append(f"cluster_formation.classic_config.nodes.{number} = {member.name}@{member.cluster_address}")
    lines.append(f"cluster.cookie_file = {_escape(str(directory.cookie_path))}")
    lines += map(_escape, settings)
    by_key = {line.partition("=")[0].strip(): line for line in lines}
    return "\n".join(by_key.values()) + "\n"


def _escape(text: str) -> str:
    """A ``#`` would start a comment."""
    return text.replace("#", "\\#")


def _write_cookie(path: Path) -> None:
    """Make the secret of a new cluster; an existing one stays."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16) + "\n")


def _environment(checkout: Path | None) -> dict[str, str]:
    """Ours, with the place of the code (``None``: whence this was imported) on the path, and tracebacks for crashes in
    native code."""
    root = str(checkout or Path(chaos.__path__[0]).parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
