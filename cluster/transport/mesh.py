"""The mesh: this node's links to every other node, and the door at which they knock.

Sending never waits: messages are encoded and appended to the link's outbox, and everything appended in one turn
of the loop leaves in as few frames as possible. What is sent to a peer whose link is down is dropped; so is the
unknown rest of a link that breaks. That is what the protocols above are made for: Raft repeats, and
mirroring and sessions begin anew at `MeshHandler.on_link_up`. See `cluster.transport.link` for what a link is,
`cluster.transport.peer` for who opens it when, and `cluster.transport.carrier` for what moves its bytes.

Detecting failure: a killed process resets its connections, and a fresh connection to it is refused; both happen
within milliseconds (`MeshHandler.on_peer_refused`). A frozen process or a lost machine says nothing: the carrier cuts
the link after `MeshTiming.silence_timeout_ms` (`on_link_down` only; whether the peer is dead is for a quorum to say).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cluster.raft.messages import Message as RaftMessage
from cluster.transport.admin_port import AdminPort
from cluster.transport.carrier import AdminEndpoint, Carrier, IncomingStream, StreamBroken, StreamKind
from cluster.transport.handshake import HELLO_BYTES_MAX, NONCE_BYTES, challenge, check, printable
from cluster.transport.link import Link
from cluster.transport.mesh_port import Gatekeeper, HandshakeError, MeshHandler, MeshTiming, OpenGate, QuestionAnswered
from cluster.transport.outbox import OutboxLimits
from cluster.transport.peer import QUESTION, HomeNode, Peer
from cluster.wire.convert import (
    Assembler,
    NotUnderstood,
    QueueEncoder,
    QueueFrameMessage,
    decode_consensus,
    decode_queue_frame,
    encode_consensus,
    encode_not_understood,
)
from cluster.wire.convert_handshake import (
    Credentials,
    Hello,
    Verdict,
    decode_proof,
    encode_challenge,
    encode_verdict,
)
from cluster.wire.errors import WireError
from node.errors import StorageError
from node.ids import Incarnation, NodeName
from node.throttled_log import ThrottledLog

logger = logging.getLogger(__name__)

#: A frame and all its parts: one message of the largest size that clients may publish (128 MiB) and what surrounds it.
_WHOLE_FRAME_BYTES_MAX = 160 * 1024 * 1024

#: So many streams may be in their handshake, strangers' among them, each with one frame of a megabyte at most. It is
#: more than a large cluster opens at once.
STRANGERS_MAX = 64


class Mesh:
    """Links of node ``node`` in its start ``incarnation`` to ``peers`` (name -> ``host:port``).

    ``cookie`` is the cluster's shared secret, ``random_bytes`` gives what nobody can guess.
    """

    def __init__(
        self,
        node: NodeName,
        incarnation: Incarnation,
        listen_address: str,
        peers: Mapping[NodeName, str],
        handler: MeshHandler,
        carrier: Carrier,
        *,
        random_bytes: Callable[[int], bytes],
        cookie: str = "",
        timing: MeshTiming | None = None,
        limits: OutboxLimits | None = None,
        gate: Gatekeeper | None = None,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        #: The port in use after `start`; differs from the address's if that was 0.
        self.port = 0
        self._listen_address = listen_address
        self._handler = handler
        self._carrier = carrier
        self._cookie = cookie
        self._timing = timing or MeshTiming()
        self._home = HomeNode(
            node,
            incarnation,
            cookie.encode(),
            random_bytes,
            carrier,
            handler,
            gate or OpenGate(),
            self._timing,
            limits or OutboxLimits(),
            itertools.count(1),
            self._spawn,
        )
        self._refusals = ThrottledLog(logger)
        self._peers = {name: Peer(self._home, name, [address]) for name, address in peers.items() if name != node}
        self._encoder = QueueEncoder()
        self._is_turn_end_scheduled = False
        self._is_started = False
        self._is_stopping = False
        #: Dicts for their order: what happens to tasks must not depend on where they lie in memory.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        #: What serves the peers' streams, also those that have not said yet which link is theirs.
        self._serving: dict[asyncio.Task[Any], None] = {}
        #: Of these, who has not proved yet to be one of us, oldest first, and the time that is left for that.
        self._strangers: dict[asyncio.Task[Any], asyncio.Timeout] = {}

    # --- life ---

    async def start(self, admin: AdminPort | None = None) -> None:
        """Listen, then begin to dial. ``admin`` is offered at the same address, to whoever has the cookie.

        Raises `OSError`.
        """
        self.port = await self._carrier.serve(
            self._listen_address,
            self._serve,
            silence_timeout_ms=self._timing.silence_timeout_ms,
            admin=None if admin is None else AdminEndpoint(admin, self._cookie),
        )
        self._is_started = True
        for peer in self._peers.values():
            peer.keep()

    async def stop(self) -> None:
        """Close every link and listen no longer; no callback comes after this began."""
        self._is_stopping = True
        for peer in self._peers.values():
            peer.drop(is_silent=True)
        await self._carrier.stop()
        while self._tasks or self._serving:
            await asyncio.gather(*self._tasks, *self._serving, return_exceptions=True)

    def add_peer(self, name: NodeName, *addresses: str) -> None:
        """A node joined, or may have moved: it is at one of these, the likeliest first.

        Members are still heard of while this mesh stops, and then: no link is kept to these.
        """
        known = self._peers.get(name)
        if known is not None:
            known.may_be_at(addresses)
        elif name != self.node:
            peer = self._peers[name] = Peer(self._home, name, addresses)
            if self._is_started and not self._is_stopping:
                peer.keep()

    def address_of(self, name: NodeName) -> str:
        """Where a peer is, as far as is known. Raises `KeyError` if it is none."""
        return self._peers[name].address

    def remove_peer(self, name: NodeName) -> None:
        """A node left: close its link and answer it no longer."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            peer.drop(is_silent=self._is_stopping)

    # --- use ---

    @property
    def peers(self) -> list[NodeName]:
        """Those to whom links are kept."""
        return list(self._peers)

    @property
    def up_peers(self) -> list[NodeName]:
        """Peers whose link is up."""
        return [peer.name for peer in self._peers.values() if self._up_link(peer.name) is not None]

    def spoken_with(self, peer: NodeName) -> tuple[Incarnation, int]:
        """The start of the peer with which there is a link now, and the protocol of that link; zeros if there is none.

        The protocol is the newest that both know.
        """
        link = self._up_link(peer)
        return (Incarnation(0), 0) if link is None else (link.peer_incarnation, link.protocol)

    def is_congested(self, peer: NodeName) -> bool:
        """True if much waits to be sent to the peer: whoever can wait should (see `OutboxLimits`)."""
        link = self._up_link(peer)
        return link is not None and link.outboxes[StreamKind.QUEUES].is_congested

    def mark(self, peer: NodeName) -> None:
        """The frames sent last are such as wait while the link `is_full`."""
        if (link := self._up_link(peer)) is not None:
            link.outboxes[StreamKind.QUEUES].mark()

    def is_full(self, peer: NodeName) -> bool:
        """True if it is congested, and something that was marked is part of that."""
        link = self._up_link(peer)
        return link is not None and link.outboxes[StreamKind.QUEUES].is_full

    def send_consensus(self, peer: NodeName, messages: Sequence[RaftMessage]) -> None:
        """Append to the consensus stream; dropped if the link is down."""
        link = self._up_link(peer)
        if link is not None and messages:
            self._send(link, StreamKind.CONSENSUS, [encode_consensus(message) for message in messages])

    def send_queue_frames(self, peer: NodeName, messages: Sequence[QueueFrameMessage]) -> None:
        """Append to the queue stream; dropped if the link is down."""
        link = self._up_link(peer)
        if link is None or not messages:
            return
        encode = self._encoder.encode
        self._send(link, StreamKind.QUEUES, [encode(message) for message in messages])
        if self._encoder.holds_ops and not self._is_turn_end_scheduled:
            self._is_turn_end_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def reset_link(self, peer: NodeName, reason: str) -> None:
        """Cut the link to the peer, if there is one; it is opened again at once."""
        known = self._peers.get(peer)
        if known is not None and known.link is not None:
            known.link.close(reason)

    def check_invariants(self) -> None:
        for peer in self._peers.values():
            peer.check_invariants()
        assert len(self._strangers) <= STRANGERS_MAX, "strangers are few"
        assert self._strangers.keys() <= self._serving.keys(), "a stranger is served by a task"

    def _send(self, link: Link, kind: StreamKind, items: list[bytes]) -> None:
        link.send(kind, items)
        outbox = link.outboxes[kind]
        if outbox.is_overflowing:
            reason = f"reset: {outbox.queued_bytes} bytes wait for {link.peer}, it does not read them"
            asyncio.get_running_loop().call_soon(link.close, reason)

    def _end_turn(self) -> None:
        self._is_turn_end_scheduled = False
        self._encoder.forget()

    def _up_link(self, name: NodeName) -> Link | None:
        peer = self._peers.get(name)
        if peer is None or peer.link is None or not peer.link.is_up or peer.link.is_closed:
            return None
        return peer.link

    # --- what the peers say ---

    async def _serve(self, kind: StreamKind, stream: IncomingStream) -> None:
        """One stream of a peer to us."""
        task = asyncio.current_task()
        assert task is not None, "a stream is served by a task"
        self._serving[task] = None
        task.add_done_callback(self._serving.pop)
        link = await self._shake_hands(kind, stream, task)
        if link is None:
            return
        reason = "ended by the peer"
        assembler = Assembler(_WHOLE_FRAME_BYTES_MAX)
        try:
            await stream.write(encode_verdict(self._verdict("", link.peer)))
            await link.up_or_closed.wait()
            while not link.is_closed and (frame := await stream.read()) is not None:
                whole = assembler.add(frame)
                if whole is not None:
                    self._deliver(link, kind, whole)
        except WireError as error:
            reason = f"the peer sent something unreadable: {error}"
        except StreamBroken as error:
            reason = f"broken: {error}"
        finally:
            link.close(reason)

    def _verdict(self, refused: str, sender: NodeName | None) -> Verdict:
        """``sender``: if it has proved itself."""
        credentials = Credentials() if sender is None else self._home.gate.credentials(sender)
        return Verdict(
            self.node, self.incarnation, refused, self._home.gate.spoken().newest if refused else 0, credentials
        )

    async def _shake_hands(self, kind: StreamKind, stream: IncomingStream, task: asyncio.Task[Any]) -> Link | None:
        """The link that the stream now belongs to, if whoever dialed proves to be one of us in time."""
        sender: NodeName | None = None
        try:
            async with asyncio.timeout(self._timing.handshake_timeout_ms / 1000) as limit:
                self._meet(task, limit)
                if (proven := await self._hear_out(kind, stream)) is None:
                    return None
                hello, protocol = proven
                sender = hello.sender
                return self._accept(kind, hello, protocol, task)
        except (TimeoutError, StreamBroken):
            return None
        except (WireError, HandshakeError, StorageError) as error:
            if not isinstance(error, QuestionAnswered):
                self._refusals.write(str(error), f"refused a {kind.value} stream from {stream.caller}: {error}")
            with suppress(StreamBroken, TimeoutError):
                async with asyncio.timeout(self._timing.handshake_timeout_ms / 1000):
                    await stream.write(encode_verdict(self._verdict(str(error), sender)))
            return None
        finally:
            self._strangers.pop(task, None)

    def _meet(self, task: asyncio.Task[Any], limit: asyncio.Timeout) -> None:
        """Of too many that have proved nothing yet, the oldest has had its time."""
        self._strangers[task] = limit
        if len(self._strangers) > STRANGERS_MAX:
            oldest = self._strangers.pop(next(iter(self._strangers)))
            with suppress(RuntimeError):  # it is over, or about to be
                oldest.reschedule(0)

    async def _hear_out(self, kind: StreamKind, stream: IncomingStream) -> tuple[Hello, int] | None:
        """The hello of somebody who has proved to know the secret, and what will be spoken.

        See `cluster.transport.handshake`. Raises `HandshakeError`, `WireError`, `StreamBroken`.
        """
        first = await stream.read()
        if first is None:
            return None
        if len(first) > HELLO_BYTES_MAX:
            raise HandshakeError(f"a hello has at most {HELLO_BYTES_MAX} bytes")
        home = self._home
        nonce = home.random_bytes(NONCE_BYTES)
        hello, said = challenge(home.secret, kind, first, self.node, self.incarnation, nonce, home.gate.spoken())
        await stream.write(encode_challenge(said))
        second = await stream.read()
        if second is None:
            name = printable(hello.sender)
            raise HandshakeError(f"{name} hung up instead of proving that it is one of us; is its cookie another?")
        check(home.secret, kind, first, said, decode_proof(second))
        return hello, said.protocol

    def _deliver(self, link: Link, kind: StreamKind, frame: bytes) -> None:
        strange: list[Any] = []
        try:
            if kind is StreamKind.CONSENSUS:
                self._handler.on_consensus(link.peer, decode_consensus(frame, link.peer, self.node, strange))
            else:
                self._handler.on_queue_frames(link.peer, decode_queue_frame(frame, strange))
            if strange:
                self._wonder(link, kind, strange)
        except WireError:
            raise
        except Exception as error:
            context = {"message": f"the handler failed on a {kind.value} frame of {link.peer}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            link.close(f"the handler failed: {error!r}")

    def _wonder(self, link: Link, kind: StreamKind, strange: Sequence[int | NotUnderstood]) -> None:
        """Answer what nobody here understands, log what the peer did not; once per link and kind of message."""
        unknown = []
        for each in strange:
            if isinstance(each, NotUnderstood):
                fields = ", ".join(map(str, each.fields))
                logger.error("%s did not understand %s messages of ours, fields %s", link.peer, each.stream, fields)
            elif link.is_news(kind, each):
                unknown.append(each)
        if unknown:
            fields = ", ".join(map(str, unknown))
            logger.error("%s messages of %s, fields %s, are of no kind known here", kind.value, link.peer, fields)
            if link.is_up and not link.is_closed:
                self._send(link, StreamKind.QUEUES, [encode_not_understood(NotUnderstood(kind.value, tuple(unknown)))])

    def _accept(self, kind: StreamKind, hello: Hello, protocol: int, task: asyncio.Task[Any]) -> Link:
        """The link that the stream with this hello now belongs to. Raises `HandshakeError` if it is refused."""
        if self._is_stopping:
            raise HandshakeError("this node is stopping")
        self._home.gate.heed(hello.sender, hello.credentials)
        peer = self._peers.get(hello.sender)
        if peer is None:
            raise HandshakeError(f"{hello.sender} is no member that {self.node} knows")
        if hello.link == QUESTION:
            if self._home.gate.is_known(hello.sender, hello.sender_incarnation, hello.credentials):
                peer.was_heard()
                peer.says_it_is_at(hello.credentials.cluster_address)
            raise QuestionAnswered(f"{hello.sender} asks what it is to this cluster")
        self._home.gate.admit(hello.sender, hello.sender_incarnation, hello.credentials)
        peer.was_heard()
        link = peer.link_of(hello)
        if link.has_incoming(kind):
            raise HandshakeError(f"link {hello.link} has a {kind.value} stream already")
        link.note_start(hello.sender_incarnation, hello.credentials.identity)
        link.note_protocol(protocol)
        link.add_incoming(kind, task)
        return link

    # --- plumbing ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a task of the mesh failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
