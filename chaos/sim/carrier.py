"""The carrier of the mesh over the simulated network: what `cluster.transport.carrier` promises, and nothing more.

A connection is one of the network's; its streams share it, as HTTP/2 streams do, so they break together, each with a
suffix of its own lost. Frames cross as length, type, stream and bytes. Each stream has a window of its own, which the
reader opens again when he has read a quarter of it, so one that is not read holds up no other, and one that is read
costs no answer for each frame. A ping after a third of the silence timeout
finds a peer that says nothing: it is answered by the peer's process, so a paused one does not answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable

from chaos.sim.loop import Process
from chaos.sim.network import Address, End, Network
from cluster.transport.carrier import (
    LARGEST_FRAME_BYTES,
    Acceptor,
    AdminEndpoint,
    ProbeResult,
    StreamBroken,
    StreamKind,
)

#: Of a stream, written and not read yet, before its writer waits.
WINDOW_BYTES = 256 * 1024
#: The reader tells of so much at once.
WINDOW_STEP_BYTES = WINDOW_BYTES // 4
#: No timer is set for less.
SOON_S = 0.000_001
_SIZE = struct.Struct(">I")
_FRAME = struct.Struct(">IBB")
_OPEN, _DATA, _READ, _END, _CANCEL, _PING, _PONG = range(7)
_KINDS = list(StreamKind)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def address_of(text: str) -> Address:
    """``host:port`` as the network knows it."""
    host, _, port = text.rpartition(":")
    return host, int(port)


class _Stream:
    """One end of a stream. Satisfies the three protocols of the seam."""

    def __init__(self, wire: _Wire, kind: StreamKind) -> None:
        self._wire = wire
        self._kind = kind
        self.frames: deque[bytes] = deque()
        #: The other side has ended it.
        self.has_ended = False
        #: Why it carries nothing any more.
        self.broken = ""
        self.server: asyncio.Task[None] | None = None
        #: Written here and not read there.
        self._unread_bytes = 0
        #: Read here, and not told there.
        self._untold_bytes = 0
        #: What the one task that reads waits for, and the one that writes.
        self._reader: asyncio.Future[None] | None = None
        self._may_write = asyncio.Event()

    @property
    def caller(self) -> str:
        return self._wire.peer

    async def write(self, frame: bytes) -> None:
        if len(frame) > LARGEST_FRAME_BYTES:
            self.cancel()
            raise StreamBroken(f"a frame of {len(frame)} bytes is larger than {LARGEST_FRAME_BYTES}")
        while not self.broken and not self.has_ended and self._unread_bytes >= WINDOW_BYTES:
            self._may_write.clear()
            await self._may_write.wait()
        if self.broken or (self.has_ended and self.server is None):
            raise StreamBroken(self.broken or "the other side has ended the stream")
        self._unread_bytes += len(frame)
        self._wire.send(_DATA, self._kind, frame)

    async def read(self) -> bytes | None:
        while not self.frames:
            if self.has_ended or (self.broken and self.server is not None):
                return None
            if self.broken:
                raise StreamBroken(self.broken)
            self._reader = self._wire.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self.frames.popleft()
        self._untold_bytes += len(frame)
        if self._untold_bytes >= WINDOW_STEP_BYTES and not self.broken:
            self._wire.send(_READ, self._kind, _SIZE.pack(self._untold_bytes))
            self._untold_bytes = 0
        return frame

    def cancel(self) -> None:
        if not self.broken and not self.has_ended:
            self._wire.send(_CANCEL, self._kind)
            self.break_off("cancelled")

    def received(self, frame: bytes) -> None:
        self.frames.append(frame)
        self._wake_reader()

    def was_read(self, size: int) -> None:
        """There: the window opens."""
        self._unread_bytes -= size
        self._may_write.set()

    def ended(self) -> None:
        self.has_ended = True
        self._look_again()

    def break_off(self, reason: str, *, reads_on: bool = False) -> None:
        """Nothing more comes; at an acceptor's end the coroutine that serves it is cancelled, at once or (``reads_on``)
        when it has had the time to read the end."""
        if not self.broken:
            self.broken = reason
            self._look_again()
            if self.server is not None and reads_on:
                self._wire.loop.call_soon(self.server.cancel)
            elif self.server is not None:
                self.server.cancel()

    def _look_again(self) -> None:
        self._wake_reader()
        self._may_write.set()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Wire:
    """One side of a connection: frames of all its streams, pings. Satisfies `chaos.sim.network.Receiver`."""

    def __init__(self, process: Process, peer: str, silence_timeout_ms: int, acceptor: Acceptor | None = None) -> None:
        self.peer = peer
        self._process = process
        self._acceptor = acceptor
        self._end: End | None = None
        self._unsent: list[bytes] = []
        self._streams: dict[StreamKind, _Stream] = {}
        self._buffer = b""
        self.closed = ""
        self._silence_s = silence_timeout_ms / 1000
        self.loop = asyncio.get_running_loop()
        self._heard_s = self.loop.time()
        self._timer = self.loop.call_later(self._silence_s / 3, self._look)

    def attach(self, end: End) -> None:
        """The connection is there: what was written meanwhile goes out."""
        self._end = end
        for data in self._unsent:
            end.send(data)
        self._unsent.clear()

    def open_stream(self, kind: StreamKind) -> _Stream:
        stream = self._streams[kind] = _Stream(self, kind)
        if self.closed:
            stream.break_off(self.closed)
        else:
            self.send(_OPEN, kind)
        return stream

    def send(self, what: int, kind: StreamKind = StreamKind.CONSENSUS, frame: bytes = b"") -> None:
        data = _FRAME.pack(len(frame), what, _NUMBERS[kind]) + frame
        if self._end is None:
            self._unsent.append(data)
        else:
            self._end.send(data)

    def close(self, reason: str) -> None:
        """From here: the other side learns of it behind what was sent."""
        if not self.closed:
            self._lose(reason)
            if self._end is not None:
                self._end.close()

    def _look(self) -> None:
        if self.closed:
            return
        quiet_s = self.loop.time() - self._heard_s
        rest_s = self._silence_s - quiet_s
        if rest_s < SOON_S:
            self._lose("keepalive watchdog timeout")
            if self._end is not None:
                self._end.abort()
            return
        until_ping_s = self._silence_s / 3 - quiet_s
        if until_ping_s < SOON_S:
            self.send(_PING)
            until_ping_s = self._silence_s / 6
        self._timer = self.loop.call_later(min(until_ping_s, rest_s), self._look)

    # --- what the network does ---

    def chunk_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        buffer = self._buffer + data if self._buffer else data
        at, end = 0, len(buffer)
        while end - at >= _FRAME.size:
            size, what, number = _FRAME.unpack_from(buffer, at)
            if end - at - _FRAME.size < size:
                break
            at += _FRAME.size + size
            self._received(what, _KINDS[number], buffer[at - size : at])
        self._buffer = buffer[at:]

    def _received(self, what: int, kind: StreamKind, frame: bytes) -> None:
        stream = self._streams.get(kind)
        if what == _PING:
            self.send(_PONG)
        elif what == _OPEN and self._acceptor is not None:
            stream = self._streams[kind] = _Stream(self, kind)
            stream.server = self.loop.create_task(self._serve(self._acceptor, kind, stream))
        elif stream is None or stream.broken:
            return
        elif what == _DATA:
            stream.received(frame)
        elif what == _READ:
            stream.was_read(*_SIZE.unpack(frame))
        elif what == _END:
            stream.ended()
        elif what == _CANCEL:
            stream.break_off("cancelled by the other side", reads_on=True)

    async def _serve(self, acceptor: Acceptor, kind: StreamKind, stream: _Stream) -> None:
        try:
            await acceptor(kind, stream)
        finally:
            if not stream.broken:
                self.send(_END, kind)

    def room_again(self) -> None:
        """Windows are the streams' own."""

    def connection_closed(self, error: OSError | None) -> None:
        self._lose(str(error or "the other side has hung up"))

    def _lose(self, reason: str) -> None:
        if not self.closed:
            self.closed = reason
            self._timer.cancel()
            for stream in self._streams.values():
                stream.break_off(reason)


