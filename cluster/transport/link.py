"""One link between two nodes, from the first hello to the break: two dialed connections that live and die together.

Each node speaks only on the connection that it dialed and hears the other on the one that the other dialed. A
*link* is such a pair, and has a number, so that what was said before a break never mixes with what is said after it::

      opener (its name sorts first)                     other
        | dial, Hello(link=7) on both streams  ----------> |
        | <------ proofs on both streams, and back ------> |  closes whatever link it had with the opener
        | <----------  dial back, Hello(link=7), both      |
        | <------ proofs on both streams, and back ------> |  up: each has proved itself on every stream
        |  up: likewise                                    |

`cluster.transport.handshake` tells of the proofs. A side that is up may speak at once; the other does not read the
frames before it is up itself. When any of the four streams ends, or is silent for too long (the carrier sees to that),
the whole link is closed and the opener tries the next number. So both sides see the same sequence of links, and a link
up on both sides has lost nothing so far.

Streams: *consensus* (small, urgent) and *queues* (bulk) are separate, with flow control of their own. A consensus
stream that has nothing to say says so, with an empty frame: a peer whose loop is stuck may still answer the carrier.
One timer sees to that. No frame sets it anew: when it fires and something was said meanwhile, it goes on for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cluster.transport.carrier import Connection, OutgoingStream, StreamBroken, StreamKind
from cluster.transport.handshake import answer, refusal_of, verdict_of
from cluster.transport.mesh_port import Gatekeeper, HandshakeError
from cluster.transport.outbox import Outbox, OutboxLimits
from cluster.wire.convert import PART_BYTES, parts_of
from cluster.wire.convert_handshake import Challenge, Hello, Verdict, decode_answer, encode_hello, encode_proof
from cluster.wire.errors import WireError
from node.errors import StorageError
from node.ids import Incarnation, NodeName

_UNKNOWN_KINDS_MAX = 16
#: A silence that lacks so little is long enough.
SOON_S = 0.001


class Link:
    """One link to ``peer``. All methods on the loop; the callbacks too, and never after `close`."""

    def __init__(
        self,
        peer: NodeName,
        number: int,
        limits: OutboxLimits,
        heartbeat_interval_ms: int,
        gate: Gatekeeper,
        *,
        on_up: Callable[[Link], None],
        on_closed: Callable[[Link, str], None],
        on_uncongested: Callable[[Link], None],
        on_room: Callable[[Link], None],
    ) -> None:
        self.peer = peer
        self.number = number
        #: Which start of the peer this is; 0 until its first word.
        self.peer_incarnation = Incarnation(0)
        #: What both speak; 0 until it is agreed on.
        self.protocol = 0
        #: Of the peer's data directory; empty until its first word, or if it has none.
        self.peer_identity = ""
        #: Where the peer was dialed; kept here for whoever did.
        self.address = ""
        self.is_up = False
        self.is_closed = False
        #: Set by whichever comes first; tells who waits that `is_up` or `is_closed` changed.
        self.up_or_closed = asyncio.Event()
        self.closed = asyncio.Event()
        self.outboxes = {kind: Outbox(limits) for kind in StreamKind}
        self._wakes = {kind: asyncio.Event() for kind in StreamKind}
        self._heartbeat_interval_s = heartbeat_interval_ms / 1000
        #: When something was last written to the consensus stream; and the next look at that.
        self._spoke_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        #: The consensus stream is to say that we live if it has nothing else to say.
        self._is_beat_due = False
        self._gate = gate
        self._on_up = on_up
        self._on_closed = on_closed
        self._on_uncongested = on_uncongested
        self._on_room = on_room
        self._connection: Connection | None = None
        #: Our streams to the peer.
        self._outgoing: dict[StreamKind, OutgoingStream] = {}
        #: Handlers of the peer's streams to us.
        self._incoming: dict[StreamKind, asyncio.Task[Any]] = {}
        self._is_dialed = False
        #: Kinds of messages that the peer sent and we do not know, see `is_news`.
        self._unknown_kinds: dict[tuple[StreamKind, int], None] = {}
        #: A dict for its order: in which tasks are cancelled must not depend on where they lie in memory.
        self._tasks: dict[asyncio.Task[None], None] = {}

    # --- handshake ---

    def dial(self, connection: Connection, hello: Hello, secret: bytes) -> None:
        """Open our two streams on ``connection`` (now ours) and shake hands. If that fails the link is closed."""
        assert self._connection is None, "a link is dialed once"
        self._connection = connection
        self._spawn(self._shake_hands(connection, hello, secret))

    async def _shake_hands(self, connection: Connection, hello: Hello, secret: bytes) -> None:
        frame = encode_hello(hello)
        try:
            for kind in StreamKind:
                stream = self._outgoing[kind] = connection.open_stream(kind)
                await stream.write(frame)
            for kind, stream in self._outgoing.items():
                said = await self._hear(stream)
                await stream.write(encode_proof(answer(secret, kind, frame, said)))
                self.note_protocol(said.protocol)
            for stream in self._outgoing.values():
                self._heed(verdict_of(await self._hear(stream)))
        except (StreamBroken, WireError, HandshakeError, StorageError) as error:
            self.close(str(error) or repr(error))
            return
        self._is_dialed = True
        for stream in self._outgoing.values():
            self._spawn(self._watch(stream))
        self._become_up_if_complete()

    async def _hear(self, stream: OutgoingStream) -> Challenge | Verdict:
        """What the acceptor says next."""
        frame = await stream.read()
        if frame is None:
            raise HandshakeError("the peer ended the stream instead of answering")
        return decode_answer(frame)

    def _heed(self, verdict: Verdict) -> None:
        """The last word of an acceptor that has proved itself. Raises `HandshakeError` if it refuses."""
        self._gate.heed(self.peer, verdict.credentials)
        if verdict.refused:
            raise HandshakeError(refusal_of(verdict))
        self.note_start(verdict.incarnation, verdict.credentials.identity)
        self._gate.admit(self.peer, verdict.incarnation, verdict.credentials)

    def note_protocol(self, protocol: int) -> None:
        """What was agreed on for a stream of the link. Raises `HandshakeError`."""
        if self.protocol not in (0, protocol):
            raise HandshakeError("the two streams were to speak two protocols")
        self.protocol = protocol

    def note_start(self, incarnation: Incarnation, identity: str) -> None:
        """All words within a link come from the same start of the peer. Raises `HandshakeError`."""
        if self.peer_incarnation != 0 and (self.peer_incarnation, self.peer_identity) != (incarnation, identity):
            raise HandshakeError("the peer was restarted during the handshake")
        self.peer_incarnation, self.peer_identity = incarnation, identity

    def is_news(self, kind: StreamKind, field: int) -> bool:
        """Is this the first message of this unknown kind? Of the first few kinds only, so a peer cannot fill us."""
        news = (kind, field) not in self._unknown_kinds and len(self._unknown_kinds) < _UNKNOWN_KINDS_MAX
        if news:
            self._unknown_kinds[kind, field] = None
        return news

    def has_incoming(self, kind: StreamKind) -> bool:
        return kind in self._incoming

    def add_incoming(self, kind: StreamKind, task: asyncio.Task[Any]) -> None:
        """The peer's stream to us has begun; ``task`` serves it."""
        assert kind not in self._incoming, "one stream of each kind"
        self._incoming[kind] = task
        self._become_up_if_complete()

    def _become_up_if_complete(self) -> None:
        if self.is_closed or not self._is_dialed or len(self._incoming) < len(StreamKind):
            return
        self.is_up = True
        self._spoke_s = asyncio.get_running_loop().time()
        self._look_at_silence()
        self.up_or_closed.set()
        for kind, stream in self._outgoing.items():
            self._spawn(self._write(kind, stream))
        self._on_up(self)

    # --- life ---

    def send(self, kind: StreamKind, items: list[bytes]) -> None:
        """Append encoded items; they leave when the loop turns."""
        assert self.is_up, "nothing is sent before the handshake is complete"
        outbox = self.outboxes[kind]
        for item in items:
            outbox.append(item)
        self._wakes[kind].set()

    async def _write(self, kind: StreamKind, stream: OutgoingStream) -> None:
        outbox, wake = self.outboxes[kind], self._wakes[kind]
        while True:
            await wake.wait()
            wake.clear()
            if kind is StreamKind.CONSENSUS:
                self._spoke_s = asyncio.get_running_loop().time()
                if self._is_beat_due and not outbox:
                    await stream.write(b"")
                self._is_beat_due = False
            while outbox:
                was_congested, was_full = outbox.is_congested, outbox.is_full
                frame = outbox.take_frame()
                if was_congested and not outbox.is_congested:
                    self._on_uncongested(self)
                if was_full and not outbox.is_full:
                    self._on_room(self)
                if len(frame) <= PART_BYTES:
                    await stream.write(frame)
                    continue
                for part in parts_of(frame):
                    await stream.write(part)

    def _look_at_silence(self) -> None:
        """Have the consensus stream say that we live if it has said nothing for a while."""
        loop = asyncio.get_running_loop()
        rest_s = self._spoke_s + self._heartbeat_interval_s - loop.time()
        if rest_s <= SOON_S:
            self._is_beat_due = True
            self._wakes[StreamKind.CONSENSUS].set()
            rest_s = self._heartbeat_interval_s
        self._beat = loop.call_later(rest_s, self._look_at_silence)

    async def _watch(self, stream: OutgoingStream) -> None:
        """The peer answers with nothing more but the end; also before the link is up, if it cannot dial back."""
        await stream.read()
        self.close("ended by the peer")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.close(f"broken: {error if isinstance(error, StreamBroken) else repr(error)}")

    def close(self, reason: str) -> None:
        """Cut every stream, at once and without a good-bye. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._beat is not None:
            self._beat.cancel()
        current = asyncio.current_task()
        for task in (*self._tasks, *self._incoming.values()):
            if task is not current:
                task.cancel()
        for stream in self._outgoing.values():
            stream.cancel()
        self.up_or_closed.set()
        self.closed.set()
        self._on_closed(self, reason)

    async def release(self) -> None:
        """After `close`: wait until the streams and the connection are gone."""
        assert self.is_closed, "an open link is in use"
        await asyncio.gather(*self._tasks, *self._incoming.values(), return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    def check_invariants(self) -> None:
        assert not (self.is_up and not self._is_dialed), "up means that the peer answered our hello"
        if self.is_up:
            assert len(self._incoming) == len(StreamKind), "up means that the peer's streams are here"
        for outbox in self.outboxes.values():
            outbox.check_invariants()
