"""When AMQP clients are served: from the time this node has its roles, as long as it may (`pause_minority`).

Before it has its roles clients would find neither vhosts nor queues. A node that pauses closes its connections and its
listener, as the reference does, and begins with a new server when it is current again. Why it would pause stands in
`cluster.runtime.standing`. From the moment at which it does, no word of a client is acted upon any more.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from cluster.runtime.ending import Ending
from cluster.runtime.standing import Hindrance, Pause
from cluster.transport.admin_port import exit_code_of
from node.amqp.server.listing import ConnectionListing
from node.config import Address
from node.errors import ConfigError, WarrenError

log = logging.getLogger(__name__)

#: How often queues are looked for that connections have left behind.
SWEEP_EVERY_S = 10.0


class ClientServer(Protocol):
    """Serves clients once, from `start` to `stop` (`node.amqp.server.AmqpServer`)."""

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError` if the address is taken or not ours."""

    def refuse(self, text: str) -> None:
        """Let nobody in and listen to nobody any more; `stop` follows."""

    async def stop(self, text: str = ...) -> None:
        """Close all connections, for the reason that clients read."""

    def close_objectionable(self, objection: Callable[[str, str | None], str | None]) -> None:
        """Close every connection whose user and vhost meet with an objection."""

    def connections(self) -> Sequence[ConnectionListing]: ...


class ClientService:
    """See the top of this module."""

    def __init__(
        self,
        address: Address,
        make_server: Callable[[], ClientServer],
        delete_abandoned_queues: Callable[[], Awaitable[None]],
        ending: Ending,
    ) -> None:
        """``delete_abandoned_queues``: exclusive ones that their connections have left behind."""
        self._address = address
        self._make_server = make_server
        self._delete_abandoned_queues = delete_abandoned_queues
        self._ending = ending
        self._server: ClientServer | None = None
        #: One change at a time.
        self._changing = asyncio.Lock()
        self._may_serve = False
        #: The latest word: changes that wait for one before them may be out of date.
        self._paused: Pause | None = None
        self._is_serving = False
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def is_serving(self) -> bool:
        """Clients may connect; not any more as soon as this node is to stop, or to begin again: who asks to hear of the
        next life must not be told of this one."""
        return self._is_serving and not self._ending.is_requested

    def connections(self) -> Sequence[ConnectionListing]:
        """The client connections of this node."""
        return [] if self._server is None else self._server.connections()

    @property
    def has_roles(self) -> bool:
        """This node has joined its cluster, and would serve clients but for a pause."""
        return self._may_serve

    def access_ended(self, objection: Callable[[str, str | None], str | None]) -> None:
        """A user or a vhost may be gone: ``objection`` says of each whether, and why, its connections must end."""
        if self._server is not None:
            self._server.close_objectionable(objection)

    async def open(self, pause: Pause | None) -> None:
        """This node has its roles: serve, now or when the pause has ended. Raises `ConfigError`."""
        self._may_serve = True
        self._paused = pause
        self._spawn(self._sweep())
        await self._serve()

    def pause_changed(self, pause: Pause | None) -> None:
        """Stop serving at once, or (``None``) serve again, in the background; queues that were abandoned meanwhile are
        deleted then, also by who has served all the time."""
        self._paused = pause
        if pause is not None and self._server is not None:
            self._is_serving = False
            self._server.refuse(_farewell(pause))
        self._spawn(self._resume() if pause is None else self._pause(pause))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if self._is_serving:
                with suppress(WarrenError):  # the next time, then
                    await self._delete_abandoned_queues()

    async def stop(self) -> None:
        """Close all connections and the listener, for good. Nobody is let in while the last connections end."""
        self._is_serving = False
        for task in list(self._tasks):
            task.cancel()
        if self._server is not None:
            await self._server.stop()

    async def _serve(self) -> None:
        async with self._changing:
            if self._server is not None or self._paused is not None or self._ending.is_requested:
                return
            server = self._make_server()
            try:
                await server.start(*self._address)
            except OSError as error:
                raise cannot_listen("listeners.tcp.default", self._address, error) from None
            self._server = server
            self._let_in(server)

    def _let_in(self, server: ClientServer) -> None:
        """It has started: a pause may have begun meanwhile, and who is to stop it waits for that."""
        self._is_serving = self._paused is None
        if self._paused is not None:
            server.refuse(_farewell(self._paused))

    async def _pause(self, pause: Pause) -> None:
        async with self._changing:
            if self._server is not None:
                self._is_serving = False
                await self._server.stop(_farewell(pause))
                self._server = None  # not before: `stop` may come meanwhile, and waits for the same

    async def _resume(self) -> None:
        if not self._may_serve:
            return  # `open` serves when this node is ready
        try:
            await self._serve()
            if self._paused is None:
                await self._delete_abandoned_queues()
        except ConfigError as error:
            self._ending.fail(str(error), exit_code_of(error))
        except WarrenError as error:
            log.warning("exclusive queues of connections that have ended may remain: %s", error)

    def check_invariants(self) -> None:
        if self._is_serving:
            assert self._server is not None, "whoever serves has a server"
            assert self._may_serve, "nobody is served before this node has its roles"
            assert self._paused is None, "nobody is served during a pause"


def _farewell(pause: Pause) -> str:
    """What clients read."""
    if pause.hindrance is Hindrance.NO_QUORUM:
        return "the node has lost contact with the majority of the cluster (pause_minority)"
    return "the node does not know what the cluster has decided, because its disk or its network lags (pause_minority)"


def cannot_listen(key: str, address: Address, error: OSError) -> ConfigError:
    """What to tell the operator who set ``key``."""
    number = error.errno or 0
    if number < 0:  # of `getaddrinfo`: a name that stands for nothing
        reason, remedy = str(error), "set `{key}` to a name or an address of this machine"
    else:
        reason = os.strerror(number) if number else str(error)
        remedy = _REMEDIES.get(number, "set `{key}` to another address")
    return ConfigError(f"`{key}`: cannot listen on {address}: {reason}; {remedy.format(key=key)}")


_REMEDIES = {
    errno.EADDRINUSE: "stop what uses that port (this node itself, if it runs already), or set `{key}` to another one",
    errno.EADDRNOTAVAIL: "set `{key}` to an address of this machine, or to one that stands for all of them (0.0.0.0)",
    errno.EACCES: "set `{key}` to a port that this user may use (1024 or more)",
}
