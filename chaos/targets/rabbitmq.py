"""RabbitMQ 3.10, as processes of this machine, to compare with: from Debian's package, but not its service.

Nothing of it meets anything else on the machine. It has its own directory, which is the home directory of all its
processes, with a cookie of its own; its own ports; and its own epmd (the daemon that tells nodes of Erlang where the
others are), on a port of its own, in the foreground. Files in /etc/rabbitmq are not read.

A node is more than one process: the machine of Erlang begins helpers in sessions of their own. All of them have the
mark of the node (`chaos.harm.marked`), and are stopped, paused and killed together.

The first node is waited for before the others are begun: of several that begin at once, each may found a cluster. A
node that was wiped becomes a mirror again by policy; of quorum queues it is made a member when it is ready, as an
operator would do (``rabbitmq-queues grow``).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chaos.cluster_under_test.ports import PortInUseError, choose_free_ports, is_port_free
from chaos.cluster_under_test.processes import log_tail, spawn
from chaos.cluster_under_test.readiness import answers_amqp
from chaos.harm.journal import Journal
from chaos.harm.lines import CLIENTS, Line
from chaos.harm.marked import ENVIRONMENT as MARK
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets.machine import NEVER, NODES_MAX, OF_PROCESSES, Machine, missing_here, name_of, require, together
from chaos.targets.rabbitmq_console import SCRIPT, RabbitMqConsole, RabbitMqOperator
from chaos.targets.target import READY_TIMEOUT_S, Endpoint, Lines, NodeFacts, NotNow, TargetError
from node.config import Address

OFFERED = OF_PROCESSES | {
    Capability.CLIENT_LINES,
    Capability.FILL_DISK,
    Capability.SLOW_DISK,
    Capability.WIPE_DISK,
    Capability.MEMORY_ALARM,
    Capability.POLICY,
    Capability.MASTER,
    Capability.SYNC,
    Capability.CANCEL_SYNC,
    Capability.EXPIRY,
}
_NO_NODE_LINES = "nodes of Erlang learn from epmd where the others are, and all learn the same"
#: Names the directory of the scripts, where it is not that of Debian's package.
PROGRAMS_VARIABLE = "RABBITMQ_PROGRAMS"
_PROGRAMS = "/usr/lib/rabbitmq/bin"
_HOST = "127.0.0.1"
#: The part of all names of nodes behind the @.
_DOMAIN = "localhost"
#: For the machine of Erlang to begin: ten seconds, and as many more as others want the processor.
BOOT_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
FORGET_TIMEOUT_S = 60.0
_CONTROL_TIMEOUT_S = 30.0
#: Of who was killed, and did not end by then, it was said.
_REAP_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.1
#: Erlang says what is wrong first, and then how everything fell over it.
_END_LINES = 80
#: Nobody burns the processor while there is nothing to do: others are measured on it, too.
_FLAGS = "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
_SETTINGS = {"disk_free_limit.absolute": "50MB"}


def programs() -> Path:
    """Where the scripts are, which need no user of their own as those in PATH do."""
    return Path(os.environ.get(PROGRAMS_VARIABLE, _PROGRAMS))


def why_none() -> str:
    """Why there can be no RabbitMQ on this machine; empty if there can."""
    lacking = [name for name in ("rabbitmq-server", "rabbitmqctl") if not os.access(programs() / name, os.X_OK)]
    if lacking:
        return (
            f"there is no {lacking[0]} in {programs()}: install the package rabbitmq-server, or set {PROGRAMS_VARIABLE}"
        )
    lacking = [name for name in ("escript", "epmd") if shutil.which(name) is None]
    return f"there is no {lacking[0]} in PATH: install the package erlang-base" if lacking else ""


def full_name(node: int) -> str:
    """As nodes of Erlang call each other."""
    return f"{name_of(node)}@{_DOMAIN}"


def configuration(nodes: Collection[int], amqp_port: int, settings: Mapping[str, Any]) -> str:
    """A node's ``rabbitmq.conf``."""
    lines: dict[str, Any] = {
        "listeners.tcp.1": f"{_HOST}:{amqp_port}",
        "cluster_formation.peer_discovery_backend": "classic_config",
        **{f"cluster_formation.classic_config.nodes.{node}": full_name(node) for node in nodes},
        **_SETTINGS,
        **settings,
    }
    written = {key: str(value).lower() if isinstance(value, bool) else value for key, value in lines.items()}
    return "".join(f"{key} = {value}\n" for key, value in written.items())


