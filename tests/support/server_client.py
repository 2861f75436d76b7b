"""A client of an `AmqpServer` in the same loop, over a transport in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from pamqp import base, commands

from node.amqp.connection import ConnectionState
from node.amqp.frames import PROTOCOL_HEADER
from node.amqp.server import AmqpServer, AmqpServerConfig
from node.amqp.server.connection import ConnectionShell
from tests.support.amqp_frames import method_bytes, unmarshal_all
from tests.support.memory_ports import MemoryPorts
from tests.support.observed_broker import ObservedBroker

Basic, Channel, Confirm, Connection, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
    commands.Tx,
)


class MemoryTransport(asyncio.Transport):
    """Keeps what is written. ``is_stuck``: the peer does not read, so the buffer only grows."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 5672)})
        self.written = bytearray()
        self.write_count = 0
        self.is_closed = False
        self.is_reading_paused = False
        self.is_stuck = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += data
        self.write_count += 1
        if self.is_stuck:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self.is_stuck else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            # As the loops' own, it does not know the protocol any more.
            protocol, self.protocol = self.protocol, None
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class MemoryServer(AmqpServer):
    """Listens in memory. Its clock stands still: however slow the machine, all that came is done in one turn."""

    def __init__(self, broker: ObservedBroker, connections_max: int, handshakes_max: int) -> None:
        #: When a turn of the connections is over, to be replaced between two turns.
        self.clock: Callable[[], float] = lambda: 0.0
        self.ports = MemoryPorts()
        super().__init__(
            broker,
            AmqpServerConfig(connections_max=connections_max, handshakes_max=handshakes_max),
            listen=self.ports,
            chance=random.Random(1),
            clock=self._read_clock,
        )

    def _read_clock(self) -> float:
        return self.clock()


async def server_of(broker: ObservedBroker, connections_max: int = 1000, handshakes_max: int = 100) -> MemoryServer:
    """A server that has started."""
    server = MemoryServer(broker, connections_max, handshakes_max)
    await server.start("127.0.0.1", 5672)
    return server


class Client:
    """One client of a server, both in this loop."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.transport = MemoryTransport()
        shell = self.transport.protocol = server.ports.listeners[-1].arrive()
        assert isinstance(shell, ConnectionShell)
        self.shell = shell
        shell.connection_made(self.transport)

    def is_held_back(self) -> bool:
        """The server does not read what this client sends."""
        return self.transport.is_reading_paused

    def has_input(self) -> bool:
        """There is something left that the server has not looked at."""
        return self.shell.machine.has_input

    def state(self) -> ConnectionState:
        return self.shell.machine.state

    async def settle(self) -> None:
        """Let the loop turn until nothing new can happen."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def send(self, *methods: base.Frame, channel: int = 1, data: bytes = b"") -> list[str]:
        """Send methods, then raw bytes; the names of the methods that came back."""
        self.shell.data_received(b"".join([method_bytes(channel, method) for method in methods]) + data)
        await self.settle()
        return self.names()

    def frames(self) -> list[Any]:
        frames = [frame for _, frame in unmarshal_all(bytes(self.transport.written)) if isinstance(frame, base.Frame)]
        self.transport.written.clear()
        return frames

    def names(self) -> list[str]:
        return [frame.name for frame in self.frames()]

    async def open(self) -> Client:
        capabilities: Any = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True}}
        self.shell.data_received(PROTOCOL_HEADER)
        await self.send(Connection.StartOk(capabilities, "PLAIN", "\0guest\0guest"), channel=0)
        names = await self.send(Connection.TuneOk(100, 131_072, 0), Connection.Open("/"), channel=0)
        assert names == ["Connection.OpenOk"]
        assert await self.send(Channel.Open()) == ["Channel.OpenOk"]
        return self


def calls(broker: ObservedBroker, name: str) -> list[Any]:
    """Arguments of the broker's calls of one kind."""
    return [arguments for known, arguments in broker.calls if known == name]
