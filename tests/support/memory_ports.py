"""Ports that a server listens on in memory. A test connects by `MemoryListener.arrive`, and is the transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable


class MemoryListener:
    """Implements `node.amqp.server.sockets.Listener`."""

    def __init__(self, host: str, port: int, arrive: Callable[[], asyncio.Protocol]) -> None:
        self.host = host
        #: A client is there: the server's end of its connection, not connected to anything.
        self.arrive = arrive
        self.port = port
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class MemoryPorts:
    """Implements `node.amqp.server.Listen`."""

    def __init__(self) -> None:
        #: All that there ever were.
        self.listeners: list[MemoryListener] = []
        self.has_listener = asyncio.Event()
        #: Why nobody can listen, if nobody can.
        self.failure: OSError | None = None

    async def __call__(
        self,
        make_connection: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        ssl_context: ssl.SSLContext | None,
    ) -> MemoryListener:
        if self.failure is not None:
            raise self.failure
        self.listeners.append(MemoryListener(host, port, make_connection))
        self.has_listener.set()
        return self.listeners[-1]
