"""`chaos.targets.target.Lines` of processes of this machine, by a Toxiproxy of our own.

A proxy takes every connection, and breaks it when nobody listens behind it; the system of a machine whose process is
gone refuses it. Clusters tell the two apart (who is refused knows that the other is dead), so the lines to a node that
was killed or stopped are closed as long as it does not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from chaos.cluster_under_test.ports import PortInUseError
from chaos.harm.lines import CLIENTS, Line, LineFaults, ProxyState, all_lines
from chaos.harm.toxiproxy import Toxiproxy, ToxiproxyError, ToxiproxyMissingError, find_server
from chaos.plan.actions import Capability
from chaos.targets.target import TargetError


def why_none() -> str:
    """Why lines can have no proxies on this machine; empty if they can."""
    try:
        find_server()
    except ToxiproxyMissingError as error:
        return str(error)
    return ""


def lines_for(nodes: Collection[int], needs: Collection[Capability]) -> frozenset[Line]:
    """Those that need a proxy."""
    every = all_lines(sorted(nodes), with_clients=True)
    is_needed = {True: Capability.CLIENT_LINES in needs, False: Capability.NODE_LINES in needs}
    return frozenset(line for line in every if is_needed[line.source == CLIENTS])


class ProxiedLines:
    """A proxy on each of some lines. Use `open`."""

    def __init__(self, server: Toxiproxy, addresses: Mapping[Line, str]) -> None:
        self._server = server
        self._addresses = dict(addresses)
        self._faults = LineFaults(frozenset(addresses))
        #: Nodes to which no connection can be opened.
        self.down: frozenset[int] = frozenset()
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        upstreams: Mapping[Line, str],
        log_path: Path,
        environment: Mapping[str, str],
        taken_ports: Collection[int] = (),
    ) -> ProxiedLines:
        """Begin a server, and a proxy on each line to its upstream (host:port). Raises `TargetError`.

        ``taken_ports`` are of nodes, which may not listen yet.
        """
        return await asyncio.to_thread(cls._open, upstreams, log_path, environment, taken_ports)

    @classmethod
    def _open(
        cls, upstreams: Mapping[Line, str], log_path: Path, environment: Mapping[str, str], taken_ports: Collection[int]
    ) -> ProxiedLines:
        server: Toxiproxy | None = None
        try:
            server = Toxiproxy(log_path, environment, taken_ports)
            return cls(server, {line: server.create(line, upstreams[line]) for line in sorted(upstreams)})
        except (ToxiproxyMissingError, ToxiproxyError, PortInUseError) as error:
            if server is not None:
                server.close()
            raise TargetError(str(error)) from error

    @property
    def lines(self) -> frozenset[Line]:
        return frozenset(self._addresses)

    def addresses(self) -> Mapping[Line, str]:
        return dict(self._addresses)

    async def lay(self, number: int, fault: str, on: Iterable[Line], told: Mapping[str, Any]) -> None:
        async with self._one_at_a_time:
            await self._make(self._faults.lay(number, fault, on, told))

    async def lift(self, number: int, only: Line | None = None) -> None:
        async with self._one_at_a_time:
            await self._make(self._faults.lift(number, only))

    async def set_down(self, nodes: Collection[int]) -> None:
        """Exactly these do not run."""
        async with self._one_at_a_time:
            changed, self.down = self.down ^ frozenset(nodes), frozenset(nodes)
            await self._make({line for line in self._addresses if line.destination in changed})

    async def _make(self, lines: Iterable[Line]) -> None:
        wanted = {line: self._state(line) for line in sorted(lines)}
        try:
            await asyncio.to_thread(self._set_all, wanted)
        except ToxiproxyError as error:
            raise TargetError(str(error)) from error

    def _state(self, line: Line) -> ProxyState:
        state = self._faults.state(line)
        return ProxyState(state.is_enabled and line.destination not in self.down, state.toxics)

    def _set_all(self, wanted: Mapping[Line, ProxyState]) -> None:
        for line, state in wanted.items():
            self._server.set(line, state)

    async def close(self) -> None:
        """End all connections. May be called twice."""
        await asyncio.to_thread(self._server.close)
