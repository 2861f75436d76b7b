"""Warren in containers: the cluster of ``deploy/docker-compose.yml``, as a project of its own on free ports.

Compose begins the cluster and removes it, with its network and volumes; what happens to a container in between goes
through the ``docker`` package, and what is asked of a node through its published ports. The journal has the removal
before anything is begun.

A container that is disconnected is cut off from everybody, clients too. Its data are on its own volume, so a node that
was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import shlex
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import docker
import requests
from docker.models.containers import Container
from docker.models.networks import Network

from chaos.cluster_under_test.ports import PortInUseError, choose_free_ports
from chaos.harm import commands
from chaos.harm.journal import Journal
from chaos.harm.lines import CLIENTS, Line
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets.answering import answers
from chaos.targets.machine import Machine, missing_here, name_of, require
from chaos.targets.target import READY_TIMEOUT_S, Endpoint, Lines, NodeFacts, NotNow, TargetError
from chaos.targets.warren_operator import WarrenOperator
from node.alarms.limits import MemoryWatermark

DEPLOY = Path(__file__).parents[2] / "deploy"
HOST = "127.0.0.1"
#: Services of the file.
NODES = (1, 2, 3)
OFFERED = frozenset(
    {
        Capability.KILL,
        Capability.STOP,
        Capability.PAUSE,
        Capability.DISCONNECT,
        Capability.CLIENT_LINES,
        Capability.MEMORY_ALARM,
        Capability.POLICY,
        Capability.MASTER,
        Capability.SYNC,
        Capability.CANCEL_SYNC,
    }
)
NEVER: Mapping[Capability, str] = {
    Capability.NODE_LINES: "nodes in containers reach each other by their names: disconnect them instead",
    Capability.FILL_DISK: "containers share the disk of this machine",
    Capability.SLOW_DISK: "containers share the disk of this machine",
    Capability.WIPE_DISK: "a container's volume is not emptied while its cluster lives",
    Capability.FORGET: "a node is forgotten when it is wiped, and not otherwise",
    Capability.TAPS: "these nodes do not tell of single messages",
    Capability.EXPIRY: "messages do not expire in this release of Warren",
}
IMAGE_VARIABLE = "WARREN_IMAGE"
#: Of containers, network and volumes.
REMOVAL = ("down", "--volumes", "--remove-orphans", "--timeout", "5")
#: A command of compose, and one request to the engine; `stop` adds its grace period.
COMMAND_TIMEOUT_S, ENGINE_TIMEOUT_S = 180.0, 60
STOP_S = 20
_POLL_INTERVAL_S = 0.3
_ENGINE_ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException)

_Value = TypeVar("_Value")


def image() -> str:
    """The one that `make image` builds, or that the environment names."""
    return os.environ.get(IMAGE_VARIABLE, "warren:latest")


def compose_command() -> list[str] | None:
    """``docker compose`` where it exists, else ``docker-compose``, else nothing."""
    plugin = ["docker", "compose"]
    if (
        shutil.which("docker")
        and subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0
    ):
        return plugin
    return ["docker-compose"] if shutil.which("docker-compose") else None


def engine() -> docker.DockerClient | str:
    """A client, or why there is none. The package forgets to close the socket that found nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return docker.from_env(timeout=ENGINE_TIMEOUT_S)
        except docker.errors.DockerException as error:
            reason = f"no Docker engine answers: {error}"
        # The socket lives in the error's traceback; it has to go while its complaint is ignored.
        gc.collect()
        return reason


def why_none() -> str:
    """Why there can be no cluster in containers here; empty if there can."""
    client = engine()
    if isinstance(client, str):
        return client
    try:
        client.images.get(image())
    except docker.errors.ImageNotFound:
        return f"there is no image {image()}: `make image` builds it, and {IMAGE_VARIABLE} names another"
    finally:
        client.close()
    if compose_command() is None:
        return "there is a Docker engine, but neither `docker compose` nor docker-compose"
    for path in (DEPLOY / "docker-compose.yml", DEPLOY / "cookie"):
        if not path.exists():
            return f"there is no {path}: run it from a checkout, behind `make image`"
    return ""


