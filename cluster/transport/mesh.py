"""The mesh: this node's links to every other node, and the gRPC server they dial.

Sending never waits: messages are encoded and appended to the link's outbox, and everything appended in one turn
of the loop leaves in as few frames as possible. What is sent to a peer whose link is down is dropped; so is the
unknown rest of a link that breaks. That is what the protocols above are made for: Raft repeats, and
mirroring and sessions begin anew at `MeshHandler.on_link_up`. See `cluster.transport.link` for what a link is.

Detecting failure: a killed process resets its connections, and a fresh connection to it is refused; both happen
within milliseconds (`MeshHandler.on_peer_refused`). A frozen process or a lost machine says nothing: keepalive cuts
the link after `MeshTiming.silence_timeout_ms` (`on_link_down` only; whether the peer is dead is for a quorum to say).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio

from cluster.raft.messages import Message as RaftMessage
from cluster.transport.link import END_OF_STREAM, SERVICE_NAME, HandshakeError, Link, StreamKind
from cluster.transport.outbox import OutboxLimits
from cluster.transport.probe import ProbeResult, bind_failure, probe
from cluster.wire.convert import (
    Hello,
    HelloReply,
    QueueEncoder,
    QueueFrameMessage,
    WireError,
    decode_consensus,
    decode_hello,
    decode_queue_frame,
    encode_consensus,
    encode_hello_reply,
)
from node.ids import Incarnation, NodeName

logger = logging.getLogger(__name__)

#: The largest frame: one message of the largest size that clients may publish (128 MiB) and what surrounds it.
MAX_GRPC_MESSAGE_BYTES = 160 * 1024 * 1024

_ServerContext = grpc.aio.ServicerContext[Any, Any]


class MeshHandler(Protocol):
    """Who listens. Called on the loop; must not raise (an exception closes the link and reaches the loop's handler)."""

    def on_consensus(self, peer: NodeName, messages: list[RaftMessage]) -> None:
        """No messages: only a sign of life, at least every `MeshTiming.heartbeat_interval_ms`."""

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None: ...

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        """Both directions work. Begin every conversation with the peer anew."""

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        """The link that was up is gone, with an unknown part of what was last said, in both directions."""

    def on_peer_refused(self, peer: NodeName) -> None:
        """No process listens at the peer's address: it is dead (or not started). Once per absence."""

    def on_link_uncongested(self, peer: NodeName) -> None:
        """`Mesh.is_congested` was true for the peer and is no longer."""


@dataclass(frozen=True, slots=True)
class MeshTiming:
    """How quickly the mesh notices and retries."""

    #: A link that delivers nothing, not even an answer to a ping, for this long is cut.
    silence_timeout_ms: int = 6000
    #: Pause after which an idle peer is told that we live; a fraction of what makes a peer suspect.
    heartbeat_interval_ms: int = 300
    #: From the first connection to a link that is up; as long as a loaded machine may take to answer.
    handshake_timeout_ms: int = 5000
    #: A connection attempt that tells refused from silent.
    probe_timeout_ms: int = 1000
    #: Pause between attempts: doubled from ``min`` to ``max``.
    backoff_min_ms: int = 20
    backoff_max_ms: int = 250


class _Peer:
    """Another node: where it is and the link to it."""

    __slots__ = (
        "address",
        "is_refusal_reported",
        "keeper",
        "last_link",
        "last_trouble",
        "link",
        "link_changed",
        "name",
    )

    def __init__(self, name: NodeName, address: str) -> None:
        self.name = name
        self.address = address
        #: The present link, in whatever state; ``None`` between links.
        self.link: Link | None = None
        #: Set when `link` is assigned, so that the keeper looks again.
        self.link_changed = asyncio.Event()
        #: Highest (incarnation, number) of the links that the peer opened: older ones are stragglers.
        self.last_link = (0, 0)
        self.is_refusal_reported = False
        #: Last trouble logged: the same trouble twice a second is logged once.
        self.last_trouble = ""
        self.keeper: asyncio.Task[None] | None = None


class Mesh:
    """Links of node ``node`` in its start ``incarnation`` to ``peers`` (name -> ``host:port``).

    ``cookie`` is the cluster's shared secret. Credentials make it mutual TLS; without them it is plain.
    """

    def __init__(
        self,
        node: NodeName,
        incarnation: Incarnation,
        listen_address: str,
        peers: Mapping[NodeName, str],
        handler: MeshHandler,
        *,
        cookie: str = "",
        timing: MeshTiming | None = None,
        limits: OutboxLimits | None = None,
        server_credentials: grpc.ServerCredentials | None = None,
        channel_credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        #: The port in use after `start`; differs from the address's if that was 0.
        self.port = 0
        self._listen_address = listen_address
        self._handler = handler
        self._cookie = cookie.encode()
        self._timing = timing or MeshTiming()
        self._limits = limits or OutboxLimits()
        self._server_credentials = server_credentials
        self._channel_credentials = channel_credentials
        self._peers = {name: _Peer(name, address) for name, address in peers.items() if name != node}
        self._server: grpc.aio.Server | None = None
        self._encoder = QueueEncoder()
        self._is_turn_end_scheduled = False
        self._last_link = 0
        self._is_stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        #: What serves the peers' streams, also those that have not said yet which link is theirs.
        self._serving: set[asyncio.Task[Any]] = set()

    # --- life ---

    async def start(self, services: Sequence[Callable[[grpc.aio.Server], None]] = ()) -> None:
        """Listen, then begin to dial. ``services`` add further services to the same server. Raises `OSError`."""
        server = grpc.aio.server(options=self._grpc_options())
        handlers = {
            kind.value: grpc.stream_stream_rpc_method_handler(partial(self._serve, kind)) for kind in StreamKind
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        for add_service in services:
            add_service(server)
        try:
            if self._server_credentials is None:
                self.port = server.add_insecure_port(self._listen_address)
            else:
                self.port = server.add_secure_port(self._listen_address, self._server_credentials)
        except RuntimeError as error:
            # gRPC does not say why: ask the system.
            raise await bind_failure(self._listen_address) or OSError(str(error)) from None
        await server.start()
        self._server = server
        for peer in self._peers.values():
            self._keep(peer)

    async def stop(self) -> None:
        """Close every link and the server; no callback comes after this began."""
        self._is_stopping = True
        for peer in self._peers.values():
            self._drop(peer)
        if self._server is not None:
            # It cancels every call, but does not wait until the tasks that serve them have ended.
            await self._server.stop(grace=None)
        while self._tasks or self._serving:
            await asyncio.gather(*self._tasks, *self._serving, return_exceptions=True)

    def add_peer(self, name: NodeName, address: str) -> None:
        """A node joined, or moved to another address."""
        known = self._peers.get(name)
        if name == self.node or (known is not None and known.address == address):
            return
        if known is not None:
            self._drop(known)
        self._peers[name] = _Peer(name, address)
        if self._server is not None:
            self._keep(self._peers[name])

    def remove_peer(self, name: NodeName) -> None:
        """A node left: close its link and answer it no longer."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            self._drop(peer)

    # --- use ---

    @property
    def up_peers(self) -> list[NodeName]:
        """Peers whose link is up."""
        return [peer.name for peer in self._peers.values() if self._up_link(peer.name) is not None]

    def is_congested(self, peer: NodeName) -> bool:
        """True if much waits to be sent to the peer: whoever can wait should (see `OutboxLimits`)."""
        link = self._up_link(peer)
        return link is not None and link.outboxes[StreamKind.QUEUES].is_congested

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
        if not self._is_turn_end_scheduled:
            self._is_turn_end_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def reset_link(self, peer: NodeName, reason: str) -> None:
        """Cut the link to the peer, if there is one; it is opened again at once."""
        known = self._peers.get(peer)
        if known is not None and known.link is not None:
            known.link.close(reason)

    def check_invariants(self) -> None:
        for peer in self._peers.values():
            if peer.link is not None:
                peer.link.check_invariants()

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

    # --- links ---

    def _new_link(self, peer: _Peer, number: int) -> Link:
        link = Link(
            peer.name,
            number,
            self._limits,
            self._timing.heartbeat_interval_ms,
            on_up=self._link_up,
            on_closed=self._link_closed,
            on_uncongested=self._link_uncongested,
        )
        peer.link = link
        peer.link_changed.set()
        return link

    def _link_up(self, link: Link) -> None:
        peer = self._peers[link.peer]
        peer.is_refusal_reported = False
        peer.last_trouble = ""
        logger.info("link %d to %s is up (incarnation %d)", link.number, link.peer, link.peer_incarnation)
        self._handler.on_link_up(link.peer, link.peer_incarnation)

    def _link_closed(self, link: Link, reason: str) -> None:
        self._spawn(link.release())
        peer = self._peers.get(link.peer)
        if peer is not None and peer.link is link:
            peer.link = None
        if self._is_stopping:
            return
        if not link.is_up:
            self._log_trouble(link.peer, reason)
        else:
            logger.warning("link %d to %s is down: %s", link.number, link.peer, reason)
            self._handler.on_link_down(link.peer, reason)

    def _link_uncongested(self, link: Link) -> None:
        self._handler.on_link_uncongested(link.peer)

    def _drop(self, peer: _Peer) -> None:
        if peer.keeper is not None:
            peer.keeper.cancel()
        if peer.link is not None:
            peer.link.close("the peer was removed")

    def _keep(self, peer: _Peer) -> None:
        peer.keeper = self._spawn(self._keep_linked(peer))

    async def _keep_linked(self, peer: _Peer) -> None:
        """As long as the peer is known: open links to it (or wait for its), and find out if it is dead."""
        backoff_ms = self._timing.backoff_min_ms
        while True:
            if peer.link is None:
                await self._look_after(peer)
            if peer.link is not None and await self._outlive(peer.link):
                backoff_ms = self._timing.backoff_min_ms
                continue
            if peer.link is not None:
                continue
            peer.link_changed.clear()
            try:
                async with asyncio.timeout(backoff_ms / 1000):
                    await peer.link_changed.wait()
            except TimeoutError:
                backoff_ms = min(backoff_ms * 2, self._timing.backoff_max_ms)

    async def _look_after(self, peer: _Peer) -> None:
        """Without a link: is the peer there? If so and if it is ours to open, open one."""
        result = await probe(peer.address, self._timing.probe_timeout_ms / 1000)
        if result is ProbeResult.REFUSED and not peer.is_refusal_reported:
            peer.is_refusal_reported = True
            logger.info("%s at %s refuses connections", peer.name, peer.address)
            self._handler.on_peer_refused(peer.name)
        if result is ProbeResult.ACCEPTED and self.node < peer.name and peer.link is None:
            self._last_link += 1
            self._dial(peer, self._new_link(peer, self._last_link))

    async def _outlive(self, link: Link) -> bool:
        """Wait until the link is closed, which happens soon unless its handshake succeeds. True if it was ever up."""
        try:
            async with asyncio.timeout(self._timing.handshake_timeout_ms / 1000):
                await link.up_or_closed.wait()
        except TimeoutError:
            link.close("no complete handshake in time")
        await link.closed.wait()
        return link.is_up

    def _dial(self, peer: _Peer, link: Link) -> None:
        hello = Hello(self._cookie, self.node, self.incarnation, peer.name, link.peer_incarnation, link.number)
        options = [*self._grpc_options(), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        if self._channel_credentials is None:
            channel = grpc.aio.insecure_channel(peer.address, options=options)
        else:
            channel = grpc.aio.secure_channel(peer.address, self._channel_credentials, options=options)
        link.dial(channel, hello)

    def _log_trouble(self, name: NodeName, trouble: str) -> None:
        peer = self._peers.get(name)
        if peer is not None and trouble != peer.last_trouble:
            peer.last_trouble = trouble
            logger.warning("no link to %s: %s", name, trouble)

    # --- the server's side ---

    async def _serve(self, kind: StreamKind, _requests: object, context: _ServerContext) -> None:
        """One stream of a peer to us."""
        task = asyncio.current_task()
        assert task is not None, "a stream is served by a task"
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            async with asyncio.timeout(self._timing.handshake_timeout_ms / 1000):
                first: Any = await context.read()
        except TimeoutError:
            return
        if first is END_OF_STREAM:
            return
        try:
            link = self._accept(kind, decode_hello(first))
        except (WireError, HandshakeError) as error:
            logger.warning("refused a %s stream from %s: %s", kind.value, context.peer(), error)
            await context.write(encode_hello_reply(HelloReply(self.node, self.incarnation, str(error))))
            return
        reason = "ended by the peer"
        try:
            await context.write(encode_hello_reply(HelloReply(self.node, self.incarnation)))
            await link.up_or_closed.wait()
            while not link.is_closed and (frame := await context.read()) is not END_OF_STREAM:
                self._deliver(link, kind, frame)
        except WireError as error:
            reason = f"the peer sent something unreadable: {error}"
        except grpc.RpcError as error:
            reason = f"broken: {error!r}"
        finally:
            link.close(reason)

    def _deliver(self, link: Link, kind: StreamKind, frame: Any) -> None:
        try:
            if kind is StreamKind.CONSENSUS:
                self._handler.on_consensus(link.peer, decode_consensus(frame, link.peer, self.node))
            else:
                self._handler.on_queue_frames(link.peer, decode_queue_frame(frame))
        except WireError:
            raise
        except Exception as error:
            context = {"message": f"the handler failed on a {kind.value} frame of {link.peer}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            link.close(f"the handler failed: {error!r}")

    def _accept(self, kind: StreamKind, hello: Hello) -> Link:
        """The link that the stream with this hello now belongs to. Raises `HandshakeError` if it is refused."""
        if self._is_stopping:
            raise HandshakeError("this node is stopping")
        if not hmac.compare_digest(hello.cookie, self._cookie):
            raise HandshakeError("wrong cookie: the nodes belong to different clusters")
        if hello.receiver != self.node:
            raise HandshakeError(f"this is {self.node}, not {hello.receiver}: an address is wrong")
        peer = self._peers.get(hello.sender)
        if peer is None:
            raise HandshakeError(f"{hello.sender} is no member that {self.node} knows")
        link = self._opened_by_us(peer, hello) if self.node < peer.name else self._opened_by_peer(peer, hello)
        if link.has_incoming(kind):
            raise HandshakeError(f"link {hello.link} has a {kind.value} stream already")
        link.note_incarnation(hello.sender_incarnation)
        task = asyncio.current_task()
        assert task is not None, "a stream is served by a task"
        link.add_incoming(kind, task)
        return link

    def _opened_by_us(self, peer: _Peer, hello: Hello) -> Link:
        link = peer.link
        if link is None or link.number != hello.link or hello.receiver_incarnation != self.incarnation:
            raise HandshakeError(f"link {hello.link} is not the present one")
        return link

    def _opened_by_peer(self, peer: _Peer, hello: Hello) -> Link:
        link = peer.link
        stamp = (hello.sender_incarnation, hello.link)
        if stamp < peer.last_link or (stamp == peer.last_link and link is None):
            raise HandshakeError(f"link {hello.link} is older than the present one")
        if link is not None and stamp == peer.last_link:
            return link
        peer.last_link = stamp
        if link is not None:
            link.close(f"{peer.name} opened a new link")
        link = self._new_link(peer, hello.link)
        link.note_incarnation(hello.sender_incarnation)
        self._dial(peer, link)
        return link

    # --- plumbing ---

    def _grpc_options(self) -> list[tuple[str, Any]]:
        silence_ms = self._timing.silence_timeout_ms
        return [
            ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", max(1, silence_ms // 3)),
            ("grpc.keepalive_timeout_ms", max(1, silence_ms - silence_ms // 3)),
            ("grpc.http2.ping_timeout_ms", max(1, silence_ms - silence_ms // 3)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.so_reuseport", 0),
        ]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a task of the mesh failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
