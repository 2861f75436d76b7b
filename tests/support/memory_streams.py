"""Connections in memory, in one loop: what one end writes the other one is given in a later turn of the loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any


class MemoryStream(asyncio.Transport):
    """One end of a connection. What arrives while reading is paused waits; a close reaches both ends."""

    def __init__(self, protocol: asyncio.Protocol, host: str, port: int, peer_port: int) -> None:
        super().__init__({"sockname": (host, port), "peername": (host, peer_port)})
        self.protocol = protocol
        self.peer: MemoryStream
        self._arrived: list[bytes] = []
        self._is_paused = False
        self._is_closing = False

    def write(self, data: Any) -> None:
        assert not self._is_closing, "nobody writes to what is closed"
        self.peer._arrived.append(bytes(data))
        asyncio.get_running_loop().call_soon(self.peer._hand_over)

    def _hand_over(self) -> None:
        while self._arrived and not self._is_paused:
            self.protocol.data_received(self._arrived.pop(0))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing stays here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._hand_over)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        for end in (self, self.peer):
            if not end._is_closing:
                end._is_closing = True
                asyncio.get_running_loop().call_soon(end.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class MemoryListener:
    """Implements `node.amqp.server.Listen`, and is the `Listener` that comes of it."""

    def __init__(self) -> None:
        self.port = 0
        self.is_open = False
        self._host = ""
        self._make_connection: Callable[[], asyncio.Protocol]
        self._next_client_port = 50_000

    async def __call__(
        self,
        make_connection: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        ssl_context: ssl.SSLContext | None,
    ) -> MemoryListener:
        assert backlog > 0
        assert ssl_context is None, "what is in memory needs no encryption"
        self._make_connection = make_connection
        self._host, self.port = host, port
        self.is_open = True
        return self

    def close(self) -> None:
        self.is_open = False

    def arrive(self) -> asyncio.Protocol:
        """The server's end for a client that has come, not connected to anything."""
        assert self.is_open
        return self._make_connection()

    def connect(self, client: asyncio.Protocol) -> None:
        """A connection of ``client`` to the server."""
        server = self.arrive()
        self._next_client_port += 1
        near = MemoryStream(client, self._host, self._next_client_port, self.port)
        far = MemoryStream(server, self._host, self.port, self._next_client_port)
        near.peer, far.peer = far, near
        server.connection_made(far)
        client.connection_made(near)
