"""What carries the mesh: the seam between links with their protocol, and whatever moves bytes between two addresses.

A *connection* is dialed to an address, without waiting for an answer. On it the dialer opens *streams*, one of each
`StreamKind` at most. A stream has two ends: the dialer's, and the acceptor's, which the carrier hands to a coroutine
that serves it. Both ends write and read frames. What a carrier promises:

- Frames arrive whole, in the order of writing, none twice. A frame may be empty, and may have up to
  `LARGEST_FRAME_BYTES`. Two streams of a connection have no order between them, and do not wait for each other.
- A writer waits when the other side does not read: `Stream.write` returns when the carrier has taken the frame, of
  which it holds a bounded number. That it returned says nothing about arrival.
- When an end is closed, its process dies or its machine answers that it does not know the connection, the other end
  soon learns of it: reads and writes raise `StreamBroken` (or the stream just ends, at the acceptor), and the coroutine
  that serves an acceptor's end is cancelled. If nothing at all is heard from the other side, not even an answer to the
  carrier's own questions, the connection breaks after ``silence_timeout_ms``.
- `Carrier.probe` tells a refusal from silence.

What it does not promise:

- That a broken connection has delivered what was written: an unknown suffix is lost, on each stream and in each
  direction separately.
- That both sides learn of a break at one time, or of the same break: between the two moments the connection is half
  open, and what the side that knows nothing writes is lost.
- That who is connected is who was meant. Names, secrets and starts of nodes are for the handshake above to compare.

The daemon's carrier is `cluster.transport.grpc_carrier.GrpcCarrier`; a simulator brings one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from cluster.transport.admin_port import AdminPort
from node.errors import WarrenError

#: The largest frame, which is all that a stranger can make a node hold per stream: larger ones cross in parts of a MiB.
LARGEST_FRAME_BYTES = 1024 * 1024 + 64 * 1024


class StreamKind(Enum):
    """The streams of a connection; the value is the method of the Mesh service."""

    CONSENSUS = "Consensus"
    QUEUES = "Queues"

    #: Of the member itself: it is a key several times for each frame, and Enum hashes the name, in Python.
    __hash__ = object.__hash__


class ProbeResult(Enum):
    #: Somebody accepts connections.
    ACCEPTED = "accepted"
    #: The machine answers, and says that nobody listens: the process is gone.
    REFUSED = "refused"
    #: Neither in time, or no way to the machine: nothing is known about the process.
    SILENT = "silent"


class StreamBroken(WarrenError):
    """The stream carries nothing any more, and some of what it carried last is lost; the text says why."""


class Stream(Protocol):
    """One end of a stream. One task reads and one writes, at a time."""

    async def write(self, frame: bytes) -> None:
        """Wait until the carrier has taken the frame. Raises `StreamBroken`."""

    async def read(self) -> bytes | None:
        """The next frame; ``None`` when the other side has ended the stream. Raises `StreamBroken`."""


class OutgoingStream(Stream, Protocol):
    """The dialer's end."""

    def cancel(self) -> None:
        """Cut the stream, at once and without a good-bye; the acceptor's coroutine is cancelled. Idempotent.

        Nobody may read any more.
        """


class IncomingStream(Stream, Protocol):
    """The acceptor's end: it ends when the coroutine that serves it returns, and the dialer reads the end.

    A coroutine that is cancelled by its own side goes without a word: the dialer may learn of it only when the
    connection ends. `read` may give ``None`` for a break too: at this end the two cannot be told apart.
    """

    @property
    def caller(self) -> str:
        """Where the dialer is, for a log."""


#: Serves one stream that a peer has opened; a task of the carrier's runs it.
Acceptor = Callable[[StreamKind, IncomingStream], Coroutine[Any, Any, None]]


class Connection(Protocol):
    """What was dialed: nothing is known of the other side before a stream answers."""

    def open_stream(self, kind: StreamKind) -> OutgoingStream:
        """If it cannot be opened its first write or read says so."""

    async def close(self) -> None:
        """Cut every stream and hang up; returns when nothing of it is left. Idempotent."""


@dataclass(frozen=True, slots=True)
class AdminEndpoint:
    """The admin service that a node offers at the same address; callers must prove that they know ``cookie``."""

    port: AdminPort
    cookie: str


class Carrier(Protocol):
    """One node's way to the others and theirs to it. All methods on the loop."""

    async def serve(
        self, address: str, acceptor: Acceptor, *, silence_timeout_ms: int, admin: AdminEndpoint | None = None
    ) -> int:
        """Listen at ``host:port`` until `stop`; the port in use, which was chosen if it was 0. Raises `OSError`."""

    async def stop(self) -> None:
        """Listen no longer. Cancels what serves streams, but does not wait for it. Connections dialed stay open."""

    def connect(self, address: str, *, silence_timeout_ms: int) -> Connection:
        """Begin to dial ``host:port``; never fails, see `Connection`."""

    async def probe(self, address: str, timeout_s: float) -> ProbeResult:
        """Connect and hang up: is anybody listening at ``host:port``, and why is nobody? Never fails."""
