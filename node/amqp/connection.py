"""One connection, as a pure machine: handshake, tuning, heartbeats, closing.

::

    HEADER --AMQP 0 0 9 1--> STARTING --start-ok--> AUTHENTICATING --user--> TUNING --tune-ok--> OPENING
       --open--> ENTERING --vhost entered--> RUNNING --close--> CLOSING_BY_CLIENT --broker closed--> CLOSED
    RUNNING (TUNING, OPENING, ENTERING) --error--> CLOSING_BY_SERVER --close-ok, or time--> CLOSED
    HEADER, STARTING, AUTHENTICATING --error--> SILENT --3 s--> CLOSED

SILENT: whoever has not logged in learns nothing and waits, as in the reference; only a client that announced
``authentication_failure_close`` is told why its login failed.

The shell calls `receive` with what it read and then takes events with `next_event` while it `has_input`; an event
must be dealt with (`authenticated`, `entered`, ...) before the next is taken. Items of channels are events too.
Frames are appended to ``output``. Time is an argument everywhere, in seconds, monotonic.

Heartbeats: with an interval T, one is sent after T/2 without other traffic, and the peer is dead after 2T of
silence. While the server itself does not read (back-pressure), silence proves nothing and the count is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pamqp import base, commands

from node.amqp.codec import MAX_MESSAGE_SIZE_BYTES, READ_LIMIT, FrameReader
from node.amqp.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, Fault, FrameItem, MethodReceived
from node.amqp.methods import pack_method
from node.errors import ConnectionFailure

#: The specification's lower limit for frames (section 4.2.3 needs it for the handshake).
FRAME_MIN_BYTES = 4096
DEFAULT_FRAME_MAX_BYTES = 131_072
DEFAULT_CHANNEL_MAX = 2047
DEFAULT_HEARTBEAT_S = 60
HANDSHAKE_TIMEOUT_S = 10.0
#: How long a failed login waits for its end: slows down guessing.
SILENT_CLOSE_DELAY_S = 3.0
#: How long a client may take to answer ``connection.close``.
CLOSING_TIMEOUT_S = 10.0

MECHANISMS = ("PLAIN", "AMQPLAIN")
#: 0-9-1 and the two spellings of 0-9 that clients of that time sent.
_ACCEPTED_HEADERS = frozenset((PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x09\x01"))

SERVER_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
}


class ConnectionState(Enum):
    HEADER = "header"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    OPENING = "opening"
    ENTERING = "entering"
    RUNNING = "running"
    CLOSING_BY_CLIENT = "closing by client"
    CLOSING_BY_SERVER = "closing by server"
    SILENT = "silent"
    CLOSED = "closed"


_State = ConnectionState
_HANDSHAKE = frozenset(
    (_State.HEADER, _State.STARTING, _State.AUTHENTICATING, _State.TUNING, _State.OPENING, _State.ENTERING)
)
_NOT_LOGGED_IN = frozenset((_State.HEADER, _State.STARTING, _State.AUTHENTICATING))
_ENDING = frozenset((_State.CLOSING_BY_CLIENT, _State.CLOSING_BY_SERVER, _State.SILENT, _State.CLOSED))
#: What comes is not even read.
_DEAF = frozenset((_State.SILENT, _State.CLOSED))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What the server proposes and allows. 0 for ``frame_max`` or ``channel_max``: no limit."""

    frame_max: int = DEFAULT_FRAME_MAX_BYTES
    channel_max: int = DEFAULT_CHANNEL_MAX
    heartbeat_s: int = DEFAULT_HEARTBEAT_S
    max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Check the login, then call `ConnectionMachine.authenticated` or ``authentication_failed``."""

    mechanism: str
    response: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EnterVhost:
    """Enter the vhost, then call `ConnectionMachine.entered` or ``fail``."""

    vhost: str


@dataclass(frozen=True, slots=True)
class CloseBroker:
    """The connection is over for the broker: close channels and session, then call ``broker_closed``."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Write what is in the output, then close the socket."""


