"""One other node as the mesh sees it: where it is, the link to it, and the task that sees to it that there is one.

Of two nodes the one whose name sorts first is the *opener*: it gives every new link its number and dials; the other
dials back when it hears the hello. So both may come to life, or lose the link, at the same moment without opening two.

Words of an earlier link or an earlier start may arrive late. Links that the peer opens are ordered by (start of the
opener, number), and what is not newer than the newest known is a straggler; to links that we open the peer's hello must
name our own start and the present number. The starts of a node are counted in its data directory, so under another
identity the count begins again.

A straggler is late by no more than a handshake takes: a hello counts for nothing before its sender has answered a new
challenge. Who calls as an earlier start after that lives, and so did the later one: two processes ran with one
directory, of which somebody had made a copy. The later one is believed as long as it has a link (that is what a restart
looks like, and records of the cluster that know of it have the earlier one end, see `cluster.runtime.admission`). When
it has been gone for a while without that, its start and its numbers are forgotten: the node that was there before is
linked again.

**Where it is** is not certain: the configuration may say one thing, the log of the metadata another, and the peer
itself a third. So a peer has one address or several, the likeliest first. They are tried in turn until there is a link,
and the one that led to it is kept. That nobody listens is news of the peer's death only where it was met last, or, if
it was not met yet, if it is so everywhere; and only if the peer has not been heard since that was found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.transport.carrier import Carrier, ProbeResult, StreamBroken, StreamKind
from cluster.transport.handshake import NONCE_BYTES, answer, verdict_of
from cluster.transport.link import Link
from cluster.transport.mesh_port import Gatekeeper, HandshakeError, MeshHandler, MeshTiming
from cluster.transport.outbox import OutboxLimits
from cluster.wire.convert_handshake import Hello, decode_answer, encode_hello, encode_proof
from cluster.wire.errors import WireError
from node.errors import StorageError
from node.ids import Incarnation, NodeName
from node.throttled_log import kind_of

logger = logging.getLogger(__name__)

#: In place of the number of a link: the sender asks for credentials, and for nothing else.
QUESTION = 0
#: Who is there, and should open a link, and does not, is asked from this look on: it may not know that it should.
LOOKS_BEFORE_ASKING = 3


@dataclass(frozen=True, slots=True)
class HomeNode:
    """What the peers of one mesh have in common: the node that they are peers of."""

    name: NodeName
    incarnation: Incarnation
    secret: bytes
    random_bytes: Callable[[int], bytes]
    carrier: Carrier
    handler: MeshHandler
    gate: Gatekeeper
    timing: MeshTiming
    limits: OutboxLimits
    #: Numbers for the links that this node opens, never one twice.
    link_numbers: Iterator[int]
    #: Starts a task whose failure is heard and whose end `Mesh.stop` waits for.
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Peer:
    """Node ``name`` at one of ``addresses`` (``host:port``, the likeliest first), a peer of ``home``."""

    def __init__(self, home: HomeNode, name: NodeName, addresses: Sequence[str]) -> None:
        self.name = name
        #: Where it may be. The first is tried first, and the one in use.
        self._addresses = list(addresses)
        self._given = tuple(addresses)
        #: Where a link to it was up; empty if none was, or it is known to have moved.
        self._met_at = ""
        #: The present link, in whatever state; ``None`` between links.
        self.link: Link | None = None
        self._home = home
        #: Set when `link` is assigned, so that the keeper looks again.
        self._link_changed = asyncio.Event()
        #: Highest (incarnation, number) of the links that the peer opened: older ones are stragglers.
        self._last_link = (0, 0)
        #: When the last of those was closed, seconds of the loop.
        self._link_ended_s = 0.0
        #: Identity under which the peer opened it.
        self._last_identity = ""
        #: Times that the peer was there, and there was no link that it should have opened.
        self._looks_in_vain = 0
        self._is_refusal_reported = False
        #: Times that it has proved who it is: what refused a connection before the last of them is of the past.
        self._calls = 0
        #: Kind of the last trouble logged: the same trouble twice a second is logged once.
        self._last_trouble = ""
        self._keeper: asyncio.Task[None] | None = None
        #: Nothing of it is of interest any more, see `drop`.
        self._is_dropped = False
        self._is_silent = False

    # --- where it is ---

    @property
    def address(self) -> str:
        """Where it is, as far as is known."""
        return self._addresses[0]

    def may_be_at(self, addresses: Sequence[str]) -> None:
        """These are its addresses from now on, the likeliest first."""
        if self._given != tuple(addresses):
            self._given = tuple(addresses)
            kept = [self._met_at] if self._met_at in addresses and self.link is not None and self.link.is_up else []
            self._addresses = list(dict.fromkeys((*kept, *addresses)))
            self._met_at = self._met_at if self._met_at in self._addresses else ""
            self._link_changed.set()  # so that the keeper looks now

    def says_it_is_at(self, address: str) -> None:
        """The peer has proved who it is, and said so. What is tried already keeps its turn: it may be wrong."""
        if address and address not in self._addresses:
            logger.info("%s has moved to %s", self.name, address)
            self._addresses = list(dict.fromkeys((address, *self._given)))
            self._met_at = ""
            self._link_changed.set()

    # --- life ---

    def keep(self) -> None:
        """From now on see to it that there is a link."""
        self._keeper = self._home.spawn(self._keep_linked())

    def drop(self, *, is_silent: bool) -> None:
        """For ever: no link any more; if ``is_silent``, the handler is not told of the end of this one either."""
        self._is_dropped = True
        self._is_silent = is_silent
        if self._keeper is not None:
            self._keeper.cancel()
        if self.link is not None:
            self.link.close("the peer was removed")

    async def _keep_linked(self) -> None:
        """Open links (or wait for the peer's), and find out if the peer is dead."""
        timing = self._home.timing
        backoff_ms = timing.backoff_min_ms
        while True:
            if self.link is None:
                await self._look_after()
            if self.link is not None and await self._outlive(self.link):
                backoff_ms = timing.backoff_min_ms
                continue
            if self.link is not None:
                continue
            self._link_changed.clear()
            try:
                async with asyncio.timeout(backoff_ms / 1000):
                    await self._link_changed.wait()
            except TimeoutError:
                backoff_ms = min(backoff_ms * 2, timing.backoff_max_ms)

    async def _look_after(self) -> None:
        """Without a link: is the peer there? If so and if it is ours to open, open one."""
        home = self._home
        refused: list[str] = []
        for address in list(self._addresses):
            calls = self._calls
            result = await home.carrier.probe(address, home.timing.probe_timeout_ms / 1000)
            if calls != self._calls:
                refused.clear()  # it lived after that, though the link it opened may have come and gone
            elif result is ProbeResult.REFUSED:
                refused.append(address)
            if result is ProbeResult.ACCEPTED or self.link is not None:
                break
        if self.link is not None:
            return  # it came while this looked: what was refused before says nothing of who has opened it
        self._note_refusals(refused)
        if result is not ProbeResult.ACCEPTED:
            return
        if address in self._addresses:
            self._addresses = list(dict.fromkeys((address, *self._addresses)))
        if home.name < self.name:
            self._dial(self._new_link(next(home.link_numbers)))
            return
        self._looks_in_vain += 1
        if self._looks_in_vain >= LOOKS_BEFORE_ASKING or home.gate.must_ask():
            await self._ask()

    def _note_refusals(self, refused: Sequence[str]) -> None:
        is_gone = self._met_at in refused if self._met_at else set(self._addresses) <= set(refused)
        if is_gone and not self._is_refusal_reported:
            self._is_refusal_reported = True
            logger.info("%s at %s refuses connections", self.name, self._met_at or ", ".join(refused))
            self._home.handler.on_peer_refused(self.name)

    async def _ask(self) -> None:
        """Hear what the peer says of itself, who may not know that this node is there."""
        home = self._home
        connection = home.carrier.connect(self.address, silence_timeout_ms=home.timing.silence_timeout_ms)
        stream = connection.open_stream(StreamKind.CONSENSUS)
        frame = encode_hello(self._hello(Incarnation(0), QUESTION))
        try:
            async with asyncio.timeout(home.timing.handshake_timeout_ms / 1000):
                await stream.write(frame)
                challenge = await stream.read()
                if challenge is None:
                    return
                proof = answer(home.secret, StreamKind.CONSENSUS, frame, decode_answer(challenge))
                await stream.write(encode_proof(proof))
                verdict = await stream.read()
            if verdict is not None:
                home.gate.heed(self.name, verdict_of(decode_answer(verdict)).credentials)
        except (StreamBroken, WireError, HandshakeError, StorageError, TimeoutError) as error:
            self._log_trouble(f"it does not say what it knows: {str(error) or 'it did not answer in time'}")
        finally:
            stream.cancel()
            await connection.close()

    async def _outlive(self, link: Link) -> bool:
        """Wait until the link is closed, which happens soon unless its handshake succeeds. True if it was ever up."""
        try:
            async with asyncio.timeout(self._home.timing.handshake_timeout_ms / 1000):
                await link.up_or_closed.wait()
        except TimeoutError:
            link.close("no complete handshake in time")
        await link.closed.wait()
        return link.is_up

    # --- links ---

    def was_heard(self) -> None:
        """It has just proved who it is, whatever becomes of that."""
        self._calls += 1

    def link_of(self, hello: Hello) -> Link:
        """The link that the peer's stream with this hello belongs to. Raises `HandshakeError` if that is none."""
        return self._opened_by_us(hello) if self._home.name < self.name else self._opened_by_peer(hello)

    def _opened_by_us(self, hello: Hello) -> Link:
        link = self.link
        if link is None or link.number != hello.link or hello.receiver_incarnation != self._home.incarnation:
            raise HandshakeError(f"link {hello.link} is not the present one")
        return link

    def _opened_by_peer(self, hello: Hello) -> Link:
        link = self.link
        if hello.credentials.identity != self._last_identity:
            self._last_identity, self._last_link = hello.credentials.identity, (0, 0)
        if link is None and self._are_stragglers_past:
            self._last_link = (0, 0)
        stamp = (hello.sender_incarnation, hello.link)
        if stamp < self._last_link or (stamp == self._last_link and link is None):
            raise HandshakeError(f"link {hello.link} is older than the present one{self._of_two_starts(hello)}")
        if link is not None and stamp == self._last_link:
            return link
        self._last_link = stamp
        if link is not None:
            link.close(f"{self.name} opened a new link")
        self.says_it_is_at(hello.credentials.cluster_address)
        link = self._new_link(hello.link)
        link.note_start(hello.sender_incarnation, hello.credentials.identity)
        self._dial(link)
        return link

    @property
    def _are_stragglers_past(self) -> bool:
        """Without a link: whoever calls now lives, and has answered us since the last link was closed."""
        ended_for_s = asyncio.get_running_loop().time() - self._link_ended_s
        return ended_for_s > self._home.timing.handshake_timeout_ms / 1000

    def _of_two_starts(self, hello: Hello) -> str:
        """What may be behind a hello of an earlier start, for those who look into a log."""
        latest = self._last_link[0]
        if hello.sender_incarnation == latest:
            return ""
        return (
            f", which start {latest} of {self.name} has opened, and this is start {hello.sender_incarnation}: if both "
            "run, one of them has a copy of the other's data directory, and must be stopped"
        )

    def _new_link(self, number: int) -> Link:
        home = self._home
        link = Link(
            self.name,
            number,
            home.limits,
            home.timing.heartbeat_interval_ms,
            home.gate,
            on_up=self._link_up,
            on_closed=self._link_closed,
            on_uncongested=self._link_uncongested,
            on_room=self._link_has_room,
        )
        self.link = link
        self._link_changed.set()
        return link

    def _dial(self, link: Link) -> None:
        home = self._home
        hello = self._hello(link.peer_incarnation, link.number)
        link.address = self.address
        connection = home.carrier.connect(link.address, silence_timeout_ms=home.timing.silence_timeout_ms)
        link.dial(connection, hello, home.secret)

    def _hello(self, peer_incarnation: Incarnation, number: int) -> Hello:
        home = self._home
        return Hello(
            home.name,
            home.incarnation,
            self.name,
            peer_incarnation,
            number,
            *home.gate.spoken(),
            home.random_bytes(NONCE_BYTES),
            home.gate.credentials(self.name),
        )

    def _link_up(self, link: Link) -> None:
        self._is_refusal_reported = False
        self._looks_in_vain = 0
        self._last_trouble = ""
        self._met_at = link.address if link.address in self._addresses else ""  # it may have been told to move since
        logger.info("link %d to %s is up (incarnation %d)", link.number, link.peer, link.peer_incarnation)
        self._home.gate.linked(link.peer, link.peer_identity)
        self._home.handler.on_link_up(link.peer, link.peer_incarnation)

    def _link_closed(self, link: Link, reason: str) -> None:
        self._home.spawn(link.release())
        if link.is_up:
            self._home.gate.unlinked(link.peer)
        if self.link is link:
            self.link = None
            self._link_ended_s = asyncio.get_running_loop().time()
        if self._is_silent:
            return
        if not link.is_up:
            if link.address == self.address:
                self._addresses.append(self._addresses.pop(0))  # perhaps it is another's
            self._log_trouble(reason)
        else:
            logger.warning("link %d to %s is down: %s", link.number, link.peer, reason)
            self._home.handler.on_link_down(link.peer, reason)

    def _link_uncongested(self, link: Link) -> None:
        self._home.handler.on_link_uncongested(link.peer)

    def _link_has_room(self, link: Link) -> None:
        self._home.handler.on_link_room(link.peer)

    def _log_trouble(self, trouble: str) -> None:
        if not self._is_dropped and kind_of(trouble) != self._last_trouble:
            self._last_trouble = kind_of(trouble)
            logger.warning("no link to %s: %s", self.name, trouble)

    def check_invariants(self) -> None:
        if self._is_dropped:
            assert self.link is None, "a node that is no peer has no link"
        if self.link is not None:
            assert not self.link.is_closed, "a closed link is forgotten at once"
            self.link.check_invariants()
