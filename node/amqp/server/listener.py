"""The AMQP server: the connections behind one listener, and their one timer.

What it touches of the world is handed in, so that it can serve in a simulated one: who listens (`Listen`), chance and
the clock of the turns. Its timers and tasks are those of the running loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from node.amqp.connection import ConnectionLimits
from node.amqp.login_throttle import LoginThrottle
from node.amqp.ports import BrokerPort
from node.amqp.server.bounds import CONNECTIONS_MAX, HANDSHAKES_MAX
from node.amqp.server.connection import ConnectionShell
from node.amqp.server.listing import ConnectionListing
from node.amqp.server.sockets import Listen, Listener
from node.amqp.server.turns import InputTurns
from node.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

#: Twice in half of the shortest heartbeat interval (1 s).
TICK_INTERVAL_S = 0.25
#: RabbitMQ's listen backlog.
BACKLOG = 128
STOP_TIMEOUT_S = 10.0
#: A call takes milliseconds, unless it waits for a queue or a majority that may not come.
CALLS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class AmqpServerConfig:
    """What the AMQP server lets clients do."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: Further connections are dropped at once.
    connections_max: int = CONNECTIONS_MAX
    #: Of more that have not entered a vhost yet the oldest is dropped.
    handshakes_max: int = HANDSHAKES_MAX
    #: How long `AmqpServer.stop` waits for clients to answer ``connection.close``.
    stop_timeout_s: float = STOP_TIMEOUT_S
    #: And for calls that are under way, whose answers nobody will hear: until then they may come to their end. As long
    #: again for what they do when they are given up: a deletion has its queue asked.
    calls_timeout_s: float = CALLS_TIMEOUT_S
    #: Serve TLS instead of plain TCP.
    ssl_context: ssl.SSLContext | None = None


class AmqpServer:
    """Serves AMQP 0-9-1 for a broker. Use: ``start``, later ``stop``; both in the loop that serves.

    ``chance`` makes consumer tags. ``clock`` (seconds) says when a turn of the connections is over: it must go on while
    the loop is busy, as `time.monotonic` does and the ``time`` of a loop may not (uvloop's stands still). ``may_read``
    is asked in every turn that would read what clients have sent: see `node.amqp.server.turns`. ``numbers``: for
    connections, if others have had some before.
    """

    def __init__(
        self,
        broker: BrokerPort,
        config: AmqpServerConfig,
        *,
        listen: Listen,
        chance: random.Random,
        clock: Callable[[], float],
        may_read: Callable[[], bool] = lambda: True,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.broker = broker
        self.limits = config.limits
        self.chance = chance
        self.numbers = itertools.count(1) if numbers is None else numbers
        self._config = config
        self._listen = listen
        # The server may be made before its loop runs.
        self.turns = InputTurns(lambda callback: asyncio.get_running_loop().call_soon(callback), clock, may_read)
        #: Dicts for their order; the last has those of the first that have not entered a vhost yet.
        self._connections: dict[ConnectionShell, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        #: Those of them that are calls of clients.
        self._calls: dict[asyncio.Task[None], None] = {}
        self._handshakes: dict[ConnectionShell, None] = {}
        self.logins = LoginThrottle(config.limits.handshake_timeout_s)
        self.refusals = ThrottledLog(log)
        self.channel_errors = ThrottledLog(log)
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        self._port = 0
        self._all_closed = asyncio.Event()

    @property
    def port(self) -> int:
        """The port in use, also if 0 was asked for."""
        return self._port

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError` if the address is taken or not ours."""
        self._listener = await self._listen(
            lambda: ConnectionShell(self), host, port, backlog=BACKLOG, ssl_context=self._config.ssl_context
        )
        self._port = self._listener.port
        self._schedule_tick()
        log.info("listening for AMQP on %s:%d", host, self._port)

    def refuse(self, text: str) -> None:
        """From this moment on nobody gets in, and no connection does anything but close (320), for the reason given."""
        if self._listener is None:
            return
        self._listener.close()
        for connection in list(self._connections):
            connection.close(320, text)

    async def stop(self, text: str = "broker forced connection closure with reason 'shutdown'") -> None:
        """`refuse`, and wait for all connections, at most ``stop_timeout_s``; then drop the rest."""
        if self._listener is None:
            return
        self.refuse(text)
        self._give_up_calls_later()
        try:
            await asyncio.wait_for(self._wait_until_idle(), self._config.stop_timeout_s)
        except TimeoutError:
            log.warning("%d connections did not close in time", len(self._connections))
            for connection in list(self._connections):
                connection.abort()
            try:  # what they sent before is looked at first, in turns; then the last closings begin
                await asyncio.wait_for(self._wait_until_idle(), self._config.stop_timeout_s)
            except TimeoutError:
                for task in list(self._tasks):
                    task.cancel()
        if self._giving_up is not None:
            self._giving_up.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._listener = None

    def _give_up_calls_later(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()  # of a stop that was cancelled, because this one comes
        self._giving_up = asyncio.get_running_loop().call_later(self._config.calls_timeout_s, self._give_up_calls)

    def _give_up_calls(self) -> None:
        """Again and again: what they do when they are given up may wait for the same, and others may have begun."""
        for call in list(self._calls):
            call.cancel()
        self._give_up_calls_later()

    async def _wait_until_idle(self) -> None:
        while self._connections or self._tasks:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._all_closed.clear()
                await self._all_closed.wait()

    def close_objectionable(self, objection: Callable[[str, str | None], str | None]) -> None:
        """Close (320) every connection whose user and vhost (``None``: it has entered none yet) meet with an objection.
        Who has not logged in meets with none."""
        for connection in list(self._connections):
            machine = connection.machine
            if machine.user is not None and (text := objection(machine.user, machine.vhost)) is not None:
                connection.close(320, text)

    def connections(self) -> list[ConnectionListing]:
        """The connections that exist, also those in their handshake."""
        return [connection.listing() for connection in self._connections]

    # --- `ConnectionOwner` ---

    def connection_opened(self, connection: ConnectionShell) -> bool:
        self._connections[connection] = self._handshakes[connection] = None
        if len(self._handshakes) > self._config.handshakes_max:
            # The oldest goes: who means it is through in milliseconds, however many others only knock.
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            text = f"{oldest.name} dropped: {self._config.handshakes_max} connections that came later log in, too"
            self.refusals.write("too many handshakes", text)
            oldest.abort()
        return len(self._connections) <= self._config.connections_max

    def handshake_ended(self, connection: ConnectionShell) -> None:
        self._handshakes.pop(connection, None)

    def connection_closed(self, connection: ConnectionShell) -> None:
        self._connections.pop(connection, None)
        self._handshakes.pop(connection, None)
        if not self._connections:
            self._all_closed.set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def spawn_call(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.spawn(coroutine)
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        return task

    def _schedule_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._connections):
            connection.tick(now)
        self._schedule_tick()