ConnectionEvent = Authenticate | EnterVhost | CloseBroker | Disconnect | FrameItem

#: Largest frame taken when neither side sets a limit: the format's own.
_FRAME_UNLIMITED_BYTES = 2**32 - 1


class ConnectionMachine:
    """See the module's essay."""

    def __init__(
        self, now: float, output: list[bytes], limits: ConnectionLimits, server_properties: Mapping[str, Any]
    ) -> None:
        self.state = _State.HEADER
        self.limits = limits
        #: ``None`` until it has logged in, and until it has entered one.
        self.user: str | None = None
        self.vhost: str | None = None
        self.client_properties: Mapping[str, Any] = {}
        #: Negotiated; before that the server's proposal.
        self.frame_max = limits.frame_max or _FRAME_UNLIMITED_BYTES
        self.channel_max = limits.channel_max or 65_535
        #: 0: no heartbeats.
        self.heartbeat_s = 0
        #: Set by the shell while it does not read the socket.
        self.is_reading_paused = False
        #: The server has closed the connection, for a reason. Stays when the client has answered.
        self.is_closed_by_server = False
        # A stranger may make us keep one small frame, and no message. Until the connection is open frames are looked at
        # one by one, because each may change what the next one may be.
        self.reader = FrameReader(FRAME_MIN_BYTES, FRAME_MIN_BYTES, opened=set())
        self.reader.read_limit = 1
        self._output = output
        self._server_properties = {**server_properties, "capabilities": SERVER_CAPABILITIES}
        self._header = b""
        self._events: deque[ConnectionEvent] = deque()
        self._mechanism = ""
        self._started_at = now
        self._received_at = now
        self._sent_at = now
        #: When SILENT and CLOSING_BY_SERVER end by themselves.
        self._deadline = float("inf")

    # --- input ---

    def receive(self, now: float, data: bytes) -> None:
        """Bytes from the socket."""
        self._received_at = now
        if self.state is _State.HEADER:
            self._header += data
            if len(self._header) < len(PROTOCOL_HEADER):
                return
            header, data = self._header[:8], self._header[8:]
            self._header = b""
            if header not in _ACCEPTED_HEADERS:
                self._output.append(PROTOCOL_HEADER)
                self._disconnect()
                return
            self.state = _State.STARTING
            mechanisms = " ".join(MECHANISMS)
            self._send(commands.Connection.Start, 0, 9, self._server_properties, mechanisms, "en_US")
        if self.state not in _DEAF:
            self._events.extend(self.reader.feed(data))

    @property
    def is_ending(self) -> bool:
        """Somebody has closed the connection: nothing but the answer to that is of interest."""
        return self.state in _ENDING

    @property
    def has_input(self) -> bool:
        """`next_event` has something to look at."""
        return bool(self._events) or (self.reader.has_more and self.state not in _DEAF)

    def next_event(self, now: float) -> ConnectionEvent | None:
        """What the shell must do next; ``None`` if nothing has come of what was looked at: see `has_input`."""
        events = self._events
        if not events and self.has_input:
            events.extend(self.reader.feed(b""))
        while events:
            event = events.popleft()
            if isinstance(event, Authenticate | EnterVhost | CloseBroker | Disconnect):
                return event
            if self._is_for_channel(now, event):
                return event
        return None

    def _is_for_channel(self, now: float, item: FrameItem) -> bool:
        """Handle an item of the connection itself; true if the item is a channel's."""
        state = self.state
        if state in _ENDING:
            if isinstance(item, MethodReceived) and item.channel == 0:
                self._receive_while_ending(item.method)
            return False
        if isinstance(item, Fault):
            self.fail(now, item.error, item.method_index)
        elif item.channel == 0:
            assert isinstance(item, MethodReceived), "the reader lets only methods through on channel 0"
            try:
                self._handle(now, item.method)
            except ConnectionFailure as error:
                self.fail(now, error, item.method.index)
        elif state is not _State.RUNNING:
            self.fail(now, ConnectionFailure(504, "channels can be used when the connection is open"), 0)
        elif item.channel > self.channel_max:
            text = f"channel {item.channel} is above the negotiated channel_max ({self.channel_max})"
            self.fail(now, ConnectionFailure(530, text), 0)
        else:
            return True
        return False

    def _receive_while_ending(self, method: base.Frame) -> None:
        if self.state is not _State.CLOSING_BY_SERVER:
            return
        if isinstance(method, commands.Connection.Close):
            self._send(commands.Connection.CloseOk)
            self._disconnect()
        elif isinstance(method, commands.Connection.CloseOk):
            self._disconnect()

    def _handle(self, now: float, method: base.Frame) -> None:
        state = self.state
        match method:
            case commands.Connection.StartOk() if state is _State.STARTING:
                self._start(method)
            case commands.Connection.TuneOk() if state is _State.TUNING:
                self._tune(now, method)
            case commands.Connection.Open() if state is _State.OPENING:
                self.state = _State.ENTERING
                self._events.appendleft(EnterVhost(method.virtual_host))
            case commands.Connection.UpdateSecret() if state is _State.RUNNING:
                # Passwords do not expire, so there is nothing to renew; the reference answers the same.
                self._send(commands.Connection.UpdateSecretOk)
            case commands.Connection.Close():
                self._client_closes(method)
            case _:
                raise ConnectionFailure(503, f"unexpected method {method.name} while {state.value}")

    def _start(self, method: commands.Connection.StartOk) -> None:
        self.client_properties = method.client_properties
        if method.mechanism not in MECHANISMS:
            raise ConnectionFailure(503, f"unknown authentication mechanism '{method.mechanism}'")
        self.state = _State.AUTHENTICATING
        self._mechanism = method.mechanism
        response: Any = method.response
        self._events.appendleft(Authenticate(method.mechanism, response))

    def has_capability(self, name: str) -> bool:
        """True if the client announced it in ``start-ok``."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def authenticated(self, user: str) -> None:
        """The login was accepted."""
        assert self.state is _State.AUTHENTICATING, f"nobody asked in state {self.state.value}"
        self.user = user
        self.state = _State.TUNING
        limits = self.limits
        self._send(commands.Connection.Tune, limits.channel_max, limits.frame_max, limits.heartbeat_s)

    def authentication_failed(self, now: float) -> None:
        """The login was refused. Whether the client learns it depends on what it announced."""
        if not self.has_capability("authentication_failure_close"):
            self._go_silent(now)
            return
        text = (
            f"Login was refused using authentication mechanism {self._mechanism}. For details see the broker logfile."
        )
        self._close(now, ConnectionFailure(403, text), commands.Connection.StartOk.index)

    def _tune(self, now: float, method: commands.Connection.TuneOk) -> None:
        _check_negotiated("frame_max", method.frame_max, self.limits.frame_max, FRAME_MIN_BYTES)
        _check_negotiated("channel_max", method.channel_max, self.limits.channel_max, 1)
        self.frame_max = method.frame_max or _FRAME_UNLIMITED_BYTES
        self.channel_max = method.channel_max or 65_535
        self.heartbeat_s = method.heartbeat
        self.reader.frame_max = self.frame_max
        self.reader.channel_max = self.channel_max
        self._sent_at = now
        self.state = _State.OPENING

    def entered(self, vhost: str) -> None:
        """The vhost is open to this connection."""
        assert self.state is _State.ENTERING, f"nobody asked in state {self.state.value}"
        self.vhost = vhost
        self.state = _State.RUNNING
        self.reader.max_message_size_bytes = self.limits.max_message_size_bytes
        self.reader.read_limit = READ_LIMIT
        self._send(commands.Connection.OpenOk, "")

    # --- alarms ---

    def blocked(self, reason: str) -> None:
        """Tell the client that its publishes will not be read."""
        if self.state is _State.RUNNING and self.has_capability("connection.blocked"):
            self._send(commands.Connection.Blocked, reason)

    def unblocked(self) -> None:
        """Tell the client that its publishes are read again."""
        if self.state is _State.RUNNING and self.has_capability("connection.blocked"):
            self._send(commands.Connection.Unblocked)

    # --- time ---

    def tick(self, now: float) -> None:
        """Timeouts and heartbeats; to be called at least twice in the shortest heartbeat interval allowed (1 s)."""
        is_late = self.state in _HANDSHAKE and now - self._started_at > self.limits.handshake_timeout_s
        if is_late or now >= self._deadline:
            self._disconnect()
        elif self.heartbeat_s and self.state not in _ENDING:
            if self.is_reading_paused:
                self._received_at = now
            elif now - self._received_at > 2 * self.heartbeat_s:
                self._disconnect()  # without a word: nobody is there to hear it
                return
            if now - self._sent_at >= self.heartbeat_s / 2:
                self._output.append(HEARTBEAT_FRAME)
                self._sent_at = now

    def sent(self, now: float) -> None:
        """The shell wrote the output."""
        self._sent_at = now

    # --- the end ---

    def fail(self, now: float, error: ConnectionFailure, method_index: int) -> None:
        """Close the connection with ``error``; ``method_index`` is the method to blame, 0 if none."""
        if self.state in _ENDING:
            return
        if self.state in _NOT_LOGGED_IN:
            self._go_silent(now)
        else:
            self._close(now, error, method_index)

    def _close(self, now: float, error: ConnectionFailure, index: int) -> None:
        self.state = _State.CLOSING_BY_SERVER
        self.is_closed_by_server = True
        self.reader.ignore_contents()
        self._deadline = now + CLOSING_TIMEOUT_S
        self._events.append(CloseBroker())
        arguments = (error.reply_code, error.reply_text, index >> 16, index & 0xFFFF)
        self._send(commands.Connection.Close, *arguments)

    def _go_silent(self, now: float) -> None:
        self.state = _State.SILENT
        self._deadline = now + SILENT_CLOSE_DELAY_S

    def _client_closes(self, _method: commands.Connection.Close) -> None:
        self.state = _State.CLOSING_BY_CLIENT
        self.reader.ignore_contents()
        self._events.append(CloseBroker())

    def broker_closed(self) -> None:
        """The broker is done with the connection; a client that asked for the end gets its answer now."""
        if self.state is _State.CLOSING_BY_CLIENT:
            self._send(commands.Connection.CloseOk)
            self._disconnect()

    def _disconnect(self) -> None:
        self.state = _State.CLOSED
        self._deadline = float("inf")
        self._events.append(Disconnect())

    def _send(self, method_class: type[base.Frame], *arguments: Any) -> None:
        self._output.append(pack_method(0, method_class, *arguments))

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        self.reader.check_invariants()
        assert (self.state is _State.HEADER) or not self._header, "the header is needed once"
        assert self.user is not None or self.state in _NOT_LOGGED_IN | _ENDING, "nobody gets further without a login"
        assert self.vhost is not None or self.state is not _State.RUNNING, "a running connection is in a vhost"
        assert self.is_closed_by_server or self.state is not _State.CLOSING_BY_SERVER, "who closes it has closed it"
        timed = self._deadline != float("inf")
        assert timed == (self.state in (_State.SILENT, _State.CLOSING_BY_SERVER)), "these two states end by time"


def _check_negotiated(name: str, value: int, limit: int, minimum: int) -> None:
    """Raise `ConnectionFailure` 530 unless the client's choice is within the server's proposal."""
    shown = f"{value} (no limit)" if value == 0 else str(value)
    start = f"failed to negotiate connection parameters: negotiated {name} = {shown} is"
    if limit and (value == 0 or value > limit):
        raise ConnectionFailure(530, f"{start} higher than the maximum allowed value ({limit})")
    if value and value < minimum:
        raise ConnectionFailure(530, f"{start} lower than the minimum allowed value ({minimum})")
