"""Links between processes on one machine that can be cut: a small TCP relay per pair of nodes.

Every node is told that each other one lives at a relay's port, a port of this pair alone, so that a link can be cut
while both nodes are reached by everybody else. Nothing of it needs a privilege.

A cut link is a *black hole*, as when a cable is pulled: what is on its way waits in the relay, nobody hears of an end,
and a new connection gets no answer (the queue of the relay's listener is full, and the kernel drops who comes). After
the heal what has waited arrives late, unless somebody has hung up meanwhile. A link can also be cut in one direction
only. A port that is *closed* refuses connections, as the port of a process that is gone does.

All runs on an event loop in a thread of its own; the methods of `Relays` are called from any other.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from chaos.cluster_under_test.ports import choose_free_ports
from node.config import Address, parse_address

_HOST = "127.0.0.1"
_PIECE_BYTES = 65_536
_CALL_TIMEOUT_S = 10.0


class _Relay:
    """The port at which ``dialer`` finds ``target``. ``ways``: (from, to) -> open while what goes that way arrives."""

    def __init__(
        self, dialer: str, target: str, port: int, address: Address, ways: Mapping[tuple[str, str], asyncio.Event]
    ) -> None:
        self._port = port
        self._address = address
        self._there = ways[dialer, target]
        self._back = ways[target, dialer]
        self._is_closed = False
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        #: Connects to ourselves during a cut, so that the listener's queue is full.
        self._stopper: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], None] = {}

    async def set_closed(self, *, is_closed: bool) -> None:
        self._is_closed = is_closed
        await self.follow()

    async def follow(self) -> None:
        """Listen, drop whoever comes, or refuse, as it must be now."""
        if self._is_closed:
            await self._stop_accepting()
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            self._drop_stopper()
            return
        if self._listener is None:
            self._listener = socket.socket()
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((_HOST, self._port))
            self._listener.setblocking(False)
        if self._there.is_set() and self._back.is_set():
            self._listener.listen()
            if self._accepting is None:
                self._accepting = asyncio.ensure_future(self._accept(self._listener))
        elif self._stopper is None:
            await self._stop_accepting()
            self._listener.listen(0)
            self._stopper = socket.socket()
            self._stopper.setblocking(False)
            with suppress(BlockingIOError):
                self._stopper.connect((_HOST, self._port))

    async def end(self) -> None:
        await self.set_closed(is_closed=True)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None

    def _drop_stopper(self) -> None:
        if self._stopper is not None:
            self._stopper.close()
            self._stopper = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, caller = await loop.sock_accept(listener)
            if self._stopper is not None and caller == self._stopper.getsockname():
                connection.close()
                self._drop_stopper()
                continue
            task = asyncio.ensure_future(self._carry(connection))
            self._connections[task] = None
            task.add_done_callback(self._connections.pop)

    async def _carry(self, dialed: socket.socket) -> None:
        """One connection, until both ends have hung up."""
        with dialed, socket.socket() as onward:
            for end in (dialed, onward):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await asyncio.get_running_loop().sock_connect(onward, self._address)
            except OSError:
                return
            await asyncio.gather(_pump(dialed, onward, self._there), _pump(onward, dialed, self._back))


async def _pump(source: socket.socket, sink: socket.socket, way: asyncio.Event) -> None:
    """Carry bytes, and the end of them, while the way is open."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while True:
            await way.wait()
            piece = await loop.sock_recv(source, _PIECE_BYTES)
            await way.wait()
            if not piece:
                break
            await loop.sock_sendall(sink, piece)
    await way.wait()
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Relays:
    """Between the nodes at ``addresses`` (name -> ``host:port``). To be ended with `close`."""

    def __init__(self, addresses: Mapping[str, str], taken: Collection[int] = ()) -> None:
        """``taken``: ports that are not free though nobody listens there yet."""
        self.nodes = list(addresses)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        pairs = [(one, other) for one in addresses for other in addresses if one != other]
        ports = choose_free_ports(_HOST, len(pairs), taken)
        self._ports = dict(zip(pairs, ports, strict=True))
        self._ways = {pair: asyncio.Event() for pair in pairs}
        for way in self._ways.values():
            way.set()
        self._relays = {
            (dialer, target): _Relay(dialer, target, port, parse_address(addresses[target]), self._ways)
            for (dialer, target), port in self._ports.items()
        }
        #: Bound and deaf: see `nowhere`.
        self._deaf = {name: socket.socket() for name in addresses}
        for deaf in self._deaf.values():
            deaf.bind((_HOST, 0))
        self._thread.start()
        self._run(self._follow)

    def address(self, dialer: str, target: str) -> str:
        """Where ``dialer`` finds ``target``."""
        return f"{_HOST}:{self._ports[dialer, target]}"

    def nowhere(self, node: str) -> str:
        """An address of the node's own at which nobody ever listens."""
        return f"{_HOST}:{self._deaf[node].getsockname()[1]}"

    # --- cuts ---

    def cut_way(self, source: str, sink: str) -> None:
        """What ``source`` says does not reach ``sink``; the other way all arrives."""
        self._set_ways([(source, sink)], is_open=False)

    def cut(self, one: str, other: str) -> None:
        """In both directions."""
        self._set_ways([(one, other), (other, one)], is_open=False)

    def isolate(self, *nodes: str) -> None:
        """Cut these off from the other nodes; among each other they are linked as before."""
        others = [name for name in self.nodes if name not in nodes]
        ways = [way for one in nodes for other in others for way in ((one, other), (other, one))]
        self._set_ways(ways, is_open=False)

    def heal_link(self, one: str, other: str) -> None:
        self._set_ways([(one, other), (other, one)], is_open=True)

    def heal(self) -> None:
        """Every link."""
        self._set_ways(list(self._ways), is_open=True)

    def close_ports(self, node: str) -> None:
        """Refuse who dials this node. The connections that are there end when the node does."""
        self._set_closed(node, is_closed=True)

    def open_ports(self, node: str) -> None:
        self._set_closed(node, is_closed=False)

    def close(self) -> None:
        async def end() -> None:
            for way in self._ways.values():
                way.set()
            await asyncio.gather(*(relay.end() for relay in self._relays.values()))

        self._run(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()
        for deaf in self._deaf.values():
            deaf.close()

    # --- plumbing ---

    def _set_ways(self, ways: Sequence[tuple[str, str]], *, is_open: bool) -> None:
        async def change() -> None:
            for way in ways:
                gate = self._ways[way]
                if is_open:
                    gate.set()
                else:
                    gate.clear()
            await self._follow()

        self._run(change)

    def _set_closed(self, node: str, *, is_closed: bool) -> None:
        async def change() -> None:
            for (_, target), relay in self._relays.items():
                if target == node:
                    await relay.set_closed(is_closed=is_closed)

        self._run(change)

    async def _follow(self) -> None:
        for relay in self._relays.values():
            await relay.follow()

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(_CALL_TIMEOUT_S)
