"""A connection's shell: one socket, one `ConnectionMachine`, the shells of its channels.

Output. Machines append frames to one list; `_flush`, at most once per turn of the loop, coalesces confirms and
writes everything with one call. Deliveries are reported to the broker as written only while the transport's buffer
is below its high-water mark, so a client that does not read is given a bounded number of messages and no more.

Reading (`node.amqp.server.reading`) stops while somebody has enough to do with what was read.

Alarms. A publish that the broker does not take now (`BrokerConnection.may_publish`) stays here, and with it every frame
that was read behind it, of whatever channel; the broker has stopped the reading, so that is one read at most.

An error ends at most this connection: whatever a callback raises is logged here and answered with 541.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Protocol, cast

from pamqp import commands

from node.amqp.channel import ChannelLimits, ChannelMachine
from node.amqp.connection import (
    Authenticate,
    CloseBroker,
    ConnectionLimits,
    ConnectionMachine,
    ConnectionState,
    Disconnect,
    EnterVhost,
)
from node.amqp.frames import FrameItem, MethodReceived, Publishes
from node.amqp.login_throttle import LoginThrottle
from node.amqp.ports import BrokerChannel, BrokerConnection, BrokerPort, ConnectionInfo
from node.amqp.server.channel import ChannelShell
from node.amqp.server.listing import ConnectionListing
from node.amqp.server.reading import Reading
from node.amqp.server.turns import InputTurns
from node.auth import LoginRefused
from node.errors import ConnectionFailure
from node.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

#: Above this the transport asks us to pause: about what a socket drains in a few milliseconds.
WRITE_HIGH_WATER_BYTES = 262_144
#: Answers (confirms, get-oks) may pile up this far before we stop reading their questions. Much larger than the
#: high-water mark, because a client that writes and reads in turn must be able to finish writing.
OUTPUT_LIMIT_BYTES = 8_388_608
#: Frames waiting behind a cold call; about four socket reads.
WAITING_LIMIT_BYTES = 1_048_576
#: Whoever hangs up here wanted to know if there is a broker (a health check, a load balancer): nothing is wrong.
_BEFORE_LOGIN = (ConnectionState.HEADER, ConnectionState.STARTING)
#: How long what waits behind cold calls may take, cold calls may run on, and the broker may take, when a connection
#: ends.
CLOSE_TIMEOUT_S = 15.0


class ConnectionOwner(Protocol):
    """The server, as far as its connections know it."""

    @property
    def broker(self) -> BrokerPort: ...

    @property
    def limits(self) -> ConnectionLimits: ...

    @property
    def chance(self) -> random.Random:
        """For generated consumer tags."""

    @property
    def turns(self) -> InputTurns:
        """Shared by all connections."""

    @property
    def numbers(self) -> Iterator[int]:
        """For connections, never one twice."""

    @property
    def logins(self) -> LoginThrottle: ...

    @property
    def refusals(self) -> ThrottledLog:
        """Where it is logged what strangers can cause."""

    @property
    def channel_errors(self) -> ThrottledLog:
        """And what clients can."""

    def connection_opened(self, connection: ConnectionShell) -> bool:
        """False if there is no room for another."""

    def handshake_ended(self, connection: ConnectionShell) -> None:
        """It has entered a vhost."""

    def connection_closed(self, connection: ConnectionShell) -> None: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine; the server holds on to it until it ends."""

    def spawn_call(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Likewise; it is what a client has asked for, and is given up if it takes long while the server stops."""


class ConnectionShell(asyncio.Protocol):
    """Implements `node.amqp.ports.ConnectionControl`."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self.name = "?"
        self.number = next(owner.numbers)
        self.turns, self.channel_errors, self.spawn_call = owner.turns, owner.channel_errors, owner.spawn_call
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._connected_s = self._loop.time()
        self._output: list[bytes] = []
        self._channels: dict[int, ChannelShell] = {}
        #: Ends of channels that the server closed, by number.
        self._detaching: dict[int, asyncio.Task[None]] = {}
        #: Channels that may have confirms to send (a dict for its order).
        self._dirty: dict[ChannelShell, None] = {}
        self._flush_scheduled = False
        self._writing_paused = False
        #: Channels with effects for which this turn had no time: they come before any further input.
        self._undone: dict[ChannelShell, None] = {}
        #: Channels with long work under way (a dict for its order). No end of the connection comes before its end.
        self._working: dict[ChannelShell, None] = {}
        #: The broker's side is to be closed once all is done that was asked for before.
        self._must_close_broker = False
        #: The end has waited for that long enough.
        self._is_late = False
        #: The socket is gone, but not all that it brought has been looked at, or is done: how it went.
        self._hung_up: tuple[Exception | None] | None = None
        #: Publishes that wait for the end of an alarm; nothing behind them is looked at.
        self._held: Publishes | None = None
        self._broker: BrokerConnection | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_lost = False
        self._received_bytes = self._sent_bytes = 0
        self._peer: tuple[str, int] = ("", 0)
        self._local: tuple[str, int] = ("", 0)
        self._transport: asyncio.Transport
        self.machine: ConnectionMachine
        self.reading: Reading

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance: uvloop's transports have the methods, not the ancestry.
        stream = self._transport = cast("asyncio.Transport", transport)
        self._peer = _address(transport.get_extra_info("peername"))
        self._local = _address(transport.get_extra_info("sockname"))
        self.name = f"{self._peer[0]}:{self._peer[1]} -> {self._local[0]}:{self._local[1]}"
        self.machine = ConnectionMachine(
            self._loop.time(), self._output, self._owner.limits, self._owner.broker.server_properties()
        )
        self.reading = Reading(stream, self.machine)
        stream.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        raw_socket = transport.get_extra_info("socket")
        if raw_socket is not None and raw_socket.family in (socket.AF_INET, socket.AF_INET6):
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._owner.connection_opened(self):
            self._owner.refusals.write("too many", f"{self.name} refused: there are too many connections")
            stream.abort()
            return
        log.info("accepted AMQP connection %s", self.name)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        try:
            self.machine.receive(self._loop.time(), data)
            self._process_events()
        except Exception:
            self.internal_error()
        if not self.turns.may_go_on():
            self._await_turn()  # or the loop would read this socket again and again

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.reading.output_is_excessive = False
        self.reading.update()
        try:
            self._report_written(list(self._channels.values()))
        except Exception:
            self.internal_error()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        if self.reading.awaits_turn or self._is_awaited:
            self._hung_up = (exc,)
            self._loop.call_later(CLOSE_TIMEOUT_S, self._end_late)
            return
        self._is_lost = self.reading.is_over = True
        if self.machine.state in _BEFORE_LOGIN:
            log.info("%s left before logging in%s", self.name, f": {exc}" if exc else "")
        elif self.machine.state is not ConnectionState.CLOSED:
            log.warning("%s closed unexpectedly by the client%s", self.name, f": {exc}" if exc else "")
        self._close_broker()
        self._owner.connection_closed(self)

    # --- events of the machine ---

    def _process_events(self) -> None:
        machine, turns = self.machine, self.turns
        while self._may_look_further() and turns.may_go_on():
            event = machine.next_event(self._loop.time())
            if event is None:
                continue
            if isinstance(event, Authenticate):
                self._authenticate(event)
            elif isinstance(event, EnterVhost):
                self._enter(event.vhost)
            elif isinstance(event, CloseBroker):
                self._close_broker()
            elif isinstance(event, Disconnect):
                self._flush()
                self._transport.close()
            elif type(event) is Publishes and self._broker is not None and not self._broker.may_publish():
                self._held = event
            else:
                self._receive_for_channel(event)
        if machine.reader.is_assembling and self._broker is not None:
            self._broker.may_publish()  # an alarm stops the reading of what is not a message yet, too
        self._schedule_flush()
        if self._undone or self._may_look_further():
            self._await_turn()

    def _may_look_further(self) -> bool:
        """There is input left, and nothing before it is."""
        return self._held is None and not self._undone and self.machine.has_input

    # --- turns ---

    def _await_turn(self) -> None:
        """`_go_on` will be called."""
        if not self.reading.awaits_turn and not self._is_lost:
            self.reading.awaits_turn = True
            self.turns.wait(self._go_on)
            self.reading.update()

    def _go_on(self) -> None:
        self.reading.awaits_turn = False
        try:
            undone, self._undone = self._undone, {}
            for channel in undone:
                channel.go_on()
            if not self._undone and self._flush_scheduled:
                # Now, for what comes next may be left undone again before the flush would come.
                self._flush()
            self._process_events()
        except Exception:
            self.internal_error()
        if self.reading.awaits_turn:
            return
        self.reading.update()
        self._end_if_due()

    def work_begun(self, channel: ChannelShell) -> None:
        """The channel has begun something long: the connection does not end before it has."""
        self._working[channel] = None

    def work_done(self, channel: ChannelShell) -> None:
        """What waited for the end of it goes on."""
        self._working.pop(channel, None)
        self._end_if_due()

    def _end_if_due(self) -> None:
        """The connection was to end, and waited until all is done that was asked for before."""
        if self._is_awaited or self.reading.awaits_turn:
            return
        if self._must_close_broker:
            self._close_broker()
        if self._hung_up is not None:
            self.connection_lost(*self._hung_up)

    def _end_late(self) -> None:
        self._is_late = True
        self._end_if_due()

    @property
    def _is_awaited(self) -> bool:
        """Long work is under way; or, unless the server has closed the connection, something that the client has sent
        waits behind a cold call."""
        if self._working or self._is_late or self.machine.is_closed_by_server:
            return bool(self._working)
        return any(channel.machine.waiting for channel in self._channels.values())

    def has_undone(self, channel: ChannelShell) -> None:
        """The channel has effects for which there was no time. It is told to go on in a later turn."""
        self._undone[channel] = None
        self._await_turn()

    def _authenticate(self, event: Authenticate) -> None:
        delay_s = self._owner.logins.delay_s(self._peer[0], self._loop.time())
        if delay_s > 0:
            self._loop.call_later(delay_s, self._authenticate_late, event)
        else:
            self._check_login(event)

    def _authenticate_late(self, event: Authenticate) -> None:
        if self._is_lost or self.machine.state is not ConnectionState.AUTHENTICATING:
            return
        try:
            self._check_login(event)
            self._process_events()
        except Exception:
            self.internal_error()

    def _check_login(self, event: Authenticate) -> None:
        try:
            user = self._owner.broker.authenticate(event.mechanism, event.response, self._peer[0])
        except ConnectionFailure as error:
            why = error.details if isinstance(error, LoginRefused) else str(error)
            text = f"{self.name}: login by {event.mechanism} refused: {why}"
            self._owner.refusals.write(f"login {self._peer[0]} {why}", text)
            self._owner.logins.failed(self._peer[0], self._loop.time())
            self.machine.authentication_failed(self._loop.time())
            return
        self.machine.authenticated(user)

    def _enter(self, vhost: str) -> None:
        machine = self.machine
        assert machine.user is not None, "nobody gets further without a login"
        info = ConnectionInfo(*self._peer, self._local[1], machine.user, vhost, machine.client_properties)
        try:
            self._broker = self._owner.broker.open_connection(info, self)
        except ConnectionFailure as error:
            log.warning("%s: user '%s' cannot enter vhost '%s': %s", self.name, machine.user, vhost, error)
            machine.fail(self._loop.time(), error, commands.Connection.Open.index)
            return
        machine.entered(vhost)
        self._owner.handshake_ended(self)
        log.info("%s: user '%s' entered vhost '%s'", self.name, machine.user, vhost)

    def _receive_for_channel(self, item: FrameItem) -> None:
        channel = self._channels.get(item.channel)
        if channel is None:
            method = item.method if isinstance(item, MethodReceived) else None
            if isinstance(method, commands.Channel.CloseOk):
                return
            if not isinstance(method, commands.Channel.Open):
                self.fail(ConnectionFailure(504, "expected 'channel.open'"), method.index if method else 0)
                return
            channel = self._make_channel(item.channel)
        channel.receive(item)

    def _make_channel(self, number: int) -> ChannelShell:
        limits = ChannelLimits(
            self.machine.frame_max,
            self.machine.limits.max_message_size_bytes,
            self.machine.has_capability("consumer_cancel_notify"),
        )
        machine = ChannelMachine(number, self._output, limits, self._owner.chance)
        channel = self._channels[number] = ChannelShell(self, machine, self._detaching.get(number))
        return channel

    # --- for channel shells ---

    def open_broker_channel(self, number: int, shell: ChannelShell) -> BrokerChannel:
        assert self._broker is not None, "channels open only on a running connection"
        return self._broker.open_channel(number, shell)

    def channel_changed(self, channel: ChannelShell) -> None:
        """The channel may have confirms or frames to send, or more or less waiting."""
        self._schedule_flush()
        if self._must_close_broker or self._hung_up is not None:
            self._loop.call_soon(self._end_if_due)  # not in the midst of what has come
        number = channel.machine.number
        if self._channels.get(number) is not channel:
            return  # closed: what it sent behind its close holds nobody up
        self._dirty[channel] = None
        if channel.machine.waiting_bytes > WAITING_LIMIT_BYTES:
            self.reading.waiting_channels.add(number)
        elif number in self.reading.waiting_channels:
            self.reading.waiting_channels.discard(number)
        else:
            return
        self.reading.update()

    def detach(self, number: int, ending: Coroutine[Any, Any, None]) -> None:
        """The server closes this channel."""
        self.machine.reader.ignore_channel(number)
        task = self._detaching[number] = self._owner.spawn(self._guard(ending))
        task.add_done_callback(lambda done: self._forget_detaching(number, done))

    def _forget_detaching(self, number: int, task: asyncio.Task[None]) -> None:
        if self._detaching.get(number) is task:
            del self._detaching[number]

    async def _guard(self, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except TimeoutError:
            log.warning("%s: the broker did not close it within %.0f s", self.name, CLOSE_TIMEOUT_S)
        except Exception:
            log.exception("%s: closing failed in the broker", self.name)

    def forget_channel(self, number: int) -> None:
        """The number is free."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._dirty.pop(channel, None)
            channel.leave()
            self.reading.waiting_channels.discard(number)
            self.reading.update()

    # --- output ---

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and not self._is_lost:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_at_end_of_turn)

    def _flush_at_end_of_turn(self) -> None:
        self._flush_scheduled = False
        if self._undone:
            return  # no answer goes before what was to be done first; `_go_on` schedules again
        try:
            self._flush()
        except Exception:
            self.internal_error()

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        if self._closing is None and not self.machine.is_closed_by_server:  # `fail` has said what was to be said
            for channel in dirty:
                channel.machine.flush_confirms()
        output = self._output
        if output:
            data = output[0] if len(output) == 1 else b"".join(output)
            output.clear()
            if self._is_lost or self._transport.is_closing():
                return
            self._transport.write(data)
            self._sent_bytes += len(data)
            self.machine.sent(self._loop.time())
            if self._writing_paused and self._transport.get_write_buffer_size() > OUTPUT_LIMIT_BYTES:
                self.reading.output_is_excessive = True
                self.reading.update()
        if not self._writing_paused:
            self._report_written(dirty)

    def _report_written(self, channels: Iterable[ChannelShell]) -> None:
        for channel in channels:
            try:
                channel.report_written()
            except ConnectionFailure as error:
                self.fail(error, 0)

    # --- ConnectionControl ---

    def close(self, reply_code: int, text: str) -> None:
        self.fail(ConnectionFailure(reply_code, text), 0)

    def pause_reading(self) -> None:
        self.reading.broker_pauses += 1
        self.reading.update()

    def resume_reading(self) -> None:
        assert self.reading.broker_pauses > 0, "each resume undoes one pause"
        self.reading.broker_pauses -= 1
        self.reading.update()

    def blocked(self, reason: str) -> None:
        self.machine.blocked(reason)
        self._schedule_flush()

    def unblocked(self) -> None:
        self.machine.unblocked()
        self._schedule_flush()
        if self._held is not None:
            self._loop.call_soon(self._release_held)

    def _release_held(self) -> None:
        """Go on where an alarm has held us up, unless there is a new one or the connection is over."""
        held = self._held
        if held is None or self._is_lost or self._broker is None or not self._broker.may_publish():
            return
        self._held = None
        try:
            self._receive_for_channel(held)
            self._process_events()
        except Exception:
            self.internal_error()

    # --- time and end ---

    def tick(self, now: float) -> None:
        """Heartbeats and timeouts."""
        try:
            before = self.machine.state
            self.machine.tick(now)
            if not (self._output or self.machine.has_input or self.machine.reader.is_assembling):
                return  # as nearly always, and there may be fifty thousand of us
            is_late = self.machine.state is ConnectionState.CLOSED and before is not ConnectionState.CLOSED
            if is_late:
                log.warning("%s closed: no answer in time while %s", self.name, before.value)
            self._process_events()
            if is_late:
                self._transport.abort()  # nothing worth sending is left, and the peer may be gone
        except Exception:
            self.internal_error()

    def fail(self, error: ConnectionFailure, method_index: int) -> None:
        """Close the connection with ``error``, unless somebody has begun to."""
        for channel in self._channels.values():
            channel.machine.flush_confirms()
            channel.machine.is_over = True  # also if it is its client who is closing it
        if self._is_lost or self.machine.is_ending:
            self._end_late()  # nothing that is behind a mistake is waited for
            return
        log.warning("%s closed by an error: %s", self.name, error)
        self._held = None
        self._dirty.clear()
        self.machine.fail(self._loop.time(), error, method_index)
        self.reading.update()
        self._loop.call_soon(self._process_later)

    def _process_later(self) -> None:
        if not self._is_lost:
            self._process_events()
            self._end_if_due()

    def internal_error(self) -> None:
        """A mistake of ours, being handled as an exception: log it and close this connection."""
        log.exception("%s: internal error", self.name)
        self.fail(ConnectionFailure(541, "internal error"), 0)

    def abort(self) -> None:
        """Drop the socket without a word, and what waits."""
        self._transport.abort()
        self._end_late()  # the socket may have been gone already

    def _close_broker(self) -> None:
        if self._is_awaited:
            self._must_close_broker = True
            self._loop.call_later(CLOSE_TIMEOUT_S, self._end_late)
            return
        if self._closing is None:
            tasks = [channel.task for channel in self._channels.values() if channel.task is not None]
            for channel in self._channels.values():
                channel.leave()
            self._closing = self._owner.spawn(self._finish(tasks))

    async def _finish(self, tasks: list[asyncio.Task[None]]) -> None:
        """Let cold calls end, close the broker's side, answer the client."""
        endings = [*tasks, *self._detaching.values()]
        try:
            _, late = await asyncio.wait(endings, timeout=CLOSE_TIMEOUT_S) if endings else ((), ())
            for task in filter(late.__contains__, endings):
                task.cancel()
        finally:  # also if a server that stops waits for no call any more: queues wait for what the channels hold
            if self._broker is not None:
                await self._guard(asyncio.wait_for(self._broker.close(), CLOSE_TIMEOUT_S))
        self.machine.broker_closed()
        if not self._is_lost:
            self._process_events()
        for channels in (self._channels, self._dirty, self._undone):
            channels.clear()  # who knows this connection: both are freed at once, not by the collector an hour later

    def listing(self) -> ConnectionListing:
        machine = self.machine
        state = machine.state.value
        if machine.state is ConnectionState.RUNNING and self._broker is not None:
            state = self._broker.state
        return ConnectionListing(
            number=self.number,
            age_s=self._loop.time() - self._connected_s,
            name=self.name,
            peer_host=self._peer[0],
            peer_port=self._peer[1],
            local_port=self._local[1],
            user=machine.user or "",
            vhost=machine.vhost or "",
            state=state,
            channels=tuple(channel.listing() for channel in self._channels.values()),
            heartbeat_s=machine.heartbeat_s,
            frame_max=machine.frame_max,
            channel_max=machine.channel_max,
            received_bytes=self._received_bytes,
            sent_bytes=self._sent_bytes,
            send_pending_bytes=self._transport.get_write_buffer_size(),
            client_properties=machine.client_properties,
            slow_paths=() if self._broker is None else tuple(self._broker.slow_paths()),
            alarmed_ms=None if self._broker is None else self._broker.alarmed_ms,
        )


def _address(name: object) -> tuple[str, int]:
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return "", 0
