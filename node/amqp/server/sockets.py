"""How clients arrive: what the server asks of whoever listens, and a listener on a TCP port.

The server itself opens nothing. A simulator hands in a `Listen` whose connections are transports in memory.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol


class Listener(Protocol):
    """A place where clients arrive."""

    @property
    def port(self) -> int:
        """The port in use, also if 0 was asked for."""

    def close(self) -> None:
        """Let nobody in any more; connections that exist stay."""


class Listen(Protocol):
    """Begins to listen."""

    def __call__(
        self,
        make_connection: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        ssl_context: ssl.SSLContext | None,
    ) -> Awaitable[Listener]:
        """Give each client that arrives a connection of its own, over TLS if there is a context.

        ``backlog``: so many may wait to be let in. Raises `OSError` if the address is taken or not ours.
        """


class SocketListener:
    """Implements `Listener` on what the loop listens with."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port: int = server.sockets[0].getsockname()[1]

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._server.close()


async def listen_on_sockets(
    make_connection: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    *,
    backlog: int,
    ssl_context: ssl.SSLContext | None,
) -> SocketListener:
    """The `Listen` of a real node."""
    loop = asyncio.get_running_loop()
    return SocketListener(await loop.create_server(make_connection, host, port, backlog=backlog, ssl=ssl_context))