class ComposeTarget:
    """`chaos.targets.target.Target`; see there for what the methods promise."""

    kind = "compose"

    def __init__(self, directory: Path, journal: Journal) -> None:
        """``directory`` gets the logs."""
        self._directory = directory.absolute()
        self._journal = journal
        self._machine = Machine(self._directory, journal)
        self._project = f"warren-chaos-{secrets.token_hex(4)}"
        self._engine: docker.DockerClient | None = None
        self._environment: dict[str, str] = {}
        self._ports: dict[str, dict[int, int]] = {}
        self._cookie = ""
        self._entry: int | None = None
        self._operators: dict[int, WarrenOperator] = {}
        #: As far as we know.
        self._down: set[int] = set()
        self._paused: set[int] = set()

    # --- facts ---

    @property
    def capabilities(self) -> frozenset[Capability]:
        return OFFERED - self.missing.keys()

    @cached_property
    def missing(self) -> Mapping[Capability, str]:
        if reason := why_none():
            return dict.fromkeys(Capability, reason)
        return {**NEVER, **missing_here(OFFERED)}

    @property
    def nodes_max(self) -> int:
        return len(NODES)

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        return [NodeFacts(node, name_of(node), str(self._log_path(node))) for node in NODES]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        addresses = {node: self._address("AMQP", node) for node in NODES}
        for line, address in (self.lines.addresses() if self.lines is not None else {}).items():
            addresses[line.destination] = address
        return [Endpoint(node, f"amqp://guest:guest@{address}/") for node, address in addresses.items()]

    @property
    def lines(self) -> Lines | None:
        return self._machine.lines

    @property
    def guest(self) -> None:
        return None

    def is_running(self, node: int) -> bool:
        return node not in self._down | self._paused

    def _address(self, what: str, node: int) -> str:
        return f"{HOST}:{self._ports[what][node]}"

    def _log_path(self, node: int) -> Path:
        return self._directory / f"{name_of(node)}.log"

    # --- the cluster ---

    async def start(self, plan: ClusterPlan, needs: Collection[Capability] = frozenset()) -> None:
        assert self._engine is None, "a target is begun once"
        require(self, plan, needs)
        if plan.nodes != len(NODES):
            raise TargetError(f"the cluster of {DEPLOY / 'docker-compose.yml'} has {len(NODES)} nodes, always")
        if plan.settings:
            raise TargetError(f"settings of containers are in {DEPLOY / 'conf'}: {', '.join(sorted(plan.settings))}")
        try:
            await self._start(needs)
        except BaseException:
            await self.close()
            raise

    async def _start(self, needs: Collection[Capability]) -> None:
        client = engine()
        if isinstance(client, str):
            raise TargetError(client)
        self._engine = client
        self._cookie = (DEPLOY / "cookie").read_text(encoding="utf-8").strip()
        try:
            ports = choose_free_ports(HOST, 2 * len(NODES))
        except PortInUseError as error:
            raise TargetError(str(error)) from error
        self._ports = {
            what: dict(zip(NODES, ports[first:], strict=False)) for what, first in (("AMQP", 0), ("ADMIN", len(NODES)))
        }
        self._environment = self._variables()
        await self._machine.begin(NODES, needs)
        removal = shlex.join([*self._compose(), *REMOVAL])
        self._entry = self._journal.will_do(commands.HOW, f"containers of {self._project}", command=removal)
        await asyncio.to_thread(self._run, "up", "--detach")
        await self._machine.open_lines(NODES, needs, self._upstream, ports)

    def _upstream(self, line: Line) -> str:
        assert line.source == CLIENTS, "there are no proxies between containers"
        return self._address("AMQP", line.destination)

    def _variables(self) -> dict[str, str]:
        """Ours, without what would name another cluster."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("WARREN_", "COMPOSE_"))}
        ours[IMAGE_VARIABLE] = image()
        for what, ports in self._ports.items():
            ours |= {f"WARREN_{name_of(node).upper()}_{what}_PORT": str(port) for node, port in ports.items()}
        return ours

    def _compose(self) -> list[str]:
        command = compose_command()
        if command is None:
            raise TargetError(why_none())
        return [*command, "-p", self._project, "-f", str(DEPLOY / "docker-compose.yml")]

    def _run(self, *arguments: str) -> None:
        """A command of compose. Raises `TargetError`."""
        try:
            ended = subprocess.run(
                [*self._compose(), *arguments],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TargetError(f"compose {' '.join(arguments)} did not end in {COMMAND_TIMEOUT_S:g} s") from None
        if ended.returncode:
            raise TargetError(f"compose {' '.join(arguments)}: {ended.stdout.strip()[-2000:]}")

    async def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        wanted = [node for node in NODES if self.is_running(node)] if nodes is None else list(nodes)
        deadline_s = time.monotonic() + timeout_s
        while missing := await self._not_ready(wanted):
            if time.monotonic() > deadline_s:
                logs = ", ".join(str(self._log_path(node)) for node in missing)
                await self._keep_logs()
                raise TimeoutError(f"{', '.join(map(name_of, missing))} did not serve in time (logs: {logs})")
            await asyncio.sleep(_POLL_INTERVAL_S)
        await self._keep_logs()

    async def _not_ready(self, wanted: Sequence[int]) -> list[int]:
        missing = []
        for node in wanted:
            state = (await self._asked(lambda node=node: self._container(node))).attrs["State"]  # type: ignore[misc]
            if not state["Running"]:
                await self._keep_logs()
                log = self._log_path(node)
                raise TargetError(f"{name_of(node)} has ended with {state['ExitCode']}; its log is {log}")
            if not await self._serves(node, wanted):
                missing.append(node)
        return missing

    async def _serves(self, node: int, wanted: Sequence[int]) -> bool:
        try:
            running = await self.operator(node).running()
        except NotNow:
            return False
        url = f"amqp://guest:guest@{self._address('AMQP', node)}/"
        return set(wanted) <= set(running) and await asyncio.to_thread(answers, url)

    async def close(self) -> None:
        for operator in self._operators.values():
            await operator.close()
        self._operators.clear()
        try:
            await self._machine.close()
        finally:
            if self._entry is not None:
                await self._keep_logs()
                await asyncio.to_thread(self._run, *REMOVAL)
                self._journal.undone(self._entry)
                self._entry = None
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    async def _keep_logs(self) -> None:
        """What a node has said lasts longer than its container; of one that cannot be read nothing is kept."""
        for node in NODES:
            try:
                said = await self._asked(lambda node=node: self._container(node).logs())  # type: ignore[misc]
            except TargetError:
                continue
            self._log_path(node).write_bytes(said)

    # --- containers ---

    def _container(self, node: int) -> Container:
        """As it is now."""
        assert self._engine is not None, "the cluster has begun"
        labels = [f"com.docker.compose.project={self._project}", f"com.docker.compose.service={name_of(node)}"]
        found = self._engine.containers.list(all=True, filters={"label": labels})
        if len(found) != 1:
            raise TargetError(f"there are {len(found)} containers of {name_of(node)}")
        return found[0]

    def _network(self) -> Network:
        assert self._engine is not None, "the cluster has begun"
        labels = f"com.docker.compose.project={self._project}"
        (network,) = self._engine.networks.list(filters={"label": labels})
        return network

    async def _asked(self, question: Callable[[], _Value]) -> _Value:
        """Of the engine, on a thread. Raises `TargetError`."""
        try:
            return await asyncio.to_thread(question)
        except _ENGINE_ERRORS as error:
            raise TargetError(f"the Docker engine: {error}") from error

    async def kill(self, nodes: Sequence[int]) -> None:
        containers = [await self._asked(lambda node=node: self._container(node)) for node in nodes]  # type: ignore[misc]
        self._down.update(nodes)
        await asyncio.gather(*(self._asked(container.kill) for container in containers))
        self._paused.difference_update(nodes)
        await self._note_down()

    async def stop(self, node: int) -> None:
        self._down.add(node)
        await self._asked(lambda: self._container(node).stop(timeout=STOP_S))
        self._paused.discard(node)
        await self._note_down()

    async def start_node(self, node: int) -> None:
        if node not in self._down:
            raise TargetError(f"{name_of(node)} runs already")
        await self._asked(lambda: self._container(node).start())
        self._down.discard(node)
        await self._note_down()

    async def _note_down(self) -> None:
        await self._machine.note_down(self._down)

    async def pause(self, node: int) -> None:
        if node in self._down:
            raise TargetError(f"{name_of(node)} does not run, and cannot stand still")
        self._paused.add(node)
        await self._asked(lambda: self._container(node).pause())

    async def resume(self, node: int) -> None:
        if node in self._paused:
            await self._asked(lambda: self._container(node).unpause())
            self._paused.discard(node)

    async def hurt(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        if name == "disconnect":
            await self._asked(lambda: self._network().disconnect(self._container(node), force=True))
        elif name == "memory alarm":
            await self.operator(node).set_memory_watermark(MemoryWatermark(relative=0.0))
        else:
            raise TargetError(f"nobody here knows how to do {name!r}")

    async def unhurt(self, name: str, node: int) -> None:
        if name == "disconnect":
            await self._asked(lambda: self._network().connect(self._container(node), aliases=[name_of(node)]))
        elif name != "memory alarm":
            raise TargetError(f"nobody here knows how to end {name!r}")
        elif node not in self._down:
            await self.operator(node).set_memory_watermark(MemoryWatermark())

    async def wipe(self, node: int) -> None:
        raise TargetError(f"{name_of(node)}: {NEVER[Capability.WIPE_DISK]}")

    def operator(self, node: int) -> WarrenOperator:
        if node not in self._operators:
            numbers = {name_of(each): each for each in NODES}
            self._operators[node] = WarrenOperator(self._address("ADMIN", node), self._cookie, numbers)
        return self._operators[node]