@dataclass(frozen=True, slots=True)
class _Ports:
    epmd: int
    amqp: Mapping[int, int]
    #: On which nodes talk to each other.
    distribution: Mapping[int, int]


class RabbitMqTarget:
    """`chaos.targets.target.Target`; see there for what the methods promise."""

    kind = "rabbitmq"

    def __init__(self, directory: Path, journal: Journal) -> None:
        """``directory`` becomes the cluster's; nothing may be in it."""
        self._directory = directory.absolute()
        self._machine = Machine(self._directory, journal)
        self._ports = _Ports(0, {}, {})
        #: Of which we are the parent, to be reaped.
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._epmd: subprocess.Popen[bytes] | None = None
        self._console: RabbitMqConsole | None = None
        #: Nodes that are of no quorum queue any more, as they were forgotten.
        self._ungrown: set[int] = set()

    # --- facts ---

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset() if why_none() else OFFERED - self.missing.keys()

    @property
    def missing(self) -> Mapping[Capability, str]:
        if why := why_none():
            return dict.fromkeys(Capability, why)
        return {**NEVER, Capability.NODE_LINES: _NO_NODE_LINES, **missing_here(OFFERED)}

    @property
    def nodes_max(self) -> int:
        return NODES_MAX

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        return [NodeFacts(node, full_name(node), str(self._log_path(node))) for node in self._ports.amqp]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        addresses = {node: f"{_HOST}:{port}" for node, port in self._ports.amqp.items()}
        if self.lines is not None:
            addresses |= {line.destination: address for line, address in self.lines.addresses().items()}
        return [Endpoint(node, f"amqp://guest:guest@{address}/") for node, address in addresses.items()]

    @property
    def lines(self) -> Lines | None:
        return self._machine.lines

    @property
    def guest(self) -> None:
        return None

    def is_running(self, node: int) -> bool:
        return node not in self._machine.paused and self._exists(node)

    def _exists(self, node: int) -> bool:
        return node in self._children and self._children[node].poll() is None

    def _log_path(self, node: int) -> Path:
        return self._directory / f"{name_of(node)}.log"

    def _output_path(self, node: int) -> Path:
        return self._directory / f"{name_of(node)}.out"

    # --- the cluster ---

    async def start(self, plan: ClusterPlan, needs: Collection[Capability] = frozenset()) -> None:
        assert not self._ports.amqp, "a target is begun once"
        require(self, plan, needs)
        try:
            await self._start(plan, needs)
        except BaseException:
            await self.close()
            raise

    async def _start(self, plan: ClusterPlan, needs: Collection[Capability]) -> None:
        nodes = range(1, plan.nodes + 1)
        await self._machine.begin(nodes, needs)
        try:
            epmd, *ports = choose_free_ports(_HOST, 1 + 2 * plan.nodes)
        except PortInUseError as error:
            raise TargetError(str(error)) from error
        amqp, distribution = ports[: plan.nodes], ports[plan.nodes :]
        self._ports = _Ports(epmd, dict(zip(nodes, amqp, strict=True)), dict(zip(nodes, distribution, strict=True)))
        await self._machine.open_lines(nodes, needs, self._upstream, [epmd, *ports])
        self._write_files(plan)
        await self._begin_epmd()
        self._console = await self._open_console()
        self._spawn(1)
        try:
            await self._wait_until(1, BOOT_TIMEOUT_S, partial(self._unbooted, 1), "boot")
        except TimeoutError as error:
            raise TargetError(str(error)) from error
        for node in nodes[1:]:
            self._spawn(node)

    def _upstream(self, line: Line) -> str:
        assert line.source == CLIENTS, "only lines of clients are offered"
        return f"{_HOST}:{self._ports.amqp[line.destination]}"

    def _write_files(self, plan: ClusterPlan) -> None:
        cookie = self._directory / ".erlang.cookie"
        cookie.touch(mode=0o600)
        cookie.write_text(secrets.token_hex(16), encoding="ascii")
        (self._directory / "enabled_plugins").write_text("[].\n", encoding="ascii")
        for node, port in self._ports.amqp.items():
            path = self._directory / f"{name_of(node)}.conf"
            path.write_text(configuration(self._ports.amqp, port, plan.settings), encoding="utf-8")

    async def _begin_epmd(self) -> None:
        port = self._ports.epmd
        command = ["epmd", "-port", str(port), "-address", _HOST]
        self._epmd, _ = spawn(command, self._directory / "epmd.log", self._directory, self._environment("epmd"))
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while is_port_free(_HOST, port):
            if self._epmd.poll() is not None or time.monotonic() > deadline:
                raise TargetError(f"epmd does not listen on port {port}: {log_tail(self._directory / 'epmd.log')}")
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _open_console(self) -> RabbitMqConsole:
        environment = self._environment("console") | {
            "ERL_FLAGS": f"-sname console@{_DOMAIN} -kernel inet_dist_use_interface {{127,0,0,1}}",
            "ERL_LIBS": str((programs() / "rabbitmq-server").resolve().parent.parent / "plugins"),
        }
        return await RabbitMqConsole.open(["escript", str(SCRIPT)], environment, self._directory / "console.log")

    def _environment(self, name: str) -> dict[str, str]:
        """Of whoever takes part: nothing of ours that tells RabbitMQ or Erlang something."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        return ours | {
            "HOME": str(self._directory),
            "ERL_EPMD_PORT": str(self._ports.epmd),
            "ERL_EPMD_ADDRESS": _HOST,
            MARK: f"{self._machine.mark}/{name}",
        }

    def _spawn(self, node: int) -> None:
        name, absent = name_of(node), str(self._directory / "absent")
        told = {
            "NODENAME": full_name(node),
            "DIST_PORT": str(self._ports.distribution[node]),
            "MNESIA_BASE": str(self._machine.data_path(node)),
            "CONFIG_FILE": str(self._directory / f"{name}.conf"),
            "ADVANCED_CONFIG_FILE": absent,
            "CONF_ENV_FILE": absent,
            "ENABLED_PLUGINS_FILE": str(self._directory / "enabled_plugins"),
            "LOG_BASE": str(self._directory),
            "LOGS": str(self._log_path(node)),
            "PID_FILE": str(self._directory / f"{name}.pid"),
            "SERVER_ADDITIONAL_ERL_ARGS": _FLAGS,
            # With this the script becomes the machine of Erlang, instead of waiting for it.
            "ALLOW_INPUT": "1",
        }
        environment = self._environment(name) | {f"RABBITMQ_{key}": value for key, value in told.items()}
        command = [str(programs() / "rabbitmq-server"), "-noinput"]
        environment |= self._machine.environment(node)
        self._machine.data_path(node).mkdir(parents=True, exist_ok=True)
        self._children[node], _ = spawn(command, self._output_path(node), self._directory, environment)

    async def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        wanted = [node for node in self._children if self.is_running(node)] if nodes is None else list(nodes)
        names = {full_name(node) for node in wanted}
        await together(
            self._wait_until(node, timeout_s, partial(self._unready, node, names), "serve") for node in wanted
        )
        for node in self._ungrown & set(wanted):
            await self._open.ask(full_name(node), "grow", timeout_s)
            self._ungrown.discard(node)

    async def _wait_until(
        self, node: int, timeout_s: float, hindrance: Callable[[], Awaitable[str]], what: str
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while found := await hindrance():
            if not self._exists(node):
                path = self._output_path(node)
                raise TargetError(
                    f"{name_of(node)} ended while it was starting; the end of {path}:\n{log_tail(path, _END_LINES)}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{name_of(node)} did not {what} in time: {found}; its log is {self._log_path(node)}"
                )
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _unbooted(self, node: int) -> str:
        try:
            return "" if await self._open.ask(full_name(node), "is_running") else "it is starting"
        except NotNow as error:
            return str(error)

    async def _unready(self, node: int, names: Collection[str]) -> str:
        if not await answers_amqp(Address(_HOST, self._ports.amqp[node])):
            return "it does not answer clients"
        try:
            running = await self._open.ask(full_name(node), "running")
        except NotNow as error:
            return str(error)
        unseen = sorted(set(names) - set(running))
        return f"it does not see {', '.join(unseen)}" if unseen else ""

    async def close(self) -> None:
        if self._console is not None:
            await self._console.close()
            self._console = None
        try:
            await self._machine.close()
        finally:
            for child in filter(None, (*self._children.values(), self._epmd)):
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_REAP_TIMEOUT_S)

    # --- nodes ---

    async def kill(self, nodes: Sequence[int]) -> None:
        await self._machine.kill(nodes)
        for node in nodes:
            if node in self._children:
                self._children[node].wait()
        await self._note_down()

    async def stop(self, node: int) -> None:
        child = self._children[node]
        child.send_signal(signal.SIGTERM)
        await self._machine.resume(node)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(child.wait, STOP_TIMEOUT_S)
        # Who hangs, and helpers that have not noticed yet.
        await self.kill([node])

    async def start_node(self, node: int) -> None:
        if self._exists(node):
            raise TargetError(f"{name_of(node)} runs already")
        for port in (self._ports.amqp[node], self._ports.distribution[node]):
            if not is_port_free(_HOST, port):
                raise TargetError(f"port {port}, on which {name_of(node)} listens, is in use; stop what listens there")
        self._spawn(node)
        await self._note_down()

    async def _note_down(self) -> None:
        await self._machine.note_down([node for node in self._children if not self._exists(node)])

    async def pause(self, node: int) -> None:
        await self._machine.pause(node)

    async def resume(self, node: int) -> None:
        await self._machine.resume(node)

    async def wipe(self, node: int) -> None:
        await self.kill([node])
        await asyncio.to_thread(shutil.rmtree, self._machine.data_path(node))
        await self._forget(node)
        self._ungrown.add(node)
        await self.start_node(node)

    async def _forget(self, node: int) -> None:
        """By rabbitmqctl, as it is more than one call, and done seldom."""
        deadline = time.monotonic() + FORGET_TIMEOUT_S
        said = "no other node runs"
        while time.monotonic() < deadline:
            for other in (each for each in self._children if each != node and self.is_running(each)):
                code, said = await self._control(other, "forget_cluster_node", full_name(node))
                if code == 0:
                    return
            await asyncio.sleep(_POLL_INTERVAL_S)
        raise TargetError(f"{name_of(node)} was not forgotten: {said}")

    async def _control(self, node: int, *arguments: str) -> tuple[int, str]:
        """Exit code and output of rabbitmqctl."""
        command = [str(programs() / "rabbitmqctl"), "--quiet", "-n", full_name(node), *arguments]
        run = partial(
            subprocess.run,
            command,
            env=self._environment("control"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_CONTROL_TIMEOUT_S,
            check=False,
        )
        try:
            done = await asyncio.to_thread(run)
        except subprocess.TimeoutExpired as error:
            return 1, str(error)
        return done.returncode, done.stdout.strip()

    # --- faults of nodes ---

    async def hurt(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        if name == "memory alarm":
            await self._open.ask(full_name(node), "memory_alarm")
        else:
            await self._machine.hurt_disk(name, node, arguments)

    async def unhurt(self, name: str, node: int) -> None:
        if name != "memory alarm":
            await self._machine.unhurt_disk(name, node)
        elif self._exists(node):
            # One that was begun anew has it from its configuration.
            await self._open.ask(full_name(node), "no_memory_alarm")

    # --- operators ---

    @property
    def _open(self) -> RabbitMqConsole:
        if self._console is None:
            raise TargetError("there is no cluster")
        return self._console

    def operator(self, node: int) -> RabbitMqOperator:
        return RabbitMqOperator(self._open, full_name(node), {full_name(each): each for each in self._ports.amqp})
