"""One connection with one channel, from its opening to its end, which is told exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pika
import pika.exceptions

from chaos.clients.adapter import DeliveringChannel, StreamConnection
from chaos.clients.options import Endpoint
from chaos.record.kinds import Ending

#: How often a connection is looked at: signs of life are known as exactly as this.
LOOK_S = 0.1
#: For what is behind the end of the channel, and concerns nobody.
FAREWELL_S = 1.0


class LinkError(Exception):
    """There is no connection, or no channel on it; the reason in words, without a password."""


class Over(NamedTuple):
    """How a channel ended."""

    ending: Ending
    detail: str
    #: Not before.
    since_us: int


def _in_words(error: object) -> str:
    return f"{type(error).__name__}: {error}"


class Link:
    """Open it once; after that it is open until ``on_over`` is called."""

    def __init__(
        self,
        endpoint: Endpoint,
        heartbeat_s: int,
        clock_us: Callable[[], int],
        on_over: Callable[[Over], None],
        on_blocked: Callable[[bool], None],
    ) -> None:
        self._endpoint = endpoint
        self._heartbeat_s = heartbeat_s
        self._clock_us = clock_us
        self._on_over = on_over
        self._on_blocked = on_blocked
        self._loop = asyncio.get_running_loop()
        self._connection: StreamConnection | None = None
        self._channel: DeliveringChannel | None = None
        #: Done with the channel, or with the reason why there is none.
        self._opened: asyncio.Future[DeliveringChannel] = self._loop.create_future()
        self._is_over = asyncio.Event()
        self._is_gone = asyncio.Event()
        #: When we began to close it.
        self._closing_us: int | None = None
        self._looking: asyncio.TimerHandle | None = None

    # --- opening

    async def open(self, timeout_s: float) -> DeliveringChannel:
        """The channel. Raises `LinkError`, and nothing is left then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
                self._channel = await self._opened
        except (OSError, LinkError, ValueError, pika.exceptions.AMQPError) as error:
            self._abandon()
            if isinstance(error, TimeoutError):
                reason = f"not open within {timeout_s:g} s"
            else:
                reason = str(error) if isinstance(error, LinkError) else _in_words(error)
            raise LinkError(self._endpoint.scrub(reason)) from None
        except BaseException:
            self._abandon()
            raise
        self._look()
        return self._channel

    async def _connect(self) -> None:
        parameters = pika.URLParameters(self._endpoint.url)
        parameters.heartbeat = self._heartbeat_s
        self._connection = connection = StreamConnection(
            parameters,
            self._clock_us,
            on_open_callback=self._connection_open,
            on_open_error_callback=self._connection_refused,
            on_close_callback=self._connection_over,
        )
        connection.add_on_connection_blocked_callback(lambda *_: self._blocked(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._blocked(False))
        await connection.connect()

    def _connection_open(self, connection: object) -> None:
        assert isinstance(connection, StreamConnection), "pika tells of what it was given"
        connection.channel(on_open_callback=self._channel_open)

    def _channel_open(self, channel: object) -> None:
        assert isinstance(channel, DeliveringChannel), "the connection makes its channels so"
        channel.add_on_close_callback(self._channel_over)
        if not self._opened.done():
            self._opened.set_result(channel)

    def _connection_refused(self, _connection: object, error: BaseException | str) -> None:
        self._is_gone.set()
        if not self._opened.done():
            self._opened.set_exception(LinkError(_in_words(error)))

    def _abandon(self) -> None:
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # it is told in other words
        self._opened.cancel()
        if self._connection is not None:
            self._connection.abort("given up before it was open")

    # --- while it is open

    @property
    def is_open(self) -> bool:
        """It takes what is written."""
        return self._channel is not None and self._channel.is_open and not self._is_over.is_set()

    @property
    def channel(self) -> DeliveringChannel:
        """Of a link that was opened."""
        assert self._channel is not None, "it was opened"
        return self._channel

    @property
    def read_us(self) -> int:
        """When what is handled now was read."""
        assert self._connection is not None, "what is read comes over a connection"
        return self._connection.read_us

    def _blocked(self, is_blocked: bool) -> None:
        if self._channel is not None and not self._is_over.is_set():
            self._on_blocked(is_blocked)

    def _look(self) -> None:
        if self._connection is not None and not self._is_over.is_set():
            self._connection.look()
            self._looking = self._loop.call_later(LOOK_S, self._look)

    # --- its end

    def _channel_over(self, _channel: object, error: BaseException) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        if self._looking is not None:
            self._looking.cancel()
        if not self._opened.done():
            self._opened.set_exception(LinkError(_in_words(error)))
        elif self._channel is not None:
            self._on_over(self._over(error))

    def _over(self, error: BaseException) -> Over:
        assert self._connection is not None, "a channel has its connection"
        signs = self._connection.signs
        if isinstance(error, pika.exceptions.ChannelClosedByClient | pika.exceptions.ConnectionClosedByClient):
            ending, since_us = Ending.BY_CLIENT, signs.last_us
        elif isinstance(error, pika.exceptions.ChannelClosedByBroker | pika.exceptions.ConnectionClosedByBroker):
            # What was read last is the farewell, or came with it.
            ending, since_us = Ending.BY_BROKER, signs.before_last_us
        else:
            ending, since_us = Ending.LOST, signs.last_us
        if self._closing_us is not None:
            since_us = self._closing_us if ending is Ending.BY_CLIENT else min(since_us, self._closing_us)
        return Over(ending, self._endpoint.scrub(_in_words(error)), since_us)

    def _connection_over(self, connection: object, error: BaseException) -> None:
        self._channel_over(connection, error)
        self._is_gone.set()

    async def wait_over(self) -> None:
        """Until the channel is over."""
        await self._is_over.wait()

    async def close(self, timeout_s: float) -> None:
        """In order if there is time, and by force otherwise. The end is told, and nothing is left."""
        if self._channel is None or self._connection is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                if self.is_open:
                    self._closing_us = self._clock_us()
                    self._channel.close()
                await self._is_over.wait()
        except TimeoutError:
            self._connection.abort(f"the channel did not close within {timeout_s:g} s")
            await self._is_over.wait()
        try:
            async with asyncio.timeout(FAREWELL_S):
                if self._connection.is_open:
                    self._connection.close()
                await self._is_gone.wait()
        except TimeoutError:
            self._connection.abort("the connection did not close in time")
            await self._is_gone.wait()
