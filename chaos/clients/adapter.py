"""pika over a transport of asyncio.

pika's own adapter reads 4 KiB at a time, writes each frame by itself, and tells nobody when it read something. It also
*answers for us*: what is delivered between basic.cancel and its answer is given back without a word, and would be
missing in the record. Everything that is protocol is pika's: frames, handshake, heartbeats, channels.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable, Sequence
from typing import Any, cast

import pika
import pika.channel
import pika.connection
import pika.exceptions
import pika.frame
import pika.spec

from chaos.clients.signs_of_life import SignsOfLife

#: pika cuts each frame off the front of what it has not read yet, which costs as much as there is.
_PIECE_BYTES = 4096
_COUNT = struct.Struct("i")

#: Delivery, body.
OnDelivery = Callable[[pika.spec.Basic.Deliver, bytes], None]


class DeliveringChannel(pika.channel.Channel):
    """Hands over every delivery, whatever becomes of its consumer."""

    on_delivery: OnDelivery

    def _on_deliver(self, method_frame: Any, header_frame: Any, body: bytes) -> None:
        self.on_delivery(method_frame.method, body)


class StreamConnection(pika.connection.Connection):
    """pika's connection, whose bytes come from and go to the running loop. `connect` it."""

    def __init__(self, parameters: pika.connection.Parameters, clock_us: Callable[[], int], **callbacks: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock_us = clock_us
        self._transport: asyncio.Transport | None = None
        self.signs = SignsOfLife(clock_us())
        #: When what is handled now was read.
        self.read_us = clock_us()
        super().__init__(parameters, internal_connection_workflow=False, **callbacks)

    async def connect(self) -> None:
        """Raises `OSError`. That the handshake is over is told to the callbacks."""
        tls = self.params.ssl_options
        await self._loop.create_connection(
            lambda: _Stream(self),
            self.params.host,
            self.params.port,
            ssl=tls.context if tls else None,
            server_hostname=(tls.server_hostname or self.params.host) if tls else None,
        )

    def look(self) -> None:
        """See whether something lies unread. To be called now and then."""
        if self._transport is not None and not self._transport.is_closing() and not self._unread_bytes():
            self.signs.found_empty(self._clock_us())

    def _unread_bytes(self) -> int:
        assert self._transport is not None, "what is read comes from somewhere"
        socket = self._transport.get_extra_info("socket")
        return int(_COUNT.unpack(fcntl.ioctl(socket.fileno(), termios.FIONREAD, bytes(_COUNT.size)))[0])

    def abort(self, reason: str) -> None:
        """Be done with it at once, unless it is over already."""
        if self._transport is not None:
            self._error = self._error or pika.exceptions.StreamLostError(reason)
            self._transport.abort()

    # --- what the stream says

    def stream_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._on_stream_connected()

    def stream_read(self, data: bytes) -> None:
        self.read_us = self._clock_us()
        self.signs.read(not self._unread_bytes(), self.read_us)
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                if self._transport is None or self._transport.is_closing():
                    return
                self._on_data_available(data[start : start + _PIECE_BYTES])
        except (pika.exceptions.ProtocolSyntaxError, pika.exceptions.BodyTooLongError) as error:
            # What came was no AMQP. Anything else is a mistake of ours.
            self._terminate_stream(error)

    def stream_lost(self, error: Exception | None) -> None:
        self._transport = None
        if error is None and self._error is None:
            error = pika.exceptions.StreamLostError("the broker closed the connection without a word")
        elif error is not None and self._error is None:
            error = pika.exceptions.StreamLostError(f"{type(error).__name__}: {error}")
        else:
            error = None
        self._on_stream_terminated(error)

    # --- what pika asks of an adapter

    def _adapter_connect_stream(self) -> None:
        raise NotImplementedError("see `connect`")

    def _adapter_disconnect_stream(self) -> None:
        # Nothing that matters is unwritten: pika comes here behind the answer to its close, or in despair.
        assert self._transport is None or self._error is not None, "pika has a reason for it"
        self.abort("")

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _output_marshaled_frames(self, marshaled_frames: Sequence[bytes]) -> None:
        data = b"".join(marshaled_frames)
        self.bytes_sent += len(data)
        self.frames_sent += len(marshaled_frames)
        self._adapter_emit_data(data)

    def _adapter_call_later(self, delay: float, callback: Callable[[], None]) -> object:
        return self._loop.call_later(delay, callback)

    def _adapter_remove_timeout(self, timeout_id: Any) -> None:
        timeout_id.cancel()

    def _adapter_add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _create_channel(self, channel_number: int, on_open_callback: Any) -> DeliveringChannel:
        return DeliveringChannel(self, channel_number, on_open_callback)


class _Stream(asyncio.Protocol):
    def __init__(self, connection: StreamConnection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's have all that it takes, and another ancestor.
        self._connection.stream_made(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._connection.stream_read(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.stream_lost(error)
