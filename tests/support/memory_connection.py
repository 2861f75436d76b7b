"""Connections of the network in memory: the two ends, their streams, and what one says to the other.

See `tests.support.memory_carrier` for the model.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Protocol

from cluster.transport.carrier import LARGEST_FRAME_BYTES, Acceptor, AdminEndpoint, StreamBroken, StreamKind
from tests.support.memory_path import Path, Pipe

#: What a frame counts for beyond its bytes, so that empty frames are bounded too (gRPC's prefix).
FRAME_HEADER_BYTES = 5
#: After a break, what serves a stream may still read for so long before it is cancelled.
LATE_CANCEL_S = 0.001


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens at an address."""

    #: Where the process keeps its connections.
    ends: dict[End, None]
    acceptor: Acceptor
    silence_timeout_s: float
    admin: AdminEndpoint | None


class Surroundings(Protocol):
    """What a connection must know of the network."""

    @property
    def chance(self) -> Random: ...

    @property
    def window_bytes(self) -> int: ...

    @property
    def listeners(self) -> dict[str, Listener]: ...

    def path(self, source: str, target: str) -> Path: ...

    def has_power(self, host: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Knock:
    """The first word of a connection."""


@dataclass(frozen=True, slots=True)
class _Open:
    kind: StreamKind


@dataclass(frozen=True, slots=True)
class _Frame:
    kind: StreamKind
    frame: bytes


@dataclass(frozen=True, slots=True)
class _Credit:
    """The reader has taken so many bytes."""

    kind: StreamKind
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    """The other side is done with the stream; ``broken`` says why, and is empty if it was just done."""

    kind: StreamKind
    broken: str = ""


@dataclass(frozen=True, slots=True)
class _HangUp:
    """The connection is gone."""

    reason: str


Item = Knock | _Open | _Frame | _Credit | _StreamEnd | _HangUp


class End:
    """One side of a connection to ``address``; the dialer's is what `MemoryCarrier.connect` returns."""

    def __init__(self, network: Surroundings, host: str, peer_host: str, address: str, *, is_dialer: bool) -> None:
        self.host = host
        self.peer_host = peer_host
        self.is_dialer = is_dialer
        #: Set before anything is sent.
        self.other: End
        #: It believes in the connection: from the knock until the break.
        self.is_established = False
        self._network = network
        self._address = address
        #: Where its process keeps its connections, see `establish`.
        self._ends: dict[End, None] = {}
        self._acceptor: Acceptor | None = None
        self._silence_timeout_s = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._streams: dict[StreamKind, _Stream] = {}
        self._path_out = network.path(host, peer_host)
        self._path_in = network.path(peer_host, host)
        self._pipe = Pipe[Item](self._path_out, self._arrived)

    # --- life ---

    def establish(self, ends: dict[End, None], silence_timeout_s: float) -> None:
        """Begin to believe in the connection; ``ends`` is where its process keeps those that it believes in."""
        self.is_established = True
        self._ends = ends
        self._silence_timeout_s = silence_timeout_s
        ends[self] = None
        self._path_in.add(self)
        self._path_out.add(self)
        self._listen_for_silence()
        self.other.path_changed()

    def break_(self, reason: str, *, is_own: bool = False, says_so: bool = True) -> None:
        """It no longer believes in the connection. ``is_own``: because its process wants so, or ends."""
        if not self.is_established:
            return
        self.is_established = False
        del self._ends[self]
        self._path_in.discard(self)
        self._path_out.discard(self)
        if self._silence is not None:
            self._silence.cancel()
        for stream in list(self._streams.values()):
            stream.break_(reason, is_own=is_own)
        if says_so:
            self._say_gone(reason)
        self.other.path_changed()

    def reset(self) -> None:
        """Break both ends; what was on its way arrives in part, what was not read yet is read in part."""
        for end in (self, self.other):
            end._pipe.lose_suffix(self._network.chance)
        for end in (self, self.other):
            end.break_("connection reset", says_so=False)

    def path_changed(self) -> None:
        """Something is cut, healed, there or gone."""
        self._pipe.wake()
        if self.is_established:
            self._listen_for_silence()

    def _listen_for_silence(self) -> None:
        if self.other.is_established and not self._path_in.is_cut:
            if self._silence is not None:
                self._silence.cancel()
                self._silence = None
        elif self._silence is None:
            patience_s = self._silence_timeout_s * self._network.chance.uniform(2 / 3, 1)
            self._silence = asyncio.get_running_loop().call_later(patience_s, self.break_, "nothing was heard for long")

    def _say_gone(self, reason: str) -> None:
        if not self._path_out.is_cut:
            self._pipe.send(_HangUp(reason))

    # --- what travels ---

    def send(self, item: Item) -> None:
        if self.is_established:
            self._pipe.send(item)

    def _arrived(self, item: Item) -> None:
        self.other.receive(item)

    def receive(self, item: Item) -> None:
        if isinstance(item, _HangUp):
            self.break_(item.reason, says_so=False)
        elif isinstance(item, Knock):
            self._be_knocked()
        elif not self.is_established:
            if self._network.has_power(self.host) and self.other.is_established:
                self._say_gone("connection reset by peer")
        elif isinstance(item, _Open):
            self._accept(item.kind)
        elif (stream := self._streams.get(item.kind)) is not None:
            stream.receive(item)

    def _be_knocked(self) -> None:
        listener = self._network.listeners.get(self._address)
        if listener is not None and not self._path_in.is_refusing:
            self._acceptor = listener.acceptor
            self.establish(listener.ends, listener.silence_timeout_s)
        elif self._network.has_power(self.host):
            self._say_gone("connection refused")

    def _accept(self, kind: StreamKind) -> None:
        assert self._acceptor is not None, "only an end that listens is opened a stream"
        stream = self._streams[kind] = _Stream(self, kind, self._network)
        stream.serve(self._acceptor)

    def forget(self, stream: _Stream) -> None:
        self._streams.pop(stream.kind, None)

    # --- the dialer's side: `cluster.transport.carrier.Connection` ---

    def open_stream(self, kind: StreamKind) -> _Stream:
        assert kind not in self._streams, "one stream of each kind"
        stream = self._streams[kind] = _Stream(self, kind, self._network)
        self.send(_Open(kind))
        if not self.is_established:
            stream.break_("the connection is closed", is_own=True)
        return stream

    async def close(self) -> None:
        self.break_("the connection was closed", is_own=True)


class _Stream:
    """One end of a stream, outgoing or incoming."""

    def __init__(self, end: End, kind: StreamKind, network: Surroundings) -> None:
        self.kind = kind
        self._end = end
        self._chance = network.chance
        #: Bytes that may still be written, and the least that is granted anew at once: half of the whole window.
        self._window_bytes = network.window_bytes
        self._grant_bytes = max(1, network.window_bytes // 2)
        self._taken_bytes = 0
        self._inbox: deque[bytes] = deque()
        self._is_over = False
        #: Why, if it did not just end.
        self._broken = ""
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def caller(self) -> str:
        return f"memory:{self._end.peer_host}"

    # --- `cluster.transport.carrier.Stream` ---

    async def write(self, frame: bytes) -> None:
        if len(frame) > LARGEST_FRAME_BYTES:
            self._end_with(f"a frame of {len(frame)} bytes is larger than {LARGEST_FRAME_BYTES}")
        while self._window_bytes <= 0 and not self._is_over:
            self._writable.clear()
            await self._writable.wait()
        if self._is_over:
            raise StreamBroken(self._broken or "the stream has ended")
        self._window_bytes -= len(frame) + FRAME_HEADER_BYTES
        self._end.send(_Frame(self.kind, frame))
        await asyncio.sleep(0)

    async def read(self) -> bytes | None:
        while not self._inbox and not self._is_over:
            self._readable.clear()
            await self._readable.wait()
        if not self._inbox:
            if self._broken and self._task is None:
                raise StreamBroken(self._broken)
            return None
        frame = self._inbox.popleft()
        self._taken_bytes += len(frame) + FRAME_HEADER_BYTES
        if self._taken_bytes >= self._grant_bytes:
            self._end.send(_Credit(self.kind, self._taken_bytes))
            self._taken_bytes = 0
        return frame

    def cancel(self) -> None:
        self._end_with("cancelled by the peer")

    # --- the network's side ---

    def serve(self, acceptor: Acceptor) -> None:
        self._task = asyncio.get_running_loop().create_task(acceptor(self.kind, self))
        self._task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._end.forget(self)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": f"serving a {self.kind.value} stream failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        if task.cancelled():
            self._be_over("cancelled")
        else:
            self._end_with("" if error is None else "serving it failed")

    def _end_with(self, broken: str) -> None:
        """This side is done with the stream and says so."""
        if not self._is_over:
            self._end.send(_StreamEnd(self.kind, broken))
            self._be_over(broken)

    def receive(self, item: _Frame | _Credit | _StreamEnd) -> None:
        if isinstance(item, _Frame):
            if not self._is_over:
                self._inbox.append(item.frame)
                self._readable.set()
        elif isinstance(item, _Credit):
            self._window_bytes += item.size_bytes
            self._writable.set()
        elif item.broken:
            self.break_(item.broken)
        else:
            self._be_over("")

    def break_(self, reason: str, *, is_own: bool = False) -> None:
        """Lose what was not read, all of it or a part, and end. ``is_own``: this side does it."""
        if self._is_over:
            return
        if self._task is not None and (is_own or self._chance.random() < 0.5):
            self._task.cancel()
            self._inbox.clear()
        elif self._task is not None:
            asyncio.get_running_loop().call_later(self._chance.uniform(0, LATE_CANCEL_S), self._task.cancel)
        for _ in range(self._chance.randint(0, len(self._inbox))):
            self._inbox.pop()
        self._be_over(reason)

    def _be_over(self, broken: str) -> None:
        self._is_over = True
        self._broken = broken
        self._readable.set()
        self._writable.set()