class _Connection:
    """What was dialed. Implements `cluster.transport.carrier.Connection`."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def open_stream(self, kind: StreamKind) -> _Stream:
        return self._wire.open_stream(kind)

    async def close(self) -> None:
        self._wire.close("closed here")


class SimulatedCarrier:
    """Implements `cluster.transport.carrier.Carrier` for one node's process."""

    def __init__(
        self, network: Network, process: Process, host: str, on_admin: Callable[[AdminEndpoint], None]
    ) -> None:
        """``on_admin`` is told the admin service that the node offers."""
        self._network = network
        self._process = process
        self._host = host
        self._on_admin = on_admin
        self._address: Address | None = None
        self._accepted: list[_Wire] = []

    async def serve(
        self, address: str, acceptor: Acceptor, *, silence_timeout_ms: int, admin: AdminEndpoint | None = None
    ) -> int:
        def accept(end: End) -> _Wire:
            wire = _Wire(self._process, end.other.host, silence_timeout_ms, acceptor)
            wire.attach(end)
            self._accepted = [other for other in self._accepted if not other.closed]
            self._accepted.append(wire)
            return wire

        self._address = address_of(address)
        self._network.listen(self._process, self._address, accept)
        if admin is not None:
            self._on_admin(admin)
        return self._address[1]

    async def stop(self) -> None:
        if self._address is not None:
            self._network.stop_listening(self._address)
        for wire in self._accepted:
            wire.close("the node stops")

    def connect(self, address: str, *, silence_timeout_ms: int) -> _Connection:
        wire = _Wire(self._process, address, silence_timeout_ms)

        def connected(end: End) -> _Wire | None:
            if wire.closed:
                return None
            wire.attach(end)
            return wire

        self._network.connect(self._process, self._host, address_of(address), connected, wire.connection_closed)
        return _Connection(wire)

    async def probe(self, address: str, timeout_s: float) -> ProbeResult:
        answer: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()

        def tell(result: ProbeResult) -> None:
            if not answer.done():
                answer.set_result(result)

        self._network.connect(
            self._process,
            self._host,
            address_of(address),
            lambda _end: tell(ProbeResult.ACCEPTED),
            lambda _error: tell(ProbeResult.REFUSED),
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return ProbeResult.SILENT
